"""Purge expired tasks, conversations, state documents and streams with their blobs.

Each stream is purged in the same order: record it in the audit stream, retire the id, delete the
stream, delete its blobs. If the process dies, the next sweep finishes the work.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from ..backends import Cursor, Head, HeadSummary, StreamKey
from ..backends.clock import to_datetime
from ..errors import Conflict, CorruptRecord, DataProblem
from ..log import operations as ops
from ..log.events import AppendContext, new_append_context
from ..log.log import Log
from ..log.operations import Operation, retired_ids
from ..log.operations.blobs import blob_prefix
from ..log.operations.forks import list_forks
from ..log.operations.stream_ops import append_audit_event, list_recent_deletions
from ..log.validation import check_int, check_seconds
from .purge_quota import MIN_QUOTA, SweepQuota

SWEPT_KINDS: Final = ("task", "conversation", "state", "stream")
"""The kinds of streams to purge, with their blobs."""
FORKED_KINDS: Final = ("task", "conversation")
"""The kinds of streams that can have forks."""

PAGE_STREAMS: Final = 100
MAX_COUNTED: Final = 1000
"""Expired streams that are left for another sweep are counted up to this number."""

SWEEP_REASON: Final = "expired"
"""The reason in the audit stream for a purged stream."""

logger = logging.getLogger("holdfast")


SpareReason = Literal["forked", "held", "damaged"]


class SweptStream(msgspec.Struct, frozen=True):
    """A stream that had expired, as it was before the purge."""

    kind: str
    id: str
    version: int
    expires_at: datetime


class SparedStream(msgspec.Struct, frozen=True):
    """An expired stream that stays: it has forks, a lease owner, or is too damaged to tell."""

    kind: str
    id: str
    why: SpareReason


class SweepResult(msgspec.Struct, frozen=True):
    """The result of a sweep; with `dry_run`, what it would do.

    `held_back` is the number of expired streams left for another sweep (counting stops at 1,000):
    because of `limit`, or, if `capped`, because more than 100 streams and more than half of the
    store would have been purged within 24 hours.
    """

    deleted: list[SweptStream]
    would_delete: list[SweptStream]
    spared: list[SparedStream]
    held_back: int
    capped: bool
    dry_run: bool

    def __str__(self) -> str:
        found = self.would_delete if self.dry_run else self.deleted
        kinds = Counter(stream.kind for stream in found)
        counts = [_format_count(kinds[kind], kind) for kind in SWEPT_KINDS if kinds[kind]]
        what = " and ".join(filter(None, (", ".join(counts[:-1]), *counts[-1:])))
        parts = [f"{'would delete' if self.dry_run else 'deleted'} {what or 'nothing'}"]
        reasons = Counter(stream.why for stream in self.spared)
        parts += [f"spared {count} {_SPARE_TEXTS[why]}" for why, count in sorted(reasons.items())]
        if self.held_back:
            more = f"{self.held_back}{' or more' if self.held_back >= MAX_COUNTED else ''}"
            if self.capped:
                parts.append(
                    f"held back {more}, because sweeps purge at most {MIN_QUOTA} streams or half of"
                    " a store within 24 hours: check the clock, then pass force=True"
                )
            else:
                parts.append(f"left {more} for the next sweep")
        return "; ".join(parts)


_SPARE_TEXTS: Final = {
    "damaged": "too damaged to tell what depends on it",
    "forked": "with forks that have not expired",
    "held": "with an active lease",
}


def _format_count(number: int, kind: str) -> str:
    what = "state document" if kind == "state" else kind
    return f"{number} expired {what}{'' if number == 1 else 's'}"


def sweep(
    log: Log,
    tenant: str,
    *,
    dry_run: bool,
    limit: int,
    grace: float | timedelta,
    force: bool,
    by: str | None,
) -> SweepResult:
    """Purge expired streams, page by page."""
    run = SweepRun(tenant, dry_run=dry_run, limit=limit, grace=grace, force=force, by=by)
    while ops.run(log, run.sweep_page()):
        pass
    return run.finish()


async def sweep_async(
    log: Log,
    tenant: str,
    *,
    dry_run: bool,
    limit: int,
    grace: float | timedelta,
    force: bool,
    by: str | None,
) -> SweepResult:
    """`sweep`, awaited."""
    run = SweepRun(tenant, dry_run=dry_run, limit=limit, grace=grace, force=force, by=by)
    while await ops.run_async(log, run.sweep_page()):
        pass
    return run.finish()


class SweepRun:
    """The state of a running sweep: its position, results and remaining quota."""

    def __init__(
        self,
        tenant: str,
        *,
        dry_run: bool,
        limit: int,
        grace: float | timedelta,
        force: bool,
        by: str | None,
    ) -> None:
        self._tenant, self._stamp, self._dry_run = tenant, new_append_context(by), dry_run
        self._limit, self._grace = check_int(limit, "limit"), check_seconds(grace, "grace")
        self._quota = None if force else SweepQuota(tenant, SWEPT_KINDS)
        # In turn, so that many streams of one kind do not starve the other.
        self._pending: deque[tuple[str, Cursor | None]] = deque(
            (kind, None) for kind in SWEPT_KINDS
        )
        if not dry_run:
            self._pending.appendleft((retired_ids.RETIRED_ID_KIND, None))
        self._swept: list[SweptStream] = []
        self._gone: set[StreamKey] = set()
        self._spared: list[SparedStream] = []
        self._held_back, self._capped = 0, False

    def sweep_page(self) -> Operation[bool]:
        """Sweep one page. Return False when all is done."""
        if not self._pending or self._held_back >= MAX_COUNTED:
            return False
        kind, cursor = self._pending.popleft()
        if kind == retired_ids.RETIRED_ID_KIND:
            unfinished, cursor = yield from retired_ids.list_unfinished(self._tenant, cursor)
            for mark in unfinished:
                yield from retired_ids.finish_retiring(mark, self._next_stamp())
            if cursor is not None:
                self._pending.appendleft((kind, cursor))
            return True
        page = yield from ops.due(self._tenant, kind, after=cursor, limit=PAGE_STREAMS)
        for head in page:
            cursor = (head.fields.due or 0.0, head.stream.id)
            if cursor[0] + self._grace > head.now:
                return True  # later ones are not due either
            if not self._is_due(head):
                continue
            if len(self._swept) >= self._limit:
                self._held_back += 1
            else:
                yield from self._sweep_stream(head.stream)
            if self._held_back >= MAX_COUNTED:
                break
        if page:
            self._pending.append((kind, cursor))
        return True

    def finish(self) -> SweepResult:
        deleted, would_delete = ([], self._swept) if self._dry_run else (self._swept, [])
        if self._capped and not self._dry_run:
            logger.warning("the sweep of tenant %r was held back: see its result", self._tenant)
        return SweepResult(
            deleted, would_delete, self._spared, self._held_back, self._capped, self._dry_run
        )

    def _is_due(self, head: HeadSummary) -> bool:
        expires = head.fields.expires_at
        return expires is not None and expires + self._grace <= head.now

    def _sweep_stream(self, key: StreamKey) -> Operation[None]:
        """Delete a stream, unless it must be spared or the quota is used up."""
        try:
            head = yield from ops.head(key)  # exact: the listed head may be old
        except CorruptRecord:
            self._spare(key, "damaged")
            return
        if head is None or not self._is_due(head):
            return
        if self._quota and not (yield from self._quota.check(head)):
            self._hold_back()
            return
        why = yield from self._find_spare_reason(head)
        if why is not None:
            self._spare(key, why)
        elif self._dry_run or (yield from self._delete(head)):
            expired = to_datetime(max(head.fields.expires_at or 0.0, 0.0))
            self._swept.append(SweptStream(key.kind, key.id, head.version, expired))
            self._gone.add(key)
            if self._quota:
                self._quota.add(head)

    def _spare(self, key: StreamKey, why: SpareReason) -> None:
        if why == "damaged":
            logger.warning("cannot purge %s: it cannot be read", key)
        self._spared.append(SparedStream(key.kind, key.id, why))

    def _hold_back(self) -> None:
        self._held_back, self._capped = self._held_back + 1, True

    def _find_spare_reason(self, head: Head) -> Operation[SpareReason | None]:
        if head.fields.owner is not None and (head.fields.due_at or 0.0) > head.now:
            return "held"
        if head.stream.kind not in FORKED_KINDS:
            return None
        try:
            return "forked" if (yield from list_forks(head, self._gone)) else None
        except DataProblem:
            return "damaged"

    def _delete(self, head: Head) -> Operation[bool]:
        """Delete a stream permanently. Return False if another process changed or deleted it."""
        key, incarnation = head.stream, head.incarnation.hex()
        entry = yield from append_audit_event(head, self._next_stamp(), SWEEP_REASON, at=head.now)
        # Concurrent sweeps write their audit entries before they delete, so all are known by now.
        if self._quota and not (yield from self._quota.check(head, entry.first)):
            self._hold_back()
            return False
        large = yield from _has_blobs(key, incarnation)
        try:
            mark = yield from retired_ids.retire_id(head, self._next_stamp(), large=large)
            done = yield from ops.delete(key, expected=head)
        except Conflict:
            done = False
        if not done:
            yield from self._handle_lost_race(head)
            return False
        if large:
            yield from retired_ids.finish_retiring(mark, self._next_stamp())
        return True

    def _handle_lost_race(self, head: Head) -> Operation[None]:
        """Leave a stream to the process that changed or deleted it.

        If that process deleted the stream to free its id, this sweep retired the id too late. Then
        free it again.
        """
        key = head.stream
        if (yield from ops.head(key)) is not None:
            return
        if self._quota:
            self._quota.add(head)
        deletions = yield from list_recent_deletions(key)
        if any(
            deletion.incarnation == head.incarnation.hex() and deletion.at is None
            for deletion in deletions
        ):
            try:
                yield from retired_ids.free_id(key, self._next_stamp())
            except Conflict:
                pass  # another process frees it

    def _next_stamp(self) -> AppendContext:
        stamp = self._stamp
        self._stamp = msgspec.structs.replace(stamp, id=stamp.id + 1)
        return stamp


def _has_blobs(key: StreamKey, incarnation: str) -> Operation[bool]:
    prefix = blob_prefix(key, incarnation)
    first = yield from ops.heads(key.tenant, "blob", after=prefix, limit=1)
    return bool(first) and first[0].stream.id.startswith(prefix)
