"""The time, as leases, timers, expiry and events see it. Everything asks here, so that tests can have a clock of their own.

Called as attributes of this module (`_clock.time()`), never imported by name: `holdfast.testing` replaces them.
"""

from __future__ import annotations

from time import monotonic, sleep, time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

__all__ = ["monotonic", "sleep", "sleep_async", "time", "wait"]


async def sleep_async(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def wait(condition: threading.Condition, seconds: float) -> None:
    """Until somebody notifies, at most so many seconds."""
    condition.wait(seconds)
