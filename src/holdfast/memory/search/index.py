"""What every index of memories does. It is derived from the streams, follows them, and can be dropped at any time."""

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
    """The index is damaged, or cannot be where it was meant to be; `error` says more. Nothing is lost: it can be made anew."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(
            f"{what}; it is made from the stream of events, so nothing is lost: open the store again"
        )
        self.what, self.error = what, error


class Matches(NamedTuple):
    """What matches a question, best first, and how common its terms are: for ranking, which is the same on all engines."""

    docs: Sequence[MemoryDoc]
    total: int
    average: float
    """Of the number of terms that a memory has."""
    frequency: Mapping[str, int]
    """In how many memories each term is."""


class KnownMemories(NamedTuple):
    """Memories that were asked for by id or key, and the other ids that led to some of them."""

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
    """What an embedder made of a memory. `place` counts in the order of writing, and is never used twice."""

    place: int
    number: int
    values: bytes
    """float32, little endian, of length 1; or all 0, where there is nothing to compare."""


class Nearest(NamedTuple):
    """Memories and how like the question each is, nearest first. `common`: how like it any memory is, on average."""

    docs: Sequence[tuple[MemoryDoc, float]]
    common: float


class VectorPage(NamedTuple):
    """Vectors in the order of their places. `filling` changes when all were dropped: then places begin anew."""

    filling: bytes
    vectors: Sequence[Vector]


MODELS: Final = 2
"""So many models have vectors in a namespace: the one that is in use, and the one before or after it."""


class MemoryIndex(Protocol):
    """Memories of many namespaces (`space`: the stream they come from), and vectors of their texts. Called from any thread.

    There is one vector for each memory and model. It goes when its memory is forgotten or its text changes (in `write`), and with
    the namespace (in `clear`). A namespace keeps the vectors of the two newest models, so that programs of an old and a new
    release can run side by side; those of older ones are dropped when a third begins.
    """

    def position(self, space: StreamKey) -> IndexPosition | None:
        """How far the stream was followed; None if not at all."""

    def known(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> KnownMemories:
        """The memories that have one of these ids, or one of these keys."""

    def write(
        self,
        space: StreamKey,
        before: IndexPosition | None,
        after: IndexPosition,
        changes: IndexChanges,
    ) -> bool:
        """Make changes, all or none, and note the position. False, and nothing done, if it is not at `before` any more."""

    def search(
        self, space: StreamKey, terms: Mapping[str, float], where: MemoryFilter, limit: int
    ) -> Matches:
        """The memories that have any of these terms, the most promising first."""

    def around(
        self, space: StreamKey, docs: Sequence[MemoryDoc], reach: int, where: MemoryFilter
    ) -> list[Neighbours]:
        """What stands just before and after each of these memories in its source, by time: up to `reach` on each side."""

    def page(
        self, space: StreamKey, after: int, limit: int, where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        """Memories in the order of their numbers, beyond `after`. A page may be shorter; only an empty one is the end."""

    def counts(self, space: StreamKey, now: float) -> IndexCounts:
        """How many there are, from how many sources, and of what time."""

    def expired(self, space: StreamKey, before: float, limit: int) -> Sequence[MemoryDoc]:
        """Memories whose time was over before this."""

    def clear(self, space: StreamKey, at: IndexPosition) -> None:
        """Forget all of a namespace, unless it is at another position by now."""

    def replace(self, space: StreamKey, by: StreamKey) -> bool:
        """Put what was followed under the name `by` in the place of a namespace, at once for all who ask.

        False, and nothing done, if the namespace has followed the same life of the stream further. True too if there is no `by`:
        somebody else was faster.
        """

    @property
    def served(self) -> bool:
        """Whether a server answers: then two questions at the same time take less than one after the other."""

    def models(self, space: StreamKey) -> tuple[int, Mapping[str, int]]:
        """How many memories there are, and how many of them have a vector of each model; the newest model last.

        Fast, without counting: it is asked before each recall.
        """

    def without_vector(
        self, space: StreamKey, model: str, after: int, limit: int, now: float
    ) -> Sequence[MemoryDoc]:
        """Memories that have no vector of this model's yet, and have not expired, in the order of their numbers, beyond `after`."""

    def put_vectors(
        self, space: StreamKey, model: str, made: Sequence[tuple[MemoryDoc, bytes]]
    ) -> None:
        """Keep vectors, all or none. Left out: what is gone or has another text by now, and what has its vector already."""

    def vectors(self, space: StreamKey, model: str, after: int, limit: int) -> VectorPage:
        """Those whose place is beyond `after`. Only an empty page is the end."""

    def vectors_at(self, space: StreamKey, model: str, places: Sequence[int]) -> Sequence[Vector]:
        """Those that are still at one of these places, in any order. Fast: asked for hundreds of them in each recall."""

    def vectors_of(
        self, space: StreamKey, model: str, numbers: Sequence[int]
    ) -> Mapping[int, bytes]:
        """The vectors of these memories, by number, as far as they have one."""

    def numbers(self, space: StreamKey, where: MemoryFilter) -> Sequence[int]:
        """The numbers of all memories that are asked for, ascending."""

    def docs(
        self, space: StreamKey, numbers: Sequence[int], where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        """Those of these memories that are asked for, in any order."""

    def comparing(self) -> SupportsVectorSearch | None:
        """What finds the nearest vectors where they are kept. None: whoever asks reads them, and compares them itself."""

    def close(self) -> None:
        """Release everything."""


class SupportsVectorSearch(Protocol):
    """An engine that compares vectors by itself."""

    name: str

    def takes(self, dimension: int) -> bool:
        """Whether it can compare vectors of this length."""

    def prepared(self, space: StreamKey, model: str, dimension: int) -> PreparedVectors:
        """The vectors of a model, with all that were put before."""


class PreparedVectors(Protocol):
    """The vectors of one namespace and model, where they are kept."""

    @property
    def count(self) -> int:
        """How many there are."""

    def nearest(self, question: Floats, where: MemoryFilter, limit: int, enough: int) -> Nearest:
        """Those of the memories that are asked for, nearest first: at least `enough`, if there are so many."""
