"""How a worker looks for tasks that are due."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Final

from ..backends import Cursor, HeadSummary, StreamKey
from ..backends import clock as _clock
from ..errors import DataProblem
from ..log import operations as ops
from ..log.ids import SYSTEM_TENANT
from ..log.leases import is_dead
from ..log.log import Log
from ..tasks.agents.children import report as report_to_parent
from ..tasks.agents.declare import registered
from ..tasks.run.effects import drive
from ..tasks.state.events import KIND
from ..tasks.state.load import info_of, is_expired, is_held
from ..tasks.state.view import ENDED

PAGE: Final = 100
FULL_LOOK: Final = 60.0
"""So often everything that is due is looked at, not only what has become due lately."""
SKEW: Final = 5.0
"""Clocks of other machines may be so much behind ours."""
CLOSE: Final = 1.0
"""What becomes due so soon is seen in any case: some engines tell the time no better than that."""
DEAD_LOOK: Final = 2.0
"""So often it is looked whether holders on this machine have died."""

logger = logging.getLogger("holdfast")


class DueTaskScanner:
    """Looking for due tasks, without looking at the same ones again and again.

    What is due and not for this worker (agents that it does not have, finished tasks that have expired) stays due. So a look begins
    where the last one found the first task that it could run; and from time to time at the beginning.
    """

    def __init__(
        self, log: Log, tenant: str, is_free: Callable[[HeadSummary], bool], horizon: float = 0.0
    ) -> None:
        self._log, self._tenant, self._may_begin = log, tenant, is_free
        self._horizon = max(horizon, CLOSE)
        self.next_in: float | None = None
        """In how many seconds the next task is due that may be run here, if that is before the horizon."""
        self._after: Cursor | None = None
        self._full_at = self._dead_at = 0.0
        self._ahead: float | None = None
        self.told: set[StreamKey] = set()
        """Children that had ended, and of which their parents were told lately."""

    def candidates(self, free: int) -> list[HeadSummary]:
        """Due tasks that may be run here: rather more than are wanted, in no order, because other workers want them too."""
        self.next_in = None
        if free < 1:
            return []
        clock = _clock.monotonic()
        if clock >= self._full_at:
            self._after, self._full_at = None, clock + FULL_LOOK
            self._ahead = None
            self.told.clear()
        if self._ahead is None:
            self._ahead = self._clock_of_engine()
        now = _clock.time() + (self._ahead or 0.0)
        found: list[HeadSummary] = []
        if clock >= self._dead_at:
            found += [
                head for head in self._abandoned() if self._is_ours(head) and self._is_free(head)
            ]
            if not found:  # else there may be more than can be begun now
                self._dead_at = clock + DEAD_LOOK
        after, all_others = self._after, True
        while len(found) < free * 4 and (page := self._due(now + self._horizon, after)):
            self._ahead = page[-1].now - _clock.time()
            for head in page:
                after = (head.fields.due or 0.0, head.stream.id)
                if after[0] > head.now:
                    if self.next_in is None and self._is_ours(head) and self._may_begin(head):
                        self.next_in = after[0] - head.now
                elif self._is_ours(head):
                    all_others = False
                    if self._is_free(head):
                        found.append(head)
                elif all_others:
                    self._after = min(after, (head.now - SKEW, ""))
        random.shuffle(found)
        return found

    def _is_ours(self, head: HeadSummary) -> bool:
        if head.fields.status in ENDED:
            if head.fields.due_at is not None:
                drive(self._log, report_to_parent(head.stream))
                self.told.add(head.stream)
            return False
        if is_expired(head):
            return False
        try:
            return info_of(head).agent in registered
        except (
            DataProblem
        ) as error:  # whoever can write to the store can write anything; the others go on
            logger.warning(
                "%s cannot be run: it cannot be read (%s)", head.stream, type(error).__name__
            )
            return False

    def _is_free(self, head: HeadSummary) -> bool:
        return not is_held(head) and self._may_begin(head)

    def _clock_of_engine(self) -> float | None:
        """How far the engine's clock, by which leases end, is ahead of ours; None if nothing is stored yet."""
        head = ops.run(self._log, ops.head(StreamKey(SYSTEM_TENANT, "tenant", self._tenant)))
        return None if head is None else head.now - _clock.time()

    def _due(self, before: float, after: Cursor | None) -> list[HeadSummary]:
        return list(
            ops.run(self._log, ops.due(self._tenant, KIND, before=before, after=after, limit=PAGE))
        )

    def _abandoned(self) -> Iterator[HeadSummary]:
        """Tasks whose holder was a process of this machine, and is dead: they need not wait for the end of the lease."""
        after = ""
        while page := ops.run(
            self._log, ops.heads(self._tenant, KIND, status="running", after=after)
        ):
            for head in page:
                if head.fields.owner is not None and is_dead(head.fields.owner):
                    yield head
            after = page[-1].stream.id
