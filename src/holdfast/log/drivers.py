"""The two drivers: `drive` and `drive_async` run everything that works sync and async.

Such code is written once, as a generator. It yields storage requests (see `operations`) and
effects, and receives their results. `drive` calls the log for a request and performs an effect;
`drive_async` awaits both. A request or effect that fails raises its error inside the generator,
which may handle it.

The requests between two effects share one deadline (`holdfast.open(timeout=)`): no time counts that
passes in user code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar
from weakref import ReferenceType, ref

from ..backends import clock, deadline
from ..backends.deadline import Deadline

if TYPE_CHECKING:
    import asyncio

    from .operations import Request

T = TypeVar("T")
Y = TypeVar("Y")


class Handler(Protocol):
    """What the drivers need from a log."""

    timeout: float
    """How long a call may take, in seconds. Each page that is read restarts it."""

    def handle(self, request: Request) -> Any:
        """Perform a storage request."""

    async def handle_async(self, request: Request) -> Any:
        """Perform a storage request without blocking the event loop."""

    def conflict_lock(self) -> AbstractContextManager[Any]:
        """Return the lock that one thread at a time holds while it retries after a conflict."""

    def conflict_lock_async(self) -> asyncio.Lock:
        """Return the lock that one task of the running loop at a time holds for retries."""


class Effect:
    """Something that a generator asks of its driver and that is no storage request.

    A subclass says how to perform it. If it `runs_in_thread`, `start_thread` does so in an async
    task, and the driver waits for the thread even when it is cancelled.
    """

    __slots__ = ()

    keeps_deadline: ClassVar[bool] = False
    """Whether the requests before and after it are one call with one deadline."""
    outlives_cancellation: ClassVar[bool] = False
    """Whether to perform it after a cancellation too: recording an outcome may need it."""
    runs_in_thread: bool = False

    def perform(self, log: Any) -> Any:
        """Perform it in this thread."""
        raise TypeError(f"{type(self).__name__} is for run_to, no driver performs it")

    async def perform_async(self, log: Any) -> Any:
        """Perform it without blocking the event loop."""
        return self.perform(log)

    def start_thread(self) -> asyncio.Future[Any]:
        """Start to perform it in a thread."""
        raise TypeError(f"{type(self).__name__} does not run in a thread")


EffectGen = Generator["Request | Effect", Any, T]
"""A generator for the drivers. It returns a `T`."""


class Sleep(Effect):
    """Wait for a number of seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def perform(self, log: Any) -> None:
        clock.sleep(self.seconds)

    async def perform_async(self, log: Any) -> None:
        await clock.sleep_async(self.seconds)


class NewDeadline(Effect):
    """Give the following requests a new deadline.

    For a write that matters more than the requests before it.
    """

    __slots__ = ()

    outlives_cancellation = True

    def perform(self, log: Any) -> None:
        """Do nothing: an effect ends the deadline of the requests before it."""


class ConflictLock(Effect):
    """Return the lock for retries after a conflict, for a `with` statement.

    Sync, the `with` statement acquires it: no interrupt can come in between. Async, it is acquired
    here: no cancellation can come before the `with` statement.
    """

    __slots__ = ()

    keeps_deadline = True
    outlives_cancellation = True

    def perform(self, log: Handler) -> AbstractContextManager[Any]:
        return log.conflict_lock()

    async def perform_async(self, log: Handler) -> AbstractContextManager[Any]:
        lock = log.conflict_lock_async()
        await lock.acquire()
        return _HeldLock(lock)


class _HeldLock(AbstractContextManager[None]):
    """Releases an asyncio lock, which is held already."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _start_deadline(seconds: float, outer: ReferenceType[Deadline] | None) -> Deadline:
    """Start the deadline of a call. A nested call has that of the `outer` one."""
    found = None if outer is None else outer()
    if found is None:
        found = Deadline(deadline.monotonic() + seconds)
    deadline.current.set(ref(found))
    return found


def drive(log: Handler, generator: EffectGen[T]) -> T:
    """Run a generator, and return its value."""
    send: Callable[[Any], Request | Effect] = generator.send
    value: Any = None
    outer, limit = deadline.current.get(), None
    try:
        while True:
            try:
                asked = send(value)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                if isinstance(asked, Effect):
                    if limit is not None and not asked.keeps_deadline:
                        limit = None
                        deadline.current.set(outer)
                    value = asked.perform(log)
                else:
                    if limit is None:
                        limit = _start_deadline(log.timeout, outer)
                    value = log.handle(asked)
                send = generator.send
            except BaseException as error:
                send, value = generator.throw, error
    finally:
        if limit is not None:
            deadline.current.set(outer)
        generator.close()


async def drive_async(log: Handler, generator: EffectGen[T]) -> T:
    """Run a generator, awaiting its requests and effects.

    A thread cannot be cancelled. If the task is cancelled meanwhile, it waits for the thread; then
    the generator still records what the thread did, and the cancellation is raised at its end, or
    at its next effect.
    """
    send: Callable[[Any], Request | Effect] = generator.send
    value: Any = None
    cancelled = False
    outer, limit = deadline.current.get(), None
    try:
        while True:
            try:
                asked = send(value)
            except StopIteration as done:
                if cancelled:
                    raise _cancellation() from None
                result: T = done.value
                return result
            except Exception as error:
                # What ran in the thread failed, which is recorded. The caller was cancelled.
                if cancelled:
                    raise _cancellation() from error
                raise
            try:
                if isinstance(asked, Effect):
                    if cancelled and not asked.outlives_cancellation:
                        raise _cancellation()
                    if limit is not None and not asked.keeps_deadline:
                        limit = None
                        deadline.current.set(outer)
                    if asked.runs_in_thread:
                        thread = asked.start_thread()
                        cancelled |= await wait_uncancelled(thread)
                        value = thread.result()
                    else:
                        value = await asked.perform_async(log)
                else:
                    if limit is None:
                        limit = _start_deadline(log.timeout, outer)
                    value = await log.handle_async(asked)
                send = generator.send
            except BaseException as error:
                send, value = generator.throw, error
    finally:
        if limit is not None:
            deadline.current.set(outer)
        generator.close()


async def drive_uncancelled(log: Handler, generator: EffectGen[T]) -> T:
    """Run a generator to its end, even when cancelled. Raise the cancellation afterwards."""
    import asyncio

    running = asyncio.ensure_future(drive_async(log, generator))
    if await wait_uncancelled(running):
        running.exception()  # retrieve it, so asyncio doesn't log it
        raise _cancellation()
    return running.result()


async def wait_uncancelled(future: asyncio.Future[Any]) -> bool:
    """Wait for a future to end, even when cancelled. Return True if the wait was cancelled.

    A function in a thread can't be stopped, and the lease must not be released while it runs.
    """
    import asyncio

    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


def _cancellation() -> BaseException:
    import asyncio

    return asyncio.CancelledError()


class Ended:
    """The end of a generator that `run_to` has run, with its value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def run_to(
    kind: type[Any], generator: Generator[Y, Any, Any], send: Callable[[Any], Y], value: Any = None
) -> Generator[Y, Any, Any]:
    """Run a generator on to the next request or effect of a kind, and return that, unperformed.

    Return `Ended` at the end of the generator. Continue with `send`, which is `generator.send` or
    `generator.throw`, and its value.
    """
    while True:
        try:
            asked = send(value)
        except StopIteration as done:
            return Ended(done.value)
        if isinstance(asked, kind):
            return asked
        try:
            value = yield asked
            send = generator.send
        except BaseException as error:
            send, value = generator.throw, error
