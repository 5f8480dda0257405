"""The index beside the files: what can be listed, and which streams have to be looked at first.

It is derived from the files, never synced, and may be deleted at any time. A row is marked dirty
before its file is touched and cleaned after, so that after a kill it is known which rows not to believe.
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
CREATE TABLE ids(n INTEGER, append BLOB, first INTEGER, last INTEGER, PRIMARY KEY(n, append)) WITHOUT ROWID;
"""
_COLUMNS = "tenant, kind, id, inode, size, version, hash, incarnation, fields, ids, dirty, synced"
_THIS = "tenant = ? AND kind = ? AND id = ?"
_OF_KIND = f"SELECT {_COLUMNS} FROM streams WHERE tenant = ? AND kind = ?"
_IDENTITY = "SELECT boot, device, inode FROM meta WHERE format = ?"
_FORGET_IDS = f"DELETE FROM ids WHERE n = (SELECT n FROM streams WHERE {_THIS})"
_PUT = """
INSERT INTO streams(tenant, kind, id, inode, size, version, hash, incarnation, fields, ids, dirty, synced, status, due)
VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT(tenant, kind, id) DO UPDATE SET
    inode = excluded.inode, size = excluded.size, version = excluded.version, hash = excluded.hash,
    incarnation = excluded.incarnation, fields = excluded.fields, ids = excluded.ids,
    dirty = excluded.dirty, synced = excluded.synced, status = excluded.status, due = excluded.due
"""
_MARK = """
INSERT INTO streams(tenant, kind, id, inode, size, version, hash, incarnation, fields, ids, dirty, synced)
VALUES(?, ?, ?, 0, 0, 0, x'', x'', ?, 0, 1, 0) ON CONFLICT(tenant, kind, id) DO UPDATE SET dirty = 1
"""


class Identity(NamedTuple):
    """What an index belongs to: one boot of the machine, and one root folder (a copy of it is another)."""

    boot: str
    device: int
    inode: int


