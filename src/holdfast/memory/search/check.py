"""Check the stored memory index: derive it from the streams again, and compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import apsw

from ...backends import StreamKey, clock
from ...errors import DataProblem
from ...log import operations as ops
from ...log.log import Log
from ..model import IndexPosition, MemoryDoc, MemoryFilter
from .catch_up import BATCH_EVENTS, apply_events, read_memory_events
from .index import IndexUnusable, MemoryIndex
from .locate import open_stored_indexes
from .sqlite import SQLiteIndex

PAGE_DOCS: Final = 1_000


class IndexProblem(NamedTuple):
    """A difference between the index and the streams. `space` is None if it's in no namespace."""

    space: StreamKey | None
    what: str


def check_index(log: Log, path: str | None, spaces: Iterable[StreamKey]) -> Iterator[IndexProblem]:
    """Yield the differences. Changes nothing; never raises for a damaged index."""
    spaces = list(spaces)
    try:
        for index in open_stored_indexes(log, path):
            try:
                if isinstance(index, SQLiteIndex):
                    yield from (IndexProblem(None, what) for what in index.find_problems())
                for space in spaces:
                    yield from _check_namespace(log, index, space)
            finally:
                index.close()
    except (apsw.Error, IndexUnusable) as error:
        reason = error.error if isinstance(error, IndexUnusable) else error
        what = f"the memory index cannot be read ({type(reason).__name__})"
        yield IndexProblem(None, what)


def _check_namespace(log: Log, index: MemoryIndex, space: StreamKey) -> Iterator[IndexProblem]:
    position = index.position(space)
    if position is None:
        return
    expected = SQLiteIndex()
    try:
        # The index of another stream, or of a damaged one, is not used: it starts over.
        if not _derive(log, expected, space, position) or index.position(space) != position:
            return
        what = _compare_docs(index, expected, space)
        if what is None and isinstance(index, SQLiteIndex):
            what = _compare_dumps(index, expected, space)
        if what is not None and index.position(space) == position:
            yield IndexProblem(space, what)
    except DataProblem:
        return  # a problem of the stream, which is reported there
    finally:
        expected.close()


def _derive(log: Log, into: SQLiteIndex, space: StreamKey, position: IndexPosition) -> bool:
    """Derive the index of a stream up to a position.

    Return False if the stream has no such position.
    """
    head = ops.run(log, ops.head(space))
    if head is None or head.incarnation != position.incarnation:
        return False
    at: IndexPosition | None = None
    while at is None or at.version < position.version:
        page = ops.run(log, read_memory_events(space, at.version if at else 0))
        events = [event for event in page if event.version <= position.version]
        if not events:
            return False
        for start in range(0, len(events), BATCH_EVENTS):
            batch = events[start : start + BATCH_EVENTS]
            apply_events(into, space, at, head.incarnation, batch)
            at = IndexPosition(head.incarnation, batch[-1].version, batch[-1].hash)
    return at == position


def _compare_docs(index: MemoryIndex, expected: SQLiteIndex, space: StreamKey) -> str | None:
    """Compare the unexpired memories, and the ids and keys that lead to them."""
    where = MemoryFilter(now=clock.time(), any_time=True)
    after = 0
    while True:
        right = expected.page(space, after, PAGE_DOCS, where)
        last = right[-1].number if right else None
        stored = _read_until(index, space, after, last, where)
        if list(right) != stored:
            return "memories in the index do not match their stream"
        if last is None:
            return None
        ids, keys = [doc.id for doc in right], [key for doc in right for key in doc.keys]
        one, other = (each.lookup(space, ids, keys) for each in (index, expected))
        if _live(one.docs, where) != _live(other.docs, where) or not (
            one.aliases.items() >= {(doc.id, doc.number) for doc in right}
        ):
            return "ids or keys in the memory index do not lead to their memories"
        after = last


def _read_until(
    index: MemoryIndex, space: StreamKey, after: int, last: int | None, where: MemoryFilter
) -> list[MemoryDoc]:
    """Read all memories beyond `after`, up to `last`; only one page if `last` is None."""
    found: list[MemoryDoc] = []
    while page := index.page(space, after, PAGE_DOCS, where):
        found += [doc for doc in page if last is None or doc.number <= last]
        after = page[-1].number
        if last is None or after >= last:
            break
    return found


def _live(docs: Iterable[MemoryDoc], where: MemoryFilter) -> dict[int, MemoryDoc]:
    return {doc.number: doc for doc in docs if where.has(doc)}


def _compare_dumps(index: SQLiteIndex, expected: SQLiteIndex, space: StreamKey) -> str | None:
    """Compare everything else that is stored: columns, words, ids, keys and totals."""
    stored, right = index.dump(space), expected.dump(space)
    # Expired memories are removed from time to time. The ids of removed memories stay.
    numbers = stored.rows.keys()
    if (
        not numbers <= right.rows.keys()
        or any(row != right.rows[number] for number, row in stored.rows.items())
        or (stored.memories, stored.terms)
        != (len(numbers), sum(row[6] for row in stored.rows.values()))
    ):
        return "columns or totals in the memory index do not match their stream"
    if stored.words != {n: words for n, words in right.words.items() if n in numbers}:
        return "words in the memory index do not match their stream"
    if stored.keys != {(key, n) for key, n in right.keys if n in numbers}:
        return "keys in the memory index do not match their stream"
    if {(name, n) for name, n in stored.ids.items() if n in numbers} != {
        (name, n) for name, n in right.ids.items() if n in numbers
    }:
        return "ids in the memory index do not match their stream"
    return None
