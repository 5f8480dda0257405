"""Doing a task: an agent's function, run inside the task's block to its end. As the whole program, or as a child of another task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import LeaseHeld, LeaseLost, SchemaMismatch, StepInDoubt, Suspended, TaskEnded
from ...log.codec import Undecodable, check_declared, decode_as
from ..run.claim import OpenOptions
from ..run.effects import drive, drive_async
from ..run.frames import Frame, current_frame
from ..state import events as ev
from ..state.fold import CHILD
from ..state.view import ENDED
from ..steps.declare import Options, Step
from ..steps.identity import code_digest
from ..steps.usage import Usage
from .declare import Agent

if TYPE_CHECKING:
    from ..base import TaskBase
    from ..run.session import Session
    from ..task import AsyncTask, Task


def run_agent(task: Task, agent: Agent[Any, Any], returns: Any) -> Any:
    """Do a task from where it is to its end, and give its result; of one that had finished, the stored one."""
    if agent.is_async:
        raise TypeError(
            f"agent {agent.name!r} is async; use `await store.aio.run(…)`, or an async task"
        )
    declared = _declared(agent)
    task._input_type, task._remember = agent.input, agent.remember
    with task:
        if _is_hopeless(task):
            drive(task._log, task._parking())
        elif task.status not in ENDED:
            value = agent.fn(task)
            if task.status == "running":
                drive(task._log, task._finishing(value, (), {}, declared))
    return _result(task, returns)


async def run_agent_async(task: AsyncTask, agent: Agent[Any, Any], returns: Any) -> Any:
    """`perform`, awaited."""
    declared = _declared(agent)
    task._input_type, task._remember = agent.input, agent.remember
    async with task:
        if _is_hopeless(task):
            await drive_async(task._log, task._parking())
        elif task.status not in ENDED:
            value = await agent.fn(task)
            if task.status == "running":
                await drive_async(task._log, task._finishing(value, (), {}, declared))
    return _result(task, returns)


def _declared(agent: Agent[Any, Any]) -> Any:
    """The type of an agent's result. One that cannot be stored is refused before the work, not after it."""
    declared = agent.returns
    check_declared(declared)
    return declared


def _is_hopeless(task: TaskBase) -> bool:
    """Whether whoever runs it by itself, a worker or a parent, had better not: the processes that did have died."""
    return (task._inline or task._attempts > 0) and task._held().state.crashes >= task._crashes


def _result(task: TaskBase, returns: Any) -> Any:
    state = task._held().state
    if state.status == "cancelled":
        raise TaskEnded(str(task._key), status="cancelled")
    if state.status in ("failed", "stuck"):
        raise GaveUp(state.error[1] if state.error else "")
    try:
        return decode_as(state.result, returns)
    except Undecodable as error:
        raise SchemaMismatch(
            str(task._key), version=state.version, type="the task's result", what=str(error)
        ) from None


class GaveUp(Exception):
    """The agent has called `task.fail(reason)`."""


class ChildCancelled(Exception):
    """The child was cancelled."""


def child_step(
    parent: TaskBase, agent: Agent[Any, Any], wanted: OpenOptions, id: str, returns: Any
) -> Step[Any, Any]:
    """A child as a step of its parent: its key is the child's id, its result the child's. It runs here, inside the parent."""
    from ..task import AsyncTask, Task

    session = parent._held()
    key = parent._key._replace(id=id)
    wanted = msgspec.structs.replace(wanted, parent=ev.Parent(parent.id, session.incarnation_hex))

    def affordable() -> OpenOptions:
        """Opened with what is left of the parent's budget, but for what this very child has used of it."""
        state = session.state
        if state.budget is None:
            return wanted
        left = state.budget.left(state.usage - _counted(session, current_frame()))
        return msgspec.structs.replace(wanted, budget=left)

    def run(goal: str | None, input: object) -> Any:
        task = Task(parent._log, key, affordable(), input, False)
        task._inline = True
        with _seen_by(parent, task):
            return run_agent(task, agent, returns)

    async def run_async(goal: str | None, input: object) -> Any:
        task = AsyncTask(parent._log, key, affordable(), input, True)
        task._inline = True
        with _seen_by(parent, task):
            return await run_agent_async(task, agent, returns)

    chosen: Callable[..., Any] = run_async if agent.is_async else run
    step = Step(chosen, Options(returns=returns, kind=CHILD)).using(key=id)
    step.code = code_digest(agent.fn)
    return step


def _count(session: Session, inside: Frame | None, task: TaskBase) -> None:
    """What a child has used counts for its parent too, however it ended; but for what was counted before."""
    if inside is not None and inside.run is not None and task._session is not None:
        inside.run.count(task._session.state.usage - _counted(session, inside))


def _counted(session: Session, inside: Frame | None) -> Usage:
    """What is counted already of what the child has used whose step this is."""
    known = None if inside is None else session.state.steps.get(inside.path)
    return known.usage if known is not None and known.usage is not None else Usage()


@contextmanager
def _seen_by(parent: TaskBase, task: TaskBase) -> Iterator[None]:
    """How a child ends, as its parent has to see it: while the child waits, or somebody else runs it, the parent waits too."""
    session, inside = parent._held(), current_frame()
    branch = inside.branch if inside is not None else session.branch
    child = str(task._key)
    until: float | None = None
    try:
        try:
            yield
        finally:
            _count(session, inside, task)
        return
    except Suspended:
        pass
    except LeaseHeld as error:
        if error.stream != child:
            raise
        until = error.until.timestamp()
    except LeaseLost as error:
        if error.stream != child:
            raise
        until = session.now() + session.lease
    except StepInDoubt as error:
        if error.task != child:
            raise
    except TaskEnded as error:
        if error.task != child or error.status != "cancelled":
            raise
        raise ChildCancelled("it was cancelled") from None
    session.wait_for_child(task.id, until)
    session.suspend(branch, session.stopping)
