"""Helpers for the tests: keys, appends that build on each other, and reading to the end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence

import msgspec

from ..backends import (
    Append,
    AppendResult,
    Backend,
    Cursor,
    Head,
    HeadFields,
    HeadSummary,
    Record,
    StreamKey,
    VersionMismatch,
)

TENANT, KIND = "tenant", "kind"


def key(id: str = "s", *, tenant: str = TENANT, kind: str = KIND) -> StreamKey:
    return StreamKey(tenant, kind, id)


def append_id(id: bytes, *, indexed: bool) -> bytes:
    """Return the id with its first bit set if backends must index it, and cleared if not."""
    return bytes((id[0] | 0x80 if indexed else id[0] & 0x7F,)) + id[1:]


class StreamTracker:
    """Tracks the position of one incarnation of a stream, and builds its next append.

    `tracker.next(b"a")` only builds an append; `tracker.write(backend, b"a")` also stores it and
    advances.
    """

    def __init__(self, stream: StreamKey | str = "s") -> None:
        self.stream = key(stream) if isinstance(stream, str) else stream
        self.incarnation = os.urandom(16)
        self.version = 0
        self.hash = b""

    def next(
        self,
        *bodies: bytes,
        id: bytes | None = None,
        indexed: bool = False,
        fields: HeadFields | None = None,
    ) -> Append:
        return Append(
            stream=self.stream,
            expected=self.version,
            expected_hash=self.hash,
            incarnation=self.incarnation,
            id=append_id(os.urandom(16) if id is None else id, indexed=indexed),
            records=self._chain(bodies or (b"body",)),
            fields=fields,
        )

    def follow(self, append: Append) -> Append:
        """Advance as if `append` was stored."""
        self.version, self.hash = append.expected + len(append.records), append.records[-1][0]
        return append

    def write(
        self,
        backend: Backend,
        *bodies: bytes,
        id: bytes | None = None,
        indexed: bool = False,
        fields: HeadFields | None = None,
    ) -> Append:
        append = self.follow(self.next(*bodies, id=id, indexed=indexed, fields=fields))
        assert stored(backend.append([append])) == [(append.expected + 1, self.version, False)]
        return append

    def _chain(self, bodies: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        previous, records = self.hash + self.incarnation, []
        for body in bodies:
            previous = hashlib.sha256(previous + body).digest()
            records.append((previous, body))
        return records


def stored(answers: Iterable[AppendResult | VersionMismatch]) -> list[tuple[int, int, bool]]:
    """Return the answers as (first, last, duplicate); fail if one is a conflict."""
    versions = []
    for answer in answers:
        assert isinstance(answer, AppendResult), answer
        versions.append((answer.first, answer.last, answer.duplicate))
    return versions


def conflict(answers: Sequence[AppendResult | VersionMismatch]) -> Head | None:
    """Return the head in the only answer, which must be a conflict."""
    [answer] = answers
    assert isinstance(answer, VersionMismatch), answer
    return answer.head


def timeless(head: Head | None) -> Head | None:
    """Return the head without the time of the answer."""
    return None if head is None else msgspec.structs.replace(head, now=0.0)


def assert_listed(found: Sequence[HeadSummary], wanted: Sequence[Head]) -> None:
    """Assert that exactly these streams are listed. If the listing has positions, compare them."""
    assert ids(found) == ids(wanted)
    for each, head in zip(found, wanted, strict=True):
        if isinstance(each, Head):
            assert timeless(each) == head
        else:
            assert (each.stream, each.incarnation, each.fields) == (
                head.stream,
                head.incarnation,
                head.fields,
            )


def at(tracker: StreamTracker, fields: HeadFields | None = None) -> Head:
    """Return the head that the stream must have."""
    return Head(
        tracker.stream,
        tracker.incarnation,
        fields or HeadFields(),
        0.0,
        tracker.version,
        tracker.hash,
    )


def must_head(backend: Backend, stream: StreamKey) -> Head:
    head = backend.head(stream)
    assert head is not None, f"{stream} must exist"
    return head


def read_all(
    backend: Backend, stream: StreamKey, *, limit: int | None = None, reverse: bool = False
) -> list[Record]:
    """Read all pages of a stream."""
    records: list[Record] = []
    after = 0
    while page := backend.read(stream, after=after, limit=limit, reverse=reverse):
        assert limit is None or len(page) <= limit, "a page must have at most `limit` records"
        # Otherwise a backend that starts over with each page would keep the suite busy forever.
        assert (
            (page[-1].version < (after or page[-1].version + 1))
            if reverse
            else (page[-1].version > after)
        )
        records += page
        after = page[-1].version
        if reverse and after == 1:
            break  # after=0 would mean: from the newest again
    return records


def bodies(records: Iterable[Record]) -> list[bytes]:
    return [record.body for record in records]


def versions(records: Iterable[Record]) -> list[int]:
    return [record.version for record in records]


def ids(heads: Iterable[HeadSummary]) -> list[str]:
    return [head.stream.id for head in heads]


def all_heads(
    backend: Backend,
    *,
    tenant: str = TENANT,
    kind: str = KIND,
    status: str | None = None,
    limit: int = 500,
) -> list[HeadSummary]:
    """Read all pages of `heads()`."""
    heads: list[HeadSummary] = []
    after = ""
    while page := backend.heads(tenant=tenant, kind=kind, status=status, after=after, limit=limit):
        assert len(page) <= limit, "a page must have at most `limit` heads"
        assert page[-1].stream.id.encode() > after.encode(), "a page must start after `after`"
        heads += page
        after = page[-1].stream.id
    return heads


def all_due(
    backend: Backend,
    *,
    tenant: str = TENANT,
    kind: str = KIND,
    before: float | None = None,
    limit: int = 100,
) -> list[HeadSummary]:
    """Read all pages of `due()`."""
    heads: list[HeadSummary] = []
    after: Cursor | None = None
    while page := backend.due(tenant=tenant, kind=kind, before=before, after=after, limit=limit):
        assert len(page) <= limit, "a page must have at most `limit` heads"
        heads += page
        due = page[-1].fields.due
        assert due is not None, "only streams with a due time may be listed"
        cursor = due, page[-1].stream.id
        assert after is None or cursor > after, "a page must start after `after`"
        after = cursor
    return heads
