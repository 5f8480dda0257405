"""The tables of the PostgreSQL backend: create and check them, and the privileges they need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

from ...errors import AccessDenied, CorruptRecord, NotSetUp, UnsupportedVersion
from ..urls import pop_option
from .errors import psycopg, translate_error
from .pool import Columns, PostgresConnection, fetch_rows
from .url import parse_postgres_url, read_partitions_option, read_schema_option

SCHEMA_VERSION: Final = 1
SETUP_LOCK: Final = 0x686F6C6466617374
"""The advisory lock under which tables are created: "holdfast" as a number."""

# No index contains a column that an ordinary append changes (version, hash), not even in its
# condition. PostgreSQL then keeps the new head in the same page and writes to no index at all.
_TABLES: Final = """\
CREATE SEQUENCE {schema}.stream_numbers;
CREATE TABLE {schema}.streams (
    tenant text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    stream bigint NOT NULL DEFAULT nextval('{schema}.stream_numbers'),
    alive boolean NOT NULL,
    version bigint NOT NULL,
    hash bytea NOT NULL,
    incarnation bytea NOT NULL,
    status text COLLATE "C",
    label bytea,
    owner text,
    due_at double precision,
    expires_at double precision,
    due double precision,
    former_incarnations bytea[] NOT NULL DEFAULT '{{}}',
    PRIMARY KEY (tenant, kind, id)
){streams_partitioned};
CREATE TABLE {schema}.records (
    stream bigint NOT NULL,
    version bigint NOT NULL,
    append_id bytea NOT NULL,
    hash bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (stream, version)
){partitioned};
CREATE TABLE {schema}.append_ids (
    stream bigint NOT NULL,
    id bytea NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    PRIMARY KEY (stream, id)
){partitioned};
{partitions}\
CREATE INDEX streams_alive ON {schema}.streams (tenant, kind, id) WHERE alive;
CREATE INDEX streams_by_status ON {schema}.streams (tenant, kind, status, id)
    WHERE status IS NOT NULL;
