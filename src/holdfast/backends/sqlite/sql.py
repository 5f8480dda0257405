"""The SQL statements of the SQLite backend. The tables are in `schema.py`.

An append inserts its records with `INSERT_RECORD`. It touches `streams` only if it creates the
stream (`CREATE_STREAM`) or replaces fields of the head (`SET_FIELDS`).
"""

from __future__ import annotations

from typing import Final

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

CREATE_STREAM: Final = """
INSERT INTO streams
  (tenant, kind, id, incarnation, stream, status, label, owner, due_at, expires_at, due)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 WHERE NOT EXISTS
  (SELECT 1 FROM graves WHERE tenant = ?1 AND kind = ?2 AND id = ?3 AND incarnation = ?4)"""

INSERT_RECORD: Final = (
    "INSERT INTO records (stream, version, append_id, hash, body) VALUES (?, ?, ?, ?, ?)"
)

INSERT_APPEND_ID: Final = "INSERT INTO append_ids (stream, id, first, last) VALUES (?, ?, ?, ?)"

FIND_APPEND_ID: Final = f"SELECT first, last FROM append_ids WHERE id = ? AND stream = {_STREAM}"

APPEND_IDS_AFTER: Final = (
    "SELECT version, append_id FROM records WHERE stream = ? AND version > ? ORDER BY version"
)

HEAD: Final = f"""
SELECT version, hash, id, incarnation, status, label, owner, due_at, expires_at
FROM streams LEFT JOIN records USING (stream) WHERE {_KEY} ORDER BY version DESC LIMIT 1"""

_LISTED: Final = """
SELECT id, incarnation, status, label, owner, due_at, expires_at FROM streams
WHERE tenant = ? AND kind = ?"""

HEADS: Final = f"{_LISTED} AND id > ? ORDER BY id LIMIT ?"

HEADS_BY_STATUS: Final = f"{_LISTED} AND status = ? AND id > ? ORDER BY id LIMIT ?"

# A caller continues after the due time of the last head. A row whose `due` column was changed to
# another value would be listed again and again, so it is left out.
DUE: Final = f"""{_LISTED} AND due IS NOT NULL AND due <= ? AND (due, id) > (?, ?)
AND due = min(ifnull(due_at, expires_at), ifnull(expires_at, due_at)) ORDER BY due, id LIMIT ?"""

READ: Final = f"""
SELECT version, append_id, hash, body FROM records WHERE stream = {_STREAM} AND version > ?
ORDER BY version LIMIT ?"""

READ_REVERSE: Final = f"""
SELECT version, append_id, hash, body FROM records WHERE stream = {_STREAM} AND version < ?
ORDER BY version DESC LIMIT ?"""

DELETE_RECORDS: Final = "DELETE FROM records WHERE stream = ?"

DELETE_APPEND_IDS: Final = "DELETE FROM append_ids WHERE stream = ?"

DELETE_STREAM: Final = f"DELETE FROM streams WHERE {_KEY}"

INSERT_TOMBSTONE: Final = (
    "INSERT OR IGNORE INTO graves (tenant, kind, id, incarnation) VALUES (?, ?, ?, ?)"
)
