"""The vectors in the SQLite index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from os import urandom
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...backends import StreamKey
from ..model import MemoryDoc, MemoryFilter, decode_doc
from ..search.filters import sqlite_condition
from ..search.index import MAX_MODELS, Vector, VectorPage
from ..search.sqlite_search import list_numbers

TABLES: Final = """
CREATE TABLE memory_models (
    model INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, name TEXT NOT NULL,
    filling BLOB NOT NULL, vectors INTEGER NOT NULL, UNIQUE (space, name)
) STRICT;
CREATE TABLE memory_vectors (
    place INTEGER PRIMARY KEY AUTOINCREMENT, model INTEGER NOT NULL, number INTEGER NOT NULL,
    floats BLOB NOT NULL, UNIQUE (model, number)
) STRICT;
CREATE INDEX memory_vectors_by_model ON memory_vectors (model);
CREATE TRIGGER memory_vector_put AFTER INSERT ON memory_vectors
BEGIN UPDATE memory_models SET vectors = vectors + 1 WHERE model = NEW.model; END;
CREATE TRIGGER memory_vector_gone AFTER DELETE ON memory_vectors
BEGIN UPDATE memory_models SET vectors = vectors - 1 WHERE model = OLD.model; END;
"""

_encode = msgspec.json.Encoder().encode


class SQLiteVectors:
    """The vector methods of `SQLiteIndex`, which brings the connection."""

    is_remote: Final = False

    if TYPE_CHECKING:

        def _read_transaction(self) -> AbstractContextManager[Any]: ...

        def _write_transaction(self) -> AbstractContextManager[Any]: ...

        def _find_space(self, execute: Any, space: StreamKey) -> int | None: ...

    def models(self, space: StreamKey) -> tuple[int, Mapping[str, int]]:
        with self._read_transaction() as execute:
            rows = execute(_MODELS, (space.tenant, space.id)).fetchall()
            return (rows[0][0] if rows else 0), {
                name: count for _, name, count in rows if name is not None
            }

    def without_vector(
        self, space: StreamKey, model: str, after: int, limit: int, now: float
    ) -> Sequence[MemoryDoc]:
        with self._read_transaction() as execute:
            number = self._find_space(execute, space)
            found = execute(_WITHOUT, (number, model, number, after, now, limit)).fetchall()
            return [decode_doc(body) for (body,) in found]

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
                execute(_PUT, (row[0], floats, number, doc.number, doc.text))

    def vectors(self, space: StreamKey, model: str, after: int, limit: int) -> VectorPage:
        with self._read_transaction() as execute:
            row = execute(_MODEL, (self._find_space(execute, space), model)).fetchone()
            if row is None:
                return VectorPage(b"", [])
            found = execute(_PAGE, (row[0], after, limit)).fetchall()
            return VectorPage(row[1], [Vector(*one) for one in found])

    def vectors_at(self, space: StreamKey, model: str, places: Sequence[int]) -> Sequence[Vector]:
        with self._read_transaction() as execute:
            values = (self._find_space(execute, space), model, _encode(places).decode())
            return [Vector(*row) for row in execute(_BY_PLACE, values)]

    def vectors_of(
        self, space: StreamKey, model: str, numbers: Sequence[int]
    ) -> Mapping[int, bytes]:
        with self._read_transaction() as execute:
            values = (self._find_space(execute, space), model, _encode(numbers).decode())
            return dict(execute(_BY_NUMBER, values).fetchall())

    def numbers(self, space: StreamKey, where: MemoryFilter) -> Sequence[int]:
        with self._read_transaction() as execute:
            number = self._find_space(execute, space)
            return [] if number is None else list_numbers(execute, number, where)

    def docs(
        self, space: StreamKey, numbers: Sequence[int], where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        with self._read_transaction() as execute:
            condition, values = sqlite_condition(where)
            chosen = (self._find_space(execute, space), _encode(numbers).decode(), *values)
            return [decode_doc(body) for (body,) in execute(_DOCS.format(condition), chosen)]

    def vector_search(self) -> None:
        """Return None: SQLite does not compare vectors."""


def drop_vectors(execute: Any, space: int, number: int) -> None:
    """Drop the vectors of a memory that is gone or has another text."""
    execute(_DROP, (number, space))


def clear_vectors(execute: Any, space: int) -> None:
    for (model,) in execute("SELECT model FROM memory_models WHERE space = ?", (space,)).fetchall():
        _drop_model(execute, model)


def _drop_model(execute: Any, model: int) -> None:
    execute("DELETE FROM memory_models WHERE model = ?", (model,))
    execute("DELETE FROM memory_vectors WHERE model = ?", (model,))


_MODELS: Final = """
SELECT memories, name, vectors FROM memory_spaces LEFT JOIN memory_models USING (space)
WHERE tenant = ? AND id = ? ORDER BY model"""
_MODEL: Final = "SELECT model, filling FROM memory_models WHERE space = ? AND name = ?"
_NEW_MODEL: Final = (
    "INSERT INTO memory_models (space, name, filling, vectors) VALUES (?, ?, ?, 0)"
    " RETURNING model, filling"
)
_OLD_MODELS: Final = (
    "SELECT model FROM memory_models WHERE space = ? ORDER BY model DESC LIMIT -1 OFFSET ?"
)
_WITHOUT: Final = """
SELECT body FROM memory_docs LEFT JOIN memory_vectors
    ON model = (SELECT model FROM memory_models WHERE space = ? AND name = ?)
        AND memory_vectors.number = memory_docs.number
WHERE space = ? AND memory_docs.number > ? AND place IS NULL
    AND (expires_at IS NULL OR expires_at > ?)
ORDER BY memory_docs.number LIMIT ?"""
_PUT: Final = """
INSERT OR IGNORE INTO memory_vectors (model, number, floats)
SELECT ?, number, ? FROM memory_docs WHERE space = ? AND number = ? AND body ->> '$.text' = ?"""
_PAGE: Final = """
SELECT place, number, floats FROM memory_vectors WHERE model = ? AND place > ?
ORDER BY place LIMIT ?"""
_BY_NUMBER: Final = """
SELECT number, floats FROM memory_vectors
WHERE model = (SELECT model FROM memory_models WHERE space = ? AND name = ?)
    AND number IN (SELECT value FROM json_each(?))"""
# The "+" keeps SQLite from searching by model instead of by place.
_BY_PLACE: Final = """
SELECT place, number, floats FROM memory_vectors
WHERE +model = (SELECT model FROM memory_models WHERE space = ? AND name = ?)
    AND place IN (SELECT value FROM json_each(?))"""
# The caller sorts: with ORDER BY, SQLite would scan by number instead of by source.
_DOCS: Final = (
    "SELECT body FROM memory_docs WHERE space = ?"
    " AND number IN (SELECT value FROM json_each(?)) AND {}"
)
_DROP: Final = """
DELETE FROM memory_vectors WHERE number = ?
    AND model IN (SELECT model FROM memory_models WHERE space = ?)"""
