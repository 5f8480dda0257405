"""Opening PostgreSQL: what the URL says, whether the server can be trusted, its tables, and the rights to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

from ...errors import (
    AccessDenied,
    CorruptRecord,
    InvalidURL,
    NotSetUp,
    UnsupportedServer,
    UnsupportedVersion,
)
from ..interface import Durability
from ..urls import ServerURL, number, parse, unknown, without
from . import sql
from .pool import PostgresConnection, fetched, psycopg, translated

OPTIONS: Final = ("schema", "partitions", "pool_size", "prepare", "timeout")
"""What a URL may say beside the options of libpq."""
MOST_PARTITIONS: Final = 500
"""All are made in one transaction, which has to lock them: for 1,000, a server as it is installed has no room."""


# -- the URL -------------------------------------------------------------------------------------------


def read_url(url: str) -> ServerURL:
    """The URL taken apart. An option that neither we nor libpq know is named: libpq would refuse the URL as a whole."""
    given = parse(url, example="postgresql://user:password@host/database", options=None)
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()} | {"ssl"}
    for name in given.options:
        if name not in OPTIONS and name not in known:
            raise unknown(name, given.parts, OPTIONS, ", and those of libpq")
    return given


def schema_of(options: dict[str, str]) -> str:
    schema = options.get("schema", "holdfast")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
        raise InvalidURL(
            "the option 'schema' of the URL is a name of small letters, digits and _ (at most 63)"
        )
    if schema == "information_schema":
        raise InvalidURL("the schema 'information_schema' is the server's own; choose another one")
    return schema


def partitions_of(options: dict[str, str]) -> int:
    return number(options, "partitions", 0, most=MOST_PARTITIONS)


def without_ours(url: str) -> str:
    """The URL for libpq, which refuses options that it does not know."""
    for name in OPTIONS:
        url, _ = without(url, name)
    return url


# -- the server ----------------------------------------------------------------------------------------


def examined(
    connection: PostgresConnection, durability: Durability, where: str
) -> tuple[str, str, list[str]]:
    """The server's version, how commits are made, and what is to be known of it."""
    names = (
        "server_version_num",
        "server_version",
        "server_encoding",
        "fsync",
        "full_page_writes",
        "synchronous_commit",
    )
    try:
        row = connection.execute(
            "SELECT " + ", ".join(f"current_setting('{name}')" for name in names), prepare=False
        ).fetchone()
    except psycopg.Error as error:
        raise translated(error, where) from None
    order, version, encoding, fsync, full_pages, commit = row or ("0",) * len(names)
    if int(order) < 130000:
        raise UnsupportedServer(f"PostgreSQL {version} is too old; Holdfast needs 13 or newer")
    if encoding != "UTF8":
        raise UnsupportedServer(
            f"the database has the encoding {encoding}; make one with the encoding UTF8"
        )
    warnings = []
    if fsync != "on":
        if durability == "disk":
            raise UnsupportedServer(
                "the server runs with fsync=off and may lose everything when its machine goes down; "
                "switch it on, or open the store with durability='process' (in the URL: durability=process)"
            )
        warnings.append(
            "the server runs with fsync=off: when its machine goes down, everything may be lost"
        )
    if full_pages != "on":
        warnings.append("the server runs with full_page_writes=off: a torn page may damage tables")
    if durability != "disk":
        return version, "off", warnings
    if commit not in ("on", "remote_apply"):
        warnings.append(
            f"synchronous_commit is {commit!r} here; Holdfast commits its own transactions with 'on'"
        )
        commit = "on"
    return version, commit, warnings


# -- rights ---------------------------------------------------------------------------------------------


class Privilege(NamedTuple):
    """A right to one of the tables, and what it is needed for."""

    privilege: str
    kind: Literal["schema", "table", "sequence"]
    name: str
    need: Literal["read", "append", "change", "delete"]
    """`read` is needed by everybody, `append` and `change` by who appends; `change` by nobody who only looks."""

    def of(self, schema: str) -> str:
        return f"{self.privilege} on {self.kind} {schema}{'.' if self.name else ''}{self.name}"


