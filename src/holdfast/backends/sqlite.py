"""The default backend: one SQLite file in WAL mode, through apsw.

One connection writes, a few read. `append` stores a whole batch in one transaction, so that all
who wait share one disk sync. What the file promises is executed and read back on every
connection (`_sqlite_connection`); the SQL is in `_sqlite_sql`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn, TypeVar, cast

import apsw

from ..errors import Closed, OutcomeUnknown
from . import _sqlite_sql as sql
from ._filesystem import refuse_network_filesystem
from ._seam import Append, Appended, Conflict, Cursor, Description, Fields, Head, Record, StreamKey
from ._sqlite_connection import Checkpointer, connect, create_file, translate

PAGE_BYTES = 8 * 1024 * 1024
CHECKPOINT_PAGES = 1000
IDLE_READERS = 8
KNOWN_ROWS = 100_000
WAL_WARNING_BYTES = 256 * 1024 * 1024

T = TypeVar("T")

_open_backends: weakref.WeakSet[SQLiteBackend] = weakref.WeakSet()
_inherited: list[object] = []


class _Writer:
    """The writing connection, and the row numbers of streams it has seen committed."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.execute = self.cursor.execute
        self.executemany = self.cursor.executemany
        self.changes = connection.changes
        self.rows: dict[StreamKey, int] = {}
        self.new_rows: dict[StreamKey, int] = {}


