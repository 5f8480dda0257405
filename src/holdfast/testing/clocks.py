"""A clock that is moved by hand. Leases, heartbeats, timers, times to live and pauses follow it; nothing sleeps in reality."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

from ..backends import clock as _clock
from ..log import leases
from ..log.validation import seconds as as_seconds


class FakeClock:
    """Stands still until it is moved: by `advance`, or by Holdfast itself where it would sleep (the pause before a retry, say)."""

    def __init__(self, start: float) -> None:
        self._start, self._begun = start, _clock.monotonic()
        self._passed = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """The time, in seconds since 1970."""
        return self._start + self._passed

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass. Every heartbeat that is due on the way is done at its time, before this returns."""
        target = self._passed + as_seconds(seconds, "seconds")
        while True:
            beating = {
                heart: due
                for heart in list(leases.heartbeats)
                if (due := heart.next_due()) is not None
            }
            due = min(beating.values(), default=math.inf)
            if due > self._begun + target:
                break
            self._move(due - self._begun)
            for heart in beating:
                heart.settle()
        self._move(target)

    def jump(self, seconds: float | timedelta) -> None:
        """Let time pass without a heartbeat, as if this process had been stopped meanwhile: what it holds runs out."""
        length = as_seconds(seconds, "seconds")
        for heart in list(leases.heartbeats):
            heart.postpone(length)
        self._move(self._passed + length)

    def _move(self, passed: float) -> None:
        with self._lock:
            self._passed = max(self._passed, passed)

    def _monotonic(self) -> float:
        return self._begun + self._passed

    def _sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def _sleep_async(self, seconds: float) -> None:
        import asyncio

        self._sleep(seconds)
        await asyncio.sleep(0)


class SilentClock(FakeClock):
    """One under which no heartbeat is ever done, so that a program makes the same writes each time."""

    def _sleep(self, seconds: float) -> None:
        self.jump(seconds)


def fake_clock(start: float | None = None) -> AbstractContextManager[FakeClock]:
    """Give Holdfast a clock that is moved by hand, in the whole process; it starts at the real time, or at `start` (seconds since 1970).

    Where Holdfast would sleep, it moves the clock by as much and goes on. Leave the blocks of tasks before this one.
    """
    return using(FakeClock(_clock.time() if start is None else start))


@contextmanager
def using(clock: FakeClock) -> Iterator[FakeClock]:
    """Put a clock in the place of the real one."""
    before = {
        name: getattr(_clock, name)
        for name in (
            "time",
            "monotonic",
            "of_engine",
            "rest",
            "rest_async",
            "sleep",
            "sleep_async",
            "wait",
        )
    }
    vars(_clock).update(
        time=clock.now,
        monotonic=clock._monotonic,
        of_engine=lambda _now: clock.now(),
        rest=lambda _event, seconds: clock._sleep(seconds),
        rest_async=lambda _event, seconds: clock._sleep_async(seconds),
        sleep=clock._sleep,
        sleep_async=clock._sleep_async,
        wait=_wait_to_be_told,
    )
    try:
        yield clock
    finally:
        vars(_clock).update(before)
        for heart in list(leases.heartbeats):
            heart.wake()


def _wait_to_be_told(condition: threading.Condition, _seconds: float) -> None:
    condition.wait()
