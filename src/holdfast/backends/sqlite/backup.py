"""Back up an SQLite file as of one instant, while other processes write to it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress

import apsw

from ...errors import AlreadyExists, CorruptRecord, Unavailable
from ..files.disk import Disk
from .connection import close, create_file
from .errors import is_storage_full, storage_full_error, translate_error
from .schema import APPLICATION_ID

STEP_PAGES = 1000


def back_up(
    connect: Callable[[], apsw.Connection], source: str, path: str, *, overwrite: bool
) -> int:
    """Back up the file `source` to `path` atomically, with mode 0600; return its size in bytes."""
    target = os.path.realpath(path)
    _refuse_target(source, target, overwrite)
    draft = os.path.join(os.path.dirname(target), f".holdfast-{secrets.token_hex(8)}.tmp")
    create_file(draft)
    try:
        _copy(connect, draft, path)
        _verify(draft, path)
        _sync(draft)
        _refuse_target(source, target, overwrite)
        os.replace(draft, target)
        _sync(os.path.dirname(target))
    except OSError as error:
        raise Unavailable(
            f"cannot write {path}: {error.strerror}; nothing was backed up"
        ) from error
    finally:
        for leftover in (draft, f"{draft}-journal", f"{draft}-wal", f"{draft}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(leftover)
    return os.stat(target).st_size


def _refuse_target(source: str, target: str, overwrite: bool) -> None:
    if os.path.exists(target):
        if os.path.samefile(source, target):
            raise AlreadyExists(f"{target} is the store itself; choose another path for its backup")
        if not overwrite:
            raise AlreadyExists(
                f"{target} already exists; choose another path, or replace it with overwrite=True"
            )
        if not os.path.isfile(target):
            raise AlreadyExists(f"{target} is not a file; choose another path")
    if os.path.exists(f"{target}-wal") or os.path.exists(f"{target}-journal"):
        # SQLite would apply the log of the old file to the new one.
        raise AlreadyExists(
            f"{target} is in use or was not closed; choose another path, or close it first"
        )


def _copy(connect: Callable[[], apsw.Connection], draft: str, path: str) -> None:
    origin = connect()
    try:
        # One read transaction: otherwise SQLite restarts from the first page at each write.
        origin.execute("BEGIN")
        origin.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        copy = apsw.Connection(draft, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            with copy.backup("main", origin, "main") as work:
                while not work.done:
                    work.step(STEP_PAGES)
        except apsw.Error as error:
            if is_storage_full(error, copy):
                raise storage_full_error(path) from error
            raise translate_error(error, path) from error
        finally:
            close(copy)
    finally:
        close(origin)


def _verify(draft: str, path: str) -> None:
    """Raise if SQLite finds damage in the backup, or if it is not a store."""
    try:
        copy = apsw.Connection(draft, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            found = copy.execute("PRAGMA quick_check(1)").fetchall()
            application = copy.execute("PRAGMA application_id").fetchall()
        finally:
            close(copy)
    except apsw.Error as error:
        raise translate_error(error, path) from error
    if found != [("ok",)] or application != [(APPLICATION_ID,)]:
        raise CorruptRecord(
            path, what="SQLite finds damage in the backup, and so in the store; no backup was kept"
        )


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        Disk().fsync(file)
    finally:
        os.close(file)