class SQLiteBackend:
    """Streams in one SQLite file.

    `durability="disk"` syncs every commit to disk; `"process"` survives the death of the process but may lose the
    newest commits when the machine loses power. `vfs` names an apsw VFS, for tests of what the disk may do.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, durability: Literal["disk", "process"] = "disk", vfs: str | None = None
    ) -> None:
        self._path = os.path.abspath(os.fspath(path))
        self._durability, self._vfs = durability, vfs
        self._closed = False
        self._reset()
        refuse_network_filesystem(os.path.dirname(self._path))
        create_file(self._path)
        with self._write_lock:
            self._open_writer()
        _open_backends.add(self)

    def _reset(self) -> None:
        self._write_lock = threading.Lock()
        self._writer: _Writer | None = None
        self._readers: list[apsw.Connection] = []
        self._checkpointer = Checkpointer(self._connect)

    # -- writing ---------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
        def work(writer: _Writer) -> list[Appended | Conflict]:
            now = time.time()
            return [_append(writer, append, now) for append in batch]

        return self._transact(work)

    def delete(self, stream: StreamKey, *, expected: Head, upto: int | None = None) -> bool:
        def work(writer: _Writer) -> bool:
            root = writer.execute(sql.ROOT, stream).fetchone()
            if root is None or root[1:] != (expected.version, expected.hash, expected.incarnation):
                return False
            row, version = root[0], root[1]
            if upto is not None:
                writer.execute(sql.DELETE_RECORDS, (row, min(upto, version - 1)))
            else:
                writer.execute(sql.DELETE_RECORDS, (row, version))
                writer.execute(sql.DELETE_APPEND_IDS, (row,))
                writer.execute(sql.BURY, (row,))
            return True

        return self._transact(work)

    def _transact(self, work: Callable[[_Writer], T]) -> T:
        """Run `work` in one transaction: committed and durable when this returns, or rolled back, or `OutcomeUnknown`."""
        with self._write_lock:
            self._check_open()
            writer = self._writer or self._open_writer()
            try:
                self._begin(writer)
                result = work(writer)
            except BaseException as error:
                self._abandon(writer)
                raise_translated(error, self._path)
            try:
                self._commit(writer)
            except apsw.FullError as error:
                # The commit frame comes last in the WAL: if there was no room for it, nothing was committed.
                self._abandon(writer)
                raise translate(error, self._path) from error
            except BaseException as error:
                self._discard(writer)
                if isinstance(error, apsw.Error):
                    raise OutcomeUnknown("SQLite did not say whether the commit reached the disk") from error
                raise
            if writer.new_rows:
                writer.rows.update(writer.new_rows)
                writer.new_rows = {}
            return result

    @staticmethod
    def _begin(writer: _Writer) -> None:
        if len(writer.rows) > KNOWN_ROWS:
            writer.rows.clear()
        writer.execute(sql.BEGIN)

    @staticmethod
    def _commit(writer: _Writer) -> None:
        writer.execute("COMMIT")

    def _abandon(self, writer: _Writer) -> None:
        """Roll back; if even that fails, close the connection, which rolls back too."""
        writer.new_rows = {}
        try:
            if writer.connection.in_transaction:
                writer.execute("ROLLBACK")
        except apsw.Error:
            self._discard(writer)

    def _discard(self, writer: _Writer) -> None:
        self._writer = None
        writer.connection.close(force=True)

    def _open_writer(self) -> _Writer:
        writer = self._writer = _Writer(self._connect())
        writer.connection.set_wal_hook(self._on_commit)
        return writer

    def _on_commit(self, connection: apsw.Connection, database: str, pages: int) -> int:
        # Checkpoints run in a thread of their own: on the commit path they would add two more syncs.
        if pages >= CHECKPOINT_PAGES:
            self._checkpointer.wake()
        return 0

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        statement, start = (sql.READ_REVERSE, after or 1 << 62) if reverse else (sql.READ, after)
        records: list[Record] = []
        size = 0
        with self._reading() as reader:
            for row in reader.execute(statement, (*stream, start, -1 if limit is None else limit)):
                size += len(row[3])
                if size > PAGE_BYTES and records:
                    break
                records.append(Record(*row))
        return records

    def head(self, stream: StreamKey) -> Head | None:
        with self._reading() as reader:
            row = reader.execute(sql.HEAD, stream).fetchone()
        return _head(stream, row, time.time()) if row else None

    def heads(
        self, *, tenant: str, kind: str, status: str | None = None, after: str = "", limit: int = 500
    ) -> Sequence[Head]:
        if status is None:
            return self._heads(tenant, kind, sql.HEADS, (tenant, kind, after, limit))
        return self._heads(tenant, kind, sql.HEADS_BY_STATUS, (tenant, kind, status, after, limit))

    def due(
        self, *, tenant: str, kind: str, before: float | None = None, after: Cursor | None = None, limit: int = 100
    ) -> Sequence[Head]:
        until = float("inf") if before is None else before
        time_, id_ = after or (float("-inf"), "")
        return self._heads(tenant, kind, sql.DUE, (tenant, kind, until, time_, id_, limit))

    def _heads(self, tenant: str, kind: str, statement: str, values: tuple[Any, ...]) -> list[Head]:
        with self._reading() as reader:
            rows: list[Any] = reader.execute(statement, values).fetchall()
        now = time.time()
        return [_head(StreamKey(tenant, kind, row[0]), row, now) for row in rows]

    @contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        """A connection for one statement. No transaction outlives the block, so readers never hold up checkpoints."""
        self._check_open()
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._connect()
        try:
            yield reader
        except BaseException as error:
            reader.close(force=True)
            raise_translated(error, self._path)
        if self._closed or len(self._readers) >= IDLE_READERS:
            reader.close(force=True)
        else:
            self._readers.append(reader)

    # -- life ------------------------------------------------------------------------------------

    def describe(self) -> Description:
        self._check_open()
        sizes = {name: _size(self._path + suffix) for name, suffix in (("database", ""), ("wal", "-wal"))}
        warnings = []
        if sizes["wal"] > WAL_WARNING_BYTES:
            warnings.append("the WAL is large: a process keeps a read transaction open, or checkpoints fail")
        return Description(
            engine="sqlite",
            version=apsw.sqlite_lib_version(),
            location=self._path,
            durability=self._durability,
            limits={"record": 1_000_000_000},
            sizes=sizes,
            warnings=warnings,
        )

    def close(self) -> None:
        self._closed = True
        self._checkpointer.stop()
        with self._write_lock:
            writer, self._writer = self._writer, None
            if writer:
                writer.connection.close(force=True)
        while self._readers:
            self._readers.pop().close(force=True)

    def _connect(self) -> apsw.Connection:
        return connect(self._path, durability=self._durability, vfs=self._vfs)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store {self._path} was closed; open it again")

    def _after_fork(self) -> None:
        # The parent's connections must not be used here, and not be closed either: closing would checkpoint
        # and remove the WAL under the parent. They stay referenced for the life of the child.
        _inherited.append((self._writer, self._readers, self._checkpointer))
        self._reset()


def _append(writer: _Writer, append: Append, now: float) -> Appended | Conflict:
    """One member of a batch, inside the transaction."""
    if append.indexed:
        known = writer.execute(sql.FIND_APPEND_ID, (append.id, *append.stream)).fetchone()
        if known:
            return Appended(known[0], known[1], True, now)
    row = writer.rows.get(append.stream) or writer.new_rows.get(append.stream)
    if row is None or not _advance(writer, row, append):
        answer = _look(writer, append, now)
        if isinstance(answer, Appended | Conflict):
            return answer
        row = answer
    version, append_id = append.expected, append.id
    rows = []
    for digest, body in append.records:
        version += 1
        rows.append((row, version, append_id, digest, body))
    writer.executemany(sql.INSERT_RECORD, rows)
    if append.indexed:
        writer.execute(sql.INSERT_APPEND_ID, (row, append_id, append.expected + 1, version))
    return Appended(append.expected + 1, version, False, now)


def _advance(writer: _Writer, row: int, append: Append) -> bool:
    """Move the head, if it is where the append expects it."""
    last = append.expected + len(append.records), append.records[-1][0]
    place = row, append.expected, append.expected_hash, append.incarnation
    if append.fields is None:
        writer.execute(sql.ADVANCE, last + place)
    else:
        writer.execute(sql.ADVANCE_WITH_FIELDS, last + _columns(append.fields) + place)
    return writer.changes() == 1


def _look(writer: _Writer, append: Append, now: float) -> Appended | Conflict | int:
    """The head was not where it was expected, or the stream was never seen: the answer, or the row that has been advanced."""
    root = writer.execute(sql.ROOT, append.stream).fetchone()
    row, version, digest, incarnation = root or (None, 0, b"", b"")
    if version and version > append.expected and incarnation == append.incarnation:
        stored = writer.execute(sql.APPEND_ID_AT, (row, append.expected + 1)).fetchone()
        if stored and stored[0] == append.id:
            return Appended(append.expected + 1, append.expected + len(append.records), True, now)
    if version == 0 and append.expected == 0 and incarnation != append.incarnation:
        fields = _columns(append.fields or Fields())
        last = append.expected + len(append.records), append.records[-1][0]
        values = (*last, *fields, append.incarnation, *append.stream)
        created: list[Any] = writer.execute(sql.CREATE_STREAM, values).fetchall()
        writer.new_rows[append.stream] = row = created[0][0]
        return cast("int", row)
    if (
        version
        and row
        and (version, digest, incarnation) == (append.expected, append.expected_hash, append.incarnation)
    ):
        _advance(writer, row, append)
        writer.new_rows[append.stream] = row
        return int(row)
    head = writer.execute(sql.HEAD, append.stream).fetchone()
    return Conflict(_head(append.stream, head, now) if head else None)


def _columns(fields: Fields) -> tuple[Any, ...]:
    return fields.status, fields.label, fields.owner, fields.due_at, fields.expires_at, fields.due


def _head(stream: StreamKey, row: Sequence[Any], now: float) -> Head:
    return Head(stream, row[1], row[2], row[3], Fields(*row[4:9]), now)


def _size(path: str) -> int:
    # stat only: opening the database file ourselves and closing it again would drop SQLite's POSIX locks.
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def raise_translated(error: BaseException, path: str) -> NoReturn:
    """Raise the driver's error as ours; anything else as it is."""
    if isinstance(error, apsw.Error):
        raise translate(error, path) from error
    raise error


def _after_fork_in_child() -> None:
    for backend in list(_open_backends):
        backend._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
