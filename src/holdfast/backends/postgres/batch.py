"""Many appends as one statement.

A transaction that a client holds open over several messages keeps its locks for as long as that client likes: one that is frozen
in the middle of it, or whose machine is gone, would block its streams for everybody. One statement begins when the server has all
of it, and commits by itself. Nor does it wait for a stream that somebody has locked: it leaves that one out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..interface import Append, HeadFields, StreamKey
from .arrays import Array, bytes_, flags, numbers, text, times
from .sql import StoreStatements

STATEMENT_BYTES: Final = 16 * 1024 * 1024
"""Bodies in one statement, about; one append may be larger. The server has all of them in memory at once."""


def size_of(append: Append) -> int:
    return sum(len(body) for _, body in append.records)


class StreamBatch:
    """Appends to one stream, each of which expects what the one before it leaves. All of them are stored, or none.

    `places` says where in the batch they are, `size` how many bytes their bodies have.
    """

    def __init__(self, append: Append, place: int) -> None:
        self.appends, self.places, self.size = [append], [place], size_of(append)
        self._ids = {append.id} if append.indexed else set()
        self._whole = False

    def take(self, append: Append, place: int) -> None:
        """Take in one more, if it follows. After one that does not, nothing is taken any more."""
        if self._whole or not self._is_followed_by(append):
            self._whole = True
            return
        self.appends.append(append)
        self.places.append(place)
        self.size += size_of(append)
        if append.indexed:
            self._ids.add(append.id)

    def _is_followed_by(self, append: Append) -> bool:
        last = self.appends[-1]
        return (
            append.expected == last.expected + len(last.records)
            and append.expected_hash == last.records[-1][0]
            and append.incarnation == last.incarnation
            and not (append.indexed and append.id in self._ids)
            and self.size + size_of(append) <= STATEMENT_BYTES
        )

    @property
    def fields(self) -> HeadFields | None:
        """What they make of the head's fields: the last who says something about them counts."""
        said = [append.fields for append in self.appends if append.fields is not None]
        return said[-1] if said else HeadFields() if self.appends[0].expected == 0 else None


def units(batch: Sequence[Append]) -> list[StreamBatch]:
    """One for each stream, in the order of their keys: two batches then never wait for each other in a circle.

    Some appends are in no unit: those that do not follow the one before them.
    """
    found: dict[StreamKey, StreamBatch] = {}
    for place, append in enumerate(batch):
        unit = found.get(append.stream)
        if unit is None:
            found[append.stream] = StreamBatch(append, place)
        else:
            unit.take(append, place)
    return [found[stream] for stream in sorted(found)]


def in_pieces(those: list[StreamBatch]) -> Iterator[list[StreamBatch]]:
    """As many units at once as one statement should hold."""
    piece: list[StreamBatch] = []
    size = 0
    for unit in those:
        if piece and size + unit.size > STATEMENT_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(unit)
        size += unit.size
    if piece:
        yield piece


def statement(
    sql: StoreStatements, those: Sequence[StreamBatch], commit: str
) -> tuple[str, list[Any]]:
    """The statement that stores units, and its values."""
    firsts = [unit.appends[0] for unit in those]
    lasts = [unit.appends[-1] for unit in those]
    new = [unit.fields for unit in those]
    fields = any(those_fields is not None for those_fields in new)
    values: list[Any] = [
        text(append.stream.tenant for append in firsts),
        text(append.stream.kind for append in firsts),
        text(append.stream.id for append in firsts),
        numbers(append.expected for append in firsts),
        bytes_(append.expected_hash for append in firsts),
        bytes_(append.incarnation for append in firsts),
        numbers(append.expected + len(append.records) for append in lasts),
        bytes_(append.records[-1][0] for append in lasts),
    ]
    if fields:
        values += _field_arrays(new)
    values.append(commit)
    ids = [
        (number, append)
        for number, unit in enumerate(those, 1)
        for append in unit.appends
        if append.indexed
    ]
    if ids:
        values += [
            numbers(number for number, _ in ids),
            bytes_(append.id for _, append in ids),
            numbers(append.expected + 1 for _, append in ids),
            numbers(append.expected + len(append.records) for _, append in ids),
        ]
    records = [
        (number, append.expected + place, append.id, record)
        for number, unit in enumerate(those, 1)
        for append in unit.appends
        for place, record in enumerate(append.records, 1)
    ]
    values += [
        numbers(record[0] for record in records),
        numbers(record[1] for record in records),
        bytes_(record[2] for record in records),
        bytes_(record[3][0] for record in records),
        bytes_(record[3][1] for record in records),
    ]
    return sql.append_many(fields=fields, indexed=bool(ids)), values


def _field_arrays(new: Sequence[HeadFields | None]) -> list[Array]:
    kept = [fields or HeadFields() for fields in new]
    return [
        flags(fields is None for fields in new),
        text(fields.status for fields in kept),
        bytes_(fields.label for fields in kept),
        text(fields.owner for fields in kept),
        times(fields.due_at for fields in kept),
        times(fields.expires_at for fields in kept),
        times(fields.due for fields in kept),
    ]
