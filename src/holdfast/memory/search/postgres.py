"""The index in PostgreSQL, beside the store's own tables: shared by all workers.

The words of a memory are a `tsvector` of our own terms with a GIN index; term frequencies are
counted as memories come and go. Each method is one statement. The SQL is in `postgres_sql.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from os import urandom
from typing import Any, Final

import msgspec

from ...backends import IndexDatabase, StreamKey
from ...backends.postgres.arrays import bigint_array, bytea_array, float_array, text_array
from ...backends.postgres.pool import PostgresConnection
from ...backends.postgres.schema import SETUP_LOCK, quote_identifier
from ...errors import AccessDenied, NotSetUp, OutcomeUnknown, ReadOnly
from ..fold import IndexChanges
from ..model import IndexPosition, MemoryDoc, MemoryFilter, encode_doc
from ..vectors.pgvector import PgvectorSearch, open_pgvector
from . import postgres_sql as sql
from .candidates import MAX_TERMS, doc_markers, excluded_markers, passage_terms, required_markers
from .index import MAX_MODELS, IndexUnusable, Matches, MemoryIndex, Neighbours, decode_stored

UNLIMITED: Final = 1 << 62
CLEAR_ROWS: Final = 20_000
"""Rows to delete at a time when a namespace is cleared, so that no statement takes long."""
MAX_WORDS_BYTES: Final = 900_000
"""Stays below the 1 MiB of a tsvector, which PostgreSQL doesn't check.

The last words of a longer text are dropped.
"""


class PostgresIndex(MemoryIndex):
    """The memories of all namespaces in the schema of a store. Creates its tables on first use."""

    is_remote = True

    def __init__(self, backend: IndexDatabase) -> None:
        self._backend = backend
        self._dialect = sql.build_dialect(quote_identifier(backend.schema))
        self._ready, self._lock = False, threading.Lock()
        self._pgvector: tuple[PgvectorSearch | None] | None = None

    # -- writing ---------------------------------------------------------------------------------

    def write(
        self,
        space: StreamKey,
        before: IndexPosition | None,
        after: IndexPosition,
        changes: IndexChanges,
    ) -> bool:
        if before is not None and before.incarnation != after.incarnation:
            return False
        values = _column_values(changes) | after._asdict()
        if before is not None:
            values |= {"before": before.version, "before_hash": before.hash}
        return self._execute(sql.START if before is None else sql.ADVANCE, space, values)

    def clear(self, space: StreamKey, at: IndexPosition) -> None:
        self._execute(sql.UNNAME, space, at._asdict())
        self._delete_unnamed(space)

    def replace(self, space: StreamKey, by: StreamKey) -> bool:
        values = {"tenant": space.tenant, "id": space.id, "by_tenant": by.tenant, "by_id": by.id}

        def rename(connection: PostgresConnection) -> None:
            with connection.transaction():
                for statement in sql.REPLACE:
                    connection.execute(self._complete(statement), values)

        self._ensure_tables()
        with suppress(OutcomeUnknown):
            self._backend.transact(rename)
        self._delete_unnamed(space)
        return self.position(by) is None

    def put_vectors(
        self, space: StreamKey, model: str, vectors: Sequence[tuple[MemoryDoc, bytes]]
    ) -> None:
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

        def put(connection: PostgresConnection) -> None:
            # Several statements, so that those after the lock see what was committed before it.
            with connection.transaction():
                lock, *others = map(self._complete, sql.PUT_VECTORS)
                if connection.execute(lock, values).rowcount:
                    for statement in others:
                        connection.execute(statement, values)

        self._ensure_tables()
        with suppress(OutcomeUnknown):  # the next backfill finds what is still missing
            self._backend.transact(put)

    def _delete_unnamed(self, space: StreamKey) -> None:
        for (number,) in self._rows(self._complete(sql.UNNAMED), {}):
            for statement in sql.CLEAR:
                while self._execute(statement, space, {"space": number, "limit": CLEAR_ROWS}):
                    pass

    # -- reading ---------------------------------------------------------------------------------

    def search(
        self, space: StreamKey, terms: Mapping[str, float], where: MemoryFilter, limit: int
    ) -> Matches:
        if not terms:
            return Matches([], 0, 0.0, {})
        groups = list(enumerate(required_markers(where)))
        values = {
            "terms": list(terms),
            "weights": list(terms.values()),
            "others": excluded_markers(where),
            "markers": [marker for _, group in groups for marker in group],
            "groups": [which for which, group in groups for _ in group],
            "most_terms": MAX_TERMS,
        }
        rows = self._select(sql.SEARCH, space, where, work=sql.WORK_DOCS, limit=limit, **values)
        if len(rows) <= limit and (where.since is not None or where.until is not None):
            # The candidates are from another period.
            rows = self._select(sql.SEARCH, space, where, work=UNLIMITED, limit=limit, **values)
        head = next((row for row in rows if row[4] is None), (0, 0, None, None))
        best = sorted(
            (row for row in rows if row[4] is not None), key=lambda row: (-row[5], -row[0])
        )
        return Matches(
            [decode_stored(row[4]) for row in best],
            head[0],
            head[1] / max(head[0], 1),
            dict(zip(head[2] or (), head[3] or (), strict=True)),
        )

    def neighbours(
        self, space: StreamKey, docs: Sequence[MemoryDoc], reach: int, where: MemoryFilter
    ) -> list[Neighbours]:
        values = {
            "sources": [doc.source for doc in docs],
            "ats": [doc.first_at for doc in docs],
            "numbers": [doc.number for doc in docs],
        }
        sides: list[tuple[list[MemoryDoc], list[MemoryDoc]]] = [([], []) for _ in docs]
        for place, later, body in self._select(sql.AROUND, space, where, reach=reach, **values):
            sides[place - 1][later].append(decode_stored(body))
        for before, after in sides:
            before.sort(key=lambda doc: (-doc.first_at, -doc.number))
            after.sort(key=lambda doc: (doc.first_at, doc.number))
        return [Neighbours(before, after) for before, after in sides]

    # -- statements ------------------------------------------------------------------------------

    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        self._ensure_tables()
        return self._backend.rows(statement, values)

    def _execute(self, statement: str, space: StreamKey, values: dict[str, Any]) -> bool:
        """Execute a statement; return whether it changed rows.

        Returns False if the outcome is unknown: the position will show it.
        """
        self._ensure_tables()
        complete, values = (
            self._complete(statement),
            {**values, "tenant": space.tenant, "id": space.id},
        )
        try:
            return self._backend.transact(
                lambda connection: bool(connection.execute(complete, values).rowcount > 0)
            )
        except OutcomeUnknown:
            return False

    def vector_search(self) -> PgvectorSearch | None:
        self._ensure_tables()
        if self._pgvector is None:
            self._pgvector = (open_pgvector(self._backend),)
        return self._pgvector[0]

    def has_tables(self) -> bool:
        """Return whether the tables exist in this format. Creates nothing."""
        return self._read_format() == sql.FORMAT

    # -- tables ----------------------------------------------------------------------------------

    def _ensure_tables(self) -> None:
        if self._ready:
            return
        with self._lock:
            try:
                if self._read_format() != sql.FORMAT:
                    self._backend.transact(self._create_tables)
            except (AccessDenied, NotSetUp, ReadOnly) as error:
                what = (
                    "the tables of the memory index do not exist, and this user may not create them"
                )
                raise IndexUnusable(what, error) from error
            self._ready = True

    def _read_format(self) -> int | None:
        try:
            rows = self._backend.rows(self._complete(sql.READ_FORMAT), ())
        except NotSetUp:
            return None
        return rows[0][0] if rows else None

    def _create_tables(self, connection: PostgresConnection) -> None:
        """Create the tables in one transaction, under a lock: a second process then finds them."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,), prepare=False)
            exists = connection.execute(
                sql.TABLES_EXIST, (self._backend.schema,), prepare=False
            ).fetchone()
            if exists and exists[0]:
                row = connection.execute(self._complete(sql.READ_FORMAT), prepare=False).fetchone()
                if row and row[0] == sql.FORMAT:
                    return
                connection.execute(sql.drop_statements(self._dialect.schema), prepare=False)
            connection.execute(sql.table_statements(self._backend.schema), prepare=False)


