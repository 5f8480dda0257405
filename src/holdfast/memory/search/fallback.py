"""An index that falls back to another one if it is damaged, read-only or not permitted.

An index is derived, so nothing is lost: it is rebuilt, in the same location if possible, or else in
the next one, and catches up with the stream before it answers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from ...log.log import Log
from .catch_up import catch_up
from .index import IndexUnusable, MemoryIndex

logger = logging.getLogger("holdfast")

_AFTER_CATCH_UP: Final = (
    "lookup", "search", "neighbours", "page", "counts", "list_expired", "models", "without_vector",
    "put_vectors", "vectors", "vectors_at", "vectors_of", "numbers", "docs",
)  # fmt: skip
"""Methods that a new index can answer only after it has followed the stream."""
_AS_IT_IS: Final = ("position", "write", "clear", "replace", "vector_search")


class FallbackIndex:
    """Forwards to an index, and replaces it with the next one if it is unusable."""

    def __init__(self, log: Log, openers: Sequence[Callable[[], MemoryIndex]]) -> None:
        self._log, self._index, self._others = log, openers[0](), list(openers[1:])
        self._repaired = False
        self._lock = threading.Lock()

    @property
    def is_remote(self) -> bool:
        return self._index.is_remote

    def close(self) -> None:
        self._index.close()

    def _replace_index(self, index: MemoryIndex, problem: IndexUnusable) -> None:
        with self._lock:
            if index is not self._index:
                return  # another thread has replaced it
            if not self._repaired and index.repair(problem):
                self._repaired = True
                logger.warning("%s; rebuilt it", problem.what)
            elif self._others:
                index.close()
                self._index, self._repaired = self._others.pop(0)(), False
                logger.warning(
                    "%s; using another location until the store is reopened", problem.what
                )
            else:
                raise problem


def _make_forwarder(name: str, *, catches_up: bool) -> Callable[..., Any]:
    def method(self: FallbackIndex, *args: Any) -> Any:
        while True:
            index = self._index
            try:
                return getattr(index, name)(*args)
            except IndexUnusable as problem:
                self._replace_index(index, problem)
            if catches_up:
                catch_up(self._log, cast("MemoryIndex", self), args[0])

    return method


for _name in (*_AFTER_CATCH_UP, *_AS_IT_IS):
    setattr(FallbackIndex, _name, _make_forwarder(_name, catches_up=_name in _AFTER_CATCH_UP))
