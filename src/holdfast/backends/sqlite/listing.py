"""Read heads and list streams. A damaged entry is left out, so that it does not hide the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import apsw

from ...errors import CorruptRecord
from .. import clock
from ..interface import Head, HeadFields, HeadSummary, StreamKey
from . import sql
from .errors import foreign_row_error

END_OF_NUMBERS = 1 << 62
"""Versions and stream numbers stay below this. Larger ones in a file are damage."""
NO_RECORDS: Final = "it has no records"
_TEXT, _BYTES, _TIME = (str, type(None)), (bytes, type(None)), (float, type(None))
_TEXT_COLUMNS: Final = (0, 2, 4)
"""The columns of a listing that are texts: id, status and owner."""

logger = logging.getLogger("holdfast")


def find_append_id(
    cursor: apsw.Cursor, stream: StreamKey, append_id: bytes, path: str
) -> tuple[int, int] | None:
    """Return the first and last version of an append with an indexed id."""
    [(first, last)] = cursor.execute(sql.FIND_APPEND_ID, (append_id, *stream)).fetchall()
    if first is None:
        return None
    if not type(first) is type(last) is int:
        raise foreign_row_error(path)
    return first, last


def decode_head(stream: StreamKey, row: Sequence[Any], now: float, path: str) -> Head:
    """Decode a row of `sql.HEAD`; raise `CorruptRecord` if it is damaged."""
    version, digest, *entry = row
    if version is None:
        raise CorruptRecord(str(stream), what=NO_RECORDS)
    if not (type(version) is int and type(digest) is bytes):
        raise foreign_row_error(path)
    if not 0 < version < END_OF_NUMBERS:
        raise CorruptRecord(str(stream), version=version, what="its version is out of range")
    return Head(stream, entry[1], decode_fields(entry, path), now, version, digest)


def decode_fields(row: Sequence[Any], path: str) -> HeadFields:
    """Decode the fields in a row of a listing; raise `CorruptRecord` if a type is wrong."""
    id, incarnation, status, label, owner, due_at, expires_at = row[:7]  # noqa: A001
    if type(id) is not str or type(incarnation) is not bytes:
        raise foreign_row_error(path)
    if type(status) not in _TEXT or type(owner) not in _TEXT or type(label) not in _BYTES:
        raise foreign_row_error(path)
    if type(due_at) not in _TIME or type(expires_at) not in _TIME:
        raise foreign_row_error(path)
    return HeadFields(status, label, owner, due_at, expires_at)


class StreamLister:
    """Lists the streams of a tenant and kind, through one connection."""

    def __init__(self, connection: apsw.Connection, path: str, tenant: str, kind: str) -> None:
        self._connection, self._path = connection, path
        self._tenant, self._kind = tenant, kind

    def list_heads(self, status: str | None, after: str, limit: int) -> list[HeadSummary]:
        """Return a page of streams in the order of their ids."""
        statement, start = (sql.HEADS, ()) if status is None else (sql.HEADS_BY_STATUS, (status,))
        position: str | bytes = after
        while rows := self._read(statement, (*start, position, limit)):
            if heads := [head for row in rows if (head := self._decode(row)) is not None]:
                return heads
            position = _advance(position, rows[-1][0], self._path)
        return []

    def list_due(self, until: float, after: tuple[float, str], limit: int) -> list[HeadSummary]:
        """Return a page of streams in the order of their due times and ids."""
        position: tuple[float, str | bytes] = after
        while rows := self._read(sql.DUE, (until, *position, limit)):
            heads = []
            for row in rows:
                head = self._decode(row)
                # A caller continues after the due time of the last head. An entry of the index at
                # another place would be listed again and again.
                if head is not None and head.fields.due == row[7]:
                    heads.append(head)
            if heads:
                return heads
            *_, due = rows[-1]
            if type(due) is not float or not (due, _to_bytes(rows[-1][0], self._path)) > (
                position[0],
                _to_bytes(position[1], self._path),
            ):
                raise CorruptRecord(self._path, what="its index of due times is out of order")
            position = due, rows[-1][0]
        return []

    def _read(self, statement: sql.Listing, values: tuple[Any, ...]) -> list[Any]:
        values = (self._tenant, self._kind, *values)
        if bytes not in map(type, values):
            try:
                return self._connection.execute(statement.texts, values).fetchall()
            except UnicodeDecodeError:
                pass
        return self._connection.execute(statement.raw, values).fetchall()

    def _decode(self, row: Sequence[Any]) -> HeadSummary | None:
        """Return an entry; None if it is damaged."""
        try:
            texts = [
                row[column].decode() if type(row[column]) is bytes else row[column]
                for column in _TEXT_COLUMNS
            ]
            row = [texts[0], row[1], texts[1], row[3], texts[2], *row[5:7]]
            fields = decode_fields(row, self._path)
        except (UnicodeDecodeError, CorruptRecord):
            logger.error("left a damaged entry out of a listing of %s", self._path)
            return None
        return HeadSummary(
            StreamKey(self._tenant, self._kind, row[0]), row[1], fields, clock.time()
        )


def _advance(before: str | bytes, last: Any, path: str) -> str | bytes:
    """Return where to continue a listing."""
    if not _to_bytes(last, path) > _to_bytes(before, path):
        raise CorruptRecord(path, what="its index of streams is out of order")
    found: str | bytes = last
    return found


def _to_bytes(id: Any, path: str) -> bytes:
    if type(id) is str:
        return id.encode()
    if type(id) is not bytes:
        raise foreign_row_error(path)
    return id


def list_scopes(connection: apsw.Connection, path: str) -> list[tuple[str, str]]:
    """Return (tenant, kind) of all streams. Names that are not valid text are left out."""
    found, position = [], (b"", b"")
    while row := (
        connection.execute(sql.NEXT_KIND, position).fetchone()
        or connection.execute(sql.NEXT_TENANT, position[:1]).fetchone()
    ):
        scope = _to_bytes(row[0], path), _to_bytes(row[1], path)
        if not scope > position:
            raise CorruptRecord(path, what="its table of streams is out of order")
        position = scope
        try:
            found.append((scope[0].decode(), scope[1].decode()))
        except UnicodeDecodeError:
            logger.error("a stream in %s has a name that is not valid text", path)
    return found
