"""The SQLite file that an index is in: the connection, transactions, forks, and what to do about damage."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import apsw
import msgspec

from ..backends._filesystem import refuse_network_filesystem
from ..backends._fork import register
from ..backends._sqlite_connection import _BusyHandler, _wal, close, create_file, translate
from ..errors import Closed, HoldfastError
from ._index import Unusable

MEMORY: Final = ":memory:"

_DAMAGED: Final = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.MismatchError, apsw.ConstraintError)
"""What SQLite says of tables that are not, or no longer, what we made. They can be made anew."""
_NOT_HERE: Final = (
    apsw.ReadOnlyError,
    apsw.CantOpenError,
    apsw.PermissionsError,
    apsw.AuthError,
    apsw.FullError,
    apsw.IOError,
)
"""What SQLite says where it cannot write. The index has to be elsewhere."""
_WRITES: Final = frozenset((apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE))


class SQLiteFile:
    """One connection to a file, or to memory (`:memory:`), for one call at a time. `make` makes the tables that are missing.

    `shared`: the file is the store's own, and all but the tables of the index is the backend's.
    """

    def __init__(self, path: str, make: Callable[[apsw.Connection], None], *, shared: bool = False) -> None:
        self._path, self._make, self._shared = path, make, shared
        self._lock = threading.RLock()
        self._connection: apsw.Connection | None = None
        self._closed = False
        register(self)

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """The connection, in a transaction that sees the tables at one moment."""
        with self._transaction("DEFERRED") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[apsw.Connection]:
        """The connection, in a transaction of its own: what the block does is done altogether, or not at all."""
        with self._transaction("IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def _transaction(self, mode: str) -> Iterator[apsw.Connection]:
        with self._lock:
            try:
                connection = self._connected()
                connection.execute(f"BEGIN {mode}")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    self._roll_back(connection)
                    raise
            except (apsw.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise self._problem(error) from error

    def _roll_back(self, connection: apsw.Connection) -> None:
        """Closing rolls back too, where even that fails."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except apsw.Error:
            self._connection = None
            close(connection)

    def _problem(self, error: Exception) -> HoldfastError:
        if not isinstance(error, apsw.Error) or isinstance(error, _DAMAGED):
            return Unusable(f"the index of memories in {self._path} is damaged ({type(error).__name__})", error)
        if isinstance(error, _NOT_HERE):
            return Unusable(f"there can be no index of memories in {self._path} ({type(error).__name__})", error)
        return translate(error, self._path)

    # -- the connection --------------------------------------------------------------------------

    def _connected(self) -> apsw.Connection:
        if self._closed:
            raise Closed("the store was closed; open it again")
        if self._connection is None:
            if self._path != MEMORY and not self._shared:
                _prepare(self._path)
            # The store's own file is there. If it was removed, an empty one must not take its place.
            connection = apsw.Connection(self._path, flags=_flags(self._path))
            try:
                self._configure(connection)
                self._make(connection)
                if self._shared:
                    connection.authorizer = _allowed
            except BaseException:
                close(connection)
                raise
            self._connection = connection
        return self._connection

    def _configure(self, connection: apsw.Connection) -> None:
        connection.set_busy_handler(_BusyHandler())
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        if self._path != MEMORY:
            _wal(connection)
        # What a crash takes from an index comes back from the stream.
        for pragma in ("trusted_schema = OFF", "synchronous = NORMAL", "temp_store = MEMORY", "cache_size = -64000"):
            connection.execute(f"PRAGMA {pragma}").fetchall()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection)

    # -- damage ----------------------------------------------------------------------------------

    def mend(self, problem: Unusable) -> bool:
        """Make the tables anew, empty. False if that is not possible, or not wise."""
        if isinstance(problem.error, _NOT_HERE):
            return False
        with self._lock:
            self._drop_connection()
            try:
                return self._mend_tables() if self._shared else self._mend_file()
            except (apsw.Error, HoldfastError, OSError):
                return False

    def _mend_tables(self) -> bool:
        connection = apsw.Connection(self._path, flags=_flags(self._path))
        try:
            self._configure(connection)
            # A damaged page may lead into pages of the store's own tables, and to drop it would free them. So the whole file is
            # looked at first: only if nothing else is wrong, the tables of the index are dropped.
            said = [text for (text,) in connection.execute("PRAGMA quick_check")]
            if any(text != "ok" and not ("fts5" in text.lower() and "memory_terms" in text) for text in said):
                return False
            connection.execute("BEGIN IMMEDIATE")
            drop_tables(connection)
            connection.execute("COMMIT")
        finally:
            close(connection)
        return True

    def _mend_file(self) -> bool:
        """Empty the file in place: others may have it open, and then go on with the empty one too."""
        if self._path == MEMORY:
            return True
        try:
            _reset(self._path)
        except apsw.Error:
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.unlink(self._path + suffix)
        return True

    # -- forks -----------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Nobody is in the middle of something, and no file is open, while the process is copied."""
        self._lock.acquire()
        if self._path != MEMORY:
            self._drop_connection()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()


def drop_tables(connection: apsw.Connection) -> None:
    """Drop all tables of an index, of whatever format, in the transaction that is open."""
    made = (
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'memory_*' ORDER BY sql NOT LIKE '%VIRTUAL%'"
    )
    for (name,) in connection.execute(made).fetchall():
        connection.execute(f'DROP TABLE IF EXISTS "{name}"')


def _flags(path: str) -> int:
    return apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if path == MEMORY else 0)


def _prepare(path: str) -> None:
    """A file of its own, for its owner alone."""
    try:
        refuse_network_filesystem(os.path.dirname(path))
        create_file(path)
    except HoldfastError as error:
        raise Unusable(f"there can be no index of memories in {path} ({type(error).__name__})", error) from error


def _reset(path: str) -> None:
    connection = apsw.Connection(path, flags=_flags(path))
    try:
        connection.set_busy_handler(_BusyHandler())
        connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 1)
        connection.execute("VACUUM").fetchall()
        connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 0)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    finally:
        close(connection)


def _allowed(action: int, table: Any, column: Any, database: Any, trigger: Any) -> int:
    """In the store's own file the index writes to its own tables only, whatever triggers somebody planted on them."""
    if action in _WRITES and not str(table).startswith(("memory_", "sqlite_")):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK
