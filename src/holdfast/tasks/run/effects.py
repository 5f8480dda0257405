"""Scripts: what a task does, as generators that yield effects; and the two drivers that run any of them.

An operation decides without I/O. A script has user code in the middle: it yields `Do` (an operation), `Call` (the user's function) and
`Sleep`. `drive` does them, `drive_async` awaits them, so that sync and async tasks are one and the same program. A script that
has something to give before its end yields `Emit`: `stream` and `stream_async` drive it from one to the next.
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
    """Run an operation, again if another writer came first."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Operation[Any]]) -> None:
        self.make = make


class RunOnce:
    """Run an operation that sees to conflicts itself."""

    __slots__ = ("operation",)

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation


class CallFunction:
    """Call the user's function, inside `frame` if given. An async one is awaited, at most `timeout` seconds."""

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
    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class WaitForSteps:
    """Wait until no step runs inside a scope any more. Async ones are cancelled; a plain one, in its thread, cannot be."""

    __slots__ = ("scope", "session")

    def __init__(self, session: Session, scope: str = "") -> None:
        self.session, self.scope = session, scope


class Emit:
    """Hand a chunk of a step to whoever asked for it. `closing` closes its source, if that has to be awaited.

    The step at `path` is paused until the next chunk is asked for, which may be never.
    """

    __slots__ = ("chunk", "closing", "path", "script", "session")

    def __init__(
        self, chunk: Any, session: Session, path: str, closing: CallFunction | None
    ) -> None:
        self.chunk, self.session, self.path, self.closing = chunk, session, path, closing
        self.script: Script[Any] | None = None


Effect = RunOperation | RunOnce | CallFunction | Sleep | WaitForSteps | Emit
Script = Generator[Effect, Any, T]


def drive(log: Log, script: Script[T]) -> T:
    """Run a script."""
    return drivers.drive(script, partial(_perform, log), BaseException)


def _perform(log: Log, effect: Effect) -> Any:
    if type(effect) is CallFunction:
        token = None if effect.frame is None else frame.set(effect.frame)
        try:
            return effect.fn(*effect.args, **effect.kwargs)
        except StopIteration as error:  # it would never come out of a script
            raise RuntimeError("the function raised StopIteration") from error
        finally:
            if token is not None:
                frame.reset(token)
    if type(effect) is RunOnce:
        return ops.run(log, effect.operation)
    if type(effect) is RunOperation:
        return ops.run_until_settled(log, effect.make)
    if type(effect) is WaitForSteps:
        for paused in effect.session.give_up(effect.scope):
            _stop(paused)
        effect.session.wait_until_quiet(effect.scope)
    elif type(effect) is not Emit:
        clock.sleep(cast("Sleep", effect).seconds)
    return None


def _plainly(call: CallFunction) -> Any:
    """Call a plain function in a thread, out of which (before Python 3.12) its StopIteration would never come."""
    try:
        return call.fn(*call.args, **call.kwargs)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error


async def drive_async(log: Log, script: Script[T]) -> T:
    """Run a script, awaiting what it yields."""
    send: Callable[[Any], Any] = script.send
    value: Any = None
    thread: asyncio.Future[Any] | None = None
    cancelled = False
    try:
        while True:
            try:
                effect = send(value)
            except StopIteration as done:
                if cancelled:
                    raise _cancelled() from None
                return cast("T", done.value)
            except Exception as error:
                if (
                    cancelled
                ):  # the function in the thread failed, which is recorded; the caller was cancelled
                    raise _cancelled() from error
                raise
            try:
                if cancelled and not isinstance(effect, RunOperation | RunOnce | WaitForSteps):
                    raise _cancelled()
                if type(effect) is CallFunction and not effect.is_async:
                    thread = _in_thread(effect)
                    cancelled = await _to_its_end(thread) or cancelled
                    send, value = script.send, thread.result()
                else:
                    send, value = script.send, await _perform_async(log, effect)
            except BaseException as error:
                send, value = script.throw, error
    finally:
        script.close()


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
            except asyncio.TimeoutError as error:
                raise (
                    error if isinstance(error, TimeoutError) else TimeoutError(str(error))
                ) from None  # 3.10 has two
        finally:
            if token is not None:
                frame.reset(token)
    if type(effect) is WaitForSteps:
        for paused in effect.session.give_up(effect.scope):
            await _close(log, paused)
            _stop(paused)
        await _quiet(effect.session, effect.scope)
        return None
    if type(effect) is Emit:
        return None
    await clock.sleep_async(cast("Sleep", effect).seconds)
    return None


