"""SQLite connections that do what they promise, and the thread that checkpoints.

Every pragma is executed and read back alone: `journal_mode` answers the mode in force rather than
failing, and apsw's `execute` stops a multi-statement string at its first row.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal, cast

import apsw

from ...errors import (
    CorruptRecord,
    HoldfastError,
    ReadOnly,
    StorageFull,
    Unavailable,
    UnsupportedFilesystem,
    UnsupportedVersion,
)
from . import sql

BUSY_SECONDS = 30.0
MAX_VALUE_BYTES = 64 * 1024 * 1024
ROW_BYTES = 4096
"""What a row has beside the largest value: SQLite's limit is for rows as well."""
WAL_LIMIT_BYTES = 64 * 1024 * 1024
RESTART_MILLISECONDS = 100

# Closing our own descriptor of a new file would drop the POSIX locks of a thread that has opened it meanwhile.
_creating = threading.Lock()


def create_file(path: str) -> None:
    """Create the database file readable by its owner alone, whatever the umask; an existing file is left as it is.

    SQLite gives `-wal` and `-shm` the permissions of the database.
    """
    with _creating:
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return
        except OSError as error:
            raise _cannot_open(path, error) from error
        os.fchmod(file, 0o600)
        os.close(file)


def connect(
    path: str, *, durability: Literal["disk", "process"], vfs: str | None
) -> apsw.Connection:
    """An open connection, its pragmas in force and its schema current."""
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
        try:
            _configure(connection, path, durability)
            _migrate(connection, path)
            _refuse_alterations(connection, path)
        except BaseException:
            close(connection)
            raise
    except apsw.Error as error:
        raise translate(error, path) from error
    return connection


def close(connection: apsw.Connection) -> None:
    """Close a connection for good. If its last checkpoint fails, nothing is lost: the WAL stays and holds everything."""
    try:
        connection.close(force=True)
    except apsw.Error:
        pass


def _configure(connection: apsw.Connection, path: str, durability: str) -> None:
    connection.set_busy_handler(_BusyHandler())
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    # One plan for a statement, whatever its values: otherwise SQLite plans joins anew for each of them, which takes longer than to
    # look up a head.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # Far above a record; a planted value of a gigabyte is refused before it is in memory.
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES + ROW_BYTES)
    _refuse_strangers(connection, path)
    _pragma(connection, "trusted_schema", "OFF", 0)
    _pragma(connection, "cell_size_check", "ON", 1)
    _pragma(connection, "mmap_size", "0", 0)
    _pragma(connection, "secure_delete", "ON", 1)  # what is deleted is overwritten: it may be a key
    mode = _wal(connection)
    if mode != "wal":
        raise UnsupportedFilesystem(path, f"no write-ahead log, journal mode {mode!r}")
    _pragma(
        connection,
        "synchronous",
        "FULL" if durability == "disk" else "NORMAL",
        2 if durability == "disk" else 1,
    )
    _pragma(connection, "journal_size_limit", str(WAL_LIMIT_BYTES), WAL_LIMIT_BYTES)
    connection.wal_autocheckpoint(0)
    if sys.platform == "darwin" and durability == "disk":
        # fsync on macOS only hands the data to the drive; F_FULLFSYNC waits for it.
        _pragma(connection, "fullfsync", "ON", 1)
        _pragma(connection, "checkpoint_fullfsync", "ON", 1)


def _pragma(connection: apsw.Connection, name: str, value: str, expected: int) -> None:
    connection.execute(f"PRAGMA {name} = {value}").fetchall()
    actual = connection.execute(f"PRAGMA {name}").fetchone()
    if actual != (expected,):
        raise Unavailable(f"SQLite did not accept PRAGMA {name} = {value}")


def _wal(connection: apsw.Connection) -> str:
    """Switch to WAL mode. The switch needs the file for itself for a moment, and does not wait by itself."""
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


def _refuse_strangers(connection: apsw.Connection, path: str) -> None:
    """Refuse a database that is not ours before changing anything in it."""
    # In this order: another process may be creating the store, tables and application id in one transaction.
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0]
    (application,) = connection.execute("PRAGMA application_id").fetchall()[0]
    if application != sql.APPLICATION_ID and (application or objects):
        raise UnsupportedVersion(
            f"{path} is an SQLite database, but not a Holdfast store; choose another path"
        )


def _migrate(connection: apsw.Connection, path: str) -> None:
    """Bring the schema up to date, safely when many processes start at once."""
    if _version(connection, path) == len(sql.MIGRATIONS):
        return
    with transaction(connection):
        _run_migrations(connection, _version(connection, path))
        connection.execute(f"PRAGMA application_id = {sql.APPLICATION_ID}")


def _refuse_alterations(connection: apsw.Connection, path: str) -> None:
    """Refuse tables, views and triggers that we did not make: a planted trigger would undo acknowledged appends."""
    if _schema(connection) != _own_schema():
        raise UnsupportedVersion(
            f"{path} has tables, views or triggers that Holdfast did not make; restore it from a backup"
        )


