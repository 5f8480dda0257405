"""Streams in PostgreSQL, through psycopg.

An append is one statement, and so is a batch of them (`_postgres_batch`): all who wait share one round trip and one disk sync,
and no client holds a lock while the server waits for it to go on. The SQL is in `_postgres_sql`, connections and
errors are in `_postgres_connections`, how it is opened in `_postgres_setup`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from ...errors import CorruptRecord, HoldfastError, OutcomeUnknown, StoreClosed, TooLarge
from .. import clock
from ..fork import Forkable, register
from ..interface import (
    Append,
    AppendResult,
    Cursor,
    Description,
    Durability,
    Head,
    HeadFields,
    IncarnationLost,
    IndexPlace,
    Record,
    StreamBlocked,
    StreamKey,
    VersionMismatch,
)
from ..urls import flag, number, shown, shown_url
from . import sql
from .arrays import bytes_
from .batch import StreamBatch, in_pieces, size_of, statement, units
from .listen import NotifyListener
from .pool import (
    PostgresConnection,
    PostgresPool,
    fetched,
    is_without_place,
    may_be_tried_again,
    parameters,
    psycopg,
    translated,
)
from .setup import SchemaTables, examined, partitions_of, read_url, schema_of, without_ours

PAGE_BYTES: Final = 8 * 1024 * 1024
APPEND_BYTES: Final = 128 * 1024 * 1024
"""Of one append, at most. The driver takes ever longer for larger ones, and the server ends them at 1 GB."""
BYTES_PER_SECOND: Final = 1024 * 1024
"""What a network is trusted to carry: an answer to more is waited for longer."""
TRIES: Final = 5

T = TypeVar("T")


class PostgresBackend(Forkable):
    """Streams in one schema of a PostgreSQL database; its tables are made when they are missing.

    Options in the URL beside those of libpq: `schema` (holdfast), `partitions` (how many pieces the tables are split into when they
    are made: 0, none), `pool_size` (8), `prepare=off` (for poolers that do not know prepared statements), `timeout` (30,
    in seconds). `durability="process"` does not wait for the server's disk.
    """

    def __init__(self, url: str, *, durability: Durability = "disk", create: bool = True) -> None:
        if durability == "memory":
            raise ValueError(
                "durability='memory' is for redis://; for a store in memory use memory://"
            )
        given = read_url(url)
        self.schema = schema_of(given.options)
        partitions = partitions_of(given.options)
        self._patience = float(number(given.options, "timeout", 30, least=1))
        self._size = number(given.options, "pool_size", 8, least=1)
        self._prepare = flag(given.options, "prepare", True)
        self._durability = durability
        self._location = shown(given.parts) + (
            f"?schema={self.schema}" if self.schema != "holdfast" else ""
        )
        self._where = shown_url(url)
        self._parameters = parameters(without_ours(url), timeout=self._patience)
        self._sql = sql.StoreStatements(
            self.schema, lock_seconds=min(sql.LOCK_SECONDS, self._patience / 2)
        )
        self._tables = SchemaTables(self.schema, self._where)
        self._closed = False
        self._reset()
        with self._pool.connection() as connection:
            self._version, self._commit, self._warnings = examined(
                connection, self._durability, self._where
            )
            self._tables.set_up(connection, partitions=partitions, create=create)
        register(self)

    def _reset(self) -> None:
        self._pool = PostgresPool(
            self._parameters,
            size=self._size,
            prepare=self._prepare,
            patience=self._patience,
            where=self._where,
        )
        self._listener = NotifyListener(self._pool, self._sql)

    # -- writing ---------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        sizes = [size_of(append) for append in batch]
        if max(sizes, default=0) > APPEND_BYTES:
            raise TooLarge(
                f"an append to PostgreSQL holds at most {APPEND_BYTES} bytes; attach large things as files"
            )

        def work(connection: PostgresConnection) -> list[AppendResult | VersionMismatch]:
            connection.patience += sum(sizes) / BYTES_PER_SECOND
            if len(batch) == 1:
                return [self._append_one(connection, batch[0])]
            return self._append_many(connection, batch)

        return self.transact(work) if batch else []

    def _append_one(
        self, connection: PostgresConnection, append: Append
    ) -> AppendResult | VersionMismatch:
        began = time.monotonic()
        try:
            row = connection.execute(*self._statement(append), binary=True).fetchone()
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() - began < self._sql.lock_seconds / 2:
                raise  # not for its stream: that is waited for longer. It would be tried again without end.
            return StreamBlocked(self._head(connection, append.stream))
        return _stored(append, row[0]) if row else self._look(connection, append)

    def _append_many(
        self, connection: PostgresConnection, batch: Sequence[Append]
    ) -> list[AppendResult | VersionMismatch]:
        """As many as can be in one statement, then one by one what it left out: what had moved, and what somebody has locked."""
        answers: dict[int, AppendResult | VersionMismatch] = {}
        unseen: set[int] = set()
        try:
            for piece in in_pieces(units(batch)):
                self._append_at_once(connection, piece, answers, unseen)
            # If others were stored, they are not kept waiting for one that is locked; nor is anybody for a second one.
            wait = not answers
            last: dict[StreamKey, AppendResult | VersionMismatch] = {}
            for place, append in enumerate(batch):
                if isinstance(last.get(append.stream), StreamBlocked):
                    answers[place] = last[append.stream]
                elif place not in answers:
                    look = place in unseen and not wait
                    answers[place] = (self._look_for_lock if look else self._append_one)(
                        connection, append
                    )
                    wait = wait and not isinstance(answers[place], StreamBlocked)
                last[append.stream] = answers[place]
        except (psycopg.Error, CorruptRecord) as error:
            if any(isinstance(answer, AppendResult) for answer in answers.values()):
                raise OutcomeUnknown(
                    "PostgreSQL stored a part of a batch and did not say why not all of it"
                ) from error
            raise
        return [answers[place] for place in range(len(batch))]

    def _append_at_once(
        self,
        connection: PostgresConnection,
        those: list[StreamBatch],
        answers: dict[int, AppendResult | VersionMismatch],
        unseen: set[int],
    ) -> None:
        """Answer those that can be stored. `unseen` are places in the batch whose streams are locked, or are not there."""
        try:
            rows = connection.execute(
                *statement(self._sql, those, self._commit), binary=True
            ).fetchall()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DivisionByZero):
            return  # somebody is just making one of these streams
        for nth, now, *_ in rows:
            unit = those[nth - 1]
            if now is None:
                unseen.add(unit.places[0])
            else:
                answers.update(
                    (place, _stored(append, now))
                    for place, append in zip(unit.places, unit.appends, strict=True)
                )

    def _look_for_lock(
        self, connection: PostgresConnection, append: Append
    ) -> AppendResult | VersionMismatch:
        answer = self._look(connection, append)
        if isinstance(answer, VersionMismatch) and _is_at(answer.head, append):
            return StreamBlocked(answer.head)
        return answer

    def _statement(self, append: Append) -> tuple[str, list[Any]]:
        """The statement that stores an append if the stream is where it was expected, and its values."""
        version, records = append.expected, append.records
        last, create, many = version + len(records), version == 0, len(records) > 1
        values: list[Any] = [last, records[-1][0]]
        if create or append.fields is not None:
            values += _columns(append.fields or HeadFields())
        values += append.stream
        values += (
            [append.incarnation] if create else [version, append.expected_hash, append.incarnation]
        )
        if append.indexed and not create:
            values.append(append.id)
        values.append(self._commit)
        if append.indexed:
            values += append.id, version + 1, last
        if many:
            values += (
                version,
                append.id,
                bytes_(digest for digest, _ in records),
                bytes_(body for _, body in records),
            )
        else:
            values += last, append.id, *records[0]
        values += append.stream
        text = self._sql.append(
            create=create, fields=append.fields is not None, indexed=append.indexed, many=many
        )
        return text, values

    def _look(
        self, connection: PostgresConnection, append: Append
    ) -> AppendResult | VersionMismatch:
        """Why an append was not stored: it already is, or the stream is not where it was expected."""
        stream = append.stream
        head = self._head(connection, stream)
        if head is not None and append.indexed:
            for first, last in fetched(
                connection, self._sql.find_id, (*stream, append.id), sql.VERSIONS
            ):
                return AppendResult(first, last, True, head.now)
        if (
            head is not None
            and head.incarnation == append.incarnation
            and head.version > append.expected
        ):
            first = (*stream, append.expected + 1)
            if [(append.id,)] == fetched(connection, self._sql.append_id, first, sql.APPEND_ID):
                other = fetched(
                    connection, self._sql.next_other_append, (*first, append.id), sql.ONE_NUMBER
                )
                return AppendResult(
                    append.expected + 1, other[0][0] - 1 if other else head.version, True, head.now
                )
        if append.expected and (head is None or head.incarnation != append.incarnation):
            lived = connection.execute(
                self._sql.lived, (append.incarnation, *stream), binary=True
            ).fetchone()
            return VersionMismatch(head) if lived and lived[0] else IncarnationLost(head)
        return VersionMismatch(head)

    def _head(self, connection: PostgresConnection, stream: StreamKey) -> Head | None:
        rows = fetched(connection, self._sql.head, stream, sql.HEADS)
        return _head(stream, rows[0]) if rows else None

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        values = (*stream, *expected.place, self._commit)
        return self.transact(
            lambda connection: bool(connection.execute(self._sql.delete, values).fetchone())
        )

    def transact(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work`, which commits by itself. It is tried again if the engine rolled it back for the sake of another."""
        self._check_open()
        for tried in range(1, TRIES + 1):
            try:
                with self._pool.connection() as connection:
                    return work(connection)
            except psycopg.Error as error:
                if not may_be_tried_again(error) or tried == TRIES:
                    raise self._translated(error, writing=True) from None
            time.sleep(random.uniform(0.001, 0.01) * tried)  # noqa: S311  jitter, not a secret
        raise AssertionError("the last try either returns or raises")

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        statement, start = (
            (self._sql.read_reverse, after or 1 << 62) if reverse else (self._sql.read, after)
        )
        values = (*stream, start, 1 << 30 if limit is None else limit, PAGE_BYTES)
        return [Record(*row) for row in self.rows(statement, values, sql.RECORDS)]

    def head(self, stream: StreamKey) -> Head | None:
        rows = self.rows(self._sql.head, stream, sql.HEADS)
        return _head(stream, rows[0]) if rows else None

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        if status is None:
            rows = self.rows(sql.first(limit, self._sql.heads), (tenant, kind, after), sql.HEADS)
        else:
            values = tenant, kind, status, after
            rows = self.rows(sql.first(limit, self._sql.heads_by_status), values, sql.HEADS)
        return [_head(StreamKey(tenant, kind, row[0]), row) for row in rows]

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        until = float("inf") if before is None else before
        values = tenant, kind, until, *(after or (float("-inf"), ""))
        rows = self.rows(sql.first(limit, self._sql.due), values, sql.HEADS)
        return [_head(StreamKey(tenant, kind, row[0]), row) for row in rows]

    def rows(
        self,
        statement: str,
        values: Sequence[Any] | Mapping[str, Any],
        columns: sql.Columns | None = None,
    ) -> list[Any]:
        """What a reading statement gives. A connection that turns out to be dead is replaced, once."""
        self._check_open()
        for last_try in (False, True):
            try:
                with self._pool.connection() as connection:
                    return fetched(connection, statement, values, columns)
            except psycopg.Error as error:
                if is_without_place(error):
                    return []
                if last_try or error.sqlstate is not None:
                    raise self._translated(error) from None
        raise AssertionError("the last try either returns or raises")

    def _translated(self, error: psycopg.Error, *, writing: bool = False) -> HoldfastError:
        """The driver's error as ours; one for want of a right says which."""
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            try:
                with self._pool.connection() as connection:
                    return self._tables.denied(connection)
            except HoldfastError:
                pass  # it cannot be asked any more
        return translated(error, self._where, writing=writing)

    # -- life ------------------------------------------------------------------------------------

    def watch(self, stream: StreamKey, changed: Callable[[], None]) -> Callable[[], None]:
        self._check_open()
        return self._listener.watch(stream, changed)

    def refuse_reader(self) -> None:
        """Raise `AccessDenied`, with the rights that are missing, if this user may not append."""
        self._tables.refuse_reader(self.rows(self._tables.ask_rights, ())[0][0])

    def index_places(self) -> Sequence[IndexPlace]:
        return [self, "cache"]

    def describe(self) -> Description:
        size = self.rows(self._sql.size, (self.schema,), sql.ONE_NUMBER)[0][0]
        return Description(
            engine="postgresql",
            version=self._version,
            location=self._location,
            durability=self._durability,
            limits={"append": APPEND_BYTES},
            sizes={"database": size},
            warnings=self._warnings,
        )

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self._pool.close()

    def after_fork_in_child(self) -> None:
        # psycopg leaves connections alone that another process has made, so the old ones may simply be dropped.
        self._reset()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self._location} was closed; open it again")


def _stored(append: Append, now: float) -> AppendResult:
    return AppendResult(
        append.expected + 1, append.expected + len(append.records), False, clock.of_engine(now)
    )


def _is_at(head: Head | None, append: Append) -> bool:
    """Whether a stream is where an append expects it."""
    return head is not None and head.place == (
        append.expected,
        append.expected_hash,
        append.incarnation,
    )


def _columns(fields: HeadFields) -> tuple[Any, ...]:
    return fields.status, fields.label, fields.owner, fields.due_at, fields.expires_at, fields.due


def _head(stream: StreamKey, row: Sequence[Any]) -> Head:
    return Head(stream, row[3], HeadFields(*row[4:9]), clock.of_engine(row[9]), row[1], row[2])
