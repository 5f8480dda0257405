"""Streams in PostgreSQL, through psycopg.

An append is one statement; a batch is a pipeline of them in one transaction, so that all who wait share one round trip and
one disk sync. Rows are locked in the order of their keys, so that two batches never wait for each other in a circle.
The SQL is in `_postgres_sql`, connections and errors are in `_postgres_connections`.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from .. import _clock
from ..errors import Closed, InvalidURL, NotSetUp, OutcomeUnknown, UnsupportedServer, UnsupportedVersion
from . import _postgres_sql as sql
from ._fork import register
from ._postgres_connections import Connection, Pool, may_be_tried_again, parameters, psycopg, translated
from ._postgres_listening import Listener
from ._seam import Append, Appended, Conflict, Cursor, Description, Durability, Fields, Head, Record, StreamKey
from ._urls import flag, number, parse, shown

PAGE_BYTES: Final = 8 * 1024 * 1024
TRIES: Final = 5
OPTIONS: Final = ("schema", "partitions", "pool_size", "prepare", "timeout")
"""What a URL may say beside the options of libpq."""

T = TypeVar("T")


class PostgresBackend:
    """Streams in one schema of a PostgreSQL database; its tables are made when they are missing.

    Options in the URL beside those of libpq: `schema` (holdfast), `partitions` (how many pieces the tables are split into when they
    are made: 0, none), `pool_size` (8), `prepare=off` (for poolers that do not know prepared statements), `timeout` (30,
    in seconds). `durability="process"` does not wait for the server's disk.
    """

    def __init__(self, url: str, *, durability: Durability = "disk") -> None:
        given = parse(url, example="postgresql://user:password@host/database", options=None)
        self._schema = schema_of(given.options)
        self._partitions = number(given.options, "partitions", 0)
        self._patience = float(number(given.options, "timeout", 30, least=1))
        self._size = number(given.options, "pool_size", 8, least=1)
        self._prepare = flag(given.options, "prepare", True)
        self._durability: Durability = "disk" if durability == "disk" else "process"
        self._location = shown(given.parts) + (f"?schema={self._schema}" if self._schema != "holdfast" else "")
        self._parameters = parameters(_without_ours(url), timeout=self._patience)
        self._sql = sql.Statements(self._schema)
        self._closed = False
        self._reset()
        with self._pool.connection() as connection:
            self._version, self._commit, self._warnings = _examined(connection, self._durability)
            self._set_up(connection)
        register(self)

    def _reset(self) -> None:
        self._pool = Pool(self._parameters, size=self._size, prepare=self._prepare, patience=self._patience)
        self._listener = Listener(self._pool, self._sql, self._schema)

    # -- writing ---------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
        def work(connection: Connection) -> list[Appended | Conflict]:
            if len(batch) == 1:
                return [self._append_one(connection, batch[0])]
            order = sorted(range(len(batch)), key=lambda place: batch[place].stream)
            in_order = [batch[place] for place in order]
            each_alone = len({append.stream for append in batch}) == len(batch)
            answers = (self._append_at_once if each_alone else self._append_in_turn)(connection, in_order)
            placed = dict(zip(order, answers, strict=True))
            return [placed[place] for place in range(len(batch))]

        return self._transact(work) if batch else []

    def _append_one(self, connection: Connection, append: Append) -> Appended | Conflict:
        row = connection.execute(*self._statement(append), binary=True).fetchone()
        return _stored(append, row) if row else self._look(connection, append)

    def _append_at_once(self, connection: Connection, batch: Sequence[Append]) -> list[Appended | Conflict]:
        """All in one transaction, sent in one go."""
        with connection.pipeline(), connection.transaction():
            cursors = self._sent(connection, batch)
        rows = [cursor.fetchone() for cursor in cursors]
        try:
            return [
                _stored(append, row) if row else self._look(connection, append)
                for append, row in zip(batch, rows, strict=True)
            ]
        except psycopg.Error as error:
            if any(rows):
                raise OutcomeUnknown("PostgreSQL stored a part of a batch and did not say why not all of it") from error
            raise

    def _append_in_turn(self, connection: Connection, batch: Sequence[Append]) -> list[Appended | Conflict]:
        """The same where streams have several: what the second meets depends on the answer to the first."""
        with connection.transaction() as attempt:
            with connection.pipeline():
                cursors = self._sent(connection, batch)
            rows: list[Any] = [cursor.fetchone() for cursor in cursors]
            if not all(rows):
                raise psycopg.Rollback(attempt)
        if all(rows):
            return [_stored(append, row) for append, row in zip(batch, rows, strict=True)]
        with connection.transaction():
            return [self._append_one(connection, append) for append in batch]

    def _sent(self, connection: Connection, batch: Sequence[Append]) -> list[psycopg.Cursor[Any]]:
        cursors = []
        for append in batch:
            cursors.append(connection.cursor(binary=True))
            cursors[-1].execute(*self._statement(append))
        return cursors

    def _statement(self, append: Append) -> tuple[str, list[Any]]:
        """The statement that stores an append if the stream is where it was expected, and its values."""
        version, records = append.expected, append.records
        last, create, many = version + len(records), version == 0, len(records) > 1
        values: list[Any] = [last, records[-1][0]]
        if create or append.fields is not None:
            values += _columns(append.fields or Fields())
        values += append.stream
        values += [append.incarnation] if create else [version, append.expected_hash, append.incarnation]
        if append.indexed and not create:
            values.append(append.id)
        values.append(self._commit)
        if append.indexed:
            values += append.id, version + 1, last
        if many:
            values += version, append.id, [digest for digest, _ in records], [body for _, body in records]
        else:
            values += last, append.id, *records[0]
        values += append.stream
        text = self._sql.append(create=create, fields=append.fields is not None, indexed=append.indexed, many=many)
        return text, values

    def _look(self, connection: Connection, append: Append) -> Appended | Conflict:
        """Why an append was not stored: it already is, or the stream is not where it was expected."""
        stream = append.stream
        row = connection.execute(self._sql.head, stream, binary=True).fetchone()
        head = _head(stream, row) if row else None
        if head is None:
            return Conflict(None)
        if append.indexed:
            known = connection.execute(self._sql.find_id, (*stream, append.id), binary=True).fetchone()
            if known:
                return Appended(known[0], known[1], True, head.now)
        if head.incarnation == append.incarnation and head.version > append.expected:
            first = (*stream, append.expected + 1)
            found = connection.execute(self._sql.append_id, first, binary=True).fetchone()
            if found and found[0] == append.id:
                other = connection.execute(self._sql.next_other_append, (*first, append.id), binary=True).fetchone()
                return Appended(append.expected + 1, other[0] - 1 if other else head.version, True, head.now)
        return Conflict(head)

    def delete(self, stream: StreamKey, *, expected: Head, upto: int | None = None) -> bool:
        place = (*stream, expected.version, expected.hash, expected.incarnation)

        def work(connection: Connection) -> bool:
            if upto is None:
                return bool(connection.execute(self._sql.delete, (*place, self._commit)).fetchone())
            return bool(connection.execute(self._sql.delete_upto, (self._commit, *place, upto)).fetchone())

        return self._transact(work)

    def _transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which commits by itself. It is tried again if the engine rolled it back for the sake of another."""
        self._check_open()
        for tried in range(1, TRIES + 1):
            try:
                with self._pool.connection() as connection:
                    return work(connection)
            except psycopg.Error as error:
                if not may_be_tried_again(error) or tried == TRIES:
                    raise translated(error, writing=True) from None
            time.sleep(random.uniform(0.001, 0.01) * tried)  # noqa: S311  jitter, not a secret
        raise AssertionError("the last try either returns or raises")

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        statement, start = (self._sql.read_reverse, after or 1 << 62) if reverse else (self._sql.read, after)
        rows = self._rows(statement, (*stream, start, 1 << 30 if limit is None else limit, PAGE_BYTES))
        return [Record(*row) for row in rows]

    def head(self, stream: StreamKey) -> Head | None:
        rows = self._rows(self._sql.head, stream)
        return _head(stream, rows[0]) if rows else None

    def heads(
        self, *, tenant: str, kind: str, status: str | None = None, after: str = "", limit: int = 500
    ) -> Sequence[Head]:
        if status is None:
            rows = self._rows(self._sql.heads, (tenant, kind, after, limit))
        else:
            rows = self._rows(self._sql.heads_by_status, (tenant, kind, status, after, limit))
        return [_head(StreamKey(tenant, kind, row[0]), row) for row in rows]

    def due(
        self, *, tenant: str, kind: str, before: float | None = None, after: Cursor | None = None, limit: int = 100
    ) -> Sequence[Head]:
        until = float("inf") if before is None else before
        rows = self._rows(self._sql.due, (tenant, kind, until, *(after or (float("-inf"), "")), limit))
        return [_head(StreamKey(tenant, kind, row[0]), row) for row in rows]

    def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """What a reading statement gives. A connection that turns out to be dead is replaced, once."""
        self._check_open()
        for last_try in (False, True):
            try:
                with self._pool.connection() as connection:
                    return connection.execute(statement, values, binary=True).fetchall()
            except psycopg.Error as error:
                if last_try or error.sqlstate is not None:
                    raise translated(error) from None
        raise AssertionError("the last try either returns or raises")

    # -- life ------------------------------------------------------------------------------------

    def watch(self, stream: StreamKey, changed: Callable[[], None]) -> Callable[[], None]:
        self._check_open()
        return self._listener.watch(stream, changed)

    def describe(self) -> Description:
        size = self._rows(self._sql.size, (self._schema,))[0][0]
        return Description(
            engine="postgresql",
            version=self._version,
            location=self._location,
            durability=self._durability,
            limits={"record": 512 * 1024 * 1024},
            sizes={"database": size},
            warnings=self._warnings,
        )

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self._pool.close()

    def before_fork(self) -> None:
        """Nothing: what the parent is in the middle of goes on there."""

    def after_fork_in_parent(self) -> None:
        """Nothing."""

    def after_fork_in_child(self) -> None:
        # psycopg leaves connections alone that another process has made, so the old ones may simply be dropped.
        self._reset()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store {self._location} was closed; open it again")

    # -- tables ----------------------------------------------------------------------------------

    def _set_up(self, connection: Connection) -> None:
        """Make the tables if they are missing; refuse those of a newer Holdfast."""
        version = self._stored_version(connection)
        if version is None:
            self._make_tables(connection)
            version = self._stored_version(connection)
        if version != sql.VERSION:
            raise UnsupportedVersion(
                f"the schema {self._schema!r} has tables of version {version}, this Holdfast knows {sql.VERSION}; "
                "upgrade Holdfast, or choose another schema"
            )

    def _stored_version(self, connection: Connection) -> int | None:
        try:
            row = connection.execute(self._sql.version, prepare=False).fetchone()
            return cast("int", row[0]) if row else None
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        except psycopg.Error as error:
            raise translated(error) from None

    def _make_tables(self, connection: Connection) -> None:
        """All in one transaction, and one process after the other: those who come second find everything there."""
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (sql.SETUP_LOCK,), prepare=False)
                made, schema = connection.execute(sql.MADE, {"schema": self._schema}, prepare=False).fetchone() or (
                    0,
                    0,
                )
                if not schema:
                    connection.execute(f"CREATE SCHEMA {self._schema}", prepare=False)
                if not made:
                    connection.execute(sql.tables(self._schema, self._partitions), prepare=False)
        except psycopg.errors.InsufficientPrivilege:
            raise NotSetUp(
                f"the tables of Holdfast are not in schema {self._schema!r}, and this user may not make them; "
                "have somebody apply what `holdfast schema` prints for this URL"
            ) from None
        except psycopg.Error as error:
            raise translated(error) from None


