"""A task, and its async twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from .. import _operations as ops
from .._events import Event
from .._ids import stream_key
from .._operations import Operation
from .._streams import new_stamp
from ..conversations import AsyncConversation, Conversation
from ..conversations._tokens import Counter
from . import _events as ev
from . import _lifecycle
from ._briefing import ResumeContext
from ._checkpoint import AgentCheckpoint
from ._conversation import AsyncTaskConversation, TaskConversation
from ._driving import drive, drive_async, drive_to_its_end
from ._frames import Frame
from ._loading import results_of
from ._preview import Preview
from ._shape import Shape
from ._steps import Step
from ._view import PlanItem, TaskView

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Task(Shape):
    """A run of an agent towards a goal, that survives its process. Enter it to work on it:

        with store.task("claims-42", goal="Draft the checklist") as task:
            task.make_plan(plan, task.goal)
            for item in task.remaining():
                task.step(item, execute, item)
            task.finish(report)

    Killed at any instant and run again, it goes on where it was: what is finished is not done again.
    """

    def __enter__(self) -> Task:
        drive(self._log, self._entering())
        self._inside()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._refuse_inside()
        try:
            drive(self._log, self._leaving(error))
        finally:
            self._outside_again()

    async def __aenter__(self) -> NoReturn:
        raise TypeError("this task is of a plain store: use `with`, or `async with store.aio.task(…)`")

    async def __aexit__(self, *_: object) -> None:
        """Never: it is not entered."""

    def step(self, name: PlanItem, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `fn` as a step, once and for all: its result is recorded and given back whenever this step is asked for.

        `name` is text or an item of the plan. All arguments go to `fn`; options belong to the function (`holdfast.step`). An
        exception is recorded and raised as `StepFailed`. Finished, but asked for with other arguments: `ReplayMismatch`.
        """
        result: R = drive(self._log, self._stepping(name, fn, args, kwargs))
        return result

    def make_plan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """The plan: a list of names, or of dicts with a `name`, or a function that makes it. It is made once, ever."""
        return drive(self._log, self._planning(plan, args, kwargs, again=False))

    def replan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """Replace what is left of the plan. What is finished or in doubt stays, named in the new list or not. Done once per call."""
        return drive(self._log, self._planning(plan, args, kwargs, again=True))

    def results(self) -> dict[str, Any]:
        """The results of the finished steps (not of those inside others), by path: `task.results()["collect"]`.

        Those of the plan's items come first, in its order.
        """
        return self._run(results_of(self._held().state))

    def decide(self, what: str, *, why: str | None = None) -> None:
        """Record a decision and its reason. Run again on resume, it does nothing."""
        drive(self._log, self._noting(ev.DECIDED, what, why))

    def discover(self, what: str) -> None:
        """Record a fact that was found out. Run again on resume, it does nothing."""
        drive(self._log, self._noting(ev.DISCOVERED, what, None))

    def finish(self, result: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """End the task with a result, or with what a function gives; it is stored and returned.

        A task that had finished returns its stored result, and calls nothing. Its log expires after its time to live.
        """
        return drive(self._log, self._finishing(result, args, kwargs))

    def fail(self, reason: str) -> None:
        """Give the task up for now, as failed. It can be opened again and goes on."""
        drive(self._log, self._failing(reason))

    def cancel(self, reason: str | None = None) -> None:
        """End the task for good, whoever holds it: the holder's next write is refused. Needs no `with` block."""
        drive(self._log, self._cancelling(reason))

    def history(self) -> list[Event]:
        """Everything that was recorded, in order: who did what, when."""
        return self._run(self._history())

    def at(self, version: int) -> TaskView:
        """The task as it was at a version."""
        return self._run(self._at(version))

    def fork(self, id: str, *, at: int | None = None) -> Task:
        """Another task that begins with what this one had done, up to version `at`. Copies nothing."""
        child, stamp = self._child(id), new_stamp()
        self._settle(lambda: _lifecycle.fork(self._key, child, at, stamp))
        return Task(self._log, child, self._as_child(), None, False)

    def view(self) -> TaskView:
        """The task as it stands, with its steps and their results."""
        return self._run(self._viewing())

    def preview(self) -> Preview:
        """What a resume would do, without doing it: what is skipped, run again, checked, in doubt, changed."""
        return self.view().preview()

    def resume_context(
        self, max_tokens: int = 2000, *, notes: Sequence[str] = (), counter: Counter | None = None
    ) -> ResumeContext:
        """A fresh factual briefing for the model: what was done, decided and found out, and where to go on."""
        return self.view().resume_context(max_tokens, notes=notes, counter=counter)

    def checkpoint(self) -> AgentCheckpoint:
        """The task as one plain document."""
        return self.view().checkpoint()

    def conversation(self, id: str | None = None) -> Conversation:
        """A conversation whose `append` does nothing when the same code runs again on resume; by default the task's own."""
        key = stream_key(self._key.tenant, "conversation", id or self._key.id)
        return TaskConversation(self._log, key, self._held())

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the task and what it holds, and free its id; False if there was none. `HasForks` if others begin with it."""
        stamp = new_stamp()
        deleted = self._settle(lambda: _lifecycle.delete(self._key, stamp, reason))
        self._deleted()
        return deleted

    def _call(self, step: Step[Any, Any], frame: Frame, args: Any, kwargs: Any) -> Any:
        return drive(self._log, self._calling(step, frame, step.name, args, kwargs))

    def _run(self, operation: Operation[T]) -> T:
        return ops.run(self._log, operation)

    def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return ops.run_until_settled(self._log, make)


class AsyncTask(Shape):
    """A `Task` whose methods are awaited: `async with store.task(…) as task`. Plain functions run in threads."""

    async def __aenter__(self) -> AsyncTask:
        await drive_async(self._log, self._entering())
        self._inside()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._refuse_inside()
        try:
            await drive_to_its_end(self._log, self._leaving(error))
        finally:
            self._outside_again()

    @overload
    async def step(self, name: PlanItem, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def step(self, name: PlanItem, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def step(self, name: PlanItem, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """`Task.step`, awaited. If cancelled, an async function ends where it is; a plain one, in its thread, is waited for."""
        return await drive_async(self._log, self._stepping(name, fn, args, kwargs))

    async def make_plan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """`Task.make_plan`, awaited."""
        return await drive_async(self._log, self._planning(plan, args, kwargs, again=False))

    async def replan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """`Task.replan`, awaited."""
        return await drive_async(self._log, self._planning(plan, args, kwargs, again=True))

    async def results(self) -> dict[str, Any]:
        """`Task.results`, awaited."""
        return await self._run(results_of(self._held().state))

    async def decide(self, what: str, *, why: str | None = None) -> None:
        """`Task.decide`, awaited."""
        await drive_async(self._log, self._noting(ev.DECIDED, what, why))

    async def discover(self, what: str) -> None:
        """`Task.discover`, awaited."""
        await drive_async(self._log, self._noting(ev.DISCOVERED, what, None))

    async def finish(self, result: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """`Task.finish`, awaited; the function may be async."""
        return await drive_async(self._log, self._finishing(result, args, kwargs))

    async def fail(self, reason: str) -> None:
        """`Task.fail`, awaited."""
        await drive_async(self._log, self._failing(reason))

    async def cancel(self, reason: str | None = None) -> None:
        """`Task.cancel`, awaited."""
        await drive_async(self._log, self._cancelling(reason))

    async def history(self) -> list[Event]:
        """`Task.history`, awaited."""
        return await self._run(self._history())

    async def at(self, version: int) -> TaskView:
        """`Task.at`, awaited."""
        return await self._run(self._at(version))

    async def fork(self, id: str, *, at: int | None = None) -> AsyncTask:
        """`Task.fork`, awaited."""
        child, stamp = self._child(id), new_stamp()
        await self._settle(lambda: _lifecycle.fork(self._key, child, at, stamp))
        return AsyncTask(self._log, child, self._as_child(), None, True)

    async def view(self) -> TaskView:
        """`Task.view`, awaited."""
        return await self._run(self._viewing())

    async def preview(self) -> Preview:
        """`Task.preview`, awaited."""
        return (await self.view()).preview()

    async def resume_context(
        self, max_tokens: int = 2000, *, notes: Sequence[str] = (), counter: Counter | None = None
    ) -> ResumeContext:
        """`Task.resume_context`, awaited."""
        return (await self.view()).resume_context(max_tokens, notes=notes, counter=counter)

    async def checkpoint(self) -> AgentCheckpoint:
        """`Task.checkpoint`, awaited."""
        return (await self.view()).checkpoint()

    def conversation(self, id: str | None = None) -> AsyncConversation:
        """`Task.conversation`, with awaited methods."""
        key = stream_key(self._key.tenant, "conversation", id or self._key.id)
        return AsyncTaskConversation(self._log, key, self._held())

    async def delete(self, *, reason: str = "deleted by the program") -> bool:
        """`Task.delete`, awaited."""
        stamp = new_stamp()
        deleted = await self._settle(lambda: _lifecycle.delete(self._key, stamp, reason))
        self._deleted()
        return deleted

    def _call(self, step: Step[Any, Any], frame: Frame, args: Any, kwargs: Any) -> Any:
        if not step.is_async and _in_event_loop():
            raise TypeError(
                f"{step.name!r} is a plain function and would hold up the event loop; "
                f"`await task.step({step.name!r}, …)` runs it in a thread, or make it async"
            )
        script = self._calling(step, frame, step.name, args, kwargs)
        return drive_async(self._log, script) if step.is_async else drive(self._log, script)

    async def _run(self, operation: Operation[T]) -> T:
        return await ops.run_async(self._log, operation)

    async def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return await ops.run_until_settled_async(self._log, make)


def _in_event_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
