"""A copy of an SQLite file as it is at one instant, made while others write, through SQLite's own backup."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress

import apsw

from ...errors import AlreadyExists, CorruptRecord, Unavailable
from ..files.disk import Disk
from . import sql
from .connection import close, create_file, no_room, storage_full, translate

STEP_PAGES = 1000


def back_up(
    connect: Callable[[], apsw.Connection], source: str, path: str, *, overwrite: bool
) -> int:
    """Write a backup of the file `source` to `path`, whole or not at all, readable by its owner alone; its size in bytes."""
    target = os.path.realpath(path)
    _refuse(source, target, overwrite)
    draft = os.path.join(os.path.dirname(target), f".holdfast-{secrets.token_hex(8)}.tmp")
    create_file(draft)
    try:
        _copy(connect, draft, path)
        _check(draft, path)
        _sync(draft)
        _refuse(source, target, overwrite)
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


def _refuse(source: str, target: str, overwrite: bool) -> None:
    if os.path.exists(target):
        if os.path.samefile(source, target):
            raise AlreadyExists(f"{target} is the store itself; choose another path for its backup")
        if not overwrite:
            raise AlreadyExists(
                f"there is something at {target}; choose another path, or say that it may be replaced: overwrite=True, or --overwrite"
            )
        if not os.path.isfile(target):
            raise AlreadyExists(f"{target} is not a file; choose another path")
    if os.path.exists(f"{target}-wal") or os.path.exists(f"{target}-journal"):
        # SQLite would apply it to the new file, to which it does not belong.
        raise AlreadyExists(
            f"{target} is in use, or was not closed; choose another path, or close it first"
        )


def _copy(connect: Callable[[], apsw.Connection], draft: str, path: str) -> None:
    origin = connect()
    try:
        # One read transaction for all: otherwise SQLite begins again from the first page whenever somebody writes.
        origin.execute("BEGIN")
        origin.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        copy = apsw.Connection(draft, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            with copy.backup("main", origin, "main") as work:
                while not work.done:
                    work.step(STEP_PAGES)
        except apsw.Error as error:
            if no_room(error, copy):
                raise storage_full(path) from error
            raise translate(error, path) from error
        finally:
            close(copy)
    finally:
        close(origin)


def _check(draft: str, path: str) -> None:
    """Read the backup as a stranger would."""
    try:
        copy = apsw.Connection(draft, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            found = copy.execute("PRAGMA quick_check(1)").fetchall()
            application = copy.execute("PRAGMA application_id").fetchall()
        finally:
            close(copy)
    except apsw.Error as error:
        raise translate(error, path) from error
    if found != [("ok",)] or application != [(sql.APPLICATION_ID,)]:
        raise CorruptRecord(
            path, what="SQLite finds damage in the backup, and so in the store; it was not kept"
        )


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        Disk().fsync(file)
    finally:
        os.close(file)
