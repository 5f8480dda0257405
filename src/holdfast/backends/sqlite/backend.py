"""The default backend: one SQLite file in WAL mode, through apsw.

One connection writes, a few read. `append` stores a whole batch in one transaction, so that all
who wait share one disk sync. What the file promises is executed and read back on every
connection (`_sqlite_connection`); the SQL is in `_sqlite_sql`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import apsw

from ...errors import CorruptRecord, OutcomeUnknown, StoreClosed, TooLarge, Unavailable
from .. import clock
from ..filesystem import refuse_network_filesystem
from ..fork import Forkable, register
from ..interface import (
    Append,
    AppendResult,
    Cursor,
    Description,
    Head,
    HeadFields,
    HeadSummary,
    IndexFile,
    Record,
    StreamKey,
    VersionMismatch,
)
from . import sql
from .backup import back_up
from .connection import (
    MAX_VALUE_BYTES,
    Checkpointer,
    close,
    connect,
    create_file,
    no_room,
    storage_full,
    translate,
)

PAGE_BYTES = 8 * 1024 * 1024
CHECKPOINT_PAGES = 1000
IDLE_READERS = 8
CHECK_SECONDS = 0.01
"""How often a busy writer looks whether its files are still there: looking at each commit would cost more than it saves."""
KNOWN_PLACES = 100_000
LAST_VERSION = LAST_NUMBER = 1 << 62
"""Nobody has written so many records or streams; the numbers after it leave no room for more."""
WAL_WARNING_BYTES = 256 * 1024 * 1024

T = TypeVar("T")


class _StreamLocation(NamedTuple):
    """Where a stream is, and the number that its records have."""

    number: int
    version: int
    hash: bytes
    incarnation: bytes


class _Writer:
    """The writing connection, and what it knows: the places of streams, as long as nobody else writes."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.execute = self.cursor.execute
        self.places: dict[StreamKey, _StreamLocation] = {}
        self.records: list[tuple[int, int, bytes, bytes, bytes]] = []
        self.data_version = -1
        self.wal: tuple[int, int] | None = None
        self.check_at = 0.0

    def begin(self) -> None:
        """Take the write lock. Forget what was known if somebody else has written since the last commit."""
        self.execute(sql.BEGIN)
        if self.connection.data_version() != self.data_version or len(self.places) > KNOWN_PLACES:
            self.forget()

    def commit(self) -> None:
        self.execute("COMMIT")
        self.data_version = self.connection.data_version()

    def flush(self) -> None:
        """Insert the records gathered so far: one statement for a whole batch."""
        if self.records:
            try:
                self.cursor.executemany(sql.INSERT_RECORD, self.records)
            except apsw.TooBigError as error:
                raise TooLarge(
                    f"a record in SQLite has at most {MAX_VALUE_BYTES} bytes; nothing was written. "
                    "Attach large things as files"
                ) from error
            self.records = []

    def place(self, stream: StreamKey) -> _StreamLocation | None:
        """Where a stream is, as it is stored; None if there is none."""
        found = self.execute(sql.PLACE, stream).fetchone()
        if found is None:
            return None
        number, version, digest, incarnation = found
        if version is None:
            raise CorruptRecord(str(stream), what=_NO_RECORDS)
        if not (
            type(number) is type(version) is int and type(digest) is type(incarnation) is bytes
        ):
            raise _not_ours(self.connection.filename)
        return _StreamLocation(number, version, digest, incarnation)

    def create(self, append: Append) -> int | None:
        """Make a stream: its number, or None if its life was deleted."""
        [[number]] = self.execute(sql.NEXT_NUMBER).fetchall() or [(None,)]
        if type(number) is not int or not 0 < number < LAST_NUMBER:
            raise _not_ours(self.connection.filename)
        fields = _columns(append.fields or HeadFields())
        self.execute(sql.CREATE_STREAM, (*append.stream, append.incarnation, number, *fields))
        return number if self.connection.changes() else None

    def forget(self) -> None:
        self.records, self.places = [], {}


