"""Catch up: read new events of a stream, fold them, and write the changes into the index."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from ...backends import AppendResult, Head, StreamKey, clock
from ...errors import CorruptRecord, Erased, NotFound
from ...log import operations as ops
from ...log.events import StoredEvent
from ...log.log import Log
from ...log.operations import Operation
from ...log.operations.stream_ops import load_data
from ..fold import IndexChanges, MemoryEvent, MemoryFold, collect_lookups, decode_memory_event
from ..model import IndexPosition, Superseded
from .index import IndexUnusable, MemoryIndex

BATCH_EVENTS: Final = 1_000
MAX_AHEAD_EVENTS: Final = 100
"""How many events this process may append before it writes them into the index."""
EXPIRY_CHECK_SECONDS: Final = 60.0
"""How often to remove expired memories, and the minimum time that they stay in the index."""


class Follower:
    """Follows one stream for all its users in this process.

    Events that this process appends are written into the index on the next read, or when there are
    many. Until then only their memory ids are computed, with a fold that is `ahead` of the index.
    """

    def __init__(self, log: Log, index: MemoryIndex, space: StreamKey) -> None:
        self._log, self.index, self._space = log, index, space
        self._beside = space._replace(tenant=f"${space.tenant}")  # "$" can't start a user's tenant
        self._lock = threading.Lock()
        self._ahead, self._base, self._version = MemoryFold(), IndexPosition(b"", 0), -1
        self._last_expiry_check = float("-inf")

    def current(self) -> MemoryIndex:
        """Return the index, caught up with everything appended so far."""
        if catch_up(self._log, self.index, self._space) is None:
            self._clear_beside()
        self._drop_expired()
        return self.index

    def rebuild(self) -> None:
        """Rebuild the index of this stream. The old one answers until the new one is ready."""
        self._clear_beside()
        if self.index.position(self._space) is not None:
            while catch_up(self._log, self.index, self._space, into=self._beside) is not None:
                if self.index.replace(self._space, self._beside):
                    break
        self.current()

    def _clear_beside(self) -> None:
        """Remove what a process that died during a rebuild has left behind."""
        if (left := self.index.position(self._beside)) is not None:
            self.index.clear(self._beside, left)

    def _drop_expired(self) -> None:
        """Remove expired memories now and then.

        Not at once: another writer's clock may be behind, and its event may repeat the memory.
        """
        now = clock.time()
        if self._last_expiry_check <= now < self._last_expiry_check + EXPIRY_CHECK_SECONDS:
            return
        self._last_expiry_check = now
        remove_expired(self.index, self._space, now - EXPIRY_CHECK_SECONDS)

    def resolve_ids(self, appended: AppendResult, events: Sequence[MemoryEvent]) -> list[str]:
        """Return the memory ids of events that were just appended.

        Raises `NotFound` if one replaces a memory that another process has just superseded or
        forgotten.
        """
        with self._lock:
            base = self.index.position(self._space)
            follows = base == self._base and appended.first == self._version + 1
            if not follows or self._version - self._base.version >= MAX_AHEAD_EVENTS:
                return self._catch_up_and_resolve(events)
            known = self.index.lookup(self._space, *collect_lookups(events))
            self._ahead.learn(known.docs, known.aliases)
            for event in events:
                self._ahead.apply(event)
            self._version = appended.last
            return self._resolve(self._ahead, events)

    def _catch_up_and_resolve(self, events: Sequence[MemoryEvent]) -> list[str]:
        index = self.current()
        position = index.position(self._space)
        self._ahead, self._base = MemoryFold(), position or IndexPosition(b"", 0)
        self._version = self._base.version
        known = index.lookup(self._space, [event.id for event in events], [])
        return self._resolve(MemoryFold(known.docs, known.aliases), events)

    def _resolve(self, fold: MemoryFold, events: Sequence[MemoryEvent]) -> list[str]:
        for event in events:
            if isinstance(event.payload, Superseded) and not fold.has(event.id):
                raise NotFound(
                    f"{self._space}: another process superseded or forgot the memory first,"
                    " so the new text was not stored; recall it again"
                )
        return [fold.resolve_id(event.id) for event in events]


def remove_expired(index: MemoryIndex, space: StreamKey, before: float) -> None:
    """Remove the memories that expired before a time."""
    removed: list[int] = []
    while (position := index.position(space)) is not None:
        gone = index.list_expired(space, before, BATCH_EVENTS)
        if not gone:
            return
        # If the write fails, another process has written to the index: look again.
        if index.write(space, position, position, IndexChanges([], list(gone), {})):
            numbers = [doc.number for doc in gone]
            if numbers == removed:
                what = f"the memory index of {space} keeps memories that were removed from it"
                raise IndexUnusable(what)
            removed = numbers


def catch_up(
    log: Log, index: MemoryIndex, space: StreamKey, into: StreamKey | None = None
) -> Head | None:
    """Follow the stream to its end; return its head, or None if there is no such stream.

    An index that followed another stream starts over: the stream was deleted, restored from a
    backup, or copied and continued elsewhere. `into` is the name to use in the index, if not the
    stream's.
    """
    target = into or space
    while True:
        # In this order, so that the head is at the position or beyond, unless it is another stream.
        position = index.position(target)
        head = ops.run(log, ops.head(space))
        if position is not None and not _may_follow(head, position):
            index.clear(target, position)
            continue
        if head is None or (position is not None and position.version == head.version):
            return head
        start = position
        try:
            for batch in _read_batches(log, space, position, head.version):
                if not apply_events(index, target, position, head.incarnation, batch):
                    break  # another process has written the batch
                position = IndexPosition(head.incarnation, batch[-1].version, batch[-1].hash)
            else:
                if position == start:
                    version = position.version + 1 if position else 1
                    raise CorruptRecord(str(space), version=version, what="the record is missing")
        except (_StreamReplaced, Erased) as error:
            if position is not None:
                index.clear(target, position)
            if isinstance(error, Erased):
                raise  # after clearing: erased text must not stay in the index


class _StreamReplaced(Exception):
    """The record at the position isn't the one that was followed."""


