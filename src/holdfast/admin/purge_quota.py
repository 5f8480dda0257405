"""The sweep quota: at most half of a store within 24 hours, so a wrong clock cannot empty it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from ..backends import Head, HeadSummary
from ..log import operations as ops
from ..log.events import StoredEvent
from ..log.operations import Operation
from ..log.operations.stream_ops import audit_key, decode_deletion

DAY_SECONDS: Final = 24 * 3600.0
MIN_QUOTA: Final = 100
"""This many streams may be purged within 24 hours, however small the store is. By the rule of half
alone, the last stream of a store could never be purged."""
QUOTA_PAGE_ENTRIES: Final = 500
MAX_OLD_ENTRIES: Final = 1000
"""Stop reading back after this many old entries in a row. Fewer may be due to a clock that jumped.
"""

StreamIncarnation = tuple[str, str, str]
"""Kind, id and incarnation of a stream."""


class SweepQuota:
    """Counts the streams of a tenant purged within 24 hours, to decide about the next one."""

    def __init__(self, tenant: str, kinds: Iterable[str]) -> None:
        self._tenant, self._kinds = tenant, frozenset(kinds)
        self._audit_version: int | None = None  # read so far
        self._recent: set[StreamIncarnation] = set()
        self._counted = 0
        self._counting: deque[tuple[str, str]] = deque((kind, "") for kind in sorted(self._kinds))
        self._done: set[str] = set()
        self._counted_purged: set[StreamIncarnation] = set()  # counted, but purged

    def check(self, head: Head, audit_version: int | None = None) -> Operation[bool]:
        """Return whether this stream may be purged.

        `audit_version` is that of its own entry in the audit stream, if it was written already.
        """
        if self._audit_version is None:
            yield from self._read_back(head.now)
        elif audit_version is not None:
            yield from self._read_new(head.now, audit_version)
        incarnation = stream_incarnation(head)
        self._recent.discard(incarnation)  # an earlier sweep recorded it and did not delete it
        self._counted_purged.discard(incarnation)
        while not self._has_room() and self._counting:
            yield from self._count_page()
        return self._has_room()

    def add(self, head: Head) -> None:
        """Count a purged stream."""
        self._add(stream_incarnation(head))

    def _has_room(self) -> bool:
        recent = len(self._recent)
        half = (self._counted - len(self._counted_purged) + recent) // 2
        return recent + 1 <= max(MIN_QUOTA, half)

    def _add(self, incarnation: StreamIncarnation) -> None:
        self._recent.add(incarnation)
        counted_to = dict(self._counting).get(incarnation[0], "")
        if incarnation[0] in self._done or incarnation[1] <= counted_to:
            self._counted_purged.add(incarnation)

    def _count_page(self) -> Operation[None]:
        kind, after = self._counting.popleft()
        page = yield from ops.heads(self._tenant, kind, after=after, limit=QUOTA_PAGE_ENTRIES)
        self._counted += len(page)
        # Recorded as purged, but still there: a dry run, or an interrupted sweep.
        self._counted_purged.update(self._recent.intersection(map(stream_incarnation, page)))
        if page:
            self._counting.appendleft((kind, page[-1].stream.id))
        else:
            self._done.add(kind)

    def _read_back(self, now: float) -> Operation[None]:
        """Read the audit stream's entries of the last 24 hours."""
        self._audit_version, before, old = 0, 0, 0
        while old < MAX_OLD_ENTRIES and before != 1:
            page = yield from ops.read(
                audit_key(self._tenant),
                after=before,
                limit=QUOTA_PAGE_ENTRIES,
                reverse=True,
                decoded=True,
            )
            if not page:
                return
            self._audit_version = max(self._audit_version, page[0].version)
            before = page[-1].version
            for stored in page:
                old = 0 if self._add_entry(stored, now) else old + 1

    def _read_new(self, now: float, upto: int) -> Operation[None]:
        """Read the entries that other sweeps have written since, before version `upto`."""
        after = self._audit_version or 0
        while after < upto - 1:
            page = yield from ops.read(
                audit_key(self._tenant),
                after=after,
                limit=min(QUOTA_PAGE_ENTRIES, upto - 1 - after),
                decoded=True,
            )
            if not page:
                break
            for stored in page:
                self._add_entry(stored, now)
            after = page[-1].version
        self._audit_version = upto

    def _add_entry(self, stored: StoredEvent, now: float) -> bool:
        """Count an entry of the audit stream. Return whether it is from the last 24 hours."""
        deletion = decode_deletion(stored)
        at = deletion.at if deletion else None
        if abs(now - (stored.envelope.at if at is None else at)) >= DAY_SECONDS:
            return False
        if deletion and at is not None and deletion.kind in self._kinds:
            self._add((deletion.kind, deletion.id, deletion.incarnation))
        return True


def stream_incarnation(head: HeadSummary) -> StreamIncarnation:
    return head.stream.kind, head.stream.id, head.incarnation.hex()
