"""The index of the files, for listings: an SQLite database with one row per stream.

It is derived from the files, never synced, and may be deleted at any time. A row is marked dirty
before its file is changed and clean afterwards, so that after a kill it is known which rows to
distrust.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import apsw
import msgspec

from ..interface import Cursor, HeadFields, StreamKey
from ..sqlite.schema import transact

P = ParamSpec("P")
T = TypeVar("T")
FORMAT = 2

_SCHEMA = """
CREATE TABLE meta(
    format INTEGER NOT NULL, boot TEXT NOT NULL, device INTEGER NOT NULL, inode INTEGER NOT NULL)
    STRICT;
CREATE TABLE streams(
    n INTEGER PRIMARY KEY, tenant BLOB NOT NULL, kind BLOB NOT NULL, id BLOB NOT NULL,
    inode INTEGER NOT NULL, size INTEGER NOT NULL, version INTEGER NOT NULL, hash BLOB NOT NULL,
    incarnation BLOB NOT NULL, fields BLOB NOT NULL, sum INTEGER NOT NULL, status BLOB, due REAL,
    ids INTEGER NOT NULL, dirty INTEGER NOT NULL, synced INTEGER NOT NULL,
    UNIQUE(tenant, kind, id)) STRICT;
CREATE INDEX by_status ON streams(tenant, kind, status, id) WHERE status IS NOT NULL;
CREATE INDEX by_due ON streams(tenant, kind, due, id) WHERE due IS NOT NULL;
CREATE INDEX dirty ON streams(tenant, kind) WHERE dirty <> 0;
CREATE TABLE ids(
    n INTEGER, append BLOB, first INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY(n, append))
    STRICT, WITHOUT ROWID;
"""
_SUMMED = ("tenant", "kind", "id", "inode", "size", "version", "hash", "incarnation", "fields")
_COLUMNS = f"{', '.join(_SUMMED)}, sum, ids, dirty, synced"
_STORED = (*_SUMMED, "sum", "status", "due", "ids", "dirty", "synced")
_BY_KEY = "tenant = ? AND kind = ? AND id = ?"
_SELECT_KIND = f"SELECT {_COLUMNS} FROM streams WHERE tenant = ? AND kind = ?"
# As bytes: text that is not UTF-8 would raise an error of its own.
_READ_SCHEMA = "SELECT CAST(sql AS BLOB) FROM sqlite_schema WHERE sql IS NOT NULL"
_DECLARED = {statement.strip().encode() for statement in _SCHEMA.split(";") if statement.strip()}
_IDENTITY = "SELECT CAST(boot AS BLOB), device, inode FROM meta WHERE format = ?"
_DELETE_IDS = f"DELETE FROM ids WHERE n = (SELECT n FROM streams WHERE {_BY_KEY})"
_PUT = """
INSERT INTO streams(tenant, kind, id, inode, size, version, hash, incarnation, fields, sum,
    status, due, ids, dirty, synced)
VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT(tenant, kind, id) DO UPDATE SET
    inode = excluded.inode, size = excluded.size, version = excluded.version, hash = excluded.hash,
    incarnation = excluded.incarnation, fields = excluded.fields, sum = excluded.sum,
    status = excluded.status, due = excluded.due, ids = excluded.ids, dirty = excluded.dirty,
    synced = excluded.synced
"""
_MARK = f"""
INSERT INTO streams({_COLUMNS})
VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 1, 0) ON CONFLICT(tenant, kind, id) DO UPDATE SET dirty = 1
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


class FileIndexEntry(NamedTuple):
    """A row as it is stored, and the append ids in the index: to be compared, not trusted."""

    stream: StreamKey
    values: Sequence[Any]
    ids: Sequence[Any]

    @property
    def is_dirty(self) -> bool:
        return bool(self.values[_STORED.index("dirty")] != 0)

    def read(self) -> FileIndexRow | None:
        """Return the row; None if it does not match its checksum."""
        values = self.values
        return _row([*values[: len(_SUMMED) + 1], *values[-3:]]) if _is_sound(values) else None

    def find_difference(
        self, row: FileIndexRow, ids: Sequence[tuple[bytes, int, int]]
    ) -> str | None:
        """Return how the entry differs from its file; None if it does not.

        A dirty row is never trusted, and neither are the ids of a row that lacks some.
        """
        if self.is_dirty:
            return None
        right = dict(zip(_STORED, _values(row), strict=True))
        for name, value in zip(_STORED, self.values, strict=True):
            if name not in ("inode", "sum", "ids", "dirty", "synced") and value != right[name]:
                return f"its {name} is wrong"
        count = self.values[_STORED.index("ids")]
        wrong = count == len(ids) and [*self.ids] != sorted(ids)
        return "its append ids are wrong" if wrong else None


