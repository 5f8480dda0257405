"""Asking an embedder without holding anybody up: a recall is a script that says what to wait for, and two drivers wait for it.

The few threads in which an async store reads must not wait for a model: everything else of the store would wait with it. So a
coroutine is awaited on the loop of whoever asks, and a plain function is called in one of a few threads of its own, for the plain
store as well: nobody could stop waiting for a function that runs in his own thread.
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

THREADS: Final = 4
"""So many plain embedders are called at once."""
MOST_LOST: Final = 16
"""So many calls may never come back before no more are made."""


class EmbedderFailed(Exception):
    """An embedder gave no vectors. Never shown to users: a recall goes on without it, and the log says so."""


class TooSlow(EmbedderFailed):
    """It did not answer in time."""

    def __init__(self) -> None:
        super().__init__("it did not answer in time")


class CallBlocking(NamedTuple):
    """Do something that blocks and has to do with the store only."""

    action: Callable[[], Any]


class CallEmbedder(NamedTuple):
    """Call an embedder, `until` a time of `time.monotonic`; `TooSlow` after it. One that `is_async` is called on the event loop."""

    callers: Callers
    call: Callable[[], Any]
    is_async: bool
    until: float | None


class WaitForFuture(NamedTuple):
    """Wait until somebody else is done, or that long."""

    done: Future[None]
    until: float | None


Script = Generator[CallBlocking | CallEmbedder | WaitForFuture, Any, T]


def is_async(embed: object) -> bool:
    """Whether it is a coroutine function, an object that is called like one, or says so (`is_async`)."""
    return (
        inspect.iscoroutinefunction(embed)
        or inspect.iscoroutinefunction(getattr(type(embed), "__call__", None))  # noqa: B004  what it is, not whether
        or getattr(embed, "is_async", None) is True
    )


# -- the two drivers -------------------------------------------------------------------------------


def run(script: Script[T]) -> T:
    """Run a script in this thread."""
    return drive(script, _perform, Exception)


async def run_async(log: Log, script: Script[T]) -> T:
    """Run a script, awaiting what it waits for."""
    return await drive_async(script, partial(_perform_async, log), Exception)


def _perform(effect: CallBlocking | CallEmbedder | WaitForFuture) -> Any:
    if isinstance(effect, CallBlocking):
        return effect.action()
    if isinstance(effect, WaitForFuture):
        wait([effect.done], _left(effect.until))
        return None
    future = effect.callers.submit(effect.call)
    if not wait([future], _left(effect.until)).done:
        effect.callers.give_up(future)
        raise TooSlow
    made = future.result()
    if inspect.isawaitable(made):
        if inspect.iscoroutine(made):
            made.close()
        raise TypeError("an embedder that is awaited needs the async store")
    return made


async def _perform_async(log: Log, effect: CallBlocking | CallEmbedder | WaitForFuture) -> Any:
    import asyncio

    if isinstance(effect, CallBlocking):
        return await log.in_thread(effect.action)
    if isinstance(effect, WaitForFuture):
        await asyncio.wait([asyncio.wrap_future(effect.done)], timeout=_left(effect.until))
        return None
    plain = None if effect.is_async else effect.callers.submit(effect.call)
    asked = asyncio.ensure_future(
        _answer(effect.call() if plain is None else asyncio.wrap_future(plain))
    )
    try:
        await asyncio.wait([asked], timeout=_left(effect.until))
        if not asked.done():
            raise TooSlow
        return asked.result()
    finally:
        if not asked.done():
            # Not waited for: whoever is late may be so with this as well.
            asked.add_done_callback(lambda late: late.cancelled() or late.exception())
            asked.cancel()
            if plain is not None:
                effect.callers.give_up(plain)


async def _answer(made: Any) -> Any:
    """What a call gives; awaited, and awaited again if a plain function gave a coroutine."""
    while inspect.isawaitable(made):
        made = await made
    return made


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - time.monotonic(), 0.0)


# -- threads ---------------------------------------------------------------------------------------


class Callers:
    """A few threads that call plain embedders. A process does not wait for them to end, nor does a store."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle, self._threads = threading.Semaphore(0), 0
        self._lost: set[Future[Any]] = set()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Have it called, with the context variables of whoever asks."""
        future: Future[Any] = Future()
        with self._lock:
            if len(self._lost) >= MOST_LOST:
                future.set_exception(TooSlow())
                return future
            context = copy_context()
            self._jobs.put((future, lambda: context.run(call)))
            if not self._idle.acquire(blocking=False) and self._threads < THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="holdfast-embed", daemon=True).start()
        return future

    def give_up(self, future: Future[Any]) -> None:
        """Nobody waits for it any more. If it runs already, another thread takes the place of its own."""
        if future.cancel():
            return
        with self._lock:
            if not future.done() and future not in self._lost:
                self._lost.add(future)
                self._threads -= 1

    def close(self) -> None:
        """Let the threads end that have nothing to do, and the others when their calls come back."""
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
                    lost = future in self._lost
                    self._lost.discard(future)
                    # Said inside: whoever gives it up has to know whether it is done.
                    _settle(future, result, error)
                if lost:
                    return
            del job, future, call
            self._idle.release()


def _settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