RIGHTS: Final = (
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


def _missing_rights(schema: str) -> str:
    """An array of places in `RIGHTS`. By the catalog, which everybody may read: asking by name would need a right itself."""
    rows = ", ".join(
        f"({place}, '{right.kind}', '{right.name}', '{right.privilege}')"
        for place, right in enumerate(RIGHTS)
    )
    return (
        f"ARRAY(SELECT place FROM (VALUES {rows}) AS wanted(place, kind, name, privilege)"  # noqa: S608  its name was checked
        f" JOIN pg_namespace n ON n.nspname = '{schema}'"
        " LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name"
        " WHERE NOT CASE kind WHEN 'schema' THEN has_schema_privilege(n.oid, privilege)"
        # UPDATE on a sequence lets its numbers be taken as well.
        " WHEN 'sequence' THEN has_sequence_privilege(c.oid, privilege || ', UPDATE')"
        " ELSE has_table_privilege(c.oid, privilege) END ORDER BY place)"
    )


# -- the tables ----------------------------------------------------------------------------------------


class SchemaTables:
    """The tables in one schema: found, made, or refused."""

    def __init__(self, schema: str, where: str) -> None:
        self._schema, self._where = schema, where
        self.ask_rights = f"SELECT {_missing_rights(schema)}"
        """Gives the rights that this user lacks, for `refuse_reader`."""
        self._ask = f"SELECT version, {_missing_rights(schema)} FROM {sql.quoted(schema)}.holdfast"  # noqa: S608

    def set_up(self, connection: PostgresConnection, *, partitions: int, create: bool) -> None:
        """See that the tables are there and can be used. With `create`, make them if they are missing."""
        found = self._look(connection)
        if found is None and not create:
            raise NotSetUp(
                f"there is no store at {self._where}: the schema {self._schema!r} has no tables of Holdfast; check the URL"
            )
        if found is None:
            self._make(connection, partitions)
            found = self._look(connection)
        version, missing = found or (None, ())
        self._refuse_other_versions(version)
        self._refuse_half_rights(missing)

    def _look(self, connection: PostgresConnection) -> tuple[int, Sequence[int]] | None:
        """The version of the tables, and which of `RIGHTS` are missing; None if there are no tables."""
        try:
            rows = fetched(connection, self._ask, (), sql.TABLE_VERSION, prepare=False)
            return (rows[0][0], rows[0][1]) if rows else None
        except CorruptRecord:
            raise self._foreign() from None
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        except (psycopg.errors.UndefinedColumn, psycopg.errors.WrongObjectType):
            raise self._foreign() from None
        except psycopg.errors.InsufficientPrivilege:
            raise self.denied(connection) from None
        except psycopg.Error as error:
            raise translated(error, self._where) from None

    def _make(self, connection: PostgresConnection, partitions: int) -> None:
        """All in one transaction, and one process after the other: those who come second find everything there."""
        try:
            with connection.transaction():
                connection.execute(
                    "SELECT pg_advisory_xact_lock(%s)", (sql.SETUP_LOCK,), prepare=False
                )
                row: Any = connection.execute(
                    sql.MADE, {"schema": self._schema}, prepare=False
                ).fetchone()
                made, schema = row or (False, False)
                if not schema:
                    connection.execute(f"CREATE SCHEMA {sql.quoted(self._schema)}", prepare=False)
                if not made:
                    connection.execute(sql.tables(self._schema, partitions), prepare=False)
        except psycopg.errors.InsufficientPrivilege:
            raise NotSetUp(
                f"there is no store at {self._where}: the tables of Holdfast are not in schema {self._schema!r}, and "
                "this user may not make them; have somebody apply what `holdfast schema` prints for this URL"
            ) from None
        except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject):
            raise self._foreign() from None
        except psycopg.Error as error:
            raise translated(error, self._where) from None

    def _foreign(self) -> UnsupportedVersion:
        return UnsupportedVersion(
            f"{self._where}: the schema {self._schema!r} is used by something else: it has tables of the same names; "
            "choose another schema"
        )

    def _refuse_other_versions(self, version: int | None) -> None:
        if version == sql.VERSION:
            return
        has = f"{self._where}: the schema {self._schema!r} has tables of version {version}, this Holdfast knows {sql.VERSION}"
        if version is not None and version < sql.VERSION:
            raise UnsupportedVersion(
                f"{has}: they were made by an older Holdfast. With that one, copy the store to a file; "
                "with this one, copy the file to another schema"
            )
        raise UnsupportedVersion(f"{has}; upgrade Holdfast, or choose another schema")

    def _refuse_half_rights(self, missing: Sequence[int]) -> None:
        """Refuse who may not even read, and who may write a little: it would fail later, in the middle of work.

        Who may change nothing at all only looks, like a monitoring role, and is let in.
        """
        lacking = [RIGHTS[place] for place in missing]
        reads_only = all(right in lacking for right in RIGHTS if right.need == "change")
        needed = ("read",) if reads_only else ("read", "append", "change")
        if any(right.need in needed for right in lacking):
            raise self._lacking(lacking)

    def refuse_reader(self, missing: Sequence[int]) -> None:
        """Refuse who may not append."""
        lacking = [RIGHTS[place] for place in missing]
        if any(right.need != "delete" for right in lacking):
            raise self._lacking(lacking)

    def denied(self, connection: PostgresConnection) -> AccessDenied:
        """After the server has refused something: which rights are missing."""
        try:
            row = connection.execute(self.ask_rights, prepare=False).fetchone()
        except psycopg.Error:
            row = None
        return self._lacking([RIGHTS[place] for place in row[0]] if row else [])

    def _lacking(self, rights: Sequence[Privilege]) -> AccessDenied:
        look = ", ".join(right.of(self._schema) for right in rights if right.need == "read")
        write = ", ".join(right.of(self._schema) for right in rights if right.need != "read")
        both = f"{look} to look, and to write also {write}"  # a monitoring role needs no more than the first
        names = both if look and write else look or write or "a right to the tables of Holdfast"
        return AccessDenied(
            f"{self._where}: this user lacks {names}; have somebody grant it "
            "(`holdfast schema` prints the GRANTs for this URL)"
        )


