"""Call an embedder without blocking the store: generators yield calls, two drivers run them.

The few threads in which an async store reads must not wait for a model: the rest of the store would
wait too. So a coroutine is awaited on the caller's event loop, and a future function is called in
one of a few threads of its own. The synchronous store does the same, because a call in the caller's
own thread could not time out.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ...log.drivers import drive, drive_async

if TYPE_CHECKING:
    from ...log.log import Log

T = TypeVar("T")

MAX_THREADS: Final = 4
"""Synchronous embedder calls at the same time."""
MAX_STUCK_CALLS: Final = 16
"""Calls that may hang before no more are started."""


class EmbedderFailed(Exception):
    """An embedder returned no vectors. Internal: a recall continues without them and logs it."""


class EmbedderTimeout(EmbedderFailed):
    """The embedder did not answer in time."""

    def __init__(self) -> None:
        super().__init__("it did not answer in time")


class CallBlocking(NamedTuple):
    """Call a function that blocks on the store only."""

    action: Callable[[], Any]


class CallEmbedder(NamedTuple):
    """Call an embedder `until` a time of `time.monotonic`, then raise `EmbedderTimeout`.

    An async one is called on the event loop.
    """

    threads: EmbedderThreads
    call: Callable[[], Any]
    is_async: bool
    until: float | None


class WaitForFuture(NamedTuple):
    """Wait for another caller's future, `until` a time."""

    done: Future[None]
    until: float | None


EmbedGen = Generator[CallBlocking | CallEmbedder | WaitForFuture, Any, T]


def is_async(embed: object) -> bool:
    """Whether it is a coroutine function or object, or says so (`is_async`)."""
    return (
        inspect.iscoroutinefunction(embed)
        or inspect.iscoroutinefunction(getattr(type(embed), "__call__", None))  # noqa: B004
        or getattr(embed, "is_async", None) is True
    )


# -- the two drivers -------------------------------------------------------------------------------


def run_embed(gen: EmbedGen[T]) -> T:
    """Run a generator in this thread."""
    return drive(gen, _perform, Exception)


async def run_embed_async(log: Log, gen: EmbedGen[T]) -> T:
    """Run a generator on the event loop."""
    return await drive_async(gen, partial(_perform_async, log), Exception)


def _perform(effect: CallBlocking | CallEmbedder | WaitForFuture) -> Any:
    if isinstance(effect, CallBlocking):
        return effect.action()
    if isinstance(effect, WaitForFuture):
        wait([effect.done], _seconds_left(effect.until))
        return None
    future = effect.threads.submit(effect.call)
    if not wait([future], _seconds_left(effect.until)).done:
        effect.threads.give_up(future)
        raise EmbedderTimeout
    result = future.result()
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            "embed must be a synchronous function, got an async one; use the async store"
        )
    return result


async def _perform_async(log: Log, effect: CallBlocking | CallEmbedder | WaitForFuture) -> Any:
    import asyncio

    if isinstance(effect, CallBlocking):
        return await log.run_in_thread(effect.action)
    if isinstance(effect, WaitForFuture):
        await asyncio.wait([asyncio.wrap_future(effect.done)], timeout=_seconds_left(effect.until))
        return None
    future = None if effect.is_async else effect.threads.submit(effect.call)
    task = asyncio.ensure_future(
        _await_result(effect.call() if future is None else asyncio.wrap_future(future))
    )
    try:
        await asyncio.wait([task], timeout=_seconds_left(effect.until))
        if not task.done():
            raise EmbedderTimeout
        return task.result()
    finally:
        if not task.done():
            # Not awaited: a late call may be late to cancel too.
            task.add_done_callback(lambda late: late.cancelled() or late.exception())
            task.cancel()
            if future is not None:
                effect.threads.give_up(future)


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
        """Abandon a call. If it is running already, a new thread replaces its own."""
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
                    # Under the lock: `give_up` has to know whether it is done.
                    if error is None:
                        future.set_result(result)
                    else:
                        future.set_exception(error)
                if stuck:
                    return
            del job, future, call
            self._idle.release()
