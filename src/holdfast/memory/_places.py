"""Where the index of a store is: with the data, where the engine can hold one; otherwise on this machine."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from .._log import Log
from ..backends import Backend, StreamKey
from ..backends.sqlite import SQLiteBackend
from ._following import Follower
from ._index import Index
from ._sqlite_file import is_stranger
from ._sqlite_index import SQLiteIndex
from ._sturdy import Mendable, sturdy

if TYPE_CHECKING:
    from ._filling import Vectors

logger = logging.getLogger("holdfast")

IN_MEMORY: Final = "memory"
FILE: Final = "memory.db"
"""The index beside a store in files, which has nothing else of this name."""
MOST_FOLLOWED: Final = 1_000
"""Namespaces of which a process keeps in mind how far it has followed them."""


class Followers:
    """The index of a store, and who follows which stream."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._index: Index | None = None
        self._following: OrderedDict[StreamKey, Follower] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, space: StreamKey) -> Follower:
        """One for each namespace that was used lately. What is forgotten with one is found again in the index."""
        index = self._opened()
        with self._lock:
            found = self._following.get(space)
            if found is None:
                found = self._following[space] = Follower(self._log, index, space)
                if len(self._following) > MOST_FOLLOWED:
                    self._following.popitem(last=False)
            self._following.move_to_end(space)
        return found

    def _opened(self) -> Index:
        # Not when it is made: the log makes it while others wait, and a server may take its time to answer.
        with self._lock:
            if self._index is None:
                self._index = _index_of(self._log)
            return self._index

    def close(self) -> None:
        if self._index is not None:
            self._index.close()


class _Held:
    """The vectors that a store holds in memory, and the threads that ask for more."""

    def __init__(self) -> None:
        from ._filling import Vectors

        self.vectors = Vectors()

    def close(self) -> None:
        self.vectors.close()


def follower_of(log: Log, space: StreamKey) -> Follower:
    """Who follows a stream: one for all that use the log, closed with it."""
    return log.attached("memory", lambda: Followers(log)).of(space)


def vectors_of(log: Log) -> Vectors:
    """What is held of vectors: one for all that use the log. Needs numpy."""
    return log.attached("vectors", _Held).vectors


def check_index(path: str) -> None:
    """`ValueError` if this path cannot be that of an index: there is something else."""
    if path == IN_MEMORY or not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise ValueError(f"index is the path of an SQLite file of its own; {path} is not a file")
    if os.path.getsize(path) and is_stranger(path):
        raise ValueError(
            f"index is the path of a file of its own, and {path} is no index of memories; give another path,"
            " or none to have the index where the store is"
        )


def _index_of(log: Log) -> Index:
    backend, wanted = log.backend, log.index_at
    if wanted == IN_MEMORY:
        return SQLiteIndex()
    if wanted is not None:
        return sturdy(log, [lambda: SQLiteIndex(os.path.abspath(wanted), given=True), SQLiteIndex])
    return sturdy(log, [*_places_of(backend), SQLiteIndex])


def _places_of(backend: Backend) -> list[Callable[[], Mendable]]:
    """Where the index of a store can be, the best first. Memory, which is the last resort, is not among them."""
    if isinstance(backend, SQLiteBackend):
        return [lambda: SQLiteIndex(backend._path, shared=True)]
    if _is_a(backend, "files", "FilesBackend"):
        return [lambda: SQLiteIndex(os.path.join(cast("Any", backend)._root, FILE))]
    if _is_a(backend, "postgres", "PostgresBackend"):
        return [lambda: _postgres_index(backend), lambda: _cached(backend)]
    away = ("redis", "RedisBackend"), ("dynamodb", "DynamoDBBackend"), ("s3", "S3Backend")
    return [lambda: _cached(backend)] if any(_is_a(backend, *one) for one in away) else []


def _is_a(backend: Backend, module: str, name: str) -> bool:
    """Whether a backend is of this class, without importing it: that would need drivers that may not be there."""
    kind = getattr(sys.modules.get(f"holdfast.backends.{module}"), name, None)
    return kind is not None and isinstance(backend, kind)


def _postgres_index(backend: Any) -> Mendable:
    from ._postgres_index import PostgresIndex

    return PostgresIndex(backend)


def _cached(backend: Backend) -> Mendable:
    """An index in the user's cache directory, one file for each store; in memory if there can be none."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(home, "holdfast")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError("others can write to it")
    except OSError as error:
        logger.warning("no index of memories can be kept in %s (%s); it is in memory", folder, type(error).__name__)
        return SQLiteIndex()
    digest = hashlib.sha256(backend.describe().location.encode()).hexdigest()[:32]
    return SQLiteIndex(os.path.join(folder, f"{digest}.db"))