# -- by hand -------------------------------------------------------------------------------------------


def schema_sql(url: str) -> str:
    """What a database administrator has to apply for this URL, where Holdfast may not make its tables itself. Does not connect."""
    parts, options = read_url(without(url, "durability")[0])
    schema = schema_of(options)
    made = sql.tables(schema, partitions_of(options))
    user = options.get("user") or unquote(parts.username or "")
    named = sql.quoted(schema)
    return (
        "-- The tables of Holdfast. Where they are there already, this changes nothing.\n"
        f"BEGIN;\nCREATE SCHEMA IF NOT EXISTS {named};\n"
        f"DO $holdfast$ BEGIN IF to_regclass('{named}.holdfast') IS NULL THEN\n{made}END IF; END $holdfast$;\nCOMMIT;\n"
        + _grants(named, user)
    )


def _grants(schema: str, user: str) -> str:
    """The rights that the program needs, as comments: whoever owns the tables needs none, and a monitoring role fewer."""
    named = user and user.isprintable()  # a line break would end the comment
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", user):
        user = '"' + user.replace('"', '""') + '"'
    note = "" if named else " (write its name for agents)"
    role = user if named else "agents"
    return (
        f"-- What the role of the programs needs, unless it owns the tables{note}:\n"
        f"-- GRANT USAGE ON SCHEMA {schema} TO {role};\n"
        f"-- GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};\n"
        f"-- GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};\n"
        "-- For a role that only looks: USAGE on the schema, SELECT on the tables.\n"
    )
