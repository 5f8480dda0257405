"""The time, as leases, timers, expiry and events see it. Everything asks here, so that tests can have a clock of their own.

Called as attributes of this module (`_clock.time()`), never imported by name: `holdfast.testing` replaces them.
"""

from __future__ import annotations

from datetime import datetime, timezone
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    import threading

__all__ = [
    "moment",
    "monotonic",
    "of_engine",
    "rest",
    "rest_async",
    "sleep",
    "sleep_async",
    "time",
    "wait",
]


def of_engine(now: float) -> float:
    """The time, where a server says it: its clock is the one that all its clients share."""
    return now


EARLIEST: Final = -62_135_596_800.0
"""The first second of the year 1, and the last of 9999: what a datetime can be."""
LATEST: Final = 253_402_300_799.0


def moment(stored: float) -> datetime:
    """A stored time, in UTC. Whoever can write to the store can write any number: what no calendar has is the nearest that one has."""
    if not EARLIEST <= stored <= LATEST:  # nor is what is no number
        stored = LATEST if stored > LATEST else EARLIEST
    return datetime.fromtimestamp(stored, timezone.utc)


async def sleep_async(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def rest(event: threading.Event, seconds: float) -> None:
    """Sleep, but not beyond the event."""
    event.wait(seconds)


async def rest_async(event: asyncio.Event, seconds: float) -> None:
    """Sleep, but not beyond the event."""
    import asyncio

    try:
        await asyncio.wait_for(event.wait(), seconds)
    except (TimeoutError, asyncio.TimeoutError):
        pass


def wait(condition: threading.Condition, seconds: float) -> None:
    """Until somebody notifies, at most so many seconds."""
    condition.wait(seconds)
