"""The PostgreSQL backend, through psycopg.

An append is one statement, and so is a batch: all waiting callers share one round trip and one disk
sync, and no client keeps a lock while the server waits for its next message.

Where to look: `append.py` stores a batch and `append_sql.py` has its SQL; `query_sql.py` has the
other statements; `check.py` compares derived data with the records; `schema.py` creates the tables;
`errors.py` translates errors, including a lost COMMIT; `rollbacks.py` repeats transactions that the
server rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...errors import HoldfastError, StoreClosed
from .. import deadline
from ..deadline import DEFAULT_TIMEOUT
from ..fork import Forkable, register_forkable
from ..interface import (
    PAGE_BYTES,
    Append,
    AppendResult,
    BackendProblem,
    Cursor,
    Description,
    Durability,
    Head,
    HeadFields,
    IndexLocation,
    Record,
    StreamKey,
    VersionMismatch,
)
from ..urls import read_bool_option, read_int_option, redact_url
from . import query_sql
from .append import LOCK_SECONDS, MAX_APPEND_BYTES, PostgresAppender, refuse_large_appends
from .append_sql import AppendStatements, encode_columns
from .check import PostgresCheck
from .errors import is_unstorable_text, psycopg, translate_error
from .listen import NotifyListener
from .pool import Columns, PostgresConnection, PostgresPool, fetch_rows
from .query_sql import QueryStatements, decode_head, limit_rows
from .rollbacks import retry_rolled_back
from .schema import SchemaTables
from .server import inspect_server
from .url import parse_conninfo, parse_postgres_url, read_partitions_option, read_schema_option

T = TypeVar("T")


class PostgresBackend(Forkable):
    """Stores streams in one schema of a PostgreSQL database; creates its tables if missing.

    URL options, in addition to those of libpq: `schema` (default holdfast), `partitions` (the
    number of partitions of new tables; default 0, none), `pool_size` (default 8) and `prepare=off`
    (for poolers without prepared statements). `timeout` is the longest that a call may take, in
    seconds. `durability="process"` does not wait for the server's disk.
    """

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "disk",
        create: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        if durability == "memory":
            raise ValueError(
                "durability='memory' is for redis://; for a store in memory use memory://"
            )
        options = parse_postgres_url(url).options
        self.schema = read_schema_option(options)
        partitions = read_partitions_option(options)
        self._timeout = timeout
        self._pool_size = read_int_option(options, "pool_size", 8, least=1)
        self._prepare = read_bool_option(options, "prepare", True)
        self._durability = durability
        self._where = redact_url(url)
        self._parameters = parse_conninfo(url, timeout=self._timeout)
        self._queries = QueryStatements(self.schema)
        self._tables = SchemaTables(self.schema, self._where)
        self._closed = False
        self._reset()
        with self._pool.connection() as connection:
            self._version, self._commit, self._warnings = inspect_server(
                connection, self._durability, self._where
            )
            self._tables.set_up(connection, partitions=partitions, create=create)
        lock_seconds = min(LOCK_SECONDS, self._timeout / 2)
        statements = AppendStatements(self.schema, lock_seconds=lock_seconds, commit=self._commit)
        self._appender = PostgresAppender(statements, self._queries, lock_seconds)
        self._check = PostgresCheck(self)
        register_forkable(self)

    def _reset(self) -> None:
        self._pool = PostgresPool(
            self._parameters,
            size=self._pool_size,
            prepare=self._prepare,
            timeout=self._timeout,
            where=self._where,
        )
        self._listener = NotifyListener(self._pool, self._queries)

    # -- writing -----------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        refuse_large_appends(batch)
        if not batch:
            return []
        return self.transact(lambda connection: self._appender.append(connection, batch))

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        values = (*stream, *expected.position, self._commit)
        return self.transact(
            lambda connection: bool(connection.execute(self._queries.delete, values).fetchone())
        )

    def replace_fields(self, expected: Head, fields: HeadFields) -> bool:
        columns = encode_columns(fields)
        values = (*columns, *expected.stream, *expected.position, self._commit)
        statement = self._queries.replace_fields
        return self.transact(
            lambda connection: bool(connection.execute(statement, values).fetchone())
        )

    def transact(self, work: Callable[[PostgresConnection], T]) -> T:
        """Call `work(connection)`, which commits; if the server rolls back, call it again."""
        self._check_open()

        def attempt() -> T:
            with self._pool.connection() as connection:
                return work(connection)

        try:
            with deadline.until(deadline.start(self._timeout)):
                return retry_rolled_back(attempt)
        except psycopg.Error as error:
            raise self._translate(error, writing=True) from None

    # -- reading -----------------------------------------------------------------------------------

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        rows = self.rows(self._queries.find_id, (*stream, id), query_sql.VERSIONS)
        return (rows[0][0], rows[0][1]) if rows else None

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        queries = self._queries
        statement, start = (
            (queries.read_reverse, after or 1 << 62) if reverse else (queries.read, after)
        )
        values = (*stream, start, 1 << 30 if limit is None else limit, PAGE_BYTES)
        return [Record(*row) for row in self.rows(statement, values, query_sql.RECORDS)]

    def head(self, stream: StreamKey) -> Head | None:
        rows = self.rows(self._queries.head, stream, query_sql.HEADS)
        return decode_head(stream, rows[0]) if rows else None

    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        statement = self._queries.first_head(len(streams))
        values = [part for stream in streams for part in stream]
        rows = self.rows(statement, values, query_sql.NUMBERED_HEADS)
        return decode_head(streams[rows[0][-1]], rows[0]) if rows else None

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
            return self._list(limit, self._queries.heads, (tenant, kind, after))
        return self._list(limit, self._queries.heads_by_status, (tenant, kind, status, after))

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
        return self._list(limit, self._queries.due, values)

    def _list(self, limit: int, statement: str, values: tuple[Any, ...]) -> list[Head]:
        """Return a page of heads. The first two values are the tenant and the kind."""
        rows = self.rows(limit_rows(limit, statement), values, query_sql.HEADS)
        return [decode_head(StreamKey(values[0], values[1], row[0]), row) for row in rows]

    def rows(
        self,
        statement: str,
        values: Sequence[Any] | Mapping[str, Any],
        columns: Columns | None = None,
        *,
        seconds: float | None = None,
    ) -> list[Any]:
        """Run a statement that only reads; repeat it once if the connection was dead.

        `seconds` is how long to wait for an answer that takes longer than usual.
        """
        self._check_open()
        with deadline.until(deadline.start(self._timeout)):  # for both attempts
            for last_attempt in (False, True):
                try:
                    with self._pool.connection() as connection:
                        if seconds is not None:
                            connection.answer_timeout = seconds
                        return fetch_rows(connection, statement, values, columns)
                except psycopg.Error as error:
                    if is_unstorable_text(error):
                        return []
                    if last_attempt or error.sqlstate is not None:
                        raise self._translate(error) from None
        raise AssertionError("the last attempt either returns or raises")

    def _translate(self, error: psycopg.Error, *, writing: bool = False) -> HoldfastError:
        """Translate an error of the driver; name the privilege if one is missing."""
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            try:
                with self._pool.connection() as connection:
                    return self._tables.access_denied_error(connection)
            except HoldfastError:
                pass  # the server is no longer reachable
        return translate_error(error, self._where, writing=writing)

    # -- checking ----------------------------------------------------------------------------------

    def list_scopes(self) -> Sequence[tuple[str, str]]:
        return self._check.list_scopes()

    def check(self) -> Iterator[BackendProblem]:
        return self._check.check()

    def rebuild(self) -> int:
        return self._check.rebuild()

    # -- lifecycle ---------------------------------------------------------------------------------

    def watch(self, stream: StreamKey, changed: Callable[[], None]) -> Callable[[], None]:
        self._check_open()
        return self._listener.watch(stream, changed)

    def check_writable(self) -> None:
        self._tables.check_writable(self.rows(self._tables.missing_privileges, ())[0][0])

    def index_locations(self) -> Sequence[IndexLocation]:
        return [self, "cache"]

    def describe(self) -> Description:
        size = self.rows(self._queries.size, (self.schema,), query_sql.ONE_NUMBER)[0][0]
        return Description(
            engine="postgresql",
            version=self._version,
            location=self._where,
            durability=self._durability,
            limits={"append": MAX_APPEND_BYTES},
            sizes={"database": size},
            warnings=self._warnings,
        )

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self._pool.close()

    def after_fork_in_child(self) -> None:
        # psycopg does not touch connections of another process, so the old ones can be dropped.
        self._reset()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self._where} was closed; open it again")
