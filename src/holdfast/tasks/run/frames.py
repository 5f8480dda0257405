"""Where the running code is: the block of a task, the frame of the step inside it, and its calls.

A block says whether its code is still inside it, and may write. A frame is the block itself or a
step, and is inherited by the code that they call. `CallFunction` calls the user's function inside
a frame.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Protocol

from ...backends import StreamKey
from ...errors import HoldfastError, LeaseLost, NoTask, Suspended, TaskEnded, TaskTimeout
from ...log.drivers import Effect
from ...log.leases import WithStatement, process

if TYPE_CHECKING:
    import asyncio

    from ...log.log import Log
    from ..steps.progress import StepRun
    from ..task import AsyncTask, Task
    from .session import Session


class Branch:
    """A line of work in a task: the block, or an item of `task.map`. It is suspended separately."""

    __slots__ = ("outer", "suspended")

    def __init__(self, outer: Branch | None = None) -> None:
        self.outer = outer
        self.suspended: Suspended | None = None

    def is_suspended(self) -> bool:
        return self.suspended is not None or (self.outer is not None and self.outer.is_suspended())

    def check(self) -> None:
        """Raise `Suspended` again if this branch or an outer one is suspended."""
        branch: Branch | None = self
        while branch is not None:
            if branch.suspended is not None:
                raise branch.suspended
            branch = branch.outer


class Frame:
    """A task's block (`path` is "" and `run` None), or a step inside it.

    With `in_check`, the running code is a step's check. Its answer must be fresh, so steps inside
    it are not recorded. `requests` collects the steps that a plan's function requests.
    """

    __slots__ = ("branch", "in_check", "path", "requests", "run", "session", "task")

    def __init__(
        self,
        task: Task | AsyncTask,
        session: Session,
        branch: Branch,
        path: str = "",
        run: StepRun | None = None,
        in_check: bool = False,
        requests: dict[str, None] | None = None,
    ) -> None:
        self.in_check, self.requests = in_check, requests
        self.task, self.session, self.branch, self.path, self.run = task, session, branch, path, run

    def inside_guarded_step(self) -> bool:
        """Return True inside a `once` or `check` step, which is in doubt if it's interrupted."""
        step = self.run
        while step is not None and not step.mode:
            step = step.outer
        return step is not None


Line = tuple[int, object]
"""A line of execution: a thread and, in an async task, the asyncio task."""


class TaskBlock:
    """The block of a session, from its claim to its end."""

    def __init__(
        self, key: StreamKey, owner: str, lock: threading.RLock, asynchronous: bool
    ) -> None:
        self.key, self.owner, self.asynchronous = key, owner, asynchronous
        self._lock, self.forks = lock, process.forks
        self.closed_error: HoldfastError | None = None
        """Why this session can't write any more."""
        self.statement = WithStatement()
        """The `with` statement of the block, which may be left without closing this session."""
        self.line: Line | None = None
        """The thread and asyncio task that run the block."""
        self.outer_frame: Frame | None = None
        """The frame of the code around the block."""
        self.outside: Any = None
        """What the tracer restores when the block is left."""
        self.frame_left = False
        """Whether the code that entered the block was taken out of it."""
        self.has_abandoned = False
        """Whether a step ran too long, so that its thread must not use the task any more."""
        self.timeout_error: TaskTimeout | None = None
        """Set while the heartbeat ends the task, because its time limit is over."""
        self.lingers = False
        """Whether it was reported that steps keep running although the task was cancelled."""

    def is_active(self) -> bool:
        """Return whether this process is inside the task's block (a forked child is not)."""
        return (
            self.statement.guard() is not None
            and (self.closed_error is None or not isinstance(self.closed_error, NoTask))
            and self.forks == process.forks
        )

    def is_open(self) -> bool:
        """Return whether this process still has to close the task's block."""
        return self.forks == process.forks and not isinstance(self.closed_error, NoTask)

    def is_forked(self) -> bool:
        """Return whether this is a forked child of the process that entered the block."""
        return self.forks != process.forks

    def was_left(self) -> bool:
        """Return whether this process has left the task's block."""
        return self.forks == process.forks and not self.is_active()

    def was_cut_off(self) -> bool:
        """Return whether the block was left by an interrupt, and this code is still inside it."""
        return self.was_left() and not self.frame_left and self.line == self.get_line()

    def left_error(self) -> NoTask:
        return NoTask(f"the block of {self.key} was left; open it again to continue")

    def leave(self) -> None:
        """Refuse all later calls: the block was left."""
        with self._lock:
            self.closed_error = self.left_error()
            self.statement.close()

    def close(self, error: HoldfastError) -> HoldfastError:
        """Refuse all later writes. Return why: the first error counts."""
        with self._lock:
            self.closed_error = self.closed_error or error
        return self.closed_error

    def end(self, status: str) -> None:
        """Refuse all later writes, because the task has ended."""
        self.close(TaskEnded(str(self.key), status=status))

    def check_writable(self) -> None:
        """Raise if this session can't write any more."""
        if self.forks != process.forks:
            raise LeaseLost(str(self.key), owner=self.owner)  # the parent process has the lease
        if self.closed_error is not None:
            raise self.closed_error
        if self.has_abandoned:
            from .timed_calls import check_not_abandoned  # it imports this module

            check_not_abandoned(self.key)

    def enter(self, outer: Frame | None) -> None:
        """Note that this thread and asyncio task run the block's own steps."""
        self.outer_frame = outer
        self.line = self.get_line()

    def get_line(self) -> Line:
        """Return the thread and the asyncio task of the calling code."""
        return threading.get_ident(), get_worker() if self.asynchronous else None


