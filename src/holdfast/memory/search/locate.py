"""Choose where the index of a store is: with the data if the engine can host it, else locally."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from ...backends import Backend, IndexFile, IndexHost, IndexLocation
from ...log.log import Log
from .fallback import FallbackIndex
from .index import MemoryIndex
from .sqlite import SQLiteIndex
from .sqlite_file import is_foreign_file

logger = logging.getLogger("holdfast")

IN_MEMORY: Final = "memory"


def check_index_path(path: str) -> None:
    """Raise ValueError if this path is not that of an index."""
    if path == IN_MEMORY or not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise ValueError(
            f"index must be the path of an SQLite file, got {path}, which is not a file"
        )
    if os.path.getsize(path) and is_foreign_file(path):
        raise ValueError(
            f"index must be the path of a memory index or a new file, got {path}, which is another"
            " file; choose another path, or none to keep the index with the store"
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
    # It gets the methods of `MemoryIndex` at run time.
    return cast("MemoryIndex", FallbackIndex(log, [*openers, SQLiteIndex]))


def _open_location(backend: Backend, location: IndexLocation) -> MemoryIndex:
    if location == "cache":
        return _open_cached(backend)
    if isinstance(location, IndexFile):
        return SQLiteIndex(location.path, shared=location.shared)
    from .postgres import PostgresIndex

    return PostgresIndex(location)


def _open_cached(backend: Backend) -> MemoryIndex:
    """Open an index in the user's cache directory, one file per store; in memory if that fails."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(home, "holdfast")
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
    digest = hashlib.sha256(backend.describe().location.encode()).hexdigest()[:32]
    return SQLiteIndex(os.path.join(folder, f"{digest}.db"))
