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

from ..backends import StreamKey
from ._fold import Changes
from ._index import Around, Counts, Found, Known
from ._model import Doc, Position, Where
from ._sqlite_file import MEMORY, SQLiteFile, drop_tables
from ._sqlite_vectors import TABLES as VECTOR_TABLES
from ._sqlite_vectors import SQLiteVectors, clear_vectors, drop_vectors
from ._sqlite_where import condition_of

FORMAT: Final = 2
"""Tables of another format are dropped, and made anew from the streams."""
WORK: Final = 8_000
"""About so many entries of posting lists are ranked for one question; the most common terms are left to the ranking that follows."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS memory_format (format INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS memory_spaces (
    space INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL, life BLOB NOT NULL, version INTEGER NOT NULL,
    memories INTEGER NOT NULL, terms INTEGER NOT NULL, UNIQUE (tenant, id)
) STRICT;
CREATE TABLE IF NOT EXISTS memory_docs (
    doc INTEGER PRIMARY KEY, space INTEGER NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL, at REAL NOT NULL,
    source TEXT, expires_at REAL, length INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS memory_docs_by_number ON memory_docs (space, number);
CREATE INDEX IF NOT EXISTS memory_docs_by_source ON memory_docs (space, source, at, number);
CREATE TABLE IF NOT EXISTS memory_ids (
    space INTEGER NOT NULL, id TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (space, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memory_keys (
    space INTEGER NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (space, key, number)
) STRICT, WITHOUT ROWID;
CREATE VIRTUAL TABLE IF NOT EXISTS memory_terms USING fts5(
    terms, content='', contentless_delete=1, tokenize="ascii tokenchars '-_.@:&+#'"
);
CREATE VIRTUAL TABLE IF NOT EXISTS memory_frequency USING fts5vocab(memory_terms, 'row');
"""

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(
    Doc
)  # of nothing, which damage may put in the place of a body, it says that it is no JSON


