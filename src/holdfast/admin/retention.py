"""The sweep: deletes what has expired, whole and with its large values, and never much more than anyone would expect.

Each stream goes in the same order: the audit stream is told, its id is closed, it is deleted, then its large values.
A sweep that is killed at any instant loses nothing; the next one finishes what it left.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from ..backends import Cursor, Head, HeadSummary, StreamKey
from ..backends.clock import moment
from ..errors import Conflict, CorruptRecord, DataProblem
from ..log import operations as ops
from ..log import retired_ids
from ..log.blobs import blob_prefix, incarnation_hex
from ..log.events import AppendContext, StoredEvent
from ..log.forks import living_forks
from ..log.log import Log
from ..log.operations import Operation
from ..log.stream_ops import audit_of, deletion_of, late_deletions, new_append_context, tell_audit
from ..log.validation import seconds, whole_number

KINDS: Final = ("task", "conversation")
"""What is swept: whole streams of these kinds, with the blobs that belong to them."""

PAGE: Final = 100
COUNTED: Final = 1000
"""How far what is held back is counted."""

REASON: Final = "expired"
"""What the audit stream says about a stream that was swept."""

logger = logging.getLogger("holdfast")


Why = Literal["forked", "held", "damaged"]


class SweptStream(msgspec.Struct, frozen=True):
    """A stream that had expired, as it was."""

    kind: str
    id: str
    version: int
    expires_at: datetime


class SparedStream(msgspec.Struct, frozen=True):
    """A stream that has expired and stays: forks begin with it, somebody holds it, or it is too damaged to tell."""

    kind: str
    id: str
    why: Why


class SweepResult(msgspec.Struct, frozen=True):
    """What a sweep did; with `dry_run`, what it would do.

    `held_back` is how many more have expired and were left for another time (counting stops at 1,000): because of
    `limit`, or, if `capped`, because more than half of the store would have gone within a day.
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
        what = " and ".join(_count(kinds[kind], f"expired {kind}") for kind in KINDS if kinds[kind])
        parts = [f"{'would delete' if self.dry_run else 'deleted'} {what or 'nothing'}"]
        reasons = Counter(stream.why for stream in self.spared)
        parts += [f"spared {count} {_SPARED[why]}" for why, count in sorted(reasons.items())]
        if self.held_back:
            more = f"{self.held_back}{' or more' if self.held_back >= COUNTED else ''}"
            if self.capped:
                parts.append(
                    f"held back {more}, because a sweep takes at most half of a store within 24 hours: "
                    "check the clock, then pass force=True"
                )
            else:
                parts.append(f"left {more} for the next sweep")
        return "; ".join(parts)


_SPARED: Final = {
    "damaged": "too damaged to tell what depends on it",
    "forked": "that living forks begin with",
    "held": "that somebody holds",
}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def sweep(
    log: Log, tenant: str, *, dry_run: bool, limit: int, grace: float | timedelta, force: bool
) -> SweepResult:
    """Delete what has expired, page by page."""
    work = Sweep(
        tenant, new_append_context(), dry_run=dry_run, limit=limit, grace=grace, force=force
    )
    while ops.run(log, work.page()):
        pass
    return work.report()


async def sweep_async(
    log: Log, tenant: str, *, dry_run: bool, limit: int, grace: float | timedelta, force: bool
) -> SweepResult:
    """`sweep`, awaited."""
    work = Sweep(
        tenant, new_append_context(), dry_run=dry_run, limit=limit, grace=grace, force=force
    )
    while await ops.run_async(log, work.page()):
        pass
    return work.report()


