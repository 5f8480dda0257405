"""The SQL of an append, alone and in a batch, with its values.

An append is one statement. It moves the head if the head is still at the expected position, and
inserts the records. Alone it is its own transaction: one round trip and one disk sync, and no
client keeps a lock between two messages. No statement depends on session state, so a pooler may
run each one on another connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..interface import Append, HeadFields
from .arrays import BinaryArray, bigint_array, bool_array, bytea_array, float_array, text_array
from .query_sql import DURABLE, KEY, NOW, POSITION
from .schema import quote_identifier

FIELDS: Final = ("status", "label", "owner", "due_at", "expires_at", "due")
_FIELD_NAMES: Final = ", ".join(FIELDS)


class AppendStatements:
    """Builds the statements for one schema. `commit` is the value for synchronous_commit."""

    def __init__(self, schema: str, *, lock_seconds: float, commit: str) -> None:
        self._name, self._schema, self._commit = schema, quote_identifier(schema), commit
        self._single: dict[tuple[bool, bool, bool, bool], str] = {}
        self._batch: dict[tuple[bool, bool], str] = {}
        # Always true. Evaluated before a row is locked, it bounds the wait for that lock.
        self._bounded = f"set_config('lock_timeout', '{int(lock_seconds * 1000)}', true) <> ''"

    # -- one append --------------------------------------------------------------------------------

    def build_append(self, append: Append) -> tuple[str, list[Any]]:
        """Return the statement that stores one append, and its values.

        It returns one row with the server's time if it stored the append, and no row otherwise.
        """
        version, records = append.expected, append.records
        last, create, many = version + len(records), version == 0, len(records) > 1
        values: list[Any] = [last, records[-1][0]]
        if create or append.fields is not None:
            values += encode_columns(append.fields or HeadFields())
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
                bytea_array(digest for digest, _ in records),
                bytea_array(body for _, body in records),
            )
        else:
            values += last, append.id, *records[0]
        values += append.stream
        variant = create, append.fields is not None, append.indexed, many
        if variant not in self._single:
            self._single[variant] = self._append_text(*variant)
        return self._single[variant], values

    def _append_text(self, create: bool, fields: bool, indexed: bool, many: bool) -> str:
        schema = self._schema
        if create:
            moved = (
                f"INSERT INTO {schema}.streams AS old"
                f" (version, hash, {_FIELD_NAMES}, tenant, kind, id, incarnation, alive)"
                f" VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, {self._bounded})"
                " ON CONFLICT (tenant, kind, id) DO UPDATE SET alive = true,"
                " version = EXCLUDED.version, hash = EXCLUDED.hash,"
                " incarnation = EXCLUDED.incarnation, "
                + ", ".join(f"{name} = EXCLUDED.{name}" for name in FIELDS)
                + " WHERE NOT old.alive"
                " AND NOT EXCLUDED.incarnation = ANY (old.former_incarnations)"
            )
        else:
            changed = "".join(f", {name} = %s" for name in FIELDS) if fields else ""
            unknown_id = ""
            if indexed:
                unknown_id = (
                    f" AND NOT EXISTS (SELECT FROM {schema}.append_ids known"
                    " WHERE known.stream = streams.stream AND known.id = %s)"
                )
            moved = (
                f"UPDATE {schema}.streams SET version = %s, hash = %s{changed}"
                f" WHERE {POSITION} AND alive{unknown_id} AND {self._bounded}"
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
            f"WITH moved AS ({moved} RETURNING stream, {DURABLE}){noted},"
            f" stored AS (INSERT INTO {schema}.records {rows})"
            f" SELECT {NOW}, {self._notify()} FROM moved"
        )

    def _notify(self, source: str = "") -> str:
        """Count, and thereby notify, the followers of a stream.

        Most streams have none. Then nothing is sent, because NOTIFY serializes commits. `source`
        is the prefix of the columns with the key of the stream; without it, the key is a value.
        """
        key = f"tenant = {source}tenant AND kind = {source}kind AND id = {source}id"
        return (
            f"(SELECT count(pg_notify('{self._name}', concat_ws(E'\\x1f', tenant, kind, id)))"
            f" FROM {self._schema}.followers WHERE {key if source else KEY} AND until > now())"
        )

    # -- a batch -----------------------------------------------------------------------------------

    def build_batch(self, groups: Sequence[Sequence[Append]]) -> tuple[str, list[Any]]:
        """Return the statement that stores groups of appends, each group to a different stream.

        Each append of a group expects the position that the one before it leaves. The statement
        returns a row (number, time) for each group that it stored, numbered from 1. It skips
        groups whose stream has moved. For a stream that it cannot see, because it is locked or
        does not exist, the row has no time.
        """
        firsts = [group[0] for group in groups]
        lasts = [group[-1] for group in groups]
        new_fields = [_last_fields(group) for group in groups]
        has_fields = any(fields is not None for fields in new_fields)
        values: list[Any] = [
            text_array(append.stream.tenant for append in firsts),
            text_array(append.stream.kind for append in firsts),
            text_array(append.stream.id for append in firsts),
            bigint_array(append.expected for append in firsts),
            bytea_array(append.expected_hash for append in firsts),
            bytea_array(append.incarnation for append in firsts),
            bigint_array(append.expected + len(append.records) for append in lasts),
            bytea_array(append.records[-1][0] for append in lasts),
        ]
        if has_fields:
            values += _field_arrays(new_fields)
        values.append(self._commit)
        members = [(number, append) for number, group in enumerate(groups, 1) for append in group]
        ids = [(number, append) for number, append in members if append.indexed]
        if ids:
            values += [
                bigint_array(number for number, _ in ids),
                bytea_array(append.id for _, append in ids),
                bigint_array(append.expected + 1 for _, append in ids),
                bigint_array(append.expected + len(append.records) for _, append in ids),
            ]
        records = [
            (number, version, append.id, digest, body)
            for number, append in members
            for version, (digest, body) in enumerate(append.records, append.expected + 1)
        ]
        values += [
            bigint_array(record[0] for record in records),
            bigint_array(record[1] for record in records),
            bytea_array(record[2] for record in records),
            bytea_array(record[3] for record in records),
            bytea_array(record[4] for record in records),
        ]
        variant = has_fields, bool(ids)
        if variant not in self._batch:
            self._batch[variant] = self._batch_text(*variant)
        return self._batch[variant], values

    def _batch_text(self, fields: bool, indexed: bool) -> str:
        schema = self._schema
        arrays, columns, kept, changed, stream, may_be_new = "", "", "", "", "there", "false"
        if fields:
            arrays = (
                ", %s::boolean[], %s::text[], %s::bytea[], %s::text[],"
                " %s::float8[], %s::float8[], %s::float8[]"
            )
            columns = f", keep, {_FIELD_NAMES}"
            kept = "".join(
                f", CASE WHEN g.keep THEN s.{name} ELSE g.{name} END AS {name}" for name in FIELDS
            )
            changed = ", alive = true, incarnation = EXCLUDED.incarnation" + "".join(
                f", {name} = EXCLUDED.{name}" for name in FIELDS
            )
            stream = f"coalesce(there, nextval('{schema}.stream_numbers'))"
            may_be_new = (
                "g.expected = 0 AND (s.stream IS NULL"
                " OR NOT s.alive AND g.incarnation <> ALL (s.former_incarnations))"
            )
        listed = "tenant, kind, id, version, hash, incarnation"
        if fields:
            listed += f", {_FIELD_NAMES}"
        given = f"expected, expected_hash, incarnation, version, hash{columns}, n"
        chosen, ids, noted = "placed", "", ""
        if indexed:
            chosen = "unknown"
            ids = (
                ", ids AS MATERIALIZED (SELECT * FROM"
                " unnest(%s::bigint[], %s::bytea[], %s::bigint[], %s::bigint[])"
                " AS i(n, id, first, last)),"
                " unknown AS MATERIALIZED (SELECT * FROM placed WHERE n NOT IN"
                " (SELECT i.n FROM ids i JOIN placed p ON p.n = i.n, LATERAL (SELECT 1"
                f" FROM {schema}.append_ids known"
                " WHERE known.stream = p.stream AND known.id = i.id LIMIT 1) AS known))"
            )
            noted = (
                f", noted AS (INSERT INTO {schema}.append_ids"
                " SELECT p.stream, i.id, i.first, i.last FROM ids i JOIN unknown p ON p.n = i.n)"
            )
        return (
            # The settings are set before the first row is locked. LATERAL and LIMIT look up one key
            # after the other: the planner cannot choose to read whole tables, and rows are locked
            # in the given order.
            'WITH given AS MATERIALIZED (SELECT tenant COLLATE "C" AS tenant,'
            f' kind COLLATE "C" AS kind, id COLLATE "C" AS id, {given}'
            " FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::bytea[],"
            f" %s::bytea[], %s::bigint[], %s::bytea[]{arrays}) WITH ORDINALITY"
            f" AS g(tenant, kind, id, {given})"
            f" WHERE n > 1 OR ({self._bounded} AND {DURABLE} <> '')),"
            " seen AS MATERIALIZED (SELECT g.n, g.expected, s.stream AS there,"
            f" g.tenant, g.kind, g.id, g.version, g.hash, g.incarnation{kept},"
            " s.alive AND s.version = g.expected AND s.hash = g.expected_hash"
            f" AND s.incarnation = g.incarnation OR {may_be_new} AS fits"
            f" FROM given g LEFT JOIN LATERAL (SELECT * FROM {schema}.streams"
            " WHERE tenant = g.tenant AND kind = g.kind AND id = g.id LIMIT 1"
            " FOR NO KEY UPDATE SKIP LOCKED) AS s ON true),"
            f" placed AS MATERIALIZED (SELECT n, {stream} AS stream, {listed}"
            f" FROM seen WHERE fits){ids},"
            # Not UPDATE, whose join the planner may choose. A stream that was created after the
            # statement began has another number.
            f" moved AS (INSERT INTO {schema}.streams AS old (stream, {listed}, alive)"
            f" SELECT stream, {listed}, true FROM {chosen}"
            " ON CONFLICT (tenant, kind, id) DO UPDATE SET version = EXCLUDED.version,"
            f" hash = EXCLUDED.hash{changed} WHERE old.stream = EXCLUDED.stream"
            f" RETURNING 1){noted},"
            f" stored AS (INSERT INTO {schema}.records"
            " SELECT p.stream, r.version, r.append_id, r.hash, r.body FROM"
            " unnest(%s::bigint[], %s::bigint[], %s::bytea[], %s::bytea[], %s::bytea[])"
            f" AS r(n, version, append_id, hash, body) JOIN {chosen} p ON p.n = r.n)"
            # Divide by zero on purpose if one stream did not move after all: nothing is stored.
            f" SELECT n, {NOW}, 1 / ((SELECT count(*) FROM moved)"
            f" = (SELECT count(*) FROM {chosen}))::integer, {self._notify('p.')} FROM {chosen} p"
            " UNION ALL SELECT n, NULL, NULL, NULL FROM seen WHERE there IS NULL AND expected > 0"
        )


def encode_columns(fields: HeadFields) -> tuple[Any, ...]:
    """Return the values of the columns `FIELDS`."""
    return fields.status, fields.label, fields.owner, fields.due_at, fields.expires_at, fields.due


def _last_fields(group: Sequence[Append]) -> HeadFields | None:
    """Return the fields that the head has after these appends; None if they don't change."""
    given = [append.fields for append in group if append.fields is not None]
    return given[-1] if given else HeadFields() if group[0].expected == 0 else None


def _field_arrays(new_fields: Sequence[HeadFields | None]) -> list[BinaryArray]:
    filled = [fields or HeadFields() for fields in new_fields]
    return [
        bool_array(fields is None for fields in new_fields),
        text_array(fields.status for fields in filled),
        bytea_array(fields.label for fields in filled),
        text_array(fields.owner for fields in filled),
        float_array(fields.due_at for fields in filled),
        float_array(fields.expires_at for fields in filled),
        float_array(fields.due for fields in filled),
    ]
