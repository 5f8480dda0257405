"""The index in PostgreSQL, beside the store's own tables: all workers share it, and none holds a copy.

The words of a memory are a `tsvector` of our own terms with a GIN index on it; how common each term is, is counted as memories
come and go. Each method is one statement. The SQL is in `_postgres_index_sql`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

import msgspec

from ...backends import IndexDatabase, StreamKey
from ...backends.postgres.arrays import bytes_, numbers, text, times
from ...backends.postgres.pool import PostgresConnection
from ...backends.postgres.sql import SETUP_LOCK
from ...errors import AccessDenied, NotSetUp, OutcomeUnknown, ReadOnly
from ..fold import IndexChanges
from ..model import IndexPosition, MemoryDoc, MemoryFilter, doc_bytes, doc_of
from ..vectors.pgvector import PostgresNear, near_of
from ..vectors.postgres import PostgresVectors
from . import postgres_sql as sql
from .candidates import MOST_TERMS, markers_in, markers_not_in, markers_of
from .filters import postgres_condition
from .index import IndexCounts, IndexUnusable, KnownMemories, Matches, Neighbours

ALL: Final = 1 << 62
CLEARED: Final = 20_000
"""So many rows are deleted at a time when a namespace is cleared: no statement takes long."""
WORDS_BYTES: Final = 900_000
"""A tsvector holds 1 MiB, and PostgreSQL does not look whether it does. Where a text has more, its last words are not found."""


class PostgresIndex(PostgresVectors):
    """The memories of all namespaces in the schema of a store. Its tables are made when it is first used."""

    def __init__(self, backend: IndexDatabase) -> None:
        self._backend, self._sql = backend, sql.IndexStatements(backend.schema)
        self._ready, self._lock = False, threading.Lock()
        self._near: tuple[PostgresNear | None] | None = None

    # -- following the stream --------------------------------------------------------------------

    def position(self, space: StreamKey) -> IndexPosition | None:
        rows = self._rows(self._sql.position, space)
        return IndexPosition(*rows[0]) if rows else None

    def known(self, space: StreamKey, ids: Sequence[str], keys: Sequence[str]) -> KnownMemories:
        rows = self._rows(
            self._sql.known, space, ids=text(ids), keys=numbers(int(key, 16) for key in keys)
        )
        aliases = {name: number for number, _, names in rows for name in names or ()}
        return KnownMemories([doc_of(body) for _, body, _ in rows], aliases)

    def write(
        self,
        space: StreamKey,
        before: IndexPosition | None,
        after: IndexPosition,
        changes: IndexChanges,
    ) -> bool:
        if before is not None and before.incarnation != after.incarnation:
            return False
        values = _values(changes) | after._asdict()
        if before is not None:
            values |= {"before": before.version, "before_hash": before.hash}
        return self._written(self._sql.begin if before is None else self._sql.go_on, space, values)

    def expired(self, space: StreamKey, before: float, limit: int) -> Sequence[MemoryDoc]:
        return [
            doc_of(body)
            for (body,) in self._rows(self._sql.expired, space, before=before, limit=limit)
        ]

    def clear(self, space: StreamKey, at: IndexPosition) -> None:
        self._written(self._sql.unname, space, at._asdict())
        self._clear_nameless(space)

    def replace(self, space: StreamKey, by: StreamKey) -> bool:
        values = {"tenant": space.tenant, "id": space.id, "by_tenant": by.tenant, "by_id": by.id}

        def renamed(connection: PostgresConnection) -> None:
            with connection.transaction():
                for statement in self._sql.replace:
                    connection.execute(statement, values)

        self._make_ready()
        with suppress(OutcomeUnknown):
            self._backend.transact(renamed)
        self._clear_nameless(space)
        return self.position(by) is None

    def _clear_nameless(self, space: StreamKey) -> None:
        for (number,) in self._rows(self._sql.nameless, space):
            for statement in self._sql.clear:
                while self._written(statement, space, {"space": number, "limit": CLEARED}):
                    pass

    # -- asking ----------------------------------------------------------------------------------

    def search(
        self, space: StreamKey, terms: Mapping[str, float], where: MemoryFilter, limit: int
    ) -> Matches:
        if not terms:
            return Matches([], 0, 0.0, {})
        found = self._searched(space, terms, where, limit, sql.WORK)
        if len(found.docs) < limit and (where.since is not None or where.until is not None):
            return self._searched(
                space, terms, where, limit, ALL
            )  # what was brought is of another time
        return found

    def _searched(
        self,
        space: StreamKey,
        terms: Mapping[str, float],
        where: MemoryFilter,
        limit: int,
        work: int,
    ) -> Matches:
        condition, values = postgres_condition(where)
        marked = [
            (marker, which) for which, group in enumerate(markers_in(where)) for marker in group
        ]
        values |= {
            "terms": list(terms),
            "weights": list(terms.values()),
            "others": markers_not_in(where),
        }
        values |= {
            "markers": [marker for marker, _ in marked],
            "groups": [which for _, which in marked],
        }
        values |= {"work": work, "limit": limit, "most_terms": MOST_TERMS}
        rows = self._rows(self._sql.search.format(condition=condition), space, **values)
        (head,) = [row for row in rows if row[4] is None] or [(0, 0, None, None)]
        found = sorted(
            (row for row in rows if row[4] is not None), key=lambda row: (-row[5], -row[0])
        )
        frequency = dict(zip(head[2] or (), head[3] or (), strict=True))
        return Matches(
            [doc_of(row[4]) for row in found], head[0], head[1] / max(head[0], 1), frequency
        )

    def around(
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
            sides[place - 1][later].append(doc_of(body))
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
        return [doc_of(body) for (body,) in rows]

    def counts(self, space: StreamKey, now: float) -> IndexCounts:
        return IndexCounts(*self._rows(self._sql.counts, space, now=now)[0])

    # -- statements ------------------------------------------------------------------------------

    def _rows(self, statement: str, space: StreamKey, **values: Any) -> list[Any]:
        self._make_ready()
        return self._backend.rows(statement, {"tenant": space.tenant, "id": space.id, **values})

    def _written(self, statement: str, space: StreamKey, values: dict[str, Any]) -> bool:
        """Run a statement that changes something; whether it did. False too if nobody knows: the position tells."""
        self._make_ready()
        values = {"tenant": space.tenant, "id": space.id, **values}
        try:
            return self._backend.transact(
                lambda connection: bool(connection.execute(statement, values).rowcount > 0)
            )
        except OutcomeUnknown:
            return False

    def comparing(self) -> PostgresNear | None:
        self._make_ready()
        if self._near is None:
            self._near = (near_of(self._backend),)
        return self._near[0]

    def mend(self, problem: IndexUnusable) -> bool:
        """False: what the server refuses once, it refuses again."""
        return False

    def close(self) -> None:
        """Nothing: the connections are the backend's."""

    # -- tables ----------------------------------------------------------------------------------

    def _make_ready(self) -> None:
        if self._ready:
            return
        with self._lock:
            try:
                if self._format() != sql.FORMAT:
                    self._backend.transact(self._make_tables)
            except (AccessDenied, NotSetUp, ReadOnly) as error:
                what = "the tables of the index of memories are not there, and this user may not make them"
                raise IndexUnusable(what, error) from error
            self._ready = True

    def _format(self) -> int | None:
        try:
            rows = self._backend.rows(self._sql.format, ())
        except NotSetUp:
            return None
        return rows[0][0] if rows else None

    def _make_tables(self, connection: PostgresConnection) -> None:
        """In one transaction, and one process after the other: those who come second find everything there."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,), prepare=False)
            made = connection.execute(sql.MADE, (self._backend.schema,), prepare=False).fetchone()
            if made and made[0]:
                row = connection.execute(self._sql.format, prepare=False).fetchone()
                if row and row[0] == sql.FORMAT:
                    return
                connection.execute(self._sql.drop, prepare=False)
            connection.execute(sql.tables(self._backend.schema), prepare=False)


def _values(changes: IndexChanges) -> dict[str, Any]:
    """What is written, as columns."""
    put = changes.put
    gone = {doc.number for doc in changes.gone}
    names = {doc.id: doc.number for doc in put}
    for name, number in changes.aliases.items():
        if number not in gone:
            names.setdefault(name, number)
    lengths = [doc.terms.count(" ") + 1 for doc in put]
    return {
        "touched": numbers([*gone, *(doc.number for doc in put)]),
        "gone": numbers(gone),
        "names": text(names),
        "named": numbers(names.values()),
        "number": numbers(doc.number for doc in put),
        "at": times(doc.at for doc in put),
        "first_at": times(doc.first_at for doc in put),
        "digest": numbers(_digest(doc.text) for doc in put),
        "sources": text(
            msgspec.json.encode(doc.sources).decode() if doc.sources else None for doc in put
        ),
        "expires_at": times(doc.expires_at for doc in put),
        "length": numbers(lengths),
        "source": text(doc.source for doc in put),
        "author": text(doc.author for doc in put),
        "subject": text(doc.subject for doc in put),
        "tags": text(msgspec.json.encode(doc.tags).decode() for doc in put),
        "keys": text(" ".join(str(int(key, 16)) for key in doc.keys) for doc in put),
        "words": text(_words(doc) for doc in put),
        "body": bytes_(doc_bytes(doc) for doc in put),
        "memories": len(put),
        "lengths": sum(lengths),
    }


def _digest(said: str) -> int:
    """By which it is seen that a text is another one: then its vectors are of no use."""
    return int.from_bytes(
        blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).digest(),
        signed=True,
        byteorder="big",
    )


def _words(doc: MemoryDoc) -> str:
    """The terms of a memory, each once and with a space in front, as many as a tsvector can hold."""
    terms = dict.fromkeys([*markers_of(doc), *f"{doc.terms} {doc.context}".split()])
    if (
        len(doc.terms) + len(doc.context) < WORDS_BYTES // 8
    ):  # of 4 bytes each, with the number of the namespace
        return "".join(f" {term}" for term in terms)
    kept, size = [], 0
    for term in terms:
        size += len(term.encode()) + 12
        if size > WORDS_BYTES:
            break
        kept.append(f" {term}")
    return "".join(kept)
