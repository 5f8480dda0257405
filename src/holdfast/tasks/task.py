"""A task, and its async twin."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, cast, overload

from ..conversations import AsyncConversation, Conversation
from ..conversations.tokens import Counter
from ..log import operations as ops
from ..log.events import Event
from ..log.ids import stream_key
from ..log.operations import Operation
from ..log.stream_ops import new_append_context
from .agents import children as family
from .agents.declare import Remember
from .artifacts import Artifact, AsyncArtifact, Source, attach, attached_to
from .base import TaskBase
from .control import lifecycle
from .conversation import AsyncTaskConversation, TaskConversation
from .run.effects import drive, drive_async, drive_to_its_end, stream, stream_async
from .run.frames import Frame, in_event_loop
from .state import events as ev
from .state.view import PlanItem, TaskView
from .steps.declare import UNRESOLVED, Step, as_step
from .steps.map import MapRun, spread, spread_async

if TYPE_CHECKING:
    from ..memory.trust import Trust
    from .checkpoint import AgentCheckpoint
    from .preview import Preview
    from .resume_context.context import ResumeContext

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Task(TaskBase):
    """A run of an agent towards a goal that survives its process. Enter it to work on it.

    If the process dies, run the same code again: finished steps return their recorded results.

    Example:
        >>> with store.task("claims-42", goal="Draft the checklist") as task:
        ...     task.make_plan(plan, task.goal)
        ...     for item in task.remaining():
        ...         task.step(item, execute, item)
        ...     task.finish(report)
    """

    def __enter__(self) -> Task:
        drive(self._log, self._entering())
        self._inside()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._refuse_inside()
        try:
            drive(self._log, self._leaving(error))
        finally:
            self._outside_again()

    async def __aenter__(self) -> NoReturn:
        raise TypeError(
            "this task is of a plain store: use `with`, or `async with store.aio.task(…)`"
        )

    async def __aexit__(self, *_: object) -> None:
        """Never: it is not entered."""

    def step(self, name: PlanItem, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `fn` as a step: its result is recorded, and returned on every later run.

        Args:
            name: The step's name, or an item of the plan.
            fn: The function. Options belong to it: see `holdfast.step`. A generator function gives
                an iterator; its chunks are recorded together after the last one.
            *args, **kwargs: Its arguments.

        Returns:
            What `fn` returned, now or in an earlier run.

        Raises:
            StepFailed: `fn` raised an exception. It is recorded, and is the cause of this one.
            StepInDoubt: The step was started before, and nobody knows whether it was done.
            ReplayMismatch: The step has finished, with other arguments.
            LeaseLost: Another process has taken the task over.

        Example:
            >>> task.step("read the claim", read_claim, 42)
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
        """Ask a model for the next message of a conversation, as a model step.

        `fn(chat, ...)` returns the message. The message is appended once, and is the result of the
        step; it is stored in the conversation alone. If the process dies after the append, the
        model is not asked again. `chat` may be an id. Returns the message as stored. `NotFound` if
        the conversation was deleted since.
        """
        return cast("dict[str, Any]", drive(self._log, self._replying(chat, fn, args, kwargs)))

    def make_plan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """Make the plan, once: later runs get the same plan back.

        Args:
            plan: A list of names, or of dicts with a `name`; or a function that returns one.
            *args, **kwargs: The arguments of that function.

        Returns:
            The plan, as it is stored.

        Raises:
            TypeError: It is not a plan.

        Example:
            >>> task.make_plan(["collect", "compare", "write"])
        """
        return drive(self._log, self._planning(plan, args, kwargs, again=False))

    def replan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """Replace what is left of the plan, once per call. What is finished or in doubt stays."""
        return drive(self._log, self._planning(plan, args, kwargs, again=True))

    def results(self) -> dict[str, Any]:
        """The results of the finished steps by path, without steps inside others.

        The plan's come first.
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
        """Run `fn` for each item as a step of that name, in threads; the results in order.

        With `key` an item is known by its key, else by its value. Finished items do not run again.
        If one fails, no other is started; those that run end, and the first failure is raised.
        Items that have to wait do not keep others from running.
        """
        fan = MapRun(self, fn, items, key, concurrency)
        return spread(
            fan,
            lambda number: drive(
                self._log, self._stepping(name, fan.steps[number], (fan.items[number],), {})
            ),
        )

    @overload
    def run_child(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        returns: type[T],
    ) -> T: ...

    @overload
    def run_child(
        self, agent: Callable[..., R], id: str, *, goal: str | None = None, input: object = None
    ) -> R: ...

    @overload
    def run_child(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        returns: Any = UNRESOLVED,
    ) -> Any: ...

    def run_child(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        returns: Any = UNRESOLVED,
    ) -> Any:
        """Run another agent's task as a child of this one, and return its result.

        A child has a record of its own, and is resumed with its parent or alone. While it waits,
        the parent waits too (`Suspended`). If it fails, `ChildFailed` is raised. Cancelling the
        parent cancels it. `returns` is the type of the result, if it is not the one that the agent
        is annotated to return.
        """
        return drive(self._log, self._having(agent, id, goal, input, returns))

    @overload
    def ask(
        self,
        name: str,
        question: str,
        payload: object = None,
        *,
        returns: type[T],
        timeout: float | timedelta | None = None,
    ) -> T: ...

    @overload
    def ask(
        self,
        name: str,
        question: str,
        payload: object = None,
        *,
        returns: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> Any: ...

    def ask(
        self,
        name: str,
        question: str,
        payload: object = None,
        *,
        returns: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> Any:
        """Ask a person, and return the answer. Until there is one, the run ends here (`Suspended`).

        A task that waits holds nothing: no process, no connection. `store.answer(task_id, name,
        ...)` answers. Asked again with another question or payload, it is another question, and the
        earlier one cannot be answered any more.

        Args:
            name: The name of the question.
            question: What to ask.
            payload: What the answer is about: plain JSON values, or a type that can be stored.
            returns: The type of the answer, such as `bool` or `Literal["yes", "no"]`. Default:
                plain JSON.
            timeout: How long to wait, in seconds or as a timedelta. None: forever.

        Returns:
            The answer.

        Raises:
            Suspended: There is no answer yet. Do not catch it.
            TimeoutError: Nobody answered in time. Asked again, it is a new question.

        Example:
            >>> if task.ask("payout", "Pay the cheapest?", quotes, returns=bool):
            ...     pay(quotes)
        """
        return drive(self._log, self._asking(name, question, payload, returns, timeout))

    @overload
    def wait_for(
        self, name: str, *, returns: type[T], timeout: float | timedelta | None = None
    ) -> T: ...

    @overload
    def wait_for(
        self, name: str, *, returns: Any = Any, timeout: float | timedelta | None = None
    ) -> Any: ...

    def wait_for(
        self, name: str, *, returns: Any = Any, timeout: float | timedelta | None = None
    ) -> Any:
        """Return the payload of the next signal of that name.

        Until there is one, the run ends here. Signals (`store.signal`) are kept until they are
        waited for. Each is taken once, in order.

        Args:
            name: The name of the signal.
            returns: The type of the payload. Default: plain JSON values.
            timeout: How long to wait, in seconds or as a timedelta. None: forever.

        Returns:
            The payload.

        Raises:
            Suspended: There is no signal yet. Do not catch it.
            TimeoutError: None came in time.

        Example:
            >>> payment = task.wait_for("paid", returns=Payment, timeout=timedelta(days=3))
        """
        return drive(self._log, self._waiting_for(name, returns, timeout))

    def sleep_until(self, time: float | datetime) -> None:
        """Continue at a time: Unix seconds, or a datetime with its zone.

        Until then the run ends here. Raises `Suspended`. The time that was given first counts.
        """
        drive(self._log, self._sleeping(time, None))

    def sleep(self, seconds: float | timedelta) -> None:
        """Continue so many seconds after this was first reached; see `sleep_until`."""
        drive(self._log, self._sleeping(None, seconds))

    def decide(self, what: str, *, why: str | None = None) -> None:
        """Record a decision and its reason, once: on resume it does nothing."""
        drive(self._log, self._noting(ev.DECIDED, what, why))

    def discover(self, what: str) -> None:
        """Record a fact that was found out, once: on resume it does nothing."""
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
        """Remember something for later tasks of this agent, as `Memory.remember` does.

        Returns the id. Its source is this task. On resume it does nothing.
        """
        script = self._remembering(
            text,
            tags=tags,
            importance=importance,
            author=author,
            at=at,
            subject=subject,
            meta=meta,
            ttl=ttl,
        )
        return drive(self._log, script)

    def attach(self, name: str, source: Source) -> Artifact:
        """Store a file with the task: a path, bytes, or an open binary file (from where it stands).

        It replaces what has that name, unless the content is the same. `SourceChanged` if the file
        changes while it is read. It is deleted with the task.
        """
        return Artifact(self._log, drive(self._log, attach(self._held(), name, source)))

    @property
    def artifacts(self) -> dict[str, Artifact]:
        """The files that are attached, by name, as far as this process knows."""
        return {found.name: Artifact(self._log, found) for found in attached_to(self._held())}

    @overload
    def finish(
        self,
        result: Callable[..., R],
        /,
        *args: Any,
        remember: Remember | None = None,
        **kwargs: Any,
    ) -> R: ...

    @overload
    def finish(self, result: T, /, *, remember: Remember | None = None) -> T: ...

    @overload
    def finish(self, result: None = None, /, *, remember: Remember | None = None) -> None: ...

    def finish(
        self, result: Any = None, /, *args: Any, remember: Remember | None = None, **kwargs: Any
    ) -> Any:
        """End the task with a result, which is stored.

        A task that has finished returns the stored one. What the task leaves goes to its agent's
        memory, `store.memory(agent)`: goal, outcome, decisions and discoveries. Without an agent
        nothing is remembered.

        Args:
            result: The result, or a function that gives it.
            *args, **kwargs: The arguments of that function.
            remember: False to remember nothing; a function from the task's view to texts, or to
                dicts as `remember_many` takes them. None: as the agent says.

        Returns:
            The result, as it is stored.

        Raises:
            NotSerializable: The result cannot be stored.
            TaskEnded: The task was cancelled.

        Example:
            >>> task.finish({"paid": 30})
        """
        return drive(self._log, self._finishing(result, args, kwargs, remember=remember))

    def fail(self, reason: str) -> None:
        """Give the task up for now, as failed. Entered again, it continues."""
        drive(self._log, self._failing(reason))

    def cancel(self, reason: str | None = None) -> None:
        """End the task for good, whoever has it: their next write is refused.

        Needs no `with` block.
        """
        drive(self._log, self._cancelling(reason))

    def history(self) -> list[Event]:
        """Everything that was recorded, in order: who did what, when."""
        return self._run(self._history())

    def fork(self, id: str, *, version: int | None = None) -> Task:
        """Start another task with what this one had done up to `version`. Copies nothing."""
        child, stamp = self._child(id), new_append_context()
        self._settle(lambda: lifecycle.fork(self._key, child, version, stamp))
        return Task(self._log, child, self._as_child(), None, False)

    def version(self) -> int:
        """The newest version of the task, 0 if there is none."""
        return self._run(self._version())

    def view(self, *, version: int | None = None) -> TaskView:
        """The task with its steps and results: as it stands, or as it was at `version`."""
        return self._run(self._viewing(version))

    def preview(self) -> Preview:
        """What a resume would do: what is skipped, run again, checked, in doubt or changed."""
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
        """A briefing for the model: what was done, decided and found out, and where to continue.

        It is made anew each time from the record, so nothing wears away over many resumes.

        Args:
            max_tokens: How long it may be.
            notes: More texts to tell, the most important first.
            counter: A function from a message to its number of tokens, as for
                `Conversation.window`.
            memories: How many memories of its agent to add that fit the goal.
            trust: Whose memories: a list of authors, or True for everybody's. None: as the agent
                says, else everybody's but those of a "tool" or the "web".

        Returns:
            The briefing: `str(context)`, or `context.messages()`.

        Raises:
            BudgetExceeded: Not even the goal, steps in doubt and the next step fit.
            NotFound: There is no such task.

        Example:
            >>> messages = task.resume_context(1000).messages()
        """
        from ..memory.vectors.calls import run

        view = self.view()
        return self._briefed(
            view, run(self._relevant(view, memories, trust)), max_tokens, notes, counter
        )

    def checkpoint(self) -> AgentCheckpoint:
        """The task as one plain document."""
        return self.view().checkpoint()

    def conversation(self, id: str | None = None) -> Conversation:
        """A conversation whose `append` does nothing when the same code runs again on resume.

        By default the task's own.
        """
        key = stream_key(self._key.tenant, "conversation", id or self._key.id)
        return TaskConversation(self._log, key, self._held())

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the task with what it holds, and free its id; False if there was none.

        `HasForks` if other tasks begin with it.
        """
        deleted = drive(
            self._log, family.delete(self._log, self._key, self._log.redaction.text(reason))
        )
        self._deleted()
        return deleted

    def _call(self, step: Step[Any, Any], frame: Frame, args: Any, kwargs: Any) -> Any:
        script = self._calling(step, frame, step.name, args, kwargs)
        return stream(self._log, script) if step.streams else drive(self._log, script)

    def _run(self, operation: Operation[T]) -> T:
        return ops.run(self._log, operation)

    def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return ops.run_until_settled(self._log, make)


class AsyncTask(TaskBase):
    """A `Task` whose methods are awaited: `async with store.task(...) as task`.

    Plain functions run in threads.
    """

    async def __aenter__(self) -> AsyncTask:
        await drive_async(self._log, self._entering())
        self._inside()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._refuse_inside()
        try:
            await drive_to_its_end(self._log, self._leaving(error))
        finally:
            self._outside_again()

    @overload
    def step(  # type: ignore[overload-overlap]  # the last is for all others
        self,
        name: PlanItem,
        fn: Callable[P, AsyncIterator[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
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
        """`Task.step`, awaited. Of a generator function it is an async iterator.

        If cancelled, an async function ends where it is; a plain one, in its thread, is waited for.
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
        """`Task.reply`, awaited. Given an id, a plain function gets a plain conversation."""
        return cast(
            "dict[str, Any]", await drive_async(self._log, self._replying(chat, fn, args, kwargs))
        )

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
        fan = MapRun(self, fn, items, key, concurrency)
        return await spread_async(
            fan,
            lambda number: drive_async(
                self._log, self._stepping(name, fan.steps[number], (fan.items[number],), {})
            ),
        )

    @overload
    async def run_child(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        returns: type[T],
    ) -> T: ...

    @overload
    async def run_child(
        self,
        agent: Callable[..., Awaitable[R]],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
    ) -> R: ...

    @overload
    async def run_child(
        self, agent: Callable[..., R], id: str, *, goal: str | None = None, input: object = None
    ) -> R: ...

    @overload
    async def run_child(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        returns: Any = UNRESOLVED,
    ) -> Any: ...

    async def run_child(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        returns: Any = UNRESOLVED,
    ) -> Any:
        """`Task.run_child`, awaited; the agent may be async or not."""
        return await drive_async(self._log, self._having(agent, id, goal, input, returns))

    @overload
    async def ask(
        self,
        name: str,
        question: str,
        payload: object = None,
        *,
        returns: type[T],
        timeout: float | timedelta | None = None,
    ) -> T: ...

    @overload
    async def ask(
        self,
        name: str,
        question: str,
        payload: object = None,
        *,
        returns: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> Any: ...

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

    @overload
    async def wait_for(
        self, name: str, *, returns: type[T], timeout: float | timedelta | None = None
    ) -> T: ...

    @overload
    async def wait_for(
        self, name: str, *, returns: Any = Any, timeout: float | timedelta | None = None
    ) -> Any: ...

    async def wait_for(
        self, name: str, *, returns: Any = Any, timeout: float | timedelta | None = None
    ) -> Any:
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
            text,
            tags=tags,
            importance=importance,
            author=author,
            at=at,
            subject=subject,
            meta=meta,
            ttl=ttl,
        )
        return await drive_async(self._log, script)

    async def attach(self, name: str, source: Source) -> AsyncArtifact:
        """`Task.attach`, awaited. The source is read in threads."""
        return AsyncArtifact(
            self._log, await drive_async(self._log, attach(self._held(), name, source))
        )

    @property
    def artifacts(self) -> dict[str, AsyncArtifact]:
        """`Task.artifacts`, with awaited methods."""
        return {found.name: AsyncArtifact(self._log, found) for found in attached_to(self._held())}

    @overload
    async def finish(
        self,
        result: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        remember: Remember | None = None,
        **kwargs: Any,
    ) -> R: ...

    @overload
    async def finish(
        self,
        result: Callable[..., R],
        /,
        *args: Any,
        remember: Remember | None = None,
        **kwargs: Any,
    ) -> R: ...

    @overload
    async def finish(self, result: T, /, *, remember: Remember | None = None) -> T: ...

    @overload
    async def finish(self, result: None = None, /, *, remember: Remember | None = None) -> None: ...

    async def finish(
        self, result: Any = None, /, *args: Any, remember: Remember | None = None, **kwargs: Any
    ) -> Any:
        """`Task.finish`, awaited; both functions may be async."""
        return await drive_async(
            self._log, self._finishing(result, args, kwargs, remember=remember)
        )

    async def fail(self, reason: str) -> None:
        """`Task.fail`, awaited."""
        await drive_async(self._log, self._failing(reason))

    async def cancel(self, reason: str | None = None) -> None:
        """`Task.cancel`, awaited."""
        await drive_async(self._log, self._cancelling(reason))

    async def history(self) -> list[Event]:
        """`Task.history`, awaited."""
        return await self._run(self._history())

    async def fork(self, id: str, *, version: int | None = None) -> AsyncTask:
        """`Task.fork`, awaited."""
        child, stamp = self._child(id), new_append_context()
        await self._settle(lambda: lifecycle.fork(self._key, child, version, stamp))
        return AsyncTask(self._log, child, self._as_child(), None, True)

    async def version(self) -> int:
        """`Task.version`, awaited."""
        return await self._run(self._version())

    async def view(self, *, version: int | None = None) -> TaskView:
        """`Task.view`, awaited."""
        return await self._run(self._viewing(version))

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
        from ..memory.vectors.calls import run_async

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
        deleted = await drive_async(
            self._log, family.delete(self._log, self._key, self._log.redaction.text(reason))
        )
        self._deleted()
        return deleted

    def _call(self, step: Step[Any, Any], frame: Frame, args: Any, kwargs: Any) -> Any:
        if not step.is_async and in_event_loop():
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