class Sweep:
    """A sweep on its way: where it is, what it has done, and what it may still do."""

    def __init__(
        self,
        tenant: str,
        stamp: AppendContext,
        *,
        dry_run: bool,
        limit: int,
        grace: float | timedelta,
        force: bool,
    ) -> None:
        self._tenant, self._stamp, self._dry_run = tenant, stamp, dry_run
        self._limit, self._grace = whole_number(limit, "limit"), seconds(grace, "grace")
        self._share = None if force else SweepQuota(tenant, KINDS)
        # In turn, so that a great many of one kind do not keep the other waiting for ever.
        self._waiting: deque[tuple[str, Cursor | None]] = deque((kind, None) for kind in KINDS)
        if not dry_run:
            self._waiting.appendleft((retired_ids.KIND, None))
        self._swept: list[SweptStream] = []
        self._gone: set[StreamKey] = set()
        self._spared: list[SparedStream] = []
        self._held_back, self._capped = 0, False

    def page(self) -> Operation[bool]:
        """Do one page of the work. False when all is done."""
        if not self._waiting or self._held_back >= COUNTED:
            return False
        kind, cursor = self._waiting.popleft()
        if kind == retired_ids.KIND:
            left, cursor = yield from retired_ids.unfinished(self._tenant, cursor)
            for mark in left:
                yield from retired_ids.finish(mark, self._next_stamp())
            if cursor is not None:
                self._waiting.appendleft((kind, cursor))
            return True
        page = yield from ops.due(self._tenant, kind, after=cursor, limit=PAGE)
        for head in page:
            cursor = (head.fields.due or 0.0, head.stream.id)
            if cursor[0] + self._grace > head.now:
                return True  # nor can any after it
            if not self._is_due(head):
                continue
            if len(self._swept) >= self._limit:
                self._held_back += 1
            else:
                yield from self._take(head.stream)
            if self._held_back >= COUNTED:
                break
        if page:
            self._waiting.append((kind, cursor))
        return True

    def report(self) -> SweepResult:
        deleted, would_delete = ([], self._swept) if self._dry_run else (self._swept, [])
        if self._capped and not self._dry_run:
            logger.warning(
                "the sweep of tenant %r was held back: see what it returned", self._tenant
            )
        return SweepResult(
            deleted, would_delete, self._spared, self._held_back, self._capped, self._dry_run
        )

    def _is_due(self, head: HeadSummary) -> bool:
        expires = head.fields.expires_at
        return expires is not None and expires + self._grace <= head.now

    def _take(self, key: StreamKey) -> Operation[None]:
        """Delete one stream, if that is right and still within bounds."""
        try:
            head = yield from ops.head(key)  # exact: what was listed may be old
        except CorruptRecord:
            self._spare(key, "damaged")
            return
        if head is None or not self._is_due(head):
            return
        if self._share and not (yield from self._share.has_room(head)):
            self._hold_back()
            return
        why = yield from self._reason_to_spare(head)
        if why is not None:
            self._spare(key, why)
        elif self._dry_run or (yield from self._deleted(head)):
            expired = moment(max(head.fields.expires_at or 0.0, 0.0))
            self._swept.append(SweptStream(key.kind, key.id, head.version, expired))
            self._gone.add(key)
            if self._share:
                self._share.take(head)

    def _spare(self, key: StreamKey, why: Why) -> None:
        if why == "damaged":
            logger.warning("%s was not swept: it cannot be read", key)
        self._spared.append(SparedStream(key.kind, key.id, why))

    def _hold_back(self) -> None:
        self._held_back, self._capped = self._held_back + 1, True

    def _reason_to_spare(self, head: Head) -> Operation[Why | None]:
        if head.fields.owner is not None and (head.fields.due_at or 0.0) > head.now:
            return "held"
        try:
            return "forked" if (yield from living_forks(head, self._gone)) else None
        except DataProblem:
            return "damaged"

    def _deleted(self, head: Head) -> Operation[bool]:
        """Delete a stream for good. False, and it is left alone, if it moved or somebody else is at it."""
        key, incarnation = head.stream, incarnation_hex(head.incarnation)
        told = yield from tell_audit(head, self._next_stamp(), REASON, at=head.now)
        # Others may sweep at the same time. They too tell before they delete, so now all that count are known.
        if self._share and not (yield from self._share.has_room(head, told.first)):
            self._hold_back()
            return False
        large = yield from _has_blobs(key, incarnation)
        try:
            mark = yield from retired_ids.close(head, self._next_stamp(), large=large)
            done = yield from ops.delete(key, expected=head)
        except Conflict:
            done = False
        if not done:
            yield from self._leave(head)
            return False
        if large:
            yield from retired_ids.finish(mark, self._next_stamp())
        return True

    def _leave(self, head: Head) -> Operation[None]:
        """Leave a stream to those who moved or deleted it meanwhile.

        If they meant to free its id, it was closed too late: free it.
        """
        key = head.stream
        if (yield from ops.head(key)) is not None:
            return
        if self._share:
            self._share.take(head)
        told = yield from late_deletions(key)
        if any(
            deletion.incarnation == incarnation_hex(head.incarnation) and deletion.at is None
            for deletion in told
        ):
            try:
                yield from retired_ids.reopen(key, self._next_stamp())
            except Conflict:
                pass  # somebody else frees it

    def _next_stamp(self) -> AppendContext:
        stamp = self._stamp
        self._stamp = msgspec.structs.replace(stamp, id=stamp.id + 1)
        return stamp