def schema_sql(url: str) -> str:
    """What a database administrator has to apply for this URL, where Holdfast may not make its tables itself. Does not connect."""
    options = parse(url, example="postgresql://user:password@host/database", options=None).options
    schema = schema_of(options)
    made = sql.tables(schema, number(options, "partitions", 0))
    return f"BEGIN;\nCREATE SCHEMA IF NOT EXISTS {schema};\n{made}COMMIT;\n"


def schema_of(options: dict[str, str]) -> str:
    schema = options.get("schema", "holdfast")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
        raise InvalidURL("the option 'schema' of the URL is a name of small letters, digits and _ (at most 63)")
    return schema


def _without_ours(url: str) -> str:
    """The URL for libpq, which refuses options that it does not know."""
    front, _, query = url.partition("?")
    kept = [pair for pair in query.split("&") if pair and pair.partition("=")[0] not in OPTIONS]
    return f"{front}?{'&'.join(kept)}" if kept else front


def _examined(connection: Connection, durability: Durability) -> tuple[str, str, list[str]]:
    """The server's version, how commits are made, and what is to be known of it."""
    names = ("server_version", "server_encoding", "fsync", "full_page_writes", "synchronous_commit")
    try:
        row = connection.execute(
            "SELECT " + ", ".join(f"current_setting('{name}')" for name in names), prepare=False
        ).fetchone()
    except psycopg.Error as error:
        raise translated(error) from None
    version, encoding, fsync, full_pages, commit = row or ("",) * len(names)
    if int(version.split(".")[0]) < 13:
        raise UnsupportedServer(f"PostgreSQL {version} is too old; Holdfast needs 13 or newer")
    if encoding != "UTF8":
        raise UnsupportedServer(f"the database has the encoding {encoding}; make one with the encoding UTF8")
    warnings = []
    if fsync != "on":
        if durability == "disk":
            raise UnsupportedServer(
                "the server runs with fsync=off and may lose everything when its machine goes down; "
                "switch it on, or open the store with durability='process'"
            )
        warnings.append("the server runs with fsync=off: when its machine goes down, everything may be lost")
    if full_pages != "on":
        warnings.append("the server runs with full_page_writes=off: a torn page may damage tables")
    if durability != "disk":
        return version, "off", warnings
    if commit not in ("on", "remote_apply"):
        warnings.append(f"synchronous_commit is {commit!r} here; Holdfast commits its own transactions with 'on'")
        commit = "on"
    return version, commit, warnings


def _stored(append: Append, row: Sequence[Any]) -> Appended:
    return Appended(append.expected + 1, append.expected + len(append.records), False, _clock.of_engine(row[0]))


def _columns(fields: Fields) -> tuple[Any, ...]:
    return fields.status, fields.label, fields.owner, fields.due_at, fields.expires_at, fields.due


def _head(stream: StreamKey, row: Sequence[Any]) -> Head:
    return Head(stream, row[1], row[2], row[3], Fields(*row[4:9]), _clock.of_engine(row[9]))
