"""The index of memories: its interface, what all engines do alike, and its result types.

An index is derived from the streams and follows them, so it can be dropped at any time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ...backends import StreamKey
from ...errors import Unavailable
from ..fold import IndexChanges
from ..model import IndexPosition, MemoryDoc, MemoryFilter, decode_doc
from . import sql
from .sql import SQLDialect

if TYPE_CHECKING:
    from ..vectors.pgvector import PgvectorSearch


class IndexUnusable(Unavailable):
    """The index is damaged or can't be written; `error` is the cause. No memory is lost."""

    def __init__(self, what: str, error: Exception | None = None) -> None:
        super().__init__(
            f"{what}; no memory is lost: reopen the store to rebuild the index from the event log"
        )
        self.what, self.error = what, error or ValueError(what)


def decode_stored(body: Any) -> MemoryDoc:
    """Decode a stored memory; raise `IndexUnusable` if it is damaged."""
    try:
        return decode_doc(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise IndexUnusable("a memory in the index is damaged", error) from None


def decode_rows(rows: Iterable[Any]) -> list[MemoryDoc]:
    return [decode_stored(body) for (body,) in rows]


def check_page(docs: Sequence[MemoryDoc], after: int) -> Sequence[MemoryDoc]:
    """Return a page of memories. Raise `IndexUnusable` unless their numbers ascend from `after`.

    Callers continue after the last number: a wrong number could send them in circles.
    """
    for doc in docs:
        if doc.number <= after:
            raise IndexUnusable("the memory index lists memories out of order")
        after = doc.number
    return docs


class Matches(NamedTuple):
    """Matches of a query, best first, with the statistics that ranking needs on any engine."""

    docs: Sequence[MemoryDoc]
    total: int
    average: float
    """The average number of terms of a memory."""
    frequency: Mapping[str, int]
    """The number of memories with each term."""


class KnownMemories(NamedTuple):
    """Memories found by id or key, and the ids that led to them."""

    docs: Sequence[MemoryDoc]
    aliases: Mapping[str, int]


class Neighbours(NamedTuple):
    """The neighbours of a memory in its source, nearest first."""

    before: Sequence[MemoryDoc]
    after: Sequence[MemoryDoc]


class IndexCounts(NamedTuple):
    memories: int
    sources: int
    oldest: float | None
    newest: float | None


class Vector(NamedTuple):
    """The vector of a memory. `place` increases in the order of writing and is never reused."""

    place: int
    number: int
    values: bytes
    """float32, little-endian, of length 1; all 0 if there is nothing to compare."""


class Nearest(NamedTuple):
    """Memories with their similarity to the query, nearest first.

    `common` is the average similarity of all memories.
    """

    docs: Sequence[tuple[MemoryDoc, float]]
    common: float


class VectorPage(NamedTuple):
    """Vectors by place. `filling` changes when all were dropped and their places start over."""

    filling: bytes
    vectors: Sequence[Vector]


MAX_MODELS: Final = 2
"""How many models have vectors in a namespace: the current one, and the one before or after it."""


class MemoryIndex(ABC):
    """Memories of many namespaces and their vectors. Can be called from any thread.

    `space` is the stream of the namespace. A memory has one vector per model. `write` drops a
    vector when its memory is forgotten or the text changes, and `clear` when the namespace is
    removed. A namespace keeps the vectors of the two newest models, so that an old and a new
    release of an application can run side by side.

    Most reading is one statement, and the same on all engines: those methods are here.
    """

    is_remote: bool
    """Whether a server answers: then concurrent requests are faster than sequential ones."""
    _dialect: SQLDialect

    # -- following the stream --------------------------------------------------------------------

    def position(self, space: StreamKey) -> IndexPosition | None:
        """Return the position up to which the stream was followed; None if it was not."""
        rows = self._select(sql.POSITION, space)
        return IndexPosition(*rows[0]) if rows else None

    def lookup(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> KnownMemories:
        """Return the memories with one of these ids or one of these keys."""
        packed = {"ids": self._dialect.pack_texts(ids), "keys": self._dialect.pack_keys(keys)}
        rows = self._select(sql.KNOWN, space, **packed)
        bodies = {number: body for _, number, body in rows}
        aliases = {alias: number for alias, number, _ in rows if alias is not None}
        return KnownMemories([decode_stored(body) for body in bodies.values()], aliases)

    @abstractmethod
    def write(
        self,
        space: StreamKey,
        before: IndexPosition | None,
        after: IndexPosition,
        changes: IndexChanges,
    ) -> bool:
        """Apply changes and the new position atomically.

        Returns False and does nothing if the index is no longer at `before`.
        """

    def list_expired(self, space: StreamKey, before: float, limit: int) -> Sequence[MemoryDoc]:
        """Return memories that expired before a time."""
        return decode_rows(self._select(sql.EXPIRED, space, before=before, limit=limit))

    @abstractmethod
    def clear(self, space: StreamKey, at: IndexPosition) -> None:
        """Remove a namespace, unless it is no longer at this position."""

    @abstractmethod
    def replace(self, space: StreamKey, by: StreamKey) -> bool:
        """Replace a namespace with the one that was built under the name `by`, atomically.

        Returns False and does nothing if the namespace has followed the same incarnation of the
        stream further. Returns True if there is no `by`: another process has replaced it.
        """

    # -- reading ---------------------------------------------------------------------------------

    @abstractmethod
    def search(
        self, space: StreamKey, terms: Mapping[str, float], where: MemoryFilter, limit: int
    ) -> Matches:
        """Return the memories with any of these terms, the most promising first."""

    @abstractmethod
    def neighbours(
        self, space: StreamKey, docs: Sequence[MemoryDoc], reach: int, where: MemoryFilter
    ) -> list[Neighbours]:
        """Return up to `reach` memories before and after each of these in its source, by time."""

    def page(
        self, space: StreamKey, after: int, limit: int, where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        """Return memories by number, beyond `after`. Only an empty page marks the end."""
        rows = self._select(sql.PAGE, space, where, after=after, limit=limit)
        return check_page(decode_rows(rows), after)

    def counts(self, space: StreamKey, now: float) -> IndexCounts:
        """Return the number of memories and sources, and the oldest and newest time."""
        return IndexCounts(*self._select(sql.COUNTS, space, MemoryFilter(now=now))[0])

    def numbers(self, space: StreamKey, where: MemoryFilter) -> Sequence[int]:
        """Return the numbers of all memories that match a filter, ascending."""
        return sorted(number for (number,) in self._select(sql.NUMBERS, space, where))

    def docs(
        self, space: StreamKey, numbers: Sequence[int], where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        """Return the memories with these numbers that match a filter, in any order."""
        return decode_rows(self._select(sql.DOCS, space, where, numbers=list(numbers)))

    # -- vectors ---------------------------------------------------------------------------------

    def models(self, space: StreamKey) -> tuple[int, Mapping[str, int]]:
        """Return the number of memories, and of vectors per model, the newest model last.

        Must be fast: it is called before each recall.
        """
        rows = self._select(sql.MODELS, space)
        counts = {name: count for _, name, count in rows if name is not None}
        return (rows[0][0] if rows else 0), counts

    def without_vector(
        self, space: StreamKey, model: str, after: int, limit: int, now: float
    ) -> Sequence[MemoryDoc]:
        """Return unexpired memories without a vector of this model, by number, beyond `after`."""
        rows = self._select(
            sql.WITHOUT_VECTOR, space, model=model, after=after, limit=limit, now=now
        )
        return check_page(decode_rows(rows), after)

    @abstractmethod
    def put_vectors(
        self, space: StreamKey, model: str, vectors: Sequence[tuple[MemoryDoc, bytes]]
    ) -> None:
        """Store vectors atomically.

        Skips memories that are gone, have another text by now, or have a vector already.
        """

    def vectors(self, space: StreamKey, model: str, after: int, limit: int) -> VectorPage:
        """Return vectors whose place is beyond `after`. Only an empty page marks the end."""
        rows = self._select(self._dialect.vector_page, space, model=model, after=after, limit=limit)
        found = [Vector(*row[1:]) for row in rows if row[1] is not None]
        if found and found[-1].place <= after:
            raise IndexUnusable("the memory index lists vectors out of order")
        return VectorPage(rows[0][0] if rows else b"", found)

    def vectors_at(self, space: StreamKey, model: str, places: Sequence[int]) -> Sequence[Vector]:
        """Return the vectors at these places, in any order. Must be fast: recall reads hundreds."""
        rows = self._select(sql.VECTORS_AT, space, model=model, places=list(places))
        return [Vector(*row) for row in rows]

    def vectors_of(
        self, space: StreamKey, model: str, numbers: Sequence[int]
    ) -> Mapping[int, bytes]:
        """Return the vectors of these memories by number, without those that have none."""
        return dict(self._select(sql.VECTORS_OF, space, model=model, numbers=list(numbers)))

    def vector_search(self) -> PgvectorSearch | None:
        """Return the engine's own vector search; None if the caller has to compare the vectors."""
        return None

    # -- the engine ------------------------------------------------------------------------------

    @abstractmethod
    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """Run a complete statement that only reads, and return its rows."""

    def _select(
        self, statement: str, space: StreamKey, where: MemoryFilter | None = None, **values: Any
    ) -> list[Any]:
        """Run a statement of `sql.py` for a namespace, with a filter if it has one."""
        values |= {"tenant": space.tenant, "id": space.id}
        statement = self._complete(statement)
        if where is not None:
            condition, more = self._dialect.build_condition(where)
            statement = statement.format(condition=condition)
            values |= more
        return self._rows(statement, values)

    def _complete(self, statement: str) -> str:
        return sql.complete_statement(self._dialect, statement)

    def repair(self, problem: IndexUnusable) -> bool:
        """Become empty and usable again; return False if that is impossible."""
        return False

    def close(self) -> None:  # noqa: B027 - an index in a server's database has nothing to release
        """Release everything."""