IndexPage = tuple[Sequence[FileIndexRow], Sequence[FileIndexRow]]
"""The clean rows of a page in order, and all dirty rows of the kind."""

Change = tuple[FileIndexRow, Sequence[tuple[bytes, int, int]]]
"""A row and the append ids (with first and last version) that are new in it."""


class IncompleteIds(Exception):
    """The index does not have all append ids of a stream."""


def _in_transaction(
    mode: str = "IMMEDIATE",
) -> Callable[[Callable[Concatenate[FileIndex, P], T]], Callable[Concatenate[FileIndex, P], T]]:
    """Run a method of the index in a transaction of its own."""

    def decorate(
        method: Callable[Concatenate[FileIndex, P], T],
    ) -> Callable[Concatenate[FileIndex, P], T]:
        @wraps(method)
        def run(index: FileIndex, /, *args: P.args, **options: P.kwargs) -> T:
            return transact(index._db, lambda: method(index, *args, **options), mode)

        return run

    return decorate


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
            if {sql for (sql,) in self._db.execute(_READ_SCHEMA)} != _DECLARED:
                return None
            for boot, device, inode in self._db.execute(_IDENTITY, (FORMAT,)):
                return Identity(bytes(boot or b"").decode("latin-1"), device, inode)
        return None

    @_in_transaction()
    def fill(self, identity: Identity, rows: Iterable[FileIndexRow]) -> None:
        """Fill an empty index, in one transaction."""
        self._db.execute(_SCHEMA).fetchall()
        for row in rows:
            self._db.execute(_PUT, _values(row))
        self._db.execute("INSERT INTO meta VALUES(?, ?, ?, ?)", (FORMAT, *identity))

    def get(self, stream: StreamKey) -> FileIndexRow | None:
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM streams WHERE {_BY_KEY}", _key(stream)
        ).fetchone()
        return _row(found) if found else None

    @_in_transaction()
    def mark_dirty(self, streams: Iterable[StreamKey]) -> None:
        """Mark the rows of these streams as dirty until they are stored again."""
        for stream in streams:
            unwritten = FileIndexRow(stream, 0, 0, 0, b"", b"", _NO_FIELDS)
            self._db.execute(_MARK, _values(unwritten)[: len(_SUMMED) + 1])

    @_in_transaction()
    def put(self, changes: Iterable[Change]) -> None:
        """Store rows, each with the append ids that are new in it.

        `row.ids` is the number of ids after that. If the index lacks an earlier id, it does not
        store the new ones either; `find_id` detects that.
        """
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

    @_in_transaction()
    def replace_ids(self, stream: StreamKey, ids: Sequence[tuple[bytes, int, int]]) -> None:
        """Replace all append ids of a stream."""
        self._db.execute(_DELETE_IDS, _key(stream))
        self._add_ids(stream, ids)
        self._db.execute(f"UPDATE streams SET ids = ? WHERE {_BY_KEY}", (len(ids), *_key(stream)))

    def find_id(self, stream: StreamKey, append: bytes, ids: int) -> tuple[int, int] | None:
        """Return the first and last version of an append id, None if it is not in the index.

        `ids` is the number of append ids of the stream. Raise `IncompleteIds` if some are missing.
        """
        found = self._db.execute(
            f"SELECT ids FROM streams WHERE {_BY_KEY}", _key(stream)
        ).fetchone()
        if found is None or found[0] != ids:
            raise IncompleteIds
        sql = f"SELECT first, last FROM ids JOIN streams USING(n) WHERE {_BY_KEY} AND append = ?"
        found = self._db.execute(sql, (*_key(stream), append)).fetchone()
        if found is None:
            return None
        first, last = found
        if not (isinstance(first, int) and isinstance(last, int)):
            raise apsw.CorruptError("an append id of the index is not valid")
        return first, last

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

    @_in_transaction("DEFERRED")
    def _page(self, tenant: str, kind: str, where: str, values: Sequence[Any]) -> IndexPage:
        of_kind = (tenant.encode(), kind.encode())
        # One transaction: a row that becomes clean in between must not be missing in both results.
        clean = self._db.execute(f"{_SELECT_KIND} AND {where}", (*of_kind, *values)).fetchall()
        dirty = self._db.execute(f"{_SELECT_KIND} AND dirty <> 0", of_kind).fetchall()
        return [_row(found) for found in clean], [_row(found) for found in dirty]

    def list_clean(self, tenant: str, kind: str) -> list[StreamKey]:
        """Return the streams of a kind whose rows are clean, deleted ones too."""
        values = tenant.encode(), kind.encode()
        found = self._db.execute(f"{_SELECT_KIND} AND dirty = 0", values)
        return [_row(each).stream for each in found]

    def list_existing(self) -> list[StreamKey]:
        """Return all streams of the index that exist."""
        found = self._db.execute(f"SELECT {_COLUMNS} FROM streams WHERE version > 0")
        return [_row(each).stream for each in found if _is_sound(each)]

    def find_damage(self) -> str | None:
        """Return what SQLite finds wrong with the database, None if it is valid."""
        [found] = self._db.execute("PRAGMA integrity_check(1)").fetchone() or ("no answer",)
        return None if found == "ok" else str(found)

    @_in_transaction("DEFERRED")
    def get_entry(self, stream: StreamKey) -> FileIndexEntry | None:
        """Return the row of a stream as it is stored, with its append ids."""
        sql = f"SELECT n, {', '.join(_STORED)} FROM streams WHERE {_BY_KEY}"
        found = self._db.execute(sql, _key(stream)).fetchone()
        if found is None:
            return None
        ids = "SELECT append, first, last FROM ids WHERE n = ? ORDER BY append"
        return FileIndexEntry(stream, found[1:], self._db.execute(ids, found[:1]).fetchall())

    def data_bytes(self) -> int:
        """Return the size of all streams in bytes."""
        [[total]] = self._db.execute("SELECT coalesce(sum(size), 0) FROM streams").fetchall()
        return int(total or 0)

    def close(self) -> None:
        self._db.close()


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if unknown, and then no index is reused."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_NO_FIELDS = HeadFields()
_decode_fields = msgspec.json.Decoder(HeadFields).decode


