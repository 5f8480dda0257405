"""The index in SQLite: in the store's own file, in a file of its own, or in memory.

The words are in one FTS5 table. Each term has the number of its namespace as a prefix
("7_dispute"), so a namespace has its own posting lists: other namespaces cost it nothing and cannot
leak into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import apsw
import msgspec

from ...backends import StreamKey
from ..fold import IndexChanges
from ..model import IndexPosition, MemoryDoc, MemoryFilter, decode_doc
from ..vectors.sqlite import TABLES as VECTOR_TABLES
from ..vectors.sqlite import SQLiteVectors, clear_vectors, drop_vectors
from .candidates import doc_markers
from .filters import sqlite_condition
from .index import IndexCounts, KnownMemories, Matches, Neighbours
from .sqlite_file import MEMORY, SQLiteFile, drop_tables
from .sqlite_search import NamespaceSize, read_page, rowid_of, search_namespace

FORMAT: Final = 6
"""Tables of another format are dropped and rebuilt from the streams."""
MERGE_PAGES: Final = 500
"""Pages of FTS5 to merge in one transaction."""
MAX_MERGES: Final = 1_000
"""A limit, because concurrent writers always leave a little more to merge."""

_TABLES: Final = """
CREATE TABLE memory_format (format INTEGER NOT NULL) STRICT;
CREATE TABLE memory_spaces (
    space INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL,
    life BLOB NOT NULL, version INTEGER NOT NULL, hash BLOB NOT NULL,
    memories INTEGER NOT NULL, terms INTEGER NOT NULL, UNIQUE (tenant, id)
) STRICT;
CREATE TABLE memory_docs (
    doc INTEGER PRIMARY KEY, space INTEGER NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL,
    at REAL NOT NULL, first_at REAL NOT NULL, source TEXT, sources TEXT, expires_at REAL,
    length INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX memory_docs_by_number ON memory_docs (space, number);
CREATE INDEX memory_docs_by_source ON memory_docs (space, source, first_at, number);
CREATE INDEX memory_docs_by_sources ON memory_docs (space) WHERE sources IS NOT NULL;
CREATE INDEX memory_docs_by_time ON memory_docs (space, at);
CREATE INDEX memory_docs_by_end ON memory_docs (space, expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE memory_ids (
    space INTEGER NOT NULL, id TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (space, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE memory_keys (
    space INTEGER NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (space, key, number)
) STRICT, WITHOUT ROWID;
CREATE VIRTUAL TABLE memory_terms USING fts5(
    terms, content='', contentless_delete=1, tokenize="ascii tokenchars '-_.@:&+#'"
);
CREATE VIRTUAL TABLE memory_frequency USING fts5vocab(memory_terms, 'row');
"""

_encode = msgspec.json.Encoder().encode


class SQLiteIndex(SQLiteVectors):
    """An index in an SQLite file or in memory.

    `shared`: the file is the store's own. `user_file`: the user chose the file.
    """

    def __init__(
        self, path: str = MEMORY, *, shared: bool = False, user_file: bool = False
    ) -> None:
        self._file = SQLiteFile(path, _create_tables, shared=shared, user_file=user_file)
        self.repair, self.close = self._file.repair, self._file.close

    # -- following the stream --------------------------------------------------------------------

    def position(self, space: StreamKey) -> IndexPosition | None:
        with self._read_transaction() as execute:
            return _to_position(execute(_SPACE, (space.tenant, space.id)).fetchone())

    def lookup(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> KnownMemories:
        with self._read_transaction() as execute:
            number = self._find_space(execute, space)
            # Often one of the lists is empty, or nothing is found: no query then.
            by_id = execute(_NUMBERS_BY_ID, (number, _encode(ids).decode())) if ids else ()
            aliases = dict(by_id)
            by_key = execute(_NUMBERS_BY_KEY, (number, _encode(keys).decode())) if keys else ()
            numbers = {*aliases.values(), *(row[0] for row in by_key)}
            return KnownMemories(self._read_docs(execute, number, numbers), aliases)

    def write(
        self,
        space: StreamKey,
        before: IndexPosition | None,
        after: IndexPosition,
        changes: IndexChanges,
    ) -> bool:
        with self._file.transaction("IMMEDIATE") as connection:
            row = connection.execute(_SPACE, (space.tenant, space.id)).fetchone()
            if _to_position(row) != before:
                return False
            if row is None:
                connection.execute(_NEW_SPACE, (space.tenant, space.id, *after))
                number = connection.last_insert_rowid()
            else:
                number = row[0]
                connection.execute(_MOVED, (after.version, after.hash, number))
            self._apply(connection, number, changes)
            return True

    def _apply(self, connection: apsw.Connection, space: int, changes: IndexChanges) -> None:
        """Remove what is gone or has changed, then insert what there is.

        The ids of removed memories stay and lead nowhere.
        """
        execute = connection.execute
        memories, terms = 0, 0
        gone = {doc.number for doc in changes.gone}
        # FTS5 collects rows in the order of rowids, and starts a new segment when the order breaks.
        for doc in sorted((*changes.gone, *changes.put), key=_by_number):
            row = execute(
                "SELECT doc, length, body FROM memory_docs WHERE space = ? AND number = ?",
                (space, doc.number),
            ).fetchone()
            if row is None:
                continue
            rowid, length, body = row
            execute("DELETE FROM memory_terms WHERE rowid = ?", (rowid,))
            execute("DELETE FROM memory_docs WHERE doc = ?", (rowid,))
            old = _decode(body)
            connection.executemany(
                "DELETE FROM memory_keys WHERE space = ? AND key = ? AND number = ?",
                [(space, key, doc.number) for key in old.keys],
            )
            if doc.number in gone or doc.text != old.text:
                drop_vectors(execute, space, doc.number)
            memories, terms = memories - 1, terms - length
        for doc in sorted(changes.put, key=_by_number):
            length, rowid = doc.terms.count(" ") + 1, rowid_of(space, doc.number)
            execute(
                "INSERT INTO memory_docs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (rowid, space, doc.number, doc.id, *_columns(doc), length, _encode(doc)),
            )
            words = [*doc.terms.split(" "), *doc.context.split(" "), *doc_markers(doc)]
            prefixed = " ".join(f"{space}_{word}" for word in words if word)
            execute("INSERT INTO memory_terms (rowid, terms) VALUES (?, ?)", (rowid, prefixed))
            execute(
                "INSERT OR IGNORE INTO memory_ids VALUES (?, ?, ?)", (space, doc.id, doc.number)
            )
            connection.executemany(
                "INSERT OR IGNORE INTO memory_keys VALUES (?, ?, ?)",
                [(space, key, doc.number) for key in doc.keys],
            )
            memories, terms = memories + 1, terms + length
        aliases = [
            (space, name, number) for name, number in changes.aliases.items() if number not in gone
        ]
        connection.executemany("INSERT OR IGNORE INTO memory_ids VALUES (?, ?, ?)", aliases)
        if memories or terms:
            execute(
                "UPDATE memory_spaces SET memories = memories + ?, terms = terms + ? WHERE space "
                "= ?",
                (memories, terms, space),
            )

    def list_expired(self, space: StreamKey, before: float, limit: int) -> Sequence[MemoryDoc]:
        with self._read_transaction() as execute:
            found = execute(_EXPIRED, (self._find_space(execute, space), before, limit))
            return [_decode(body) for (body,) in found]

    def clear(self, space: StreamKey, at: IndexPosition) -> None:
        with self._write_transaction() as execute:
            row = execute(_SPACE, (space.tenant, space.id)).fetchone()
            if _to_position(row) != at:
                return
            _delete_namespace(execute, row[0])
        self._merge_segments()

    def _merge_segments(self) -> None:
        """Remove deleted words from the file: FTS5 drops them only when it merges segments.

        A little at a time, so that no other process waits long.
        """
        for turn in range(MAX_MERGES):
            with self._file.transaction("IMMEDIATE") as connection:
                before = connection.total_changes()
                pages = MERGE_PAGES if turn else -MERGE_PAGES  # negative: start a merge
                connection.execute(
                    "INSERT INTO memory_terms (memory_terms, rank) VALUES ('merge', ?)", (pages,)
                )
                if connection.total_changes() - before < 2:
                    break  # nothing left to merge
        self._file.truncate_log()

    def replace(self, space: StreamKey, by: StreamKey) -> bool:
        with self._write_transaction() as execute:
            old, new = (execute(_SPACE, (one.tenant, one.id)).fetchone() for one in (space, by))
            if old is not None and new is not None:
                if old[1] == new[1] and old[2] > new[2]:
                    return False
                _delete_namespace(execute, old[0])
            if new is not None:
                execute(
                    "UPDATE memory_spaces SET tenant = ?, id = ? WHERE space = ?",
                    (space.tenant, space.id, new[0]),
                )
            return True

    # -- reading ---------------------------------------------------------------------------------

    def search(
        self, space: StreamKey, terms: Mapping[str, float], where: MemoryFilter, limit: int
    ) -> Matches:
        with self._read_transaction() as execute:
            row = execute(_SPACE, (space.tenant, space.id)).fetchone()
            if row is None or not terms:
                return Matches([], 0, 0.0, {})
            return search_namespace(
                execute, NamespaceSize(row[0], row[4], row[5]), terms, where, limit
            )

    def neighbours(
        self, space: StreamKey, docs: Sequence[MemoryDoc], reach: int, where: MemoryFilter
    ) -> list[Neighbours]:
        with self._read_transaction() as execute:
            number = self._find_space(execute, space)
            found = []
            condition, values = sqlite_condition(where)
            for doc in docs:
                if doc.source is None:
                    found.append(Neighbours([], []))
                    continue
                position = (number, doc.source, doc.first_at, doc.number, *values, reach)
                sides = [
                    [_decode(body) for (body,) in execute(sql.format(condition), position)]
                    for sql in (_BEFORE, _AFTER)
                ]
                found.append(Neighbours(*sides))
            return found

    def page(
        self, space: StreamKey, after: int, limit: int, where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        with self._read_transaction() as execute:
            number = self._find_space(execute, space)
            return [] if number is None else read_page(execute, number, after, limit, where)

    def counts(self, space: StreamKey, now: float) -> IndexCounts:
        with self._read_transaction() as execute:
            number = self._find_space(execute, space)
            return IndexCounts(*execute(_COUNTS, (number, now)).fetchone())

    # -- the connection --------------------------------------------------------------------------

    def _find_space(self, execute: Any, space: StreamKey) -> int | None:
        row = execute(_SPACE, (space.tenant, space.id)).fetchone()
        return None if row is None else row[0]

    def _read_docs(self, execute: Any, space: int | None, numbers: set[int]) -> list[MemoryDoc]:
        if not numbers:
            return []
        rows = execute(_DOCS, (space, _encode(sorted(numbers)).decode()))
        return [_decode(body) for (body,) in rows]

    @contextmanager
    def _read_transaction(self) -> Iterator[Any]:
        with self._file.transaction("DEFERRED") as connection:
            yield connection.execute

    @contextmanager
    def _write_transaction(self) -> Iterator[Any]:
        with self._file.transaction("IMMEDIATE") as connection:
            yield connection.execute


def _create_tables(connection: apsw.Connection) -> None:
    """Create the tables, unless they exist in this format."""
    if _read_format(connection) == [(FORMAT,)]:
        return
    connection.execute("BEGIN IMMEDIATE")
    if _read_format(connection) != [(FORMAT,)]:  # another process may have created them
        drop_tables(connection)
        for statement in (_TABLES + VECTOR_TABLES).split(";\n"):
            if statement.strip():
                connection.execute(statement).fetchall()
        connection.execute("INSERT INTO memory_format VALUES (?)", (FORMAT,))
    connection.execute("COMMIT")


def _read_format(connection: apsw.Connection) -> list[Any]:
    exists = "SELECT 1 FROM sqlite_schema WHERE name = 'memory_format'"
    if connection.execute(exists).fetchone() is None:
        return []
    return connection.execute("SELECT format FROM memory_format").fetchall()


def _to_position(row: Sequence[Any] | None) -> IndexPosition | None:
    return None if row is None else IndexPosition(*row[1:4])


def _delete_namespace(execute: Any, space: int) -> None:
    """Delete a namespace in the current transaction."""
    execute(
        "DELETE FROM memory_terms WHERE rowid IN (SELECT doc FROM memory_docs WHERE space = ?)",
        (space,),
    )
    clear_vectors(execute, space)
    for table in ("docs", "ids", "keys", "spaces"):
        execute(f"DELETE FROM memory_{table} WHERE space = ?", (space,))  # noqa: S608


def _columns(doc: MemoryDoc) -> tuple[Any, ...]:
    """Return the columns that filters use. `sources` is NULL if there is only one."""
    sources = _encode(doc.sources).decode() if doc.sources else None
    return doc.at, doc.first_at, doc.source, sources, doc.expires_at


def _decode(body: bytes | None) -> MemoryDoc:
    """Decode a body. Damage may leave NULL, which then fails as invalid JSON."""
    return decode_doc(body or b"")


def _by_number(doc: MemoryDoc) -> int:
    return doc.number


_SPACE: Final = (
    "SELECT space, life, version, hash, memories, terms FROM memory_spaces"
    " WHERE tenant = ? AND id = ?"
)
_NEW_SPACE: Final = (
    "INSERT INTO memory_spaces (tenant, id, life, version, hash, memories, terms)"
    " VALUES (?, ?, ?, ?, ?, 0, 0)"
)
_MOVED: Final = "UPDATE memory_spaces SET version = ?, hash = ? WHERE space = ?"
_EXPIRED: Final = (
    "SELECT body FROM memory_docs WHERE space = ? AND expires_at <= ? ORDER BY expires_at LIMIT ?"
)
_NUMBERS_BY_ID: Final = """
SELECT memory_ids.id, number FROM memory_ids JOIN memory_docs USING (space, number)
WHERE space = ? AND memory_ids.id IN (SELECT value FROM json_each(?))"""
_NUMBERS_BY_KEY: Final = (
    "SELECT DISTINCT number FROM memory_keys WHERE space = ?"
    " AND key IN (SELECT value FROM json_each(?))"
)
_DOCS: Final = (
    "SELECT body FROM memory_docs WHERE space = ? AND number IN (SELECT value FROM json_each(?))"
)
_BEFORE: Final = """
SELECT body FROM memory_docs WHERE space = ? AND source = ? AND (first_at, number) < (?, ?) AND {}
ORDER BY first_at DESC, number DESC LIMIT ?"""
_AFTER: Final = """
SELECT body FROM memory_docs WHERE space = ? AND source = ? AND (first_at, number) > (?, ?) AND {}
ORDER BY first_at, number LIMIT ?"""
_COUNTS: Final = """
WITH living AS (
    SELECT source, sources, first_at, at FROM memory_docs
    WHERE space = ? AND (expires_at IS NULL OR expires_at > ?)
)
SELECT count(*), (
    SELECT count(*) FROM (SELECT source FROM living WHERE source IS NOT NULL
    UNION SELECT value FROM living, json_each(sources) WHERE sources IS NOT NULL)
), min(first_at), max(at) FROM living"""
