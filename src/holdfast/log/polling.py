"""Wait until a stream may have changed: for a notification if the backend has them, else poll."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ..backends import Backend, BillsRequests, StreamKey, SupportsWatch, clock

if TYPE_CHECKING:
    import asyncio

MIN_POLL_SECONDS: Final = 0.01
MAX_POLL_SECONDS: Final = 0.25
MAX_POLL_SECONDS_WITH_NOTIFY: Final = 5.0
"""The limit once a notification has arrived: polling then only covers lost notifications."""


class ChangeWaiter:
    """Waits for a notification, or for a pause that grows while nothing is found."""

    def __init__(self, backend: Backend, stream: StreamKey) -> None:
        self._notified = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notified_in_loop: asyncio.Event | None = None
        self._has_notified = False
        self._pause = MIN_POLL_SECONDS
        self._limit = (
            backend.min_poll_seconds if isinstance(backend, BillsRequests) else MAX_POLL_SECONDS
        )
        self._stop = (
            backend.watch(stream, self._notify) if isinstance(backend, SupportsWatch) else None
        )

    def reset(self) -> None:
        """Poll quickly again: something was found, and more may come soon."""
        self._pause = MIN_POLL_SECONDS

    def wait(self, at_most: float | None = None) -> None:
        """Return when it is time to read the stream again, at most this many seconds from now."""
        if self._stop is None:
            clock.sleep(self._next_pause(at_most))
        elif not self._notified.is_set():
            clock.wait_for_event(self._notified, self._next_pause(at_most))
        self._notified.clear()

    async def wait_async(self, at_most: float | None = None) -> None:
        """`wait`, awaited."""
        import asyncio

        if self._stop is None:
            await clock.sleep_async(self._next_pause(at_most))
            return
        if self._notified_in_loop is None:
            self._loop, self._notified_in_loop = asyncio.get_running_loop(), asyncio.Event()
        if not self._notified.is_set():
            await clock.wait_for_event_async(self._notified_in_loop, self._next_pause(at_most))
        self._notified_in_loop.clear()
        self._notified.clear()

    def close(self) -> None:
        if self._stop is not None:
            self._stop()

    def _next_pause(self, at_most: float | None) -> float:
        pause, limit = (
            self._pause,
            MAX_POLL_SECONDS_WITH_NOTIFY if self._has_notified else self._limit,
        )
        self._pause = min(pause * 2, limit)
        return min(pause, limit, limit if at_most is None else at_most)

    def _notify(self) -> None:
        self._has_notified = True
        self._notified.set()
        if self._loop is not None and self._notified_in_loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._notified_in_loop.set)
            except RuntimeError:
                pass  # the loop is closed, so no task waits for this