class FileIndexRow(NamedTuple):
    """What was known of a stream's file when it was last acknowledged or read. Version 0: deleted, or never stored.

    `ids` counts the append ids the index has for it. `synced` is False after a rebuild: the
    file was valid, but nobody has yet made sure that it is on the disk.
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


Change = tuple[FileIndexRow, Sequence[tuple[bytes, int, int]]]
"""A row and the append ids (with first and last version) that are new in it."""


class FileIndex:
    """One SQLite database, for one thread at a time: its owner sees to that."""

    def __init__(self, path: str) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
        if path == ":memory:":
            flags |= apsw.SQLITE_OPEN_CREATE
        self._db = apsw.Connection(path, flags=flags)
        self.inode = 0 if path == ":memory:" else os.stat(path, follow_symlinks=False).st_ino
        # Without this the last one to close would delete the log by its name, which
        # may by then be that of a new index.
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        for pragma in (
            "busy_timeout = 30000",
            "synchronous = OFF",
            "journal_mode = WAL",
            "trusted_schema = OFF",
        ):
            self._db.execute(f"PRAGMA {pragma}").fetchall()

    def identity(self) -> Identity | None:
        """What the index says it belongs to; None if it was never finished, or has another format."""
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
            f"SELECT {_COLUMNS} FROM streams WHERE {_THIS}", _key(stream)
        ).fetchone()
        return _row(found) if found else None

    def mark(self, streams: Iterable[StreamKey]) -> None:
        """Say that the rows of these streams are not to be believed until they are put again."""
        with transaction(self._db):
            for stream in streams:
                self._db.execute(_MARK, (*_key(stream), _NO_FIELDS))

    def put(self, changes: Iterable[Change]) -> None:
        """Store rows, each with the append ids that are new in it.

        `row.ids` is the number of ids after that. If the index did not know all ids before, it
        does not take the new ones either; `knows` will tell.
        """
        with transaction(self._db):
            for row, new in changes:
                sql = f"SELECT ids FROM streams WHERE {_THIS} AND incarnation = ?"
                known = self._db.execute(sql, (*_key(row.stream), row.incarnation)).fetchone()
                if known is None:  # the ids are those of a former life
                    self._db.execute(_FORGET_IDS, _key(row.stream))
                before = known[0] if known else 0
                complete = before == row.ids - len(new)
                self._db.execute(_PUT, _values(row if complete else row._replace(ids=before)))
                if complete:
                    self._add_ids(row.stream, new)

    def load(self, stream: StreamKey, ids: Sequence[tuple[bytes, int, int]]) -> None:
        """Take over all append ids of a stream."""
        with transaction(self._db):
            self._db.execute(_FORGET_IDS, _key(stream))
            self._add_ids(stream, ids)
            self._db.execute(f"UPDATE streams SET ids = ? WHERE {_THIS}", (len(ids), *_key(stream)))

    def knows(self, stream: StreamKey, ids: int) -> bool:
        """Whether all of this number of append ids are in the index."""
        found = self._db.execute(f"SELECT ids FROM streams WHERE {_THIS}", _key(stream)).fetchone()
        return found is not None and found[0] == ids

    def find(self, stream: StreamKey, append: bytes) -> tuple[int, int] | None:
        """The versions of an append id."""
        sql = f"SELECT first, last FROM ids JOIN streams USING(n) WHERE {_THIS} AND append = ?"
        found = self._db.execute(sql, (*_key(stream), append)).fetchone()
        return (found[0], found[1]) if found else None

    def _add_ids(self, stream: StreamKey, ids: Iterable[tuple[bytes, int, int]]) -> None:
        for known in ids:
            self._db.execute(
                f"INSERT OR REPLACE INTO ids SELECT n, ?, ?, ? FROM streams WHERE {_THIS}",
                (*known, *_key(stream)),
            )

    def heads(
        self, tenant: str, kind: str, status: str | None, after: str, limit: int
    ) -> tuple[Sequence[FileIndexRow], Sequence[FileIndexRow]]:
        """Clean rows of a page in order, and all dirty rows of the kind."""
        where, values = "dirty = 0 AND version > 0 AND id > ?", [after.encode()]
        if status is not None:
            where, values = f"{where} AND status = ?", [*values, status.encode()]
        return self._page(tenant, kind, f"{where} ORDER BY id LIMIT ?", [*values, limit])

    def due(
        self, tenant: str, kind: str, before: float | None, after: Cursor | None, limit: int
    ) -> tuple[Sequence[FileIndexRow], Sequence[FileIndexRow]]:
        """The same in the order of `due`."""
        where, values = "dirty = 0 AND version > 0 AND due IS NOT NULL", list[Any]()
        if before is not None:
            where, values = f"{where} AND due <= ?", [before]
        if after is not None:
            where, values = (
                f"{where} AND (due, id) > (?, ?)",
                [*values, after[0], after[1].encode()],
            )
        return self._page(tenant, kind, f"{where} ORDER BY due, id LIMIT ?", [*values, limit])

    def _page(
        self, tenant: str, kind: str, where: str, values: Sequence[Any]
    ) -> tuple[list[FileIndexRow], list[FileIndexRow]]:
        of_kind = (tenant.encode(), kind.encode())
        # One transaction: a row that is cleaned in between must not slip through both questions.
        with transaction(self._db, "DEFERRED"):
            clean = self._db.execute(f"{_OF_KIND} AND {where}", (*of_kind, *values)).fetchall()
            dirty = self._db.execute(f"{_OF_KIND} AND dirty = 1", of_kind).fetchall()
        return [_row(found) for found in clean], [_row(found) for found in dirty]

    def data_bytes(self) -> int:
        """The bytes of all streams."""
        [[total]] = self._db.execute("SELECT coalesce(sum(size), 0) FROM streams").fetchall()
        return int(total or 0)

    def close(self) -> None:
        self._db.close()


def boot_id() -> str:
    """Which boot of the machine this is. Empty where that is unknown: then no index outlives its process."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_NO_FIELDS = msgspec.json.encode(HeadFields())
_decode_fields = msgspec.json.Decoder(HeadFields).decode


def _key(stream: StreamKey) -> tuple[bytes, bytes, bytes]:
    # As bytes: they order as the seam wants, and NUL is nothing special in them.
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
        raise apsw.CorruptError("a row of the index is not what was stored") from error
    return FileIndexRow(
        stream, inode, size, version, digest, incarnation, known, ids, bool(dirty), bool(synced)
    )