def _column_values(changes: IndexChanges) -> dict[str, Any]:
    """Return the changes as columns."""
    put = changes.put
    gone = {doc.number for doc in changes.gone}
    names = {doc.id: doc.number for doc in put}
    for name, number in changes.aliases.items():
        if number not in gone:
            names.setdefault(name, number)
    lengths = [passage_terms(doc) for doc in put]
    return {
        "touched": bigint_array([*gone, *(doc.number for doc in put)]),
        "gone": bigint_array(gone),
        "names": text_array(names),
        "named": bigint_array(names.values()),
        "number": bigint_array(doc.number for doc in put),
        "at": float_array(doc.at for doc in put),
        "first_at": float_array(doc.first_at for doc in put),
        "digest": bigint_array(_digest(doc.text) for doc in put),
        "sources": text_array(
            msgspec.json.encode(doc.sources).decode() if doc.sources else None for doc in put
        ),
        "expires_at": float_array(doc.expires_at for doc in put),
        "valid_from": float_array(doc.valid_from for doc in put),
        "valid_until": float_array(doc.valid_until for doc in put),
        "length": bigint_array(lengths),
        "source": text_array(doc.source for doc in put),
        "author": text_array(doc.author for doc in put),
        "subject": text_array(doc.subject for doc in put),
        "tags": text_array(msgspec.json.encode(doc.tags).decode() for doc in put),
        "keys": text_array(" ".join(str(int(key, 16)) for key in doc.keys) for doc in put),
        "words": text_array(_join_lexemes(doc) for doc in put),
        "body": bytea_array(encode_doc(doc) for doc in put),
        "memories": len(put),
        "lengths": sum(lengths),
    }


def _digest(content: str) -> int:
    """Return a digest that shows whether a text has changed and its vectors are outdated."""
    return int.from_bytes(
        blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).digest(),
        signed=True,
        byteorder="big",
    )


def _join_lexemes(doc: MemoryDoc) -> str:
    """Return the distinct terms of a memory, each after a space, as many as a tsvector holds."""
    terms = dict.fromkeys([*doc_markers(doc), *f"{doc.terms} {doc.context}".split()])
    # A character has up to 4 bytes, and each term a prefix.
    if len(doc.terms) + len(doc.context) < MAX_WORDS_BYTES // 8:
        return "".join(f" {term}" for term in terms)
    kept, size = [], 0
    for term in terms:
        size += len(term.encode()) + 12
        if size > MAX_WORDS_BYTES:
            break
        kept.append(f" {term}")
    return "".join(kept)
