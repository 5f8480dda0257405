"""The default backend: one SQLite file in WAL mode, through apsw.

One connection writes, a few read. `append` stores a whole batch in one transaction, so that all
waiting callers share one disk sync. The append itself is in `writer.py`, the SQL in `sql.py`, the
settings of connections in `connection.py`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import apsw

from ...errors import OutcomeUnknown, StoreClosed, Unavailable
from .. import clock
from ..filesystem import refuse_network_filesystem
from ..fork import Forkable, register_forkable
from ..interface import (
    PAGE_BYTES,
    Append,
    AppendResult,
    Cursor,
    Description,
    Head,
    HeadSummary,
    IndexFile,
    Record,
    StreamKey,
    VersionMismatch,
)
from . import sql
from .backup import back_up
from .checkpointer import Checkpointer
from .connection import MAX_VALUE_BYTES, close, connect, create_file
from .errors import foreign_row_error, is_storage_full, raise_translated, storage_full_error
from .writer import END_OF_NUMBERS, SQLiteWriter, decode_fields, decode_head

CHECKPOINT_PAGES = 1000
MAX_IDLE_READERS = 8
FILE_CHECK_SECONDS = 0.01
"""How often a busy writer checks that its files are still there; each commit would be too often."""
WAL_WARNING_BYTES = 256 * 1024 * 1024

T = TypeVar("T")


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
        create_file(self._path)
        self._file = _identify_file(self._path)
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
        self._active_readers = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        self._checkpointer = Checkpointer(self._connect)

    # -- writing -----------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        def work(writer: SQLiteWriter) -> list[AppendResult | VersionMismatch]:
            now = clock.time()
            answers = [writer.append(append, now) for append in batch]
            writer.flush()
            return answers

        return self._transact(work)

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        return self._transact(lambda writer: writer.delete(stream, expected))

    def _transact(self, work: Callable[[SQLiteWriter], T]) -> T:
        """Run `work` in a transaction and commit it durably.

        After `OutcomeUnknown` the commit may be on disk; after any other error it is rolled back.
        """
        with self._write_lock:
            self._check_open()
            writer = self._writer or self._open_writer()
            try:
                self._begin(writer)
                result = work(writer)
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
                    # The commit frame comes last in the WAL. It did not fit: nothing is committed.
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
        writer.begin()

    @staticmethod
    def _commit(writer: SQLiteWriter) -> None:
        writer.commit()

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

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        statement, start = (
            (sql.READ_REVERSE, after or END_OF_NUMBERS) if reverse else (sql.READ, after)
        )
        records: list[Record] = []
        append, size = records.append, 0
        with self._reader() as reader:
            for row in reader.execute(statement, (*stream, start, -1 if limit is None else limit)):
                version, append_id, digest, body = row
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
        with self._reader() as reader:
            row = reader.execute(sql.HEAD, stream).fetchone()
        return decode_head(stream, row, clock.time(), self._path) if row else None

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
        with self._reader() as reader:
            rows: list[Any] = reader.execute(statement, values).fetchall()
        now = clock.time()
        return [
            HeadSummary(
                StreamKey(tenant, kind, row[0]), row[1], decode_fields(row, self._path), now
            )
            for row in rows
        ]

    def scrub(self) -> None:
        """Empty the write-ahead log. In the database file, deleted data is already overwritten."""
        with self._reader() as connection:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    @contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        """Yield a connection for one statement.

        No transaction outlives the block, so readers never delay checkpoints.
        """
        with self._read_lock:
            self._check_open()
            self._check_files(None)
            reader = self._idle.pop() if self._idle else None
            self._active_readers += 1
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
                self._active_readers -= 1
                if reader is not None and not self._closed and len(self._idle) < MAX_IDLE_READERS:
                    self._idle.append(reader)
                    reader = None
            if reader is not None:
                close(reader)

    # -- lifecycle ---------------------------------------------------------------------------------

    def describe(self) -> Description:
        self._check_open()
        sizes = {"database": _file_size(self._path), "wal": _file_size(self._path + "-wal")}
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

    def index_locations(self) -> Sequence[IndexFile]:
        return [IndexFile(self._path, shared=True)]

    def backup(self, path: str, *, overwrite: bool) -> int:
        """Write the store, as it is now, to another file; return its size in bytes."""
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
        while self._active_readers:
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