def get_worker() -> asyncio.Task[Any] | None:
    """Return the asyncio task that runs this code; None in a thread without a loop."""
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class FrameTracer(Protocol):
    """Makes the span of a task's run, or of a step, the current one while its code runs."""

    def enter(self, inside: Frame) -> Any: ...

    def leave(self, outside: Any) -> None:
        """Restore what `enter` returned."""


tracer: FrameTracer | None = None
"""Set by `holdfast.telemetry.start_tracing`."""

frame: ContextVar[Frame | None] = ContextVar("holdfast_frame", default=None)
"""Inherited by asyncio tasks and `asyncio.to_thread`, but not by other thread pools."""


def current_frame() -> Frame | None:
    """Return the frame of the running code; None in a forked process, which has no lease."""
    found = frame.get()
    if found is None or found.session.block.is_active():
        return found
    while found is not None and found.session.block.was_cut_off():
        # An interrupt kept the block from taking this code out of it.
        found = found.session.block.outer_frame
        frame.set(found)
    return found if found is not None and found.session.is_active() else None


def check_not_left() -> None:
    """Raise `NoTask` in code that has outlived the task's block: nothing it does is recorded."""
    found = frame.get()
    if found is not None and found.session.block.was_left():
        raise found.session.block.left_error()


def current_task() -> Task | AsyncTask:
    """Return the task that the calling code is in. Raise `NoTask` outside of any task."""
    found = current_frame()
    if found is None:
        raise NoTask("no task is open here; call this inside `with store.task(id) as task:`")
    return found.task


def current_step() -> StepRun:
    """Return the running step, to save progress. Raise `NoTask` outside of any step."""
    found = current_frame()
    if found is None or found.run is None:
        raise NoTask("no step runs here; call this from a function that runs as a step of a task")
    return found.run


def idempotency_key() -> str:
    """Return a key for the service that a step calls, the same across retries and resumes.

    Pass it to the service (most payment and mail services accept one), so that a repeated call
    takes effect only once.

    Returns:
        A text that is unique to the step.

    Raises:
        NoTask: No step runs here.

    Example:
        >>> @holdfast.step
        ... def pay(order):
        ...     return bank.pay(order, idempotency_key=holdfast.idempotency_key())
    """
    return current_step().idempotency_key


