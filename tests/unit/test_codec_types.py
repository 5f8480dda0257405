"""The codec with a declared type: what comes back as it went in, and what can never be stored."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import json
import math
import os
import pathlib
import subprocess
import sys
import types
import typing
import uuid
from typing import Annotated, Any

import msgspec
import numpy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.typed_values import (
    BERLIN,
    CANARY,
    DECLARED,
    STRICT,
    UTC,
    Circle,
    Color,
    Line,
    Lossy,
    Mode,
    Movie,
    Numbers,
    Order,
    Person,
    Picky,
    Secret,
    Shape,
    Strict,
    Text,
    Unwritable,
    moments,
    natives,
    nested,
    orders,
    persons,
    same,
    text,
    unhurried,
)
from holdfast.errors import HoldfastError, NotSerializable, TooLarge
from holdfast.log.codec import check_declared, decode_as, encode_as
from holdfast.log.codec import types as _codec_types


class Tree(msgspec.Struct):
    kids: list[Tree]


@dataclasses.dataclass(frozen=True)
class Discounted(Line):
    percent: int = 5


# --- with a declared type -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "declared"), DECLARED, ids=[f"{declared}"[:60] for _, declared in DECLARED]
)
def test_a_value_of_a_declared_type_comes_back_as_it_went_in(value: object, declared: Any) -> None:
    check_declared(declared)
    raw = encode_as(value, declared)
    back = decode_as(raw, declared)
    assert same(value, back)
    assert type(back) is type(value)
    assert encode_as(back, declared) == raw
    json.loads(raw)


of_a_type = st.one_of(
    st.tuples(orders, st.just(Order)),
    st.tuples(moments, st.just(datetime.datetime)),
    st.tuples(st.timedeltas(), st.just(datetime.timedelta)),
    st.tuples(st.times(), st.just(datetime.time)),
    st.tuples(st.decimals(allow_nan=False), st.just(decimal.Decimal)),
    st.tuples(st.binary(), st.just(bytes)),
    st.tuples(st.sets(st.tuples(st.integers(), text)), st.just(set[tuple[int, str]])),
    st.tuples(
        st.dictionaries(st.integers(), st.frozensets(st.uuids())),
        st.just(dict[int, frozenset[uuid.UUID]]),
    ),
    st.tuples(
        st.dictionaries(st.dates(), st.lists(persons, max_size=2), max_size=2),
        st.just(dict[datetime.date, list[Person]]),
    ),
    st.tuples(
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(numpy.float32),
        st.just(numpy.float32),
    ),
    st.tuples(text.map(pathlib.PurePosixPath), st.just(pathlib.PurePosixPath)),
)


@pytest.mark.slow
@unhurried
@given(of_a_type)
def test_any_value_of_a_declared_type_comes_back_as_it_went_in(pair: tuple[object, Any]) -> None:
    value, declared = pair
    assert same(value, decode_as(encode_as(value, declared), declared))


@pytest.mark.slow
@unhurried
@given(
    st.one_of(natives, of_a_type.map(lambda pair: pair[0])),
    st.sampled_from([declared for _, declared in DECLARED]),
)
def test_whatever_is_declared_a_value_comes_back_as_it_went_in_or_is_refused(
    value: object, declared: Any
) -> None:
    try:
        raw = encode_as(value, declared)
    except (NotSerializable, TooLarge):
        return
    assert same(value, decode_as(raw, declared))


def test_an_int_may_stand_for_a_declared_float_if_it_is_equal() -> None:
    assert decode_as(encode_as([1, 2**53], list[float]), list[float]) == [1.0, 2.0**53]
    with pytest.raises(NotSerializable) as caught:
        encode_as([1, 2**53 + 1], list[float])
    assert caught.value.path == "$[1]"


def test_a_zone_comes_back_as_its_offset() -> None:
    zoneinfo = pytest.importorskip("zoneinfo")
    try:
        zone = zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError:
        pytest.skip("no time zone data here")
    for fold in (0, 1):
        moment = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=fold)
        back = decode_as(encode_as(moment, datetime.datetime), datetime.datetime)
        assert back.timestamp() == moment.timestamp()
        assert back.utcoffset() == moment.utcoffset()


@pytest.mark.slow
def test_equal_sets_give_equal_bytes_whatever_their_order() -> None:
    script = (
        "import sys, dataclasses, msgspec; from holdfast.log.codec import encode_as\n"
        "@dataclasses.dataclass(frozen=True)\nclass D:\n    s: set[str]\n    n: dict[str, "
        "list[frozenset[str]]]\n"
        "class S(msgspec.Struct, frozen=True):\n    t: tuple[set[str], ...]\n    d: D\n"
        "words = [f'word{i}' for i in range(50)]\n"
        "print(encode_as(S((set(words),), D(set(words), {'z': [frozenset(words)], 'a': []})), "
        "S).decode())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert '"z"' in outputs.pop()


class Renamed(pydantic.BaseModel):
    value: int = pydantic.Field(default=0, validation_alias="in", serialization_alias="out")


@dataclasses.dataclass
class Wrapper:
    inner: Line
    free: dict[str, Any] = dataclasses.field(default_factory=dict)


REFUSED: list[tuple[object, Any, str, str]] = [
    (
        {"a": {"b": datetime.datetime(2024, 1, 1)}},
        dict[str, Any],
        "$.a.b",
        "datetime.datetime would come back as str",
    ),
    (
        Wrapper(Line("a", decimal.Decimal(1)), {"x": [(1,)]}),
        Wrapper,
        "$.free.x[0]",
        "tuple would come back as list",
    ),
    (
        Wrapper(Discounted("a", decimal.Decimal(1))),
        Wrapper,
        "$.inner",
        "Discounted would come back as",
    ),
    ([(1, 2)], list[list[int]], "$[0]", "tuple would come back as list"),
    ([[1, 2]], list[tuple[int, int]], "$[0]", "list would come back as tuple"),
    ([1, 2], set[int], "$", "list would come back as set"),
    ({1, 2}, list[int], "$", "set would come back as list"),
    ({1: 2}, dict, "$", "a key of type int would come back as str"),
    ({"a": {1: 2, "1": 3}}, dict[str, dict[str, int]], "$.a[1]", "would be lost"),
    ({(1, 2): 3}, dict, "$", "a key of type tuple cannot be a JSON key"),
    (
        {"title": "x", "seen": datetime.date(2024, 1, 1), "stars": 5},
        Movie,
        "$.stars",
        "would be lost",
    ),
    ([1.5, math.nan], list[float], "$[1]", "nan or infinite"),
    ([numpy.float32("inf")], list[numpy.float32], "$[0]", "does not fit"),
    (
        {"x": [numpy.float64(1)]},
        dict[str, list[float]],
        "$.x[0]",
        "numpy.float64 would come back as float",
    ),
    (numpy.zeros(2), list[float], "$", "numpy.ndarray cannot be stored"),
    (
        datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(seconds=61))),
        datetime.datetime,
        "$",
        "another value",
    ),
    (datetime.datetime(2024, 1, 1), datetime.date, "$", ""),
    (pathlib.Path("a\udcff"), pathlib.Path, "$", "surrogate"),
    ({"p": [pathlib.Path("a\udcff")]}, dict[str, list[pathlib.Path]], "$.p[0]", "surrogate"),
    ({"p": {"a\ud800": 1}}, dict[str, dict[str, int]], "$.p", "a key with a lone surrogate"),
    ([pathlib.PurePosixPath("a")], list[pathlib.Path], "$[0]", "PurePosixPath would come back as"),
    (
        {"s": Secret(password=pydantic.SecretStr(CANARY))},
        dict[str, Secret],
        "$.s.password",
        "is a secret",
    ),
    ([Lossy(hidden=3)], list[Lossy], "$[0].hidden", "another value"),
    (Renamed.model_validate({"in": 3}), Renamed, "$.value", "another value"),
    ([1, Unwritable(thing=CANARY)], list[Any], "$[1]", "Unwritable cannot be stored"),
    (
        Strict.model_validate({**STRICT, "more": (1,)}),
        Strict,
        "$.more",
        "tuple would come back as list",
    ),
    (
        Person(name="A", born=datetime.date(2024, 1, 1)),
        dict[str, Any],
        "$",
        "Person would come back as dict",
    ),
    ([object()], list[Any], "$[0]", "object cannot be stored"),
    (Text("x"), str, "$", "Text"),
    (
        {"a": {"b": 1}, "c": {"d": CANARY}},
        dict[str, dict[str, int]],
        "$.c.d",
        "expected `int`, got `str`",
    ),
    ({"a": [1, CANARY]}, dict[str, list[int]], "$.a[1]", "expected `int`, got `str`"),
    ([1, True], list[int], "$[1]", "expected `int`, got `bool`"),
    (1.0, int, "$", "expected `int`, got `float`"),
    (CANARY, Color, "$", "invalid enum value"),
    (Circle(1), Shape, "$.type", "invalid value"),
    (Picky.__new__(Picky), Picky, "$", ""),
    (decimal.Decimal(1), float, "$", ""),
    (10**5000, int, "$", "int"),
]


@pytest.mark.parametrize(
    ("value", "declared", "path", "problem"),
    REFUSED,
    ids=[f"{p} {d}"[:70] for _, d, p, _ in REFUSED],
)
def test_what_would_not_come_back_as_it_went_in_is_refused_with_its_path(
    value: Any, declared: Any, path: str, problem: str
) -> None:
    with pytest.raises(NotSerializable) as caught:
        encode_as(value, declared)
    assert caught.value.path == path
    assert problem in caught.value.problem


def test_a_model_that_writes_deeper_than_it_is_is_refused() -> None:
    class Deep(pydantic.BaseModel):
        levels: int

        @pydantic.field_serializer("levels")
        def write(self, levels: int) -> object:
            return nested(levels)

    with pytest.raises(TooLarge, match="nested deeper than 100 levels as JSON"):
        encode_as(Deep(levels=200), Deep)


def test_same_tells_apart_what_equality_does_not() -> None:
    for one, other in [
        (1, True),
        (1.0, 1),
        (0.0, -0.0),
        ("x", Mode.FAST),
        (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
        ([1], (1,)),
        ([1], [1, 2]),
        ({1}, {True}),
        ({1}, {1.5}),
        ({1}, frozenset({1})),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        (
            datetime.datetime(2024, 1, 1, 2, tzinfo=BERLIN),
            datetime.datetime(2024, 1, 1, tzinfo=UTC),
        ),
        (datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, tzinfo=UTC)),
        (datetime.time(1, tzinfo=UTC), datetime.time(1)),
        (Circle(1, 2.0), Circle(1, 3.0)),
        (Line("a", decimal.Decimal(1)), Line("b", decimal.Decimal(1))),
        (numpy.zeros(2), numpy.zeros(2)),
        (object(), object()),
    ]:
        assert not same(one, other), (one, other)
    assert same({1: [2.5]}, {1: [2.5]})
    assert same(1, 1.0)


# --- declaring types ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared",
    [
        complex,
        list[typing.Callable[[], int]],
        "int",
        "Nowhere",
        str | datetime.date,
        list[int] | set[int],
        Person | Numbers,
        dict[pathlib.Path, int],
        dict[bool, int],
        dict[tuple[int, int], int],
        dict[str, dict[Person, int]],
        msgspec.Raw,
        list[msgspec.Raw],
        numpy.ndarray,
        numpy.longdouble,
        numpy.timedelta64,
        numpy.floating,
        collections.OrderedDict[str, int],
        typing.Iterable[int],
        pydantic.SecretStr,
        types.FunctionType,
        42,
    ],
    ids=str,
)
def test_a_type_that_can_never_be_stored_is_a_type_error_at_declaration(declared: Any) -> None:
    with pytest.raises(TypeError, match="cannot be stored") as caught:
        check_declared(declared)
    assert not isinstance(caught.value, HoldfastError)
    with pytest.raises(TypeError):
        encode_as(None, declared)
    with pytest.raises(TypeError):
        decode_as(b"null", declared)


def test_an_unsupported_type_deep_in_a_dataclass_is_found_and_named() -> None:
    inner = dataclasses.make_dataclass("Inner", [("f", complex)])
    outer = dataclasses.make_dataclass("Outer", [("items", types.GenericAlias(list, inner))])
    with pytest.raises(TypeError, match="Outer cannot be stored: complex has no JSON form"):
        check_declared(outer)


def test_recursive_types_and_any_can_be_declared() -> None:
    check_declared(Any)
    check_declared(object)
    check_declared(Person)
    check_declared(Tree)
    tree = Tree([Tree([]), Tree([Tree([])])])
    assert decode_as(encode_as(tree, Tree), Tree) == tree


def test_an_annotation_without_a_hash_works_and_is_not_kept() -> None:
    declared = Annotated[dict[str, datetime.date], ["not", "hashable"]]
    with pytest.raises(TypeError):
        hash(declared)
    before = _codec_types._build_cached.cache_info().currsize
    value = {"a": datetime.date(2024, 1, 1)}
    assert decode_as(encode_as(value, declared), declared) == value
    assert _codec_types._build_cached.cache_info().currsize == before


def test_types_are_kept_once_and_not_without_bound() -> None:
    info = _codec_types._build_cached.cache_info
    assert info().maxsize is not None
    encode_as(1, int)
    built = info().misses
    encode_as(2, int)
    decode_as(b"3", int)
    assert info().misses == built
