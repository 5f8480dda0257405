"""Values of many types, and what makes more of them, for the tests of the codec."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union

import msgspec
import numpy
import pydantic
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from holdfast.log.codec.walk import find_difference

CANARY = "canary-7f3a"

UTC = datetime.timezone.utc

unhurried = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a busy machine is not a failure


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(str, enum.Enum):
    FAST = "fast"


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    label: str


class Movie(TypedDict):
    title: str
    seen: datetime.date


class Person(pydantic.BaseModel):
    name: str
    born: datetime.date
    friends: list[Person] = []


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="allow")
    at: datetime.datetime
    amount: decimal.Decimal
    key: bytes = pydantic.Field(alias="theKey")


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Computed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    width: int
    parsed: pydantic.Json[list[int]]

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width**2


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr


class Shape(msgspec.Struct, tag=True):
    sides: int


class Circle(Shape, tag=True):
    radius: float = 1.0


class Frozen(msgspec.Struct, frozen=True, rename="camel"):
    some_ids: frozenset[uuid.UUID]
    at: datetime.datetime | msgspec.UnsetType = msgspec.UNSET


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    at: datetime.datetime
    lines: list[Line]
    tags: set[str] = dataclasses.field(default_factory=set)
    customer: Person | None = None
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Line:
    article: str
    price: decimal.Decimal
    colors: tuple[Color, ...] = ()


@dataclasses.dataclass
class Picky:
    """Refuses in words that quote what it was given, as validation code does."""

    text: str

    def __post_init__(self) -> None:
        if self.text.startswith("bad"):
            raise ValueError(f"no {self.text}")
        if self.text.startswith("odd"):
            raise KeyError(self.text)


def same(one: object, other: object) -> bool:
    return find_difference(one, other) is None


text = st.text(st.characters(exclude_categories=["Cs"]))

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)

natives = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(text, inner, max_size=6)
)


class Text(str):
    pass


def nested(depth: int, *, of: str = "list") -> object:
    value: object = 1
    for _ in range(depth):
        value = [value] if of == "list" else {"k": value}
    return value


BERLIN = datetime.timezone(datetime.timedelta(hours=2))

ORDER = Order(
    id=uuid.UUID(int=7),
    at=datetime.datetime(2024, 5, 1, 12, 30, 0, 123456, BERLIN),
    lines=[
        Line("tea", decimal.Decimal("1.50"), (Color.RED, Color.BLUE)),
        Line("cup", decimal.Decimal("12")),
    ],
    tags={"a", "b"},
    customer=Person(
        name="Ada",
        born=datetime.date(1815, 12, 10),
        friends=[Person(name="C", born=datetime.date(1791, 12, 26))],
    ),
    notes={"free": [1, 2.5, None, {"x": True}]},
)

STRICT = {"at": datetime.datetime(2024, 1, 1), "amount": decimal.Decimal("1.10"), "theKey": b"k"}

DECLARED: list[tuple[object, Any]] = [
    (None, None),
    (None, Optional[int]),  # noqa: UP045 - the older spelling is another kind of annotation
    (1, int | None),
    (True, bool),
    (2**70, int),
    (1.5, float),
    ("x", str),
    ("x", Union[int, str, None]),  # noqa: UP007 - as above
    ("x", Literal["x", 1]),
    (1, Literal["x", 1]),
    (5, Annotated[int, msgspec.Meta(ge=1)]),
    (datetime.datetime(2024, 1, 1, 1, 2, 3, 4), datetime.datetime),
    (datetime.datetime(2024, 1, 1, 1, 2, 3, 4, BERLIN), datetime.datetime),
    (datetime.datetime.min, datetime.datetime),
    (datetime.date(1, 1, 1), datetime.date),
    (datetime.time(1, 2, 3, 4), datetime.time),
    (datetime.time(1, 2, 3, 4, UTC), datetime.time),
    (datetime.timedelta(days=-3, microseconds=1), datetime.timedelta),
    (uuid.UUID(int=2**127), uuid.UUID),
    (decimal.Decimal("1.000"), decimal.Decimal),
    (decimal.Decimal("-0E+3"), decimal.Decimal),
    (b"\x00\xff", bytes),
    (bytearray(b"\x00"), bytearray),
    (pathlib.Path("/tmp/ü x"), pathlib.Path),
    (pathlib.PurePosixPath("a/../b"), pathlib.PurePosixPath),
    (pathlib.PureWindowsPath("c:/x"), pathlib.PureWindowsPath),
    (pathlib.Path("a"), pathlib.Path | None),
    ({3, 1, 2}, set[int]),
    (set(), set),
    (frozenset({"a"}), frozenset[str]),
    ({(1, "a"), (2, "b")}, set[tuple[int, str]]),
    ((1, "a", 2.5), tuple[int, str, float]),
    ((1, 2, 3), tuple[int, ...]),
    ((), tuple),
    (Point(1, "a"), Point),
    ([Point(1, "a")], list[Point]),
    (Color.RED, Color),
    (Mode.FAST, Mode),
    (Level.HIGH, Level),
    (Right.READ | Right.WRITE, Right),
    (ORDER, Order),
    ({"o": [ORDER]}, dict[str, list[Order]]),
    (Circle(3, 2.5), Circle),
    ([Circle(3, 2.5), Shape(1)], list[Circle | Shape]),
    (Frozen(frozenset({uuid.UUID(int=1), uuid.UUID(int=2)})), Frozen),
    (Frozen(frozenset(), datetime.datetime(2024, 1, 1)), Frozen),
    ({"title": "x", "seen": datetime.date(2024, 1, 1)}, Movie),
    ({"seen": datetime.date(2024, 1, 1), "title": "x"}, Movie),
    (Person(name="Ada", born=datetime.date(1815, 12, 10)), Person),
    ([Person(name="Ada", born=datetime.date(1815, 12, 10))], list[Person]),
    ({"a": None, "b": Numbers([1, 2])}, dict[str, Numbers | None]),
    (Strict.model_validate({**STRICT, "more": [1]}), Strict),
    (Computed.model_validate({"width": 2, "parsed": "[1, 2]"}), Computed),
    ({1: "a", 2: "b"}, dict[int, str]),
    ({1.5: "a"}, dict[float, str]),
    ({datetime.date(2024, 1, 1): 1}, dict[datetime.date, int]),
    ({datetime.datetime(2024, 1, 1, tzinfo=UTC): 1}, dict[datetime.datetime, int]),
    ({uuid.UUID(int=1): 1}, dict[uuid.UUID, int]),
    ({Color.RED: 1}, dict[Color, int]),
    ({Level.LOW: 1}, dict[Level, int]),
    ({b"\xff": 1}, dict[bytes, int]),
    ({decimal.Decimal("1.0"): 1}, dict[decimal.Decimal, int]),
    ({"a": [1, {"b": None}]}, dict[str, Any]),
    ({"a": [1, {"b": None}]}, dict),
    ([1, "a"], list[object]),
    ([1, 2], typing.Sequence[int]),
    (numpy.float64(0.1), numpy.float64),
    (numpy.float32(0.1), numpy.float32),
    (numpy.float16(0.1), numpy.float16),
    (numpy.int8(-128), numpy.int8),
    (numpy.uint64(2**64 - 1), numpy.uint64),
    (numpy.bool_(True), numpy.bool_),
    ([numpy.int64(1), None], list[numpy.int64 | None]),
]

moments = st.datetimes(
    timezones=st.none()
    | st.integers(-1439, 1439).map(lambda m: datetime.timezone(datetime.timedelta(minutes=m)))
)

lines = st.builds(Line, text, st.decimals(), st.lists(st.sampled_from(Color)).map(tuple))

persons = st.recursive(
    st.builds(Person, name=text, born=st.dates(), friends=st.just([])),
    lambda inner: st.builds(
        Person, name=text, born=st.dates(), friends=st.lists(inner, max_size=3)
    ),
    max_leaves=4,
)

orders = st.builds(
    Order,
    id=st.uuids(),
    at=moments,
    lines=st.lists(lines, max_size=3),
    tags=st.sets(text, max_size=3),
    customer=st.none() | persons,
    notes=st.dictionaries(text, natives, max_size=2),
)


class Lossy(pydantic.BaseModel):
    keep: int = 1
    hidden: int = pydantic.Field(default=0, exclude=True)


class Unwritable(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    url: pydantic.HttpUrl = pydantic.HttpUrl(
        "http://localhost"
    )  # nothing that msgspec could write, but not at fault
    thing: object

    @pydantic.field_serializer("thing")
    def refuse(self, thing: object) -> object:
        raise RuntimeError(f"cannot write {thing}")
