"""A thread pool for concurrent requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .. import deadline

T = TypeVar("T")


class RequestPool:
    """A pool of threads. With width 0, everything runs in the calling thread."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._local = threading.local()

    def run_all(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Run all functions and return their results in order.

        Raise the first error after all have ended.
        """
        # A pool thread must not wait for another one: all of them could be waiting.
        if self._width == 0 or len(works) < 2 or getattr(self._local, "in_pool", False):
            return [work() for work in works]
        with self._lock:
            pool = self._get_pool()
            futures = [pool.submit(self._run, deadline.carry(work)) for work in works]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def run_later(self, work: Callable[[], object]) -> None:
        """Run the function in the background and ignore its errors."""
        if self._width == 0:
            work()
            return
        with self._lock:
            future: Future[Any] = self._get_pool().submit(self._run, work)
        future.add_done_callback(lambda done: done.exception())

    def stop(self) -> None:
        """Wait for all work and end the threads. They start again when needed."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=True)
                self._pool = None

    def _get_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._width, thread_name_prefix="holdfast")
        return self._pool

    def _run(self, work: Callable[[], T]) -> T:
        self._local.in_pool = True
        return work()
