"""The vectors in the PostgreSQL index.

They are compared by pgvector (`pgvector.py`), or else by the workers, which read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import urandom
from typing import TYPE_CHECKING, Any, Final

from ...backends import IndexDatabase, StreamKey
from ...backends.postgres.pool import PostgresConnection
from ...backends.postgres.schema import quote_identifier
from ...errors import OutcomeUnknown
from ..model import MemoryDoc, MemoryFilter, decode_doc, encode_doc
from ..search.filters import postgres_condition
from ..search.index import MAX_MODELS, Vector, VectorPage

TABLES: Final = """\
CREATE TABLE {schema}.memory_models (
    model bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, space integer NOT NULL,
    name text COLLATE "C" NOT NULL, filling bytea NOT NULL, vectors bigint NOT NULL DEFAULT 0,
    UNIQUE (space, name)
);
CREATE TABLE {schema}.memory_vectors (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, space integer NOT NULL,
    model bigint NOT NULL, number bigint NOT NULL, floats bytea NOT NULL, UNIQUE (model, number)
);
ALTER TABLE {schema}.memory_vectors ALTER COLUMN floats SET STORAGE MAIN,
    SET (toast_tuple_target = 8160);
CREATE INDEX memory_vectors_by_place ON {schema}.memory_vectors (model, place);
CREATE INDEX memory_vectors_by_number ON {schema}.memory_vectors (space, number);
"""


class PostgresVectors:
    """The vector methods of `PostgresIndex`, which brings the connections."""

    _backend: IndexDatabase
    is_remote: Final = True

    if TYPE_CHECKING:

        def _rows(self, statement: str, space: StreamKey, **values: Any) -> list[Any]: ...

        def _ensure_tables(self) -> None: ...

    def models(self, space: StreamKey) -> tuple[int, Mapping[str, int]]:
        rows = self._query(_MODELS, space)
        return (rows[0][0] if rows else 0), {
            name: count for _, name, count in rows if name is not None
        }

    def without_vector(
        self, space: StreamKey, model: str, after: int, limit: int, now: float
    ) -> Sequence[MemoryDoc]:
        rows = self._query(_WITHOUT, space, model=model, after=after, limit=limit, now=now)
        return [decode_doc(body) for (body,) in rows]

    def put_vectors(
        self, space: StreamKey, model: str, vectors: Sequence[tuple[MemoryDoc, bytes]]
    ) -> None:
        self._ensure_tables()
        values = {
            "tenant": space.tenant,
            "id": space.id,
            "model": model,
            "filling": urandom(8),
            "models": MAX_MODELS,
            "numbers": [doc.number for doc, _ in vectors],
            "bodies": [encode_doc(doc) for doc, _ in vectors],
            "floats": [floats for _, floats in vectors],
        }
        statements = [self._complete(text) for text in _PUT]
        try:
            self._backend.transact(lambda connection: _run_put(connection, statements, values))
        except OutcomeUnknown:
            pass  # the next backfill finds what is still missing

    def vectors(self, space: StreamKey, model: str, after: int, limit: int) -> VectorPage:
        rows = self._query(_PAGE, space, model=model, after=after, limit=limit)
        if not rows:
            return VectorPage(b"", [])
        return VectorPage(rows[0][0], [Vector(*row[1:]) for row in rows if row[1] is not None])

    def vectors_at(self, space: StreamKey, model: str, places: Sequence[int]) -> Sequence[Vector]:
        return [
            Vector(*row) for row in self._query(_BY_PLACE, space, model=model, places=list(places))
        ]

    def vectors_of(
        self, space: StreamKey, model: str, numbers: Sequence[int]
    ) -> Mapping[int, bytes]:
        return dict(self._query(_BY_NUMBER, space, model=model, numbers=list(numbers)))

    def numbers(self, space: StreamKey, where: MemoryFilter) -> Sequence[int]:
        condition, values = postgres_condition(where)
        return [number for (number,) in self._query(_NUMBERS, space, condition, **values)]

    def docs(
        self, space: StreamKey, numbers: Sequence[int], where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        condition, values = postgres_condition(where)
        return [
            decode_doc(body)
            for (body,) in self._query(_DOCS, space, condition, numbers=list(numbers), **values)
        ]

    def _query(
        self, statement: str, space: StreamKey, condition: str = "", **values: Any
    ) -> list[Any]:
        return self._rows(self._complete(statement, condition), space, **values)

    def _complete(self, statement: str, condition: str = "") -> str:
        schema = quote_identifier(self._backend.schema)
        parts = {
            name: text.format(schema=schema)
            for name, text in (("space", _SPACE), ("model", _MODEL))
        }
        return statement.format(schema=schema, condition=condition, **parts)


def _run_put(
    connection: PostgresConnection, statements: Sequence[str], values: dict[str, Any]
) -> None:
    # Several statements, so that those after the lock see what was committed before it.
    with connection.transaction():
        if connection.execute(statements[0], values).rowcount:
            for statement in statements[1:]:
                connection.execute(statement, values)


_SPACE: Final = (
    "(SELECT space FROM {schema}.memory_spaces WHERE tenant = %(tenant)s AND id = %(id)s)"
)
_MODEL: Final = (
    "(SELECT model FROM {schema}.memory_models m JOIN {schema}.memory_spaces s USING (space)"
    " WHERE s.tenant = %(tenant)s AND s.id = %(id)s AND m.name = %(model)s)"
)
_MODELS: Final = """\
SELECT memories, name, vectors FROM {schema}.memory_spaces s
LEFT JOIN {schema}.memory_models m USING (space)
WHERE tenant = %(tenant)s AND s.id = %(id)s ORDER BY model"""
_WITHOUT: Final = """\
SELECT body FROM {schema}.memory_docs d JOIN {schema}.memory_bodies b USING (space, number)
WHERE space = {space} AND number > %(after)s AND (expires_at IS NULL OR expires_at > %(now)s)
    AND NOT EXISTS (
        SELECT FROM {schema}.memory_vectors v WHERE v.model = {model} AND v.number = d.number
    )
