"""Fingerprints: equal for equal arguments in every process, different for different ones, and never
in the way."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tasks.steps.identity import code_digest, fingerprint, fingerprint_by_field

SALT = b"salt"


def print_of(*args: Any, **kwargs: Any) -> str:
    return fingerprint(SALT, args, kwargs)


class Colour(Enum):
    RED = "red"
    BLUE = object()


class Level(IntEnum):
    LOW = 1


@dataclass
class Order:
    number: int
    tags: set[str] = field(default_factory=set)
    client: Any = None


class Receipt(pydantic.BaseModel):
    amount: Decimal


class Point(msgspec.Struct):
    x: int


class Plain:
    def __init__(self, x: int) -> None:
        self.x = x


class Broken(pydantic.BaseModel):
    @pydantic.model_serializer
    def no(self) -> Any:
        raise RuntimeError("no")


Pair = namedtuple("Pair", "a b")
AT = datetime(2026, 5, 1, tzinfo=timezone.utc)


# Each value, and one that is another.
VALUES: list[tuple[Any, Any]] = [
    (1, 2),
    (1, "1"),
    (1, True),
    (0, None),
    (1.0, 1.5),
    ("a", "b"),
    ("a", ["a"]),
    ("", None),
    ([1, 2], [2, 1]),
    ([[1], 2], [[1, 2]]),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ({"a": {"b": 1}}, {"a": {"b": 2}}),
    ({1, 2}, {1, 3}),
    (frozenset("a"), frozenset("b")),
    (b"\xff", b"\xfe"),
    (b"a", bytearray(b"b")),
    (Decimal("1.0"), Decimal("1.00")),
    (AT, AT + timedelta(microseconds=1)),
    (timedelta(1), timedelta(2)),
    (UUID(int=1), UUID(int=2)),
    (Colour.RED, Level.LOW),
    (Order(1, {"b", "a"}), Order(1, {"a"})),
    (Order(1, client=threading.Lock()), Order(2, client=threading.Lock())),
    (Receipt(amount=Decimal(1)), Receipt(amount=Decimal(2))),
    (Point(1), Point(2)),
    (Path("/a"), Path("/b")),
    (PurePosixPath("/a"), PurePosixPath("/b")),
    (1j, 2j),
    (2**70, 2**70 + 1),
    (-(2**70), 2**70),
    ("a\ud800", "b\ud800"),
    (Pair(1, 2), Pair(2, 1)),
    (np.float64(1.5), np.float64(2.5)),
    (np.int64(1), np.int64(2)),
    ({(1, 2): "a"}, {(1, 3): "a"}),
    ({1: "a"}, {2: "a"}),
    ([threading.Lock(), 1], [threading.Lock(), 2]),
    ({"lock": threading.Lock(), "n": {"m": 1}}, {"lock": threading.Lock(), "n": {"m": 2}}),
    (OrderedDict(a=1), OrderedDict(a=2)),
]


@pytest.mark.parametrize(("value", "other"), VALUES)
def test_equal_values_have_equal_fingerprints_and_others_have_others(
    value: Any, other: Any
) -> None:
    assert print_of(value) == print_of(value)
    assert print_of(value) != print_of(other)
    assert print_of([{"deep": value}]) != print_of([{"deep": other}])
    assert print_of(x=value) != print_of(x=other)


# -- equal data, whatever carries it ---------------------------------------------------------------


@dataclass
class ClaimDataclass:
    q: str
    n: float
    lines: list[Any]


@dataclass(slots=True)
class ClaimSlots:
    lines: list[Any]
    n: float
    q: str


class ClaimStruct(msgspec.Struct):
    n: float
    q: str
    lines: list[Any]


class ClaimModel(pydantic.BaseModel):
    n: float
    lines: list[Any]
    q: str


class ClaimRenamed(msgspec.Struct, rename={"question": "q"}):
    question: str
    n: float
    lines: list[Any]


class ClaimAliased(pydantic.BaseModel):
    question: str = pydantic.Field(alias="q")
    n: float
    lines: list[Any]

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def long(self) -> str:
        return self.question * 2


class ClaimView(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


CARRIERS: list[Callable[..., Any]] = [
    dict,
    OrderedDict,
    lambda **fields: MappingProxyType(fields),
    ClaimView,
    ClaimDataclass,
    ClaimSlots,
    ClaimStruct,
    ClaimModel,
    lambda q, n, lines: ClaimRenamed(q, n, lines),
    lambda **fields: ClaimAliased(**fields),
]


class Text(str):
    """Text with a name of its own."""


class Word(str, Enum):
    RED = "red"


class Level2(Enum):
    PAIR = (1, 2)


SAME: list[tuple[Any, ...]] = [
    ([1, "a"], (1, "a"), Pair(1, "a"), deque([1, "a"])),
    ("red", Colour.RED, Word.RED, Text("red")),
    (1, Level.LOW, np.int64(1), 1.0, np.float64(1)),
    (True, np.bool_(True)),
    (1.5, np.float32(1.5)),
    ([1, 2], Level2.PAIR),
    ("1.10", Decimal("1.10")),
    (str(UUID(int=1)), UUID(int=1)),
    ("/a/b", Path("/a/b"), PurePosixPath("/a/b")),
    ("10.0.0.1", ip_address("10.0.0.1")),
    (b"ab", bytearray(b"ab"), memoryview(b"ab")),
    ({"red": 1}, {Word.RED: 1}, {Text("red"): 1}),
]


@pytest.mark.parametrize("same", SAME, ids=lambda same: repr(same[0]))
def test_equal_values_are_equal_whatever_their_type(same: tuple[Any, ...]) -> None:
    lock = threading.Lock()
    for wrap in (lambda x: x, lambda x: [{"deep": x}], lambda x: ClaimDataclass("q", 1, [x])):
        assert len({print_of(wrap(value)) for value in same}) == 1
        assert len({print_of(wrap(value), lock) for value in same}) == 1, "also the slow way"


@pytest.mark.parametrize("carrier", CARRIERS)
def test_equal_fields_are_equal_whatever_carries_them(carrier: Callable[..., Any]) -> None:
    for lines in ([], [1], [Decimal("1.0"), {"x": (AT, None)}], [2**70], ["\ud800"], [{1: 2}]):
        claim = {"q": "a", "n": 3, "lines": lines}
        for wrap in (lambda x: x, lambda x: [x], lambda x: {"claim": x}):
            assert print_of(wrap(carrier(**claim))) == print_of(wrap(claim))
            assert print_of(wrap(carrier(**claim)), object()) == print_of(wrap(claim), object())
            for other in ({"q": "b"}, {"n": 4}, {"lines": [7]}):
                assert print_of(wrap(carrier(**{**claim, **other}))) != print_of(wrap(claim))


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {
            "q": st.text(st.characters()),
            "n": st.integers(-(2**53), 2**53) | st.floats(allow_nan=False),
            "lines": st.lists(st.deferred(lambda: values), max_size=3),
        }
    ),
    st.sampled_from(CARRIERS),
    st.booleans(),
)
def test_no_value_tells_its_carrier(
    fields: dict[str, Any], carrier: Callable[..., Any], slow: bool
) -> None:
    try:
        carried = carrier(**fields)
    except pydantic.ValidationError:  # text with half a surrogate pair
        return
    more = (threading.Lock(), {1: 2}) if slow else ()
    assert print_of(carried, *more) == print_of(fields, *more)
    assert print_of([carried], x=carried) == print_of([fields], x=fields)


def test_a_named_tuple_is_its_tuple_and_by_field_the_dict_it_replaces() -> None:
    def by_field(*args: Any) -> str | None:
        return fingerprint_by_field(SALT, args, {})

    assert print_of(Pair(1, 2)) == print_of((1, 2))
    assert by_field(Pair(1, 2)) == print_of({"a": 1, "b": 2})
    assert by_field([{"x": Pair(1, [Pair(2, 3)])}]) == print_of(
        [{"x": {"a": 1, "b": [{"a": 2, "b": 3}]}}]
    )
    assert by_field((1, 2), {"a": 1}) is None


def test_what_one_argument_is_does_not_change_the_form_of_another() -> None:
    part = {"b": ["text", 1.5, None, {"set": {"y", "x"}}], "a": Order(1, {"t"})}
    for odd in (2**70, "\ud800", {1: 2}, {3, "a"}):
        assert print_of([part, odd]) == print_of([dict(reversed(part.items())), odd])
        assert print_of([part, odd]) != print_of([{**part, "a": Order(2, {"t"})}, odd])


def test_what_is_given_where_makes_a_difference() -> None:
    prints = [
        print_of(1, 2),
        print_of(2, 1),
        print_of((1, 2)),
        print_of(a=1, b=2),
        print_of(a=2, b=1),
        print_of(1, b=2),
    ]
    assert len(set(prints)) == len(prints)
    assert print_of(a=1, b=2) == print_of(b=2, a=1)


def test_order_makes_no_difference_where_there_is_none() -> None:
    assert print_of({"a": 1, "b": 2}) == print_of({"b": 2, "a": 1})
    assert print_of({"a": 1, "b": threading.Lock()}) == print_of({"b": threading.Lock(), "a": 1})
    assert print_of({"x", "y", "z"}) == print_of({"z", "y", "x"})
    assert print_of({"x", 1, (2, "y")}) == print_of({(2, "y"), 1, "x"})


def test_the_slow_way_says_the_same_of_equal_values() -> None:
    lock = threading.Lock()
    for make in (
        lambda: Order(1, {"b", "a"}),
        lambda: Receipt(amount=Decimal(1)),
        lambda: AT,
        lambda: {"k": [1.5, None]},
    ):
        assert print_of(make(), lock) == print_of(make(), threading.Lock())


@pytest.mark.parametrize(
    "make", [object, threading.Lock, lambda: Plain(1), lambda: open, Broken, lambda: iter([])]
)
def test_what_cannot_be_encoded_counts_by_type(make: Any) -> None:
    assert print_of(make(), 1) == print_of(make(), 1)
    assert print_of(make(), 1) != print_of(make(), 2)
    assert print_of(make()) != print_of(make)
    assert print_of(Plain(1)) == print_of(Plain(2))
    assert print_of(Plain(1)) != print_of(object())


def test_nan_and_infinity_are_arguments_too() -> None:
    assert print_of(float("nan")) == print_of(float("nan"))
    assert len(print_of(float("inf"), object())) == 24


def test_what_holds_itself_or_is_deep_comes_to_an_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    other: list[Any] = [2]
    other.append(other)
    assert print_of(loop) == print_of(loop) != print_of(other)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert len(print_of(deep)) == 24
    around: dict[str, Any] = {}
    around["me"] = {"again": around, "lock": threading.Lock()}
    assert len(print_of(around)) == 24


def test_values_that_are_shared_are_not_taken_for_loops() -> None:
    lock = threading.Lock()
    part = {"n": 1}
    assert print_of([part, part], lock) == print_of([{"n": 1}, {"n": 1}], lock)


def test_a_value_can_say_its_own_fingerprint() -> None:
    class Chat:
        def __init__(self, id: str, messages: list[str]) -> None:
            self.id, self.messages = id, messages

        def __holdfast_fingerprint__(self) -> str:
            return self.id

    assert print_of(Chat("a", [])) == print_of(Chat("a", ["x"])) != print_of(Chat("b", []))


def test_a_hook_that_fails_is_not_in_the_way() -> None:
    class Angry:
        def __holdfast_fingerprint__(self) -> str:
            raise RuntimeError("no")

    assert print_of(Angry(), 1) == print_of(Angry(), 1) != print_of(Angry(), 2)


def test_the_salt_makes_another_fingerprint_and_the_value_is_not_in_it() -> None:
    assert fingerprint(b"a", ("secret",), {}) != fingerprint(b"b", ("secret",), {})
    assert fingerprint(b"", ("x",), {}) == fingerprint(b"", ("x",), {})
    assert len(print_of("x" * 1_000_000)) == 24


@pytest.mark.slow
def test_another_process_makes_the_same_fingerprint() -> None:
    program = (
        "from decimal import Decimal\nfrom holdfast.tasks.steps.identity import fingerprint\n"
        "print(fingerprint(b'salt', ({'b', 'a', 'c'}, {'x': {'z', 'y'}}, Decimal('1.0'), 2**70, "
        "object()), {'k': [1.5]}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    expected = print_of(
        {"a", "b", "c"}, {"x": {"y", "z"}}, Decimal("1.0"), 2**70, object(), k=[1.5]
    )
    assert found == {expected}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(values, values)
def test_fingerprints_are_equal_exactly_if_the_values_are(one: Any, two: Any) -> None:
    assert print_of(one) == print_of(one)
    if repr(one) == repr(two):
        assert print_of(one) == print_of(two)


@pytest.mark.slow
@given(st.dictionaries(st.text(), values, min_size=2, max_size=4), st.randoms())
def test_the_order_of_keys_never_counts(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert print_of(value) == print_of(dict(items))
    assert print_of(value, object()) == print_of(dict(items), object())


# -- code ------------------------------------------------------------------------------------------


def compiled(source: str) -> Any:
    found: dict[str, Any] = {}
    exec(source, found)
    return found["f"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("def f(): return 1", "def f(): return 2"),
        ("def f(): return a", "def f(): return b"),
        ("def f(): return 'a'", "def f(): return 'b'"),
        ("def f(a): return a", "def f(b): return b"),
        ("def f(): return (lambda: 1)()", "def f(): return (lambda: 2)()"),
        ("def f(x): return x in {1, 2}", "def f(x): return x in {1, 3}"),
        ("def f(x): return x + 1", "def f(x): return x - 1"),
    ],
)
def test_other_code_has_another_digest(one: str, two: str) -> None:
    assert code_digest(compiled(one)) == code_digest(compiled(one)) != code_digest(compiled(two))


def test_comments_and_the_place_in_the_file_do_not_change_the_digest() -> None:
    assert code_digest(compiled("def f():\n    return 1")) == code_digest(
        compiled("# new\n\ndef f():\n    # why\n    return 1")
    )


def test_a_digest_names_the_version_of_python() -> None:
    assert code_digest(compiled("def f(): pass")).startswith(
        f"{sys.version_info[0]}.{sys.version_info[1]}:"
    )


def test_the_code_of_a_wrapper_is_that_of_what_it_wraps() -> None:
    def inner() -> int:
        return 1

    @functools.wraps(inner)
    def outer() -> int:
        return inner()

    assert code_digest(outer) == code_digest(inner)
    assert code_digest(Plain(1).__init__) == code_digest(Plain.__init__)  # type: ignore[misc]
    for without in (len, int, functools.partial(inner), Plain(1)):
        assert code_digest(without) == ""


@pytest.mark.slow
def test_the_digest_of_sets_in_code_is_the_same_in_every_process() -> None:
    program = (
        "from holdfast.tasks.steps.identity import code_digest\n"
        "def f(x): return x in {'a', 'b', 'c', 'd', 'e'}\n"
        "print(code_digest(f))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3", "4")
    }
    assert len(found) == 1


def chunks() -> Iterator[int]:
    yield 1


def test_a_generator_has_a_digest_like_any_function() -> None:
    assert code_digest(chunks)
