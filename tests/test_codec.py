"""The codec: exact round trips, refusals with their place, limits, hostile bytes, and errors without content."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import os
import pathlib
import subprocess
import sys
import traceback
import types
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union

import msgspec
import numpy
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import _codec_types
from holdfast._codec import MAX_DEPTH, Undecodable, _nesting, check_declared, decode, decode_as, encode, encode_as
from holdfast._codec_walk import difference, path_text
from holdfast.errors import DataProblem, HoldfastError, NotSerializable, TooLarge

CANARY = "canary-7f3a"
UTC = datetime.timezone.utc
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is not a failure


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


class Tree(msgspec.Struct):
    kids: list[Tree]


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


@dataclasses.dataclass(frozen=True)
class Discounted(Line):
    percent: int = 5


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
    return difference(one, other) is None


# --- without a declared type -------------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
natives = st.recursive(scalars, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(text, inner, max_size=6))


@unhurried
@given(natives)
def test_any_json_native_value_comes_back_equal_with_exact_types_and_key_order(value: object) -> None:
    assert same(value, decode(encode(value)))


@pytest.mark.parametrize(
    "value", [-(2**63), 2**64 - 1, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, "\0\u2028\U0010ffff", ""]
)
def test_values_at_the_edges_come_back_exactly(value: object) -> None:
    assert same(value, decode(encode(value)))
    assert same([value], decode(encode([value])))


def test_the_bytes_are_plain_json_in_the_order_of_the_dict() -> None:
    assert encode({"b": [1, 2.5, None], "a": True}) == b'{"b":[1,2.5,null],"a":true}'
    assert json.loads(encode({"ü": "😀"})) == {"ü": "😀"}


class Text(str):
    pass


class Mapping(dict):  # type: ignore[type-arg]
    pass


NOT_NATIVE: list[tuple[object, str]] = [
    ((1, 2), "tuple"),
    ({1}, "set"),
    (frozenset(), "frozenset"),
    (b"x", "bytes"),
    (bytearray(b"x"), "bytearray"),
    (datetime.datetime(2024, 1, 1), "datetime.datetime"),
    (datetime.date(2024, 1, 1), "datetime.date"),
    (datetime.timedelta(1), "datetime.timedelta"),
    (uuid.UUID(int=1), "uuid.UUID"),
    (decimal.Decimal(1), "decimal.Decimal"),
    (pathlib.PurePosixPath("x"), "PurePosixPath"),
    (Color.RED, "Color"),
    (Mode.FAST, "Mode"),
    (Level.LOW, "Level"),
    (Text("x"), "Text"),
    (Mapping(a=1), "Mapping"),
    (collections.OrderedDict(a=1), "OrderedDict"),
    (numpy.float64(1.5), "numpy.float64"),
    (numpy.int64(1), "numpy.int64"),
    (numpy.bool_(True), "numpy.bool"),
    (numpy.zeros(2), "numpy.ndarray"),
    (Numbers([1]), "Numbers"),
    (Line("a", decimal.Decimal(1)), "Line"),
    (Circle(1), "Circle"),
    (Point(1, "a"), "Point"),
    (msgspec.Raw(b"1"), "Raw"),
    (msgspec.UNSET, "UnsetType"),
    (object(), "object"),
    (len, "builtin_function_or_method"),
    (Color, "EnumType" if sys.version_info >= (3, 11) else "EnumMeta"),
    (iter([]), "list_iterator"),
    (1j, "complex"),
    (float("nan"), "nan or infinite"),
    (float("inf"), "nan or infinite"),
    (-float("inf"), "nan or infinite"),
    (2**64, "64 bits"),
    (-(2**63) - 1, "64 bits"),
    (10**5000, "64 bits"),
    ("a\ud800", "surrogate"),
    ({1: 2}, "key of type int"),
    ({None: 2}, "key of type NoneType"),
    ({Text("x"): 2}, "key of type"),
    ({"\udfff": 2}, "a key with a lone surrogate"),
]


@pytest.mark.parametrize(("value", "named"), NOT_NATIVE, ids=[named for _, named in NOT_NATIVE])
@pytest.mark.parametrize("declared", [None, Any, object])
def test_what_is_not_json_native_is_refused_with_its_path_and_type(value: object, named: str, declared: Any) -> None:
    def write(outer: object) -> bytes:
        return encode(outer) if declared is None else encode_as(outer, declared)

    for outer, path in [
        (value, "$"),
        ([0, value], "$[1]"),
        ({"items": [{}, {"price": value}]}, "$.items[1].price"),
        ({"odd key": {"": value}}, '$["odd key"][""]'),
    ]:
        with pytest.raises(NotSerializable) as caught:
            write(outer)
        assert caught.value.path == path
        assert named in caught.value.problem


@pytest.mark.parametrize(
    ("value", "how"),
    [
        ((1,), "list()"),
        (datetime.date(2024, 1, 1), ".isoformat()"),
        (numpy.float32(1), ".item()"),
        (numpy.zeros(1), ".tolist()"),
        (Color.RED, ".value"),
        (Mode.FAST, ".value"),
        (Text("x"), "str()"),
        (Mapping(), "dict()"),
        (Numbers([1]), '.model_dump(mode="json")'),
        (Line("a", decimal.Decimal(1)), "dataclasses.asdict()"),
    ],
)
def test_a_refusal_says_how_to_convert(value: object, how: str) -> None:
    with pytest.raises(NotSerializable, match="declare its type, or convert it") as caught:
        encode(value)
    assert caught.value.problem.endswith(how)


def test_one_bad_float_among_many_is_found() -> None:
    numbers = [0.5] * 1000
    assert same(decode(encode(numbers)), numbers)
    assert same(decode(encode([1e308] * 100)), [1e308] * 100)  # their sum is infinite, they are not
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(NotSerializable) as caught:
            encode({"v": [*numbers, bad, -bad]})
        assert caught.value.path == "$.v[1000]"


def test_long_keys_and_long_paths_are_shortened_and_odd_ones_escaped() -> None:
    assert path_text(["a_1", 3, "b"]) == "$.a_1[3].b"
    assert path_text(['quote"', "new\nline", "\ud800", "ü"]) == r'$["quote\""]["new\nline"]["\ud800"]["\u00fc"]'
    assert path_text(["k" * 1000]) == '$["' + "k" * 39 + '…"]'
    assert len(path_text(["k" * 1000] * 100)) < 300
    assert path_text([..., datetime.date(2024, 1, 1), 10**5000]) == "$[*][<datetime.date>][<int>]"


# --- limits ------------------------------------------------------------------------------------------------------


def nested(depth: int, *, of: str = "list") -> object:
    value: object = 1
    for _ in range(depth):
        value = [value] if of == "list" else {"k": value}
    return value


@pytest.mark.parametrize("of", ["list", "dict"])
def test_nesting_is_allowed_up_to_the_limit_and_no_deeper(of: str) -> None:
    assert decode(encode(nested(MAX_DEPTH, of=of))) == nested(MAX_DEPTH, of=of)
    assert decode_as(encode_as(nested(MAX_DEPTH, of=of), list | dict), list | dict) == nested(MAX_DEPTH, of=of)
    for write in (encode, lambda value: encode_as(value, list | dict)):
        with pytest.raises(TooLarge, match=r"^\$(\[0\]|\.k).*: nested deeper than 100 levels"):
            write(nested(MAX_DEPTH + 1, of=of))


def test_the_depth_limit_can_be_chosen() -> None:
    assert encode([[]], max_depth=2) == b"[[]]"
    assert encode(7, max_depth=0) == b"7"
    assert decode(b"[[]]", max_depth=2) == [[]]
    with pytest.raises(TooLarge, match=r"^\$\[0\]: nested deeper than 1 levels"):
        encode([[]], max_depth=1)
    with pytest.raises(Undecodable, match="nested deeper than 1 levels"):
        decode(b'{"a":[]}', max_depth=1)
    with pytest.raises(Undecodable, match="nested deeper than 1 levels"):
        decode_as(b"[[1]]", list[list[int]], max_depth=1)


def test_many_containers_side_by_side_are_not_deep() -> None:
    wide = [{"a": [1]}] * 1000
    assert decode(encode(wide)) == wide
    assert decode_as(encode_as(wide, list[dict[str, list[int]]]), list[dict[str, list[int]]]) == wide


def test_brackets_inside_of_strings_are_not_depth() -> None:
    tricky = ["[" * 500, '\\"{[' * 300, "\\", '"']
    assert decode(encode(tricky)) == tricky
    assert decode_as(encode_as(tricky, list[str]), list[str]) == tricky


def cycle(of: str) -> Any:
    if of == "list":
        one: list[Any] = [1]
        one.append(one)
        return one
    if of == "dict":
        two: dict[str, Any] = {}
        two["me"] = two
        return two
    if of == "twice":
        three: list[Any] = []
        three += [three, three]
        return three
    parent = Person(name="a", born=datetime.date(2024, 1, 1))
    parent.friends.append(parent)
    return parent


@pytest.mark.parametrize("of", ["list", "dict", "twice"])
def test_a_value_that_contains_itself_is_too_large(of: str) -> None:
    with pytest.raises(TooLarge, match="or it contains itself"):
        encode(cycle(of), max_bytes=100_000)
    with pytest.raises(TooLarge, match="or it contains itself"):
        encode_as(cycle(of), list | dict, max_bytes=100_000)


def test_a_model_that_contains_itself_is_too_large() -> None:
    with pytest.raises(TooLarge, match="or it contains itself"):
        encode_as(cycle("model"), Person)


def test_shared_parts_that_multiply_are_refused_before_they_fill_memory() -> None:
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]
    long = "x" * 1_000_000
    for value in (shared, [[long] * 1000] * 1000, {"a": [long] * 1000}):
        with pytest.raises(TooLarge, match="more than 100000 bytes"):
            encode(value, max_bytes=100_000)
        with pytest.raises(TooLarge, match="more than 100000 bytes"):
            encode_as(value, list | dict, max_bytes=100_000)


def test_the_size_limit_is_exact_and_names_both_numbers() -> None:
    assert len(encode({"a": "\n\n"}, max_bytes=12)) == 12  # {"a":"\n\n"}: escapes count
    with pytest.raises(TooLarge, match="12 bytes as JSON, over the limit of 11"):
        encode({"a": "\n\n"}, max_bytes=11)
    with pytest.raises(TooLarge, match="12 bytes as JSON, over the limit of 11"):
        encode_as({"a": "\n\n"}, dict[str, str], max_bytes=11)
    with pytest.raises(TooLarge, match=r"more than 10 bytes as JSON.*at least 102 up to \$\.a"):
        encode({"a": "x" * 101}, max_bytes=10)
    with pytest.raises(TooLarge, match=r"16777219 bytes as JSON, over the limit of 16777216|more than 16777216 bytes"):
        encode("x" * (16 * 1024 * 1024 + 1))


# --- with a declared type ----------------------------------------------------------------------------------------

BERLIN = datetime.timezone(datetime.timedelta(hours=2))
ORDER = Order(
    id=uuid.UUID(int=7),
    at=datetime.datetime(2024, 5, 1, 12, 30, 0, 123456, BERLIN),
    lines=[Line("tea", decimal.Decimal("1.50"), (Color.RED, Color.BLUE)), Line("cup", decimal.Decimal("12"))],
    tags={"a", "b"},
    customer=Person(
        name="Ada", born=datetime.date(1815, 12, 10), friends=[Person(name="C", born=datetime.date(1791, 12, 26))]
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


@pytest.mark.parametrize(("value", "declared"), DECLARED, ids=[f"{declared}"[:60] for _, declared in DECLARED])
def test_a_value_of_a_declared_type_comes_back_as_it_went_in(value: object, declared: Any) -> None:
    check_declared(declared)
    raw = encode_as(value, declared)
    back = decode_as(raw, declared)
    assert same(value, back)
    assert type(back) is type(value)
    assert encode_as(back, declared) == raw
    json.loads(raw)


moments = st.datetimes(
    timezones=st.none() | st.integers(-1439, 1439).map(lambda m: datetime.timezone(datetime.timedelta(minutes=m)))
)
lines = st.builds(Line, text, st.decimals(), st.lists(st.sampled_from(Color)).map(tuple))
persons = st.recursive(
    st.builds(Person, name=text, born=st.dates(), friends=st.just([])),
    lambda inner: st.builds(Person, name=text, born=st.dates(), friends=st.lists(inner, max_size=3)),
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
of_a_type = st.one_of(
    st.tuples(orders, st.just(Order)),
    st.tuples(moments, st.just(datetime.datetime)),
    st.tuples(st.timedeltas(), st.just(datetime.timedelta)),
    st.tuples(st.times(), st.just(datetime.time)),
    st.tuples(st.decimals(allow_nan=False), st.just(decimal.Decimal)),
    st.tuples(st.binary(), st.just(bytes)),
    st.tuples(st.sets(st.tuples(st.integers(), text)), st.just(set[tuple[int, str]])),
    st.tuples(st.dictionaries(st.integers(), st.frozensets(st.uuids())), st.just(dict[int, frozenset[uuid.UUID]])),
    st.tuples(
        st.dictionaries(st.dates(), st.lists(persons, max_size=2), max_size=2),
        st.just(dict[datetime.date, list[Person]]),
    ),
    st.tuples(st.floats(width=32, allow_nan=False, allow_infinity=False).map(numpy.float32), st.just(numpy.float32)),
    st.tuples(text.map(pathlib.PurePosixPath), st.just(pathlib.PurePosixPath)),
)


@unhurried
@given(of_a_type)
def test_any_value_of_a_declared_type_comes_back_as_it_went_in(pair: tuple[object, Any]) -> None:
    value, declared = pair
    assert same(value, decode_as(encode_as(value, declared), declared))


@unhurried
@given(st.one_of(natives, of_a_type.map(lambda pair: pair[0])), st.sampled_from([declared for _, declared in DECLARED]))
def test_whatever_is_declared_a_value_comes_back_as_it_went_in_or_is_refused(value: object, declared: Any) -> None:
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


def test_equal_sets_give_equal_bytes_whatever_their_order() -> None:
    script = (
        "import sys, dataclasses, msgspec; from holdfast._codec import encode_as\n"
        "@dataclasses.dataclass(frozen=True)\nclass D:\n    s: set[str]\n    n: dict[str, list[frozenset[str]]]\n"
        "class S(msgspec.Struct, frozen=True):\n    t: tuple[set[str], ...]\n    d: D\n"
        "words = [f'word{i}' for i in range(50)]\n"
        "print(encode_as(S((set(words),), D(set(words), {'z': [frozenset(words)], 'a': []})), S).decode())"
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


class Lossy(pydantic.BaseModel):
    keep: int = 1
    hidden: int = pydantic.Field(default=0, exclude=True)


class Renamed(pydantic.BaseModel):
    value: int = pydantic.Field(default=0, validation_alias="in", serialization_alias="out")


class Unwritable(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    url: pydantic.HttpUrl = pydantic.HttpUrl("http://localhost")  # nothing that msgspec could write, but not at fault
    thing: object

    @pydantic.field_serializer("thing")
    def refuse(self, thing: object) -> object:
        raise RuntimeError(f"cannot write {thing}")


@dataclasses.dataclass
class Wrapper:
    inner: Line
    free: dict[str, Any] = dataclasses.field(default_factory=dict)


REFUSED: list[tuple[object, Any, str, str]] = [
    ({"a": {"b": datetime.datetime(2024, 1, 1)}}, dict[str, Any], "$.a.b", "datetime.datetime would come back as str"),
    (Wrapper(Line("a", decimal.Decimal(1)), {"x": [(1,)]}), Wrapper, "$.free.x[0]", "tuple would come back as list"),
    (Wrapper(Discounted("a", decimal.Decimal(1))), Wrapper, "$.inner", "Discounted would come back as"),
    ([(1, 2)], list[list[int]], "$[0]", "tuple would come back as list"),
    ([[1, 2]], list[tuple[int, int]], "$[0]", "list would come back as tuple"),
    ([1, 2], set[int], "$", "list would come back as set"),
    ({1, 2}, list[int], "$", "set would come back as list"),
    ({1: 2}, dict, "$", "a key of type int would come back as str"),
    ({"a": {1: 2, "1": 3}}, dict[str, dict[str, int]], "$.a[1]", "would be lost"),
    ({(1, 2): 3}, dict, "$", "a key of type tuple cannot be written"),
    ({"title": "x", "seen": datetime.date(2024, 1, 1), "stars": 5}, Movie, "$.stars", "would be lost"),
    ([1.5, math.nan], list[float], "$[1]", "nan or infinite"),
    ([numpy.float32("inf")], list[numpy.float32], "$[0]", "does not fit"),
    ({"x": [numpy.float64(1)]}, dict[str, list[float]], "$.x[0]", "numpy.float64 would come back as float"),
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
    ({"s": Secret(password=pydantic.SecretStr(CANARY))}, dict[str, Secret], "$.s.password", "is a secret"),
    ([Lossy(hidden=3)], list[Lossy], "$[0].hidden", "another value"),
    (Renamed.model_validate({"in": 3}), Renamed, "$.value", "another value"),
    ([1, Unwritable(thing=CANARY)], list[Any], "$[1]", "Unwritable cannot be stored"),
    (Strict.model_validate({**STRICT, "more": (1,)}), Strict, "$.more", "tuple would come back as list"),
    (Person(name="A", born=datetime.date(2024, 1, 1)), dict[str, Any], "$", "Person would come back as dict"),
    ([object()], list[Any], "$[0]", "object cannot be stored"),
    (Text("x"), str, "$", "Text"),
    ({"a": {"b": 1}, "c": {"d": CANARY}}, dict[str, dict[str, int]], "$.c.d", "expected `int`, got `str`"),
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
    ("value", "declared", "path", "problem"), REFUSED, ids=[f"{p} {d}"[:70] for _, d, p, _ in REFUSED]
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
        (datetime.datetime(2024, 1, 1, 2, tzinfo=BERLIN), datetime.datetime(2024, 1, 1, tzinfo=UTC)),
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


# --- declaring types ---------------------------------------------------------------------------------------------


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
    before = _codec_types._cached.cache_info().currsize
    value = {"a": datetime.date(2024, 1, 1)}
    assert decode_as(encode_as(value, declared), declared) == value
    assert _codec_types._cached.cache_info().currsize == before


def test_types_are_kept_once_and_not_without_bound() -> None:
    info = _codec_types._cached.cache_info
    assert info().maxsize is not None
    encode_as(1, int)
    built = info().misses
    encode_as(2, int)
    decode_as(b"3", int)
    assert info().misses == built


# --- reading -----------------------------------------------------------------------------------------------------

HOSTILE = [
    b"",
    b" ",
    b"\xff",
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\\ud800"',
    b'"\\ud800\\u0041"',
    b'"\x00"',
    b'"open',
    b"NaN",
    b"Infinity",
    b"1e400",
    b"-1e400",
    b"1" * 5000,
    b"1 2",
    b"[1,]",
    b"{1:2}",
    b"{'a':1}",
    b"\xef\xbb\xbf1",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" * 101 + b"]" * 101,
    b'{"a":' * 101 + b"1" + b"}" * 101,
    b'[{"a":' * 2000 + b"1" + b"}]" * 2000,
    b"cos\nsystem\n(S'true'\ntR.",
    b"\x80\x04\x95",
]


@pytest.mark.parametrize("raw", HOSTILE, ids=[repr(raw[:20]) for raw in HOSTILE])
@pytest.mark.parametrize("declared", [Any, list, dict, int, str, Order, Person, numpy.int8, pathlib.Path, list[Any]])
def test_hostile_bytes_are_undecodable(raw: bytes, declared: Any) -> None:
    with pytest.raises(Undecodable) as caught:
        decode_as(raw, declared)
    assert caught.value.what
    assert isinstance(caught.value, DataProblem)
    assert not isinstance(caught.value, ValueError)


@unhurried
@given(st.binary(max_size=200))
def test_arbitrary_bytes_decode_or_are_undecodable(raw: bytes) -> None:
    try:
        value = decode(raw)
    except Undecodable:
        return
    json.dumps(value)


@unhurried
@given(natives, st.sampled_from([declared for _, declared in DECLARED] + [Picky, dict[str, Picky]]))
def test_foreign_json_fits_a_declared_type_or_is_undecodable(value: object, declared: Any) -> None:
    try:
        decode_as(encode(value), declared)
    except Undecodable:
        pass


@unhurried
@given(orders, st.data())
def test_damaged_bytes_of_a_declared_type_decode_or_are_undecodable(order: Order, data: st.DataObject) -> None:
    raw = bytearray(encode_as(order, Order))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_as(bytes(raw), Order)
    except Undecodable:
        pass


def test_the_last_of_two_equal_keys_wins() -> None:
    assert decode(b'{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize(
    ("raw", "declared", "what"),
    [
        (b'{"a":[1,"x"]}', dict[str, list[int]], "at $[...][1]: expected `int`, got `str`"),
        (b'{"article":"x"}', Line, "at $: object missing required field `price`"),
        (b'[{"name":"x"}]', list[Person], "at $[0]: does not validate as Person (born: missing)"),
        (b"1", Person, "at $: does not validate as Person (Person: model_type)"),
        (b"300", numpy.int8, "expected a number that fits numpy.int8"),
        (b"1.5", numpy.int8, "expected a number that fits numpy.int8"),
        (b"true", numpy.int8, "expected a number that fits numpy.int8"),
        (b"1", numpy.bool_, "expected a number that fits numpy.bool"),
        (b'"1"', numpy.float64, "expected a number that fits numpy.float64"),
        (b"0.1", numpy.float32, "expected a number that fits numpy.float32"),
        (b"1", pathlib.Path, "expected text for Path"),
        (b'{"text":"bad"}', Picky, "at $: refused with ValueError"),
        (b'{"text":"odd"}', Picky, "refused with KeyError"),
        (b'"x', str, "not valid JSON (cut short)"),
        (b"[1 2]", list, "not valid JSON (byte 3)"),
    ],
)
def test_a_mismatch_with_the_declared_type_names_the_place(raw: bytes, declared: Any, what: str) -> None:
    with pytest.raises(Undecodable) as caught:
        decode_as(raw, declared)
    assert what in caught.value.what


@unhurried
@given(natives)
def test_brackets_are_counted_without_a_stack_as_by_a_parser(value: Any) -> None:
    def depth(part: Any) -> int:
        inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else None
        return 0 if inside is None else 1 + max(map(depth, inside), default=0)

    for tricky in (value, {"[{": [value, '\\"[', "\\", '"{']}):
        assert _nesting(encode(tricky)) == depth(tricky)


def test_a_full_stack_is_not_taken_for_damaged_data() -> None:
    raw = encode({"a": ["[" * 200, [[[["x"]]]]]})

    def at_depth(left: int) -> object:
        return at_depth(left - 1) if left else decode(raw)

    outcomes = set()
    for left in range(0, sys.getrecursionlimit(), 1):
        try:
            at_depth(left)
            outcomes.add("read")
        except RecursionError:
            outcomes.add("stack")
    assert outcomes == {"read", "stack"}


def test_data_that_names_code_is_only_data() -> None:
    payload = {
        "__reduce__": ["os.system", ["true"]],
        "py/object": "os.system",
        "$type": "antigravity",
        "__class__": "this",
        "type": "this",
    }
    raw = encode(payload)
    for module in ("antigravity", "this"):
        sys.modules.pop(module, None)
    assert decode(raw) == payload
    for declared in (dict[str, Any], dict[str, object], Any):
        assert decode_as(raw, declared) == payload
    for foreign in (Order, Person, Circle | Shape, Color, Strict):
        with pytest.raises(Undecodable):
            decode_as(raw, foreign)
    assert "antigravity" not in sys.modules
    assert "this" not in sys.modules


def test_the_codec_imports_neither_numpy_nor_pydantic_nor_pickle() -> None:
    script = (
        "import sys, holdfast._codec as c\n"
        "c.decode(c.encode({'a': [1]})); c.decode_as(c.encode_as({1}, set[int]), set[int])\n"
        "print([name for name in ('numpy', 'pydantic', 'pickle') if name in sys.modules])"
    )
    clean = subprocess.run([sys.executable, "-I", "-c", script], check=True, capture_output=True, text=True)
    assert clean.stdout.strip() == "[]"


# --- errors without content --------------------------------------------------------------------------------------


def spill(value: object) -> list[tuple[object, Any]]:
    """Values with a secret in every place where an error text might pick it up, and the types that refuse them."""
    return [
        ({"a": value, "b": (1,)}, Any),
        ([value, "\ud800"], Any),
        ({"a": f"{value}\ud800"}, Any),
        ([f"{value}\ud800"], list[str]),
        ([pathlib.Path(f"{value}\udcff")], list[pathlib.Path]),
        ({"a": {value}}, Any),
        ([Text(value)], Any),
        ([value], list[int]),
        (value, Color),
        (value, Literal["a"]),
        (value, datetime.datetime),
        ({"a": value}, dict[str, decimal.Decimal]),
        ({"a": value}, dict[str, uuid.UUID]),
        ({"type": value, "sides": 1}, Circle | Shape),
        ({"name": value, "born": value}, Person),
        ({"name": value, "born": "2024-01-01"}, Person),
        (Secret(password=pydantic.SecretStr(f"{value}")), Secret),
        (Unwritable(thing=value), Unwritable),
        ([Unwritable(thing=value)], list[Any]),
        (Lossy.model_construct(keep=value), Lossy),
        ({"text": f"bad {value}"}, Picky),
        ({"text": f"odd {value}"}, Picky),
        ({"a": [value, object()]}, dict[str, Any]),
        ({"a": f"{value}" * 10}, Annotated[dict[str, Annotated[str, msgspec.Meta(max_length=5)]], 1]),
        ([f"{value}" * 100, object()], list[Any]),
        (nested(200), list),
        ([nested(200), value], Any),
    ]


def said(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.__dict__)


@pytest.mark.parametrize("index", range(len(spill(""))))
def test_no_error_says_what_a_value_holds(index: int, recwarn: pytest.WarningsRecorder) -> None:
    value, declared = spill(CANARY)[index]
    with pytest.raises((NotSerializable, TooLarge)) as caught:
        encode_as(value, declared)
    assert CANARY not in said(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert not recwarn.list


@pytest.mark.parametrize(
    "declared",
    [Any, int, Color, Literal["a"], Person, Picky, Circle | Shape, Movie, datetime.datetime, numpy.int8, Numbers],
)
@pytest.mark.parametrize(
    "raw",
    [
        f'"{CANARY}',
        f'{{"{CANARY}":',
        f'["{CANARY}" 1]',
        f'"{CANARY}\\ud800"',
        f'"{CANARY}" \\',
        f'{{"text":"bad {CANARY}","name":"{CANARY}","born":"{CANARY}","type":"{CANARY}","title":1,"seen":"{CANARY}"}}, ',
        f'{{"text":"odd {CANARY}","name":"{CANARY}","born":"{CANARY}","type":"{CANARY}","title":"","seen":"{CANARY}"}}',
        f'["{CANARY}",' + "[" * 200 + "]" * 201,
    ],
)
def test_no_error_says_what_stored_bytes_hold(raw: str, declared: Any) -> None:
    for stored in (raw.encode(), raw.encode() + b"\xff"):
        try:
            decode_as(stored, declared)
        except Undecodable as error:
            assert CANARY not in said(error)
            assert error.__cause__ is None
            assert error.__context__ is None


def test_protections_do_not_depend_on_assert() -> None:
    script = (
        "from holdfast import _codec as c, errors\n"
        "def refused(run, kind):\n"
        "    try: run()\n"
        "    except kind: return True\n"
        "    return False\n"
        "print(all([refused(lambda: c.encode((1,)), errors.NotSerializable), refused(lambda: c.encode(float('nan')), errors.NotSerializable),\n"
        "  refused(lambda: c.encode('x' * 9, max_bytes=8), errors.TooLarge), refused(lambda: c.encode_as([(1,)], list[list]), errors.NotSerializable),\n"
        "  refused(lambda: c.decode(b'[' * 200 + b']' * 200), c.Undecodable), refused(lambda: c.check_declared(complex), TypeError)]))"
    )
    run = subprocess.run([sys.executable, "-O", "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "True"
