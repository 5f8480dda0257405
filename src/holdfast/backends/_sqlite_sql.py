"""The SQL of the SQLite backend, as named text, and its numbered migrations.

Records live in a rowid table and get ever larger rowids, so that every insert fills the last
page; (stream, version) is a small index beside it. Clustering records by stream instead
would split half-full pages wherever a stream grows, and a WITHOUT ROWID table would push
bodies to overflow pages.

A row of `streams` with version 0 is a tombstone: the stream was deleted, `incarnation` is its last
life. Rows of `streams` are never removed, so a row number once learned stays right.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x486F6C64  # "Hold", so that `file` and other tools can tell

MIGRATIONS: Final = (
    # 1: the first schema
    """
    CREATE TABLE streams (
        stream INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        kind TEXT NOT NULL,
        id TEXT NOT NULL,
        version INTEGER NOT NULL,
        hash BLOB NOT NULL,
        incarnation BLOB NOT NULL,
        status TEXT,
        label BLOB,
        owner TEXT,
        due_at REAL,
        expires_at REAL,
        due REAL
    ) STRICT;
    CREATE UNIQUE INDEX streams_by_key ON streams (tenant, kind, id);
    CREATE INDEX streams_by_status ON streams (tenant, kind, status, id) WHERE status IS NOT NULL;
    CREATE INDEX streams_by_due ON streams (tenant, kind, due, id) WHERE due IS NOT NULL;
    CREATE TABLE records (
        stream INTEGER NOT NULL,
        version INTEGER NOT NULL,
        append_id BLOB NOT NULL,
        hash BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX records_by_place ON records (stream, version);
    CREATE TABLE append_ids (
        stream INTEGER NOT NULL,
        id BLOB NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        PRIMARY KEY (stream, id)
    ) STRICT, WITHOUT ROWID;
    """,
)

# BEGIN IMMEDIATE, not BEGIN: with a deferred lock two writers both read version 7, and the
# loser's UPDATE fails with "database is locked" at once, whatever the busy handler says.
BEGIN: Final = "BEGIN IMMEDIATE"

ADVANCE: Final = """
UPDATE streams SET version = ?, hash = ?
WHERE stream = ? AND version = ? AND hash = ? AND incarnation = ?"""

ADVANCE_WITH_FIELDS: Final = """
UPDATE streams SET version = ?, hash = ?, status = ?, label = ?, owner = ?, due_at = ?, expires_at = ?, due = ?
WHERE stream = ? AND version = ? AND hash = ? AND incarnation = ?"""

CREATE_STREAM: Final = """
INSERT INTO streams (
    version, hash, status, label, owner, due_at, expires_at, due, incarnation, tenant, kind, id
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, kind, id) DO UPDATE SET
    version = excluded.version, hash = excluded.hash, status = excluded.status, label = excluded.label,
    owner = excluded.owner, due_at = excluded.due_at, expires_at = excluded.expires_at, due = excluded.due,
    incarnation = excluded.incarnation
RETURNING stream"""

INSERT_RECORD: Final = "INSERT INTO records (stream, version, append_id, hash, body) VALUES (?, ?, ?, ?, ?)"

INSERT_APPEND_ID: Final = "INSERT INTO append_ids (stream, id, first, last) VALUES (?, ?, ?, ?)"

FIND_APPEND_ID: Final = """
SELECT first, last FROM append_ids
WHERE id = ? AND stream = (SELECT stream FROM streams WHERE tenant = ? AND kind = ? AND id = ? AND version > 0)"""

APPEND_ID_AT: Final = "SELECT append_id FROM records WHERE stream = ? AND version = ?"

ROOT: Final = "SELECT stream, version, hash, incarnation FROM streams WHERE tenant = ? AND kind = ? AND id = ?"

_HEAD_COLUMNS: Final = "id, version, hash, incarnation, status, label, owner, due_at, expires_at"

HEAD: Final = f"SELECT {_HEAD_COLUMNS} FROM streams WHERE tenant = ? AND kind = ? AND id = ? AND version > 0"

HEADS: Final = f"""
SELECT {_HEAD_COLUMNS} FROM streams
WHERE tenant = ? AND kind = ? AND id > ? AND version > 0 ORDER BY id LIMIT ?"""

HEADS_BY_STATUS: Final = f"""
SELECT {_HEAD_COLUMNS} FROM streams
WHERE tenant = ? AND kind = ? AND status = ? AND id > ? AND version > 0 ORDER BY id LIMIT ?"""

DUE: Final = f"""
SELECT {_HEAD_COLUMNS} FROM streams
WHERE tenant = ? AND kind = ? AND due IS NOT NULL AND due <= ? AND (due, id) > (?, ?) ORDER BY due, id LIMIT ?"""

READ: Final = """
SELECT version, append_id, hash, body FROM records
WHERE stream = (SELECT stream FROM streams WHERE tenant = ? AND kind = ? AND id = ?) AND version > ?
ORDER BY version LIMIT ?"""

READ_REVERSE: Final = """
SELECT version, append_id, hash, body FROM records
WHERE stream = (SELECT stream FROM streams WHERE tenant = ? AND kind = ? AND id = ?) AND version < ?
ORDER BY version DESC LIMIT ?"""

DELETE_RECORDS: Final = "DELETE FROM records WHERE stream = ? AND version <= ?"

DELETE_APPEND_IDS: Final = "DELETE FROM append_ids WHERE stream = ?"

BURY: Final = """
UPDATE streams SET version = 0, hash = x'', status = NULL, label = NULL, owner = NULL,
    due_at = NULL, expires_at = NULL, due = NULL
WHERE stream = ?"""