class CallFunction(Effect):
    """Call the user's function, inside `frame` if given, for at most `timeout` seconds.

    An async function is cancelled then. A synchronous one with a timeout runs in a thread that is
    abandoned then. In an async task, a synchronous one always runs in a thread.
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

    @property
    def runs_in_thread(self) -> bool:  # type: ignore[override]  # it depends on the function
        return not self.is_async

    def perform(self, log: Log) -> Any:
        if self.timeout is not None:
            from .timed_calls import TimedCall  # it imports this module

            return TimedCall(self, CallFunction._call_in_thread).wait()
        outer, outside = frame.get(), None
        try:
            if self.frame is not None:
                frame.set(self.frame)
                if tracer is not None:
                    outside = tracer.enter(self.frame)
            return self.fn(*self.args, **self.kwargs)
        except StopIteration as error:  # a generator can't raise it
            raise RuntimeError("the function raised StopIteration") from error
        finally:
            if self.frame is not None:
                frame.set(outer)  # not `reset`: an interrupt may come before its token is there
                if outside is not None and tracer is not None:
                    tracer.leave(outside)

    async def perform_async(self, log: Log) -> Any:
        outer, outside = frame.get(), None
        try:
            if self.frame is not None:
                frame.set(self.frame)
                if tracer is not None:
                    outside = tracer.enter(self.frame)
            awaitable = self.fn(*self.args, **self.kwargs)
            if self.timeout is None:
                self._note_line()
                return await awaitable
            return await self._await_in_time(awaitable, self.timeout)
        finally:
            if self.frame is not None:
                frame.set(outer)
                if outside is not None and tracer is not None:
                    tracer.leave(outside)

    def start_thread(self) -> asyncio.Future[Any]:
        """Start a synchronous function in a thread, with this context and the call's frame."""
        import asyncio

        if self.timeout is not None:
            from .timed_calls import TimedCall  # it imports this module

            return TimedCall(self, CallFunction._call_in_thread).start_in_loop()
        outer, outside = frame.get(), None
        try:
            if self.frame is not None:
                frame.set(self.frame)
                if tracer is not None:
                    outside = tracer.enter(self.frame)
            # Not an asyncio task: `asyncio.run` cancels those at its end, and the thread would run
            # on.
            return asyncio.get_running_loop().run_in_executor(
                None, copy_context().run, self._call_in_thread
            )
        finally:
            if self.frame is not None:
                frame.set(outer)
                if outside is not None and tracer is not None:
                    tracer.leave(outside)

    def _call_in_thread(self) -> Any:
        self._note_line()
        try:
            return self.fn(*self.args, **self.kwargs)
        except StopIteration as error:  # before Python 3.12, it would hang the thread's future
            raise RuntimeError("the function raised StopIteration") from error

    async def _await_in_time(self, awaitable: Awaitable[Any], timeout: float) -> Any:
        import asyncio

        raised: BaseException | None = None  # by the function itself

        async def await_in_line() -> Any:
            nonlocal raised
            self._note_line()
            try:
                return await awaitable
            except asyncio.TimeoutError as error:
                raised = error
                raise

        try:  # before Python 3.12, wait_for awaits it in another asyncio task
            return await asyncio.wait_for(await_in_line(), timeout)
        except asyncio.TimeoutError as error:  # not a `TimeoutError` in Python 3.10
            if error is not raised:
                raise make_timeout_error(timeout) from None
            raise (error if isinstance(error, TimeoutError) else TimeoutError(str(error))) from None

    def _note_line(self) -> None:
        """Note the thread and the asyncio task, if any, in which a step's function runs."""
        inside = self.frame
        if inside is None or inside.run is None or inside.requests is not None:
            return  # not the function of a step, or the function of a plan
        worker = None
        if self.is_async:
            import asyncio

            worker = asyncio.current_task()
        inside.run.line = (threading.get_ident(), worker)


def make_timeout_error(seconds: float) -> TimeoutError:
    """Return the error of a step that took too long."""
    return TimeoutError(f"it took longer than its timeout of {seconds:g} s")


def in_event_loop() -> bool:
    """Return True if the calling code runs in an event loop."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
