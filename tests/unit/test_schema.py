"""What an answer has to look like: any value of a declared type fits its schema, and what no
decoder would take is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.example_counts import examples
from holdfast.errors import NotSerializable
from holdfast.log.codec import Undecodable, decode, decode_as, encode, encode_as
from holdfast.tasks.control.value_schema import find_mismatch, schema_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    text: str
    amount: int
    tags: set[str] = field(default_factory=set)
    inner: list[Line] = field(default_factory=list)


class Struct(msgspec.Struct):
    ok: bool
    level: Level = Level.LOW
    line: Line | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    name: str


class Row(msgspec.Struct, array_like=True):
    a: int
    b: str = ""


class Named(NamedTuple):
    a: int
    b: str


class Typed(TypedDict):
    a: int
    b: list[str]


class Model(pydantic.BaseModel):
    number: int
    colour: Colour = Colour.RED
    parts: list[Model] = []
    price: Decimal = Decimal(1)
    at: datetime | None = None


class Aliased(pydantic.BaseModel):
    from_: int = pydantic.Field(alias="from")


integers = st.integers(-(1 << 63), (1 << 63) - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
moments = st.datetimes(timezones=st.just(timezone.utc))
lines = st.deferred(
    lambda: st.builds(
        Line, texts, integers, st.sets(texts, max_size=2), st.lists(lines, max_size=2)
    )
)
models = st.deferred(
    lambda: st.builds(
        Model,
        number=integers,
        colour=st.sampled_from(Colour),
        parts=st.lists(models, max_size=2),
        price=st.decimals(allow_nan=False, allow_infinity=False, places=2),
        at=st.none() | moments,
    )
)
simple: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, integers),
    (float, floats),
    (str, texts),
    (None, st.none()),
    (Literal["yes", "no"], st.sampled_from(["yes", "no"])),
    (Literal[1, 2], st.sampled_from([1, 2])),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
]
others: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (datetime, moments),
    (date, st.dates()),
    (UUID, st.uuids()),
    (bytes, st.binary(max_size=5)),
    (Path, texts.filter(lambda text: "\0" not in text).map(Path)),
    (timedelta, st.timedeltas(timedelta(days=-1000), timedelta(days=1000))),
    (Line, lines),
    (Struct, st.builds(Struct, st.booleans(), st.sampled_from(Level), st.none() | lines)),
    (Cat | Dog, st.builds(Cat, integers) | st.builds(Dog, texts)),
    (Row, st.builds(Row, integers, texts)),
    (Named, st.builds(Named, integers, texts)),
    (Typed, st.fixed_dictionaries({"a": integers, "b": st.lists(texts, max_size=2)})),
    (Model, models),
    (Aliased, integers.map(lambda number: Aliased.model_validate({"from": number}))),
    (Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 100)),
]


@st.composite
def declared(
    draw: st.DrawFn, among: list[tuple[Any, st.SearchStrategy[Any]]], depth: int = 2
) -> tuple[Any, Any]:
    """A type, and a value of it."""
    shape = draw(
        st.sampled_from(
            ["plain", "list", "dict", "optional", "tuple", "many"] if depth else ["plain"]
        )
    )
    if shape == "plain":
        kind, values = draw(st.sampled_from(among))
        return kind, draw(values)
    kind, value = draw(declared(among, depth - 1))
    if shape == "list":
        return list[kind], [value] * draw(st.integers(0, 2))
    if shape == "many":
        return tuple[kind, ...], (value,) * draw(st.integers(0, 2))
    if shape == "dict":
        return dict[str, kind], {draw(texts): value}
    if shape == "optional":
        return kind | None if kind is not None else None, draw(st.sampled_from([value, None]))
    other, second = draw(declared(among, 0))
    return tuple[kind, other], (value, second)


@pytest.mark.slow
@given(declared([*simple, *others]))
@settings(max_examples=examples(200), deadline=None)
def test_a_value_of_a_declared_type_fits_its_schema(case: tuple[Any, Any]) -> None:
    kind, value = case
    try:
        raw = encode_as(value, kind)
    except (
        NotSerializable,
        TypeError,
    ):  # not a type or a value that can be stored: it cannot be answered either
        return
    assert find_mismatch(decode(raw), schema_of(kind)) is None


json_values = st.recursive(
    st.none()
    | st.booleans()
    | integers
    | floats
    | texts
    | st.sampled_from(["yes", "red", 1, 1.0, 2, True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@given(declared(simple), json_values)
@settings(max_examples=examples(500), deadline=None)
def test_of_simple_types_what_the_decoder_refuses_is_refused(
    case: tuple[Any, Any], value: Any
) -> None:
    kind, _ = case
    try:
        decode_as(encode(value), kind)
    except Undecodable:
        assert find_mismatch(value, schema_of(kind)) is not None


@pytest.mark.slow
@given(declared(simple), json_values)
@settings(max_examples=examples(200), deadline=None)
def test_of_simple_types_what_is_refused_would_be_refused_by_the_decoder(
    case: tuple[Any, Any], value: Any
) -> None:
    kind, _ = case
    problem = find_mismatch(value, schema_of(kind))
    if problem is not None and not is_whole(value):
        with pytest.raises(Undecodable):
            decode_as(encode(value), kind)


def is_whole(value: Any) -> bool:
    """Whether there is a number like 1.0 in it, which a decoder takes for 1; whoever answers means
    one or the other."""
    if isinstance(value, list | tuple):
        return any(map(is_whole, value))
    if isinstance(value, dict):
        return any(map(is_whole, value.values()))
    return isinstance(value, float) and value.is_integer()


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (bool, 1, "the answer must be boolean"),
        (Literal["a", "b"], "c", "the answer must be one of 2 values"),
        (list[int], [1, "x"], "the answer[1] must be integer"),
        (Line, {"text": "a"}, "the answer must have 'amount'"),
        (Line, {"text": 1, "amount": 1}, "the answer.text must be string"),
        (
            Line,
            {"text": "a", "amount": 1, "inner": [{"text": "b", "amount": "x"}]},
            "the answer.inner[0].amount must be integer",
        ),
        (int | str, None, "the answer must be one of 2 alternatives"),
        (tuple[int, str], [1], "the answer must have at least 2 items, got 1"),
        (tuple[int, str], [1, "a", 2], "the answer must have at most 2 items, got 3"),
        (tuple[int, str], ["a", "b"], "the answer[0] must be integer"),
        (dict[str, int], {"secret": "x"}, "a part of the answer must be integer"),
        (Dog, {"type": "Dog", "name": "a", "secret": 1}, "the answer has an unknown field"),
        (Cat | Dog, {"type": "Cow"}, "the answer must be one of 2 alternatives"),
        (Model, {"number": 1, "colour": "green"}, "the answer.colour must be one of 2 values"),
    ],
)
def test_what_is_wrong_is_said_without_repeating_it(kind: Any, value: Any, problem: str) -> None:
    assert find_mismatch(value, schema_of(kind)) == problem


@pytest.mark.parametrize("kind", [Any, object, list[Model], complex])
def test_a_type_that_cannot_be_said_takes_anything(kind: Any) -> None:
    assert schema_of(kind) is None
    assert find_mismatch({"any": ["thing"]}, schema_of(kind)) is None


@pytest.mark.parametrize(
    "schema",
    [
        7,
        "text",
        [],
        {"type": 7},
        {"type": ["unheard of"]},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"anyOf": []},
        {
            "anyOf": 7,
            "enum": 7,
            "required": 7,
            "properties": 7,
            "items": 7,
            "prefixItems": 7,
            "minItems": "x",
        },
        {"required": [7], "properties": {"a": 7}} | {"required": []},
        {"additionalProperties": True},
        {"items": False},
    ],
)
@pytest.mark.parametrize("value", [None, 1, "a", [1], {"a": 1}])
def test_a_schema_that_makes_no_sense_refuses_nothing(schema: Any, value: Any) -> None:
    assert find_mismatch(value, schema) is None


def test_a_schema_that_names_itself_again_and_again_is_looked_at_once() -> None:
    several = {"anyOf": [{"$ref": "#/$defs/a"}] * 3}
    schema = {"$defs": {"a": several}, "$ref": "#/$defs/a"}
    assert find_mismatch(1, schema) is None
