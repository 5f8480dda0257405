"""Fingerprints: equal for equal arguments in every process, different for different ones, and never
in the way."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tasks.steps.fingerprints import code_digest, fingerprint

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
        "from decimal import Decimal\nfrom holdfast.tasks.steps.fingerprints import fingerprint\n"
        "print(fingerprint(b'salt', ({'b', 'a', 'c'}, {'x': {'z', 'y'}}, Decimal('1.0'), 2**70, "
        "object()), {'k': [1.5]}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
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
        "from holdfast.tasks.steps.fingerprints import code_digest\n"
        "def f(x): return x in {'a', 'b', 'c', 'd', 'e'}\n"
        "print(code_digest(f))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
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
