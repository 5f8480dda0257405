"""The SQL of the PostgreSQL backend: the tables, with the number of their version, and statements as named text.

The head of a stream is one row. An append is one statement that moves the head, if it still is where it was expected, and
inserts the records behind it: alone it is its own transaction, so it costs one round trip and one disk sync. No
statement needs anything of the session, so that poolers may give each one another connection.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 1

# Nothing that an ordinary append changes (version, hash) is in an index or in its condition: PostgreSQL then puts the new head
# into the same page and writes to no index at all.
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
    former_lives bytea[] NOT NULL DEFAULT '{{}}',
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
CREATE INDEX streams_by_status ON {schema}.streams (tenant, kind, status, id) WHERE status IS NOT NULL;
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

SETUP_LOCK: Final = 0x686F6C6466617374
"""The advisory lock under which tables are made: "holdfast" as a number."""


# By the catalog's tables: to_regclass() would answer from what the session knew before it waited for the lock.
MADE: Final = (
    "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %(schema)s AND c.relname = 'holdfast'), EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s)"
)


def tables(schema: str, partitions: int = 0) -> str:
    """The statements that make all tables. With `partitions`, the three large ones are split by hash into so many."""
    streams_partitioned = partitioned = pieces = ""
    filled = " WITH (fillfactor = 80)"
    if partitions:
        streams_partitioned, partitioned = " PARTITION BY HASH (tenant, kind, id)", " PARTITION BY HASH (stream)"
        for table in ("streams", "records", "append_ids"):
            for number in range(partitions):
                pieces += (
                    f"CREATE TABLE {schema}.{table}_{number} PARTITION OF {schema}.{table} FOR VALUES WITH"
                    f" (MODULUS {partitions}, REMAINDER {number}){filled if table == 'streams' else ''};\n"
                )
    return _TABLES.format(
        schema=schema,
        version=VERSION,
        streams_partitioned=streams_partitioned or filled,
        partitioned=partitioned,
        partitions=pieces,
    )


_KEY: Final = "tenant = %s AND kind = %s AND id = %s"
_PLACE: Final = f"{_KEY} AND version = %s AND hash = %s AND incarnation = %s"
_FIELDS: Final = "status = %s, label = %s, owner = %s, due_at = %s, expires_at = %s, due = %s"
_NOW: Final = "extract(epoch FROM clock_timestamp())::double precision"
_HEAD: Final = "id, version, hash, incarnation, status, label, owner, due_at, expires_at"
# As a part of the statement, because a session may be somebody else's, and set for the transaction only.
_DURABLE: Final = "set_config('synchronous_commit', %s, true)"


class Statements:
    """Every statement, with the name of the schema in it."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._appends: dict[tuple[bool, bool, bool, bool], str] = {}
        streams, records, ids = f"{schema}.streams", f"{schema}.records", f"{schema}.append_ids"
        number = f"(SELECT stream FROM {streams} WHERE {_KEY} AND alive)"
        # Not more rows than this at once: sizes are added up over all rows that the limit lets through.
        page = (
            "SELECT version, append_id, hash, body FROM (SELECT *, sum(octet_length(body)) OVER (ORDER BY version {order})"
            f" - octet_length(body) AS before FROM {records} WHERE stream = {number} AND version {{than}} %s"
            " ORDER BY version {order} LIMIT least(%s, 1000)) AS page WHERE before < %s ORDER BY version {order}"
        )
        self.read = page.format(order="ASC", than=">")
        self.read_reverse = page.format(order="DESC", than="<")
        self.head = f"SELECT {_HEAD}, {_NOW} FROM {streams} WHERE {_KEY} AND alive"
        listed = f"SELECT {_HEAD}, {_NOW} FROM {streams} WHERE tenant = %s AND kind = %s"
        self.heads = f"{listed} AND alive AND id > %s ORDER BY id LIMIT %s"
        self.heads_by_status = f"{listed} AND status = %s AND id > %s ORDER BY id LIMIT %s"
        self.due = f"{listed} AND due <= %s AND (due, id) > (%s, %s) ORDER BY due, id LIMIT %s"
        self.find_id = f"SELECT first, last FROM {ids} WHERE stream = {number} AND id = %s"
        self.append_id = f"SELECT append_id FROM {records} WHERE stream = {number} AND version = %s"
        self.next_other_append = (
            f"SELECT version FROM {records} WHERE stream = {number} AND version > %s AND append_id <> %s"
            " ORDER BY version LIMIT 1"
        )
        self.delete = (
            f"WITH gone AS (UPDATE {streams} SET alive = false, version = 0, hash = '', incarnation = '', status = NULL,"
            " label = NULL, owner = NULL, due_at = NULL, expires_at = NULL, due = NULL,"
            f" former_lives = former_lives || incarnation WHERE {_PLACE} AND alive RETURNING stream, {_DURABLE}),"
            f" records AS (DELETE FROM {records} USING gone WHERE records.stream = gone.stream),"
            f" ids AS (DELETE FROM {ids} USING gone WHERE append_ids.stream = gone.stream) SELECT 1 FROM gone"
        )
        self.delete_upto = (
            f"WITH kept AS (SELECT stream, version, {_DURABLE} FROM {streams} WHERE {_PLACE} AND alive FOR UPDATE),"
            f" records AS (DELETE FROM {records} USING kept WHERE records.stream = kept.stream"
            " AND records.version <= least(%s, kept.version - 1)) SELECT 1 FROM kept"
        )
        self.follow = (
            f"INSERT INTO {schema}.followers VALUES (%s, %s, %s, now() + interval '1 second' * %s)"
            " ON CONFLICT (tenant, kind, id) DO UPDATE SET until = greatest(followers.until, EXCLUDED.until)"
        )
        self.ring = f"SELECT pg_notify('{schema}', %s)"
        self.forget_followers = f"DELETE FROM {schema}.followers WHERE until < now() - interval '1 minute'"
        self.version = f"SELECT version FROM {schema}.holdfast"
        self.size = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r'"
        )

    def append(self, *, create: bool, fields: bool, indexed: bool, many: bool) -> str:
        """The statement for an append: to a new stream or not, with new head fields, with an id to be found again, of many records.

        It gives the engine's time in one row if the append was stored, and no row if it was not.
        """
        variant = create, fields, indexed, many
        if variant not in self._appends:
            self._appends[variant] = self._append(create, fields, indexed, many)
        return self._appends[variant]

    def _append(self, create: bool, fields: bool, indexed: bool, many: bool) -> str:
        schema = self._schema
        if create:
            names = "status, label, owner, due_at, expires_at, due"
            moved = (
                f"INSERT INTO {schema}.streams AS old (version, hash, {names}, tenant, kind, id, incarnation, alive)"
                f" VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, true) ON CONFLICT (tenant, kind, id) DO UPDATE SET"
                " alive = true, version = EXCLUDED.version, hash = EXCLUDED.hash, incarnation = EXCLUDED.incarnation, "
                + ", ".join(f"{name} = EXCLUDED.{name}" for name in names.split(", "))
                + " WHERE NOT old.alive AND NOT EXCLUDED.incarnation = ANY (old.former_lives)"
            )
        else:
            changed = f", {_FIELDS}" if fields else ""
            unknown = ""
            if indexed:
                unknown = (
                    f" AND NOT EXISTS (SELECT FROM {schema}.append_ids known"
                    " WHERE known.stream = streams.stream AND known.id = %s)"
                )
            moved = f"UPDATE {schema}.streams SET version = %s, hash = %s{changed} WHERE {_PLACE} AND alive{unknown}"
        noted = ""
        if indexed:
            noted = f", noted AS (INSERT INTO {schema}.append_ids SELECT stream, %s, %s, %s FROM moved)"
        rows = "SELECT stream, %s::bigint, %s::bytea, %s::bytea, %s::bytea FROM moved"
        if many:
            rows = (
                "SELECT stream, %s::bigint + number, %s::bytea, hash, body FROM moved,"
                " unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY AS given(hash, body, number)"
            )
        # Nobody follows, most often: then nothing is sent, for a notification makes commits wait for each other.
        told = (
            f"(SELECT count(pg_notify('{schema}', concat_ws(E'\\x1f', tenant, kind, id)))"
            f" FROM {schema}.followers WHERE {_KEY} AND until > now())"
        )
        return (
            f"WITH moved AS ({moved} RETURNING stream, {_DURABLE}){noted},"
            f" stored AS (INSERT INTO {schema}.records {rows}) SELECT {_NOW}, {told} FROM moved"
        )
