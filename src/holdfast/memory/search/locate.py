"""Choose where the index of a store is: with the data if the engine can host it, or locally.

If an index is damaged, read-only or not permitted, nothing is lost: it is rebuilt, in the same
location if possible, otherwise in the next one, and catches up with the stream before it answers.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, cast

from ...backends import Backend, IndexFile, IndexHost, IndexLocation
from ...log.log import Log
from .catch_up import catch_up
from .index import IndexUnusable, MemoryIndex
from .sqlite import SQLiteIndex, has_tables
from .sqlite_file import is_foreign_file

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

    def repair(self, problem: IndexUnusable) -> bool:
        self._replace_index(self._index, problem)
        return True

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


logger = logging.getLogger("holdfast")

IN_MEMORY: Final = "memory"


def check_index_path(path: str) -> None:
    """Raise ValueError if this path can't be used for an index."""
    if path == IN_MEMORY or not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise ValueError(
            f"index must be the path of an SQLite file, got {path}, which is not a file"
        )
    if os.path.getsize(path) and is_foreign_file(path):
        raise ValueError(
            f"index must be the path of a memory index or a new file, got {path}, which is neither;"
            " choose another path, or none to keep the index with the store"
        )


def open_index(log: Log, path: str | None) -> MemoryIndex:
    """Open the index of a store: at `path`, or in the backend's first location that works."""
    if path == IN_MEMORY:
        return SQLiteIndex()
    openers: list[Callable[[], MemoryIndex]]
    if path is not None:
        openers = [lambda: SQLiteIndex(os.path.abspath(path), user_file=True)]
    else:
        host = log.backend
        locations = host.index_locations() if isinstance(host, IndexHost) else ()
        openers = [partial(_open_location, host, location) for location in locations]
    # `FallbackIndex` gets the methods of `MemoryIndex` at run time.
    return cast("MemoryIndex", FallbackIndex(log, [*openers, SQLiteIndex]))


def open_stored_indexes(log: Log, path: str | None) -> Iterator[MemoryIndex]:
    """Yield the stored indexes of a store, for reading only. The caller closes them.

    Raises the driver's error if a file is damaged.
    """
    if path == IN_MEMORY:
        return
    backend = log.backend
    locations: Sequence[IndexLocation] = ()
    if path is not None:
        locations = [IndexFile(os.path.abspath(path))]
    elif isinstance(backend, IndexHost):
        locations = backend.index_locations()
    for location in locations:
        if location == "cache":
            location = IndexFile(_cache_path(backend))
        if isinstance(location, IndexFile):
            if os.path.exists(location.path) and has_tables(location.path):
                yield SQLiteIndex(location.path, shared=location.shared, readonly=True)
        else:
            from .postgres import PostgresIndex

            index = PostgresIndex(location)
            if index.has_tables():
                yield index


def _open_location(backend: Backend, location: IndexLocation) -> MemoryIndex:
    if location == "cache":
        return _open_cached(backend)
    if isinstance(location, IndexFile):
        return SQLiteIndex(location.path, shared=location.shared)
    from .postgres import PostgresIndex

    return PostgresIndex(location)


def _open_cached(backend: Backend) -> MemoryIndex:
    """Open an index in the user's cache directory, one file per store; in memory if that fails."""
    path = _cache_path(backend)
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError("others can write to it")
    except OSError as error:
        logger.warning(
            "cannot keep the memory index in %s (%s); using an index in memory",
            folder,
            type(error).__name__,
        )
        return SQLiteIndex()
    return SQLiteIndex(path)


def _cache_path(backend: Backend) -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.sha256(backend.describe().location.encode()).hexdigest()[:32]
    return os.path.join(home, "holdfast", f"{digest}.db")
