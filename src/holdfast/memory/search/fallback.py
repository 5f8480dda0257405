"""An index that goes on where another one cannot: damaged, read-only, or not allowed to be where it was meant to be.

An index is derived, so none of this loses anything: it is made anew, in the same place if possible, or else in the next one,
and catches up with the stream before it answers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from ...log.log import Log
from .catch_up import catch_up
from .index import IndexUnusable, MemoryIndex

logger = logging.getLogger("holdfast")

_ASKED: Final = (
    "known", "search", "around", "page", "counts", "expired", "models", "without_vector", "put_vectors", "vectors",
    "vectors_at", "vectors_of", "numbers", "docs",
)  # fmt: skip
"""What a new index can only do after it has followed the stream."""
_DONE: Final = ("position", "write", "clear", "replace", "comparing")


class Mendable(MemoryIndex, Protocol):
    """An index that knows whether it can be made anew where it is."""

    def mend(self, problem: IndexUnusable) -> bool:
        """Be empty, and usable again. False if that is not possible."""


def with_fallback(log: Log, places: Sequence[Callable[[], Mendable]]) -> MemoryIndex:
    """The index in the first of these places that works. They are tried when they are needed, in this order."""
    return cast("MemoryIndex", FallbackIndex(log, places))


class FallbackIndex:
    """Passes on to an index, and replaces it by the next if it cannot be used."""

    def __init__(self, log: Log, places: Sequence[Callable[[], Mendable]]) -> None:
        self._log, self._index, self._others = log, places[0](), list(places[1:])
        self._mended = False
        self._lock = threading.Lock()

    @property
    def served(self) -> bool:
        return self._index.served

    def close(self) -> None:
        self._index.close()

    def _renew(self, index: Mendable, problem: IndexUnusable) -> None:
        with self._lock:
            if index is not self._index:
                return  # another thread was faster
            if not self._mended and index.mend(problem):
                self._mended = True
                logger.warning("%s; made anew", problem.what)
            elif self._others:
                index.close()
                self._index, self._mended = self._others.pop(0)(), False
                logger.warning(
                    "%s; using another place until this store is opened again", problem.what
                )
            else:
                raise problem


def _passed_on(name: str, *, asked: bool) -> Callable[..., Any]:
    def method(self: FallbackIndex, *args: Any) -> Any:
        while True:
            index = self._index
            try:
                return getattr(index, name)(*args)
            except IndexUnusable as problem:
                self._renew(index, problem)
            if asked:
                catch_up(self._log, cast("MemoryIndex", self), args[0])

    return method


for _name in (*_ASKED, *_DONE):
    setattr(FallbackIndex, _name, _passed_on(_name, asked=_name in _ASKED))
