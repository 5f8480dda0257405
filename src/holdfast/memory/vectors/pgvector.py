"""Find the nearest vectors in PostgreSQL with pgvector, so that no worker keeps a copy.

Each vector has a short code of three bits per dimension: whether it is above the average, far
above, or far below. All codes of a namespace are compared with the query's, and the thousand
vectors whose codes differ least are compared closely.

A graph (HNSW) is not used: it needs to know the dimension in advance, and visits other namespaces
before it filters them out. With 100,000 random vectors in one namespace it found fewer of the
nearest in about the same time, and made writes many times slower; clustered vectors, which suit it
better, were not tried.

The codes are derived from the table of vectors, and each query adds the missing ones. The SQL is in
`pgvector_sql.py`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...backends import IndexDatabase, StreamKey
from ...backends.postgres.arrays import FloatArray, bigint_array
from ...backends.postgres.pool import PostgresConnection
from ...backends.postgres.schema import SETUP_LOCK, quote_identifier
from ...errors import AccessDenied, HoldfastError, OutcomeUnknown, ReadOnly
from ..model import MemoryFilter
from ..search.index import Nearest, decode_stored
from ..search.postgres_sql import build_dialect
from . import pgvector_sql as sql

if TYPE_CHECKING:
    from .embedding import Floats

logger = logging.getLogger("holdfast")

MAX_DIMENSION: Final = 16_000
"""The limit of pgvector. Longer vectors are compared by the workers."""
PAGE_VECTORS: Final = 1_000
MIN_CODED_VECTORS: Final = 2_000
"""In a smaller namespace all vectors are compared closely."""
CLOSE_VECTORS: Final = 1_000
"""How many vectors are compared closely: those whose codes differ least from the query's."""
FILTERED_VECTORS: Final = 400
"""How many of these are matched against the filter."""
SAMPLE_CODES: Final = 1_000
"""How many codes to sample to see how much the nearest differ, so that few have to be sorted."""

PARALLEL_VECTORS: Final = 500_000
"""With at least this many vectors, several processes of the server search in parallel."""


def open_pgvector(backend: IndexDatabase) -> PgvectorSearch | None:
    """Return a search with pgvector; None if it is not installed or permissions are missing."""
    at, has_tables, is_allowed = _read_state(backend)
    if not has_tables:
        with suppress(AccessDenied, ReadOnly, OutcomeUnknown):
            backend.transact(lambda connection: _create_tables(connection, backend.schema))
        at, has_tables, is_allowed = _read_state(backend)
    usable = has_tables and is_allowed
    logger.debug("vectors are compared by %s", "pgvector" if usable else "each process")
    return PgvectorSearch(backend, at) if usable else None


def _read_state(backend: IndexDatabase) -> tuple[str, bool, bool]:
    """Return the schema of the extension, whether the tables exist, and whether we may use them."""
    [(at, columns, allowed)] = backend.rows(sql.READ_STATE, (backend.schema,))
    return at or "", bool(at) and columns == len(sql.PGVECTOR_TABLES), bool(allowed)


def _create_tables(connection: PostgresConnection, schema: str) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,), prepare=False)
        connection.execute(sql.create_statement(schema), prepare=False)


