"""An event loop for the async agents of a worker."""

from __future__ import annotations

import threading
from typing import Any


class LoopThread:
    """An event loop in a thread of its own, from the first time it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: Any = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Any) -> Any:
        """What a coroutine gives, run in the loop."""
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_go_on, args=(self._loop,), name="holdfast-agents", daemon=True
                )
                self._thread.start()
        ended = threading.Event()

        async def watched() -> Any:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(watched(), self._loop)
        try:
            return future.result()
        finally:
            if future.cancel():  # this thread was interrupted: the agent leaves its task in order
                ended.wait()

    def stop(self) -> None:
        """End the loop. Nothing runs in it any more."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _go_on(loop: Any) -> None:
    """Run an event loop until it is stopped. `SystemExit` in one agent is not the end of the others."""
    while True:
        try:
            loop.run_forever()
            return
        except (SystemExit, KeyboardInterrupt):
            continue  # whoever waits for that agent hears of it