def _schema(connection: apsw.Connection) -> frozenset[object]:
    """What there is, apart from the tables of the index of memories, which is derived: nothing here ever writes to them."""
    return frozenset(
        connection.execute(
            "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_stat%' ESCAPE '\\'"
            " AND name != 'sqlite_sequence' AND (tbl_name NOT GLOB 'memory_*' OR type = 'view')"
        )
    )


@lru_cache(maxsize=1)
def _own_schema() -> frozenset[object]:
    """What the migrations make, as SQLite writes it down."""
    connection = apsw.Connection(":memory:")
    _run_migrations(connection, 0)
    schema = _schema(connection)
    connection.close()
    return schema


def _run_migrations(connection: apsw.Connection, done: int) -> None:
    for number, migration in enumerate(sql.MIGRATIONS[done:], done):
        for statement in migration.split(";"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number + 1}")


def _version(connection: apsw.Connection, path: str) -> int:
    version = cast("int", connection.execute("PRAGMA user_version").fetchall()[0][0])
    if version > len(sql.MIGRATIONS):
        raise UnsupportedVersion(
            f"{path} has schema {version}, this Holdfast knows up to {len(sql.MIGRATIONS)}; upgrade Holdfast"
        )
    return version


@contextmanager
def transaction(connection: apsw.Connection, mode: str = "IMMEDIATE") -> Iterator[None]:
    """Commit what happens in the block, or roll it back. Not apsw's own `with`: that uses savepoints, and on a full disk
    SQLite has already dropped those."""
    connection.execute(f"BEGIN {mode}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class _BusyHandler:
    """Wait for another process with short, jittered naps: SQLite's own steps up to 100 ms leave the file idle."""

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


class Checkpointer:
    """Moves the WAL into the database in a thread of its own, started when there is first something to do."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect
        self._wake = threading.Event()
        self._working = threading.Lock()
        self._connection: apsw.Connection | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    def wake(self) -> None:
        if not self._wake.is_set():
            self._wake.set()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="holdfast-checkpoint", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def rest(self) -> None:
        """Finish the checkpoint under way, let go of the connection, and wait for `resume`."""
        self._working.acquire()
        self._close()

    def resume(self) -> None:
        self._working.release()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._working:
                if self._stopping:
                    self._close()
                    return
                try:
                    self._checkpoint()
                except (apsw.Error, HoldfastError):
                    # The WAL stays as it is and holds everything; a later commit wakes us again.
                    self._close()

    def _checkpoint(self) -> None:
        if self._connection is None:
            self._connection = self._connect()
            self._connection.set_busy_timeout(RESTART_MILLISECONDS)
        # First the bulk, beside the writers. Then the little they have added meanwhile, with the write lock held for
        # a moment: only a WAL that was copied to its end can begin anew, and otherwise it would grow for ever.
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection)


def no_room(error: BaseException, connection: apsw.Connection) -> bool:
    """Whether a write failed for want of room. SQLite knows a full disk; a quota or a limit on file size it calls an I/O error.

    Ask before anything else is done with the connection: the system's error number is that of its last failure.
    """
    if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_WRITE:
        return connection.system_errno in (errno.EDQUOT, errno.EFBIG)
    return isinstance(error, apsw.FullError)


def storage_full(path: str) -> StorageFull:
    return StorageFull(f"no room to write to {path}; free some space, nothing was lost")


def translate(error: apsw.Error, path: str) -> HoldfastError:
    """The driver's error as ours. SQLite's messages hold no content; the result code says enough."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, apsw.FullError):
        return storage_full(path)
    if isinstance(error, (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError)):
        return ReadOnly(
            f"{path} cannot be written to ({reason}); check permissions and mount options"
        )
    if isinstance(error, apsw.NotADBError):
        return UnsupportedVersion(f"{path} is not an SQLite database; choose another path")
    if (
        isinstance(error, apsw.CantOpenError)
        and os.path.exists(path)
        and not os.access(path, os.R_OK | os.W_OK)
    ):
        return ReadOnly(f"{path} cannot be opened; check its permissions and those of its folder")
    if isinstance(error, (apsw.CorruptError, apsw.TooBigError)):
        return CorruptRecord(path, what=f"SQLite reports {reason}")
    if isinstance(error, apsw.BusyError):
        return Unavailable(f"another process kept {path} locked for {BUSY_SECONDS:.0f} s")
    return Unavailable(f"{path}: {reason}")


def _cannot_open(path: str, error: OSError) -> HoldfastError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnly(f"cannot create {path}: {error.strerror}; check permissions")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no room to create {path}")
    if error.errno == errno.ENOENT:
        return Unavailable(f"cannot create {path}: its directory does not exist; create it first")
    return Unavailable(f"cannot create {path}: {error.strerror}")
