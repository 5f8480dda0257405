"""Waiting until a stream may have changed: the engine rings, where it can; elsewhere one looks again after a while."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ..backends import Backend, BillsRequests, StreamKey, SupportsWatch, clock

if TYPE_CHECKING:
    import asyncio

FIRST_LOOK: Final = 0.01
LONGEST_LOOK: Final = 0.25
LONGEST_LOOK_WHEN_RUNG: Final = 5.0
"""Where the engine has proven that it rings, looking is only for what it may have missed."""


class ChangeWaiter:
    """When to look at a stream again: when it rings, or after a pause that grows while nothing is found."""

    def __init__(self, backend: Backend, stream: StreamKey) -> None:
        self._rung = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung_in_loop: asyncio.Event | None = None
        self._heard = False
        self._pause = FIRST_LOOK
        self._longest = backend.look_seconds if isinstance(backend, BillsRequests) else LONGEST_LOOK
        self._stop = (
            backend.watch(stream, self._ring) if isinstance(backend, SupportsWatch) else None
        )

    def found(self) -> None:
        """Something was found: more may come soon."""
        self._pause = FIRST_LOOK

    def wait(self) -> None:
        """Until it is time to look again."""
        if self._stop is None:
            clock.sleep(self._next_pause())
        elif not self._rung.is_set():
            clock.rest(self._rung, self._next_pause())
        self._rung.clear()

    async def wait_async(self) -> None:
        """`wait`, awaited."""
        import asyncio

        if self._stop is None:
            await clock.sleep_async(self._next_pause())
            return
        if self._rung_in_loop is None:
            self._loop, self._rung_in_loop = asyncio.get_running_loop(), asyncio.Event()
        if not self._rung.is_set():
            await clock.rest_async(self._rung_in_loop, self._next_pause())
        self._rung_in_loop.clear()
        self._rung.clear()

    def close(self) -> None:
        if self._stop is not None:
            self._stop()

    def _next_pause(self) -> float:
        pause, longest = self._pause, LONGEST_LOOK_WHEN_RUNG if self._heard else self._longest
        self._pause = min(pause * 2, longest)
        return min(pause, longest)

    def _ring(self) -> None:
        self._heard = True
        self._rung.set()
        if self._loop is not None and self._rung_in_loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._rung_in_loop.set)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more
