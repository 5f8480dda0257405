"""The default backend: one SQLite file in WAL mode, through apsw.

One connection writes, a few read. `append` stores a whole batch in one transaction, so that all
waiting callers share one disk sync. The SQL is in `sql.py`, the settings of connections are in
`connection.py`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import apsw
import msgspec

from ...errors import CorruptRecord, OutcomeUnknown, StoreClosed, TooLarge, Unavailable
from .. import clock
from ..filesystem import refuse_network_filesystem
from ..fork import Forkable, register_forkable
from ..interface import (
    PAGE_BYTES,
    Append,
    AppendResult,
    BackendProblem,
    CacheSize,
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
from .check import add_tombstone, check_database, rebuild_derived
from .checkpointer import Checkpointer
from .connection import MAX_VALUE_BYTES, close, connect, connect_readonly, create_file, is_readonly
from .errors import (
    foreign_row_error,
    is_storage_full,
    raise_translated,
    readonly_error,
    storage_full_error,
)
from .listing import (
    END_OF_NUMBERS,
    NO_RECORDS,
    StreamLister,
    decode_head,
    find_append_id,
    list_scopes,
)

CHECKPOINT_PAGES = 1000
MAX_IDLE_READERS = 8
MAX_CACHED_STREAMS = 10_000
FILE_CHECK_SECONDS = 0.01
"""How often a busy writer checks that its files still exist; each commit would be too often."""
WAL_WARNING_BYTES = 256 * 1024 * 1024

T = TypeVar("T")


class StreamRow(msgspec.Struct, frozen=True, gc=False):
    """The number of a stream, under which its records are stored, and its position."""

    number: int
    version: int
    hash: bytes
    incarnation: bytes

    @property
    def position(self) -> tuple[int, bytes, bytes]:
        return self.version, self.hash, self.incarnation


class SQLiteWriter:
    """The writing connection. It caches stream positions until another connection writes."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.execute = self.cursor.execute
        self.rows: dict[StreamKey, StreamRow] = {}
        self.records: list[tuple[int, int, bytes, bytes, bytes]] = []
        self.pending_ids: dict[tuple[StreamKey, bytes], tuple[int, int]] = {}
        self.data_version = -1
        self.wal: tuple[int, int] | None = None
        self.check_at = 0.0

    def clear(self) -> None:
        """Forget cached positions and records that are not inserted yet."""
        self.records, self.rows, self.pending_ids = [], {}, {}

    def flush(self) -> None:
        """Insert the records collected so far, with one statement for the whole batch."""
        if self.records:
            try:
                self.cursor.executemany(sql.INSERT_RECORD, self.records)
            except apsw.TooBigError as error:
                raise TooLarge(
                    f"a record in SQLite must have at most {MAX_VALUE_BYTES} bytes; nothing was "
                    "written. Attach large values as files"
                ) from error
            self.records, self.pending_ids = [], {}

    def append_batch(self, batch: Sequence[Append]) -> list[AppendResult | VersionMismatch]:
        """Store a batch, inside the transaction."""
        now, answers = clock.time(), []
        for append in batch:
            answers.append(self.append(append, now))
        self.flush()
        return answers

    def append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        """Store one member of a batch, inside the transaction."""
        stream, version, append_id = append.stream, append.expected, append.id
        indexed = append_id[0] >= 0x80  # `append.indexed`, written out: every append runs this
        if indexed:
            known = self.pending_ids.get((stream, append_id)) or find_append_id(
                self.cursor, stream, append_id, self.connection.filename
            )
            if known:
                return AppendResult(*known, True, now)
        row = self.rows.get(stream)
        if (
            row is not None
            and row.version == version
            and row.hash == append.expected_hash
            and row.incarnation == append.incarnation
        ):
            number = row.number
        else:
            answer = self._locate(append, now)
            if not isinstance(answer, int):
                return answer
            number = answer
        if append.fields is not None and version:  # a new stream has them already
            self.execute(sql.SET_FIELDS, (*_fields_to_columns(append.fields), *stream))
        digest = b""
        for digest, body in append.records:
            version += 1
            self.records.append((number, version, append_id, digest, body))
        self.rows[stream] = StreamRow(number, version, digest, append.incarnation)
        if indexed:
            self.pending_ids[stream, append_id] = append.expected + 1, version
        return AppendResult(append.expected + 1, version, False, now)

    def _locate(self, append: Append, now: float) -> AppendResult | VersionMismatch | int:
        """Look up a stream that is not cached at the expected position.

        Return its number if the append can be stored, otherwise the answer to the append.
        """
        if append.stream in self.rows:  # its newest records may not be inserted yet
            self.flush()
        row = self.read_row(append.stream)
        if row is None:
            number = None if append.expected else self._create(append)
            return VersionMismatch(None) if number is None else number
        if row.position == (append.expected, append.expected_hash, append.incarnation):
            return row.number
        if row.incarnation == append.incarnation:
            last = append.expected
            for stored in self.execute(sql.APPEND_IDS_AFTER, (row.number, append.expected)):
                if stored != (last + 1, append.id):
                    break
                last += 1
            if last > append.expected:
                return AppendResult(append.expected + 1, last, True, now)
        [head] = self.execute(sql.HEAD, append.stream).fetchall()
        return VersionMismatch(decode_head(append.stream, head, now, self.connection.filename))

    def read_row(self, stream: StreamKey) -> StreamRow | None:
        """Read the number and position of a stream; None if it does not exist."""
        found = self.execute(sql.POSITION, stream).fetchone()
        if found is None:
            return None
        number, version, digest, incarnation = found
        if version is None:
            raise CorruptRecord(str(stream), what=NO_RECORDS)
        if not (
            type(number) is type(version) is int and type(digest) is type(incarnation) is bytes
        ):
            raise foreign_row_error(self.connection.filename)
        return StreamRow(number, version, digest, incarnation)

    def _create(self, append: Append) -> int | None:
        """Create a stream and return its number; None if its incarnation was deleted before."""
        if self.execute(sql.FIND_TOMBSTONE, (*append.stream, append.incarnation)).fetchone():
            return None
        [[number]] = self.execute(sql.NEXT_NUMBER).fetchall() or [(None,)]
        if type(number) is not int or not 0 < number < END_OF_NUMBERS:
            raise foreign_row_error(self.connection.filename)
        columns = _fields_to_columns(append.fields or HeadFields())
        self.execute(sql.CREATE_STREAM, (*append.stream, append.incarnation, number, *columns))
        return number

    def delete(self, stream: StreamKey, expected: Head) -> bool:
        """Delete a stream that is at the expected position, inside the transaction."""
        self.rows.pop(stream, None)
        row = self.read_row(stream)
        if row is None or row.position != expected.position:
            return False
        self.execute(sql.DELETE_RECORDS, (row.number,))
        self.execute(sql.DELETE_STREAM, stream)
        self._add_tombstone(stream, expected.incarnation)
        return True

    def _add_tombstone(self, stream: StreamKey, incarnation: bytes) -> None:
        self.execute(sql.INSERT_TOMBSTONE, (*stream, incarnation))
        [[tombstones]] = self.execute(sql.READ_TOMBSTONES).fetchall() or [(None,)]
        if type(tombstones) is not bytes:
            raise foreign_row_error(self.connection.filename)
        self.execute(sql.SET_TOMBSTONES, (add_tombstone(tombstones, stream, incarnation),))

    def discard(self, stream: StreamKey) -> bool:
        """Delete a stream that has no readable head, inside the transaction."""
        self.rows.pop(stream, None)
        try:
            if (head := self.execute(sql.HEAD, stream).fetchone()) is not None:
                decode_head(stream, head, 0.0, self.connection.filename)
            return False
        except CorruptRecord:
            pass
        [[number, incarnation, streams]] = self.execute(sql.NUMBER, stream).fetchall()
        if streams == 1:  # otherwise the number was altered, and the records are another stream's
            self.execute(sql.DELETE_RECORDS, (number,))
        self.execute(sql.DELETE_STREAM, stream)
        if type(incarnation) is bytes:
            self._add_tombstone(stream, incarnation)
        return True

    def replace_fields(self, expected: Head, fields: HeadFields) -> bool:
        """Replace the fields of a stream at this position, inside the transaction."""
        row = self.read_row(expected.stream)
        if row is None or row.position != expected.position:
            return False
        self.execute(sql.SET_FIELDS, (*_fields_to_columns(fields), *expected.stream))
        return True


