"""The index in PostgreSQL, beside the store's own tables: shared by all workers.

The words of a memory are a `tsvector` of our own terms with a GIN index; term frequencies are
counted as memories come and go. Each method is one statement. The SQL is in `postgres_sql.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

import msgspec

from ...backends import IndexDatabase, StreamKey
from ...backends.postgres.arrays import bigint_array, bytea_array, float_array, text_array
from ...backends.postgres.pool import PostgresConnection
from ...backends.postgres.schema import SETUP_LOCK
from ...errors import AccessDenied, NotSetUp, OutcomeUnknown, ReadOnly
from ..fold import IndexChanges
from ..model import IndexPosition, MemoryDoc, MemoryFilter, decode_doc, encode_doc
from ..vectors.pgvector import PgvectorSearch, open_pgvector
from ..vectors.postgres import PostgresVectors
from . import postgres_sql as sql
from .candidates import MAX_TERMS, doc_markers, excluded_markers, required_markers
from .filters import postgres_condition
from .index import IndexCounts, IndexUnusable, KnownMemories, Matches, Neighbours

UNLIMITED: Final = 1 << 62
CLEAR_ROWS: Final = 20_000
"""Rows to delete at a time when a namespace is cleared, so that no statement takes long."""
MAX_WORDS_BYTES: Final = 900_000
"""A tsvector holds 1 MiB, unchecked by PostgreSQL. The last words of a longer text are dropped."""


class PostgresIndex(PostgresVectors):
    """The memories of all namespaces in the schema of a store. Creates its tables on first use."""

    def __init__(self, backend: IndexDatabase) -> None:
        self._backend, self._sql = backend, sql.IndexStatements(backend.schema)
        self._ready, self._lock = False, threading.Lock()
        self._pgvector: tuple[PgvectorSearch | None] | None = None

    # -- following the stream --------------------------------------------------------------------

    def position(self, space: StreamKey) -> IndexPosition | None:
        rows = self._rows(self._sql.position, space)
        return IndexPosition(*rows[0]) if rows else None

    def lookup(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> KnownMemories:
        rows = self._rows(
            self._sql.known,
            space,
            ids=text_array(ids),
            keys=bigint_array(int(key, 16) for key in keys),
        )
        aliases = {name: number for number, _, names in rows for name in names or ()}
        return KnownMemories([decode_doc(body) for _, body, _ in rows], aliases)

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
        return self._execute(
            self._sql.start if before is None else self._sql.advance, space, values
        )

    def list_expired(self, space: StreamKey, before: float, limit: int) -> Sequence[MemoryDoc]:
        return [
            decode_doc(body)
            for (body,) in self._rows(self._sql.expired, space, before=before, limit=limit)
        ]

    def clear(self, space: StreamKey, at: IndexPosition) -> None:
        self._execute(self._sql.unname, space, at._asdict())
        self._delete_unnamed(space)

    def replace(self, space: StreamKey, by: StreamKey) -> bool:
        values = {"tenant": space.tenant, "id": space.id, "by_tenant": by.tenant, "by_id": by.id}

        def rename(connection: PostgresConnection) -> None:
            with connection.transaction():
                for statement in self._sql.replace:
                    connection.execute(statement, values)

        self._ensure_tables()
        with suppress(OutcomeUnknown):
            self._backend.transact(rename)
        self._delete_unnamed(space)
        return self.position(by) is None

    def _delete_unnamed(self, space: StreamKey) -> None:
        for (number,) in self._rows(self._sql.unnamed, space):
            for statement in self._sql.clear:
                while self._execute(statement, space, {"space": number, "limit": CLEAR_ROWS}):
                    pass

    # -- reading ---------------------------------------------------------------------------------

    def search(
        self, space: StreamKey, terms: Mapping[str, float], where: MemoryFilter, limit: int
    ) -> Matches:
        if not terms:
            return Matches([], 0, 0.0, {})
        found = self._search_within(space, terms, where, limit, sql.WORK_DOCS)
        if len(found.docs) < limit and (where.since is not None or where.until is not None):
            return self._search_within(
                space, terms, where, limit, UNLIMITED
            )  # what was brought is of another time
        return found

    def _search_within(
        self,
        space: StreamKey,
        terms: Mapping[str, float],
        where: MemoryFilter,
        limit: int,
        work: int,
    ) -> Matches:
        condition, values = postgres_condition(where)
        marked = [
            (marker, which)
            for which, group in enumerate(required_markers(where))
            for marker in group
        ]
        values |= {
            "terms": list(terms),
            "weights": list(terms.values()),
            "others": excluded_markers(where),
        }
        values |= {
            "markers": [marker for marker, _ in marked],
            "groups": [which for _, which in marked],
        }
        values |= {"work": work, "limit": limit, "most_terms": MAX_TERMS}
        rows = self._rows(self._sql.search.format(condition=condition), space, **values)
        (head,) = [row for row in rows if row[4] is None] or [(0, 0, None, None)]
        found = sorted(
            (row for row in rows if row[4] is not None), key=lambda row: (-row[5], -row[0])
        )
        frequency = dict(zip(head[2] or (), head[3] or (), strict=True))
        return Matches(
            [decode_doc(row[4]) for row in found], head[0], head[1] / max(head[0], 1), frequency
        )

    def neighbours(
        self, space: StreamKey, docs: Sequence[MemoryDoc], reach: int, where: MemoryFilter
    ) -> list[Neighbours]:
        condition, values = postgres_condition(where)
        values |= {
            "sources": [doc.source for doc in docs],
            "ats": [doc.first_at for doc in docs],
            "reach": reach,
        }
        values["numbers"] = [doc.number for doc in docs]
        sides: list[tuple[list[MemoryDoc], list[MemoryDoc]]] = [([], []) for _ in docs]
        for place, later, body in self._rows(
            self._sql.around.format(condition=condition), space, **values
        ):
            sides[place - 1][later].append(decode_doc(body))
        for before, after in sides:
            before.sort(key=lambda doc: (-doc.first_at, -doc.number))
            after.sort(key=lambda doc: (doc.first_at, doc.number))
        return [Neighbours(before, after) for before, after in sides]

    def page(
        self, space: StreamKey, after: int, limit: int, where: MemoryFilter
    ) -> Sequence[MemoryDoc]:
        condition, values = postgres_condition(where)
        rows = self._rows(
            self._sql.page.format(condition=condition), space, after=after, limit=limit, **values
        )
        return [decode_doc(body) for (body,) in rows]

    def counts(self, space: StreamKey, now: float) -> IndexCounts:
        return IndexCounts(*self._rows(self._sql.counts, space, now=now)[0])

    # -- statements ------------------------------------------------------------------------------

    def _rows(self, statement: str, space: StreamKey, **values: Any) -> list[Any]:
        self._ensure_tables()
        return self._backend.rows(statement, {"tenant": space.tenant, "id": space.id, **values})

    def _execute(self, statement: str, space: StreamKey, values: dict[str, Any]) -> bool:
        """Execute a statement; return whether it changed rows.

        Returns False if the outcome is unknown: the position shows it later.
        """
        self._ensure_tables()
        values = {"tenant": space.tenant, "id": space.id, **values}
        try:
            return self._backend.transact(
                lambda connection: bool(connection.execute(statement, values).rowcount > 0)
            )
        except OutcomeUnknown:
            return False

    def vector_search(self) -> PgvectorSearch | None:
        self._ensure_tables()
        if self._pgvector is None:
            self._pgvector = (open_pgvector(self._backend),)
        return self._pgvector[0]

    def repair(self, problem: IndexUnusable) -> bool:
        """Return False: the server would refuse again."""
        return False

    def close(self) -> None:
        """Do nothing: the connections belong to the backend."""

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
            rows = self._backend.rows(self._sql.format, ())
        except NotSetUp:
            return None
        return rows[0][0] if rows else None

    def _create_tables(self, connection: PostgresConnection) -> None:
        """Create the tables in one transaction, under a lock: the second process finds them."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,), prepare=False)
            exists = connection.execute(
                sql.TABLES_EXIST, (self._backend.schema,), prepare=False
            ).fetchone()
            if exists and exists[0]:
                row = connection.execute(self._sql.format, prepare=False).fetchone()
                if row and row[0] == sql.FORMAT:
                    return
                connection.execute(self._sql.drop, prepare=False)
            connection.execute(sql.table_statements(self._backend.schema), prepare=False)


def _column_values(changes: IndexChanges) -> dict[str, Any]:
    """Return the changes as columns."""
    put = changes.put
    gone = {doc.number for doc in changes.gone}
    names = {doc.id: doc.number for doc in put}
    for name, number in changes.aliases.items():
        if number not in gone:
            names.setdefault(name, number)
    lengths = [doc.terms.count(" ") + 1 for doc in put]
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
