"""The index follows the stream: what was appended since is read, folded and written into it, a few hundred events at a time."""

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
from ...log.stream_ops import data_of
from ..fold import IndexChanges, MemoryEvent, MemoryFold, asked_for, event_of
from ..model import IndexPosition, Superseded
from .index import MemoryIndex

BATCH: Final = 1_000
AHEAD: Final = 100
"""So many memories may be remembered before they are written into the index."""
DROP_SECONDS: Final = 60.0
"""How often it is looked for what has expired, and how long it stays in the index at least."""


class Follower:
    """Follows one stream for all who use it in this process.

    What this process remembers is written into the index when somebody asks, or when it is much: until then only the names of
    what was known already are worked out, from what is known `ahead` of the index.
    """

    def __init__(self, log: Log, index: MemoryIndex, space: StreamKey) -> None:
        self._log, self.index, self._space = log, index, space
        self._beside = StreamKey(
            f"${space.tenant}", space.kind, space.id
        )  # no tenant of a user's begins so
        self._lock = threading.Lock()
        self._ahead, self._base, self._version = MemoryFold(), IndexPosition(b"", 0), -1
        self._dropped = float("-inf")

    def current(self) -> MemoryIndex:
        """The index, with everything in it that was appended before."""
        if catch_up(self._log, self.index, self._space) is None:
            self._clear_beside()
        self._drop_expired()
        return self.index

    def rebuild(self) -> None:
        """Make the index of this stream anew. Until it is there, everybody is answered by the old one."""
        self._clear_beside()
        if self.index.position(self._space) is not None:
            while catch_up(self._log, self.index, self._space, into=self._beside) is not None:
                if self.index.replace(self._space, self._beside):
                    break
        self.current()

    def _clear_beside(self) -> None:
        """Take away what a process has left that was killed while it rebuilt."""
        if (left := self.index.position(self._beside)) is not None:
            self.index.clear(self._beside, left)

    def _drop_expired(self) -> None:
        """Now and then take out what has expired. Not at once: an event whose writer's clock is behind may still say it again."""
        now = clock.time()
        if self._dropped <= now < self._dropped + DROP_SECONDS:
            return
        self._dropped = now
        while (position := self.index.position(self._space)) is not None:
            gone = self.index.expired(self._space, now - DROP_SECONDS, BATCH)
            if not gone or not self.index.write(
                self._space, position, position, IndexChanges([], list(gone), {})
            ):
                return  # nothing, or somebody else is at it: later, then

    def names(self, appended: AppendResult, events: Sequence[MemoryEvent]) -> list[str]:
        """The ids of the memories that these events, just appended, have become.

        `NotFound` if one was to take the place of a memory that somebody else has superseded or forgotten just before.
        """
        with self._lock:
            base = self.index.position(self._space)
            follows = base == self._base and appended.first == self._version + 1
            if not follows or self._version - self._base.version >= AHEAD:
                return self._caught_up(events)
            known = self.index.known(self._space, *asked_for(events))
            self._ahead.learn(known.docs, known.aliases)
            for happened in events:
                self._ahead.apply(happened)
            self._version = appended.last
            return self._named(self._ahead, events)

    def _caught_up(self, events: Sequence[MemoryEvent]) -> list[str]:
        index = self.current()
        position = index.position(self._space)
        self._ahead, self._base = MemoryFold(), position or IndexPosition(b"", 0)
        self._version = self._base.version
        known = index.known(self._space, [happened.id for happened in events], [])
        return self._named(MemoryFold(known.docs, known.aliases), events)

    def _named(self, fold: MemoryFold, events: Sequence[MemoryEvent]) -> list[str]:
        for happened in events:
            if isinstance(happened.event, Superseded) and not fold.has(happened.id):
                raise NotFound(
                    f"{self._space}: the memory was superseded or forgotten meanwhile, so the new text was not put in its place"
                )
        return [fold.id_of(happened.id) for happened in events]


