"""Streams of your own events: the log as it is, with types of yours.

Conversations, tasks and the rest are streams whose events Holdfast knows; a `Stream` is one whose events you define.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from . import _clock
from . import _operations as ops
from ._arguments import whole_number
from ._blobs import delete_blobs, get_blob, life_of, put_blob
from ._codec import Undecodable, decode, encode
from ._context import origin
from ._events import INLINE_BYTES, Blob, Event, EventType, NewEvent, Stamp, Stored, seal
from ._ids import append_id, checked_id, new_id
from ._log import Log
from ._operations import Operation
from .backends import Appended, Fields, Head, StreamKey
from .errors import Conflict, CorruptRecord, SchemaMismatch

AUDIT_ID = "log"
AUDIT_LOOKBACK = 1000
PAGE_BYTES = 8 * 1024 * 1024
PAGE_RECORDS = 10_000


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as it is listed: its id and its newest version."""

    id: str
    version: int


def new_stamp() -> Stamp:
    """Id, time and origin for one append, taken when the user calls."""
    correlation, actor = origin()
    return Stamp(new_id(), _clock.time(), correlation, actor)


def append_events(
    stream: StreamKey,
    events: Sequence[NewEvent],
    stamp: Stamp,
    *,
    id: str | None = None,
    expected: int | None = None,
    seen: int | None = None,
    fields: Fields | None = None,
    incarnation: bytes | None = None,
    exclusive: bool = False,
    keys: Sequence[str] = (),
) -> Operation[Appended]:
    """Append events, large data first and apart. `Conflict` if the stream is deleted in between: run it again."""
    blobs: dict[bytes, Blob] = {}
    # What has a key of its own stays in its record: a large value has the key of the stream.
    large = [event.data for event in events if len(event.data) > INLINE_BYTES and not keys]
    if large:
        if incarnation is None:
            head = yield from ops.head(stream)
            incarnation = head.incarnation if head else append_id(stamp.id)
        for data in large:
            blobs[data] = yield from put_blob(stream, life_of(incarnation), data, stamp)
    bodies = seal(events, stamp, blobs)
    return (
        yield from ops.append(
            ops.Append(stream, bodies, stamp, id, expected, seen, fields, incarnation, exclusive, keys)
        )
    )


def data_of(stream: StreamKey, stored: Stored) -> Operation[Any]:
    """The data of an event that was read as plain, wherever it is kept."""
    blob = stored.envelope.blob
    if blob is None:
        return stored.envelope.data
    try:
        return decode((yield from get_blob(stream, blob)))
    except Undecodable as error:
        raise CorruptRecord(str(stream), version=stored.version, what=str(error)) from None


def list_streams(tenant: str, kind: str, after: str) -> Operation[tuple[list[StreamInfo], str]]:
    """One page of what is there, and where the next one begins."""
    page = yield from ops.heads(tenant, kind, after=after, places=True)
    found = [StreamInfo(head.stream.id, head.version) for head in page if isinstance(head, Head)]
    return found, page[-1].stream.id if page else ""


class Deletion(msgspec.Struct, frozen=True):
    """A deletion, as the audit stream tells it. `at` is the engine's time; only the sweep says that."""

    kind: str
    id: str
    life: str
    reason: str
    at: float | None = None


def audit_of(tenant: str) -> StreamKey:
    return StreamKey(tenant, "audit", AUDIT_ID)


def deletion_of(stored: Stored) -> Deletion | None:
    """What an entry of the audit stream says was deleted; None if it is about something else."""
    if stored.envelope.type != "stream.deleted":
        return None
    try:
        return msgspec.convert(stored.envelope.data, Deletion)
    except msgspec.ValidationError:
        return None


def note_deletion(head: Head, stamp: Stamp, reason: str, at: float | None = None) -> Operation[Appended]:
    """Tell the tenant's audit stream first, so that a deletion can be told from tampering."""
    facts = {
        "kind": head.stream.kind,
        "id": head.stream.id,
        "version": head.version,
        "hash": head.hash.hex(),
        "life": life_of(head.incarnation),
        "reason": reason,
    }
    if at is not None:
        facts["at"] = at
    return (yield from append_events(audit_of(head.stream.tenant), [NewEvent("stream.deleted", encode(facts))], stamp))


def delete_stream(stream: StreamKey, stamp: Stamp, reason: str, seen: Head | None = None) -> Operation[bool]:
    """Delete a stream and its blobs; `Conflict` if somebody appended meanwhile (since `seen`, if given): run it again."""
    head = seen or (yield from ops.head(stream))
    if head is None:
        for deletion in (yield from late_deletions(stream)):
            yield from delete_blobs(stream, deletion.life)  # in case that deletion was cut off
        return False
    yield from note_deletion(head, stamp, reason)
    if not (yield from ops.delete(stream, expected=head)):
        now = yield from ops.head(stream)
        raise Conflict(str(stream), expected=head.version, actual=now.version if now else 0)
    yield from delete_blobs(stream, life_of(head.incarnation))
    return True


