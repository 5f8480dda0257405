"""Streams of your own events: the log as it is, with types of yours.

Conversations, tasks and the rest are streams whose events Holdfast knows; a `Stream` is one whose events you define.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from . import _operations as ops
from ._blobs import delete_blobs, get_blob, put_blob
from ._codec import Undecodable, decode, encode
from ._context import origin
from ._events import INLINE_BYTES, Blob, Event, EventType, NewEvent, Stamp, Stored, seal
from ._ids import checked_id, new_id
from ._log import Log
from ._operations import Operation
from .backends import Appended, StreamKey
from .errors import CorruptRecord

AUDIT_ID = "log"


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as it is listed: its id and its newest version."""

    id: str
    version: int


def new_stamp() -> Stamp:
    """Id, time and origin for one append, taken when the user calls."""
    correlation, actor = origin()
    return Stamp(new_id(), time.time(), correlation, actor)


def append_events(
    stream: StreamKey, events: Sequence[NewEvent], stamp: Stamp, *, id: str | None = None, expected: int | None = None
) -> Operation[Appended]:
    """Append events, large data first and apart."""
    blobs: dict[bytes, Blob] = {}
    for event in events:
        if len(event.data) > INLINE_BYTES:
            blobs[event.data] = yield from put_blob(stream, event.data, stamp)
    return (yield from ops.append(ops.Append(stream, seal(events, stamp, blobs), stamp, id=id, expected=expected)))


def list_streams(tenant: str, kind: str, after: str) -> Operation[list[StreamInfo]]:
    """One page of what is there."""
    page = yield from ops.heads(tenant, kind, after=after)
    return [StreamInfo(head.stream.id, head.version) for head in page]


def delete_stream(stream: StreamKey, stamp: Stamp, reason: str) -> Operation[bool]:
    """Delete a stream and its blobs. The tenant's audit stream says so first, so that it can be told from tampering."""
    head = yield from ops.head(stream)
    if head is None:
        return False
    facts = {
        "kind": stream.kind,
        "id": stream.id,
        "version": head.version,
        "hash": head.hash.hex(),
        "incarnation": head.incarnation.hex(),
        "reason": reason,
    }
    audit = StreamKey(stream.tenant, "audit", AUDIT_ID)
    yield from append_events(audit, [NewEvent("stream.deleted", encode(facts))], stamp)
    deleted = yield from ops.delete(stream, expected=head)
    if deleted:
        yield from delete_blobs(stream)
    return deleted


def _whole_number(value: int, what: str) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"{what} is a whole number, 0 or more")


class _Shape:
    """What a stream and its async twin share: the key, the types, and the operations behind each method."""

    def __init__(self, log: Log, key: StreamKey, types: Iterable[EventType]) -> None:
        self._log, self._key = log, key
        self._types = {declared.name: declared for declared in types}

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    def _appending(
        self, events: Sequence[tuple[str, object]], id: str | None, if_version: int | None
    ) -> Operation[Appended]:
        if not events:
            raise ValueError("append at least one event: append(('order.placed', {...}))")
        new = [self._encode(event) for event in events]
        if id is not None:
            checked_id(id, "append id")
        if if_version is not None:
            _whole_number(if_version, "if_version")
        return append_events(self._key, new, new_stamp(), id=id, expected=if_version)

    def _encode(self, event: tuple[str, object]) -> NewEvent:
        if type(event) is not tuple or len(event) != 2:
            raise TypeError("an event is a pair of its type and its data: ('order.placed', {...})")
        name, data = event
        checked_id(name, "event type")
        declared = self._types.get(name)
        if declared is None:
            return NewEvent(name, encode(data))
        return NewEvent(name, declared.encode(data), declared.version)

    def _page(self, after: int, limit: int | None, reverse: bool = False) -> Operation[list[Event]]:
        _whole_number(after, "after")
        plain = not self._types
        events = []
        for stored in (yield from ops.read(self._key, after=after, limit=limit, reverse=reverse, plain=plain)):
            envelope = stored.envelope
            data = envelope.data
            if envelope.blob is not None:
                data = self._decode(stored, (yield from get_blob(self._key, envelope.blob)))
            elif not plain:
                data = self._decode(stored, bytes(data))
            events.append(
                Event(stored.version, envelope.id, envelope.type, data, envelope.at, envelope.by, envelope.correlation)
            )
        return events

    def _decode(self, stored: Stored, raw: bytes) -> Any:
        declared = self._types.get(stored.envelope.type)
        try:
            return decode(raw) if declared is None else declared.decode(raw, stored.envelope.v)
        except Undecodable as error:
            raise CorruptRecord(str(self._key), version=stored.version, what=str(error)) from None

    def _newest(self, count: int) -> Operation[list[Event]]:
        _whole_number(count, "count")
        events: list[Event] = []
        before = 0
        while len(events) < count:
            page = yield from self._page(before, count - len(events), reverse=True)
            if not page:
                break
            events += page
            before = page[-1].version
            if before == 1:
                break
        return events[::-1]

    def _version(self) -> Operation[int]:
        head = yield from ops.head(self._key)
        return head.version if head else 0


class Stream(_Shape):
    """An append-only stream of events with versions 1, 2, 3, …"""

    def append(self, *events: tuple[str, object], id: str | None = None, if_version: int | None = None) -> Appended:
        """Append events, all or none; durable when this returns.

        The same `id` again is a no-op (`duplicate=True`), other content under it raises `IdReused`. With `if_version`
        the stream must be at that version (0: must not exist), else `Conflict` and nothing is written.
        """
        return ops.run(self._log, self._appending(events, id, if_version))

    def read(self, *, after: int = 0) -> Iterator[Event]:
        """Events in order, from version `after` + 1 to the newest, read page by page."""
        while page := ops.run(self._log, self._page(after, None)):
            yield from page
            after = page[-1].version

    def last(self, count: int) -> list[Event]:
        """The newest `count` events, oldest first. Costs what it returns, not what the stream holds."""
        return ops.run(self._log, self._newest(count))

    def version(self) -> int:
        """The newest version, 0 if the stream does not exist."""
        return ops.run(self._log, self._version())

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the stream and its large values; False if there was none. The audit stream keeps that and why."""
        stamp = new_stamp()
        return ops.run(self._log, delete_stream(self._key, stamp, reason))


class AsyncStream(_Shape):
    """A `Stream` whose methods are awaited."""

    async def append(
        self, *events: tuple[str, object], id: str | None = None, if_version: int | None = None
    ) -> Appended:
        """`Stream.append`, awaited. If cancelled while the write is under way, it may have been stored: repeat with the same `id`."""
        return await ops.run_async(self._log, self._appending(events, id, if_version))

    async def read(self, *, after: int = 0) -> AsyncIterator[Event]:
        """`Stream.read` as an async iterator."""
        while page := await ops.run_async(self._log, self._page(after, None)):
            for event in page:
                yield event
            after = page[-1].version

    async def last(self, count: int) -> list[Event]:
        """`Stream.last`, awaited."""
        return await ops.run_async(self._log, self._newest(count))

    async def version(self) -> int:
        """`Stream.version`, awaited."""
        return await ops.run_async(self._log, self._version())

    async def delete(self, *, reason: str = "deleted by the program") -> bool:
        """`Stream.delete`, awaited."""
        stamp = new_stamp()
        return await ops.run_async(self._log, delete_stream(self._key, stamp, reason))
