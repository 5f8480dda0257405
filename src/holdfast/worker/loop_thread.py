"""The event loop in which a worker runs its async agents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class LoopThread:
    """An event loop in a thread of its own, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: Any = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Any, on_interrupt: Callable[[], None]) -> Any:
        """Run a coroutine in the loop and return its result.

        If this thread is interrupted, call `on_interrupt`, cancel the coroutine and wait for it.
        """
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="holdfast-agents", daemon=True
                )
                self._thread.start()
        ended = threading.Event()

        async def run_and_signal() -> Any:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run_and_signal(), self._loop)
        try:
            return future.result()
        finally:
            if not future.done():  # this thread was interrupted: let the agent leave its task
                on_interrupt()
                if future.cancel():
                    ended.wait()

    def stop(self) -> None:
        """Stop the loop. No coroutine may be running in it."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _run_loop(loop: Any) -> None:
    """Run an event loop until it is stopped. `SystemExit` in one agent must not end the others."""
    while True:
        try:
            loop.run_forever()
            return
        except (SystemExit, KeyboardInterrupt):
            continue  # the thread that waits for that agent gets it from the future
