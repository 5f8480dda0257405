"""The SQLite file of an index: connection, transactions, forks, and repair."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal
from urllib.parse import quote

import apsw
import msgspec

from ...backends.filesystem import refuse_network_filesystem
from ...backends.fork import Forkable, register_forkable
from ...backends.sqlite.connection import BusyHandler, close, create_file, enable_wal, open_readonly
from ...backends.sqlite.errors import translate_error
from ...errors import HoldfastError, StoreClosed
from .index import IndexUnusable

MEMORY: Final = ":memory:"

_DAMAGED: Final = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.SQLError,
    apsw.MismatchError,
    apsw.ConstraintError,
)
"""Errors from tables that are not, or no longer, what we created. They can be rebuilt."""
DAMAGE: Final = (
    apsw.Error,
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
    TypeError,
    OverflowError,
)
"""Errors from the driver, and from decoding rows that are not what we wrote."""
_UNWRITABLE: Final = (
    apsw.ReadOnlyError,
    apsw.CantOpenError,
    apsw.PermissionsError,
    apsw.AuthError,
    apsw.FullError,
    apsw.IOError,
)
"""Errors from a file that can't be written. The index has to be elsewhere."""
_WRITES: Final = frozenset((apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE))
APPLICATION_ID: Final = 0x486F6C49
"""Identifies a file as our index, in the file's header: "HolI" in ASCII."""
_FTS_TABLES: Final = ("terms", "terms_data", "terms_idx", "terms_docsize", "terms_config")
TABLES: Final = frozenset(
    f"memory_{name}"
    for name in (
        "format",
        "spaces",
        "docs",
        "ids",
        "keys",
        "models",
        "vectors",
        "frequency",
        *_FTS_TABLES,
    )
)
"""All tables of an index. Other tables are never touched, even if their names are similar."""
TRUNCATE_MILLISECONDS: Final = 100
MIN_DATABASE_BYTES: Final = 512
"""No database is smaller, but SQLite treats a smaller file as an empty one."""


class SQLiteFile(Forkable):
    """One connection to a file, or to memory (`:memory:`), for one call at a time.

    `create` creates missing tables. `shared` means that the file is the store's own: everything but
    the tables of the index belongs to the backend. `user_file` means that the user chose the file:
    unless it is an index of ours, it is left alone. `readonly` means that nothing is created or
    changed.
    """

    def __init__(
        self,
        path: str,
        create: Callable[[apsw.Connection], None],
        *,
        shared: bool = False,
        user_file: bool = False,
        readonly: bool = False,
    ) -> None:
        self._path, self._create, self._shared, self._user_file = path, create, shared, user_file
        self._readonly = readonly
        self._lock = threading.RLock()
        self._connection: apsw.Connection | None = None
        self._closed = False
        register_forkable(self)

    @contextmanager
    def transaction(self, mode: Literal["DEFERRED", "IMMEDIATE"]) -> Iterator[apsw.Connection]:
        """Yield the connection in a transaction: DEFERRED reads a snapshot, IMMEDIATE writes."""
        with self._lock:
            try:
                connection = self._connect()
                connection.execute(f"BEGIN {mode}")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    self._roll_back(connection)
                    raise
            except DAMAGE as error:
                raise self._translate(error) from error

    def _roll_back(self, connection: apsw.Connection) -> None:
        """Roll back; if even that fails, close the connection, which rolls back too."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except apsw.Error:
            self._connection = None
            close(connection)

    def _translate(self, error: Exception) -> HoldfastError:
        if not isinstance(error, apsw.Error) or isinstance(error, _DAMAGED):
            return IndexUnusable(
                f"the memory index in {self._path} is damaged ({type(error).__name__})", error
            )
        if isinstance(error, _UNWRITABLE):
            return IndexUnusable(
                f"cannot write the memory index in {self._path} ({type(error).__name__})", error
            )
        return translate_error(error, self._path)

    # -- the connection --------------------------------------------------------------------------

    def _connect(self) -> apsw.Connection:
        if self._closed:
            raise StoreClosed("the store is closed; open it again")
        if self._connection is None:
            if self._readonly:
                self._connection = connect_readonly(self._path)
                return self._connection
            if self._path != MEMORY and not self._shared:
                _create_file(self._path)
            # The store's own file is never created here: if it was removed, an empty one must not
            # replace it.
            connection = apsw.Connection(self._path, flags=_flags(self._path))
            try:
                self._configure(connection)
                self._create(connection)
                if self._shared:
                    connection.authorizer = _authorize
            except BaseException:
                close(connection)
                raise
            self._connection = connection
        return self._connection

    def _configure(self, connection: apsw.Connection) -> None:
        connection.set_busy_handler(BusyHandler())
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        if self._user_file:
            refuse_foreign_file(connection, self._path)
        if self._path != MEMORY:
            if not self._shared:
                _mark_as_index(connection)
            enable_wal(connection)
        # What a crash loses is recovered from the stream. Deleted content is overwritten.
        for pragma in (
            "trusted_schema = OFF",
            "synchronous = NORMAL",
            "temp_store = MEMORY",
            "cache_size = -64000",
            "secure_delete = ON",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()

    def truncate_log(self) -> None:
        """Checkpoint and empty the write-ahead log, unless other connections are busy."""
        with self._lock, suppress(apsw.Error):
            if self._connection is not None and self._path != MEMORY:
                self._connection.set_busy_timeout(TRUNCATE_MILLISECONDS)
                try:
                    self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                finally:
                    self._connection.set_busy_handler(BusyHandler())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection)

    # -- damage ----------------------------------------------------------------------------------

    def repair(self, problem: IndexUnusable) -> bool:
        """Recreate the tables, empty; return False if that is impossible or unsafe."""
        if isinstance(problem, NotAnIndex) or isinstance(problem.error, _UNWRITABLE):
            return False
        with self._lock:
            self._drop_connection()
            try:
                return self._repair_tables() if self._shared else self._repair_file()
            except (apsw.Error, HoldfastError, OSError):
                return False

    def _repair_tables(self) -> bool:
        connection = apsw.Connection(self._path, flags=_flags(self._path))
        try:
            self._configure(connection)
            # A damaged page may point into the store's own tables, and dropping it would free their
            # pages. So the tables are dropped only if a check of the whole file finds nothing else
            # wrong.
            reports = [text for (text,) in connection.execute("PRAGMA quick_check")]
            if any(
                text != "ok" and not ("fts5" in text.lower() and "memory_terms" in text)
                for text in reports
            ):
                return False
            connection.execute("BEGIN IMMEDIATE")
            drop_tables(connection)
            connection.execute("COMMIT")
        finally:
            close(connection)
        return True

    def _repair_file(self) -> bool:
        """Empty the file in place: other processes that have it open then use the empty one."""
        if self._path == MEMORY:
            return True
        try:
            _reset(self._path, user_file=self._user_file)
        except apsw.Error:
            if self._user_file:
                raise  # an unreadable file may not be ours
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.unlink(self._path + suffix)
        return True

    # -- forks -----------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Make sure that no call is running and no file is open while the process forks."""
        self._lock.acquire()
        if self._path != MEMORY:
            self._drop_connection()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()