class SQLiteIndex(SQLiteVectors):
    """An index in a SQLite file, or in memory. `shared`: the file is the store's own."""

    def __init__(self, path: str = MEMORY, *, shared: bool = False) -> None:
        self._file = SQLiteFile(path, _make_tables, shared=shared)
        self.mend, self.close = self._file.mend, self._file.close

    # -- following the stream --------------------------------------------------------------------

    def position(self, space: StreamKey) -> Position | None:
        with self._reading() as execute:
            row = execute(_SPACE, (space.tenant, space.id)).fetchone()
            return None if row is None else Position(row[1], row[2])

    def known(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> Known:
        with self._reading() as execute:
            number = self._number(execute, space)
            if number is None:
                return Known([], {})
            found = dict(execute(_NUMBERS_BY_ID, (number, _encode(ids).decode())).fetchall()) if ids else {}
            wanted = set(found.values())
            if keys:
                wanted.update(row[0] for row in execute(_NUMBERS_BY_KEY, (number, _encode(keys).decode())))
            docs = self._docs(execute, number, wanted)
            return Known(docs, found)

    def write(self, space: StreamKey, before: Position | None, after: Position, changes: Changes) -> bool:
        with self._file.writing() as connection:
            row = connection.execute(_SPACE, (space.tenant, space.id)).fetchone()
            if (None if row is None else Position(row[1], row[2])) != before:
                return False
            if row is None:
                connection.execute(_NEW_SPACE, (space.tenant, space.id, after.life, after.version))
                number = connection.last_insert_rowid()
            else:
                number = row[0]
                connection.execute("UPDATE memory_spaces SET version = ? WHERE space = ?", (after.version, number))
            self._apply(connection, number, changes)
            return True

    def _apply(self, connection: apsw.Connection, space: int, changes: Changes) -> None:
        """Take out what is gone or has changed, then put in what is there. The ids of what is gone stay, and lead nowhere."""
        execute = connection.execute
        memories, terms = 0, 0
        gone = {doc.number for doc in changes.gone}
        for doc in (*changes.gone, *changes.put):
            row = execute(
                "SELECT doc, length, body FROM memory_docs WHERE space = ? AND number = ?", (space, doc.number)
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
        for doc in changes.put:
            length = doc.terms.count(" ") + 1
            execute(
                "INSERT INTO memory_docs (space, number, id, at, source, expires_at, length, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (space, doc.number, doc.id, doc.at, doc.source, doc.expires_at, length, _encode(doc)),
            )
            rowid = connection.last_insert_rowid()
            execute(
                "INSERT INTO memory_terms (rowid, terms) VALUES (?, ?)",
                (rowid, _prefixed(space, f"{doc.terms} {doc.context}")),
            )
            execute("INSERT OR IGNORE INTO memory_ids VALUES (?, ?, ?)", (space, doc.id, doc.number))
            connection.executemany(
                "INSERT OR IGNORE INTO memory_keys VALUES (?, ?, ?)", [(space, key, doc.number) for key in doc.keys]
            )
            memories, terms = memories + 1, terms + length
        aliases = [(space, name, number) for name, number in changes.aliases.items() if number not in gone]
        connection.executemany("INSERT OR IGNORE INTO memory_ids VALUES (?, ?, ?)", aliases)
        if memories or terms:
            execute(
                "UPDATE memory_spaces SET memories = memories + ?, terms = terms + ? WHERE space = ?",
                (memories, terms, space),
            )

    def clear(self, space: StreamKey, life: bytes) -> None:
        with self._writing() as execute:
            row = execute(_SPACE, (space.tenant, space.id)).fetchone()
            if row is None or row[1] != life:
                return
            number = row[0]
            execute("DELETE FROM memory_terms WHERE rowid IN (SELECT doc FROM memory_docs WHERE space = ?)", (number,))
            clear_vectors(execute, number)
            for table in ("docs", "ids", "keys", "spaces"):
                execute(f"DELETE FROM memory_{table} WHERE space = ?", (number,))  # noqa: S608  names of ours

    # -- asking ----------------------------------------------------------------------------------

    def search(self, space: StreamKey, terms: Mapping[str, float], where: Where, limit: int) -> Found:
        with self._reading() as execute:
            row = execute(_SPACE, (space.tenant, space.id)).fetchone()
            if row is None or not terms:
                return Found([], 0, 0.0, {})
            number, total, length = row[0], row[3], row[4]
            prefixed = {f"{number}_{term}": term for term in terms}
            rows = execute(_FREQUENCY, (_encode(list(prefixed)).decode(),)).fetchall()
            frequency = {prefixed[term]: count for term, count in rows}
            chosen = _chosen(terms, frequency)
            if not chosen:
                return Found([], total, length / max(total, 1), frequency)
            question = " OR ".join(f'"{number}_{term}"' for term in chosen)
            condition, values = condition_of(where)
            found = execute(_MATCHING.format(condition), (question, *values, limit)).fetchall()
            return Found([_decoder.decode(body or b"") for (body,) in found], total, length / max(total, 1), frequency)

    def around(self, space: StreamKey, docs: Sequence[Doc], reach: int, where: Where) -> list[Around]:
        with self._reading() as execute:
            number = self._number(execute, space)
            found = []
            condition, values = condition_of(where)
            for doc in docs:
                if number is None or doc.source is None:
                    found.append(Around([], []))
                    continue
                sides = []
                for sql in (_BEFORE, _AFTER):
                    place = (number, doc.source, doc.at, doc.number, *values, reach)
                    sides.append([_decoder.decode(body or b"") for (body,) in execute(sql.format(condition), place)])
                found.append(Around(*sides))
            return found

    def page(self, space: StreamKey, after: int, limit: int, where: Where) -> Sequence[Doc]:
        with self._reading() as execute:
            number = self._number(execute, space)
            if number is None:
                return []
            condition, values = condition_of(where)
            return [
                _decoder.decode(body or b"")
                for (body,) in execute(_PAGE.format(condition), (number, after, *values, limit))
            ]

    def counts(self, space: StreamKey, now: float) -> Counts:
        with self._reading() as execute:
            number = self._number(execute, space)
            if number is None:
                return Counts(0, 0, None, None)
            return Counts(*execute(_COUNTS, (number, now)).fetchone())

    # -- the connection --------------------------------------------------------------------------

    def _number(self, execute: Any, space: StreamKey) -> int | None:
        row = execute(_SPACE, (space.tenant, space.id)).fetchone()
        return None if row is None else row[0]

    def _docs(self, execute: Any, space: int, numbers: set[int]) -> list[Doc]:
        rows = execute(_DOCS, (space, _encode(sorted(numbers)).decode())).fetchall() if numbers else []
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


def _prefixed(space: int, words: str) -> str:
    return " ".join(f"{space}_{word}" for word in words.split(" ") if word)


def _chosen(terms: Mapping[str, float], frequency: Mapping[str, int]) -> list[str]:
    """The terms to look for: the rarer first, as long as there is not too much to rank."""
    chosen: list[str] = []
    work = 0
    for term in sorted((term for term in terms if frequency.get(term)), key=lambda term: frequency[term]):
        if chosen and work + frequency[term] > WORK:
            break
        chosen.append(term)
        work += frequency[term]
    return chosen


_SPACE: Final = "SELECT space, life, version, memories, terms FROM memory_spaces WHERE tenant = ? AND id = ?"
_NEW_SPACE: Final = "INSERT INTO memory_spaces (tenant, id, life, version, memories, terms) VALUES (?, ?, ?, ?, 0, 0)"
_NUMBERS_BY_ID: Final = """
SELECT memory_ids.id, number FROM memory_ids JOIN memory_docs USING (space, number)
WHERE space = ? AND memory_ids.id IN (SELECT value FROM json_each(?))"""
_NUMBERS_BY_KEY: Final = (
    "SELECT DISTINCT number FROM memory_keys WHERE space = ? AND key IN (SELECT value FROM json_each(?))"
)
_DOCS: Final = "SELECT body FROM memory_docs WHERE space = ? AND number IN (SELECT value FROM json_each(?))"
_FREQUENCY: Final = "SELECT term, doc FROM memory_frequency WHERE term IN (SELECT value FROM json_each(?))"
_MATCHING: Final = """
SELECT body FROM memory_terms JOIN memory_docs ON memory_docs.doc = memory_terms.rowid
WHERE memory_terms MATCH ? AND {} ORDER BY memory_terms.rank LIMIT ?"""
_BEFORE: Final = """
SELECT body FROM memory_docs WHERE space = ? AND source = ? AND (at, number) < (?, ?) AND {}
ORDER BY at DESC, number DESC LIMIT ?"""
_AFTER: Final = """
SELECT body FROM memory_docs WHERE space = ? AND source = ? AND (at, number) > (?, ?) AND {}
ORDER BY at, number LIMIT ?"""
_PAGE: Final = "SELECT body FROM memory_docs WHERE space = ? AND number > ? AND {} ORDER BY number LIMIT ?"
_COUNTS: Final = """
SELECT count(*), count(DISTINCT source), min(at), max(at) FROM memory_docs
WHERE space = ? AND (expires_at IS NULL OR expires_at > ?)"""
