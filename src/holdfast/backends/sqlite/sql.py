"""The SQL statements of the SQLite backend. The tables are in `schema.py`.

An append inserts its records with `INSERT_RECORD`. It touches `streams` only if it creates the
stream (`CREATE_STREAM`) or replaces fields of the head (`SET_FIELDS`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

# BEGIN IMMEDIATE, not BEGIN: with a deferred lock, two writers could both read version 7, and the
# second one's write would fail with "database is locked" without waiting.
BEGIN: Final = "BEGIN IMMEDIATE"

_KEY: Final = "tenant = ? AND kind = ? AND id = ?"

_STREAM: Final = f"(SELECT stream FROM streams WHERE {_KEY})"

POSITION: Final = f"""
SELECT streams.stream, version, hash, incarnation FROM streams LEFT JOIN records USING (stream)
WHERE {_KEY} ORDER BY version DESC LIMIT 1"""

SET_FIELDS: Final = f"""
UPDATE streams SET status = ?, label = ?, owner = ?, due_at = ?, expires_at = ?, due = ?
WHERE {_KEY}"""

# Counted instead of derived from records: those of a damaged stream may be gone, and its number
# must not be used again.
NEXT_NUMBER: Final = "UPDATE numbers SET last = last + 1 RETURNING last"

FIND_TOMBSTONE: Final = f"SELECT 1 FROM tombstones WHERE {_KEY} AND incarnation = ?"

CREATE_STREAM: Final = """
INSERT INTO streams
  (tenant, kind, id, incarnation, stream, status, label, owner, due_at, expires_at, due)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

INSERT_RECORD: Final = (
    "INSERT INTO records (stream, version, append_id, hash, body) VALUES (?, ?, ?, ?, ?)"
)

# The last condition is that of the index, and true for the ids for which `is_indexed` is.
FIND_APPEND_ID: Final = f"""
SELECT min(version), max(version) FROM records
WHERE append_id = ? AND stream = {_STREAM} AND append_id >= x'80'"""

APPEND_IDS_AFTER: Final = (
    "SELECT version, append_id FROM records WHERE stream = ? AND version > ? ORDER BY version"
)

HEAD: Final = f"""
SELECT version, hash, id, incarnation, status, label, owner, due_at, expires_at
FROM streams LEFT JOIN records USING (stream) WHERE {_KEY} ORDER BY version DESC LIMIT 1"""

_LISTED: Final = "id, incarnation, status, label, owner, due_at, expires_at"

# The same, with texts as bytes: a text that is not valid UTF-8 must not end a listing.
_LISTED_RAW: Final = """
CAST(id AS BLOB), incarnation, CAST(status AS BLOB), label, CAST(owner AS BLOB), due_at,
expires_at"""

_RAW: Final = "CAST(? AS TEXT)"

_HEADS: Final = """
SELECT {} FROM streams WHERE tenant = ? AND kind = ? AND id > {} ORDER BY id LIMIT ?"""

_HEADS_BY_STATUS: Final = """
SELECT {} FROM streams WHERE tenant = ? AND kind = ? AND status = ? AND id > {}
ORDER BY id LIMIT ?"""

_DUE: Final = """
SELECT {}, due FROM streams
WHERE tenant = ? AND kind = ? AND due IS NOT NULL AND due <= ? AND (due, id) > (?, {})
ORDER BY due, id LIMIT ?"""


class Listing(NamedTuple):
    """The two statements of a listing: with texts, and with texts as bytes."""

    texts: str
    raw: str


HEADS: Final = Listing(_HEADS.format(_LISTED, "?"), _HEADS.format(_LISTED_RAW, _RAW))
HEADS_BY_STATUS: Final = Listing(
    _HEADS_BY_STATUS.format(_LISTED, "?"), _HEADS_BY_STATUS.format(_LISTED_RAW, _RAW)
)
DUE: Final = Listing(_DUE.format(_LISTED, "?"), _DUE.format(_LISTED_RAW, _RAW))

_SCOPE: Final = "SELECT CAST(tenant AS BLOB), CAST(kind AS BLOB) FROM streams WHERE"

NEXT_TENANT: Final = f"{_SCOPE} tenant > {_RAW} ORDER BY tenant, kind LIMIT 1"

NEXT_KIND: Final = f"{_SCOPE} tenant = {_RAW} AND kind > {_RAW} ORDER BY kind LIMIT 1"

READ: Final = f"""
SELECT version, append_id, hash, body FROM records WHERE stream = {_STREAM} AND version > ?
ORDER BY version LIMIT ?"""

READ_REVERSE: Final = f"""
SELECT version, append_id, hash, body FROM records WHERE stream = {_STREAM} AND version < ?
ORDER BY version DESC LIMIT ?"""

NUMBER: Final = f"""
SELECT stream, incarnation, (SELECT count(*) FROM streams others WHERE others.stream = mine.stream)
FROM streams mine WHERE {_KEY}"""

DELETE_RECORDS: Final = "DELETE FROM records WHERE stream = ?"

DELETE_STREAM: Final = f"DELETE FROM streams WHERE {_KEY}"

INSERT_TOMBSTONE: Final = (
    "INSERT INTO tombstones (tenant, kind, id, incarnation) VALUES (?, ?, ?, ?)"
)

READ_TOMBSTONES: Final = "SELECT tombstones FROM numbers"

SET_TOMBSTONES: Final = "UPDATE numbers SET tombstones = ?"