CREATE INDEX streams_by_due ON {schema}.streams (tenant, kind, due, id) WHERE due IS NOT NULL;
CREATE UNLOGGED TABLE {schema}.followers (
    tenant text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (tenant, kind, id)
);
CREATE TABLE {schema}.holdfast (version integer NOT NULL);
INSERT INTO {schema}.holdfast VALUES ({version});
"""

# Reads the catalog's tables: to_regclass() would answer from a cache that is older than the wait
# for the lock.
_FIND_TABLES: Final = (
    "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %(schema)s AND c.relname = 'holdfast'),"
    " EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s)"
)
_TABLE_VERSION: Final = Columns((23, 1007), 0)


def quote_identifier(schema: str) -> str:
    """Quote the name of a schema for a statement: it may be a keyword, such as `user`."""
    return f'"{schema}"'


def create_tables_sql(schema: str, partitions: int = 0) -> str:
    """Return the statements that create all tables, the large ones in this many partitions."""
    schema = quote_identifier(schema)
    streams_partitioned = partitioned = pieces = ""
    filled = " WITH (fillfactor = 80)"
    if partitions:
        streams_partitioned, partitioned = (
            " PARTITION BY HASH (tenant, kind, id)",
            " PARTITION BY HASH (stream)",
        )
        for table in ("streams", "records", "append_ids"):
            for number in range(partitions):
                pieces += (
                    f"CREATE TABLE {schema}.{table}_{number} PARTITION OF {schema}.{table}"
                    f" FOR VALUES WITH (MODULUS {partitions}, REMAINDER {number})"
                    f"{filled if table == 'streams' else ''};\n"
                )
    return _TABLES.format(
        schema=schema,
        version=SCHEMA_VERSION,
        streams_partitioned=streams_partitioned or filled,
        partitioned=partitioned,
        partitions=pieces,
    )


class Privilege(NamedTuple):
    """A privilege on the schema, a table or a sequence, and what it is needed for."""

    privilege: str
    kind: Literal["schema", "table", "sequence"]
    name: str
    need: Literal["read", "append", "change", "delete"]
    """All users need `read`. Those who append need `append` and `change` as well. A role with no
    `change` privilege at all only reads."""

    def format(self, schema: str) -> str:
        return f"{self.privilege} on {self.kind} {schema}{'.' if self.name else ''}{self.name}"


PRIVILEGES: Final = (
    Privilege("USAGE", "schema", "", "read"),
    Privilege("SELECT", "table", "holdfast", "read"),
    Privilege("SELECT", "table", "streams", "read"),
    Privilege("SELECT", "table", "records", "read"),
    Privilege("SELECT", "table", "append_ids", "append"),
    Privilege("SELECT", "table", "followers", "append"),
    Privilege("USAGE", "sequence", "stream_numbers", "change"),
    Privilege("INSERT", "table", "streams", "change"),
    Privilege("UPDATE", "table", "streams", "change"),
    Privilege("INSERT", "table", "records", "change"),
    Privilege("INSERT", "table", "append_ids", "change"),
    Privilege("DELETE", "table", "records", "delete"),
    Privilege("DELETE", "table", "append_ids", "delete"),
)


def _missing_privileges_sql(schema: str) -> str:
    """Return an expression for the indexes in `PRIVILEGES` of those that the user lacks.

    It uses the catalog, which every user may read: a lookup by name would need a privilege itself.
    """
    rows = ", ".join(
        f"({index}, '{one.kind}', '{one.name}', '{one.privilege}')"
        for index, one in enumerate(PRIVILEGES)
    )
    return (
        "ARRAY(SELECT place FROM"
        f" (VALUES {rows}) AS wanted(place, kind, name, privilege)"
        f" JOIN pg_namespace n ON n.nspname = '{schema}'"
        " LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name"
        " WHERE NOT CASE kind WHEN 'schema' THEN has_schema_privilege(n.oid, privilege)"
        # UPDATE on a sequence also allows nextval().
        " WHEN 'sequence' THEN has_sequence_privilege(c.oid, privilege || ', UPDATE')"
        " ELSE has_table_privilege(c.oid, privilege) END ORDER BY place)"
    )


class SchemaTables:
    """Finds, creates or rejects the tables in one schema."""

    def __init__(self, schema: str, where: str) -> None:
        self._schema, self._where = schema, where
        missing = _missing_privileges_sql(schema)
        self.missing_privileges = f"SELECT {missing}"
        """Returns the privileges that this user lacks, for `check_writable`."""
        self._inspect = f"SELECT version, {missing} FROM {quote_identifier(schema)}.holdfast"

    def set_up(self, connection: PostgresConnection, *, partitions: int, create: bool) -> None:
        """Check that the tables exist and can be used. With `create`, create them if missing."""
        found = self._read_version(connection)
        if found is None and not create:
            raise NotSetUp(
                f"there is no store at {self._where}: the schema {self._schema!r} has no tables "
                "of Holdfast; check the URL"
            )
        if found is None:
            self._create(connection, partitions)
            found = self._read_version(connection)
        version, missing = found or (None, ())
        self._refuse_other_versions(version)
        self._refuse_partial_privileges(missing)

    def _read_version(self, connection: PostgresConnection) -> tuple[int, Sequence[int]] | None:
        """Return the version of the tables and the indexes of missing privileges.

        None if there are no tables.
        """
        try:
            rows = fetch_rows(connection, self._inspect, (), _TABLE_VERSION, prepare=False)
            return (rows[0][0], rows[0][1]) if rows else None
        except CorruptRecord:
            raise self._foreign_tables_error() from None
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        except (psycopg.errors.UndefinedColumn, psycopg.errors.WrongObjectType):
            raise self._foreign_tables_error() from None
        except psycopg.errors.InsufficientPrivilege:
            raise self.access_denied_error(connection) from None
        except psycopg.Error as error:
            raise translate_error(error, self._where) from None

    def _create(self, connection: PostgresConnection, partitions: int) -> None:
        """Create the tables in one transaction, unless another process has just done so."""
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,), prepare=False)
                row: Any = connection.execute(
                    _FIND_TABLES, {"schema": self._schema}, prepare=False
                ).fetchone()
                has_tables, has_schema = row or (False, False)
                if not has_schema:
                    connection.execute(
                        f"CREATE SCHEMA {quote_identifier(self._schema)}", prepare=False
                    )
                if not has_tables:
                    connection.execute(create_tables_sql(self._schema, partitions), prepare=False)
        except psycopg.errors.InsufficientPrivilege:
            raise NotSetUp(
                f"there is no store at {self._where}: the schema {self._schema!r} has no tables "
                "of Holdfast, and this user may not create them; have an administrator apply the "
                "output of `holdfast schema` for this URL"
            ) from None
        except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject):
            raise self._foreign_tables_error() from None
        except psycopg.Error as error:
            raise translate_error(error, self._where) from None

    def _foreign_tables_error(self) -> UnsupportedVersion:
        return UnsupportedVersion(
            f"{self._where}: the schema {self._schema!r} has tables of the same names that are not "
            "Holdfast's; choose another schema"
        )

    def _refuse_other_versions(self, version: int | None) -> None:
        if version == SCHEMA_VERSION:
            return
        problem = (
            f"{self._where}: the schema {self._schema!r} has tables of version {version}, "
            f"this Holdfast supports version {SCHEMA_VERSION}"
        )
        if version is not None and version < SCHEMA_VERSION:
            raise UnsupportedVersion(
                f"{problem}: an older Holdfast created them. Copy the store to a file with that "
                "Holdfast, and the file to another schema with this one"
            )
        raise UnsupportedVersion(f"{problem}; upgrade Holdfast, or choose another schema")

    def _refuse_partial_privileges(self, missing: Sequence[int]) -> None:
        """Raise if the user may not read, or has only a part of the privileges to write.

        With a part of them, a task would fail later. A user who may change nothing only reads, like
        a monitoring role, and is accepted.
        """
        lacking = [PRIVILEGES[index] for index in missing]
        reads_only = all(one in lacking for one in PRIVILEGES if one.need == "change")
        needed = ("read",) if reads_only else ("read", "append", "change")
        if any(one.need in needed for one in lacking):
            raise self._missing_error(lacking)

    def check_writable(self, missing: Sequence[int]) -> None:
        """Raise `AccessDenied` if the user may not append."""
        lacking = [PRIVILEGES[index] for index in missing]
        if any(one.need != "delete" for one in lacking):
            raise self._missing_error(lacking)

    def access_denied_error(self, connection: PostgresConnection) -> AccessDenied:
        """Return an error that names the missing privileges, after the server denied access."""
        try:
            row = connection.execute(self.missing_privileges, prepare=False).fetchone()
        except psycopg.Error:
            row = None
        return self._missing_error([PRIVILEGES[index] for index in row[0]] if row else [])

    def _missing_error(self, lacking: Sequence[Privilege]) -> AccessDenied:
        read = ", ".join(one.format(self._schema) for one in lacking if one.need == "read")
        write = ", ".join(one.format(self._schema) for one in lacking if one.need != "read")
        both = f"{read} to read, and to write also {write}"  # a monitoring role needs the former
        names = both if read and write else read or write or "a privilege on Holdfast's tables"
        return AccessDenied(
            f"{self._where}: this user lacks {names}; have an administrator grant it "
            "(`holdfast schema` prints the GRANTs for this URL)"
        )


def render_schema_script(url: str) -> str:
    """Return the SQL with which an administrator creates the tables for this URL.

    For users who may not create tables. This function does not connect.
    """
    parts, options = parse_postgres_url(pop_option(pop_option(url, "durability")[0], "timeout")[0])
    schema = read_schema_option(options)
    tables = create_tables_sql(schema, read_partitions_option(options))
    user = options.get("user") or unquote(parts.username or "")
    quoted = quote_identifier(schema)
    return (
        "-- The tables of Holdfast. If they exist already, this changes nothing.\n"
        f"BEGIN;\nCREATE SCHEMA IF NOT EXISTS {quoted};\n"
        f"DO $holdfast$ BEGIN IF to_regclass('{quoted}.holdfast') IS NULL THEN\n"
        f"{tables}END IF; END $holdfast$;\nCOMMIT;\n" + _render_grants(quoted, user)
    )


def _render_grants(schema: str, user: str) -> str:
    """Return GRANTs as comments: the owner of the tables needs none, a monitoring role fewer."""
    named = user and user.isprintable()  # a line break would end the comment
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", user):
        user = '"' + user.replace('"', '""') + '"'
    note = "" if named else " (replace agents by its name)"
    role = user if named else "agents"
    return (
        f"-- The privileges of the application's role, unless it owns the tables{note}:\n"
        f"-- GRANT USAGE ON SCHEMA {schema} TO {role};\n"
        f"-- GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};\n"
        f"-- GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};\n"
        "-- For a role that only reads: USAGE on the schema, SELECT on the tables.\n"
    )