def _has_blobs(key: StreamKey, incarnation: str) -> Operation[bool]:
    prefix = blob_prefix(key, incarnation)
    first = yield from ops.heads(key.tenant, "blob", after=prefix, limit=1)
    return bool(first) and first[0].stream.id.startswith(prefix)


# The share of a store that a sweep may take: at most half within 24 hours, so that a wrong clock cannot empty it.


DAY: Final = 24 * 3600.0
QUOTA_PAGE: Final = 500
OLD_ENOUGH: Final = 1000
"""After so many entries in a row from another day, older ones are not looked at. Not after the first: clocks go back too."""

Life = tuple[str, str, str]
"""Kind, id and life of a stream."""


class SweepQuota:
    """How much of a tenant's store has gone within a day, and whether one more may go."""

    def __init__(self, tenant: str, kinds: Iterable[str]) -> None:
        self._tenant, self._kinds = tenant, frozenset(kinds)
        self._heard: int | None = None
        self._recent: set[Life] = set()
        self._counted = 0
        self._counting: deque[tuple[str, str]] = deque((kind, "") for kind in sorted(self._kinds))
        self._done: set[str] = set()
        self._died: set[Life] = set()  # of those that were counted, the ones that count as gone

    def has_room(self, head: Head, told: int | None = None) -> Operation[bool]:
        """Whether this stream may go. `told`: the version at which the audit stream was told of it, last of all."""
        if self._heard is None:
            yield from self._look_back(head.now)
        elif told is not None:
            yield from self._listen(head.now, told)
        incarnation = _incarnation(head)
        self._recent.discard(incarnation)  # it was to be deleted before, and is still there
        self._died.discard(incarnation)
        while not self._enough() and self._counting:
            yield from self._count()
        return self._enough()

    def take(self, head: Head) -> None:
        """This stream is gone."""
        self._gone(_incarnation(head))

    def _enough(self) -> bool:
        return len(self._recent) + 1 <= (self._counted - len(self._died) + len(self._recent)) // 2

    def _gone(self, incarnation: Life) -> None:
        self._recent.add(incarnation)
        counted_to = dict(self._counting).get(incarnation[0], "")
        if incarnation[0] in self._done or incarnation[1] <= counted_to:
            self._died.add(incarnation)

    def _count(self) -> Operation[None]:
        kind, after = self._counting.popleft()
        page = yield from ops.heads(self._tenant, kind, after=after, limit=QUOTA_PAGE)
        self._counted += len(page)
        self._died.update(
            self._recent.intersection(map(_incarnation, page))
        )  # gone only in name: a dry run, or cut off
        if page:
            self._counting.appendleft((kind, page[-1].stream.id))
        else:
            self._done.add(kind)

    def _look_back(self, now: float) -> Operation[None]:
        """What the audit stream says was swept within a day."""
        self._heard, before, old = 0, 0, 0
        while old < OLD_ENOUGH and before != 1:
            page = yield from ops.read(
                audit_of(self._tenant), after=before, limit=QUOTA_PAGE, reverse=True, plain=True
            )
            if not page:
                return
            self._heard, before = max(self._heard, page[0].version), page[-1].version
            for stored in page:
                old = 0 if self._hear(stored, now) else old + 1

    def _listen(self, now: float, told: int) -> Operation[None]:
        """What others have told the audit stream since, up to what was told last."""
        heard = self._heard or 0
        while heard < told - 1:
            page = yield from ops.read(
                audit_of(self._tenant),
                after=heard,
                limit=min(QUOTA_PAGE, told - 1 - heard),
                plain=True,
            )
            if not page:
                break
            for stored in page:
                self._hear(stored, now)
            heard = page[-1].version
        self._heard = told

    def _hear(self, stored: StoredEvent, now: float) -> bool:
        """Take note of an entry of the audit stream. Whether it is of this day."""
        deletion = deletion_of(stored)
        at = deletion.at if deletion else None
        if abs(now - (stored.envelope.at if at is None else at)) >= DAY:
            return False
        if deletion and at is not None and deletion.kind in self._kinds:
            self._gone((deletion.kind, deletion.id, deletion.incarnation))
        return True


def _incarnation(head: HeadSummary) -> Life:
    return head.stream.kind, head.stream.id, incarnation_hex(head.incarnation)
