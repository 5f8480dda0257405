"""The nearest vectors found by PostgreSQL itself, where it has the extension pgvector: no worker holds a copy of them.

Beside each vector there is a short form of it, three bits for each number: whether it is above the average, and whether far
above or below. The short forms of a namespace are all compared with the question's, and the thousand that differ least are compared
closely. There is no graph (HNSW) over them. It needs the length of vectors in advance, and looks at other namespaces
too before it leaves them out. With 100,000 random vectors in one namespace it found fewer of the nearest than this does, in about
the same time, and made writing many times slower; clustered vectors, which suit it better, were not tried.

All this is derived from the table of vectors, and is filled from it by whoever asks. The SQL is in `_postgres_near_sql`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ...backends import IndexDatabase, StreamKey
from ...backends.postgres.arrays import Times, numbers
from ...backends.postgres.pool import PostgresConnection
from ...backends.postgres.sql import SETUP_LOCK
from ...errors import AccessDenied, HoldfastError, OutcomeUnknown, ReadOnly
from ..model import MemoryFilter, doc_of
from ..search.filters import postgres_condition
from ..search.index import Nearest
from . import pgvector_sql as sql

if TYPE_CHECKING:
    from .embedding import Floats

logger = logging.getLogger("holdfast")

MOST_NUMBERS: Final = 16_000
"""A vector of pgvector has no more. Longer ones are compared by the workers."""
PAGE: Final = 1_000
FIRST: Final = 2_000
"""Before a namespace has so many vectors, all of them are compared closely."""
CLOSE: Final = 1_000
"""So many are compared closely, of those whose short forms differ least."""
CHOSEN: Final = 400
"""So many of them are looked at whether they are asked for."""
SAMPLE: Final = 1_000
"""So many short forms tell how much the nearest differ, so that few have to be sorted."""

DIVIDED: Final = 500_000
"""With so many, more than one process of the server should look through them."""


def near_of(backend: IndexDatabase) -> PostgresNear | None:
    """What finds the nearest vectors in this database. None if it cannot: no pgvector, or no right to make the tables."""
    found = _found(backend)
    if not found.made:
        with suppress(AccessDenied, ReadOnly, OutcomeUnknown):
            backend.transact(lambda connection: _make(connection, backend.schema))
        found = _found(backend)
    usable = found.made and found.allowed
    logger.debug("vectors are compared by %s", "pgvector" if usable else "each process")
    return PostgresNear(backend, found.at) if usable else None


class _PgvectorFound(NamedTuple):
    at: str
    """The schema of the extension."""
    made: bool
    allowed: bool


def _found(backend: IndexDatabase) -> _PgvectorFound:
    [(at, made, allowed)] = backend.rows(sql.FOUND, (backend.schema,))
    return _PgvectorFound(at or "", bool(at) and made == len(sql.NAMES), bool(allowed))


def _make(connection: PostgresConnection, schema: str) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,), prepare=False)
        connection.execute(sql.make(schema), prepare=False)


class PostgresNear:
    """The vectors of all namespaces of a store, as pgvector compares them. Called from any thread."""

    name = "pgvector"

    def __init__(self, backend: IndexDatabase, at: str) -> None:
        self._backend, self._sql = backend, sql.VectorStatements(backend.schema, at)

    def takes(self, dimension: int) -> bool:
        return dimension <= MOST_NUMBERS

    def prepared(self, space: StreamKey, model: str, dimension: int) -> PgvectorSpace:
        """All vectors of a model, ready to be compared."""
        key = {"tenant": space.tenant, "id": space.id, "model": model}
        tried = False
        while True:
            rows = self._rows(self._sql.behind, {**key, "limit": PAGE})
            if not rows:
                return PgvectorSpace(self, 0, 0, 0, False)  # there is none yet
            number, number_of_space, count, levels = rows[0][:4]
            behind = [(place, floats) for *_, place, floats in rows if place is not None]
            if behind:
                self._add(
                    number,
                    [place for place, _ in behind],
                    [floats for _, floats in behind],
                    dimension,
                )
            elif levels or tried or count < FIRST:
                return PgvectorSpace(self, number_of_space, number, count, levels)
            else:
                tried = True
                self._transact(
                    self._sql.level, {"model": number, "dimension": dimension, "sample": 2 * FIRST}
                )
                with suppress(HoldfastError):
                    self._backend.transact(
                        lambda connection: connection.execute(self._sql.tidy, prepare=False)
                    )

    def _add(
        self, model: int, places: Sequence[int], rows: Sequence[bytes], dimension: int
    ) -> None:
        values = {
            "model": model,
            "places": numbers(places),
            "last": places[-1],
            "dimension": dimension,
        }
        values["floats"] = floats_of(b"".join(rows))
        self._transact(self._sql.add, values)

    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        return self._backend.rows(statement, values)

    def _transact(self, statements: Sequence[str], values: dict[str, Any]) -> None:
        def work(connection: PostgresConnection) -> None:
            # Several statements, so that what follows the lock sees what was committed before it.
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement, values)

        with suppress(OutcomeUnknown):  # what is still missing is found again
            self._backend.transact(work)


class PgvectorSpace(msgspec.Struct, frozen=True):
    """The vectors of one model in one namespace."""

    near: PostgresNear
    space: int
    model: int
    count: int
    levels: bool

    def nearest(self, question: Floats, where: MemoryFilter, limit: int, enough: int) -> Nearest:
        """Those that are asked for, nearest first: at least `enough`, if there are so many."""
        if not self.count:
            return Nearest([], 0.0)
        statements = self.near._sql
        condition, values = postgres_condition(where)
        values |= {
            "question": floats_of(question.astype("<f4").tobytes()),
            "model": self.model,
            "space": self.space,
            "limit": limit,
        }
        values |= {"close": max(CLOSE, limit), "chosen": max(CHOSEN, limit), "sample": SAMPLE}
        alone = sql.ALONE if self.count < DIVIDED else ""
        if not self.levels:
            return self._asked(statements.among_all.format(condition=condition), values)[1]
        if where.source is None:
            # More is let through than wanted. If it is too little all the same, nothing is held back.
            share = max(1.8 * values["close"] / self.count, 0.004)
            for values["share"] in (share, None) if share < 1 else (None,):
                compared, found = self._asked(
                    statements.nearest.format(condition=condition, alone=alone), values
                )
                if compared >= min(values["close"], self.count):
                    break
            if len(found.docs) >= enough or compared >= self.count:
                return found
            del values["share"]
        # Few are asked for, so that too few of the nearest are among them: look only at these.
        return self._asked(statements.narrow.format(condition=condition, alone=alone), values)[1]

    def _asked(self, statement: str, values: dict[str, Any]) -> tuple[int, Nearest]:
        """How many were compared closely, and what came of it."""
        rows = self.near._rows(statement, values)
        if not rows:
            return 0, Nearest([], 0.0)  # the model is gone meanwhile
        docs = [(doc_of(body), -apart) for *_, body, apart in rows if body is not None]
        return rows[0][0], Nearest(docs, rows[0][1] or 0.0)


def floats_of(values: bytes) -> Times:
    """float32, little endian, as an array of the server's: a header, then each with its length in front."""
    import numpy as np  # not above: whoever has no embedder need not have it

    numbers = np.frombuffer(values, "<f4")
    cells = np.empty(len(numbers), [("length", ">i4"), ("value", ">f8")])
    cells["length"], cells["value"] = 8, numbers
    return Times(struct.pack("!iiIii", 1, 0, Times.element, len(numbers), 1) + cells.tobytes())
