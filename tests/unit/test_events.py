"""Envelopes, event types and upcasters; and bytes of schema 1 that must be readable for ever."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.paths import GOLDEN
from holdfast.errors import InvalidId, NotSerializable, UnsupportedVersion
from holdfast.log.codec import Undecodable
from holdfast.log.events import (
    AppendContext,
    Blob,
    EventType,
    NewEvent,
    decode_envelope,
    encode_envelopes,
)
from holdfast.log.ids import format_ids, new_id

ENVELOPES = GOLDEN / "envelopes-1.jsonl"


@dataclass
class Order:
    sku: str
    currency: str = "EUR"


def test_envelopes_of_schema_1_are_readable_for_ever() -> None:
    """The file holds bodies as Holdfast 0.1 wrote them. Never regenerate it: add lines, in a file
    of the next schema."""
    lines = ENVELOPES.read_bytes().splitlines()
    assert len(lines) >= 6
    for line in lines:
        envelope = decode_envelope(line)
        plain = json.loads(line)
        assert envelope.id == plain["id"]
        assert envelope.type == plain["type"]
        assert envelope.at == plain["at"]
        assert envelope.v == plain.get("v", 1)
        assert (envelope.by, envelope.correlation) == (plain.get("by"), plain.get("correlation"))
        if "blob" in plain:
            assert envelope.blob == msgspec.convert(plain["blob"], Blob)
        else:
            assert json.loads(bytes(envelope.data)) == plain["data"]


def test_what_is_written_today_has_the_form_of_schema_1() -> None:
    stamp = AppendContext(
        0x0192_F0C1_7A2B_7DEF_8123_4567_89AB_0000, 1731703159.25, "req-17", "alice"
    )
    events = [
        NewEvent("order.placed", b'{"sku":"A1"}'),
        NewEvent('od"d\n', b"null", 3),
        NewEvent("big", b"B"),
    ]
    first, second, third = encode_envelopes(
        events, stamp, {b"B": Blob("ab" * 32, 70_000, "cd" * 16)}
    )
    lines = ENVELOPES.read_bytes().splitlines()
    assert [first, second, third] == lines[:3]


def test_an_envelope_is_one_line_whatever_it_holds() -> None:
    [body] = encode_envelopes(
        [NewEvent("a\nb", b'"x"')], AppendContext(new_id(), 0.0, "c\nd", "e\x00f"), {}
    )
    assert b"\n" not in body and b"\0" not in body
    assert decode_envelope(body).correlation == "c\nd"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00abc",
        b"[]",
        b"{}",
        b'{"id":1}',
        b"\xff" * 10,
        b"[" * 5000,
        b'{"id":"x","type":"t"}',
    ],
)
def test_other_bytes_are_not_taken_for_an_envelope(body: bytes) -> None:
    with pytest.raises(Undecodable):
        decode_envelope(body)


def test_event_ids_are_uuids_that_count_up_within_an_append() -> None:
    import uuid

    first, second, third = (uuid.UUID(text) for text in format_ids(new_id(), 3))
    assert first.version == 7 and first.variant == uuid.RFC_4122
    assert second.int == first.int + 1 and third.int == first.int + 2


def test_an_upcaster_reads_old_events_and_leaves_their_bytes_alone() -> None:
    with holdfast.open("memory://") as store:
        store.stream("s", types=[EventType("order.placed", dict[str, str])]).append(
            ("order.placed", {"sku": "A1"})
        )
        newer = EventType(
            "order.placed", Order, version=2, upcasters={1: lambda old: {**old, "currency": "USD"}}
        )
        stream = store.stream("s", types=[newer])
        stream.append(("order.placed", Order("B2")))
        assert [event.data for event in stream.read()] == [Order("A1", "USD"), Order("B2", "EUR")]
        assert next(event.data for event in store.stream("s").read()) == {"sku": "A1"}


def test_upcasters_are_applied_one_after_the_other() -> None:
    declared = EventType("n", int, version=3, upcasters={1: lambda n: n + 10, 2: lambda n: n * 2})
    assert declared.decode(b"1", 1) == 22
    assert declared.decode(b"1", 2) == 2
    assert declared.decode(b"1", 3) == 1


def test_an_event_of_a_newer_program_is_refused_and_says_so() -> None:
    with pytest.raises(UnsupportedVersion, match="schema version 2"):
        EventType("n", int).decode(b"1", 2)


def test_data_of_another_type_is_a_mismatch_and_not_called_damage() -> None:
    with holdfast.open("memory://") as store:
        store.stream("s").append(("order.placed", {"price": 1}))
        with pytest.raises(holdfast.errors.SchemaMismatch, match="upcaster") as caught:
            list(store.stream("s", types=[EventType("order.placed", Order)]).read())
        assert (caught.value.version, caught.value.type) == (1, "order.placed")


def test_a_stream_that_declares_its_types_takes_no_others() -> None:
    with holdfast.open("memory://") as store:
        stream = store.stream("s", types=[EventType("order.placed", Order)])
        with pytest.raises(ValueError, match=r"order\.palced"):
            stream.append(("order.palced", Order("A1")))
        with pytest.raises(ValueError, match="distinct names"):
            store.stream("s", types=[EventType("a"), EventType("a")])
        wrong: Any = {"a": int}
        with pytest.raises(TypeError, match="must be EventType objects"):
            store.stream("s", types=wrong)


def test_a_missing_upcaster_is_noticed_when_the_type_is_declared() -> None:
    with pytest.raises(ValueError, match=r"got none for \[2\]"):
        EventType("n", int, version=3, upcasters={1: lambda n: n})


def test_an_event_type_needs_a_name() -> None:
    with pytest.raises(InvalidId):
        EventType("")


def test_declared_data_is_checked_before_anything_is_written() -> None:
    with holdfast.open("memory://") as store:
        stream = store.stream("s", types=[EventType("order.placed", Order)])
        with pytest.raises(NotSerializable):
            stream.append(("order.placed", Order("A1")), ("order.placed", {"sku": object()}))
        assert stream.version() == 0