def connect_readonly(path: str) -> apsw.Connection:
    """Open an existing file for reading only."""
    connection = open_readonly(path)
    for pragma in ("trusted_schema = OFF", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def drop_tables(connection: apsw.Connection) -> None:
    """Drop all tables of an index of any format, in the current transaction."""
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY sql NOT LIKE '%VIRTUAL%'"
    names = [name for (name,) in connection.execute(query).fetchall() if name in TABLES]
    for name in names if "memory_format" in names else ():
        connection.execute(f'DROP TABLE IF EXISTS "{name}"')


def refuse_foreign_file(connection: apsw.Connection, path: str) -> None:
    """Raise `NotAnIndex` if the file has content and isn't a memory index. Changes nothing."""
    try:
        if _is_marked(connection):
            return
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0]
        (application,) = connection.execute("PRAGMA application_id").fetchall()[0]
        # New content may be in the log only. Our mark is written before the log and the tables
        # exist, so it is checked again: another process may be creating the index.
        foreign = (
            0 < _file_bytes(path) < MIN_DATABASE_BYTES
            or _file_bytes(f"{path}-wal") > 0
            or application
            or objects
        )
        if foreign and not _is_marked(connection):
            raise NotAnIndex(path)
    except (apsw.NotADBError, apsw.CorruptError):
        raise NotAnIndex(path) from None


def _file_bytes(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _is_marked(connection: apsw.Connection) -> bool:
    return connection.execute("PRAGMA application_id").fetchall() == [(APPLICATION_ID,)]


def is_foreign_file(path: str) -> bool:
    """Whether a file isn't a memory index. False if it is unreadable: using it will then fail."""
    try:
        # Immutable: not even a lock or a file beside it is created. The mark is in the file itself.
        address = f"file:{quote(os.path.abspath(path))}?immutable=1"
        connection = apsw.Connection(
            address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        try:
            refuse_foreign_file(connection, path)
        finally:
            close(connection)
    except NotAnIndex:
        return True
    except apsw.Error:
        return False
    return False


class NotAnIndex(IndexUnusable):
    """The file chosen for the index has other content."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not a memory index and was left unchanged")


def _mark_as_index(connection: apsw.Connection) -> None:
    """Mark the file as an index, before its write-ahead log has content."""
    if not _is_marked(connection):
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}").fetchall()


def _flags(path: str) -> int:
    return apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if path == MEMORY else 0)


def _create_file(path: str) -> None:
    """Create the file, readable by its owner only."""
    try:
        refuse_network_filesystem(os.path.dirname(path))
        create_file(path)
    except HoldfastError as error:
        raise IndexUnusable(
            f"cannot write the memory index in {path} ({type(error).__name__})", error
        ) from error


def _reset(path: str, *, user_file: bool) -> None:
    connection = apsw.Connection(path, flags=_flags(path))
    try:
        connection.set_busy_handler(BusyHandler())
        if user_file:
            refuse_foreign_file(connection, path)
        connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 1)
        connection.execute("VACUUM").fetchall()
        connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 0)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    finally:
        close(connection)


def _authorize(action: int, table: Any, column: Any, database: Any, trigger: Any) -> int:
    """Let the index write only to its own tables in the store's file, despite any triggers."""
    if action in _WRITES and table not in TABLES and not str(table).startswith("sqlite_"):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK
