"""Open SQLite connections with every setting verified.

Each pragma is executed and read back on its own: `journal_mode` returns the mode in force instead
of failing, and apsw's `execute` stops a multi-statement string at its first row.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import Literal

import apsw

from ...errors import Unavailable, UnsupportedFilesystem
from .errors import BUSY_SECONDS, translate_create_error, translate_error
from .schema import migrate, refuse_altered_schema, refuse_foreign_database

MAX_VALUE_BYTES = 64 * 1024 * 1024
ROW_BYTES = 4096
"""Space for the rest of a row: SQLite applies its limit to whole rows too."""
WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""The size to which SQLite truncates a larger write-ahead log after a checkpoint."""

# Closing our descriptor of a new file would drop the POSIX locks of a thread that has opened the
# file in the meantime.
_creating = threading.Lock()


def create_file(path: str) -> None:
    """Create the database file with mode 0600, whatever the umask; leave an existing file alone.

    SQLite gives the `-wal` and `-shm` files the permissions of the database.
    """
    with _creating:
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return
        except OSError as error:
            raise translate_create_error(error, path) from error
        os.fchmod(file, 0o600)
        os.close(file)


def connect(
    path: str, *, durability: Literal["disk", "process"], vfs: str | None
) -> apsw.Connection:
    """Open a connection with all settings in force and the current schema."""
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
        try:
            _configure(connection, path, durability)
            migrate(connection, path)
            refuse_altered_schema(connection, path)
        except BaseException:
            close(connection)
            raise
    except apsw.Error as error:
        raise translate_error(error, path) from error
    return connection


def close(connection: apsw.Connection) -> None:
    """Close a connection. If its last checkpoint fails, the WAL still has everything."""
    try:
        connection.close(force=True)
    except apsw.Error:
        pass


def _configure(connection: apsw.Connection, path: str, durability: str) -> None:
    connection.set_busy_handler(BusyHandler())
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    # One plan per statement, whatever its values: otherwise SQLite plans each join again, which
    # takes longer than looking up a head.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # Far more than a record; rejects a planted value of a gigabyte before it is loaded.
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES + ROW_BYTES)
    refuse_foreign_database(connection, path)
    _pragma(connection, "trusted_schema", "OFF", 0)
    _pragma(connection, "cell_size_check", "ON", 1)
    _pragma(connection, "mmap_size", "0", 0)
    _pragma(connection, "secure_delete", "ON", 1)  # overwrite deleted data: it may be a key
    mode = enable_wal(connection)
    if mode != "wal":
        raise UnsupportedFilesystem(path, f"no write-ahead log, journal mode {mode!r}")
    level, expected = ("FULL", 2) if durability == "disk" else ("NORMAL", 1)
    _pragma(connection, "synchronous", level, expected)
    _pragma(connection, "journal_size_limit", str(WAL_LIMIT_BYTES), WAL_LIMIT_BYTES)
    connection.wal_autocheckpoint(0)
    if sys.platform == "darwin" and durability == "disk":
        # On macOS, fsync only hands the data to the drive; F_FULLFSYNC waits for it.
        _pragma(connection, "fullfsync", "ON", 1)
        _pragma(connection, "checkpoint_fullfsync", "ON", 1)


def _pragma(connection: apsw.Connection, name: str, value: str, expected: int) -> None:
    connection.execute(f"PRAGMA {name} = {value}").fetchall()
    actual = connection.execute(f"PRAGMA {name}").fetchone()
    if actual != (expected,):
        raise Unavailable(f"SQLite did not accept PRAGMA {name} = {value}")


def enable_wal(connection: apsw.Connection) -> str:
    """Switch to WAL mode and return the mode in force.

    The switch needs exclusive access for a moment, and SQLite does not wait for it.
    """
    (mode,) = connection.execute("PRAGMA journal_mode").fetchall()[0]
    deadline = time.monotonic() + BUSY_SECONDS
    while mode != "wal":
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0]
            break
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311  jitter, not a secret
    return str(mode)


class BusyHandler:
    """Waits for another process with short, jittered sleeps.

    SQLite's own handler sleeps up to 100 ms, during which the file is idle.
    """

    def __init__(self) -> None:
        self.deadline = 0.0

    def __call__(self, attempt: int) -> bool:
        now = time.monotonic()
        if attempt == 0:
            self.deadline = now + BUSY_SECONDS
        if now > self.deadline:
            return False
        time.sleep(random.uniform(0.00005, min(0.0003 * (attempt + 1), 0.001)))  # noqa: S311  jitter, not a secret
        return True
