"""The tables of the SQLite backend: create, migrate and check them.

Records are in a rowid table and get ever larger rowids, so that every insert fills the last page;
(stream, version) is a small index beside it. Clustering records by stream instead would split
half-full pages wherever a stream grows, and a WITHOUT ROWID table would push bodies to overflow
pages.

The version and hash of a stream are those of its newest record, so an append that changes no field
writes nothing but records. The fields that listings return change rarely. They are stored in
`streams`, in the order of names, and again in each index: a page of a listing is read from one
place, however many streams there are and in whatever order they were created.

`tombstones` has the incarnations that were deleted and must not be created again. `numbers` has one
row: the last number that a stream got, and a checksum of all tombstones.

Nothing is stored twice except in indexes and in `due`, which `PRAGMA integrity_check` compares with
the tables. `check.py` checks the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar, cast

import apsw

from ...errors import ReadOnly, UnsupportedVersion

T = TypeVar("T")

APPLICATION_ID: Final = 0x486F6C64  # "Hold", for `file` and other tools

MIGRATIONS: Final = (
    # 1: the first schema
    """
    CREATE TABLE streams (
        tenant TEXT NOT NULL,
        kind TEXT NOT NULL,
        id TEXT NOT NULL,
        stream INTEGER NOT NULL,
        incarnation BLOB NOT NULL,
        status TEXT,
        label BLOB,
        owner TEXT,
        due_at REAL,
        expires_at REAL,
        due REAL CHECK (due IS min(ifnull(due_at, expires_at), ifnull(expires_at, due_at))),
        PRIMARY KEY (tenant, kind, id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX streams_by_status ON streams
        (tenant, kind, status, id, incarnation, label, owner, due_at, expires_at) WHERE status IS NOT NULL;
    CREATE INDEX streams_by_due ON streams
        (tenant, kind, due, id, incarnation, status, label, owner, due_at, expires_at) WHERE due IS NOT NULL;
    CREATE TABLE numbers (last INTEGER NOT NULL, tombstones BLOB NOT NULL) STRICT;
    INSERT INTO numbers (last, tombstones) VALUES (0, zeroblob(16));
    CREATE TABLE records (
        stream INTEGER NOT NULL,
        version INTEGER NOT NULL,
        append_id BLOB NOT NULL,
        hash BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX records_by_place ON records (stream, version);
    CREATE INDEX records_by_append ON records (stream, append_id, version) WHERE append_id >= x'80';
    CREATE TABLE tombstones (
        tenant TEXT NOT NULL,
        kind TEXT NOT NULL,
        id TEXT NOT NULL,
        incarnation BLOB NOT NULL,
        PRIMARY KEY (tenant, kind, id, incarnation)
    ) STRICT, WITHOUT ROWID;
    """,  # noqa: E501  SQLite stores this text, and it is compared
)


def refuse_foreign_database(connection: apsw.Connection, path: str) -> None:
    """Raise if the database is not a Holdfast store, before anything in it is changed."""
    # In this order: another process may be creating tables and application id in one transaction.
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0]
    (application,) = connection.execute("PRAGMA application_id").fetchall()[0]
    if application != APPLICATION_ID and (application or objects):
        raise UnsupportedVersion(
            f"{path} is an SQLite database, but not a Holdfast store; choose another path"
        )


def migrate(connection: apsw.Connection, path: str) -> None:
    """Bring the schema up to date. Many processes may do this at once."""
    if _read_version(connection, path) == len(MIGRATIONS):
        return

    def run() -> None:
        _run_migrations(connection, _read_version(connection, path))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    transact(connection, run)


def refuse_older_schema(connection: apsw.Connection, path: str) -> None:
    """Raise if the schema has to be brought up to date first."""
    if (version := _read_version(connection, path)) != len(MIGRATIONS):
        raise ReadOnly(
            f"{path} has schema version {version}, and must be updated to {len(MIGRATIONS)} before"
            " it can be read; open it once where it can be written to"
        )


def refuse_altered_schema(connection: apsw.Connection, path: str) -> None:
    """Raise if there are tables, views or triggers that Holdfast did not create.

    A planted trigger could undo acknowledged appends.
    """
    if _read_schema(connection) != _expected_schema():
        raise UnsupportedVersion(
            f"{path} has tables, views or triggers that Holdfast did not create; "
            "restore it from a backup"
        )


def _read_schema(connection: apsw.Connection) -> frozenset[object]:
    """Return the schema objects, except the tables of the memory index, which are derived data."""
    return frozenset(
        connection.execute(
            "SELECT type, name, sql FROM sqlite_schema"
            " WHERE name NOT LIKE 'sqlite\\_stat%' ESCAPE '\\'"
            " AND name != 'sqlite_sequence' AND (tbl_name NOT GLOB 'memory_*' OR type = 'view')"
        )
    )


@lru_cache(maxsize=1)
def _expected_schema() -> frozenset[object]:
    """Return the schema objects that the migrations create, as SQLite writes them."""
    connection = apsw.Connection(":memory:")
    _run_migrations(connection, 0)
    schema = _read_schema(connection)
    connection.close()
    return schema


def _run_migrations(connection: apsw.Connection, done: int) -> None:
    for number, migration in enumerate(MIGRATIONS[done:], done):
        for statement in migration.split(";"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number + 1}")


def _read_version(connection: apsw.Connection, path: str) -> int:
    version = cast("int", connection.execute("PRAGMA user_version").fetchall()[0][0])
    if version > len(MIGRATIONS):
        raise UnsupportedVersion(
            f"{path} has schema version {version}, this Holdfast supports up to "
            f"{len(MIGRATIONS)}; upgrade Holdfast"
        )
    return version


def transact(connection: apsw.Connection, work: Callable[[], T], mode: str = "IMMEDIATE") -> T:
    """Commit the changes that `work` makes, or roll them back.

    apsw's own `with` uses savepoints, and on a full disk SQLite has already dropped those. A `with`
    of contextlib may be interrupted before it calls us; its traceback would keep the transaction.
    """
    try:  # before BEGIN: an interrupt right after it must not leave the transaction open
        connection.execute(f"BEGIN {mode}")
        result = work()
        connection.execute("COMMIT")
        return result
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
