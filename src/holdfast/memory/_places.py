"""Where the index of a store is: with the data, where the engine can hold one; otherwise on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._log import Log
from ..backends import StreamKey
from ..backends.sqlite import SQLiteBackend
from ._following import Follower
from ._index import Index
from ._sqlite_index import SQLiteIndex

if TYPE_CHECKING:
    from ._filling import Vectors


class Followers:
    """The index of a store, and who follows which stream."""

    def __init__(self, log: Log) -> None:
        self._log, self._index = log, _index_of(log)
        self._following: dict[StreamKey, Follower] = {}

    def of(self, space: StreamKey) -> Follower:
        found = self._following.get(space)
        if found is None:
            found = self._following.setdefault(space, Follower(self._log, self._index, space))
        return found

    def close(self) -> None:
        self._index.close()


class _Held:
    """The vectors that a store holds in memory: nothing to close."""

    def __init__(self) -> None:
        from ._filling import Vectors

        self.vectors = Vectors()

    def close(self) -> None:
        """Nothing."""


def follower_of(log: Log, space: StreamKey) -> Follower:
    """Who follows a stream: one for all that use the log, closed with it."""
    return log.attached("memory", lambda: Followers(log)).of(space)


def vectors_of(log: Log) -> Vectors:
    """What is held of vectors: one for all that use the log. Needs numpy."""
    return log.attached("vectors", _Held).vectors


def _index_of(log: Log) -> Index:
    backend = log.backend
    return SQLiteIndex(backend._path if isinstance(backend, SQLiteBackend) else ":memory:")