class SQLiteBackend(Forkable):
    """Streams in one SQLite file.

    `durability="disk"` syncs every commit to disk; `"process"` survives the death of the process but may lose the
    newest commits when the machine loses power. `vfs` names an apsw VFS, for tests of what the disk may do.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["disk", "process"] = "disk",
        vfs: str | None = None,
    ) -> None:
        if durability not in ("disk", "process"):
            raise ValueError(f"durability is 'disk' or 'process', not {durability!r}")
        self._path = os.path.abspath(os.fspath(path))
        self._durability, self._vfs = durability, vfs
        self._closed = False
        self._reset()
        refuse_network_filesystem(os.path.dirname(self._path))
        create_file(self._path)
        self._file = _identity(self._path)
        with self._write_lock:
            self._open_writer()
        register(self)

    def _reset(self) -> None:
        self._write_lock = threading.Lock()
        # A plain lock: the methods of a Condition are Python, and an interrupt inside them can leave it locked.
        self._read_lock = threading.Lock()
        self._writer: _Writer | None = None
        self._idle: list[apsw.Connection] = []
        self._reading_now = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        self._checkpointer = Checkpointer(self._connect)

    # -- writing ---------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        def work(writer: _Writer) -> list[AppendResult | VersionMismatch]:
            now = clock.time()
            answers: list[AppendResult | VersionMismatch] = []
            for append in batch:
                answers.append(_append(writer, append, now))
            writer.flush()
            return answers

        return self._transact(work)

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        def work(writer: _Writer) -> bool:
            writer.places.pop(stream, None)
            place = writer.place(stream)
            if place is None or place[1:] != expected.place:
                return False
            writer.execute(sql.DELETE_RECORDS, (place.number,))
            writer.execute(sql.DELETE_APPEND_IDS, (place.number,))
            writer.execute(sql.DELETE_STREAM, stream)
            writer.execute(sql.DIG_GRAVE, (*stream, expected.incarnation))
            return True

        return self._transact(work)

    def _transact(self, work: Callable[[_Writer], T]) -> T:
        """Run `work` in one transaction: committed and durable when this returns, or rolled back, or `OutcomeUnknown`."""
        with self._write_lock:
            if self._closed:
                self._check_open()
            writer = self._writer or self._open_writer()
            try:
                self._begin(writer)
                result = work(writer)
                if time.monotonic() > writer.check_at:
                    self._check_files(writer.wal)
                    writer.check_at = time.monotonic() + CHECK_SECONDS
            except BaseException as error:
                full = no_room(error, writer.connection)
                self._abandon(writer)
                if full:
                    raise storage_full(self._path) from error
                raise_translated(error, self._path)
            try:
                self._commit(writer)
            except BaseException as error:
                if no_room(error, writer.connection):
                    # The commit frame comes last in the WAL: if there was no room for it, nothing was committed.
                    self._abandon(writer)
                    raise storage_full(self._path) from error
                self._discard(writer)
                if isinstance(error, apsw.Error):
                    raise OutcomeUnknown(
                        "SQLite did not say whether the commit reached the disk"
                    ) from error
                raise
            if writer.wal is None:
                writer.wal = _identity(self._path + "-wal")
            return result

    @staticmethod
    def _begin(writer: _Writer) -> None:
        writer.begin()

    @staticmethod
    def _commit(writer: _Writer) -> None:
        writer.commit()

    def _abandon(self, writer: _Writer) -> None:
        """Roll back; if even that fails, close the connection, which rolls back too."""
        writer.forget()
        try:
            if writer.connection.in_transaction:
                writer.execute("ROLLBACK")
        except apsw.Error:
            self._discard(writer)

    def _discard(self, writer: _Writer) -> None:
        self._writer = None
        close(writer.connection)

    def _open_writer(self) -> _Writer:
        writer = self._writer = _Writer(self._connect())
        writer.connection.set_wal_hook(self._on_commit)
        return writer

    def _on_commit(self, connection: apsw.Connection, database: str, pages: int) -> int:
        # Checkpoints run in a thread of their own: on the commit path they would add two more syncs.
        if pages >= self._checkpoint_at:
            # Asked once per so many pages, whether or not it succeeds: the next commits must not ask again.
            self._checkpoint_at = pages + CHECKPOINT_PAGES
            self._checkpointer.wake()
        elif pages < CHECKPOINT_PAGES:
            self._checkpoint_at = CHECKPOINT_PAGES
        return 0

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        statement, start = (
            (sql.READ_REVERSE, after or LAST_VERSION) if reverse else (sql.READ, after)
        )
        records: list[Record] = []
        append, size = records.append, 0
        with self._reading() as reader:
            for row in reader.execute(statement, (*stream, start, -1 if limit is None else limit)):
                version, append_id, digest, body = row
                # A strict table holds nothing else, unless somebody has put another in its place.
                if not (
                    type(body) is type(digest) is type(append_id) is bytes and type(version) is int
                ):
                    raise _not_ours(self._path)
                size += len(body)
                if size > PAGE_BYTES and records:
                    break
                append(Record(version, append_id, digest, body))
        return records

    def head(self, stream: StreamKey) -> Head | None:
        with self._reading() as reader:
            row = reader.execute(sql.HEAD, stream).fetchone()
        return _head(stream, row, clock.time(), self._path) if row else None

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[HeadSummary]:
        if status is None:
            return self._list(tenant, kind, sql.HEADS, (tenant, kind, after, limit))
        return self._list(tenant, kind, sql.HEADS_BY_STATUS, (tenant, kind, status, after, limit))

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[HeadSummary]:
        until = float("inf") if before is None else before
        time_, id_ = after or (float("-inf"), "")
        return self._list(tenant, kind, sql.DUE, (tenant, kind, until, time_, id_, limit))

    def _list(
        self, tenant: str, kind: str, statement: str, values: tuple[Any, ...]
    ) -> list[HeadSummary]:
        with self._reading() as reader:
            rows: list[Any] = reader.execute(statement, values).fetchall()
        now = clock.time()
        return [
            HeadSummary(StreamKey(tenant, kind, row[0]), row[1], _fields(row, self._path), now)
            for row in rows
        ]

    def scrub(self) -> None:
        """Bring what was deleted out of the write-ahead log. In the file itself it is overwritten already."""
        with self._reading() as connection:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    @contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        """A connection for one statement. No transaction outlives the block, so readers never hold up checkpoints."""
        with self._read_lock:
            self._check_open()
            self._check_files(None)
            reader = self._idle.pop() if self._idle else None
            self._reading_now += 1
        try:
            if reader is None:
                reader = self._connect()
            yield reader
        except BaseException as error:
            if reader is not None:
                close(reader)
                reader = None
            raise_translated(error, self._path)
        finally:
            with self._read_lock:
                self._reading_now -= 1
                if reader is not None and not self._closed and len(self._idle) < IDLE_READERS:
                    self._idle.append(reader)
                    reader = None
            if reader is not None:
                close(reader)

    # -- life ------------------------------------------------------------------------------------

    def describe(self) -> Description:
        self._check_open()
        sizes = {
            name: _size(self._path + suffix) for name, suffix in (("database", ""), ("wal", "-wal"))
        }
        warnings = []
        if sizes["wal"] > WAL_WARNING_BYTES:
            warnings.append(
                "the WAL is large: a process keeps a read transaction open, or checkpoints fail"
            )
        return Description(
            engine="sqlite",
            version=apsw.sqlite_lib_version(),
            location=self._path,
            durability=self._durability,
            limits={"record": MAX_VALUE_BYTES},
            sizes=sizes,
            warnings=warnings,
        )

    def index_places(self) -> Sequence[IndexFile]:
        return [IndexFile(self._path, shared=True)]

    def backup(self, path: str, *, overwrite: bool) -> int:
        """Write the store, as it is now, to another file; its size in bytes."""
        self._check_open()
        return back_up(self._connect, self._path, path, overwrite=overwrite)

    def close(self) -> None:
        self._closed = True
        self._checkpointer.stop()
        with self._write_lock, self._read_lock:
            self._close_connections()

    def _close_connections(self) -> None:
        """Close what is not in use. Called with both locks held."""
        writer, self._writer = self._writer, None
        if writer:
            close(writer.connection)
        while self._idle:
            close(self._idle.pop())

    def before_fork(self) -> None:
        self._checkpointer.rest()
        self._write_lock.acquire()
        self._read_lock.acquire()
        while self._reading_now:
            self._read_lock.release()
            time.sleep(0.0005)
            self._read_lock.acquire()
        self._close_connections()

    def after_fork_in_parent(self) -> None:
        self._read_lock.release()
        self._write_lock.release()
        self._checkpointer.resume()

    def after_fork_in_child(self) -> None:
        self._reset()

    def _check_files(self, wal: tuple[int, int] | None) -> None:
        """Refuse to go on if the files were removed or replaced: SQLite would write to the old ones, which nobody can open again."""
        if _identity(self._path) != self._file or (
            wal is not None and _identity(self._path + "-wal") != wal
        ):
            raise Unavailable(
                f"{self._path} or its -wal file was removed or replaced while it was open; nothing was written. "
                "Close the store and open it again"
            )

    def _connect(self) -> apsw.Connection:
        self._check_files(None)
        return connect(self._path, durability=self._durability, vfs=self._vfs)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self._path} was closed; open it again")


def _append(writer: _Writer, append: Append, now: float) -> AppendResult | VersionMismatch:
    """One member of a batch, inside the transaction."""
    stream, version, append_id = append.stream, append.expected, append.id
    if append.indexed:
        known = writer.execute(sql.FIND_APPEND_ID, (append_id, *stream)).fetchone()
        if known:
            if not type(known[0]) is type(known[1]) is int:
                raise _not_ours(writer.connection.filename)
            return AppendResult(known[0], known[1], True, now)
    place = writer.places.get(stream)
    if place is not None and place[1:] == (version, append.expected_hash, append.incarnation):
        number = place.number
    else:
        answer = _look(writer, append, now)
        if not isinstance(answer, int):
            return answer
        number = answer
    if append.fields is not None and version:  # a new stream has them already
        writer.execute(sql.SET_FIELDS, (*_columns(append.fields), *stream))
    digest = b""
    for digest, body in append.records:
        version += 1
        writer.records.append((number, version, append_id, digest, body))
    writer.places[stream] = _StreamLocation(number, version, digest, append.incarnation)
    if append.indexed:
        writer.execute(sql.INSERT_APPEND_ID, (number, append_id, append.expected + 1, version))
    return AppendResult(append.expected + 1, version, False, now)


def _look(writer: _Writer, append: Append, now: float) -> AppendResult | VersionMismatch | int:
    """The stream is new to this connection, or not where it was expected: the answer, or the number to append to."""
    if (
        append.stream in writer.places
    ):  # its newest records may be among those that are not inserted yet
        writer.flush()
    place = writer.place(append.stream)
    if place is None:
        number = None if append.expected else writer.create(append)
        return VersionMismatch(None) if number is None else number
    if place[1:] == (append.expected, append.expected_hash, append.incarnation):
        return place.number
    if place.incarnation == append.incarnation:
        last = append.expected
        for stored in writer.execute(sql.APPEND_IDS_AFTER, (place.number, append.expected)):
            if stored != (last + 1, append.id):
                break
            last += 1
        if last > append.expected:
            return AppendResult(append.expected + 1, last, True, now)
    [row] = writer.execute(sql.HEAD, append.stream).fetchall()
    return VersionMismatch(_head(append.stream, row, now, writer.connection.filename))


def _columns(fields: HeadFields) -> tuple[Any, ...]:
    return fields.status, fields.label, fields.owner, fields.due_at, fields.expires_at, fields.due


def _head(stream: StreamKey, row: Sequence[Any], now: float, path: str) -> Head:
    version, digest, *listed = row
    if version is None:
        raise CorruptRecord(str(stream), what=_NO_RECORDS)
    if not (type(version) is int and type(digest) is bytes):
        raise _not_ours(path)
    if not 0 < version < LAST_VERSION:
        raise CorruptRecord(str(stream), version=version, what="so many records it cannot have")
    return Head(stream, listed[1], _fields(listed, path), now, version, digest)


def _fields(row: Sequence[Any], path: str) -> HeadFields:
    """The fields in a row of what is listed, if all of it is what it must be."""
    id, incarnation, status, label, owner, due_at, expires_at = row  # noqa: A001
    if type(id) is not str or type(incarnation) is not bytes:
        raise _not_ours(path)
    if type(status) not in _TEXT or type(owner) not in _TEXT or type(label) not in _BYTES:
        raise _not_ours(path)
    if type(due_at) not in _TIME or type(expires_at) not in _TIME:
        raise _not_ours(path)
    return HeadFields(status, label, owner, due_at, expires_at)


_NO_RECORDS = "there is no record of it"
_TEXT, _BYTES, _TIME = (str, type(None)), (bytes, type(None)), (float, type(None))


def _not_ours(path: str) -> CorruptRecord:
    return CorruptRecord(path, what="a row of its tables holds what these tables cannot hold")


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is at this path; None if there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _size(path: str) -> int:
    # stat only: opening the database file ourselves and closing it again would drop SQLite's POSIX locks.
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def raise_translated(error: BaseException, path: str) -> NoReturn:
    """Raise the driver's error as ours; anything else as it is."""
    if isinstance(error, UnicodeDecodeError):
        raise CorruptRecord(path, what="an id in it is not valid text") from None
    if isinstance(error, apsw.Error):
        raise translate(error, path) from error
    raise error
