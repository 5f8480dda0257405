"""Events and their envelope: what a record's bytes mean.

A stored event is one line of JSON:

    {"id":"0192…","type":"order.placed","at":1731703159.123456,"correlation":"req-17","data":{"sku":"A1"}}

`data` is the user's value and nothing but: what we need to know about it stands beside it, never inside. A value over
64 KiB is kept in a blob stream of its own, and `blob` names it by digest in place of `data`.
`fold` is what the writer knew of its stream at that point, so that readers need not begin at version 1; it is derived
and never compared. Schema 1 of this form is readable for ever; `v` appears when an event type has moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import msgspec

from ..backends.clock import moment
from ..errors import UnsupportedVersion
from .codec import (
    MAX_DEPTH,
    MAX_STORED,
    Undecodable,
    check_declared,
    decode,
    decode_as,
    encode,
    encode_as,
)
from .ids import checked_id, id_texts
from .reprs import Readable

INLINE_BYTES: Final = 64 * 1024


class Blob(msgspec.Struct, frozen=True):
    """Where a large value is: its digest (hex SHA-256), its size in bytes, and the life of the stream it belongs to."""

    digest: str
    size: int
    incarnation: str = msgspec.field(name="life")


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
    """An envelope at its version. `hash`: of its record and, with it, of all before."""

    version: int
    envelope: Envelope | PlainEnvelope
    hash: bytes = b""


class EventType:
    """A type of event: its name, the Python type of its data, its schema version and how to read older ones.

        EventType("order.placed", Order, version=2, upcasters={1: lambda old: {**old, "currency": "EUR"}})

    An upcaster takes the data (plain JSON values) of schema n and returns those of n+1; they are applied when an
    old event is read, the stored bytes stay as they are. Without a declared type, data must be JSON-native.
    """

    def __init__(
        self,
        name: str,
        data: Any = Any,
        *,
        version: int = 1,
        upcasters: Mapping[int, Callable[[Any], Any]] = MappingProxyType({}),
    ) -> None:
        checked_id(name, "event type")
        if version < 1:
            raise ValueError(f"version must be an integer >= 1, got {version!r}")
        missing = [n for n in range(1, version) if n not in upcasters]
        if missing:
            raise ValueError(
                f"event type {name!r} is at version {version} but has no upcaster for {missing}"
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
                f"event {self.name!r} has schema {version}, this program knows up to {self.version}; deploy the newer program"
            )
        if version < self.version:
            data: Any = decode(raw)
            for number in range(version, self.version):
                data = self.upcasters[number](data)
            raw = encode(data)
        return decode_as(raw, self.data)


class Event(Readable, msgspec.Struct, frozen=True, gc=False):
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
        """When it was appended, in UTC. Order is by `version`, never by clock."""
        return moment(self._time)


class AppendContext(msgspec.Struct, frozen=True, gc=False):
    """What every event of one append has in common: the first event's id, the time, and who asked."""

    id: int
    at: float
    correlation: str | None = None
    by: str | None = None


class NewEvent(msgspec.Struct, frozen=True, gc=False):
    """An event to be appended, its data (and what the writer knows of the stream, if anything) encoded."""

    type: str
    data: bytes
    v: int = 1
    fold: bytes = b""


_encoder = msgspec.json.Encoder()
_names: dict[str, bytes] = {}  # event types as JSON; a program has few
_decoder = msgspec.json.Decoder(Envelope)
_plain_decoder = msgspec.json.Decoder(PlainEnvelope)


def encode_envelopes(
    events: Sequence[NewEvent], stamp: AppendContext, blobs: Mapping[bytes, Blob]
) -> list[bytes]:
    """The bodies of the records for these events. `blobs` says which data is stored elsewhere.

    Joined from bytes rather than encoded as an `Envelope`: this runs for every message, and the data is JSON already.
    """
    json = _encoder.encode
    names = _names
    common = b',"at":' + json(stamp.at)
    if stamp.by is not None:
        common += b',"by":' + json(stamp.by)
    if stamp.correlation is not None:
        common += b',"correlation":' + json(stamp.correlation)
    bodies = []
    for event_id, event in zip(id_texts(stamp.id, len(events)), events, strict=True):
        kind, data = b"data", event.data
        if blobs and (blob := blobs.get(data)) is not None:
            kind, data = b"blob", json(blob)
        about = common
        if event.fold:
            about += b',"fold":' + event.fold
        if event.v != 1:
            about = b',"v":%d' % event.v + about
        name = names.get(event.type)
        if name is None:
            name = json(event.type)
            if len(names) < 1000:
                names[event.type] = name
        bodies.append(
            b'{"id":"%b","type":%b%b,"%b":%b}' % (event_id.encode(), name, about, kind, data)
        )
    return bodies


def open_envelope(body: bytes) -> Envelope:
    """The envelope in a record's body, or `Undecodable`."""
    if len(body) > MAX_STORED:
        raise Undecodable(f"it has more than {MAX_STORED} bytes, which no event has")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Undecodable("it is not an event envelope") from None


def open_plain(body: bytes) -> PlainEnvelope:
    """The envelope in a record's body with its data decoded, or `Undecodable`."""
    if (
        len(body) > MAX_STORED or body.count(b"[") + body.count(b"{") > MAX_DEPTH
    ):  # it may be nested too deep: look closer
        raw = open_envelope(body)
        decode(bytes(raw.data))
    try:
        return _plain_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Undecodable("it is not an event envelope") from None
