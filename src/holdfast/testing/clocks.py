"""A fake clock. Leases, heartbeats, timers, TTLs and pauses follow it; nothing really sleeps."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

from ..backends import clock
from ..log import leases
from ..log.validation import check_seconds as as_seconds


class FakeClock:
    """A clock that moves only when you `advance` it, or where Holdfast would sleep."""

    def __init__(self, start: float) -> None:
        # Whole seconds: sums of them are exact, however long the machine has been up.
        self._start, self._origin = start, float(math.ceil(clock.monotonic()))
        self._passed = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._start + self._passed

    def advance(self, seconds: float | timedelta) -> None:
        """Move the clock forward, running each heartbeat at its due time on the way."""
        target = self._passed + as_seconds(seconds, "seconds")
        while True:
            beating = {
                heart: due
                for heart in list(leases.heartbeats)
                if (due := heart.next_due()) is not None
            }
            due = min(beating.values(), default=math.inf)
            if due > self._origin + target:
                break
            self._move(due - self._origin)
            for heart in beating:
                heart.run_due()
        self._move(target)

    def jump(self, seconds: float | timedelta) -> None:
        """Move the clock forward without heartbeats, as if this process had been stopped.

        Leases that this process owns may run out.
        """
        length = as_seconds(seconds, "seconds")
        for heart in list(leases.heartbeats):
            heart.postpone(length)
        self._move(self._passed + length)

    def set_back(self, seconds: float | timedelta) -> None:
        """Set the time of day back, as when the clock of the machine is corrected.

        No time passes: pauses and heartbeats are not affected.
        """
        with self._lock:
            self._start -= as_seconds(seconds, "seconds")

    def _move(self, passed: float) -> None:
        with self._lock:
            self._passed = max(self._passed, passed)

    def _monotonic(self) -> float:
        return self._origin + self._passed

    def _sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def _sleep_async(self, seconds: float) -> None:
        import asyncio

        self._sleep(seconds)
        await asyncio.sleep(0)


class SilentClock(FakeClock):
    """A fake clock that never runs heartbeats, so that every run makes the same writes."""

    def _sleep(self, seconds: float) -> None:
        self.jump(seconds)


def fake_clock(start: float | None = None) -> AbstractContextManager[FakeClock]:
    """Replace the clock of the whole process. It starts at `start`, or else at the real time.

    Where Holdfast would sleep, it moves the clock instead. Leave all task blocks before this one.
    """
    return use_clock(FakeClock(clock.time() if start is None else start))


@contextmanager
def use_clock(fake: FakeClock) -> Iterator[FakeClock]:
    """Replace the real clock with `fake` inside the block."""
    before = {
        name: getattr(clock, name)
        for name in (
            "time",
            "monotonic",
            "adjust_server_time",
            "wait_for_event",
            "wait_for_event_async",
            "sleep",
            "sleep_async",
            "wait_for_message",
        )
    }
    vars(clock).update(
        time=fake.now,
        monotonic=fake._monotonic,
        adjust_server_time=lambda _now: fake.now(),
        wait_for_event=lambda _event, seconds: fake._sleep(seconds),
        wait_for_event_async=lambda _event, seconds: fake._sleep_async(seconds),
        sleep=fake._sleep,
        sleep_async=fake._sleep_async,
        wait_for_message=lambda inbox, _seconds: inbox.get(),
    )
    try:
        yield fake
    finally:
        vars(clock).update(before)
        for heart in list(leases.heartbeats):
            heart.wake()
