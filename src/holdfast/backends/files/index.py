"""The index of the files, for listings: an SQLite database with one row per stream.

It is derived from the files, never synced, and may be deleted at any time. A row is marked dirty
before its file is changed and clean afterwards, so that after a kill it is known which rows to
distrust.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import apsw
import msgspec

from ..interface import Cursor, HeadFields, StreamKey
from ..sqlite.schema import transaction

FORMAT = 1

_SCHEMA = """
CREATE TABLE meta(format INTEGER, boot TEXT, device INTEGER, inode INTEGER);
CREATE TABLE streams(
    n INTEGER PRIMARY KEY, tenant BLOB, kind BLOB, id BLOB,
    inode INTEGER, size INTEGER, version INTEGER, hash BLOB, incarnation BLOB,
    status BLOB, due REAL, fields BLOB, ids INTEGER, dirty INTEGER, synced INTEGER,
    UNIQUE(tenant, kind, id));
CREATE INDEX by_status ON streams(tenant, kind, status, id) WHERE status IS NOT NULL;
CREATE INDEX by_due ON streams(tenant, kind, due, id) WHERE due IS NOT NULL;
CREATE INDEX dirty ON streams(tenant, kind) WHERE dirty = 1;
CREATE TABLE ids(
    n INTEGER, append BLOB, first INTEGER, last INTEGER, PRIMARY KEY(n, append)) WITHOUT ROWID;
"""
_COLUMNS = "tenant, kind, id, inode, size, version, hash, incarnation, fields, ids, dirty, synced"
_BY_KEY = "tenant = ? AND kind = ? AND id = ?"
_SELECT_KIND = f"SELECT {_COLUMNS} FROM streams WHERE tenant = ? AND kind = ?"
_IDENTITY = "SELECT boot, device, inode FROM meta WHERE format = ?"
_DELETE_IDS = f"DELETE FROM ids WHERE n = (SELECT n FROM streams WHERE {_BY_KEY})"
_PUT = """
INSERT INTO streams(tenant, kind, id, inode, size, version, hash, incarnation, fields, ids,
    dirty, synced, status, due)
VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT(tenant, kind, id) DO UPDATE SET
    inode = excluded.inode, size = excluded.size, version = excluded.version, hash = excluded.hash,
    incarnation = excluded.incarnation, fields = excluded.fields, ids = excluded.ids,
    dirty = excluded.dirty, synced = excluded.synced, status = excluded.status, due = excluded.due
"""
_MARK = """
INSERT INTO streams(tenant, kind, id, inode, size, version, hash, incarnation, fields, ids,
    dirty, synced)
