"""The clock for leases, timers, expiry and events; tests replace it.

Call these functions as attributes of the module (`clock.time()`), and don't import them by name:
`holdfast.testing` replaces them.
"""

from __future__ import annotations

from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import asyncio
    import threading

T = TypeVar("T")

__all__ = [
    "adjust_server_time",
    "monotonic",
    "sleep",
    "sleep_async",
    "time",
    "to_datetime",
    "wait_for_event",
    "wait_for_event_async",
    "wait_for_message",
]


CLOCK_RESOLUTION_SECONDS: Final = 1.0
"""Resolution of the coarsest database clock: AWS sends its time in whole seconds."""


def adjust_server_time(now: float) -> float:
    """Return the time that a server reported. All clients of a server share its clock."""
    return now


MAX_SKEW_SECONDS: Final = 2.0
"""If the backend's clock differs from ours by more than this, times set by ours are corrected."""
MIN_TIMESTAMP: Final = -62_135_596_800.0
"""The first second of the year 1: the smallest value that a datetime can represent."""
MAX_TIMESTAMP: Final = 253_402_300_799.0
"""The last second of the year 9999."""


def to_datetime(stored: float) -> datetime:
    """Convert stored Unix seconds to a UTC datetime, clamped to the range of `datetime`.

    A damaged or manipulated store may contain any number.
    """
    if not MIN_TIMESTAMP <= stored <= MAX_TIMESTAMP:  # also true for NaN
        stored = MAX_TIMESTAMP if stored > MAX_TIMESTAMP else MIN_TIMESTAMP
    return datetime.fromtimestamp(stored, timezone.utc)


async def sleep_async(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def wait_for_event(event: threading.Event, seconds: float) -> None:
    """Wait until the event is set, at most this many seconds."""
    event.wait(seconds)


async def wait_for_event_async(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most this many seconds."""
    import asyncio

    try:
        await asyncio.wait_for(event.wait(), seconds)
    except (TimeoutError, asyncio.TimeoutError):
        pass


def wait_for_message(inbox: SimpleQueue[T], seconds: float | None) -> T | None:
    """Return the next message, or None after this many seconds."""
    try:
        return inbox.get(timeout=seconds)
    except Empty:
        return None