class PgvectorSearch:
    """The vectors of all namespaces of a store in pgvector. Can be called from any thread."""

    name = "pgvector"

    def __init__(self, backend: IndexDatabase, at: str) -> None:
        self._backend, self._sql = backend, sql.VectorStatements(backend.schema, at)
        self._dialect = build_dialect(quote_identifier(backend.schema))

    def supports(self, dimension: int) -> bool:
        return dimension <= MAX_DIMENSION

    def prepare(self, space: StreamKey, model: str, dimension: int) -> PgvectorNamespace:
        """Return the vectors of a model, after adding the codes of new ones."""
        key = {"tenant": space.tenant, "id": space.id, "model": model}
        tried = False
        while True:
            rows = self._backend.rows(self._sql.behind, {**key, "limit": PAGE_VECTORS})
            if not rows:
                return PgvectorNamespace(self, 0, 0, 0, False)  # there are no vectors yet
            number, number_of_space, count, levels = rows[0][:4]
            behind = [(place, floats) for *_, place, floats in rows if place is not None]
            if behind:
                self._transact(
                    self._sql.add,
                    {
                        "model": number,
                        "places": bigint_array(place for place, _ in behind),
                        "last": behind[-1][0],
                        "dimension": dimension,
                        "floats": encode_floats(b"".join(floats for _, floats in behind)),
                    },
                )
            elif levels or tried or count < MIN_CODED_VECTORS:
                return PgvectorNamespace(self, number_of_space, number, count, levels)
            else:
                tried = True
                self._transact(
                    self._sql.level,
                    {"model": number, "dimension": dimension, "sample": 2 * MIN_CODED_VECTORS},
                )
                with suppress(HoldfastError):
                    self._backend.transact(
                        lambda connection: connection.execute(self._sql.tidy, prepare=False)
                    )

    def _transact(self, statements: Sequence[str], values: dict[str, Any]) -> None:
        def work(connection: PostgresConnection) -> None:
            # Several statements, so that those after the lock see what was committed before it.
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement, values)

        with suppress(OutcomeUnknown):  # the next query finds what is still missing
            self._backend.transact(work)


class PgvectorNamespace(msgspec.Struct, frozen=True):
    """The vectors of one model in one namespace."""

    search: PgvectorSearch
    space: int
    model: int
    count: int
    levels: bool

    def nearest(self, question: Floats, where: MemoryFilter, limit: int, enough: int) -> Nearest:
        """Return the nearest matching memories, nearest first; at least `enough` if possible."""
        if not self.count:
            return Nearest([], 0.0)
        statements = self.search._sql
        condition, values = self.search._dialect.build_condition(where)
        values |= {
            "question": encode_floats(question.astype("<f4").tobytes()),
            "model": self.model,
            "space": self.space,
            "limit": limit,
            "close": max(CLOSE_VECTORS, limit),
            "chosen": max(FILTERED_VECTORS, limit),
            "sample": SAMPLE_CODES,
        }
        parallelism = sql.NOT_PARALLEL if self.count < PARALLEL_VECTORS else ""
        if not self.levels:
            return self._compare(statements.among_all.format(condition=condition), values)[1]
        if where.source is None:
            # The bound lets through more than needed. If that is too few after all, try without a
            # bound.
            share = max(1.8 * values["close"] / self.count, 0.004)
            for values["share"] in (share, None) if share < 1 else (None,):
                compared, found = self._compare(
                    statements.nearest.format(condition=condition, alone=parallelism), values
                )
                if compared >= min(values["close"], self.count):
                    break
            if len(found.docs) >= enough or compared >= self.count:
                return found
            del values["share"]
        # Too few of the nearest memories match the filter, so compare only memories that match it.
        return self._compare(
            statements.narrow.format(condition=condition, alone=parallelism), values
        )[1]

    def _compare(self, statement: str, values: dict[str, Any]) -> tuple[int, Nearest]:
        """Return how many vectors were compared closely, and the nearest memories."""
        rows = self.search._backend.rows(statement, values)
        if not rows:
            return 0, Nearest([], 0.0)  # the model was dropped meanwhile
        docs = [(decode_stored(body), -apart) for *_, body, apart in rows if body is not None]
        return rows[0][0], Nearest(docs, rows[0][1] or 0.0)


def encode_floats(values: bytes) -> FloatArray:
    """Encode little-endian float32 as a PostgreSQL array: a header, then lengths and values."""
    import numpy as np  # not above: it is needed only with an embedder

    floats = np.frombuffer(values, "<f4")
    cells = np.empty(len(floats), [("length", ">i4"), ("value", ">f8")])
    cells["length"], cells["value"] = 8, floats
    return FloatArray(
        struct.pack("!iiIii", 1, 0, FloatArray.element, len(floats), 1) + cells.tobytes()
    )
