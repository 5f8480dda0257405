"""The index follows the stream: what was appended since is read, folded and written into it, a few hundred events at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from .. import _operations as ops
from .._log import Log
from .._operations import Operation
from .._streams import data_of
from ..backends import Appended, Head, StreamKey
from ..errors import CorruptRecord
from ._fold import Changes, Fold, Happened, asked_for, event_of
from ._index import Index
from ._model import Position

BATCH: Final = 2_000
AHEAD: Final = 100
"""So many memories may be remembered before they are written into the index."""


class Follower:
    """Follows one stream for all who use it in this process.

    What this process remembers is written into the index when somebody asks, or when it is much: until then only the names of
    what was known already are worked out, from what is known `ahead` of the index.
    """

    def __init__(self, log: Log, index: Index, space: StreamKey) -> None:
        self._log, self.index, self._space = log, index, space
        self._lock = threading.Lock()
        self._ahead, self._base, self._version = Fold(), Position(b"", 0), -1

    def current(self) -> Index:
        """The index, with everything in it that was appended before."""
        catch_up(self._log, self.index, self._space)
        return self.index

    def names(self, appended: Appended, events: Sequence[Happened]) -> list[str]:
        """The ids of the memories that these events, just appended, have become."""
        with self._lock:
            base = self.index.position(self._space)
            follows = base == self._base and appended.first == self._version + 1
            if not follows or self._version - self._base.version >= AHEAD:
                return self._caught_up([happened.id for happened in events])
            known = self.index.known(self._space, *asked_for(events))
            self._ahead.learn(known.docs, known.aliases)
            for happened in events:
                self._ahead.apply(happened)
            self._version = appended.last
            return [self._ahead.id_of(happened.id) for happened in events]

    def _caught_up(self, ids: Sequence[str]) -> list[str]:
        index = self.current()
        position = index.position(self._space)
        self._ahead, self._base = Fold(), position or Position(b"", 0)
        self._version = self._base.version
        known = index.known(self._space, ids, [])
        by_number = {doc.number: doc.id for doc in known.docs}
        return [by_number.get(known.aliases.get(name, 0), name) for name in ids]


def catch_up(log: Log, index: Index, space: StreamKey) -> Head | None:
    """Follow the stream to its end. The head as it was then; None if there is no such stream."""
    while True:
        head = ops.run(log, ops.head(space))
        position = index.position(space)
        if position is not None and (head is None or head.incarnation != position.life):
            index.clear(space, position.life)  # another life, or none: nothing of the former one counts
            continue
        if head is None or (position is not None and position.version >= head.version):
            return head
        after = 0 if position is None else position.version
        page = ops.run(log, _read(space, after))
        if not page:
            continue  # deleted meanwhile
        for batch in _batches(page):
            if not apply(index, space, position, head.incarnation, batch):
                break  # somebody else was faster
            position = Position(head.incarnation, batch[-1].version)


def apply(index: Index, space: StreamKey, before: Position | None, life: bytes, events: Sequence[Happened]) -> bool:
    """Fold events into the index. False if it does not stand where they begin."""
    ids, keys = asked_for(events)
    known = index.known(space, ids, keys) if before is not None else None
    fold = Fold(known.docs, known.aliases) if known is not None else Fold()
    for happened in events:
        if happened.event is not None:
            fold.apply(happened)
    changes: Changes = fold.changes()
    return index.write(space, before, Position(life, events[-1].version), changes)


def _read(space: StreamKey, after: int) -> Operation[list[Happened]]:
    events = []
    for stored in (yield from ops.read(space, after=after, plain=True)):
        envelope = stored.envelope
        data = yield from data_of(space, stored)
        try:
            event = event_of(envelope.type, data)
        except msgspec.ValidationError:
            raise CorruptRecord(
                str(space), version=stored.version, what="it does not say what was remembered"
            ) from None
        events.append(Happened(stored.version, envelope.id, envelope.at, event))
    return events


def _batches(events: Sequence[Happened]) -> Iterator[Sequence[Happened]]:
    for start in range(0, len(events), BATCH):
        yield events[start : start + BATCH]
