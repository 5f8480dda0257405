"""Task generators, the effects they yield, and the synchronous and async drivers that run them.

An operation decides without I/O. A task generator also has user code in the middle: it yields
`RunOperation`, `CallFunction` (the user's function), `Sleep` and the other effects below. `drive`
performs them, `drive_async` awaits them, so `Task` and `AsyncTask` share one implementation. A
generator of a streaming step yields `Emit` for each chunk: `stream` and `stream_async` drive it
from one chunk to the next.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...backends import clock
from ...errors import NoTask
from ...log import drivers
from ...log import operations as ops
from ...log.log import Log
from ...log.operations import Operation
from .frames import Frame, frame

if TYPE_CHECKING:
    import asyncio

    from .session import Session

T = TypeVar("T")

logger = logging.getLogger("holdfast")


class RunOperation:
    """Run an operation; retry it if another writer came first."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Operation[Any]]) -> None:
        self.make = make


class RunOnce:
    """Run an operation that handles conflicts itself."""

    __slots__ = ("operation",)

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation


class CallFunction:
    """Call the user's function, inside `frame` if given.

    An async function is awaited for at most `timeout` seconds.
    """

    __slots__ = ("args", "fn", "frame", "is_async", "kwargs", "timeout")

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        frame: Frame | None = None,
        is_async: bool = False,
        timeout: float | None = None,
    ) -> None:
        self.fn, self.args, self.kwargs, self.frame = fn, args, kwargs, frame
        self.is_async, self.timeout = is_async, timeout


class Sleep:
    """Wait for a number of seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class WaitForSteps:
    """Wait until no step runs inside a scope any more.

    Async steps are cancelled. Synchronous ones, in their threads, can't be.
    """

    __slots__ = ("scope", "session")

    def __init__(self, session: Session, scope: str = "") -> None:
        self.session, self.scope = session, scope


class Emit:
    """Give a chunk of a step to its consumer.

    The step at `path` is paused until the consumer requests the next chunk, which may be never.
    `closing` closes the source of the chunks, if that must be awaited.
    """

    __slots__ = ("chunk", "closing", "generator", "path", "session")

    def __init__(
        self, chunk: Any, session: Session, path: str, closing: CallFunction | None
    ) -> None:
        self.chunk, self.session, self.path, self.closing = chunk, session, path, closing
        self.generator: TaskGen[Any] | None = None


Effect = RunOperation | RunOnce | CallFunction | Sleep | WaitForSteps | Emit
TaskGen = Generator[Effect, Any, T]


def drive(log: Log, generator: TaskGen[T]) -> T:
    """Run a task generator, and return its value."""
    return drivers.drive(generator, partial(_perform, log), BaseException)


def _perform(log: Log, effect: Effect) -> Any:
    if type(effect) is CallFunction:
        token = None if effect.frame is None else frame.set(effect.frame)
        try:
            return effect.fn(*effect.args, **effect.kwargs)
        except StopIteration as error:  # a generator can't raise it
            raise RuntimeError("the function raised StopIteration") from error
        finally:
            if token is not None:
                frame.reset(token)
    if type(effect) is RunOnce:
        return ops.run(log, effect.operation)
    if type(effect) is RunOperation:
        return ops.run_until_settled(log, effect.make)
    if type(effect) is WaitForSteps:
        for paused in effect.session.take_paused_streams(effect.scope):
            _close_generator(paused)
        effect.session.wait_until_idle(effect.scope)
    elif type(effect) is not Emit:
        clock.sleep(cast("Sleep", effect).seconds)
    return None


def _call_sync(call: CallFunction) -> Any:
    """Call a synchronous function in a thread; before Python 3.12 StopIteration would hang it."""
    try:
        return call.fn(*call.args, **call.kwargs)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error


async def drive_async(log: Log, generator: TaskGen[T]) -> T:
    """Run a task generator, awaiting its effects. Synchronous functions run in threads."""
    send: Callable[[Any], Any] = generator.send
    value: Any = None
    thread: asyncio.Future[Any] | None = None
    cancelled = False
    try:
        while True:
            try:
                effect = send(value)
            except StopIteration as done:
                if cancelled:
                    raise _cancellation() from None
                return cast("T", done.value)
            except Exception as error:
                # The function in the thread failed, which is recorded; the caller was cancelled.
                if cancelled:
                    raise _cancellation() from error
                raise
            try:
                if cancelled and not isinstance(effect, RunOperation | RunOnce | WaitForSteps):
                    raise _cancellation()
                if type(effect) is CallFunction and not effect.is_async:
                    thread = _in_thread(effect)
                    cancelled = await _wait_uncancelled(thread) or cancelled
                    send, value = generator.send, thread.result()
                else:
                    send, value = generator.send, await _perform_async(log, effect)
            except BaseException as error:
                send, value = generator.throw, error
    finally:
        generator.close()


async def _perform_async(log: Log, effect: Effect) -> Any:
    if type(effect) is RunOnce:
        return await ops.run_async(log, effect.operation)
    if type(effect) is RunOperation:
        return await ops.run_until_settled_async(log, effect.make)
    if type(effect) is CallFunction:
        token = frame.set(effect.frame) if effect.frame is not None else None
        try:
            awaitable = effect.fn(*effect.args, **effect.kwargs)
            if effect.timeout is None:
                return await awaitable
            import asyncio

            try:
                return await asyncio.wait_for(awaitable, effect.timeout)
            except asyncio.TimeoutError as error:  # not a `TimeoutError` in Python 3.10
                raise (
                    error if isinstance(error, TimeoutError) else TimeoutError(str(error))
                ) from None
        finally:
            if token is not None:
                frame.reset(token)
    if type(effect) is WaitForSteps:
        for paused in effect.session.take_paused_streams(effect.scope):
            await _close_source(log, paused)
            _close_generator(paused)
        await _wait_until_idle(effect.session, effect.scope)
        return None
    if type(effect) is Emit:
        return None
    await clock.sleep_async(cast("Sleep", effect).seconds)
    return None


async def _wait_until_idle(session: Session, scope: str) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    idle = loop.create_future()

    def set_idle() -> None:
        if not idle.done():
            idle.set_result(None)

    for worker in session.call_when_idle(scope, lambda: loop.call_soon_threadsafe(set_idle)):
        if worker is not asyncio.current_task():
            worker.get_loop().call_soon_threadsafe(worker.cancel)
    await idle


def _in_thread(call: CallFunction) -> asyncio.Future[Any]:
    """Start a synchronous function in a thread, with this context and the call's frame."""
    import asyncio

    token = frame.set(call.frame) if call.frame is not None else None
    try:
        # Not an asyncio task: `asyncio.run` cancels those at its end, and the thread would run on.
        return asyncio.get_running_loop().run_in_executor(
            None, copy_context().run, _call_sync, call
        )
    finally:
        if token is not None:
            frame.reset(token)