async def _quiet(session: Session, scope: str) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    quiet = loop.create_future()

    def tell() -> None:
        if not quiet.done():
            quiet.set_result(None)

    for worker in session.tell_when_quiet(scope, lambda: loop.call_soon_threadsafe(tell)):
        if worker is not asyncio.current_task():
            worker.get_loop().call_soon_threadsafe(worker.cancel)
    await quiet


def _in_thread(call: CallFunction) -> asyncio.Future[Any]:
    """A plain function, in a thread that knows where it is."""
    import asyncio

    token = frame.set(call.frame) if call.frame is not None else None
    try:
        # Not a task of asyncio: `asyncio.run` cancels all of those when it ends, and the thread would run on unheeded.
        return asyncio.get_running_loop().run_in_executor(None, copy_context().run, _plainly, call)
    finally:
        if token is not None:
            frame.reset(token)


async def _to_its_end(future: asyncio.Future[Any]) -> bool:
    """Wait for something that must not be left behind, also when cancelled. Whether that happened.

    A function in a thread cannot be stopped: giving the task back while it still runs would be a lie.
    """
    import asyncio

    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


async def drive_to_its_end(log: Log, script: Script[T]) -> T:
    """Run a script to its end, also when cancelled, and cancelled again; the cancellation goes on afterwards."""
    import asyncio

    running = asyncio.ensure_future(drive_async(log, script))
    if await _to_its_end(running):
        running.exception()  # looked at: the cancellation is what the caller hears of
        raise _cancelled()
    return running.result()


def _cancelled() -> BaseException:
    import asyncio

    return asyncio.CancelledError()


def _to_next_chunk(script: Script[Any]) -> Script[Any]:
    """A script up to its next `Emit`, which is returned; or to its end."""
    send: Callable[[Any], Any] = script.send
    value: Any = None
    while True:
        try:
            effect = send(value)
        except StopIteration as done:
            return done.value
        if type(effect) is Emit:
            return effect
        try:
            send, value = script.send, (yield effect)
        except BaseException as error:
            send, value = script.throw, error


def stream(log: Log, script: Script[Any]) -> Generator[Any, None, None]:
    """Run a script, and give its chunks as they come; or, if it had nothing to run, those that it returns."""
    live = given_up = False
    try:
        while type(found := drive(log, _to_next_chunk(script))) is Emit:
            live = True
            found.session.pause(found, script)
            try:
                yield found.chunk
            finally:
                given_up = not found.session.go_on(found)
            if given_up:
                raise _left(found)
        if not live:
            yield from found
    finally:
        if not given_up:
            script.close()


async def stream_async(log: Log, script: Script[Any]) -> AsyncGenerator[Any, None]:
    """`stream`, as an async iterator."""
    live = given_up = False
    try:
        while type(found := await drive_async(log, _to_next_chunk(script))) is Emit:
            live = True
            found.session.pause(found, script)
            try:
                yield found.chunk
            except BaseException:
                given_up = not found.session.go_on(found)
                if not given_up:
                    await _close(log, found)
                raise
            given_up = not found.session.go_on(found)
            if given_up:
                raise _left(found)
        if hasattr(found, "__aiter__"):
            async for chunk in found:
                yield chunk
        elif not live:
            for chunk in found:
                yield chunk
    finally:
        if not given_up:
            script.close()


def _left(emit: Emit) -> NoTask:
    return NoTask(
        f"step {emit.path!r} was left before its last chunk; ask for it again, inside the task's block"
    )


async def _close(log: Log, emit: Emit) -> None:
    """Close what the chunks of a paused step come from, if that has to be awaited."""
    if emit.closing is not None:
        try:
            await _perform_async(log, emit.closing)
        except Exception as error:
            _not_closed(emit, error)


def _stop(emit: Emit) -> None:
    """End a paused step that nobody will go on with."""
    try:
        if emit.script is not None:
            emit.script.close()
    except Exception as error:
        _not_closed(emit, error)


def _not_closed(emit: Emit, error: Exception) -> None:
    logger.warning(
        "step %r of %s did not end well (%s)", emit.path, emit.session.key, type(error).__name__
    )
