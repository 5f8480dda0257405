"""Streams of your own events: the log as it is, with types of yours.

Conversations, tasks and the rest are streams whose events Holdfast knows; a `Stream` is one whose events you define.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ..backends import AppendResult, Head, StreamKey
from ..errors import CorruptRecord, SchemaMismatch
from ..log import operations as ops
from ..log.blobs import get_blob
from ..log.codec import Undecodable, decode, encode
from ..log.events import Event, EventType, NewEvent, StoredEvent
from ..log.ids import checked_id
from ..log.log import Log
from ..log.operations import Operation
from ..log.stream_ops import append_events, delete_stream, new_append_context
from ..log.validation import whole_number

PAGE_BYTES = 8 * 1024 * 1024
PAGE_RECORDS = 10_000


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream in a listing, with its newest version."""

    id: str
    version: int

    @classmethod
    def of(cls, head: Head) -> StreamInfo:
        return cls(head.stream.id, head.version)


def _by_name(types: Iterable[EventType]) -> dict[str, EventType]:
    found: dict[str, EventType] = {}
    for declared in types:
        if not isinstance(declared, EventType):
            raise TypeError(
                "types must be a list of EventType: types=[EventType('order.placed', Order)]"
            )
        if declared.name in found:
            raise ValueError(f"event type {declared.name!r} is declared twice")
        found[declared.name] = declared
    return found


class StreamBase:
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
    ) -> Callable[[], Operation[AppendResult]]:
        """What makes the operation of an append. Everything that can be wrong with the arguments is noticed here."""
        if not events:
            raise ValueError("append at least one event: append(('order.placed', {...}))")
        new = [self._encode(event) for event in events]
        if id is not None:
            checked_id(id, "append id")
        if if_version is not None:
            whole_number(if_version, "if_version")
        stamp = new_append_context()
        return lambda: append_events(self._key, new, stamp, id=id, expected=if_version)

    def _encode(self, event: tuple[str, object]) -> NewEvent:
        if type(event) is not tuple or len(event) != 2:
            raise TypeError(
                "an event must be a pair of its type and its data: ('order.placed', {...})"
            )
        name, data = event
        checked_id(name, "event type")
        declared = self._types.get(name)
        if declared is None:
            if self._types:
                raise ValueError(
                    f"this stream declares its event types, and {name!r} is not one of {sorted(self._types)}"
                )
            return NewEvent(name, self._log.redaction.encoded(encode(data)))
        return NewEvent(
            name,
            self._log.redaction.encoded(declared.encode(data), declared.data),
            declared.version,
        )

    def _page(self, after: int, limit: int | None, reverse: bool = False) -> Operation[list[Event]]:
        whole_number(after, "after")
        plain = not self._types
        events: list[Event] = []
        size = 0
        for stored in (
            yield from ops.read(self._key, after=after, limit=limit, reverse=reverse, plain=plain)
        ):
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
                Event(
                    stored.version,
                    envelope.id,
                    envelope.type,
                    data,
                    envelope.at,
                    envelope.by,
                    envelope.correlation,
                )
            )
        return events

    def _decode(self, stored: StoredEvent, raw: bytes) -> Any:
        name = stored.envelope.type
        declared = self._types.get(name)
        try:
            return decode(raw) if declared is None else declared.decode(raw, stored.envelope.v)
        except Undecodable as error:
            if declared is None:
                raise CorruptRecord(
                    str(self._key), version=stored.version, what=str(error)
                ) from None
            # The digest was right: this is a matter between two versions of the program.
            raise SchemaMismatch(
                str(self._key), version=stored.version, type=name, what=str(error)
            ) from None

    def _newest(self, count: int) -> Operation[list[Event]]:
        whole_number(count, "count")
        events: list[Event] = []
        before = 0
        while len(events) < count:
            page = yield from self._page(
                before, min(count - len(events), PAGE_RECORDS), reverse=True
            )
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


class Stream(StreamBase):
    """An append-only stream of events with versions 1, 2, 3, and so on."""

    def append(
        self, *events: tuple[str, object], id: str | None = None, if_version: int | None = None
    ) -> AppendResult:
        """Append events, all or none. They are durable when this returns.

        The same `id` again stores nothing (`duplicate=True`); with other content it raises
        `IdReused`. With `if_version` the stream must be at that version (0: it must not exist),
        else `Conflict` is raised and nothing is written.
        """
        make = self._appending(events, id, if_version)
        if if_version is not None:
            return ops.run(self._log, make())
        return ops.run_until_settled(self._log, make)

    def read(self, *, after: int = 0) -> Iterator[Event]:
        """The events in order, from version `after` + 1 to the newest, read page by page."""
        while page := ops.run(self._log, self._page(after, None)):
            yield from page
            after = page[-1].version

    def last(self, count: int) -> list[Event]:
        """The newest `count` events, oldest first. The rest of the stream is not read."""
        return ops.run(self._log, self._newest(count))

    def version(self) -> int:
        """The newest version, 0 if the stream does not exist."""
        return ops.run(self._log, self._version())

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the stream with its large values; False if there was none.

        The audit stream keeps the reason.
        """
        return ops.run_until_settled(
            self._log,
            lambda: delete_stream(
                self._key, new_append_context(), self._log.redaction.text(reason)
            ),
        )


class AsyncStream(StreamBase):
    """A `Stream` whose methods are awaited."""

    async def append(
        self, *events: tuple[str, object], id: str | None = None, if_version: int | None = None
    ) -> AppendResult:
        """`Stream.append`, awaited. If cancelled during the write, it may have been stored.

        Repeat it with the same `id` to be sure.
        """
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
            self._log,
            lambda: delete_stream(
                self._key, new_append_context(), self._log.redaction.text(reason)
            ),
        )
