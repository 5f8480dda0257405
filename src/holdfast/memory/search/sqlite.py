"""The index in SQLite: in the store's own file, in a file of its own, or in memory.

The words are in one FTS5 table. Each term has the number of its namespace as a prefix
("7_dispute"), so a namespace has its own posting lists: other namespaces cost it nothing and cannot
leak into it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from os import urandom
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from ...backends import StreamKey
from ...backends.sqlite.connection import close
from ..fold import IndexChanges
from ..model import IndexPosition, MemoryDoc, MemoryFilter, decode_doc
from .candidates import doc_markers, passage_terms, required_markers
from .index import MAX_MODELS, Matches, MemoryIndex, Neighbours, check_page
from .sqlite_file import MEMORY, SQLiteFile, connect_readonly, drop_tables
from .sqlite_search import (
    SQLITE,
    NamespaceSize,
    list_marked,
    pack_values,
    read_marked,
    rowid_of,
    search_namespace,
)

FORMAT: Final = 10
"""Tables of another format are dropped and rebuilt from the streams."""
MERGE_PAGES: Final = 500
"""Pages of FTS5 to merge in one transaction."""
MAX_MERGES: Final = 1_000
"""A limit, because concurrent writers always leave a little more to merge."""

_TABLES: Final = """
CREATE TABLE memory_format (format INTEGER NOT NULL) STRICT;
CREATE TABLE memory_spaces (
    space INTEGER PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL,
    incarnation BLOB NOT NULL, version INTEGER NOT NULL, hash BLOB NOT NULL,
    memories INTEGER NOT NULL, terms INTEGER NOT NULL, UNIQUE (tenant, id)
) STRICT;
CREATE TABLE memory_docs (
    doc INTEGER PRIMARY KEY, space INTEGER NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL,
    at REAL NOT NULL, first_at REAL NOT NULL, source TEXT, sources TEXT, expires_at REAL,
    valid_from REAL, valid_until REAL, length INTEGER NOT NULL, body BLOB NOT NULL
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
CREATE TABLE memory_models (
    model INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, name TEXT NOT NULL,
    filling BLOB NOT NULL, vectors INTEGER NOT NULL, UNIQUE (space, name)
) STRICT;
CREATE TABLE memory_vectors (
    place INTEGER PRIMARY KEY AUTOINCREMENT, model INTEGER NOT NULL, number INTEGER NOT NULL,
    floats BLOB NOT NULL, checksum BLOB NOT NULL, UNIQUE (model, number)
) STRICT;
CREATE INDEX memory_vectors_by_model ON memory_vectors (model);
CREATE TRIGGER memory_vector_put AFTER INSERT ON memory_vectors
BEGIN UPDATE memory_models SET vectors = vectors + 1 WHERE model = NEW.model; END;
CREATE TRIGGER memory_vector_gone AFTER DELETE ON memory_vectors
BEGIN UPDATE memory_models SET vectors = vectors - 1 WHERE model = OLD.model; END;
"""

_encode = msgspec.json.Encoder().encode


class IndexDump(NamedTuple):
    """What is stored about a namespace.

    `rows` are the columns of memories, `words` their words in the index, both by number; `ids` and
    `keys` lead to numbers; `memories` and `terms` are the stored totals.
    """

    rows: dict[int, tuple[Any, ...]]
    words: dict[int, frozenset[str]]
    ids: dict[str, int]
    keys: frozenset[tuple[str, int]]
    memories: int
    terms: int


class SQLiteIndex(MemoryIndex):
    """An index in an SQLite file or in memory.

    `shared` means that the file is the store's own, `user_file` that the user chose it, and
    `readonly` that it exists and is only read.
    """

    is_remote, _dialect = False, SQLITE

    def __init__(
        self,
        path: str = MEMORY,
        *,
        shared: bool = False,
        user_file: bool = False,
        readonly: bool = False,
    ) -> None:
        self._file = SQLiteFile(
            path, _create_tables, shared=shared, user_file=user_file, readonly=readonly
        )
        self.repair, self.close = self._file.repair, self._file.close  # type: ignore[method-assign]

    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        with self._read_transaction() as execute:
            found: list[Any] = execute(statement, pack_values(values)).fetchall()
            return found

    # -- writing ---------------------------------------------------------------------------------

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
        """Remove memories that are gone or have changed, then insert the new ones.

        The ids of removed memories stay and lead nowhere.
        """
        execute = connection.execute
        memories, terms = 0, 0
        gone = {doc.number for doc in changes.gone}
        # FTS5 collects rows in rowid order, and starts a new segment when the order breaks.
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
                execute(_DROP_VECTORS, (doc.number, space))
            memories, terms = memories - 1, terms - length
        for doc in sorted(changes.put, key=_by_number):
            length, rowid = passage_terms(doc), rowid_of(space, doc.number)
            execute(
                "INSERT INTO memory_docs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (rowid, space, doc.number, doc.id, *_columns(doc), length, _encode(doc)),
            )
            words = [*doc.terms.split(), *doc.context.split(), *doc_markers(doc)]
            prefixed = " ".join(f"{space}_{word}" for word in words)
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

    def clear(self, space: StreamKey, at: IndexPosition) -> None:
        with self._write_transaction() as execute:
            row = execute(_SPACE, (space.tenant, space.id)).fetchone()
            if _to_position(row) != at:
                return
            _delete_namespace(execute, row[0])
            if execute(_SPACE, (space.tenant, space.id)).fetchone() is not None:
                raise apsw.CorruptError("a namespace cannot be deleted")
        self._merge_segments()

    def _merge_segments(self) -> None:
        """Remove deleted words from the file: FTS5 drops them only when it merges segments.

        It merges a little at a time, so that no other process waits long.
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
            condition, values = SQLITE.build_condition(where)
            values = pack_values(values | {"space": number, "reach": reach})
            for doc in docs:
                # The filter has a `source` of its own.
                here = {"here": doc.source, "first_at": doc.first_at, "number": doc.number}
                sides = [
                    [_decode(body) for (body,) in execute(side.format(condition), values | here)]
                    for side in (_BEFORE, _AFTER)
                    if doc.source is not None
                ]
                found.append(Neighbours(*sides or ([], [])))
            return found

    def page(
        self, space: StreamKey, after: int, limit: int, where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        if not required_markers(where):
            return super().page(space, after, limit, where)
        with self._read_transaction() as execute:
            number = self._find_space(execute, space)
            found = [] if number is None else read_marked(execute, number, after, limit, where)
        return check_page(found, after)

    def numbers(self, space: StreamKey, where: MemoryFilter) -> Sequence[int]:
        if not required_markers(where):
            return super().numbers(space, where)
        with self._read_transaction() as execute:
            number = self._find_space(execute, space)
            return [] if number is None else list_marked(execute, number, where)

    def put_vectors(
        self, space: StreamKey, model: str, vectors: Sequence[tuple[MemoryDoc, bytes]]
    ) -> None:
        with self._write_transaction() as execute:
            number = self._find_space(execute, space)
            if number is None:
                return  # the namespace was deleted meanwhile
            row = (
                execute(_MODEL, (number, model)).fetchone()
                or execute(_NEW_MODEL, (number, model, urandom(8))).fetchone()
            )
            for (old,) in execute(_OLD_MODELS, (number, MAX_MODELS)).fetchall():
                _drop_model(execute, old)
            for doc, floats in vectors:
                checksum = _compute_checksum(model, doc.number, floats)
                execute(_PUT_VECTOR, (row[0], floats, checksum, number, doc.number, doc.text))

    # -- checking --------------------------------------------------------------------------------

    def dump(self, space: StreamKey) -> IndexDump:
        """Return everything that is stored about a namespace, for a comparison."""
        with self._read_transaction() as execute:
            number = self._find_space(execute, space)
            if number is None:
                return IndexDump({}, {}, {}, frozenset(), 0, 0)
            rows = {row[0]: row[1:] for row in execute(_ROWS, (number,))}
            execute(_VOCABULARY).fetchall()
            # In a term, "_" follows the number of the namespace; in ASCII, "`" follows "_".
            words = defaultdict[int, set[str]](set)
            for term, rowid in execute(_WORDS, (f"{number}_", f"{number}`")):
                words[rowid - rowid_of(number, 0)].add(term.partition("_")[2])
            return IndexDump(
                rows,
                {doc: frozenset(found) for doc, found in words.items()},
                dict(execute("SELECT id, number FROM memory_ids WHERE space = ?", (number,))),
                frozenset(
                    execute("SELECT key, number FROM memory_keys WHERE space = ?", (number,))
                ),
                *execute(_SPACE, (space.tenant, space.id)).fetchall()[0][4:],
            )

    def find_problems(self) -> list[str]:
        """Return the inconsistencies within the tables."""
        found = []
        with self._read_transaction() as execute:
            if _read_schema(execute) != _read_expected_schema():
                found.append("the tables of the memory index were altered")
            docs, sizes = (
                {row[0] for row in execute(f"SELECT {column} FROM {table}")}  # noqa: S608
                for column, table in (("doc", "memory_docs"), ("id", "memory_terms_docsize"))
            )
            if docs != sizes:
                found.append("words in the memory index belong to no memory, or are missing")
            if any(doc != rowid_of(space, number) for doc, space, number in execute(_PLACES)):
                found.append("a memory in the index is at a wrong place")
            if any(execute(_ORPHANS.format(table)).fetchone() for table in _SPACE_TABLES):
                found.append("the memory index has entries that belong to no namespace")
            counts: dict[str, int] = defaultdict(int)
            for model, name, number, floats, checksum in execute(_VECTORS):
                counts[model] += 1
                if name is None or checksum != _compute_checksum(name, number, floats):
                    return [*found, "a vector in the memory index was altered"]
            models = dict(execute("SELECT model, vectors FROM memory_models WHERE vectors <> 0"))
            if models != counts:
                found.append("the number of vectors in the memory index is wrong")
        return found

    # -- the connection --------------------------------------------------------------------------

    def _find_space(self, execute: Any, space: StreamKey) -> int | None:
        row = execute(_SPACE, (space.tenant, space.id)).fetchone()
        return None if row is None else row[0]

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
        for statement in _TABLES.split(";\n"):
            if statement.strip():
                connection.execute(statement).fetchall()
        connection.execute("INSERT INTO memory_format VALUES (?)", (FORMAT,))
    connection.execute("COMMIT")


def _read_schema(execute: Any) -> frozenset[Any]:
    """Return the definitions of the tables of an index."""
    return frozenset(
        execute("SELECT type, name, sql FROM sqlite_schema WHERE tbl_name GLOB 'memory_*'")
    )


@lru_cache(maxsize=1)
def _read_expected_schema() -> frozenset[Any]:
    """Return the schema of the tables of an index, as SQLite writes it."""
    connection = apsw.Connection(MEMORY)
    _create_tables(connection)
    schema = _read_schema(connection.execute)
    connection.close()
    return schema


def has_tables(path: str) -> bool:
    """Return whether a file has the tables of an index in this format. Changes nothing."""
    connection = connect_readonly(path)
    try:
        return _read_format(connection) == [(FORMAT,)]
    finally:
        close(connection)


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
    for (model,) in execute("SELECT model FROM memory_models WHERE space = ?", (space,)).fetchall():
        _drop_model(execute, model)
    for table in ("docs", "ids", "keys", "spaces"):
        execute(f"DELETE FROM memory_{table} WHERE space = ?", (space,))  # noqa: S608


def _drop_model(execute: Any, model: int) -> None:
    execute("DELETE FROM memory_models WHERE model = ?", (model,))
    execute("DELETE FROM memory_vectors WHERE model = ?", (model,))


def _compute_checksum(model: str, number: int, floats: bytes) -> bytes:
    """Return a checksum of a vector. Unlike the rest of an index, it cannot be derived again."""
    return blake2b(b"%b\0%d\0%b" % (model.encode(), number, floats), digest_size=8).digest()


def _columns(doc: MemoryDoc) -> tuple[Any, ...]:
    """Return the columns that filters use. `sources` is NULL if there is only one."""
    sources = _encode(doc.sources).decode() if doc.sources else None
    return (
        doc.at,
        doc.first_at,
        doc.source,
        sources,
        doc.expires_at,
        doc.valid_from,
        doc.valid_until,
    )


def _decode(body: bytes | None) -> MemoryDoc:
    """Decode a body. Damage may leave NULL, which then fails as invalid JSON."""
    return decode_doc(body or b"")


def _by_number(doc: MemoryDoc) -> int:
    return doc.number


_SPACE: Final = (
    "SELECT space, incarnation, version, hash, memories, terms FROM memory_spaces"
    " WHERE tenant = ? AND id = ?"
)
_NEW_SPACE: Final = (
    "INSERT INTO memory_spaces (tenant, id, incarnation, version, hash, memories, terms)"
    " VALUES (?, ?, ?, ?, ?, 0, 0)"
)
_MOVED: Final = "UPDATE memory_spaces SET version = ?, hash = ? WHERE space = ?"
_BEFORE: Final = """
SELECT body FROM memory_docs
WHERE space = :space AND source = :here AND (first_at, number) < (:first_at, :number) AND {}
ORDER BY first_at DESC, number DESC LIMIT :reach"""
_AFTER: Final = """
SELECT body FROM memory_docs
WHERE space = :space AND source = :here AND (first_at, number) > (:first_at, :number) AND {}
ORDER BY first_at, number LIMIT :reach"""
_MODEL: Final = "SELECT model FROM memory_models WHERE space = ? AND name = ?"
_NEW_MODEL: Final = (
    "INSERT INTO memory_models (space, name, filling, vectors) VALUES (?, ?, ?, 0) RETURNING model"
)
_OLD_MODELS: Final = (
    "SELECT model FROM memory_models WHERE space = ? ORDER BY model DESC LIMIT -1 OFFSET ?"
)
_PUT_VECTOR: Final = """
INSERT OR IGNORE INTO memory_vectors (model, number, floats, checksum)
SELECT ?, number, ?, ? FROM memory_docs WHERE space = ? AND number = ? AND body ->> '$.text' = ?"""
_DROP_VECTORS: Final = """
DELETE FROM memory_vectors WHERE number = ?
    AND model IN (SELECT model FROM memory_models WHERE space = ?)"""
_VOCABULARY: Final = """
CREATE VIRTUAL TABLE IF NOT EXISTS temp.memory_instances
USING fts5vocab('main', 'memory_terms', 'instance')"""
_ROWS: Final = """
SELECT number, id, at, first_at, source, sources, expires_at, length, valid_from, valid_until, body
FROM memory_docs
WHERE space = ?"""
_WORDS: Final = "SELECT term, doc FROM temp.memory_instances WHERE term >= ? AND term < ?"
_PLACES: Final = "SELECT doc, space, number FROM memory_docs"
_SPACE_TABLES: Final = ("docs", "ids", "keys", "models")
_ORPHANS: Final = (
    "SELECT 1 FROM memory_{} WHERE space NOT IN (SELECT space FROM memory_spaces) LIMIT 1"
)
_VECTORS: Final = """
SELECT model, name, number, floats, checksum
FROM memory_vectors LEFT JOIN memory_models USING (model)"""