def _may_follow(head: Head | None, position: IndexPosition) -> bool:
    """Whether the stream can be the one that was followed, judging by its head."""
    if head is None or head.incarnation != position.incarnation:
        return False
    return head.version > position.version or (head.version, head.hash) == (
        position.version,
        position.hash,
    )


def apply_events(
    index: MemoryIndex,
    space: StreamKey,
    before: IndexPosition | None,
    incarnation: bytes,
    events: Sequence[MemoryEvent],
) -> bool:
    """Fold events into the index; return False if the index is not at `before`."""
    ids, keys = collect_lookups(events)
    known = index.lookup(space, ids, keys) if before is not None else None
    fold = MemoryFold(known.docs, known.aliases) if known is not None else MemoryFold()
    for event in events:
        if event.payload is not None:
            fold.apply(event)
    after = IndexPosition(incarnation, events[-1].version, events[-1].hash)
    return index.write(space, before, after, fold.changes())


def _read_from_position(
    space: StreamKey, position: IndexPosition | None
) -> Operation[list[MemoryEvent]]:
    """Check the record at the position, then read the first events beyond it."""
    if position is None:
        return (yield from read_memory_events(space, 0))
    stored = yield from ops.read(space, after=position.version - 1, decoded=True, allow_erased=True)
    if not stored or (stored[0].version, stored[0].hash) != (position.version, position.hash):
        raise _StreamReplaced
    return (
        (yield from _decode_page(space, stored[1:]))
        if stored[1:]
        else (yield from read_memory_events(space, position.version))
    )


def read_memory_events(space: StreamKey, after: int) -> Operation[list[MemoryEvent]]:
    return (
        yield from _decode_page(
            space, (yield from ops.read(space, after=after, decoded=True, allow_erased=True))
        )
    )


def _decode_page(space: StreamKey, page: Sequence[StoredEvent]) -> Operation[list[MemoryEvent]]:
    events = []
    for stored in page:
        envelope = stored.envelope
        data = yield from load_data(space, stored)
        try:
            payload = decode_memory_event(envelope.type, data)
        except msgspec.ValidationError:
            raise CorruptRecord(
                str(space), version=stored.version, what="its memory event is malformed"
            ) from None
        events.append(MemoryEvent(stored.version, envelope.id, envelope.at, payload, stored.hash))
    return events


def _read_batches(
    log: Log, space: StreamKey, position: IndexPosition | None, last: int
) -> Iterator[Sequence[MemoryEvent]]:
    """Yield batches of events beyond a position.

    While the caller writes a batch, the texts of the next one are analyzed.
    """
    pending = _split_batches(ops.run(log, _read_from_position(space, position)))
    while pending:
        batch = pending.popleft()
        if not pending and batch[-1].version < last:
            pending = _split_batches(ops.run(log, read_memory_events(space, batch[-1].version)))
        if not pending:
            yield batch
            return
        # Most of the work is analyzing texts, and the rest is mostly waiting for the engine. The
        # function caches its results, so it does not matter if this thread fails or is late.
        analysis = threading.Thread(
            target=collect_lookups, args=(pending[0],), name="holdfast-memory", daemon=True
        )
        analysis.start()
        try:
            yield batch
        finally:
            analysis.join()


def _split_batches(events: Sequence[MemoryEvent]) -> deque[Sequence[MemoryEvent]]:
    return deque(
        events[start : start + BATCH_EVENTS] for start in range(0, len(events), BATCH_EVENTS)
    )
