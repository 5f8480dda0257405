"""The SQL of the SQLite backend, as named text, and its numbered migrations.

Records live in a rowid table and get ever larger rowids, so that every insert fills the last
page; (stream, version) is a small index beside it. Clustering records by stream instead
would split half-full pages wherever a stream grows, and a WITHOUT ROWID table would push
bodies to overflow pages.

A stream's version and hash are those of its newest record: an append that changes no field
writes nothing but records. A buried row of `streams` is a tombstone of a deleted stream, and
`former_lives` holds the incarnations that must never come back.
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
        incarnation BLOB NOT NULL,
        buried INTEGER NOT NULL DEFAULT 0,
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
    CREATE TABLE former_lives (
        stream INTEGER NOT NULL,
        incarnation BLOB NOT NULL,
        PRIMARY KEY (stream, incarnation)
    ) STRICT, WITHOUT ROWID;
    """,
)

# BEGIN IMMEDIATE, not BEGIN: with a deferred lock two writers both read version 7, and the
# loser's UPDATE fails with "database is locked" at once, whatever the busy handler says.
BEGIN: Final = "BEGIN IMMEDIATE"

NEWEST: Final = """
SELECT records.version, records.hash, streams.incarnation FROM streams JOIN records USING (stream)
WHERE stream = ? ORDER BY records.version DESC LIMIT 1"""

PLACES: Final = """
SELECT stream, (SELECT max(version) FROM records WHERE records.stream = streams.stream), incarnation
FROM json_each(?) JOIN streams ON stream = value"""

SET_FIELDS: Final = """
UPDATE streams SET status = ?, label = ?, owner = ?, due_at = ?, expires_at = ?, due = ? WHERE stream = ?"""

CREATE_STREAM: Final = """
INSERT INTO streams (incarnation, tenant, kind, id) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, kind, id) DO UPDATE SET incarnation = excluded.incarnation, buried = 0
RETURNING stream"""

INSERT_RECORD: Final = "INSERT INTO records (stream, version, append_id, hash, body) VALUES (?, ?, ?, ?, ?)"

INSERT_APPEND_ID: Final = "INSERT INTO append_ids (stream, id, first, last) VALUES (?, ?, ?, ?)"

FIND_APPEND_ID: Final = """
SELECT first, last FROM append_ids
WHERE id = ? AND stream = (SELECT stream FROM streams WHERE tenant = ? AND kind = ? AND id = ?)"""

APPEND_IDS_AFTER: Final = "SELECT version, append_id FROM records WHERE stream = ? AND version > ? ORDER BY version"

FIND_FORMER_LIFE: Final = "SELECT 1 FROM former_lives WHERE stream = ? AND incarnation = ?"

INSERT_FORMER_LIFE: Final = "INSERT INTO former_lives (stream, incarnation) VALUES (?, ?)"

ROOT: Final = "SELECT stream, incarnation, buried FROM streams WHERE tenant = ? AND kind = ? AND id = ?"

_HEADS: Final = """
SELECT streams.id, records.version, records.hash, incarnation, status, label, owner, due_at, expires_at
FROM streams JOIN records ON records.rowid =
    (SELECT rowid FROM records WHERE records.stream = streams.stream ORDER BY version DESC LIMIT 1)
WHERE tenant = ? AND kind = ?"""

HEAD: Final = f"{_HEADS} AND id = ?"

HEADS: Final = f"{_HEADS} AND id > ? ORDER BY id LIMIT ?"

HEADS_BY_STATUS: Final = f"{_HEADS} AND status = ? AND id > ? ORDER BY id LIMIT ?"

# Whoever pages goes on after the due time that a head has. A row that somebody has given another in `due`, by which it is found,
# would come again and again: it is left out.
DUE: Final = f"""{_HEADS} AND due IS NOT NULL AND due <= ? AND (due, id) > (?, ?)
AND due = min(ifnull(due_at, expires_at), ifnull(expires_at, due_at)) ORDER BY due, id LIMIT ?"""

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
UPDATE streams SET buried = 1, status = NULL, label = NULL, owner = NULL, due_at = NULL, expires_at = NULL, due = NULL
WHERE stream = ?"""
