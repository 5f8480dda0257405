"""Run an agent's function inside a task's block to its end, alone or as a child of another task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import LeaseHeld, LeaseLost, SchemaMismatch, StepInDoubt, Suspended, TaskEnded
from ...log.codec import Undecodable, check_declared, decode_as
from ...log.drivers import drive, drive_async
from ..finish import finish_gen, mark_stuck_gen
from ..run.claim import OpenOptions
from ..run.frames import Frame, current_frame
from ..state import events as ev
from ..state.fold import CHILD
from ..state.view import ENDED
from ..steps.declare import Step, StepOptions
from ..steps.identity import code_digest
from ..steps.usage import Usage
from .declare import Agent

if TYPE_CHECKING:
    from ..base import TaskBase
    from ..run.session import Session
    from ..task import AsyncTask, Task


def run_agent(task: Task, agent: Agent[Any, Any], returns: Any) -> Any:
    """Run a task to its end, and return its result. A finished task isn't run again."""
    if agent.is_async:
        raise TypeError(
            f"agent {agent.name!r} is async; use `await store.aio.run(…)`, or an async task"
        )
    declared = _check_result_type(agent)
    task._input_type, task._agent = agent.input, agent
    with task:
        if _over_crash_limit(task):
            drive(task._log, mark_stuck_gen(task))
        elif task.status not in ENDED:
            task._require_session().check_deadline()
            value = agent.fn(task)
            if task.status == "running":
                drive(task._log, finish_gen(task, value, (), {}, declared))
    return _get_result(task, returns)


async def run_agent_async(task: AsyncTask, agent: Agent[Any, Any], returns: Any) -> Any:
    """`run_agent`, awaited."""
    declared = _check_result_type(agent)
    task._input_type, task._agent = agent.input, agent
    async with task:
        if _over_crash_limit(task):
            await drive_async(task._log, mark_stuck_gen(task))
        elif task.status not in ENDED:
            task._require_session().check_deadline()
            value = await agent.fn(task)
            if task.status == "running":
                await drive_async(task._log, finish_gen(task, value, (), {}, declared))
    return _get_result(task, returns)


def _check_result_type(agent: Agent[Any, Any]) -> Any:
    """Return the type of an agent's result. If it can't be stored, raise before doing any work."""
    declared = agent.returns
    check_declared(declared)
    return declared


def _over_crash_limit(task: TaskBase) -> bool:
    """Return True if the task crashed too often for a worker or a parent to run it again."""
    return (
        task._inline or task._max_attempts > 0
    ) and task._require_session().state.crashes >= task._max_crashes


def _get_result(task: TaskBase, returns: Any) -> Any:
    state = task._require_session().state
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
    """The agent called `task.fail(reason)`."""


class ChildCancelled(Exception):
    """The child was cancelled."""


def child_step(
    parent: TaskBase, agent: Agent[Any, Any], options: OpenOptions, id: str, returns: Any
) -> Step[Any, Any]:
    """Return a step of the parent that runs the child. Its key is the child's id."""
    from ..task import AsyncTask, Task

    session = parent._require_session()
    key = parent._key._replace(id=id)
    options = msgspec.structs.replace(
        options, parent=ev.Parent(parent.id, session.incarnation_hex), default_timeout=agent.timeout
    )

    def limit_budget() -> OpenOptions:
        """Give the child what is left of the parent's budget, plus what the child used of it."""
        state = session.state
        if state.budget is None:
            return options
        left = state.budget.left(state.usage - _counted_usage(session, current_frame()))
        return msgspec.structs.replace(options, budget=left)

    def run(goal: str | None, input: object) -> Any:
        task = Task(parent._log, key, limit_budget(), input, False)
        task._inline = True
        with _translate_ending(parent, task):
            return run_agent(task, agent, returns)

    async def run_async(goal: str | None, input: object) -> Any:
        task = AsyncTask(parent._log, key, limit_budget(), input, True)
        task._inline = True
        with _translate_ending(parent, task):
            return await run_agent_async(task, agent, returns)

    chosen: Callable[..., Any] = run_async if agent.is_async else run
    step = Step(chosen, StepOptions(returns=returns, kind=CHILD)).using(key=id)
    step.code = code_digest(agent.fn)
    return step


def _count_usage(session: Session, inside: Frame | None, task: TaskBase) -> None:
    """Add a child's usage to its parent's, except what earlier runs have already added."""
    if inside is not None and inside.run is not None and task._session is not None:
        inside.run.set_usage(task._session.state.usage - _counted_usage(session, inside))


def _counted_usage(session: Session, inside: Frame | None) -> Usage:
    """Return the part of the child's usage that its parent already counts."""
    known = None if inside is None else session.state.steps.get(inside.path)
    return known.usage if known is not None and known.usage is not None else Usage()


@contextmanager
def _translate_ending(parent: TaskBase, task: TaskBase) -> Iterator[None]:
    """Translate the end of a child's run into what the parent must do.

    While the child waits, is in doubt, or runs in another process, the parent waits too.
    """
    session, inside = parent._require_session(), current_frame()
    branch = inside.branch if inside is not None else session.suspension.branch
    child = str(task._key)
    until: float | None = None
    try:
        try:
            yield
        finally:
            _count_usage(session, inside, task)
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
        until = session.now() + session.lease.seconds
    except StepInDoubt as error:
        if error.task != child:
            raise
    except TaskEnded as error:
        if error.task != child or error.status != "cancelled":
            raise
        raise ChildCancelled("it was cancelled") from None
    session.suspension.add_child_wait(task.id, until)
    session.suspension.suspend(branch, session.suspension.stop_reason)
