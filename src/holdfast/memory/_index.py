"""What every index of memories does. It is derived from the streams, follows them, and can be dropped at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ..backends import StreamKey
from ..errors import Unavailable
from ._fold import Changes
from ._model import Doc, Position, Where


class Unusable(Unavailable):
    """The index is damaged, or cannot be where it was meant to be; `error` says more. Nothing is lost: it can be made anew."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(f"{what}; it is made from the stream of events, so nothing is lost: open the store again")
        self.what, self.error = what, error


class Found(NamedTuple):
    """What matches a question, best first, and how common its terms are: for ranking, which is the same on all engines."""

    docs: Sequence[Doc]
    total: int
    average: float
    """Of the number of terms that a memory has."""
    frequency: Mapping[str, int]
    """In how many memories each term is."""


class Known(NamedTuple):
    """Memories that were asked for by id or key, and the other ids that led to some of them."""

    docs: Sequence[Doc]
    aliases: Mapping[str, int]


class Around(NamedTuple):
    """The neighbours of a memory in its source, nearest first."""

    before: Sequence[Doc]
    after: Sequence[Doc]


class Counts(NamedTuple):
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


class VectorPage(NamedTuple):
    """Vectors in the order of their places. `filling` changes when all were dropped: then places begin anew."""

    filling: bytes
    vectors: Sequence[Vector]


class Index(Protocol):
    """Memories of many namespaces (`space`: the stream they come from). Called from any thread."""

    def position(self, space: StreamKey) -> Position | None:
        """How far the stream was followed; None if not at all."""

    def known(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> Known:
        """The memories that have one of these ids, or one of these keys."""

    def write(self, space: StreamKey, before: Position | None, after: Position, changes: Changes) -> bool:
        """Make changes, all or none, and note the position. False, and nothing done, if it is not at `before` any more."""

    def search(self, space: StreamKey, terms: Mapping[str, float], where: Where, limit: int) -> Found:
        """The memories that have any of these terms, the most promising first."""

    def around(self, space: StreamKey, docs: Sequence[Doc], reach: int, where: Where) -> list[Around]:
        """What stands just before and after each of these memories in its source, by time: up to `reach` on each side."""

    def page(self, space: StreamKey, after: int, limit: int, where: Where) -> Sequence[Doc]:
        """Memories in the order of their numbers, beyond `after`. A page may be shorter; only an empty one is the end."""

    def counts(self, space: StreamKey, now: float) -> Counts:
        """How many there are, from how many sources, and of what time."""

    def clear(self, space: StreamKey, life: bytes) -> None:
        """Forget all of a namespace, unless it is of another life of the stream by now."""

    def close(self) -> None:
        """Release everything."""


@runtime_checkable
class VectorIndex(Index, Protocol):
    """An index that also keeps vectors: one for each memory and model, made from its text.

    They are derived like the rest. A vector goes when its memory is forgotten or its text changes (in `write`), and with the
    namespace (in `clear`). A namespace keeps the vectors of the two newest models, so that programs of an old and a new release can
    run side by side; those of older ones are dropped when a third begins.
    """

    def models(self, space: StreamKey) -> tuple[int, Mapping[str, int]]:
        """How many memories there are, and how many of them have a vector of each model; the newest model last.

        Fast, without counting: it is asked before each recall.
        """

    def without_vector(self, space: StreamKey, model: str, after: int, limit: int) -> Sequence[Doc]:
        """Memories that have no vector of this model's yet, in the order of their numbers, beyond `after`."""

    def put_vectors(self, space: StreamKey, model: str, made: Sequence[tuple[Doc, bytes]]) -> None:
        """Keep vectors, all or none. Left out: what is gone or has another text by now, and what has its vector already."""

    def vectors(self, space: StreamKey, model: str, after: int, limit: int) -> VectorPage:
        """Those whose place is beyond `after`. Only an empty page is the end."""

    def vectors_at(self, space: StreamKey, model: str, places: Sequence[int]) -> Sequence[Vector]:
        """Those that are still at one of these places, in any order. Fast: asked for hundreds of them in each recall."""

    def vectors_of(self, space: StreamKey, model: str, numbers: Sequence[int]) -> Mapping[int, bytes]:
        """The vectors of these memories, by number, as far as they have one."""

    def numbers(self, space: StreamKey, where: Where) -> Sequence[int]:
        """The numbers of all memories that are asked for, ascending."""

    def docs(self, space: StreamKey, numbers: Sequence[int], where: Where) -> Sequence[Doc]:
        """Those of these memories that are asked for, in any order."""
