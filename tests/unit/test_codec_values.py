"""The codec without a declared type: exact round trips, refusals with their place, and limits."""

from __future__ import annotations

import collections
import datetime
import decimal
import json
import math
import pathlib
import sys
import uuid
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given

from helpers.typed_values import (
    Circle,
    Color,
    Level,
    Line,
    Mode,
    Numbers,
    Person,
    Point,
    Text,
    natives,
    nested,
    same,
    unhurried,
)
from holdfast.errors import NotSerializable, TooLarge
from holdfast.log.codec import MAX_DEPTH, Undecodable, decode, decode_as, encode, encode_as
from holdfast.log.codec.read_only import freeze
from holdfast.log.codec.walk import format_path
from holdfast.redact import Redactor

# --- without a declared type ----------------------------------------------------------------------


@pytest.mark.slow
@unhurried
@given(natives)
def test_a_read_only_value_is_equal_and_stored_as_a_plain_one(value: Any) -> None:
    frozen = freeze(value, "no")
    assert frozen == value
    for given_, plain in ((frozen, value), ([frozen], [value])):
        raw = encode(given_)
        assert raw == encode(plain) and same(decode(raw), plain)
        assert encode_as(given_, object) == raw
    if isinstance(value, dict):
        assert encode_as(frozen, dict[str, Any]) == encode(value)


def test_a_read_only_value_has_the_same_limits_and_refusals_as_a_plain_one() -> None:
    with pytest.raises(NotSerializable, match=r"\$\.a\[1\]"):
        encode(freeze({"a": [1, {2}]}, "no"))
    with pytest.raises(TooLarge):
        encode(freeze({"a": "x" * 100}, "no"), max_bytes=100)
    with pytest.raises(TooLarge):
        encode(freeze(nested(MAX_DEPTH + 1), "no"))


def test_what_is_secret_in_a_read_only_value_is_redacted() -> None:
    secret = {"password": "hunter2hunter2", "list": ["ann@example.com"]}
    redacted = Redactor().value(freeze([secret], "no"))
    assert redacted == Redactor().value([secret]) != [secret]


@pytest.mark.slow
@unhurried
@given(natives)
def test_any_json_native_value_comes_back_equal_with_exact_types_and_key_order(
    value: object,
) -> None:
    assert same(value, decode(encode(value)))


@pytest.mark.parametrize(
    "value",
    [
        -(2**63),
        2**64 - 1,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        0.1 + 0.2,
        "\0\u2028\U0010ffff",
        "",
    ],
)
def test_values_at_the_edges_come_back_exactly(value: object) -> None:
    assert same(value, decode(encode(value)))
    assert same([value], decode(encode([value])))


def test_the_bytes_are_plain_json_in_the_order_of_the_dict() -> None:
    assert encode({"b": [1, 2.5, None], "a": True}) == b'{"b":[1,2.5,null],"a":true}'
    assert json.loads(encode({"ü": "😀"})) == {"ü": "😀"}


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
def test_what_is_not_json_native_is_refused_with_its_path_and_type(
    value: object, named: str, declared: Any
) -> None:
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
    assert format_path(["a_1", 3, "b"]) == "$.a_1[3].b"
    assert (
        format_path(['quote"', "new\nline", "\ud800", "ü"])
        == r'$["quote\""]["new\nline"]["\ud800"]["\u00fc"]'
    )
    assert format_path(["k" * 1000]) == '$["' + "k" * 39 + '…"]'
    assert len(format_path(["k" * 1000] * 100)) < 300
    assert format_path([..., datetime.date(2024, 1, 1), 10**5000]) == "$[*][<datetime.date>][<int>]"


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["list", "dict"])
def test_nesting_is_allowed_up_to_the_limit_and_no_deeper(of: str) -> None:
    assert decode(encode(nested(MAX_DEPTH, of=of))) == nested(MAX_DEPTH, of=of)
    assert decode_as(encode_as(nested(MAX_DEPTH, of=of), list | dict), list | dict) == nested(
        MAX_DEPTH, of=of
    )
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
    assert (
        decode_as(encode_as(wide, list[dict[str, list[int]]]), list[dict[str, list[int]]]) == wide
    )


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
    with pytest.raises(
        TooLarge,
        match=r"16777219 bytes as JSON, over the limit of 16777216|more than 16777216 bytes",
    ):
        encode("x" * (16 * 1024 * 1024 + 1))
