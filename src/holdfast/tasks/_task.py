"""A task, and its async twin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, cast, overload

from .. import _operations as ops
from .._events import Event
from .._ids import stream_key
from .._operations import Operation
from .._streams import new_stamp
from ..conversations import AsyncConversation, Conversation
from ..conversations._tokens import Counter
from . import _events as ev
from . import _family as family
from . import _lifecycle
from ._agents import Remember
from ._artifacts import Artifact, AsyncArtifact, Source, attach, attached_to
from ._conversation import AsyncTaskConversation, TaskConversation
from ._driving import drive, drive_async, drive_to_its_end, stream, stream_async
from ._frames import Frame
from ._mapping import Fan, spread, spread_async
from ._shape import Shape
from ._steps import UNRESOLVED, Step, as_step
from ._view import PlanItem, TaskView

if TYPE_CHECKING:
    from ..memory._trust import Trust
    from ._briefing import ResumeContext
    from ._checkpoint import AgentCheckpoint
    from ._preview import Preview

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
        A generator function gives an iterator: chunks come as they are made, and are recorded together after the last.
        """
        declared = fn if type(fn) is Step else as_step(fn)
        script = self._stepping(name, declared, args, kwargs)
        result: R = stream(self._log, script) if declared.streams else drive(self._log, script)  # type: ignore[assignment]
        return result

    def reply(
        self,
        chat: Conversation | AsyncConversation | str,
        fn: Callable[Concatenate[Any, P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> dict[str, Any]:
        """Ask a model for the next message of a conversation (or of its id): `fn(chat, …)` returns it, as a model step.

        It is appended to the conversation, once, and is the result of the step: stored there alone. What is returned is the
        message as stored. If it was appended and the process killed before the step's end, the model is not asked again.
        If the conversation was deleted since, `NotFound`.
        """
        return cast("dict[str, Any]", drive(self._log, self._replying(chat, fn, args, kwargs)))

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
        return self._run(self._results())

    def map(
        self,
        name: str,
        fn: Callable[[T], R],
        items: Iterable[T],
        *,
        key: Callable[[T], object] | None = None,
        concurrency: int = 8,
    ) -> list[R]:
        """Run `fn` for each item as a step of that name, `concurrency` at a time, in threads; the results in order.

        With `key`, an item is known by it, else by its value. What is finished is not run again. If one fails, no other is begun;
        what is under way ends, and the first failure is raised. Items that have to wait do not keep others from going on.
        """
        fan = Fan(self, fn, items, key, concurrency)
        return spread(
            fan, lambda number: drive(self._log, self._stepping(name, fan.steps[number], (fan.items[number],), {}))
        )

    def child(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        returns: Any = UNRESOLVED,
    ) -> Any:
        """Run another task of its own, with this one as its parent, and give its result.

        It is resumed with its parent, and can be looked at and resumed by itself. While it has to wait, the parent waits too
        (`Suspended`); if it fails, `ChildFailed`. Cancelling the parent cancels it.
        """
        return drive(self._log, self._having(agent, id, goal, input, returns))

    def ask(
        self,
        name: str,
        question: str,
        payload: object = None,
        *,
        returns: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> Any:
        """The answer of a person; while there is none, the run ends here (`Suspended`) and the task holds nothing.

        `store.answer(task_id, name, …)` answers. The answer is for this `question` and `payload` (plain JSON values, or a type
        that can be stored): asked again with others, it is another question, and the earlier one cannot be
        answered any more. `returns` is the type of the answer. After `timeout` seconds without one: `TimeoutError`;
        asked again then, it is asked anew.
        """
        return drive(self._log, self._asking(name, question, payload, returns, timeout))

    def wait_for(self, name: str, *, returns: Any = Any, timeout: float | timedelta | None = None) -> Any:
        """What `store.signal(task_id, name, …)` says next; while there is nothing, the run ends here (`Suspended`).

        Signals are kept until they are waited for, and each is taken once, in order. After `timeout` seconds: `TimeoutError`.
        """
        return drive(self._log, self._waiting_for(name, returns, timeout))

    def sleep_until(self, time: float | datetime) -> None:
        """Go on at a time (Unix seconds, or a datetime); until then the run ends here (`Suspended`). The first time given counts."""
        drive(self._log, self._sleeping(time, None))

    def sleep(self, seconds: float | timedelta) -> None:
        """`sleep_until`, so many seconds after this was first reached."""
        drive(self._log, self._sleeping(None, seconds))

    def decide(self, what: str, *, why: str | None = None) -> None:
        """Record a decision and its reason. Run again on resume, it does nothing."""
        drive(self._log, self._noting(ev.DECIDED, what, why))

    def discover(self, what: str) -> None:
        """Record a fact that was found out. Run again on resume, it does nothing."""
        drive(self._log, self._noting(ev.DISCOVERED, what, None))

    def remember(
        self,
        text: str,
        *,
        tags: Iterable[str] = (),
        importance: float = 0.5,
        author: str = "model",
        at: float | datetime | None = None,
        subject: str | None = None,
        meta: Mapping[str, Any] | None = None,
        ttl: float | timedelta | None = None,
    ) -> str:
        """Remember something for later tasks of this agent, as `Memory.remember` does; the id of the memory.

        Its source is this task. Run again on resume, it does nothing.
        """
        script = self._remembering(
            text, tags=tags, importance=importance, author=author, at=at, subject=subject, meta=meta, ttl=ttl
        )
        return drive(self._log, script)

    def attach(self, name: str, source: Source) -> Artifact:
        """Keep a file with the task: a path, bytes, or an open binary file (from where it stands). It is kept in the store.

        What is under that name already is replaced, or left as it is if it has the same content. A file that changes while
        it is read is `SourceChanged`. Stored once for the same content, and deleted with the task.
        """
        return Artifact(self._log, drive(self._log, attach(self._held(), name, source)))

    @property
    def artifacts(self) -> dict[str, Artifact]:
        """The files that are attached, by name, as far as this process knows."""
        return {found.name: Artifact(self._log, found) for found in attached_to(self._held())}

    def finish(self, result: Any = None, /, *args: Any, remember: Remember | None = None, **kwargs: Any) -> Any:
        """End the task with a result, or with what a function gives; it is stored and returned.

        A task that had finished returns its stored result, and calls nothing. Its log expires after its time to live.
        What it leaves goes to the memory of its agent, `store.memory(agent)`: goal and outcome, each decision and each
        discovery. `remember`: False for nothing, or a function from the task's view to texts, or dicts as `remember_many`
        takes them; unless told, as the agent says. Without an agent nothing is remembered.
        """
        return drive(self._log, self._finishing(result, args, kwargs, remember=remember))

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
        self,
        max_tokens: int = 2000,
        *,
        notes: Sequence[str] = (),
        counter: Counter | None = None,
        memories: int = 5,
        trust: Trust | None = None,
    ) -> ResumeContext:
        """A fresh factual briefing for the model: what was done, decided and found out, and where to go on.

        With what earlier tasks of its agent have left that fits the goal: up to so many `memories`. `trust`: of these authors only, or
        True for everybody's; None for what its agent says, else everybody's but what is from outside, by a "tool" or the "web".
        """
        from ..memory._calling import run

        view = self.view()
        return self._briefed(view, run(self._relevant(view, memories, trust)), max_tokens, notes, counter)

    def checkpoint(self) -> AgentCheckpoint:
        """The task as one plain document."""
        return self.view().checkpoint()

    def conversation(self, id: str | None = None) -> Conversation:
        """A conversation whose `append` does nothing when the same code runs again on resume; by default the task's own."""
        key = stream_key(self._key.tenant, "conversation", id or self._key.id)
        return TaskConversation(self._log, key, self._held())

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the task and what it holds, and free its id; False if there was none. `HasForks` if others begin with it."""
        deleted = drive(self._log, family.delete(self._log, self._key, self._log.redacted_text(reason)))
        self._deleted()
        return deleted

    def _call(self, step: Step[Any, Any], frame: Frame, args: Any, kwargs: Any) -> Any:
        script = self._calling(step, frame, step.name, args, kwargs)
        return stream(self._log, script) if step.streams else drive(self._log, script)

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
    def step(  # type: ignore[overload-overlap]  # the last is for all others
        self, name: PlanItem, fn: Callable[P, AsyncIterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[R]: ...

    @overload
    def step(  # type: ignore[overload-overlap]  # the same
        self, name: PlanItem, fn: Callable[P, Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[R]: ...

    @overload
    def step(
        self, name: PlanItem, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def step(
        self, name: PlanItem, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    def step(self, name: PlanItem, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """`Task.step`, awaited. If cancelled, an async function ends where it is; a plain one, in its thread, is waited for.

        Of a generator function, plain or async, it is an async iterator: `async for chunk in task.step("answer", fn, …)`.
        """
        declared = fn if type(fn) is Step else as_step(fn)
        if declared.streams:
            return stream_async(self._log, self._stepping(name, declared, args, kwargs))
        return drive_async(self._log, self._stepping(name, declared, args, kwargs))

    async def reply(
        self,
        chat: Conversation | AsyncConversation | str,
        fn: Callable[Concatenate[Any, P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> dict[str, Any]:
        """`Task.reply`, awaited; the function may be async. If given an id, a plain function gets a plain conversation."""
        return cast("dict[str, Any]", await drive_async(self._log, self._replying(chat, fn, args, kwargs)))

    async def make_plan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """`Task.make_plan`, awaited."""
        return await drive_async(self._log, self._planning(plan, args, kwargs, again=False))

    async def replan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """`Task.replan`, awaited."""
        return await drive_async(self._log, self._planning(plan, args, kwargs, again=True))

    async def results(self) -> dict[str, Any]:
        """`Task.results`, awaited."""
        return await self._run(self._results())

    @overload
    async def map(
        self,
        name: str,
        fn: Callable[[T], Awaitable[R]],
        items: Iterable[T],
        *,
        key: Callable[[T], object] | None = None,
        concurrency: int = 8,
    ) -> list[R]: ...

    @overload
    async def map(
        self,
        name: str,
        fn: Callable[[T], R],
        items: Iterable[T],
        *,
        key: Callable[[T], object] | None = None,
        concurrency: int = 8,
    ) -> list[R]: ...

    async def map(
        self,
        name: str,
        fn: Callable[[T], R],
        items: Iterable[T],
        *,
        key: Callable[[T], object] | None = None,
        concurrency: int = 8,
    ) -> list[Any]:
        """`Task.map`, awaited, in tasks of the event loop; plain functions run in threads."""
        fan = Fan(self, fn, items, key, concurrency)
        return await spread_async(
            fan,
            lambda number: drive_async(self._log, self._stepping(name, fan.steps[number], (fan.items[number],), {})),
        )

    async def child(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        returns: Any = UNRESOLVED,
    ) -> Any:
        """`Task.child`, awaited; the agent may be async or not."""
        return await drive_async(self._log, self._having(agent, id, goal, input, returns))

    async def ask(
        self,
        name: str,
        question: str,
        payload: object = None,
        *,
        returns: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> Any:
        """`Task.ask`, awaited."""
        return await drive_async(self._log, self._asking(name, question, payload, returns, timeout))

    async def wait_for(self, name: str, *, returns: Any = Any, timeout: float | timedelta | None = None) -> Any:
        """`Task.wait_for`, awaited."""
        return await drive_async(self._log, self._waiting_for(name, returns, timeout))

    async def sleep_until(self, time: float | datetime) -> None:
        """`Task.sleep_until`, awaited."""
        await drive_async(self._log, self._sleeping(time, None))

    async def sleep(self, seconds: float | timedelta) -> None:
        """`Task.sleep`, awaited."""
        await drive_async(self._log, self._sleeping(None, seconds))

    async def decide(self, what: str, *, why: str | None = None) -> None:
        """`Task.decide`, awaited."""
        await drive_async(self._log, self._noting(ev.DECIDED, what, why))

    async def discover(self, what: str) -> None:
        """`Task.discover`, awaited."""
        await drive_async(self._log, self._noting(ev.DISCOVERED, what, None))

    async def remember(
        self,
        text: str,
        *,
        tags: Iterable[str] = (),
        importance: float = 0.5,
        author: str = "model",
        at: float | datetime | None = None,
        subject: str | None = None,
        meta: Mapping[str, Any] | None = None,
        ttl: float | timedelta | None = None,
    ) -> str:
        """`Task.remember`, awaited."""
        script = self._remembering(
            text, tags=tags, importance=importance, author=author, at=at, subject=subject, meta=meta, ttl=ttl
        )
        return await drive_async(self._log, script)

    async def attach(self, name: str, source: Source) -> AsyncArtifact:
        """`Task.attach`, awaited. The source is read in threads."""
        return AsyncArtifact(self._log, await drive_async(self._log, attach(self._held(), name, source)))

    @property
    def artifacts(self) -> dict[str, AsyncArtifact]:
        """`Task.artifacts`, with awaited methods."""
        return {found.name: AsyncArtifact(self._log, found) for found in attached_to(self._held())}

    async def finish(self, result: Any = None, /, *args: Any, remember: Remember | None = None, **kwargs: Any) -> Any:
        """`Task.finish`, awaited; both functions may be async."""
        return await drive_async(self._log, self._finishing(result, args, kwargs, remember=remember))

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
        self,
        max_tokens: int = 2000,
        *,
        notes: Sequence[str] = (),
        counter: Counter | None = None,
        memories: int = 5,
        trust: Trust | None = None,
    ) -> ResumeContext:
        """`Task.resume_context`, awaited."""
        from ..memory._calling import run_async

        view = await self.view()
        found = await run_async(self._log, self._relevant(view, memories, trust))
        return self._briefed(view, found, max_tokens, notes, counter)

    async def checkpoint(self) -> AgentCheckpoint:
        """`Task.checkpoint`, awaited."""
        return (await self.view()).checkpoint()

    def conversation(self, id: str | None = None) -> AsyncConversation:
        """`Task.conversation`, with awaited methods."""
        key = stream_key(self._key.tenant, "conversation", id or self._key.id)
        return AsyncTaskConversation(self._log, key, self._held())

    async def delete(self, *, reason: str = "deleted by the program") -> bool:
        """`Task.delete`, awaited."""
        deleted = await drive_async(self._log, family.delete(self._log, self._key, self._log.redacted_text(reason)))
        self._deleted()
        return deleted

    def _call(self, step: Step[Any, Any], frame: Frame, args: Any, kwargs: Any) -> Any:
        if not step.is_async and _in_event_loop():
            how = "async for chunk in" if step.streams else "await"
            raise TypeError(
                f"{step.name!r} is a plain function and would hold up the event loop; "
                f"`{how} task.step({step.name!r}, …)` runs it in a thread, or make it async"
            )
        script = self._calling(step, frame, step.name, args, kwargs)
        if step.streams:
            return stream_async(self._log, script) if step.is_async else stream(self._log, script)
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
