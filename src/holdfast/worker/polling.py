"""How a worker polls for due tasks, and how often."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator
from typing import Final

from ..backends import Cursor, HeadSummary, StreamKey
from ..backends import clock as _clock
from ..backends.clock import CLOCK_RESOLUTION_SECONDS
from ..errors import DataProblem
from ..log import operations as ops
from ..log.drivers import drive
from ..log.head_fields import is_expired
from ..log.ids import SYSTEM_TENANT
from ..log.leases import is_dead
from ..log.log import Log
from ..tasks.agents.children import report_end
from ..tasks.agents.declare import registered_agents
from ..tasks.state.events import KIND
from ..tasks.state.load import is_leased, is_misdated, task_info
from ..tasks.state.view import ENDED

POLL_SECONDS: Final = 0.5
"""Default interval between two scans for due tasks."""
MIN_PAUSE_POLLS: Final = 0.8
MAX_PAUSE_POLLS: Final = 1.2
"""Range of the random pause between scans, in poll intervals. It keeps workers out of step."""
FULL_SCAN_SECONDS: Final = 60.0
"""How often to scan all due tasks, not only those that became due recently."""
DEAD_OWNER_SCAN_SECONDS: Final = 2.0
"""How often to check whether lease owners on this machine have died."""
CLOCK_SKEW_SECONDS: Final = 5.0
"""How far the clocks of other machines may be behind ours."""
CLOCK_BACK_SECONDS: Final = 5.0
"""If the database clock is behind its expected time by more than this, it was set back."""
PAGE_TASKS: Final = 100
KEPT_TASKS: Final = 32
"""How many of the tasks that a scan has found are kept to be started next. Fewer than a page, so
that workers that find the same page keep different ones."""
MISDATED_PAGES: Final = 10
"""How many pages of pending tasks to check for misdated ones, once every `FULL_SCAN_SECONDS`."""

logger = logging.getLogger("holdfast")


class DueTaskScanner:
    """Scans for due tasks without reading the same ones again each time.

    Due tasks that this worker cannot run (their agent is not registered here, or they have
    finished and expired) stay due. So a scan starts at the first task that the previous scan
    found runnable; every `FULL_SCAN_SECONDS` it starts from the beginning.
    """

    def __init__(
        self,
        log: Log,
        tenant: str,
        can_start: Callable[[HeadSummary], bool],
        poll: float = POLL_SECONDS,
    ) -> None:
        self._log, self._tenant, self._can_start, self._poll = log, tenant, can_start, poll
        self._horizon = max(MAX_PAUSE_POLLS * poll, CLOCK_RESOLUTION_SECONDS)
        self.next_in: float | None = None
        """Seconds until the next task is due that can run here, if within the horizon."""
        self._kept: list[HeadSummary] = []
        self._kept_until = -math.inf
        self._after: Cursor | None = None
        self._full_scan_at = self._dead_owner_scan_at = self._misdated_scan_at = 0.0
        self._clock_offset: float | None = None
        self._misdated_after = ""
        self._last_times: tuple[float, float] | None = None
        """The monotonic clock and the database clock at the last scan."""
        self.reported: set[StreamKey] = set()
        """Ended children that were reported to their parents since the last full scan."""

    def pause(self) -> float:
        """Return the seconds until the next scan: a random pause, or less if a task is due soon."""
        usual = random.uniform(MIN_PAUSE_POLLS, MAX_PAUSE_POLLS) * self._poll  # noqa: S311
        if self.next_in is None:
            return usual
        return min(usual, self.next_in + random.uniform(0.01, 0.05))  # noqa: S311

    def take(self, free: int) -> list[HeadSummary]:
        """Return up to `free` due tasks that can start here.

        Further tasks that a scan has found are kept for the next calls, until the next scan is due.
        Other workers may take them first.
        """
        taken = self._pop(free) if _clock.monotonic() < self._kept_until else []
        if len(taken) < free:
            self._kept = self.scan(free)[: max(KEPT_TASKS, 4 * free)]
            self._kept_until = _clock.monotonic() + self._poll
            taken += self._pop(free - len(taken))
        return taken

    def _pop(self, count: int) -> list[HeadSummary]:
        popped: list[HeadSummary] = []
        while self._kept and len(popped) < count:
            head = self._kept.pop()
            if self._can_start(head):
                popped.append(head)
        return popped

    def scan(self, free: int) -> list[HeadSummary]:
        """Return due tasks that can start here, and report ended children to their parents.

        The list is in random order and longer than `free`, because other workers may take some of
        them first.
        """
        self.next_in = None
        if free < 1:
            return []
        monotonic = _clock.monotonic()
        if monotonic >= self._full_scan_at:
            self._after, self._full_scan_at = None, monotonic + FULL_SCAN_SECONDS
            self._clock_offset = None
            self.reported.clear()
        before = self._read_clock(monotonic) + self._horizon
        found: list[HeadSummary] = []
        if monotonic >= self._dead_owner_scan_at:
            found += filter(self._can_start_now, self._list_abandoned())
            if not found:  # otherwise there may be more than can start now
                self._dead_owner_scan_at = monotonic + DEAD_OWNER_SCAN_SECONDS
        after, none_runnable = self._after, True
        while len(found) < free * 4 and (page := self._list_due(before, after)):
            self._clock_offset = page[-1].now - _clock.time()
            for head in page:
                after = (head.fields.due or 0.0, head.stream.id)
                self._report_if_ended(head)
                if after[0] > head.now:
                    if self.next_in is None and self._is_runnable(head) and self._can_start(head):
                        self.next_in = after[0] - head.now
                elif self._is_runnable(head):
                    none_runnable = False
                    if self._can_start_now(head):
                        found.append(head)
                elif none_runnable:
                    self._after = min(after, (head.now - CLOCK_SKEW_SECONDS, ""))
        if not found and monotonic >= self._misdated_scan_at:
            found += filter(self._can_start_now, self._list_misdated())
            if not found:
                self._misdated_scan_at = monotonic + FULL_SCAN_SECONDS
        random.shuffle(found)
        return found

    def _report_if_ended(self, head: HeadSummary) -> None:
        """Report an ended child to its parent, if the child's process died before it could."""
        if head.fields.status in ENDED and head.fields.due_at is not None:
            drive(self._log, report_end(head.stream))
            self.reported.add(head.stream)

    def _is_runnable(self, head: HeadSummary) -> bool:
        if head.fields.status in ENDED or is_expired(head):
            return False
        try:
            return task_info(head).agent in registered_agents
        except DataProblem as error:  # a damaged head must not stop the other tasks
            logger.warning("cannot run %s: cannot read it (%s)", head.stream, type(error).__name__)
            return False

    def _can_start_now(self, head: HeadSummary) -> bool:
        return not is_leased(head) and self._can_start(head)

    def _read_clock(self, monotonic: float) -> float:
        """Return the time of the database clock. Start a full scan if it was set back."""
        now = self._estimate_clock()
        if self._last_times is not None:
            since, then = self._last_times
            behind = then + (monotonic - since) - now
            if behind > CLOCK_BACK_SECONDS:
                self._clock_offset = None  # it may be our own clock that was set back
                now = self._estimate_clock()
                behind = then + (monotonic - since) - now
            if behind > CLOCK_BACK_SECONDS:
                logger.warning(
                    "the database clock was set back by %.0f s; timers, retries and leases "
                    "set before that wait until it has caught up",
                    behind,
                )
                self._after, self._misdated_scan_at = None, 0.0
        self._last_times = monotonic, now
        return now

    def _estimate_clock(self) -> float:
        if self._clock_offset is None:
            self._clock_offset = self._read_clock_offset()
        return _clock.time() + (self._clock_offset or 0.0)

    def _read_clock_offset(self) -> float | None:
        """Return how far the database clock, which ends leases, is ahead of ours.

        None if nothing is stored yet.
        """
        head = ops.run(self._log, ops.head(StreamKey(SYSTEM_TENANT, "tenant", self._tenant)))
        return None if head is None else head.now - _clock.time()

    def _list_due(self, before: float, after: Cursor | None) -> list[HeadSummary]:
        return list(
            ops.run(
                self._log, ops.due(self._tenant, KIND, before=before, after=after, limit=PAGE_TASKS)
            )
        )

    def _list_misdated(self) -> list[HeadSummary]:
        """Return runnable tasks that were due at once, but were dated by a clock that was ahead.

        The database clock was set back since, so their due time is now in the future. A long queue
        is checked in parts, one part per call.
        """
        for _ in range(MISDATED_PAGES):
            page = ops.run(
                self._log,
                ops.heads(self._tenant, KIND, status="pending", after=self._misdated_after),
            )
            found = [head for head in page if self._is_runnable(head) and is_misdated(head)]
            if found:
                return found
            self._misdated_after = page[-1].stream.id if page else ""
            if not page:
                break
        return []

    def _list_abandoned(self) -> Iterator[HeadSummary]:
        """Yield runnable tasks whose lease owner is a dead process of this machine.

        They need not wait for the end of the lease.
        """
        after = ""
        while page := ops.run(
            self._log, ops.heads(self._tenant, KIND, status="running", after=after)
        ):
            for head in page:
                owner = head.fields.owner
                if owner is not None and is_dead(owner) and self._is_runnable(head):
                    yield head
            after = page[-1].stream.id
