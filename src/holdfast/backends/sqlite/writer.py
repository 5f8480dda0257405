"""The connection that appends: position cache, records to insert, and the append itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw

from ...errors import CorruptRecord, TooLarge
from ..interface import Append, AppendResult, Head, HeadFields, StreamKey, VersionMismatch
from . import sql
from .connection import MAX_VALUE_BYTES
from .errors import foreign_row_error

MAX_CACHED_STREAMS = 100_000
END_OF_NUMBERS = 1 << 62
"""Versions and stream numbers stay below this. Larger ones in a file are damage."""

_NO_RECORDS = "it has no records"
_TEXT, _BYTES, _TIME = (str, type(None)), (bytes, type(None)), (float, type(None))


class StreamRow(NamedTuple):
    """The number of a stream, under which its records are stored, and its position."""

    number: int
    version: int
    hash: bytes
    incarnation: bytes


class SQLiteWriter:
    """The writing connection. It caches stream positions until another connection writes."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.execute = self.cursor.execute
        self.rows: dict[StreamKey, StreamRow] = {}
        self.records: list[tuple[int, int, bytes, bytes, bytes]] = []
        self.data_version = -1
        self.wal: tuple[int, int] | None = None
        self.check_at = 0.0

    def begin(self) -> None:
        """Take the write lock. Clear the cache if another connection has written."""
        self.execute(sql.BEGIN)
        changed = self.connection.data_version() != self.data_version
        if changed or len(self.rows) > MAX_CACHED_STREAMS:
            self.clear()

    def commit(self) -> None:
        self.execute("COMMIT")
        self.data_version = self.connection.data_version()

    def clear(self) -> None:
        """Forget cached positions and records that are not inserted yet."""
        self.records, self.rows = [], {}

    def flush(self) -> None:
        """Insert the records collected so far, with one statement for the whole batch."""
        if self.records:
            try:
                self.cursor.executemany(sql.INSERT_RECORD, self.records)
            except apsw.TooBigError as error:
                raise TooLarge(
                    f"a record in SQLite must have at most {MAX_VALUE_BYTES} bytes; nothing was "
                    "written. Attach large values as files"
                ) from error
            self.records = []

    def append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        """Store one member of a batch, inside the transaction."""
        stream, version, append_id = append.stream, append.expected, append.id
        if append.indexed:
            known = self.execute(sql.FIND_APPEND_ID, (append_id, *stream)).fetchone()
            if known:
                if not type(known[0]) is type(known[1]) is int:
                    raise foreign_row_error(self.connection.filename)
                return AppendResult(known[0], known[1], True, now)
        row = self.rows.get(stream)
        if row is not None and row[1:] == (version, append.expected_hash, append.incarnation):
            number = row.number
        else:
            answer = self._locate(append, now)
            if not isinstance(answer, int):
                return answer
            number = answer
        if append.fields is not None and version:  # a new stream has them already
            self.execute(sql.SET_FIELDS, (*_fields_to_columns(append.fields), *stream))
        digest = b""
        for digest, body in append.records:
            version += 1
            self.records.append((number, version, append_id, digest, body))
        self.rows[stream] = StreamRow(number, version, digest, append.incarnation)
        if append.indexed:
            self.execute(sql.INSERT_APPEND_ID, (number, append_id, append.expected + 1, version))
        return AppendResult(append.expected + 1, version, False, now)

    def _locate(self, append: Append, now: float) -> AppendResult | VersionMismatch | int:
        """Look up a stream that is not cached at the expected position.

        Return its number if the append can be stored, otherwise the answer to the append.
        """
        if append.stream in self.rows:  # its newest records may not be inserted yet
            self.flush()
        row = self.read_row(append.stream)
        if row is None:
            number = None if append.expected else self._create(append)
            return VersionMismatch(None) if number is None else number
        if row[1:] == (append.expected, append.expected_hash, append.incarnation):
            return row.number
        if row.incarnation == append.incarnation:
            last = append.expected
            for stored in self.execute(sql.APPEND_IDS_AFTER, (row.number, append.expected)):
                if stored != (last + 1, append.id):
                    break
                last += 1
            if last > append.expected:
                return AppendResult(append.expected + 1, last, True, now)
        [head] = self.execute(sql.HEAD, append.stream).fetchall()
        return VersionMismatch(decode_head(append.stream, head, now, self.connection.filename))

    def read_row(self, stream: StreamKey) -> StreamRow | None:
        """Read the number and position of a stream; None if it does not exist."""
        found = self.execute(sql.POSITION, stream).fetchone()
        if found is None:
            return None
        number, version, digest, incarnation = found
        if version is None:
            raise CorruptRecord(str(stream), what=_NO_RECORDS)
        if not (
            type(number) is type(version) is int and type(digest) is type(incarnation) is bytes
        ):
            raise foreign_row_error(self.connection.filename)
        return StreamRow(number, version, digest, incarnation)

    def _create(self, append: Append) -> int | None:
        """Create a stream and return its number; None if its incarnation was deleted before."""
        [[number]] = self.execute(sql.NEXT_NUMBER).fetchall() or [(None,)]
        if type(number) is not int or not 0 < number < END_OF_NUMBERS:
            raise foreign_row_error(self.connection.filename)
        columns = _fields_to_columns(append.fields or HeadFields())
        self.execute(sql.CREATE_STREAM, (*append.stream, append.incarnation, number, *columns))
        return number if self.connection.changes() else None

    def delete(self, stream: StreamKey, expected: Head) -> bool:
        """Delete a stream that is at the expected position, inside the transaction."""
        self.rows.pop(stream, None)
        row = self.read_row(stream)
        if row is None or row[1:] != expected.position:
            return False
        self.execute(sql.DELETE_RECORDS, (row.number,))
        self.execute(sql.DELETE_APPEND_IDS, (row.number,))
        self.execute(sql.DELETE_STREAM, stream)
        self.execute(sql.INSERT_TOMBSTONE, (*stream, expected.incarnation))
        return True


def _fields_to_columns(fields: HeadFields) -> tuple[Any, ...]:
    return fields.status, fields.label, fields.owner, fields.due_at, fields.expires_at, fields.due


def decode_head(stream: StreamKey, row: Sequence[Any], now: float, path: str) -> Head:
    """Decode a row of `sql.HEAD`; raise `CorruptRecord` if it is damaged."""
    version, digest, *entry = row
    if version is None:
        raise CorruptRecord(str(stream), what=_NO_RECORDS)
    if not (type(version) is int and type(digest) is bytes):
        raise foreign_row_error(path)
    if not 0 < version < END_OF_NUMBERS:
        raise CorruptRecord(str(stream), version=version, what="its version is out of range")
    return Head(stream, entry[1], decode_fields(entry, path), now, version, digest)


def decode_fields(row: Sequence[Any], path: str) -> HeadFields:
    """Decode the fields in a row of a listing; raise `CorruptRecord` if a type is wrong."""
    id, incarnation, status, label, owner, due_at, expires_at = row  # noqa: A001
    if type(id) is not str or type(incarnation) is not bytes:
        raise foreign_row_error(path)
    if type(status) not in _TEXT or type(owner) not in _TEXT or type(label) not in _BYTES:
        raise foreign_row_error(path)
    if type(due_at) not in _TIME or type(expires_at) not in _TIME:
        raise foreign_row_error(path)
    return HeadFields(status, label, owner, due_at, expires_at)
