"""An index that goes on where another one cannot: damaged, read-only, or not allowed to be where it was meant to be.

An index is derived, so none of this loses anything: it is made anew, in the same place if possible, or else in the next one,
and catches up with the stream before it answers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar, cast

from .._log import Log
from ..backends import StreamKey
from ._fold import Changes
from ._following import catch_up
from ._index import Around, Comparing, Counts, Found, Index, Known, Unusable, Vector, VectorIndex, VectorPage
from ._model import Doc, Position, Where

logger = logging.getLogger("holdfast")

T = TypeVar("T")


class Mendable(Index, Protocol):
    """An index that knows whether it can be made anew where it is."""

    def mend(self, problem: Unusable) -> bool:
        """Be empty, and usable again. False if that is not possible."""


def sturdy(log: Log, places: Sequence[Callable[[], Mendable]]) -> Index:
    """The index in the first of these places that works. They are tried when they are needed, in this order."""
    first = places[0]()
    kind = SturdyVectorIndex if isinstance(first, VectorIndex) else SturdyIndex
    return kind(log, first, places[1:])


class SturdyIndex:
    """Passes on to an index, and replaces it by the next if it cannot be used."""

    def __init__(self, log: Log, first: Mendable, others: Sequence[Callable[[], Mendable]]) -> None:
        self._log, self._index, self._others = log, first, list(others)
        self._mended = False
        self._lock = threading.Lock()

    def position(self, space: StreamKey) -> Position | None:
        return self._do(lambda index: index.position(space))

    def known(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> Known:
        return self._ask(space, lambda index: index.known(space, ids, keys))

    def write(self, space: StreamKey, before: Position | None, after: Position, changes: Changes) -> bool:
        return self._do(lambda index: index.write(space, before, after, changes))

    def search(self, space: StreamKey, terms: Mapping[str, float], where: Where, limit: int) -> Found:
        return self._ask(space, lambda index: index.search(space, terms, where, limit))

    def around(self, space: StreamKey, docs: Sequence[Doc], reach: int, where: Where) -> list[Around]:
        return self._ask(space, lambda index: index.around(space, docs, reach, where))

    def page(self, space: StreamKey, after: int, limit: int, where: Where) -> Sequence[Doc]:
        return self._ask(space, lambda index: index.page(space, after, limit, where))

    def counts(self, space: StreamKey, now: float) -> Counts:
        return self._ask(space, lambda index: index.counts(space, now))

    def expired(self, space: StreamKey, before: float, limit: int) -> Sequence[Doc]:
        return self._ask(space, lambda index: index.expired(space, before, limit))

    def clear(self, space: StreamKey, at: Position) -> None:
        self._do(lambda index: index.clear(space, at))

    def replace(self, space: StreamKey, by: StreamKey) -> bool:
        return self._do(lambda index: index.replace(space, by))

    def close(self) -> None:
        self._index.close()

    def _do(self, action: Callable[[Index], T], renewed: Callable[[], object] | None = None) -> T:
        """Do something, with another index if this one cannot; `renewed` is called before."""
        while True:
            index = self._index
            try:
                return action(index)
            except Unusable as problem:
                self._renew(index, problem)
            if renewed is not None:
                renewed()

    def _ask(self, space: StreamKey, action: Callable[[Index], T]) -> T:
        """The same for questions: a new index has to follow the stream before it can answer."""
        return self._do(action, lambda: catch_up(self._log, self, space))

    def _renew(self, index: Mendable, problem: Unusable) -> None:
        with self._lock:
            if index is not self._index:
                return  # another thread was faster
            if not self._mended and index.mend(problem):
                self._mended = True
                logger.warning("%s; made anew", problem.what)
            elif self._others:
                index.close()
                self._index, self._mended = self._others.pop(0)(), False
                logger.warning("%s; using another place until this store is opened again", problem.what)
            else:
                raise problem


class SturdyVectorIndex(SturdyIndex):
    """The same for indexes that keep vectors."""

    @property
    def served(self) -> bool:
        return _vectors(self._index).served

    def models(self, space: StreamKey) -> tuple[int, Mapping[str, int]]:
        return self._ask(space, lambda index: _vectors(index).models(space))

    def without_vector(self, space: StreamKey, model: str, after: int, limit: int, now: float) -> Sequence[Doc]:
        return self._ask(space, lambda index: _vectors(index).without_vector(space, model, after, limit, now))

    def put_vectors(self, space: StreamKey, model: str, made: Sequence[tuple[Doc, bytes]]) -> None:
        self._ask(space, lambda index: _vectors(index).put_vectors(space, model, made))

    def vectors(self, space: StreamKey, model: str, after: int, limit: int) -> VectorPage:
        return self._ask(space, lambda index: _vectors(index).vectors(space, model, after, limit))

    def vectors_at(self, space: StreamKey, model: str, places: Sequence[int]) -> Sequence[Vector]:
        return self._ask(space, lambda index: _vectors(index).vectors_at(space, model, places))

    def vectors_of(self, space: StreamKey, model: str, numbers: Sequence[int]) -> Mapping[int, bytes]:
        return self._ask(space, lambda index: _vectors(index).vectors_of(space, model, numbers))

    def numbers(self, space: StreamKey, where: Where) -> Sequence[int]:
        return self._ask(space, lambda index: _vectors(index).numbers(space, where))

    def docs(self, space: StreamKey, numbers: Sequence[int], where: Where) -> Sequence[Doc]:
        return self._ask(space, lambda index: _vectors(index).docs(space, numbers, where))

    def comparing(self) -> Comparing | None:
        return self._do(lambda index: _vectors(index).comparing())


def _vectors(index: Index) -> VectorIndex:
    """All places of an index keep vectors if the first one does."""
    return cast("VectorIndex", index)
