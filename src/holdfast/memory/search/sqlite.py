"""The index in SQLite: in the store's own file, in a file beside other engines, or in memory.

The words are in one FTS5 table. Each term carries the number of its namespace ("7_dispute"), so that a namespace has posting
lists of its own: what others remember costs it nothing, and cannot show through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import apsw
import msgspec

from ...backends import StreamKey
from ..fold import IndexChanges
from ..model import IndexPosition, MemoryDoc, MemoryFilter
from ..vectors.sqlite import TABLES as VECTOR_TABLES
from ..vectors.sqlite import SQLiteVectors, clear_vectors, drop_vectors
from .candidates import markers_of
from .filters import sqlite_condition
from .index import IndexCounts, KnownMemories, Matches, Neighbours
from .sqlite_file import MEMORY, SQLiteFile, drop_tables
from .sqlite_search import NamespaceSize, page, rowid_of, search

FORMAT: Final = 6
"""Tables of another format are dropped, and made anew from the streams."""
MERGED_PAGES: Final = 500
"""So much of the words is merged in one transaction."""
MOST_MERGES: Final = 1_000
"""While others write, there is always a little more to merge."""

_TABLES: Final = """
CREATE TABLE memory_format (format INTEGER NOT NULL) STRICT;
CREATE TABLE memory_spaces (
    space INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL, life BLOB NOT NULL, version INTEGER NOT NULL,
    hash BLOB NOT NULL, memories INTEGER NOT NULL, terms INTEGER NOT NULL, UNIQUE (tenant, id)
) STRICT;
CREATE TABLE memory_docs (
    doc INTEGER PRIMARY KEY, space INTEGER NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL, at REAL NOT NULL,
    first_at REAL NOT NULL, source TEXT, sources TEXT, expires_at REAL, length INTEGER NOT NULL, body BLOB NOT NULL
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
    space INTEGER NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (space, key, number)
) STRICT, WITHOUT ROWID;
CREATE VIRTUAL TABLE memory_terms USING fts5(
    terms, content='', contentless_delete=1, tokenize="ascii tokenchars '-_.@:&+#'"
);
CREATE VIRTUAL TABLE memory_frequency USING fts5vocab(memory_terms, 'row');
"""

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(
    MemoryDoc
)  # of nothing, which damage may put in the place of a body, it says that it is no JSON


class SQLiteIndex(SQLiteVectors):
    """An index in a SQLite file, or in memory. `shared`: the file is the store's own. `given`: a user has named it."""

    def __init__(self, path: str = MEMORY, *, shared: bool = False, given: bool = False) -> None:
        self._file = SQLiteFile(path, _make_tables, shared=shared, given=given)
        self.mend, self.close = self._file.mend, self._file.close

    # -- following the stream --------------------------------------------------------------------

    def position(self, space: StreamKey) -> IndexPosition | None:
        with self._reading() as execute:
            return _position(execute(_SPACE, (space.tenant, space.id)).fetchone())

    def known(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> KnownMemories:
        with self._reading() as execute:
            number = self._number(execute, space)
            if number is None:
                return KnownMemories([], {})
            found = (
                dict(execute(_NUMBERS_BY_ID, (number, _encode(ids).decode())).fetchall())
                if ids
                else {}
            )
            wanted = set(found.values())
            if keys:
                wanted.update(
                    row[0] for row in execute(_NUMBERS_BY_KEY, (number, _encode(keys).decode()))
                )
            docs = self._docs(execute, number, wanted)
            return KnownMemories(docs, found)

    def write(
        self,
        space: StreamKey,
        before: IndexPosition | None,
        after: IndexPosition,
        changes: IndexChanges,
    ) -> bool:
        with self._file.writing() as connection:
            row = connection.execute(_SPACE, (space.tenant, space.id)).fetchone()
            if _position(row) != before:
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
        """Take out what is gone or has changed, then put in what is there. The ids of what is gone stay, and lead nowhere."""
        execute = connection.execute
        memories, terms = 0, 0
        gone = {doc.number for doc in changes.gone}
        # FTS5 gathers what comes in the order of rowids, and begins a new segment for what does not.
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
            old = _decoder.decode(body or b"")
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
            execute(
                "INSERT INTO memory_terms (rowid, terms) VALUES (?, ?)",
                (
                    rowid,
                    _prefixed(
                        space, [*doc.terms.split(" "), *doc.context.split(" "), *markers_of(doc)]
                    ),
                ),
            )
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
                "UPDATE memory_spaces SET memories = memories + ?, terms = terms + ? WHERE space = ?",
                (memories, terms, space),
            )

    def expired(self, space: StreamKey, before: float, limit: int) -> Sequence[MemoryDoc]:
        with self._reading() as execute:
            found = execute(_EXPIRED, (self._number(execute, space), before, limit))
            return [_decoder.decode(body or b"") for (body,) in found]

    def clear(self, space: StreamKey, at: IndexPosition) -> None:
        with self._writing() as execute:
            row = execute(_SPACE, (space.tenant, space.id)).fetchone()
            if _position(row) != at:
                return
            _clear(execute, row[0])
        self._erase()

    def _erase(self) -> None:
        """Have nothing left of what was deleted: FTS5 drops its words only when it merges the parts of its table.

        A little at a time, so that nobody has to wait for long.
        """
        for turn in range(MOST_MERGES):
            with self._file.writing() as connection:
                before, pages = (
                    connection.total_changes(),
                    MERGED_PAGES if turn else -MERGED_PAGES,
                )  # negative: begin
                connection.execute(
                    "INSERT INTO memory_terms (memory_terms, rank) VALUES ('merge', ?)", (pages,)
                )
                if connection.total_changes() - before < 2:
                    break  # there was nothing to do
        self._file.truncate_log()

    def replace(self, space: StreamKey, by: StreamKey) -> bool:
        with self._writing() as execute:
            old, new = (execute(_SPACE, (one.tenant, one.id)).fetchone() for one in (space, by))
            if old is not None and new is not None:
                if old[1] == new[1] and old[2] > new[2]:
                    return False
                _clear(execute, old[0])
            if new is not None:
                execute(
                    "UPDATE memory_spaces SET tenant = ?, id = ? WHERE space = ?",
                    (space.tenant, space.id, new[0]),
                )
            return True

    # -- asking ----------------------------------------------------------------------------------

    def search(
        self, space: StreamKey, terms: Mapping[str, float], where: MemoryFilter, limit: int
    ) -> Matches:
        with self._reading() as execute:
            row = execute(_SPACE, (space.tenant, space.id)).fetchone()
            if row is None or not terms:
                return Matches([], 0, 0.0, {})
            return search(execute, NamespaceSize(row[0], row[4], row[5]), terms, where, limit)

    def around(
        self, space: StreamKey, docs: Sequence[MemoryDoc], reach: int, where: MemoryFilter
    ) -> list[Neighbours]:
        with self._reading() as execute:
            number = self._number(execute, space)
            found = []
            condition, values = sqlite_condition(where)
            for doc in docs:
                if number is None or doc.source is None:
                    found.append(Neighbours([], []))
                    continue
                sides = []
                for sql in (_BEFORE, _AFTER):
                    place = (number, doc.source, doc.first_at, doc.number, *values, reach)
                    sides.append(
                        [
                            _decoder.decode(body or b"")
                            for (body,) in execute(sql.format(condition), place)
                        ]
                    )
                found.append(Neighbours(*sides))
            return found

    def page(
        self, space: StreamKey, after: int, limit: int, where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        with self._reading() as execute:
            number = self._number(execute, space)
            return [] if number is None else page(execute, number, after, limit, where)

    def counts(self, space: StreamKey, now: float) -> IndexCounts:
        with self._reading() as execute:
            number = self._number(execute, space)
            if number is None:
                return IndexCounts(0, 0, None, None)
            return IndexCounts(*execute(_COUNTS, (number, now)).fetchone())

    # -- the connection --------------------------------------------------------------------------

    def _number(self, execute: Any, space: StreamKey) -> int | None:
        row = execute(_SPACE, (space.tenant, space.id)).fetchone()
        return None if row is None else row[0]

    def _docs(self, execute: Any, space: int, numbers: set[int]) -> list[MemoryDoc]:
        rows = (
            execute(_DOCS, (space, _encode(sorted(numbers)).decode())).fetchall() if numbers else []
        )
        return [_decoder.decode(body or b"") for (body,) in rows]

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        with self._file.reading() as connection:
            yield connection.execute

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        with self._file.writing() as connection:
            yield connection.execute


def _make_tables(connection: apsw.Connection) -> None:
    """Make the tables, if they are not there or are of another format."""
    if _format_of(connection) == [(FORMAT,)]:
        return
    connection.execute("BEGIN IMMEDIATE")
    if _format_of(connection) != [(FORMAT,)]:  # somebody else may have been faster
        drop_tables(connection)
        for statement in (_TABLES + VECTOR_TABLES).split(";\n"):
            if statement.strip():
                connection.execute(statement).fetchall()
        connection.execute("INSERT INTO memory_format VALUES (?)", (FORMAT,))
    connection.execute("COMMIT")


def _format_of(connection: apsw.Connection) -> list[Any]:
    made = "SELECT 1 FROM sqlite_schema WHERE name = 'memory_format'"
    if connection.execute(made).fetchone() is None:
        return []
    return connection.execute("SELECT format FROM memory_format").fetchall()


def _position(row: Sequence[Any] | None) -> IndexPosition | None:
    return None if row is None else IndexPosition(*row[1:4])


def _clear(execute: Any, space: int) -> None:
    """Everything of a namespace, in the transaction that is open."""
    execute(
        "DELETE FROM memory_terms WHERE rowid IN (SELECT doc FROM memory_docs WHERE space = ?)",
        (space,),
    )
    clear_vectors(execute, space)
    for table in ("docs", "ids", "keys", "spaces"):
        execute(f"DELETE FROM memory_{table} WHERE space = ?", (space,))  # noqa: S608  names of ours


def _columns(doc: MemoryDoc) -> tuple[Any, ...]:
    """What memories are chosen by. All sources, if there is more than one."""
    sources = _encode(doc.sources).decode() if doc.sources else None
    return doc.at, doc.first_at, doc.source, sources, doc.expires_at


def _by_number(doc: MemoryDoc) -> int:
    return doc.number


def _prefixed(space: int, words: Sequence[str]) -> str:
    return " ".join(f"{space}_{word}" for word in words if word)


_SPACE: Final = "SELECT space, life, version, hash, memories, terms FROM memory_spaces WHERE tenant = ? AND id = ?"
_NEW_SPACE: Final = "INSERT INTO memory_spaces (tenant, id, life, version, hash, memories, terms) VALUES (?, ?, ?, ?, ?, 0, 0)"
_MOVED: Final = "UPDATE memory_spaces SET version = ?, hash = ? WHERE space = ?"
_EXPIRED: Final = (
    "SELECT body FROM memory_docs WHERE space = ? AND expires_at <= ? ORDER BY expires_at LIMIT ?"
)
_NUMBERS_BY_ID: Final = """
SELECT memory_ids.id, number FROM memory_ids JOIN memory_docs USING (space, number)
WHERE space = ? AND memory_ids.id IN (SELECT value FROM json_each(?))"""
_NUMBERS_BY_KEY: Final = "SELECT DISTINCT number FROM memory_keys WHERE space = ? AND key IN (SELECT value FROM json_each(?))"
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
    SELECT source, sources, first_at, at FROM memory_docs WHERE space = ? AND (expires_at IS NULL OR expires_at > ?)
)
SELECT count(*), (
    SELECT count(*) FROM (SELECT source FROM living WHERE source IS NOT NULL
    UNION SELECT value FROM living, json_each(sources) WHERE sources IS NOT NULL)
), min(first_at), max(at) FROM living"""
