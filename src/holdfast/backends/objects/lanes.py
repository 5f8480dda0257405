"""Several requests at once: a store over a network waits more than it works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadLanes:
    """A pool of threads. With a width of 0, everything is done at once by who asks for it."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._inside = threading.local()

    def all(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Do all of them and give their results in order. The first error is raised when all have ended."""
        # What runs in a lane must not wait for another: all lanes could be waiting.
        if self._width == 0 or len(works) < 2 or getattr(self._inside, "here", False):
            return [work() for work in works]
        with self._lock:
            pool = self._started()
            futures = [pool.submit(self._run, work) for work in works]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def later(self, work: Callable[[], object]) -> None:
        """Do it beside; whether it succeeds must not matter."""
        if self._width == 0:
            work()
            return
        with self._lock:
            future: Future[Any] = self._started().submit(self._run, work)
        future.add_done_callback(lambda done: done.exception())

    def stop(self) -> None:
        """Wait for everything, and end the threads. They start again when they are needed."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=True)
                self._pool = None

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._width, thread_name_prefix="holdfast")
        return self._pool

    def _run(self, work: Callable[[], T]) -> T:
        self._inside.here = True
        return work()
