"""A reference implementation of the contract: streams as plain lists, searched from end to end.

The state machine in `model.py` compares a backend with it. Read it together with the docstrings of
the backend interface; it shares no code with any backend.
"""

from __future__ import annotations

from ..backends import (
    Append,
    AppendResult,
    Cursor,
    Head,
    HeadFields,
    Record,
    StreamKey,
    VersionMismatch,
)


class ListStream:
    """One stream of a `ListModel`."""

    def __init__(self, incarnation: bytes) -> None:
        self.incarnation = incarnation
        self.records: list[Record] = []
        self.appends: list[tuple[Append, int, int]] = []  # with first and last version
        self.fields = HeadFields()


class ListModel:
    """A backend on plain lists. It has no pages, and every time is 0."""

    def __init__(self) -> None:
        self.streams: dict[StreamKey, ListStream] = {}
        self.former: set[tuple[StreamKey, bytes]] = set()

    def append(self, append: Append) -> AppendResult | VersionMismatch:
        stream = self.streams.get(append.stream)
        if stream:
            for earlier, first, last in stream.appends:
                here = first == append.expected + 1 and earlier.incarnation == append.incarnation
                if earlier.id == append.id and (here or (append.indexed and earlier.indexed)):
                    return AppendResult(first, last, duplicate=True)
        if not self._is_expected(append):
            return VersionMismatch(self.head(append.stream))
        stream = self.streams.setdefault(append.stream, ListStream(append.incarnation))
        for digest, body in append.records:
            stream.records.append(Record(len(stream.records) + 1, append.id, digest, body))
        first, last = append.expected + 1, len(stream.records)
        stream.appends.append((append, first, last))
        if append.fields is not None:
            stream.fields = append.fields
        return AppendResult(first, last)

    def _is_expected(self, append: Append) -> bool:
        head = self.head(append.stream)
        if head is None:
            return append.expected == 0 and (append.stream, append.incarnation) not in self.former
        return head.position == (append.expected, append.expected_hash, append.incarnation)

    def find_append(self, key: StreamKey, id: bytes) -> tuple[int, int] | None:
        stream = self.streams.get(key)
        for append, first, last in stream.appends if stream else ():
            if append.indexed and append.id == id:
                return first, last
        return None

    def read(self, key: StreamKey, *, after: int, reverse: bool) -> list[Record]:
        """Return all records after `after`, or with `reverse` before it, without pages."""
        stream = self.streams.get(key)
        records = stream.records if stream else []
        if not reverse:
            return [record for record in records if record.version > after]
        return [record for record in reversed(records) if after == 0 or record.version < after]

    def head(self, key: StreamKey) -> Head | None:
        stream = self.streams.get(key)
        if stream is None:
            return None
        newest = stream.records[-1]
        return Head(key, stream.incarnation, stream.fields, 0.0, newest.version, newest.hash)

    def heads(self, *, tenant: str, kind: str, status: str | None, after: str) -> list[Head]:
        found = []
        for key in sorted(self.streams, key=lambda key: key.id.encode()):
            head = self.head(key)
            matches = (key.tenant, key.kind) == (tenant, kind) and key.id.encode() > after.encode()
            if head and matches and status in (None, head.fields.status):
                found.append(head)
        return found

    def due(
        self, *, tenant: str, kind: str, before: float | None, after: Cursor | None
    ) -> list[Head]:
        found = []
        for head in self.heads(tenant=tenant, kind=kind, status=None, after=""):
            due = head.fields.due
            if due is not None and (before is None or due <= before):
                found.append((due, head.stream.id.encode(), head))
        found.sort(key=lambda entry: entry[:2])
        return [
            head
            for *cursor, head in found
            if after is None or tuple(cursor) > (after[0], after[1].encode())
        ]

    def delete(self, key: StreamKey, *, expected: Head) -> bool:
        head = self.head(key)
        if head is None or head.position != expected.position:
            return False
        del self.streams[key]
        self.former.add((key, head.incarnation))
        return True