async def _wait_uncancelled(future: asyncio.Future[Any]) -> bool:
    """Wait for a future to end, also when cancelled. Return whether it was cancelled.

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


async def drive_uncancelled(log: Log, generator: TaskGen[T]) -> T:
    """Run a task generator to its end, also when cancelled; raise the cancellation afterwards."""
    import asyncio

    running = asyncio.ensure_future(drive_async(log, generator))
    if await _wait_uncancelled(running):
        running.exception()  # retrieve it, so asyncio doesn't log it
        raise _cancellation()
    return running.result()


def _cancellation() -> BaseException:
    import asyncio

    return asyncio.CancelledError()


def _run_to_next_chunk(generator: TaskGen[Any]) -> TaskGen[Any]:
    """Run a generator up to its next `Emit`, which is returned, or to its end."""
    send: Callable[[Any], Any] = generator.send
    value: Any = None
    while True:
        try:
            effect = send(value)
        except StopIteration as done:
            return done.value
        if type(effect) is Emit:
            return effect
        try:
            send, value = generator.send, (yield effect)
        except BaseException as error:
            send, value = generator.throw, error


def stream(log: Log, generator: TaskGen[Any]) -> Generator[Any, None, None]:
    """Run a task generator and yield its chunks; of a recorded step those that it returns."""
    live = abandoned = False
    try:
        while type(found := drive(log, _run_to_next_chunk(generator))) is Emit:
            live = True
            found.session.pause_stream(found, generator)
            try:
                yield found.chunk
            finally:
                abandoned = not found.session.resume_stream(found)
            if abandoned:
                raise _abandoned_error(found)
        if not live:
            yield from found
    finally:
        if not abandoned:
            generator.close()


async def stream_async(log: Log, generator: TaskGen[Any]) -> AsyncGenerator[Any, None]:
    """`stream`, as an async iterator."""
    live = abandoned = False
    try:
        while type(found := await drive_async(log, _run_to_next_chunk(generator))) is Emit:
            live = True
            found.session.pause_stream(found, generator)
            try:
                yield found.chunk
            except BaseException:
                abandoned = not found.session.resume_stream(found)
                if not abandoned:
                    await _close_source(log, found)
                raise
            abandoned = not found.session.resume_stream(found)
            if abandoned:
                raise _abandoned_error(found)
        if hasattr(found, "__aiter__"):
            async for chunk in found:
                yield chunk
        elif not live:
            for chunk in found:
                yield chunk
    finally:
        if not abandoned:
            generator.close()


def _abandoned_error(emit: Emit) -> NoTask:
    return NoTask(
        f"step {emit.path!r} was ended before its last chunk; "
        "call task.step again inside the task's block"
    )


async def _close_source(log: Log, emit: Emit) -> None:
    """Close the source of a paused step's chunks, if that must be awaited."""
    if emit.closing is not None:
        try:
            await _perform_async(log, emit.closing)
        except Exception as error:
            _log_close_error(emit, error)


def _close_generator(emit: Emit) -> None:
    """End a paused step that will not be resumed."""
    try:
        if emit.generator is not None:
            emit.generator.close()
    except Exception as error:
        _log_close_error(emit, error)


def _log_close_error(emit: Emit, error: Exception) -> None:
    logger.warning(
        "could not close step %r of %s (%s)", emit.path, emit.session.key, type(error).__name__
    )
