"""Call an embedder without blocking the store: the effects of a recall.

The few threads in which an async store reads must not wait for a model: the rest of the store would
wait too. So an async embedder is awaited on the caller's event loop, and a synchronous one is
called in one of a few dedicated threads. The synchronous store uses these threads too, because a
call in the caller's own thread could not time out.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from ...log.drivers import Effect

if TYPE_CHECKING:
    from ...log.log import Log

MAX_THREADS: Final = 4
"""The maximum number of concurrent calls of synchronous embedders."""
MAX_STUCK_CALLS: Final = 16
"""How many calls may hang before no more are started."""


class EmbedderFailed(Exception):
    """An embedder returned no vectors. Internal: a recall logs this and continues without them."""


class EmbedderTimeout(EmbedderFailed):
    """The embedder did not answer in time."""

    def __init__(self) -> None:
        super().__init__("it did not answer in time")


class CallBlocking(Effect):
    """Call a function that blocks, but only on the store."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    def perform(self, log: Log) -> Any:
        return self.action()

    async def perform_async(self, log: Log) -> Any:
        return await log.run_in_thread(self.action)


class CallEmbedder(Effect):
    """Call an embedder. An async embedder is called on the event loop.

    Raise `EmbedderTimeout` if it has not answered by `until`, a `time.monotonic` value.
    """

    __slots__ = ("call", "is_async", "threads", "until")

    def __init__(
        self, threads: EmbedderThreads, call: Callable[[], Any], is_async: bool, until: float | None
    ) -> None:
        self.threads, self.call, self.is_async, self.until = threads, call, is_async, until

    def perform(self, log: Log) -> Any:
        future = self.threads.submit(self.call)
        if not wait([future], _seconds_left(self.until)).done:
            self.threads.give_up(future)
            raise EmbedderTimeout
        result = future.result()
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(
                "embed must be a synchronous function, got an async one; use the async store"
            )
        return result

    async def perform_async(self, log: Log) -> Any:
        import asyncio

        future = None if self.is_async else self.threads.submit(self.call)
        task = asyncio.ensure_future(
            _await_result(self.call() if future is None else asyncio.wrap_future(future))
        )
        try:
            await asyncio.wait([task], timeout=_seconds_left(self.until))
            if not task.done():
                raise EmbedderTimeout
            return task.result()
        finally:
            if not task.done():
                # Not awaited: a call that is late may also be slow to cancel.
                task.add_done_callback(lambda late: late.cancelled() or late.exception())
                task.cancel()
                if future is not None:
                    self.threads.give_up(future)


class WaitForFuture(Effect):
    """Wait for another caller's future, at most until `until`, a `time.monotonic` value."""

    __slots__ = ("done", "until")

    def __init__(self, done: Future[None], until: float | None) -> None:
        self.done, self.until = done, until

    def perform(self, log: Log) -> None:
        wait([self.done], _seconds_left(self.until))

    async def perform_async(self, log: Log) -> None:
        import asyncio

        await asyncio.wait([asyncio.wrap_future(self.done)], timeout=_seconds_left(self.until))


def is_async(embed: object) -> bool:
    """Whether an embedder is a coroutine function, has an async `__call__`, or sets `is_async`."""
    return (
        inspect.iscoroutinefunction(embed)
        or inspect.iscoroutinefunction(getattr(type(embed), "__call__", None))  # noqa: B004
        or getattr(embed, "is_async", None) is True
    )


async def _await_result(result: Any) -> Any:
    """Await the result of a call, and again if a plain function returned a coroutine."""
    while inspect.isawaitable(result):
        result = await result
    return result


def _seconds_left(until: float | None) -> float | None:
    return None if until is None else max(until - time.monotonic(), 0.0)


# -- threads ---------------------------------------------------------------------------------------


class EmbedderThreads:
    """A few daemon threads that call synchronous embedders. Nothing waits for them to end."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle, self._threads = threading.Semaphore(0), 0
        self._stuck: set[Future[Any]] = set()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Call a function in a thread, with the caller's context variables."""
        future: Future[Any] = Future()
        with self._lock:
            if len(self._stuck) >= MAX_STUCK_CALLS:
                future.set_exception(EmbedderTimeout())
                return future
            context = copy_context()
            self._jobs.put((future, lambda: context.run(call)))
            if not self._idle.acquire(blocking=False) and self._threads < MAX_THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="holdfast-embed", daemon=True).start()
        return future

    def give_up(self, future: Future[Any]) -> None:
        """Abandon a call. If it is running, a new thread may replace the one it occupies."""
        if future.cancel():
            return
        with self._lock:
            if not future.done() and future not in self._stuck:
                self._stuck.add(future)
                self._threads -= 1

    def close(self) -> None:
        """End idle threads now, and the others when their calls return."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                result, error = None, None
                try:
                    result = call()
                except BaseException as problem:
                    error = problem
                with self._lock:
                    stuck = future in self._stuck
                    self._stuck.discard(future)
                    # Under the lock: `give_up` has to know whether the call is done.
                    if error is None:
                        future.set_result(result)
                    else:
                        future.set_exception(error)
                if stuck:
                    return
            del job, future, call
            self._idle.release()
