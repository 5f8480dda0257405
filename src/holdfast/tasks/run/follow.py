"""Follow a task: yield its events as they are recorded, or wait until it has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Final

from ...backends import StreamKey, clock
from ...errors import NotFound, WaitTimeout
from ...log import operations as ops
from ...log.events import Event
from ...log.log import Log
from ...log.operations import Operation
from ...log.polling import ChangeWaiter
from ...log.validation import check_int, check_seconds
from ..control.lifecycle import require_head
from ..state.load import load_events, load_view
from ..state.view import ENDED, Status, TaskView

AT_REST: Final = ENDED | {"failed", "stuck"}
"""The statuses in which a task does nothing more by itself."""


class _Timer:
    """Counts the seconds until a time limit, which may be None."""

    def __init__(self, limit: float | timedelta | None) -> None:
        self._limit = None if limit is None else check_seconds(limit, "timeout")
        self.restart()

    def restart(self) -> None:
        self._since = clock.monotonic()

    def left(self) -> float | None:
        """Return the seconds that are left; None without a limit."""
        if self._limit is None:
            return None
        return max(self._since + self._limit - clock.monotonic(), 0.0)


class TaskFollower:
    """The position of a follower in the events of a task."""

    def __init__(
        self, key: StreamKey, after: int, timeout: float | timedelta | None, until_end: bool
    ) -> None:
        self.key, self._after, self._until_end = key, check_int(after, "after"), until_end
        self.timer = _Timer(timeout)
        self._incarnation: bytes | None = None
        self._at_rest = False

    def is_over(self, page: list[Event]) -> bool:
        """Return whether this page was the last: the task has ended, or the time is over."""
        return (self._at_rest and self._until_end) or (not page and self.timer.left() == 0.0)

    def read_page(self) -> Operation[list[Event]]:
        """Return the events recorded since the last page; an empty list if there are none."""
        try:
            head = yield from require_head(self.key)
        except NotFound:
            if self._incarnation is not None:
                raise self._deleted() from None
            raise
        if self._incarnation is not None and head.incarnation != self._incarnation:
            raise self._deleted()
        if self._after > head.version:
            raise NotFound(
                f"version {self._after} of {self.key} not found: it has versions 1 to "
                f"{head.version}, so it was deleted and started again; follow it with after=0"
            )
        self._incarnation = head.incarnation
        page: list[Event] = []
        if self._after < head.version:
            page = yield from load_events(self.key, self._after)
        if page:
            self._after = page[-1].version
            self.timer.restart()
        self._at_rest = head.fields.status in AT_REST and self._after >= head.version
        return page

    def _deleted(self) -> NotFound:
        return NotFound(f"{self.key} was deleted while it was being followed")


def follow_task(log: Log, follower: TaskFollower) -> Iterator[Event]:
    """Yield the events of a task as they are recorded."""
    waiter = ChangeWaiter(log.backend, follower.key)
    try:
        while True:
            page = ops.run_until_settled(log, follower.read_page)
            yield from page
            if follower.is_over(page):
                return
            if page:
                waiter.reset()
            else:
                waiter.wait(follower.timer.left())
    finally:
        waiter.close()


async def follow_task_async(log: Log, follower: TaskFollower) -> AsyncIterator[Event]:
    """`follow_task` as an async iterator."""
    waiter = ChangeWaiter(log.backend, follower.key)
    try:
        while True:
            page = await ops.run_until_settled_async(log, follower.read_page)
            for event in page:
                yield event
            if follower.is_over(page):
                return
            if page:
                waiter.reset()
            else:
                await waiter.wait_async(follower.timer.left())
    finally:
        waiter.close()


class EndWaiter:
    """Waits until a task has ended, or will not continue by itself."""

    def __init__(self, key: StreamKey, timeout: float | timedelta | None) -> None:
        self._key, self._timer = key, _Timer(timeout)
        self._status: Status = "pending"

    def wait(self, log: Log) -> TaskView:
        """Return the task once it has ended. Raise `WaitTimeout` if that takes too long."""
        waiter = ChangeWaiter(log.backend, self._key)
        try:
            while True:
                view = ops.run_until_settled(log, self._load_ended)
                if view is not None:
                    return view
                waiter.wait(self._seconds_left())
        finally:
            waiter.close()

    async def wait_async(self, log: Log) -> TaskView:
        """`wait`, awaited."""
        waiter = ChangeWaiter(log.backend, self._key)
        try:
            while True:
                view = await ops.run_until_settled_async(log, self._load_ended)
                if view is not None:
                    return view
                await waiter.wait_async(self._seconds_left())
        finally:
            waiter.close()

    def _load_ended(self) -> Operation[TaskView | None]:
        head = yield from require_head(self._key)
        self._status = head.fields.status or "pending"  # type: ignore[assignment]  # a task's
        if self._status not in AT_REST:
            return None
        view = yield from load_view(self._key)
        # Another process may have submitted it again in between.
        return view if view is not None and view.status in AT_REST else None

    def _seconds_left(self) -> float | None:
        left = self._timer.left()
        if left == 0.0:
            raise WaitTimeout(str(self._key), status=self._status)
        return left
