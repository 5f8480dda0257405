"""Open SQLite connections with every setting verified.

Each pragma is executed and read back on its own: `journal_mode` returns the mode in force instead
of failing, and apsw's `execute` stops a multi-statement string at its first row.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Literal

import apsw

from ...errors import ReadOnly, Unavailable, UnsupportedFilesystem
from .. import deadline
from .errors import raise_translated, translate_create_error
from .schema import migrate, refuse_altered_schema, refuse_foreign_database, refuse_older_schema

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


def is_readonly(path: str) -> bool:
    """Return whether the file exists, but permissions or the disk allow only reading.

    Appends need the folder too: SQLite creates its log there.
    """
    if not os.path.exists(path) or not os.access(path, os.R_OK):
        return False
    log_exists = os.path.exists(f"{path}-wal") and os.path.exists(f"{path}-shm")
    return not os.access(path, os.W_OK) or not (
        log_exists or os.access(os.path.dirname(path) or ".", os.W_OK)
    )


def connect_readonly(path: str, vfs: str | None) -> apsw.Connection:
    """Open a connection that only reads, with the current schema."""
    try:
        connection = open_readonly(path, vfs)
        try:
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES + ROW_BYTES)
            refuse_foreign_database(connection, path)
            _pragma(connection, "trusted_schema", "OFF", 0)
            _pragma(connection, "cell_size_check", "ON", 1)
            refuse_older_schema(connection, path)
            refuse_altered_schema(connection, path)
        except BaseException:
            close(connection)
            raise
    except (apsw.Error, UnicodeDecodeError, TypeError) as error:
        if isinstance(error, apsw.CantOpenError) and os.path.exists(f"{path}-wal"):
            raise ReadOnly(
                f"{path} was not closed, and its log ({path}-wal) cannot be read without writing;"
                " open it once where it can be written to, or copy both files there"
            ) from error
        raise_translated(error, path)
    return connection


def open_readonly(path: str, vfs: str | None = None) -> apsw.Connection:
    """Open an existing file read-only, even where nothing can be created beside it."""
    from urllib.parse import quote

    # Without a log, and without permission to create one, SQLite reads a file only if it is opened
    # as immutable. A process that may write creates the log before it changes the file.
    modes = ("mode=ro",) if os.path.exists(f"{path}-wal") else ("mode=ro", "immutable=1")
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    for mode in modes:
        connection = apsw.Connection(f"file:{quote(path)}?{mode}", flags=flags, vfs=vfs)
        try:
            connection.set_busy_handler(BusyHandler())
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            break
        except BaseException as error:
            close(connection)
            unopened = isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError)
            if not unopened or mode == modes[-1]:
                raise
    return connection


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
    except (apsw.Error, UnicodeDecodeError, TypeError) as error:
        raise_translated(error, path)
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
    until = time.monotonic() + deadline.remaining()
    while mode != "wal":
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0]
            break
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            import random

            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311  jitter, not a secret
    return str(mode)


class BusyHandler:
    """Waits for another process with short, jittered sleeps.

    SQLite's own handler sleeps up to 100 ms, during which the file is idle.
    """

    def __init__(self) -> None:
        self._until = 0.0

    def __call__(self, attempt: int) -> bool:
        now = time.monotonic()
        if attempt == 0:
            self._until = now + deadline.remaining()
        if now > self._until:
            return False
        import random  # only those who wait need it

        time.sleep(random.uniform(0.00005, min(0.0003 * (attempt + 1), 0.001)))  # noqa: S311  jitter, not a secret
        return True
