"""Synchronous functions with a timeout: each runs in a thread of its own, which can be abandoned.

Python cannot stop a thread. When the time is over, the thread is abandoned: it keeps running, but
nothing that it does with the task from then on is recorded, and what it returns is dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final

from ...backends import StreamKey
from ...errors import NoTask
from . import frames
from .frames import frame, make_timeout_error

if TYPE_CHECKING:
    import asyncio

    from .frames import CallFunction

logger = logging.getLogger("holdfast")

_current: ContextVar[TimedCall | None] = ContextVar("holdfast_timed_call", default=None)
_abandoned: Final[dict[tuple[bytes, str], TimedCall]] = {}
"""The abandoned calls of steps that must not run twice, while their threads keep running."""


class TimedCall:
    """A call of a synchronous function in its own thread."""

    def __init__(self, call: CallFunction, run: Callable[[CallFunction], Any]) -> None:
        self._call, self._run = call, run
        self._outer = _current.get()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._on_end: Callable[[], object] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_abandoned = False

    def wait(self) -> Any:
        """Call the function, and return its value. Raise `TimeoutError` if it takes too long."""
        self._start()
        try:
            self._ended.wait(self._call.timeout)
        except BaseException:  # an interrupt of this thread does not reach the other one
            self._abandon()
            raise
        return self._result()

    def start_in_loop(self) -> asyncio.Future[Any]:
        """Call the function; the future of the running loop gets its value or `TimeoutError`."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def resolve() -> None:
            timer.cancel()
            if future.done():
                return
            try:
                future.set_result(self._result())
            except StopIteration as error:  # a future refuses it
                future.set_exception(RuntimeError(str(error)))
            except BaseException as error:
                future.set_exception(error)

        def on_end() -> None:
            try:
                loop.call_soon_threadsafe(resolve)
            except RuntimeError:
                pass  # the loop is closed, so nothing waits for this

        timer = loop.call_later(self._call.timeout or 0.0, resolve)
        self._on_end = on_end
        self._start()
        return future

    def is_abandoned(self) -> bool:
        """Return whether this call, or one that it is part of, was abandoned."""
        return self._is_abandoned or (self._outer is not None and self._outer.is_abandoned())

    def _start(self) -> None:
        outer, inside = frame.get(), self._call.frame
        try:
            if inside is not None:
                frame.set(inside)
            context = copy_context()
        finally:
            frame.set(outer)
        context.run(_current.set, self)
        if inside is not None and frames.tracer is not None:
            context.run(frames.tracer.enter, inside)
        name = "holdfast-step" if inside is None else f"holdfast-{inside.path[:40]}"
        # A daemon: a function that never returns must not keep the process from ending.
        threading.Thread(
            target=context.run, args=(self._run_to_end,), name=name, daemon=True
        ).start()

    def _run_to_end(self) -> None:
        try:
            self._value = self._run(self._call)
        except BaseException as error:
            self._error = error
        with self._lock:
            self._ended.set()
            abandoned = self._is_abandoned
        if not abandoned:
            if self._on_end is not None:
                self._on_end()
            return
        inside = self._call.frame
        if inside is not None:
            for name in [name for name, call in list(_abandoned.items()) if call is self]:
                _abandoned.pop(name, None)
            logger.warning(
                "step %r of %s ended after its timeout; what it did is not recorded",
                inside.path,
                inside.session.key,
            )

    def _result(self) -> Any:
        if not self._abandon():
            if self._error is not None:
                raise self._error
            return self._value
        raise make_timeout_error(self._call.timeout or 0.0)

    def _abandon(self) -> bool:
        """Abandon the thread. Return False if it has already ended."""
        with self._lock:
            if self._ended.is_set():
                return False
            self._is_abandoned = True
        inside = self._call.frame
        if inside is not None and inside.run is not None:
            inside.run.abandoned = True
            for run in (inside.run, *inside.session.abandon_steps(inside.path)):
                if run.mode:
                    _abandoned[inside.session.incarnation, run.path] = self
        return True


def is_abandoned() -> bool:
    """Return whether the running code is in a thread that was abandoned."""
    call = _current.get()
    return call is not None and call.is_abandoned()


def still_runs(incarnation: bytes, step: str) -> bool:
    """Return whether an abandoned attempt of a task's step is still running in this process."""
    return (incarnation, step) in _abandoned


def check_not_abandoned(task: StreamKey) -> None:
    """Raise `NoTask` in a thread that was abandoned."""
    if is_abandoned():
        raise NoTask(
            f"a step of {task} ran longer than its timeout; what its thread still does is not"
            " recorded"
        )
