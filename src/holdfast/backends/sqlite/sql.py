"""The SQL of the SQLite backend, as named text, and its numbered migrations.

Records live in a rowid table and get ever larger rowids, so that every insert fills the last
page; (stream, version) is a small index beside it. Clustering records by stream instead
would split half-full pages wherever a stream grows, and a WITHOUT ROWID table would push
bodies to overflow pages.

A stream's version and hash are those of its newest record: an append that changes no field
writes nothing but records. What lists tell of a stream does not move with them. It lies in the order of names in
`streams`, and once more in the order of each index: a page of a list is read from one place, however many streams
there are, and in whatever order they were made.

`graves` holds the lives that were deleted and must never come back.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x486F6C64  # "Hold", so that `file` and other tools can tell

MIGRATIONS: Final = (
    # 1: the first schema
    """
    CREATE TABLE streams (
        tenant TEXT NOT NULL,
        kind TEXT NOT NULL,
        id TEXT NOT NULL,
        stream INTEGER NOT NULL,
        incarnation BLOB NOT NULL,
        status TEXT,
        label BLOB,
        owner TEXT,
        due_at REAL,
        expires_at REAL,
        due REAL,
        PRIMARY KEY (tenant, kind, id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX streams_by_status ON streams
        (tenant, kind, status, id, incarnation, label, owner, due_at, expires_at) WHERE status IS NOT NULL;
    CREATE INDEX streams_by_due ON streams
        (tenant, kind, due, id, incarnation, status, label, owner, due_at, expires_at) WHERE due IS NOT NULL;
    CREATE TABLE numbers (last INTEGER NOT NULL) STRICT;
    INSERT INTO numbers (last) VALUES (0);
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
    CREATE TABLE graves (
        tenant TEXT NOT NULL,
        kind TEXT NOT NULL,
        id TEXT NOT NULL,
        incarnation BLOB NOT NULL,
        PRIMARY KEY (tenant, kind, id, incarnation)
    ) STRICT, WITHOUT ROWID;
    """,
)

# BEGIN IMMEDIATE, not BEGIN: with a deferred lock two writers both read version 7, and the
# loser's UPDATE fails with "database is locked" at once, whatever the busy handler says.
BEGIN: Final = "BEGIN IMMEDIATE"

_KEY: Final = "tenant = ? AND kind = ? AND id = ?"

_STREAM: Final = f"(SELECT stream FROM streams WHERE {_KEY})"

PLACE: Final = f"""
SELECT streams.stream, version, hash, incarnation FROM streams LEFT JOIN records USING (stream)
WHERE {_KEY} ORDER BY version DESC LIMIT 1"""

SET_FIELDS: Final = f"""
UPDATE streams SET status = ?, label = ?, owner = ?, due_at = ?, expires_at = ?, due = ? WHERE {_KEY}"""

# Counted, not looked for among the records: of a damaged stream they may be gone, and nobody may get its number.
NEXT_NUMBER: Final = "UPDATE numbers SET last = last + 1 RETURNING last"

CREATE_STREAM: Final = """
INSERT INTO streams (tenant, kind, id, incarnation, stream, status, label, owner, due_at, expires_at, due)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11
WHERE NOT EXISTS (SELECT 1 FROM graves WHERE tenant = ?1 AND kind = ?2 AND id = ?3 AND incarnation = ?4)"""

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
SELECT id, incarnation, status, label, owner, due_at, expires_at FROM streams WHERE tenant = ? AND kind = ?"""

HEADS: Final = f"{_LISTED} AND id > ? ORDER BY id LIMIT ?"

HEADS_BY_STATUS: Final = f"{_LISTED} AND status = ? AND id > ? ORDER BY id LIMIT ?"

# Whoever pages goes on after the due time that a head has. A row that somebody has given another in `due`, by which it is found,
# would come again and again: it is left out.
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

DIG_GRAVE: Final = (
    "INSERT OR IGNORE INTO graves (tenant, kind, id, incarnation) VALUES (?, ?, ?, ?)"
)