def _fields_to_columns(fields: HeadFields) -> tuple[Any, ...]:
    return fields.status, fields.label, fields.owner, fields.due_at, fields.expires_at, fields.due


class SQLiteBackend(Forkable):
    """Stores streams in one SQLite file.

    `durability="disk"` syncs every commit to disk. With `"process"`, commits survive the death of
    the process, but a power loss may lose the newest ones. `vfs` names an apsw VFS, for tests that
    simulate disk faults.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["disk", "process"] = "disk",
        vfs: str | None = None,
    ) -> None:
        if durability not in ("disk", "process"):
            raise ValueError(f"durability must be 'disk' or 'process', got {durability!r}")
        self._path = os.path.abspath(os.fspath(path))
        self._durability, self._vfs = durability, vfs
        self._closed = False
        self._reset()
        refuse_network_filesystem(os.path.dirname(self._path))
        self._readonly = is_readonly(self._path)
        if not self._readonly:
            create_file(self._path)
        self._file = _identify_file(self._path)
        if self._readonly:
            self._use_reader(lambda reader: None)  # it can be read
        else:
            with self._write_lock:
                self._open_writer()
        register_forkable(self)

    def _reset(self) -> None:
        self._write_lock = threading.Lock()
        # A Lock: the methods of a Condition are Python code, and an interrupt inside one could
        # leave it locked.
        self._read_lock = threading.Lock()
        self._writer: SQLiteWriter | None = None
        self._idle: list[apsw.Connection] = []
        self._reading: set[object] = set()
        """The calls that use a connection. A fork waits until there is none."""
        self._had_log = os.path.exists(f"{self._path}-wal")
        self._checkpoint_at = CHECKPOINT_PAGES
        self._checkpointer = Checkpointer(self._connect)

    # -- writing -----------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        return self._transact(SQLiteWriter.append_batch, batch)

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        return self._transact(SQLiteWriter.delete, stream, expected)

    def discard(self, stream: StreamKey) -> bool:
        return self._transact(SQLiteWriter.discard, stream)

    def replace_fields(self, expected: Head, fields: HeadFields) -> bool:
        return self._transact(SQLiteWriter.replace_fields, expected, fields)

    def _transact(self, work: Callable[..., T], *args: object) -> T:
        """Run `work(writer, *args)` in a transaction and commit it durably.

        After `OutcomeUnknown` the commit may be on disk; after any other error it is rolled back.
        """
        with self._write_lock:
            if self._closed:
                self._check_open()
            if self._readonly:
                raise readonly_error(self._path)
            writer = self._writer or self._open_writer()
            try:
                self._begin(writer)
                result = work(writer, *args)
                if time.monotonic() > writer.check_at:
                    self._check_files(writer.wal)
                    writer.check_at = time.monotonic() + FILE_CHECK_SECONDS
            except BaseException as error:
                full = is_storage_full(error, writer.connection)
                self._abandon(writer)
                if full:
                    raise storage_full_error(self._path) from error
                raise_translated(error, self._path)
            try:
                self._commit(writer)
            except BaseException as error:
                if is_storage_full(error, writer.connection):
                    # The commit frame, the last one in the WAL, did not fit: nothing is committed.
                    self._abandon(writer)
                    raise storage_full_error(self._path) from error
                self._discard(writer)
                if isinstance(error, apsw.Error):
                    raise OutcomeUnknown(
                        "SQLite failed during a commit that may be on disk; retry with the same id"
                    ) from error
                raise
            if writer.wal is None:
                writer.wal = _identify_file(self._path + "-wal")
            return result

    # Tests override these two to inject faults.

    @staticmethod
    def _begin(writer: SQLiteWriter) -> None:
        """Take the write lock. Clear the cache if another connection has written."""
        writer.execute(sql.BEGIN)
        changed = writer.connection.data_version() != writer.data_version
        if changed or len(writer.rows) > MAX_CACHED_STREAMS:
            writer.clear()

    @staticmethod
    def _commit(writer: SQLiteWriter) -> None:
        writer.execute("COMMIT")
        writer.data_version = writer.connection.data_version()

    def _abandon(self, writer: SQLiteWriter) -> None:
        """Roll back; if that fails, close the connection, which rolls back too."""
        writer.clear()
        try:
            if writer.connection.in_transaction:
                writer.execute("ROLLBACK")
        except apsw.Error:
            self._discard(writer)

    def _discard(self, writer: SQLiteWriter) -> None:
        self._writer = None
        close(writer.connection)

    def _open_writer(self) -> SQLiteWriter:
        writer = self._writer = SQLiteWriter(self._connect())
        writer.connection.set_wal_hook(self._on_commit)
        return writer

    def _on_commit(self, connection: apsw.Connection, database: str, pages: int) -> int:
        # Checkpoints run in their own thread: here they would add two syncs to a commit.
        if pages >= self._checkpoint_at:
            # Even if the checkpoint fails, the next one is due only after CHECKPOINT_PAGES more.
            self._checkpoint_at = pages + CHECKPOINT_PAGES
            self._checkpointer.wake()
        elif pages < CHECKPOINT_PAGES:
            self._checkpoint_at = CHECKPOINT_PAGES
        return 0

    # -- reading -----------------------------------------------------------------------------------

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        return self._use_reader(
            lambda reader: find_append_id(reader.cursor(), stream, id, self._path)
        )

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        statement, start = (
            (sql.READ_REVERSE, after or END_OF_NUMBERS) if reverse else (sql.READ, after)
        )
        values = (*stream, start, -1 if limit is None else limit)
        return self._use_reader(lambda reader: self._read_page(reader.execute(statement, values)))

    def _read_page(self, rows: Iterable[tuple[Any, ...]]) -> list[Record]:
        records: list[Record] = []
        append, size = records.append, 0
        for version, append_id, digest, body in rows:
            # A strict table has no other types, unless it was replaced by another one.
            if not (
                type(body) is type(digest) is type(append_id) is bytes and type(version) is int
            ):
                raise foreign_row_error(self._path)
            size += len(body)
            if size > PAGE_BYTES and records:
                break
            append(Record(version, append_id, digest, body))
        return records

    def head(self, stream: StreamKey) -> Head | None:
        return self.first_head((stream,))

    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        def find(reader: apsw.Connection) -> Head | None:
            for stream in streams:
                if row := reader.execute(sql.HEAD, stream).fetchone():
                    return decode_head(stream, row, clock.time(), self._path)
            return None

        return self._use_reader(find)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[HeadSummary]:
        return self._use_reader(
            lambda reader: StreamLister(reader, self._path, tenant, kind).list_heads(
                status, after, limit
            )
        )

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
        start = after or (float("-inf"), "")
        return self._use_reader(
            lambda reader: StreamLister(reader, self._path, tenant, kind).list_due(
                until, start, limit
            )
        )

    def list_scopes(self) -> Sequence[tuple[str, str]]:
        return self._use_reader(lambda reader: list_scopes(reader, self._path))

    def check(self) -> Iterator[BackendProblem]:
        # All at once: a reader that waits for its caller would delay checkpoints.
        yield from self._use_reader(check_database)

    def rebuild(self) -> int:
        self.check_writable()
        with self._write_lock:
            return self._use_reader(rebuild_derived)

    def check_writable(self) -> None:
        if self._readonly:
            raise readonly_error(self._path)

    def scrub(self) -> None:
        """Empty the write-ahead log. In the database file, deleted data is already overwritten."""
        self._use_reader(lambda reader: reader.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))

    def _use_reader(self, work: Callable[[apsw.Connection], T]) -> T:
        """Call `work` with a connection for one statement.

        No transaction outlives the call, so readers never delay checkpoints.
        """
        call, reader = object(), None
        try:
            with self._read_lock:
                self._check_open()
                self._check_files(None)
                if self._readonly and self._had_log != os.path.exists(f"{self._path}-wal"):
                    # A process that may write has started or stopped: see `connect_readonly`.
                    self._had_log = not self._had_log
                    while self._idle:
                        close(self._idle.pop())
                self._reading.add(call)
                reader = self._idle.pop() if self._idle else None
            if reader is None:
                reader = self._connect()
            return work(reader)
        except BaseException as error:
            failed, reader = reader, None
            if failed is not None:
                close(failed)
            raise_translated(error, self._path)
        finally:
            try:  # an interrupt while it waits for the lock must not leave the call behind
                with self._read_lock:
                    if not self._closed and len(self._idle) < MAX_IDLE_READERS:
                        unused, reader = reader, None
                        if unused is not None:
                            self._idle.append(unused)
            finally:
                try:
                    if reader is not None:
                        close(reader)
                finally:
                    self._reading.discard(call)

    # -- lifecycle ---------------------------------------------------------------------------------

    def describe(self) -> Description:
        self._check_open()
        sizes = {"database": _file_size(self._path), "wal": _file_size(self._path + "-wal")}
        warnings = []
        if sizes["wal"] > WAL_WARNING_BYTES:
            warnings.append(
                "the WAL is large: a process keeps a read transaction open, or checkpoints fail"
            )
        if self._readonly:
            warnings.append("it was opened read-only: the permissions or the disk allow no writes")
        return Description(
            engine="sqlite",
            version=apsw.sqlite_lib_version(),
            location=self._path,
            durability=self._durability,
            limits={"record": MAX_VALUE_BYTES},
            sizes=sizes,
            warnings=warnings,
            caches={
                "positions in the database": CacheSize(
                    len(self._writer.rows) if self._writer else 0, MAX_CACHED_STREAMS
                )
            },
        )

    def index_locations(self) -> Sequence[IndexFile]:
        return [IndexFile(self._path, shared=True)]

    def backup(self, path: str, *, overwrite: bool) -> int:
        """Write a snapshot of the store to another file; return its size in bytes."""
        from .backup import back_up

        self._check_open()
        return back_up(self._connect, self._path, path, overwrite=overwrite)

    def close(self) -> None:
        self._closed = True
        self._checkpointer.stop()
        with self._write_lock, self._read_lock:
            self._close_connections()

    def _close_connections(self) -> None:
        """Close the connections that are not in use. The caller has both locks."""
        writer, self._writer = self._writer, None
        if writer:
            close(writer.connection)
        while self._idle:
            close(self._idle.pop())

    def before_fork(self) -> None:
        self._checkpointer.pause()
        self._write_lock.acquire()
        self._read_lock.acquire()
        while self._reading:
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
        """Raise if the files were removed or replaced: SQLite would write to the old ones."""
        if _identify_file(self._path) != self._file or (
            wal is not None and _identify_file(self._path + "-wal") != wal
        ):
            raise Unavailable(
                f"{self._path} or its -wal file was removed or replaced while it was open; "
                "nothing was written. Close the store and open it again"
            )

    def _connect(self) -> apsw.Connection:
        self._check_files(None)
        if self._readonly:
            return connect_readonly(self._path, self._vfs)
        return connect(self._path, durability=self._durability, vfs=self._vfs)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self._path} was closed; open it again")


def _identify_file(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the file at this path; None if it does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _file_size(path: str) -> int:
    # stat: opening and closing the database file ourselves would drop SQLite's POSIX locks.
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
