"""Where the index of a store is: with the data, where the engine can hold one; otherwise on this machine."""

from __future__ import annotations

import hashlib
import logging
import os
from functools import partial
from typing import Final

from ...backends import Backend, IndexFile, IndexHost, IndexPlace
from ...log.log import Log
from .fallback import Mendable, with_fallback
from .index import MemoryIndex
from .sqlite import SQLiteIndex
from .sqlite_file import is_stranger

logger = logging.getLogger("holdfast")

IN_MEMORY: Final = "memory"


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


def open_index(log: Log, wanted: str | None) -> MemoryIndex:
    """The index of a store: where a user wants it, or else in the first of the backend's places that works."""
    if wanted == IN_MEMORY:
        return SQLiteIndex()
    if wanted is not None:
        return with_fallback(
            log, [lambda: SQLiteIndex(os.path.abspath(wanted), given=True), SQLiteIndex]
        )
    host = log.backend
    places = host.index_places() if isinstance(host, IndexHost) else ()
    return with_fallback(log, [*(partial(_index_in, host, place) for place in places), SQLiteIndex])


def _index_in(backend: Backend, place: IndexPlace) -> Mendable:
    if place == "cache":
        return _cached(backend)
    if isinstance(place, IndexFile):
        return SQLiteIndex(place.path, shared=place.shared)
    from .postgres import PostgresIndex

    return PostgresIndex(place)


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
        logger.warning(
            "no index of memories can be kept in %s (%s); it is in memory",
            folder,
            type(error).__name__,
        )
        return SQLiteIndex()
    digest = hashlib.sha256(backend.describe().location.encode()).hexdigest()[:32]
    return SQLiteIndex(os.path.join(folder, f"{digest}.db"))
