"""The SQL to compare due times and append ids with heads and records, and to rebuild them."""

from __future__ import annotations

from typing import Final

from .pool import Columns
from .schema import quote_identifier

_BIGINT, _TEXT, _BOOL = 20, 25, 16
STREAMS: Final = Columns((_TEXT, _TEXT, _TEXT, _BIGINT, _BOOL, _BOOL, _BOOL), 4)
SCOPES: Final = Columns((_TEXT, _TEXT), 2)
_PAGE_STREAMS: Final = 100
_PAGE_NUMBERS: Final = 1000

# The first bit of an append id shows whether it is indexed.
_INDEXED: Final = (
    "CASE WHEN octet_length(append_id) > 0 THEN get_byte(append_id, 0) >= 128 ELSE false END"
)


class CheckStatements:
    """The statements of checks and rebuilds for one schema."""

    def __init__(self, schema: str) -> None:
        schema = quote_identifier(schema)
        streams, records, ids = f"{schema}.streams", f"{schema}.records", f"{schema}.append_ids"
        due = "due IS DISTINCT FROM least(due_at, expires_at)"
        stored = (
            f"SELECT append_id, min(version) AS first, max(version) AS last FROM {records}"
            f" WHERE stream = s.stream AND {_INDEXED} GROUP BY append_id"
        )
        page = (
            "SELECT tenant, kind, id, stream,"
            " NOT alive AND (recorded OR noted OR version <> 0 OR hash <> ''"
            " OR incarnation <> '' OR status IS NOT NULL OR label IS NOT NULL"
            " OR owner IS NOT NULL OR due_at IS NOT NULL OR expires_at IS NOT NULL),"
            f" {due}, wrong_ids"
            f" FROM (SELECT * FROM {streams}{{after}}"
            f" ORDER BY tenant, kind, id LIMIT {_PAGE_STREAMS}) AS s,"
            f" LATERAL (SELECT EXISTS (SELECT FROM {records} WHERE stream = s.stream) AS recorded,"
            f" EXISTS (SELECT FROM {ids} WHERE stream = s.stream) AS noted,"
            f" EXISTS (SELECT FROM ({stored}) AS r FULL JOIN"
            f" (SELECT id, first, last FROM {ids} WHERE stream = s.stream) AS i"
            " ON i.id = r.append_id WHERE r.first IS DISTINCT FROM i.first"
            " OR r.last IS DISTINCT FROM i.last) AS wrong_ids) AS compared"
            " ORDER BY tenant, kind, id"
        )
        self.first_page = page.format(after="")
        self.next_page = page.format(after=" WHERE (tenant, kind, id) > (%s, %s, %s)")
        self.numbers = _numbers_sql(records), _numbers_sql(ids)
        self.orphans = (
            "SELECT number FROM unnest(%s::bigint[]) AS numbers(number)"
            f" WHERE (EXISTS (SELECT FROM {records} WHERE stream = number)"
            f" OR EXISTS (SELECT FROM {ids} WHERE stream = number))"
            f" AND NOT EXISTS (SELECT FROM {streams} WHERE stream = number) ORDER BY number"
        )
        sequence = f"'{schema}.stream_numbers'::regclass"
        last = f"coalesce(pg_sequence_last_value({sequence}), 0)"
        # A role that only reads the tables may not know it.
        self.last_number = (
            f"SELECT CASE WHEN has_sequence_privilege({sequence}, 'USAGE, SELECT') THEN {last}"
            " ELSE 9223372036854775807 END"
        )
        self.scopes = (
            f"WITH RECURSIVE scopes AS ((SELECT tenant, kind FROM {streams} WHERE alive"
            " ORDER BY tenant, kind, id LIMIT 1) UNION ALL SELECT s.tenant, s.kind FROM scopes,"
            f" LATERAL (SELECT tenant, kind FROM {streams} WHERE alive"
            " AND (tenant, kind) > (scopes.tenant, scopes.kind)"
            " ORDER BY tenant, kind, id LIMIT 1) AS s) SELECT tenant, kind FROM scopes"
        )
        self.lock = f"LOCK TABLE {streams} IN SHARE MODE"
        self.rebuild = (
            f"UPDATE {streams} SET due = least(due_at, expires_at) WHERE {due}",
            f"DELETE FROM {ids} AS i WHERE NOT EXISTS (SELECT FROM {records} AS r"
            " WHERE r.stream = i.stream AND r.append_id = i.id)"
            f" OR NOT {_INDEXED.replace('append_id', 'id')}",
            f"INSERT INTO {ids} AS i SELECT stream, append_id, min(version), max(version)"
            f" FROM {records} WHERE {_INDEXED} GROUP BY stream, append_id"
            " ON CONFLICT (stream, id) DO UPDATE SET first = EXCLUDED.first, last = EXCLUDED.last"
            " WHERE i.first <> EXCLUDED.first OR i.last <> EXCLUDED.last",
        )
        self.advance = (
            f"SELECT setval('{schema}.stream_numbers', max(stream)) FROM {streams}"
            f" HAVING max(stream) > {last}"
        )


def _numbers_sql(table: str) -> str:
    """Return the statement for a page of the stream numbers in a table, one index lookup each."""
    return (
        f"WITH RECURSIVE found AS ((SELECT stream FROM {table} WHERE stream > %s"
        " ORDER BY stream LIMIT 1) UNION ALL SELECT t.stream FROM found,"
        f" LATERAL (SELECT stream FROM {table} WHERE stream > found.stream"
        f" ORDER BY stream LIMIT 1) AS t) SELECT stream FROM found LIMIT {_PAGE_NUMBERS}"
    )
