"""The codec on stored bytes: hostile ones are refused, and no error says what they hold."""

from __future__ import annotations

import datetime
import decimal
import json
import pathlib
import subprocess
import sys
import traceback
import uuid
from typing import Annotated, Any, Literal

import msgspec
import numpy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.typed_values import (
    CANARY,
    DECLARED,
    Circle,
    Color,
    Line,
    Lossy,
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
    natives,
    nested,
    orders,
    unhurried,
)
from holdfast.errors import DataProblem, NotSerializable, TooLarge
from holdfast.log.codec import Undecodable, _measure_depth, decode, decode_as, encode, encode_as

# --- reading --------------------------------------------------------------------------------------


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
@pytest.mark.parametrize(
    "declared", [Any, list, dict, int, str, Order, Person, numpy.int8, pathlib.Path, list[Any]]
)
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


@pytest.mark.slow
@unhurried
@given(natives, st.sampled_from([declared for _, declared in DECLARED] + [Picky, dict[str, Picky]]))
def test_foreign_json_fits_a_declared_type_or_is_undecodable(value: object, declared: Any) -> None:
    try:
        decode_as(encode(value), declared)
    except Undecodable:
        pass


@pytest.mark.slow
@unhurried
@given(orders, st.data())
def test_damaged_bytes_of_a_declared_type_decode_or_are_undecodable(
    order: Order, data: st.DataObject
) -> None:
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
def test_a_mismatch_with_the_declared_type_names_the_place(
    raw: bytes, declared: Any, what: str
) -> None:
    with pytest.raises(Undecodable) as caught:
        decode_as(raw, declared)
    assert what in caught.value.what


@pytest.mark.slow
@unhurried
@given(natives)
def test_brackets_are_counted_without_a_stack_as_by_a_parser(value: Any) -> None:
    def depth(part: Any) -> int:
        inside = (
            part.values() if isinstance(part, dict) else part if isinstance(part, list) else None
        )
        return 0 if inside is None else 1 + max(map(depth, inside), default=0)

    for tricky in (value, {"[{": [value, '\\"[', "\\", '"{']}):
        assert _measure_depth(encode(tricky)) == depth(tricky)


@pytest.mark.slow
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
        "import sys, holdfast.log.codec as c\n"
        "c.decode(c.encode({'a': [1]})); c.decode_as(c.encode_as({1}, set[int]), set[int])\n"
        "print([name for name in ('numpy', 'pydantic', 'pickle') if name in sys.modules])"
    )
    clean = subprocess.run(
        [sys.executable, "-I", "-c", script], check=True, capture_output=True, text=True
    )
    assert clean.stdout.strip() == "[]"


# --- errors without content -----------------------------------------------------------------------


def spill(value: object) -> list[tuple[object, Any]]:
    """Values with a secret in every place where an error text might pick it up, and the types that
    refuse them."""
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
        (
            {"a": f"{value}" * 10},
            Annotated[dict[str, Annotated[str, msgspec.Meta(max_length=5)]], 1],
        ),
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
    [
        Any,
        int,
        Color,
        Literal["a"],
        Person,
        Picky,
        Circle | Shape,
        Movie,
        datetime.datetime,
        numpy.int8,
        Numbers,
    ],
)
@pytest.mark.parametrize(
    "raw",
    [
        f'"{CANARY}',
        f'{{"{CANARY}":',
        f'["{CANARY}" 1]',
        f'"{CANARY}\\ud800"',
        f'"{CANARY}" \\',
        f'{{"text":"bad '
        f'{CANARY}","name":"{CANARY}",'
        f'"born":"{CANARY}","type":"{CANARY}","title":1,"seen":"{CANARY}"}}, ',
        f'{{"text":"odd '
        f'{CANARY}","name":"{CANARY}",'
        f'"born":"{CANARY}","type":"{CANARY}","title":"","seen":"{CANARY}"}}',
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


@pytest.mark.slow
def test_protections_do_not_depend_on_assert() -> None:
    script = (
        "from holdfast.log import codec as c\n"
        "from holdfast import errors\n"
        "def refused(run, kind):\n"
        "    try: run()\n"
        "    except kind: return True\n"
        "    return False\n"
        "print(all([refused(lambda: c.encode((1,)), errors.NotSerializable), refused(lambda: "
        "c.encode(float('nan')), errors.NotSerializable),\n"
        "  refused(lambda: c.encode('x' * 9, max_bytes=8), errors.TooLarge), refused(lambda: "
        "c.encode_as([(1,)], list[list]), errors.NotSerializable),\n"
        "  refused(lambda: c.decode(b'[' * 200 + b']' * 200), c.Undecodable), refused(lambda: "
        "c.check_declared(complex), TypeError)]))"
    )
    run = subprocess.run(
        [sys.executable, "-O", "-c", script], check=True, capture_output=True, text=True
    )
    assert run.stdout.strip() == "True"