def catch_up(
    log: Log, index: MemoryIndex, space: StreamKey, into: StreamKey | None = None
) -> Head | None:
    """Follow the stream to its end. The head as it was then; None if there is no such stream.

    An index that has followed another stream begins anew: one that was deleted, restored from a backup, or copied and gone on with
    elsewhere. `into`: the name under which the index keeps it, if not that of the stream.
    """
    kept = into or space
    while True:
        # In this order: the stream is at the position by now, or beyond, unless it is another one.
        position = index.position(kept)
        head = ops.run(log, ops.head(space))
        if position is not None and not _may_follow(head, position):
            index.clear(kept, position)
            continue
        if head is None or (position is not None and position.version == head.version):
            return head
        try:
            for batch in _batches(log, space, position, head.version):
                if not apply(index, kept, position, head.incarnation, batch):
                    break  # somebody else was faster
                position = IndexPosition(head.incarnation, batch[-1].version, batch[-1].hash)
        except (_AnotherStream, Erased) as error:
            if position is not None:
                index.clear(kept, position)
            if isinstance(error, Erased):
                raise  # and what another process has erased is in no index of this one


class _AnotherStream(Exception):
    """The record at the position is not the one that was followed."""


def _may_follow(head: Head | None, position: IndexPosition) -> bool:
    """Whether the stream can be the one that was followed, as far as its head tells."""
    if head is None or head.incarnation != position.incarnation:
        return False
    return head.version > position.version or (head.version, head.hash) == (
        position.version,
        position.hash,
    )


def apply(
    index: MemoryIndex,
    space: StreamKey,
    before: IndexPosition | None,
    incarnation: bytes,
    events: Sequence[MemoryEvent],
) -> bool:
    """Fold events into the index. False if it does not stand where they begin."""
    ids, keys = asked_for(events)
    known = index.known(space, ids, keys) if before is not None else None
    fold = MemoryFold(known.docs, known.aliases) if known is not None else MemoryFold()
    for happened in events:
        if happened.event is not None:
            fold.apply(happened)
    changes: IndexChanges = fold.changes()
    return index.write(
        space, before, IndexPosition(incarnation, events[-1].version, events[-1].hash), changes
    )


def _read_on(space: StreamKey, position: IndexPosition | None) -> Operation[list[MemoryEvent]]:
    """The first events beyond the position, after a look at the one that is there."""
    if position is None:
        return (yield from _read(space, 0))
    stored = yield from ops.read(space, after=position.version - 1, plain=True, spare=True)
    if not stored or (stored[0].version, stored[0].hash) != (position.version, position.hash):
        raise _AnotherStream
    return (
        (yield from _opened(space, stored[1:]))
        if stored[1:]
        else (yield from _read(space, position.version))
    )


def _read(space: StreamKey, after: int) -> Operation[list[MemoryEvent]]:
    return (
        yield from _opened(space, (yield from ops.read(space, after=after, plain=True, spare=True)))
    )


def _opened(space: StreamKey, page: Sequence[StoredEvent]) -> Operation[list[MemoryEvent]]:
    events = []
    for stored in page:
        envelope = stored.envelope
        data = yield from data_of(space, stored)
        try:
            event = event_of(envelope.type, data)
        except msgspec.ValidationError:
            raise CorruptRecord(
                str(space), version=stored.version, what="it does not say what was remembered"
            ) from None
        events.append(MemoryEvent(stored.version, envelope.id, envelope.at, event, stored.hash))
    return events


def _batches(
    log: Log, space: StreamKey, position: IndexPosition | None, last: int
) -> Iterator[Sequence[MemoryEvent]]:
    """The events beyond a position, in order. While one batch is written, the texts of the next are read closely."""
    waiting = _cut(ops.run(log, _read_on(space, position)))
    while waiting:
        batch = waiting.popleft()
        if not waiting and batch[-1].version < last:
            waiting = _cut(ops.run(log, _read(space, batch[-1].version)))
        if not waiting:
            yield batch
            return
        # Most of the work of following is to read texts, and the rest is mostly to wait for the engine. What is found out is
        # remembered by the function itself: it does not matter if this thread fails, or is late.
        ahead = threading.Thread(
            target=asked_for, args=(waiting[0],), name="holdfast-memory", daemon=True
        )
        ahead.start()
        try:
            yield batch
        finally:
            ahead.join()


def _cut(events: Sequence[MemoryEvent]) -> deque[Sequence[MemoryEvent]]:
    return deque(events[start : start + BATCH] for start in range(0, len(events), BATCH))