def _key(stream: StreamKey) -> tuple[bytes, bytes, bytes]:
    # Bytes have the order of the backend interface, and NUL is not special in them.
    return stream.tenant.encode(), stream.kind.encode(), stream.id.encode()


def _values(row: FileIndexRow) -> tuple[Any, ...]:
    fields = row.fields
    summed = (
        *_key(row.stream),
        *(row.inode, row.size, row.version, row.hash, row.incarnation, msgspec.json.encode(fields)),
    )
    status = None if fields.status is None else fields.status.encode()
    numbers = row.ids, int(row.dirty), int(row.synced)
    return *summed, _checksum(summed), status, fields.due, *numbers


def _checksum(values: Sequence[Any]) -> int:
    return zlib.crc32(msgspec.msgpack.encode(values))


def _is_sound(found: Sequence[Any]) -> bool:
    """Return whether the columns of a row match their checksum, which is the last of them."""
    return bool(_checksum(found[: len(_SUMMED)]) == found[len(_SUMMED)])


def _row(found: Sequence[Any]) -> FileIndexRow:
    if not _is_sound(found):
        raise apsw.CorruptError("a row of the index is not valid")
    *summed, _, ids, dirty, synced = found
    *key, inode, size, version, digest, incarnation, fields = summed
    stream = StreamKey(*(part.decode() for part in key))
    return FileIndexRow(
        stream,
        inode,
        size,
        version,
        digest,
        incarnation,
        _decode_fields(fields),
        ids,
        bool(dirty),
        bool(synced),
    )
