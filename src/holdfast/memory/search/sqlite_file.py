"""The SQLite file that an index is in: the connection, transactions, forks, and what to do about damage."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

import apsw
import msgspec

from ...backends.filesystem import refuse_network_filesystem
from ...backends.fork import Forkable, register
from ...backends.sqlite.connection import _BusyHandler, _wal, close, create_file, translate
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
APPLICATION_ID: Final = 0x486F6C49
""""HolI": by this, in its header, a file is known to be an index of ours."""
_WORDS: Final = ("terms", "terms_data", "terms_idx", "terms_docsize", "terms_config")
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
        *_WORDS,
    )
)
"""All tables of an index. Others whose names begin like these are somebody else's, and are never touched."""
TRUNCATE_MILLISECONDS: Final = 100
SMALLEST: Final = 512
"""No database is smaller, but SQLite takes what is for an empty one."""


class SQLiteFile(Forkable):
    """One connection to a file, or to memory (`:memory:`), for one call at a time. `make` makes the tables that are missing.

    `shared`: the file is the store's own, and all but the tables of the index is the backend's. `given`: a user has named the file;
    unless it is an index of ours, it is left alone.
    """

    def __init__(
        self,
        path: str,
        make: Callable[[apsw.Connection], None],
        *,
        shared: bool = False,
        given: bool = False,
    ) -> None:
        self._path, self._make, self._shared, self._given = path, make, shared, given
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
            return IndexUnusable(
                f"the index of memories in {self._path} is damaged ({type(error).__name__})", error
            )
        if isinstance(error, _NOT_HERE):
            return IndexUnusable(
                f"there can be no index of memories in {self._path} ({type(error).__name__})", error
            )
        return translate(error, self._path)

    # -- the connection --------------------------------------------------------------------------

    def _connected(self) -> apsw.Connection:
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
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
        if self._given:
            refuse_strangers(connection, self._path)
        if self._path != MEMORY:
            if not self._shared:
                _mark(connection)
            _wal(connection)
        # What a crash takes from an index comes back from the stream. What is forgotten is overwritten, not only left out.
        for pragma in (
            "trusted_schema = OFF",
            "synchronous = NORMAL",
            "temp_store = MEMORY",
            "cache_size = -64000",
            "secure_delete = ON",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()

    def truncate_log(self) -> None:
        """Move what is in the write-ahead log into the file, and empty it, unless others are in the middle of something."""
        with self._lock, suppress(apsw.Error):
            if self._connection is not None and self._path != MEMORY:
                self._connection.set_busy_timeout(TRUNCATE_MILLISECONDS)
                try:
                    self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                finally:
                    self._connection.set_busy_handler(_BusyHandler())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection)

    # -- damage ----------------------------------------------------------------------------------

    def mend(self, problem: IndexUnusable) -> bool:
        """Make the tables anew, empty. False if that is not possible, or not wise."""
        if isinstance(problem, NotAnIndex) or isinstance(problem.error, _NOT_HERE):
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
            if any(
                text != "ok" and not ("fts5" in text.lower() and "memory_terms" in text)
                for text in said
            ):
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
            _reset(self._path, given=self._given)
        except apsw.Error:
            if self._given:
                raise  # what cannot be read cannot be known to be ours
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
    """Drop all tables of an index, of whatever format, in the transaction that is open. None, if no index was made here."""
    made = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY sql NOT LIKE '%VIRTUAL%'"
    names = [name for (name,) in connection.execute(made).fetchall() if name in TABLES]
    for name in names if "memory_format" in names else ():
        connection.execute(f'DROP TABLE IF EXISTS "{name}"')


def refuse_strangers(connection: apsw.Connection, path: str) -> None:
    """`Stranger` if there is something in the file, and it is no index of memories. Nothing in it is changed."""
    try:
        if _is_marked(connection):
            return
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0]
        (application,) = connection.execute("PRAGMA application_id").fetchall()[0]
        # What is new may be in the log only. Ours has its mark before it has a log, and before it has tables: it is looked for
        # again, because another process may be making the index.
        other = 0 < _size(path) < SMALLEST or _size(f"{path}-wal") > 0 or application or objects
        if other and not _is_marked(connection):
            raise NotAnIndex(path)
    except (apsw.NotADBError, apsw.CorruptError):
        raise NotAnIndex(path) from None


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _is_marked(connection: apsw.Connection) -> bool:
    return connection.execute("PRAGMA application_id").fetchall() == [(APPLICATION_ID,)]


def is_stranger(path: str) -> bool:
    """Whether there is a file of something else. False too if it cannot be read: that is noticed when it is used."""
    try:
        # Immutable: not even a lock, or a file beside it, is made. The mark is in the file itself.
        address = f"file:{quote(os.path.abspath(path))}?immutable=1"
        connection = apsw.Connection(
            address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        try:
            refuse_strangers(connection, path)
        finally:
            close(connection)
    except NotAnIndex:
        return True
    except apsw.Error:
        return False
    return False


class NotAnIndex(IndexUnusable):
    """A file that is to be the index is something else."""

    def __init__(self, path: str) -> None:
        what = f"{path} is no index of memories, and was left as it is"
        super().__init__(what, ValueError(what))


def _mark(connection: apsw.Connection) -> None:
    """Say in the header that this is an index. Before anything is in the write-ahead log: the mark is never without the file."""
    if not _is_marked(connection):
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}").fetchall()


def _flags(path: str) -> int:
    return apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if path == MEMORY else 0)


def _prepare(path: str) -> None:
    """A file of its own, for its owner alone."""
    try:
        refuse_network_filesystem(os.path.dirname(path))
        create_file(path)
    except HoldfastError as error:
        raise IndexUnusable(
            f"there can be no index of memories in {path} ({type(error).__name__})", error
        ) from error


def _reset(path: str, *, given: bool) -> None:
    connection = apsw.Connection(path, flags=_flags(path))
    try:
        connection.set_busy_handler(_BusyHandler())
        if given:
            refuse_strangers(connection, path)
        connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 1)
        connection.execute("VACUUM").fetchall()
        connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 0)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    finally:
        close(connection)


def _allowed(action: int, table: Any, column: Any, database: Any, trigger: Any) -> int:
    """In the store's own file the index writes to its own tables only, whatever triggers somebody planted on them."""
    if action in _WRITES and table not in TABLES and not str(table).startswith("sqlite_"):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK
