"""Where the running code is: in which task, in which step."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from ...errors import NoTask, Suspended

if TYPE_CHECKING:
    from ..steps.progress import StepRun
    from ..task import AsyncTask, Task
    from .session import Session


class Branch:
    """A line of work inside a task: the block itself, or one item of `task.map`. Those beside it go on when it has to wait."""

    __slots__ = ("outer", "suspended")

    def __init__(self, outer: Branch | None = None) -> None:
        self.outer = outer
        self.suspended: Suspended | None = None

    def is_suspended(self) -> bool:
        return self.suspended is not None or (self.outer is not None and self.outer.is_suspended())

    def check(self) -> None:
        """Raise again what has suspended this line of work."""
        branch: Branch | None = self
        while branch is not None:
            if branch.suspended is not None:
                raise branch.suspended
            branch = branch.outer


class Frame:
    """A task's block (`path` is "" and `run` None), or a step inside it."""

    __slots__ = ("asking", "branch", "path", "run", "session", "task")

    def __init__(
        self,
        task: Task | AsyncTask,
        session: Session,
        branch: Branch,
        path: str = "",
        run: StepRun | None = None,
        asking: bool = False,
    ) -> None:
        self.asking = asking  # a check is asked: what it finds must be fresh, so nothing inside it is recorded
        self.task, self.session, self.branch, self.path, self.run = task, session, branch, path, run

    def is_delicate(self) -> bool:
        """Whether this is inside a step that must not be done twice: cut off in the middle, it would be in doubt."""
        step = self.run
        while step is not None and not step.mode:
            step = step.outer
        return step is not None


frame: ContextVar[Frame | None] = ContextVar("holdfast_frame", default=None)
"""Inherited by asyncio tasks and `asyncio.to_thread`; a thread pool of your own begins outside of any task."""


def current_frame() -> Frame | None:
    """Where the running code is. A forked process is in no task: its parent has it."""
    found = frame.get()
    if found is None or not found.session.is_here():
        return None
    return found


def refuse_if_left() -> None:
    """`NoTask` for code that was started inside a task's block and has outlived it: nothing would be recorded."""
    found = frame.get()
    if found is not None and isinstance(found.session.over, NoTask):
        raise found.session.over


def current_task() -> Task | AsyncTask:
    """The task in whose block, or in one of whose steps, this is called; else `NoTask`."""
    found = current_frame()
    if found is None:
        raise NoTask("there is no task here; call it inside `with store.task(id) as task:`")
    return found.task


def current_step() -> StepRun:
    """The step in which this is called, to save progress; else `NoTask`."""
    found = current_frame()
    if found is None or found.run is None:
        raise NoTask("there is no step here; call it from a function that runs as a step of a task")
    return found.run


def idempotency_key() -> str:
    """A key for the service that a step calls: the same across retries and resumes of this step.

    Hand it to the service (most payment and mail services take one): a repeated call then has its
    effect once.

    Returns:
        A text that no other step has.

    Raises:
        NoTask: This code does not run inside a step.

    Example:
        >>> @holdfast.step
        ... def pay(order):
        ...     return bank.pay(order, idempotency_key=holdfast.idempotency_key())
    """
    return current_step().idempotency_key


def in_event_loop() -> bool:
    """Whether this is called from a coroutine or a callback of an event loop."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
