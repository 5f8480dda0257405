"""Events and their envelope: the format of a record's bytes.

A stored event is one line of JSON:

    {"id":"0192…","type":"order.placed","at":1731703159.123456,"correlation":"req-17","data":{"sku":"A1"}}

`data` is the user's value and nothing else; metadata is beside it, never inside. A value over
64 KiB is stored in its own blob stream, and `blob` replaces `data` and names it by digest.
`fold` is the state the writer derived from the stream up to this event, so that readers need not
start at version 1. It is never compared. `v` is the schema version of the event type; it is left
out for schema 1, which stays readable forever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import msgspec

from ..backends import Record, StreamKey, clock
from ..backends.clock import to_datetime
from ..errors import CorruptRecord, UnsupportedVersion
from .codec import (
    MAX_DEPTH,
    MAX_STORED_BYTES,
    Undecodable,
    check_declared,
    decode,
    decode_as,
    encode,
    encode_as,
)
from .context import origin
from .ids import check_id, format_ids, new_id
from .reprs import ShortRepr

INLINE_BYTES: Final = 64 * 1024


class Blob(msgspec.Struct, frozen=True):
    """A reference to a blob: hex SHA-256 digest, size in bytes, incarnation of its owner stream."""

    digest: str
    size: int
    incarnation: str


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored event, its data still raw."""

    id: str
    type: str
    v: int = 1
    at: float
    by: str | None = None
    correlation: str | None = None
    blob: Blob | None = None
    fold: msgspec.Raw = msgspec.Raw()
    data: msgspec.Raw = msgspec.Raw(b"null")


class PlainEnvelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored event, its data decoded as JSON-native values in the same pass."""

    id: str
    type: str
    v: int = 1
    at: float
    by: str | None = None
    correlation: str | None = None
    blob: Blob | None = None
    fold: msgspec.Raw = msgspec.Raw()
    data: Any = None


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An envelope with its version. `hash` is the record's chain hash, `size` its bytes."""

    version: int
    envelope: Envelope | PlainEnvelope
    hash: bytes = b""
    size: int = 0


class EventType:
    """A type of event: name, Python type of the data, schema version, and upcasters for old data.

        EventType("order.placed", Order, version=2, upcasters={1: lambda old: {**old, "vat": 0}})

    An upcaster takes the data of schema n (JSON values) and returns the data of schema n+1. It
    runs when an old event is read; the stored bytes do not change. Without a declared type, data
    must be JSON-native.
    """

    def __init__(
        self,
        name: str,
        data: Any = Any,
        *,
        version: int = 1,
        upcasters: Mapping[int, Callable[[Any], Any]] = MappingProxyType({}),
    ) -> None:
        check_id(name, "event type")
        if version < 1:
            raise ValueError(f"version must be an integer >= 1, got {version!r}")
        missing = [n for n in range(1, version) if n not in upcasters]
        if missing:
            raise ValueError(
                f"upcasters must cover versions 1 to {version - 1} of event type {name!r}, "
                f"got none for {missing}"
            )
        check_declared(data)
        self.name, self.data, self.version, self.upcasters = name, data, version, dict(upcasters)

    def __repr__(self) -> str:
        return f"<EventType {self.name!r} version {self.version}>"

    def encode(self, data: object) -> bytes:
        return encode_as(data, self.data)

    def decode(self, raw: bytes, version: int) -> Any:
        if version > self.version:
            raise UnsupportedVersion(
                f"event {self.name!r} has schema version {version}, but this application knows "
                f"only versions up to {self.version}; deploy the newer application"
            )
        if version < self.version:
            data: Any = decode(raw)
            for number in range(version, self.version):
                data = self.upcasters[number](data)
            raw = encode(data)
        return decode_as(raw, self.data)


class Event(ShortRepr, msgspec.Struct, frozen=True, gc=False):
    """One event of a stream, as read back."""

    _shown = ("version", "type", "data", "at", "by", "correlation")

    version: int
    id: str
    type: str
    data: Any
    _time: float
    by: str | None = None
    correlation: str | None = None

    @property
    def at(self) -> datetime:
        """The time of the append, in UTC. Events are ordered by `version`, never by time."""
        return to_datetime(self._time)


class AppendContext(msgspec.Struct, frozen=True, gc=False):
    """What all events of an append share: id of the first event, time, correlation id and actor."""

    id: int
    at: float
    correlation: str | None = None
    by: str | None = None


def new_append_context(by: str | None = None) -> AppendContext:
    """Return id, time, correlation id and actor for one append, as of the user's call.

    `by` is the actor that the caller names, in place of the one of `holdfast.correlate`.
    """
    correlation, actor = origin()
    if by is not None:
        actor = check_id(by, "by")
    return AppendContext(new_id(), clock.time(), correlation, actor)


class NewEvent(msgspec.Struct, frozen=True, gc=False):
    """An event to append, with its data and fold encoded."""

    type: str
    data: bytes
    v: int = 1
    fold: bytes = b""


_encoder = msgspec.json.Encoder()
_names: dict[str, bytes] = {}  # event types as JSON; an application has few
_decoder = msgspec.json.Decoder(Envelope)
_plain_decoder = msgspec.json.Decoder(PlainEnvelope)


def encode_envelopes(
    events: Sequence[NewEvent], stamp: AppendContext, blobs: Mapping[bytes, Blob]
) -> list[bytes]:
    """Return the record bodies for these events. `blobs` maps data to the blob that stores it.

    The bytes are joined instead of encoding an `Envelope`: this runs for every message, and the
    data is JSON already.
    """
    json = _encoder.encode
    names = _names
    common = b',"at":' + json(stamp.at)
    if stamp.by is not None:
        common += b',"by":' + json(stamp.by)
    if stamp.correlation is not None:
        common += b',"correlation":' + json(stamp.correlation)
    bodies = []
    for event_id, event in zip(format_ids(stamp.id, len(events)), events, strict=True):
        kind, data = b',"data":', event.data
        if blobs and (blob := blobs.get(data)) is not None:
            kind, data = b',"blob":', json(blob)
        name = names.get(event.type)
        if name is None:
            name = json(event.type)
            if len(names) < 1000:
                names[event.type] = name
        parts = [b'{"id":"', event_id.encode(), b'","type":', name, common, kind, data, b"}"]
        if event.fold:
            parts[5:5] = b',"fold":', event.fold
        if event.v != 1:
            parts.insert(4, b',"v":%d' % event.v)
        bodies.append(b"".join(parts))
    return bodies


def decode_envelope(body: bytes) -> Envelope:
    """Decode the envelope in a record's body. Raise `Undecodable` if it is not one."""
    if len(body) > MAX_STORED_BYTES:
        raise Undecodable(f"it has more than {MAX_STORED_BYTES} bytes, the limit for an event")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Undecodable("it is not an event envelope") from None


def decode_record(stream: StreamKey, record: Record) -> StoredEvent:
    """Decode the event in a verified record; raise `CorruptRecord` if it isn't one."""
    body = record.body
    try:
        return StoredEvent(record.version, decode_plain_envelope(body), record.hash, len(body))
    except Undecodable as error:
        raise CorruptRecord(str(stream), version=record.version, what=str(error)) from None


def decode_plain_envelope(body: bytes) -> PlainEnvelope:
    """Decode the envelope and the data in a record's body. Raise `Undecodable` if it is not one."""
    if len(body) > MAX_STORED_BYTES or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        decode(bytes(decode_envelope(body).data))  # raises if it is nested too deep
    try:
        return _plain_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Undecodable("it is not an event envelope") from None
