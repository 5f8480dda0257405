"""The interface of an index of memories, and its result types.

An index is derived from the streams and follows them, so it can be dropped at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ...backends import StreamKey
from ...errors import Unavailable
from ..fold import IndexChanges
from ..model import IndexPosition, MemoryDoc, MemoryFilter

if TYPE_CHECKING:
    from ..vectors.embedding import Floats


class IndexUnusable(Unavailable):
    """The index is damaged or can't be written; `error` is the cause. No memory is lost."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(
            f"{what}; no memory is lost, because it is rebuilt from the event log: reopen the store"
        )
        self.what, self.error = what, error


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

    `common`: the average similarity of all memories.
    """

    docs: Sequence[tuple[MemoryDoc, float]]
    common: float


class VectorPage(NamedTuple):
    """Vectors by place. `filling` changes when all were dropped and places start over."""

    filling: bytes
    vectors: Sequence[Vector]


MAX_MODELS: Final = 2
"""Models with vectors in a namespace: the current one, and the one before or after it."""


class MemoryIndex(Protocol):
    """Memories of many namespaces and their vectors. Called from any thread.

    `space` is the stream of the namespace. A memory has one vector per model. `write` drops it when
    its memory is forgotten or its text changes, and `clear` when the namespace goes. A namespace
    keeps the vectors of the two newest models, so that an old and a new release of an application
    can run side by side.
    """

    def position(self, space: StreamKey) -> IndexPosition | None:
        """Return the position up to which the stream was followed; None if it was not."""

    def lookup(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> KnownMemories:
        """Return the memories with one of these ids or one of these keys."""

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

    def search(
        self, space: StreamKey, terms: Mapping[str, float], where: MemoryFilter, limit: int
    ) -> Matches:
        """Return the memories with any of these terms, the most promising first."""

    def neighbours(
        self, space: StreamKey, docs: Sequence[MemoryDoc], reach: int, where: MemoryFilter
    ) -> list[Neighbours]:
        """Return up to `reach` memories before and after each of these in its source, by time."""

    def page(
        self, space: StreamKey, after: int, limit: int, where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        """Return memories by number, beyond `after`. Only an empty page is the end."""

    def counts(self, space: StreamKey, now: float) -> IndexCounts:
        """Return the number of memories and sources, and the oldest and newest time."""

    def list_expired(self, space: StreamKey, before: float, limit: int) -> Sequence[MemoryDoc]:
        """Return memories that expired before a time."""

    def clear(self, space: StreamKey, at: IndexPosition) -> None:
        """Remove a namespace, unless it is no longer at this position."""

    def replace(self, space: StreamKey, by: StreamKey) -> bool:
        """Replace a namespace with the one that was built under the name `by`, atomically.

        Returns False and does nothing if the namespace has followed the same incarnation of the
        stream further. Returns True if there is no `by`: another process has replaced it.
        """

    @property
    def is_remote(self) -> bool:
        """Whether a server answers: then concurrent requests are faster than sequential ones."""

    def models(self, space: StreamKey) -> tuple[int, Mapping[str, int]]:
        """Return the number of memories, and of vectors per model, the newest model last.

        Must be fast: it is called before each recall.
        """

    def without_vector(
        self, space: StreamKey, model: str, after: int, limit: int, now: float
    ) -> Sequence[MemoryDoc]:
        """Return unexpired memories without a vector of this model, by number, beyond `after`."""

    def put_vectors(
        self, space: StreamKey, model: str, vectors: Sequence[tuple[MemoryDoc, bytes]]
    ) -> None:
        """Store vectors atomically.

        Skips memories that are gone, have another text by now, or have a vector already.
        """

    def vectors(self, space: StreamKey, model: str, after: int, limit: int) -> VectorPage:
        """Return vectors whose place is beyond `after`. Only an empty page is the end."""

    def vectors_at(self, space: StreamKey, model: str, places: Sequence[int]) -> Sequence[Vector]:
        """Return the vectors at these places, in any order. Must be fast: recall reads hundreds."""

    def vectors_of(
        self, space: StreamKey, model: str, numbers: Sequence[int]
    ) -> Mapping[int, bytes]:
        """Return the vectors of these memories by number, as far as they have one."""

    def numbers(self, space: StreamKey, where: MemoryFilter) -> Sequence[int]:
        """Return the numbers of all memories that match a filter, ascending."""

    def docs(
        self, space: StreamKey, numbers: Sequence[int], where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        """Return those of these memories that match a filter, in any order."""

    def vector_search(self) -> SupportsVectorSearch | None:
        """Return the engine's own vector search; None if the caller has to compare the vectors."""

    def repair(self, problem: IndexUnusable) -> bool:
        """Become empty and usable again; return False if that is impossible."""

    def close(self) -> None:
        """Release everything."""


class SupportsVectorSearch(Protocol):
    """An engine that compares vectors itself."""

    name: str

    def supports(self, dimension: int) -> bool:
        """Whether it can compare vectors of this dimension."""

    def prepare(self, space: StreamKey, model: str, dimension: int) -> PreparedVectors:
        """Return the vectors of a model, including all that were put before."""


class PreparedVectors(Protocol):
    """The vectors of one namespace and model in the engine."""

    @property
    def count(self) -> int:
        """The number of vectors."""

    def nearest(self, question: Floats, where: MemoryFilter, limit: int, enough: int) -> Nearest:
        """Return the nearest matching memories, nearest first: at least `enough`, if there are."""