ORDER BY number LIMIT %(limit)s"""
# The namespace is locked and marked, so that a `write` that waits for this one starts over: it
# could not see these vectors and would leave them behind. The lock also makes the places of a model
# visible in order.
_PUT: Final = (
    "UPDATE {schema}.memory_spaces SET puts = puts + 1 WHERE tenant = %(tenant)s AND id = %(id)s",
    """\
INSERT INTO {schema}.memory_models (space, name, filling)
SELECT space, %(model)s, %(filling)s FROM {schema}.memory_spaces
WHERE tenant = %(tenant)s AND id = %(id)s ON CONFLICT DO NOTHING""",
    """\
WITH kept AS (
    INSERT INTO {schema}.memory_vectors (space, model, number, floats)
    SELECT b.space, {model}, b.number, given.floats
    FROM unnest(%(numbers)s::bigint[], %(bodies)s::bytea[], %(floats)s::bytea[])
        AS given (number, body, floats)
    JOIN {schema}.memory_bodies b
        ON b.space = {space} AND b.number = given.number AND b.body = given.body
    ORDER BY b.number ON CONFLICT DO NOTHING RETURNING 1
)
UPDATE {schema}.memory_models SET vectors = vectors + (SELECT count(*) FROM kept)
WHERE model = {model}""",
    """\
WITH old AS (
    DELETE FROM {schema}.memory_models WHERE model IN (
        SELECT model FROM {schema}.memory_models WHERE space = {space}
        ORDER BY model DESC OFFSET %(models)s
    ) RETURNING model
)
DELETE FROM {schema}.memory_vectors v USING old WHERE v.model = old.model""",
)
_PAGE: Final = """\
SELECT m.filling, v.place, v.number, v.floats FROM {schema}.memory_models m LEFT JOIN LATERAL (
    SELECT place, number, floats FROM {schema}.memory_vectors v
    WHERE v.model = m.model AND place > %(after)s ORDER BY place LIMIT %(limit)s
) AS v ON true WHERE m.model = {model} ORDER BY v.place"""
_BY_PLACE: Final = """\
SELECT place, number, floats FROM {schema}.memory_vectors
WHERE place = ANY(%(places)s::bigint[]) AND model = {model}"""
_BY_NUMBER: Final = """\
SELECT number, floats FROM {schema}.memory_vectors
WHERE model = {model} AND number = ANY(%(numbers)s::bigint[])"""
_NUMBERS: Final = (
    "SELECT number FROM {schema}.memory_docs WHERE space = {space} AND {condition} ORDER BY number"
)
_DOCS: Final = """\
SELECT body FROM {schema}.memory_docs JOIN {schema}.memory_bodies USING (space, number)
WHERE space = {space} AND number = ANY(%(numbers)s::bigint[]) AND {condition}"""
