"""The SQL of the PostgreSQL backend: the tables, with the number of their version, and statements as named text.

The head of a stream is one row. An append is one statement that moves the head, if it still is where it was expected, and
inserts the records behind it: alone it is its own transaction, so it costs one round trip and one disk sync. No
statement needs anything of the session, so that poolers may give each one another connection.
"""

from __future__ import annotations

from typing import Final, NamedTuple

VERSION: Final = 1


class Columns(NamedTuple):
    """What a statement gives, if the tables are as we made them: the types of its columns, as the server numbers them, and how many
    at the beginning are never NULL."""

    types: tuple[int, ...]
    present: int


_BIGINT, _BYTES, _TEXT, _FLOAT = 20, 17, 25, 701
RECORDS: Final = Columns((_BIGINT, _BYTES, _BYTES, _BYTES), 4)
HEADS: Final = Columns(
    (_TEXT, _BIGINT, _BYTES, _BYTES, _TEXT, _BYTES, _TEXT, _FLOAT, _FLOAT, _FLOAT), 4
)
VERSIONS: Final = Columns((_BIGINT, _BIGINT), 2)
APPEND_ID: Final = Columns((_BYTES,), 1)
ONE_NUMBER: Final = Columns((_BIGINT,), 1)
TABLE_VERSION: Final = Columns((23, 1007), 0)

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


def quoted(schema: str) -> str:
    """The name of a schema in a statement: it may be a word that SQL has a use for, as `user`."""
    return f'"{schema}"'


def tables(schema: str, partitions: int = 0) -> str:
    """The statements that make all tables. With `partitions`, the three large ones are split by hash into so many."""
    schema = quoted(schema)
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


LOCK_SECONDS: Final = 0.5
"""How long an append waits for a stream that somebody has locked. Then others have their turn, and it is tried again."""

KEY: Final = "tenant = %s AND kind = %s AND id = %s"
_PLACE: Final = f"{KEY} AND version = %s AND hash = %s AND incarnation = %s"
FIELDS: Final = ("status", "label", "owner", "due_at", "expires_at", "due")
NOW: Final = "extract(epoch FROM clock_timestamp())::double precision"
_HEAD: Final = "id, version, hash, incarnation, status, label, owner, due_at, expires_at"
_SIZE: Final = "(octet_length(body) + octet_length(hash) + octet_length(append_id))"
# As a part of the statement, because a session may be somebody else's, and set for the transaction only.
_DURABLE: Final = "set_config('synchronous_commit', %s, true)"


def told(schema: str, of: str = "") -> str:
    """How many follow a stream, who are notified. Nobody does, most often: then nothing is sent, for that makes commits wait for
    each other. `of` is where the stream's key is, if it is not a value."""
    key = f"tenant = {of}tenant AND kind = {of}kind AND id = {of}id" if of else KEY
    return (
        f"(SELECT count(pg_notify('{schema}', concat_ws(E'\\x1f', tenant, kind, id)))"
        f" FROM {quoted(schema)}.followers WHERE {key} AND until > now())"
    )


def first(limit: int, statement: str) -> str:
    """A page of what a statement lists. The limit is in its text: where it is a value, the server takes a list for a tenth of
    the table, and rather makes a new plan for every page than keep that one."""
    return f"{statement} LIMIT {int(limit)}"