def late_deletions(stream: StreamKey) -> Operation[list[Deletion]]:
    """The deletions of a stream of which the audit stream told lately."""
    newest = yield from ops.read(audit_of(stream.tenant), limit=AUDIT_LOOKBACK, reverse=True, plain=True)
    told = [deletion_of(stored) for stored in newest]
    return [deletion for deletion in told if deletion and (deletion.kind, deletion.id) == (stream.kind, stream.id)]


def _by_name(types: Iterable[EventType]) -> dict[str, EventType]:
    found: dict[str, EventType] = {}
    for declared in types:
        if not isinstance(declared, EventType):
            raise TypeError("types is a list of EventType: types=[EventType('order.placed', Order)]")
        if declared.name in found:
            raise ValueError(f"event type {declared.name!r} is declared twice")
        found[declared.name] = declared
    return found


class _Shape:
    """What a stream and its async twin share: the key, the types, and the operations behind each method."""

    def __init__(self, log: Log, key: StreamKey, types: Iterable[EventType]) -> None:
        self._log, self._key = log, key
        self._types = _by_name(types)

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    def _appending(
        self, events: Sequence[tuple[str, object]], id: str | None, if_version: int | None
    ) -> Callable[[], Operation[Appended]]:
        """What makes the operation of an append. Everything that can be wrong with the arguments is noticed here."""
        if not events:
            raise ValueError("append at least one event: append(('order.placed', {...}))")
        new = [self._encode(event) for event in events]
        if id is not None:
            checked_id(id, "append id")
        if if_version is not None:
            whole_number(if_version, "if_version")
        stamp = new_stamp()
        return lambda: append_events(self._key, new, stamp, id=id, expected=if_version)

    def _encode(self, event: tuple[str, object]) -> NewEvent:
        if type(event) is not tuple or len(event) != 2:
            raise TypeError("an event is a pair of its type and its data: ('order.placed', {...})")
        name, data = event
        checked_id(name, "event type")
        declared = self._types.get(name)
        if declared is None:
            if self._types:
                raise ValueError(
                    f"this stream declares its event types, and {name!r} is not one of {sorted(self._types)}"
                )
            return NewEvent(name, self._log.redacted(encode(data)))
        return NewEvent(name, self._log.redacted(declared.encode(data), declared.data), declared.version)

    def _page(self, after: int, limit: int | None, reverse: bool = False) -> Operation[list[Event]]:
        whole_number(after, "after")
        plain = not self._types
        events: list[Event] = []
        size = 0
        for stored in (yield from ops.read(self._key, after=after, limit=limit, reverse=reverse, plain=plain)):
            envelope = stored.envelope
            data = envelope.data
            if envelope.blob is not None:
                size += envelope.blob.size
                if size > PAGE_BYTES and events:
                    break  # a page may be shorter; small records must not bring in any number of large values
                data = self._decode(stored, (yield from get_blob(self._key, envelope.blob)))
            elif not plain:
                data = self._decode(stored, bytes(data))
            events.append(
                Event(stored.version, envelope.id, envelope.type, data, envelope.at, envelope.by, envelope.correlation)
            )
        return events

    def _decode(self, stored: Stored, raw: bytes) -> Any:
        name = stored.envelope.type
        declared = self._types.get(name)
        try:
            return decode(raw) if declared is None else declared.decode(raw, stored.envelope.v)
        except Undecodable as error:
            if declared is None:
                raise CorruptRecord(str(self._key), version=stored.version, what=str(error)) from None
            # The digest was right: this is a matter between two versions of the program.
            raise SchemaMismatch(str(self._key), version=stored.version, type=name, what=str(error)) from None

    def _newest(self, count: int) -> Operation[list[Event]]:
        whole_number(count, "count")
        events: list[Event] = []
        before = 0
        while len(events) < count:
            page = yield from self._page(before, min(count - len(events), PAGE_RECORDS), reverse=True)
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
        make = self._appending(events, id, if_version)
        if if_version is not None:
            return ops.run(self._log, make())
        return ops.run_until_settled(self._log, make)

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
        return ops.run_until_settled(
            self._log, lambda: delete_stream(self._key, new_stamp(), self._log.redacted_text(reason))
        )


class AsyncStream(_Shape):
    """A `Stream` whose methods are awaited."""

    async def append(
        self, *events: tuple[str, object], id: str | None = None, if_version: int | None = None
    ) -> Appended:
        """`Stream.append`, awaited. If cancelled while the write is under way, it may have been stored: repeat with the same `id`."""
        make = self._appending(events, id, if_version)
        if if_version is not None:
            return await ops.run_async(self._log, make())
        return await ops.run_until_settled_async(self._log, make)

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
        return await ops.run_until_settled_async(
            self._log, lambda: delete_stream(self._key, new_stamp(), self._log.redacted_text(reason))
        )
