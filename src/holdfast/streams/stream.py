"""Streams of application-defined events.

Conversations, tasks and the rest are streams whose event types Holdfast defines. The application
defines the event types of a `Stream`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ..backends import AppendResult, Head, StreamKey
from ..errors import CorruptRecord, SchemaMismatch
from ..log import operations as ops
from ..log.codec import Undecodable, decode, encode
from ..log.events import Event, EventType, NewEvent, StoredEvent, new_append_context
from ..log.ids import check_id
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.blobs import get_blob
from ..log.operations.stream_ops import append_events, delete_stream, get_version
from ..log.validation import check_int

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
                f"types must be EventType objects, got {type(declared).__name__}; "
                "for example types=[EventType('order.placed', Order)]"
            )
        if declared.name in found:
            raise ValueError(f"types must have distinct names, got {declared.name!r} twice")
        found[declared.name] = declared
    return found


class StreamBase:
    """The base of `Stream` and `AsyncStream`: key, event types, and the operations they run."""

    def __init__(self, log: Log, key: StreamKey, types: Iterable[EventType]) -> None:
        self._log, self._key = log, key
        self._types = _by_name(types)

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    def _prepare_append(
        self, events: Sequence[tuple[str, object]], id: str | None, if_version: int | None
    ) -> Callable[[], Operation[AppendResult]]:
        """Check the arguments of an append. Return a factory for its operation."""
        if not events:
            raise ValueError(
                "append() needs at least one event, for example append(('order.placed', {...}))"
            )
        new = [self._encode(event) for event in events]
        if id is not None:
            check_id(id, "append id")
        if if_version is not None:
            check_int(if_version, "if_version")
        stamp = new_append_context()
        return lambda: append_events(self._key, new, stamp, id=id, expected=if_version)

    def _encode(self, event: tuple[str, object]) -> NewEvent:
        if type(event) is not tuple or len(event) != 2:
            raise TypeError(
                f"an event must be a tuple of type and data, ('order.placed', {{...}}), "
                f"got {type(event).__name__}"
            )
        name, data = event
        check_id(name, "event type")
        declared = self._types.get(name)
        if declared is None:
            if self._types:
                raise ValueError(
                    f"event type must be one that this stream declares, {sorted(self._types)}, "
                    f"got {name!r}"
                )
            return NewEvent(name, self._log.redaction.redact_json(encode(data)))
        return NewEvent(
            name,
            self._log.redaction.redact_json(declared.encode(data), declared.data),
            declared.version,
        )

    def _page_gen(
        self, after: int, limit: int | None, reverse: bool = False
    ) -> Operation[list[Event]]:
        check_int(after, "after")
        decoded = not self._types
        events: list[Event] = []
        size = 0
        for stored in (
            yield from ops.read(
                self._key, after=after, limit=limit, reverse=reverse, decoded=decoded
            )
        ):
            envelope = stored.envelope
            data = envelope.data
            if envelope.blob is not None:
                size += envelope.blob.size
                if size > PAGE_BYTES and events:
                    break  # limit the page: small records may refer to any number of large values
                data = self._decode(stored, (yield from get_blob(self._key, envelope.blob)))
            elif not decoded:
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
            # The digest matches, so another version of the application wrote it.
            raise SchemaMismatch(
                str(self._key), version=stored.version, type=name, what=str(error)
            ) from None

    def _last_gen(self, count: int) -> Operation[list[Event]]:
        check_int(count, "count")
        events: list[Event] = []
        before = 0
        while len(events) < count:
            page = yield from self._page_gen(
                before, min(count - len(events), PAGE_RECORDS), reverse=True
            )
            if not page:
                break
            events += page
            before = page[-1].version
            if before == 1:
                break
        return events[::-1]


class Stream(StreamBase):
    """An append-only stream of events with versions 1, 2, 3, and so on."""

    def append(
        self, *events: tuple[str, object], id: str | None = None, if_version: int | None = None
    ) -> AppendResult:
        """Append events atomically. They are durable when this returns.

        Args:
            events: Pairs of event type and data.
            id: A unique id for this append. Repeating the call with the same id and content stores
                nothing and returns `duplicate=True`.
            if_version: Append only if the stream is at this version; 0 means it must not exist.

        Raises:
            IdReused: The id was used before with other content.
            Conflict: The stream is not at `if_version`. Nothing was written.

        Example:
            stream.append(("order.placed", {"sku": "A1"}), id="order-7")
        """
        make = self._prepare_append(events, id, if_version)
        if if_version is not None:
            return ops.run(self._log, make())
        return ops.run_until_settled(self._log, make)

    def read(self, *, after: int = 0) -> Iterator[Event]:
        """Yield the events in order, from version `after` + 1 on. They are read page by page."""
        while page := ops.run(self._log, self._page_gen(after, None)):
            yield from page
            after = page[-1].version

    def last(self, count: int) -> list[Event]:
        """Return the newest `count` events, oldest first. The rest of the stream is not read."""
        return ops.run(self._log, self._last_gen(count))

    def version(self) -> int:
        """Return the newest version; 0 if the stream does not exist."""
        return ops.run(self._log, get_version(self._key))

    def delete(self, *, reason: str = "deleted by the program", by: str | None = None) -> bool:
        """Delete the stream with its large values. Return False if it does not exist.

        The audit stream keeps the reason.
        """
        return ops.run_until_settled(
            self._log,
            lambda: delete_stream(
                self._key, new_append_context(by), self._log.redaction.redact_text(reason)
            ),
        )


class AsyncStream(StreamBase):
    """A `Stream` whose methods are awaited."""

    async def append(
        self, *events: tuple[str, object], id: str | None = None, if_version: int | None = None
    ) -> AppendResult:
        """`Stream.append`, awaited. If it is cancelled, the events may still be stored.

        Repeat the call with the same `id` to be sure.
        """
        make = self._prepare_append(events, id, if_version)
        if if_version is not None:
            return await ops.run_async(self._log, make())
        return await ops.run_until_settled_async(self._log, make)

    async def read(self, *, after: int = 0) -> AsyncIterator[Event]:
        """`Stream.read` as an async iterator."""
        while page := await ops.run_async(self._log, self._page_gen(after, None)):
            for event in page:
                yield event
            after = page[-1].version

    async def last(self, count: int) -> list[Event]:
        """`Stream.last`, awaited."""
        return await ops.run_async(self._log, self._last_gen(count))

    async def version(self) -> int:
        """`Stream.version`, awaited."""
        return await ops.run_async(self._log, get_version(self._key))

    async def delete(
        self, *, reason: str = "deleted by the program", by: str | None = None
    ) -> bool:
        """`Stream.delete`, awaited."""
        return await ops.run_until_settled_async(
            self._log,
            lambda: delete_stream(
                self._key, new_append_context(by), self._log.redaction.redact_text(reason)
            ),
        )