class StoreStatements:
    """Every statement, with the name of the schema in it."""

    def __init__(self, schema: str, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.name, self.schema, self.lock_seconds = schema, quoted(schema), lock_seconds
        self._appends: dict[tuple[bool, bool, bool, bool], str] = {}
        self._batches: dict[tuple[bool, bool], str] = {}
        # Always true. Where it is asked before a row is locked, the wait for that lock is bounded.
        self._bounded = f"set_config('lock_timeout', '{int(lock_seconds * 1000)}', true) <> ''"
        self.settings = f"({self._bounded} AND {_DURABLE} <> '')"
        """The same with durability, to be asked once in a statement."""
        schema = self.schema
        streams, records, ids = f"{schema}.streams", f"{schema}.records", f"{schema}.append_ids"
        number = f"(SELECT stream FROM {streams} WHERE {KEY} AND alive)"
        # Not more rows than this at once: sizes are added up over all rows that the limit lets through.
        page = (
            f"SELECT version, append_id, hash, body FROM (SELECT *, sum({_SIZE}) OVER (ORDER BY version {{order}})"
            f" - {_SIZE} AS before FROM {records} WHERE stream = {number} AND version {{than}} %s"
            " ORDER BY version {order} LIMIT least(%s, 1000)) AS page WHERE before < %s ORDER BY version {order}"
        )
        self.read = page.format(order="ASC", than=">")
        self.read_reverse = page.format(order="DESC", than="<")
        self.head = f"SELECT {_HEAD}, {NOW} FROM {streams} WHERE {KEY} AND alive"
        self.lived = f"SELECT %s::bytea = ANY (former_lives) FROM {streams} WHERE {KEY}"
        listed = f"SELECT {_HEAD}, {NOW} FROM {streams} WHERE tenant = %s AND kind = %s"
        self.heads = f"{listed} AND alive AND id > %s ORDER BY id"
        self.heads_by_status = f"{listed} AND status = %s AND id > %s ORDER BY id"
        # Whoever pages goes on after the due time that a head has. A row that was given another in `due` would come again and again.
        # In `coalesce`, because the server takes any two columns to be equal in few rows, and then sorts all that are due.
        due = "coalesce(due = least(due_at, expires_at), false)"
        self.due = f"{listed} AND due <= %s AND (due, id) > (%s, %s) AND {due} ORDER BY due, id"
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
        self.follow = (
            f"INSERT INTO {schema}.followers VALUES (%s, %s, %s, now() + interval '1 second' * %s)"
            " ON CONFLICT (tenant, kind, id) DO UPDATE SET until = greatest(followers.until, EXCLUDED.until)"
        )
        self.ring = f"SELECT pg_notify('{self.name}', %s)"
        self.listen = f"LISTEN {schema}"
        self.forget_followers = (
            f"DELETE FROM {schema}.followers WHERE until < now() - interval '1 minute'"
        )
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
        schema = self.schema
        if create:
            names = ", ".join(FIELDS)
            moved = (
                f"INSERT INTO {schema}.streams AS old (version, hash, {names}, tenant, kind, id, incarnation, alive)"
                f" VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, {self._bounded}) ON CONFLICT (tenant, kind, id) DO UPDATE SET"
                " alive = true, version = EXCLUDED.version, hash = EXCLUDED.hash, incarnation = EXCLUDED.incarnation, "
                + ", ".join(f"{name} = EXCLUDED.{name}" for name in names.split(", "))
                + " WHERE NOT old.alive AND NOT EXCLUDED.incarnation = ANY (old.former_lives)"
            )
        else:
            changed = "".join(f", {name} = %s" for name in FIELDS) if fields else ""
            unknown = ""
            if indexed:
                unknown = (
                    f" AND NOT EXISTS (SELECT FROM {schema}.append_ids known"
                    " WHERE known.stream = streams.stream AND known.id = %s)"
                )
            moved = (
                f"UPDATE {schema}.streams SET version = %s, hash = %s{changed}"
                f" WHERE {_PLACE} AND alive{unknown} AND {self._bounded}"
            )
        noted = ""
        if indexed:
            noted = (
                f", noted AS (INSERT INTO {schema}.append_ids SELECT stream, %s, %s, %s FROM moved)"
            )
        rows = "SELECT stream, %s::bigint, %s::bytea, %s::bytea, %s::bytea FROM moved"
        if many:
            rows = (
                "SELECT stream, %s::bigint + number, %s::bytea, hash, body FROM moved,"
                " unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY AS given(hash, body, number)"
            )
        return (
            f"WITH moved AS ({moved} RETURNING stream, {_DURABLE}){noted},"
            f" stored AS (INSERT INTO {schema}.records {rows}) SELECT {NOW}, {told(self.name)} FROM moved"
        )

    def append_many(self, *, fields: bool, indexed: bool) -> str:
        """The statement for many appends to as many streams: some with new head fields or to new streams, some with ids.

        It gives a row for each that was stored: its number, from 1, and the engine's time. It leaves out those whose stream has
        moved. For those whose stream was not to be seen, because it is locked or not there, the row has no time.
        """
        if (fields, indexed) not in self._batches:
            self._batches[fields, indexed] = self._append_many(fields, indexed)
        return self._batches[fields, indexed]

    def _append_many(self, fields: bool, indexed: bool) -> str:
        schema, names = self.schema, FIELDS
        arrays, columns, kept, changed, stream, may_be_new = "", "", "", "", "there", "false"
        if fields:
            arrays = ", %s::boolean[], %s::text[], %s::bytea[], %s::text[], %s::float8[], %s::float8[], %s::float8[]"
            columns = ", keep, " + ", ".join(names)
            kept = "".join(
                f", CASE WHEN g.keep THEN s.{name} ELSE g.{name} END AS {name}" for name in names
            )
            changed = ", alive = true, incarnation = EXCLUDED.incarnation" + "".join(
                f", {name} = EXCLUDED.{name}" for name in names
            )
            stream = f"coalesce(there, nextval('{schema}.stream_numbers'))"
            may_be_new = "g.expected = 0 AND (s.stream IS NULL OR NOT s.alive AND g.incarnation <> ALL (s.former_lives))"
        listed = ", ".join(
            ["tenant", "kind", "id", "version", "hash", "incarnation", *(names if fields else ())]
        )
        chosen, ids, noted = "placed", "", ""
        if indexed:
            chosen = "unknown"
            ids = (
                ", ids AS MATERIALIZED (SELECT * FROM unnest(%s::bigint[], %s::bytea[], %s::bigint[], %s::bigint[])"
                " AS i(n, id, first, last)), unknown AS MATERIALIZED (SELECT * FROM placed WHERE n NOT IN"
                " (SELECT i.n FROM ids i JOIN placed p ON p.n = i.n, LATERAL (SELECT 1"
                f" FROM {schema}.append_ids known WHERE known.stream = p.stream AND known.id = i.id LIMIT 1) AS known))"
            )
            noted = (
                f", noted AS (INSERT INTO {schema}.append_ids"
                " SELECT p.stream, i.id, i.first, i.last FROM ids i JOIN unknown p ON p.n = i.n)"
            )
        return (
            # The settings are made before the first row is locked. Key by key, by LATERAL and LIMIT: a plan that reads whole
            # tables cannot be chosen then, and rows are locked in the order in which they were given.
            'WITH given AS MATERIALIZED (SELECT tenant COLLATE "C" AS tenant, kind COLLATE "C" AS kind, id COLLATE "C" AS id,'
            f" expected, expected_hash, incarnation, version, hash{columns}, n FROM unnest(%s::text[], %s::text[], %s::text[],"
            f" %s::bigint[], %s::bytea[], %s::bytea[], %s::bigint[], %s::bytea[]{arrays}) WITH ORDINALITY AS g(tenant, kind, id,"
            f" expected, expected_hash, incarnation, version, hash{columns}, n) WHERE n > 1 OR {self.settings}),"
            " seen AS MATERIALIZED (SELECT g.n, g.expected, s.stream AS there, g.tenant, g.kind, g.id, g.version, g.hash,"
            f" g.incarnation{kept}, s.alive AND s.version = g.expected AND s.hash = g.expected_hash AND"
            f" s.incarnation = g.incarnation OR {may_be_new} AS fits FROM given g LEFT JOIN LATERAL (SELECT * FROM"
            f" {schema}.streams WHERE tenant = g.tenant AND kind = g.kind AND id = g.id LIMIT 1"
            " FOR NO KEY UPDATE SKIP LOCKED) AS s ON true),"
            f" placed AS MATERIALIZED (SELECT n, {stream} AS stream, {listed} FROM seen WHERE fits){ids},"
            # Not UPDATE, which joins as the planner likes. A stream that was made since the statement began has another number.
            f" moved AS (INSERT INTO {schema}.streams AS old (stream, {listed}, alive) SELECT stream, {listed}, true FROM {chosen}"
            " ON CONFLICT (tenant, kind, id) DO UPDATE SET version = EXCLUDED.version, hash = EXCLUDED.hash"
            f"{changed} WHERE old.stream = EXCLUDED.stream RETURNING 1){noted},"
            f" stored AS (INSERT INTO {schema}.records SELECT p.stream, r.version, r.append_id, r.hash, r.body FROM"
            " unnest(%s::bigint[], %s::bigint[], %s::bytea[], %s::bytea[], %s::bytea[]) AS r(n, version, append_id, hash, body)"
            f" JOIN {chosen} p ON p.n = r.n)"
            # If one was not moved after all, nothing may be stored: this fails, on purpose.
            f" SELECT n, {NOW}, 1 / ((SELECT count(*) FROM moved) = (SELECT count(*) FROM {chosen}))::integer,"
            f" {told(self.name, 'p.')} FROM {chosen} p"
            " UNION ALL SELECT n, NULL, NULL, NULL FROM seen WHERE there IS NULL AND expected > 0"
        )
