"""Frames: which task and step the running code is in."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from ...errors import NoTask, Suspended

if TYPE_CHECKING:
    from ..steps.progress import StepRun
    from ..task import AsyncTask, Task
    from .session import Session


class Branch:
    """A line of work in a task: the block, or one item of `task.map`. Each is suspended alone."""

    __slots__ = ("outer", "suspended")

    def __init__(self, outer: Branch | None = None) -> None:
        self.outer = outer
        self.suspended: Suspended | None = None

    def is_suspended(self) -> bool:
        return self.suspended is not None or (self.outer is not None and self.outer.is_suspended())

    def check(self) -> None:
        """Raise again the `Suspended` of this branch or an outer one."""
        branch: Branch | None = self
        while branch is not None:
            if branch.suspended is not None:
                raise branch.suspended
            branch = branch.outer


class Frame:
    """A task's block (`path` is "" and `run` None), or a step inside it.

    With `in_check` the running code is a step's check: its answer must be fresh, so steps inside it
    are not recorded.
    """

    __slots__ = ("branch", "in_check", "path", "run", "session", "task")

    def __init__(
        self,
        task: Task | AsyncTask,
        session: Session,
        branch: Branch,
        path: str = "",
        run: StepRun | None = None,
        in_check: bool = False,
    ) -> None:
        self.in_check = in_check
        self.task, self.session, self.branch, self.path, self.run = task, session, branch, path, run

    def inside_guarded_step(self) -> bool:
        """Return whether this is inside a `once` or `check` step: interrupted, it is in doubt."""
        step = self.run
        while step is not None and not step.mode:
            step = step.outer
        return step is not None


frame: ContextVar[Frame | None] = ContextVar("holdfast_frame", default=None)
"""Inherited by asyncio tasks and `asyncio.to_thread`, but not by other thread pools."""


def current_frame() -> Frame | None:
    """Return the frame of the running code; None in a forked process: its parent has the lease."""
    found = frame.get()
    if found is None or not found.session.is_active():
        return None
    return found


def check_not_left() -> None:
    """Raise `NoTask` in code that outlived the task's block: nothing it does is recorded."""
    found = frame.get()
    if found is not None and isinstance(found.session.closed_error, NoTask):
        raise found.session.closed_error


def current_task() -> Task | AsyncTask:
    """Return the task whose block or step calls this. Raise `NoTask` outside of any task."""
    found = current_frame()
    if found is None:
        raise NoTask("no task is open here; call it inside `with store.task(id) as task:`")
    return found.task


def current_step() -> StepRun:
    """Return the running step, to save progress. Raise `NoTask` outside of any step."""
    found = current_frame()
    if found is None or found.run is None:
        raise NoTask("no step runs here; call it from a function that runs as a step of a task")
    return found.run


def idempotency_key() -> str:
    """Return a key for the service that a step calls, the same across retries and resumes.

    Pass it to the service (most payment and mail services accept one): a repeated call then takes
    effect once.

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


def in_event_loop() -> bool:
    """Return whether a coroutine or callback of an event loop calls this."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