VALUES(?, ?, ?, 0, 0, 0, x'', x'', ?, 0, 1, 0) ON CONFLICT(tenant, kind, id) DO UPDATE SET dirty = 1
"""


class Identity(NamedTuple):
    """The owner of an index: one boot of the machine and one root folder, but no copy of it."""

    boot: str
    device: int
    inode: int


class FileIndexRow(NamedTuple):
    """The state of a stream's file when it was last acknowledged or read.

    At version 0, the stream was deleted or never stored. `ids` counts its append ids in the index.
    `synced` is False after a rebuild: the file was valid, but may not be on disk.
    """

    stream: StreamKey
    inode: int
    size: int
    version: int
    hash: bytes
    incarnation: bytes
    fields: HeadFields
    ids: int = 0
    dirty: bool = False
    synced: bool = True


IndexPage = tuple[Sequence[FileIndexRow], Sequence[FileIndexRow]]
"""The clean rows of a page in order, and all dirty rows of the kind."""

Change = tuple[FileIndexRow, Sequence[tuple[bytes, int, int]]]
"""A row and the append ids (with first and last version) that are new in it."""


class FileIndex:
    """One SQLite database. The owner ensures that only one thread at a time uses it."""

    def __init__(self, path: str) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
        if path == ":memory:":
            flags |= apsw.SQLITE_OPEN_CREATE
        self._db = apsw.Connection(path, flags=flags)
        self.inode = 0 if path == ":memory:" else os.stat(path, follow_symlinks=False).st_ino
        # Without this, the last connection to close would delete the log by its name, which may by
        # then be the name of a new index's log.
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        for pragma in (
            "busy_timeout = 30000",
            "synchronous = OFF",
            "journal_mode = WAL",
            "trusted_schema = OFF",
        ):
            self._db.execute(f"PRAGMA {pragma}").fetchall()

    def identity(self) -> Identity | None:
        """Return the owner of the index; None if it is incomplete or has another format."""
        with suppress(apsw.SQLError):
            for boot, device, inode in self._db.execute(_IDENTITY, (FORMAT,)):
                return Identity(boot, device, inode)
        return None

    def fill(self, identity: Identity, rows: Iterable[FileIndexRow]) -> None:
        """Fill an empty index, in one transaction."""
        with transaction(self._db):
            self._db.execute(_SCHEMA).fetchall()
            for row in rows:
                self._db.execute(_PUT, _values(row))
            self._db.execute("INSERT INTO meta VALUES(?, ?, ?, ?)", (FORMAT, *identity))

    def get(self, stream: StreamKey) -> FileIndexRow | None:
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM streams WHERE {_BY_KEY}", _key(stream)
        ).fetchone()
        return _row(found) if found else None

    def mark_dirty(self, streams: Iterable[StreamKey]) -> None:
        """Mark the rows of these streams as dirty until they are stored again."""
        with transaction(self._db):
            for stream in streams:
                self._db.execute(_MARK, (*_key(stream), _NO_FIELDS))

    def put(self, changes: Iterable[Change]) -> None:
        """Store rows, each with the append ids that are new in it.

        `row.ids` is the number of ids after that. If the index lacks an earlier id, it does not
        store the new ones either; `has_all_ids` detects that.
        """
        with transaction(self._db):
            for row, new in changes:
                sql = f"SELECT ids FROM streams WHERE {_BY_KEY} AND incarnation = ?"
                known = self._db.execute(sql, (*_key(row.stream), row.incarnation)).fetchone()
                if known is None:  # the ids are those of a deleted incarnation
                    self._db.execute(_DELETE_IDS, _key(row.stream))
                before = known[0] if known else 0
                complete = before == row.ids - len(new)
                self._db.execute(_PUT, _values(row if complete else row._replace(ids=before)))
                if complete:
                    self._add_ids(row.stream, new)

    def replace_ids(self, stream: StreamKey, ids: Sequence[tuple[bytes, int, int]]) -> None:
        """Replace all append ids of a stream."""
        with transaction(self._db):
            self._db.execute(_DELETE_IDS, _key(stream))
            self._add_ids(stream, ids)
            self._db.execute(
                f"UPDATE streams SET ids = ? WHERE {_BY_KEY}", (len(ids), *_key(stream))
            )

    def has_all_ids(self, stream: StreamKey, ids: int) -> bool:
        """Return whether the index has all append ids of a stream; `ids` is their number."""
        found = self._db.execute(
            f"SELECT ids FROM streams WHERE {_BY_KEY}", _key(stream)
        ).fetchone()
        return found is not None and found[0] == ids

    def find_id(self, stream: StreamKey, append: bytes) -> tuple[int, int] | None:
        """Return the first and last version of an append id, None if it is not in the index."""
        sql = f"SELECT first, last FROM ids JOIN streams USING(n) WHERE {_BY_KEY} AND append = ?"
        found = self._db.execute(sql, (*_key(stream), append)).fetchone()
        return (found[0], found[1]) if found else None

    def _add_ids(self, stream: StreamKey, ids: Iterable[tuple[bytes, int, int]]) -> None:
        for known in ids:
            self._db.execute(
                f"INSERT OR REPLACE INTO ids SELECT n, ?, ?, ? FROM streams WHERE {_BY_KEY}",
                (*known, *_key(stream)),
            )

    def heads(
        self, tenant: str, kind: str, status: str | None, after: str, limit: int
    ) -> IndexPage:
        """Return the clean rows of a page in order, and all dirty rows of the kind."""
        where, values = "dirty = 0 AND version > 0 AND id > ?", [after.encode()]
        if status is not None:
            where, values = f"{where} AND status = ?", [*values, status.encode()]
        return self._page(tenant, kind, f"{where} ORDER BY id LIMIT ?", [*values, limit])

    def due(
        self, tenant: str, kind: str, before: float | None, after: Cursor | None, limit: int
    ) -> IndexPage:
        """Return the clean rows of a page in the order of `due`, and all dirty rows of the kind."""
        where, values = "dirty = 0 AND version > 0 AND due IS NOT NULL", list[Any]()
        if before is not None:
            where, values = f"{where} AND due <= ?", [before]
        if after is not None:
            where, values = (
                f"{where} AND (due, id) > (?, ?)",
                [*values, after[0], after[1].encode()],
            )
        return self._page(tenant, kind, f"{where} ORDER BY due, id LIMIT ?", [*values, limit])

    def _page(self, tenant: str, kind: str, where: str, values: Sequence[Any]) -> IndexPage:
        of_kind = (tenant.encode(), kind.encode())
        # One transaction: a row that becomes clean in between must not be missing in both results.
        with transaction(self._db, "DEFERRED"):
            clean = self._db.execute(f"{_SELECT_KIND} AND {where}", (*of_kind, *values)).fetchall()
            dirty = self._db.execute(f"{_SELECT_KIND} AND dirty = 1", of_kind).fetchall()
        return [_row(found) for found in clean], [_row(found) for found in dirty]

    def data_bytes(self) -> int:
        """Return the size of all streams in bytes."""
        [[total]] = self._db.execute("SELECT coalesce(sum(size), 0) FROM streams").fetchall()
        return int(total or 0)

    def close(self) -> None:
        self._db.close()


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if unknown, then no index is reused."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_NO_FIELDS = msgspec.json.encode(HeadFields())
_decode_fields = msgspec.json.Decoder(HeadFields).decode


def _key(stream: StreamKey) -> tuple[bytes, bytes, bytes]:
    # Bytes have the order of the backend interface, and NUL is not special in them.
    return stream.tenant.encode(), stream.kind.encode(), stream.id.encode()


def _values(row: FileIndexRow) -> tuple[Any, ...]:
    fields = row.fields
    return (
        *_key(row.stream),
        *(row.inode, row.size, row.version, row.hash, row.incarnation),
        *(msgspec.json.encode(fields), row.ids, int(row.dirty), int(row.synced)),
        *(None if fields.status is None else fields.status.encode(), fields.due),
    )


def _row(found: Sequence[Any]) -> FileIndexRow:
    *key, inode, size, version, digest, incarnation, fields, ids, dirty, synced = found
    try:
        stream = StreamKey(*(part.decode() for part in key))
        known = _decode_fields(fields)
    except (AttributeError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise apsw.CorruptError("a row of the index is not valid") from error
    return FileIndexRow(
        stream, inode, size, version, digest, incarnation, known, ids, bool(dirty), bool(synced)
    )
