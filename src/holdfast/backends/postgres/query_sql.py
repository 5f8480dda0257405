"""The SQL to read, list, delete and follow streams. Appends are in `append_sql.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .. import clock
from ..interface import Head, HeadFields, StreamKey
from .pool import Columns
from .schema import quote_identifier

_BIGINT, _BYTES, _TEXT, _FLOAT = 20, 17, 25, 701
RECORDS: Final = Columns((_BIGINT, _BYTES, _BYTES, _BYTES), 4)
HEADS: Final = Columns(
    (_TEXT, _BIGINT, _BYTES, _BYTES, _TEXT, _BYTES, _TEXT, _FLOAT, _FLOAT, _FLOAT), 4
)
NUMBERED_HEADS: Final = Columns((*HEADS.types, _BIGINT), 4)
VERSIONS: Final = Columns((_BIGINT, _BIGINT), 2)
APPEND_ID: Final = Columns((_BYTES,), 1)
ONE_NUMBER: Final = Columns((_BIGINT,), 1)

KEY: Final = "tenant = %s AND kind = %s AND id = %s"
POSITION: Final = f"{KEY} AND version = %s AND hash = %s AND incarnation = %s"
NOW: Final = "extract(epoch FROM clock_timestamp())::double precision"
# A part of the statement and set for the transaction only: behind a pooler, other clients use the
# same session.
DURABLE: Final = "set_config('synchronous_commit', %s, true)"
_HEAD: Final = "id, version, hash, incarnation, status, label, owner, due_at, expires_at"
_SIZE: Final = "(octet_length(body) + octet_length(hash) + octet_length(append_id))"


def decode_head(stream: StreamKey, row: Sequence[Any]) -> Head:
    """Decode a row with the columns `HEADS`."""
    now = clock.adjust_server_time(row[9])
    return Head(stream, row[3], HeadFields(*row[4:9]), now, row[1], row[2])


def limit_rows(limit: int, statement: str) -> str:
    """Return the statement for one page of a listing.

    The limit is part of the text. For a limit passed as a value, the server estimates a tenth of
    the table, and makes a new plan for every page instead of keeping one.
    """
    return f"{statement} LIMIT {int(limit)}"


class QueryStatements:
    """The statements for one schema, except appends."""

    def __init__(self, schema: str) -> None:
        name, schema = schema, quote_identifier(schema)
        streams, records, ids = f"{schema}.streams", f"{schema}.records", f"{schema}.append_ids"
        number = f"(SELECT stream FROM {streams} WHERE {KEY} AND alive)"
        # At most 1,000 rows: sizes are added up over all rows within the limit.
        page = (
            "SELECT version, append_id, hash, body FROM (SELECT *,"
            f" sum({_SIZE}) OVER (ORDER BY version {{order}}) - {_SIZE} AS before"
            f" FROM {records} WHERE stream = {number} AND version {{than}} %s"
            " ORDER BY version {order} LIMIT least(%s, 1000)) AS page"
            " WHERE before < %s ORDER BY version {order}"
        )
        self.read = page.format(order="ASC", than=">")
        self.read_reverse = page.format(order="DESC", than="<")
        self.head = f"SELECT {_HEAD}, {NOW} FROM {streams} WHERE {KEY} AND alive"
        self.was_deleted = (
            f"SELECT %s::bytea = ANY (former_incarnations) FROM {streams} WHERE {KEY}"
        )
        listed = f"SELECT {_HEAD}, {NOW} FROM {streams} WHERE tenant = %s AND kind = %s"
        self.heads = f"{listed} AND alive AND id > %s ORDER BY id"
        self.heads_by_status = f"{listed} AND status = %s AND id > %s ORDER BY id"
        # A caller continues after the due time of the last head. A row whose `due` column was
        # changed to another value would be listed again and again, so it is left out. `coalesce`,
        # because the server expects few rows in which two columns are equal, and would sort all
        # that are due.
        due = "coalesce(due = least(due_at, expires_at), false)"
        self.due = f"{listed} AND due <= %s AND (due, id) > (%s, %s) AND {due} ORDER BY due, id"
        self.find_id = f"SELECT first, last FROM {ids} WHERE stream = {number} AND id = %s"
        self.append_id = f"SELECT append_id FROM {records} WHERE stream = {number} AND version = %s"
        self.next_other_append = (
            f"SELECT version FROM {records} WHERE stream = {number} AND version > %s"
            " AND append_id <> %s ORDER BY version LIMIT 1"
        )
        self.delete = (
            f"WITH gone AS (UPDATE {streams} SET alive = false, version = 0, hash = '',"
            " incarnation = '', status = NULL, label = NULL, owner = NULL, due_at = NULL,"
            " expires_at = NULL, due = NULL,"
            " former_incarnations = former_incarnations || incarnation"
            f" WHERE {POSITION} AND alive RETURNING stream, {DURABLE}),"
            f" records AS (DELETE FROM {records} USING gone WHERE records.stream = gone.stream),"
            f" ids AS (DELETE FROM {ids} USING gone WHERE append_ids.stream = gone.stream)"
            " SELECT 1 FROM gone"
        )
        self.replace_fields = (
            f"UPDATE {streams} SET status = %s, label = %s, owner = %s, due_at = %s,"
            f" expires_at = %s, due = %s WHERE {POSITION} AND alive RETURNING {DURABLE}"
        )
        self.follow = (
            f"INSERT INTO {schema}.followers VALUES (%s, %s, %s, now() + interval '1 second' * %s)"
            " ON CONFLICT (tenant, kind, id)"
            " DO UPDATE SET until = greatest(followers.until, EXCLUDED.until)"
        )
        self.notify = f"SELECT pg_notify('{name}', %s)"
        self.listen = f"LISTEN {schema}"
        self.forget_followers = (
            f"DELETE FROM {schema}.followers WHERE until < now() - interval '1 minute'"
        )
        self._streams = streams
        self.size = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relkind = 'r'"
        )

    def first_head(self, count: int) -> str:
        """Return the statement that finds the first of `count` streams that exists.

        One statement sees one snapshot. It returns the columns `NUMBERED_HEADS`.
        """
        heads = (
            f"SELECT {_HEAD}, {NOW}, {number}::bigint FROM {self._streams} WHERE {KEY} AND alive"
            for number in range(count)
        )
        return " UNION ALL ".join(heads) + " ORDER BY 11 LIMIT 1"
