"""`Task` and `AsyncTask`: the methods that users call inside a task's block."""

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

from msgspec import UNSET, UnsetType

from ..conversations import AsyncConversation, Conversation
from ..conversations.tokens import Counter
from ..errors import HoldfastError
from ..log import operations as ops
from ..log.drivers import drive, drive_async, drive_uncancelled
from ..log.events import Event, new_append_context
from ..log.ids import stream_key
from ..log.leases import guard_aexit, guard_exit
from ..log.operations import Operation
from ..log.reprs import html_table
from .agents import children
from .agents.declare import Remember
from .artifacts import Artifact, AsyncArtifact, Source, attach, list_attachments
from .base import TaskBase
from .control import lifecycle
from .conversation import AsyncTaskConversation, TaskConversation
from .finish import cancel_gen, fail_gen, finish_gen
from .plan import plan_gen
from .run import waits
from .run.enter import BlockEntry
from .run.follow import TaskFollower, follow_task, follow_task_async
from .run.frames import Frame, in_event_loop
from .state import events as ev
from .state.load import load_view
from .state.view import DEFAULT_CONTEXT_TOKENS, PlanItem, TaskView
from .steps.declare import UNRESOLVED, Step, to_step
from .steps.map import MapRun, map_in_loop, map_in_threads
from .steps.run import call_step_gen, request_step_gen
from .steps.streaming import stream, stream_async
from .views import history_gen, render_context, version_gen, view_gen

if TYPE_CHECKING:
    from ..memory.trust import Trust
    from .checkpoint import AgentCheckpoint
    from .preview import Preview
    from .resume_context.context import ResumeContext

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Task(TaskBase):
    """An agent's work towards a goal that survives its process. Enter it to work on it.

    If the process dies, run the same code again: finished steps return their recorded results.

    Example:
        >>> with store.task("claims-42", goal="Draft the checklist") as task:
        ...     task.make_plan(plan, task.goal)
        ...     for item in task.remaining():
        ...         task.step(item, execute, item)
        ...     task.finish(report)
    """

    def __enter__(self) -> Task:
        entry = self._new_entry()
        try:
            drive(self._log, self._enter_gen(entry))
            self._begin_block(entry)
            return self
        except BaseException:
            self._cut_short(entry)
            raise

    @guard_exit
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        entry = self._end_block(error)
        try:
            drive(self._log, self._leave_gen(entry))
        except Exception as problem:
            self._handle_leave_error(entry, problem)
        except BaseException:
            self._cut_short(entry)
            raise
        finally:
            self._exit_frame()

    def _cut_short(self, entry: BlockEntry) -> None:
        """Undo what an interrupted `__enter__` has done, or finish an interrupted `__exit__`."""
        try:
            if self._must_release(entry):
                drive(self._log, self._release_gen(entry))
        except HoldfastError as error:
            self._log_release_failure(error)
        finally:
            self._exit_frame()

    async def __aenter__(self) -> NoReturn:
        raise TypeError("this task is synchronous: use `with`, or `async with store.aio.task(…)`")

    async def __aexit__(self, *_: object) -> None:
        """Never called: `__aenter__` raises."""

    def step(self, name: PlanItem, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `fn` as a step: its result is recorded, and returned in every later run.

        Args:
            name: The step's name, or an item of the plan.
            fn: The function. Set options with `holdfast.step`. For a generator function, `step`
                returns an iterator; its chunks are recorded together after the last one.
            *args, **kwargs: Its arguments.

        Returns:
            What `fn` returned, now or in an earlier run.

        Raises:
            StepFailed: `fn` raised an exception, which is recorded and is the `__cause__`.
            StepInDoubt: The step was started before, and its outcome is unknown.
            ReplayMismatch: The step is recorded with other arguments.
            LeaseLost: Another process has taken over the task.

        Example:
            >>> task.step("read the claim", read_claim, 42)
        """
        declared = fn if type(fn) is Step else to_step(fn)
        generator = request_step_gen(self, name, declared, args, kwargs)
        run: Any = stream if declared.streams else drive
        result: R = run(self._log, generator)
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

        `fn(chat, ...)` returns the message, which is appended once and is the result of the step.
        It is stored only in the conversation. If the process dies after the append, the model is
        not called again. `chat` may be an id. Returns the message as stored. Raises `NotFound` if
        the conversation has been deleted.
        """
        return cast("dict[str, Any]", drive(self._log, self._reply_gen(chat, fn, args, kwargs)))

    def make_plan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """Create the plan, once: later runs get the same plan back.

        Args:
            plan: A list of names, or of dicts with a `name`, or a function that returns such a
                list.
            *args, **kwargs: The arguments of that function.

        Returns:
            The plan as stored.

        Raises:
            TypeError: `plan` is not a list of names or of dicts with a `name`.

        Example:
            >>> task.make_plan(["collect", "compare", "write"])
        """
        return drive(self._log, plan_gen(self, plan, args, kwargs, again=False))

    def replan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """Replace the rest of the plan, once per call. Items that are finished or in doubt stay."""
        return drive(self._log, plan_gen(self, plan, args, kwargs, again=True))

    def results(self) -> dict[str, Any]:
        """Return the results of the finished steps by path, starting with the plan's steps.

        Steps inside other steps are not included.
        """
        return self._run(self._results_gen())

    def map(
        self,
        name: str,
        fn: Callable[[T], R],
        items: Iterable[T],
        *,
        key: Callable[[T], object] | None = None,
        concurrency: int = 8,
    ) -> list[R]:
        """Run `fn` for each item as a step, in threads, and return the results in order.

        On resume, an item is identified by `key(item)`, or by its value if there is no `key`.
        Finished items do not run again. If an item fails, no other item is started; once the
        running ones have ended, the first failure is raised. An item that has to wait does not
        block the others.
        """
        fan = MapRun(self, fn, items, key, concurrency)
        return map_in_threads(
            fan,
            lambda number: drive(
                self._log, request_step_gen(self, name, fan.steps[number], (fan.items[number],), {})
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

        A child has its own record, and is resumed with its parent or on its own. While it waits,
        the parent waits too (`Suspended`). If it fails, this raises `ChildFailed`. Cancelling the
        parent cancels the child. `returns` is the type of the result. Default: the agent's return
        annotation.
        """
        return drive(self._log, self._child_gen(agent, id, goal, input, returns))

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

        A task that waits needs no process and no connection. Answer with `store.answer(task_id,
        name, ...)`. A call with another question or payload is a new question, and the earlier one
        can no longer be answered.

        Args:
            name: The name of the question.
            question: What to ask.
            payload: Data to decide on: plain JSON values, or a type that can be stored.
            returns: The type of the answer, such as `bool` or `Literal["yes", "no"]`. Default:
                plain JSON values.
            timeout: How long to wait, in seconds or as a timedelta. Default: forever.

        Returns:
            The answer.

        Raises:
            Suspended: There is no answer yet. Do not catch it.
            TimeoutError: No answer came in time. The next call asks again.

        Example:
            >>> if task.ask("payout", "Pay the cheapest?", quotes, returns=bool):
            ...     pay(quotes)
        """
        return drive(
            self._log, waits.ask(self._require_session(), name, question, payload, returns, timeout)
        )

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
        """Return the payload of the next signal with this name.

        Until there is one, the run ends here (`Suspended`). Signals sent with `store.signal` are
        kept until the task waits for them. Each is received once, in order.

        Args:
            name: The name of the signal.
            returns: The type of the payload. Default: plain JSON values.
            timeout: How long to wait, in seconds or as a timedelta. Default: forever.

        Returns:
            The payload.

        Raises:
            Suspended: There is no signal yet. Do not catch it.
            TimeoutError: No signal came in time.

        Example:
            >>> payment = task.wait_for("paid", returns=Payment, timeout=timedelta(days=3))
        """
        return drive(self._log, waits.wait_for(self._require_session(), name, returns, timeout))

    def sleep_until(self, time: float | datetime) -> None:
        """Wait until a time, given as Unix seconds or as a datetime with a time zone.

        Until then, the run ends here (`Suspended`). Later runs use the time that the first run
        recorded.
        """
        drive(self._log, waits.sleep(self._require_session(), time, None))

    def sleep(self, seconds: float | timedelta) -> None:
        """Wait this long, counted from when the task first made this call; see `sleep_until`."""
        drive(self._log, waits.sleep(self._require_session(), None, seconds))

    def decide(self, what: str, *, why: str | None = None) -> None:
        """Record a decision and its reason, once: on resume it does nothing."""
        drive(self._log, self._note_gen(ev.DECIDED, what, why))

    def discover(self, what: str) -> None:
        """Record a fact that the agent found out, once: on resume it does nothing."""
        drive(self._log, self._note_gen(ev.DISCOVERED, what, None))

    def remember(
        self,
        text: str,
        *,
        tags: Iterable[str] = (),
        importance: float = 0.5,
        author: str = "model",
        at: float | datetime | None = None,
        subject: str | UnsetType | None = UNSET,
        meta: Mapping[str, Any] | None = None,
        ttl: float | timedelta | None = None,
    ) -> str:
        """Remember a text for later tasks of this agent, and return the memory's id.

        Takes the arguments of `Memory.remember`. The source is this task, and the default subject
        is the task's. Resume contexts of the agent's tasks with the same subject quote the memory;
        with `subject=None`, resume contexts of all its tasks do. On resume this does nothing.
        """
        generator = self._remember_gen(
            text,
            tags=tags,
            importance=importance,
            author=author,
            at=at,
            subject=subject,
            meta=meta,
            ttl=ttl,
        )
        return drive(self._log, generator)

    def attach(self, name: str, source: Source) -> Artifact:
        """Store a file with the task, from a path, bytes, or an open binary file.

        An open file is read from its current position. An artifact with the same name is replaced,
        unless the content is the same. Raises `SourceChanged` if the file changes while it is read.
        Artifacts are deleted with the task.
        """
        return Artifact(self._log, drive(self._log, attach(self._require_session(), name, source)))

    @property
    def artifacts(self) -> dict[str, Artifact]:
        """The attached files by name, as far as this process knows."""
        return {
            found.name: Artifact(self._log, found)
            for found in list_attachments(self._require_session())
        }

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
        """Finish the task with a result, which is stored.

        If the task is already finished, this returns the stored result. The goal, the outcome,
        decisions and discoveries are saved to the agent's memory, `store.memory(agent)`. Without an
        agent, nothing is remembered.

        Args:
            result: The result, or a function that returns it.
            *args, **kwargs: The arguments of that function.
            remember: False to remember nothing, or a function that takes the task's view and
                returns texts, or dicts for `remember_many`. Default: what the agent declares.

        Returns:
            The result as stored.

        Raises:
            NotSerializable: The result cannot be stored.
            TaskEnded: The task was cancelled.

        Example:
            >>> task.finish({"paid": 30})
        """
        return drive(self._log, finish_gen(self, result, args, kwargs, remember=remember))

    def fail(self, reason: str) -> None:
        """Mark the task as failed. If it is entered again, it continues."""
        drive(self._log, fail_gen(self, reason))

    def cancel(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Cancel the task permanently. The next write of a process that runs it is rejected.

        Works without a `with` block. `by` is the person who cancels it; `view.cancellation` and
        the audit show both. If it was cancelled before, nothing changes.
        """
        drive(self._log, cancel_gen(self, reason, by))

    def history(self) -> list[Event]:
        """Return all recorded events in order: who did what, and when."""
        return self._run(history_gen(self))

    def follow(
        self, *, after: int = 0, timeout: float | timedelta | None = None, until_end: bool = True
    ) -> Iterator[Event]:
        """Yield the events of the task as they are recorded. Works without a `with` block.

        `after` is the version of the last event that you have seen. See `Store.follow`.
        """
        return follow_task(self._log, TaskFollower(self._key, after, timeout, until_end))

    def _repr_html_(self) -> str:
        """Return the task as stored, for a notebook."""
        try:
            view = ops.run(self._log, load_view(self._key))
        except HoldfastError as error:
            return html_table(f"Task {self.id}", (), note=f"can't be read: {type(error).__name__}")
        if view is None:
            return html_table(f"Task {self.id}", (), note="is not in the store")
        return view._repr_html_()

    def fork(
        self,
        id: str,
        *,
        version: int | None = None,
        input: object = ...,
        results: Mapping[str, object] | None = None,
        by: str | None = None,
    ) -> Task:
        """Create a task that continues from this one at `version`. Nothing is copied.

        Args:
            id: The id of the fork.
            version: The version to continue from. Default: the newest.
            input: Another input. A finished step that is called with other arguments because of it
                is rejected: fork before such steps.
            results: Other results of completed steps, by the steps' paths.
            by: Who forks it.

        Returns:
            The fork, which is pending. `store.retry(id)` queues it for a worker.

        Raises:
            AlreadyExists: There is a task with that id.
            NotFound: The version, or a completed step of that path, doesn't exist.

        Example:
            >>> task.fork("claim-42-b", version=7, results={"assess": "fire damage"})
        """
        request, stamp = self._fork_request(id, version, input, results, by), new_append_context(by)
        self._settle(lambda: lifecycle.fork_task(self._key, request, stamp))
        return Task(self._log, request.child, self._fork_options(), None, False)

    def version(self) -> int:
        """Return the newest version of the task; 0 if it doesn't exist."""
        return self._run(version_gen(self))

    def view(self, *, version: int | None = None) -> TaskView:
        """Return the task with its steps and results, as it is now or as it was at `version`."""
        return self._run(view_gen(self, version))

    def preview(self) -> Preview:
        """Return what a resume would do with each step: skip it, run it again, check it, ..."""
        return self.view().preview()

    def resume_context(
        self,
        max_tokens: int = DEFAULT_CONTEXT_TOKENS,
        *,
        notes: Sequence[str] = (),
        counter: Counter | None = None,
        memories: int = 5,
        trust: Trust | None = None,
    ) -> ResumeContext:
        """Return text for the model: what was done, decided and found out, and what is next.

        It is rendered from the record each time, so no detail is lost over many resumes.

        Args:
            max_tokens: Its maximum length. The default is enough for a task of 10 KB.
            notes: Texts to add, the most important first.
            counter: A function from a message to its number of tokens, as for
                `Conversation.window`.
            memories: Maximum number of memories to add. They are memories of the agent that fit
                the goal or the next steps, about the task's `subject` or about none.
            trust: Authors whose memories may be added: a list, or True for all. Default: what the
                agent declares, or else all except "tool" and "web".

        Returns:
            The resume context: `str(context)`, or `context.messages()`.

        Raises:
            BudgetExceeded: Not even the goal, the steps in doubt and the next step fit.
            NotFound: The task doesn't exist.

        Example:
            >>> messages = task.resume_context(1000).messages()
        """
        view = self.view()
        return render_context(
            self,
            view,
            drive(self._log, self._relevant_memories_gen(view, memories, trust)),
            max_tokens,
            notes,
            counter,
        )

    def checkpoint(self) -> AgentCheckpoint:
        """Return the task as one plain document. It is read-only: a change raises `TypeError`.

        To change the task, call `discover`, `decide`, `make_plan` or `step`.
        """
        return self.view().checkpoint()

    def conversation(self, id: str | None = None) -> Conversation:
        """Return a conversation whose `append` does nothing when a resumed task repeats it.

        Default: the conversation that has the task's id.
        """
        key = stream_key(self._key.tenant, "conversation", id or self._key.id)
        return TaskConversation(self._log, key, self._require_session())

    def delete(self, *, reason: str = "deleted by the program", by: str | None = None) -> bool:
        """Delete the task with its artifacts, and free its id. Return False if it didn't exist.

        The audit stream keeps `reason` and `by`, who deletes it. Raises `HasForks` if it has forks.
        """
        deleted = drive(
            self._log,
            children.delete_and_notify(
                self._log, self._key, self._log.redaction.redact_text(reason), by
            ),
        )
        self._close_deleted()
        return deleted

    def _call(self, step: Step[Any, Any], frame: Frame, args: Any, kwargs: Any) -> Any:
        generator = call_step_gen(self, step, frame, step.name, args, kwargs)
        return stream(self._log, generator) if step.streams else drive(self._log, generator)

    def _run(self, operation: Operation[T]) -> T:
        return ops.run(self._log, operation)

    def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return ops.run_until_settled(self._log, make)


class AsyncTask(TaskBase):
    """A `Task` whose methods are awaited: `async with store.aio.task(...) as task`.

    Synchronous functions run in threads.
    """

    async def __aenter__(self) -> AsyncTask:
        entry = self._new_entry()
        try:
            await drive_async(self._log, self._enter_gen(entry))
            self._begin_block(entry)
            return self
        except BaseException:
            await self._cut_short(entry)
            raise

    @guard_aexit
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        entry = self._end_block(error)
        try:
            await drive_uncancelled(self._log, self._leave_gen(entry))
        except Exception as problem:
            self._handle_leave_error(entry, problem)
        except BaseException:
            await self._cut_short(entry)
            raise
        finally:
            self._exit_frame()

    async def _cut_short(self, entry: BlockEntry) -> None:
        """`Task._cut_short`, awaited."""
        try:
            if self._must_release(entry):
                await drive_uncancelled(self._log, self._release_gen(entry))
        except HoldfastError as error:
            self._log_release_failure(error)
        finally:
            self._exit_frame()

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
        """`Task.step`, awaited. For a generator function it returns an async iterator.

        Cancelling it stops an async function where it is. A synchronous function first runs to its
        end in its thread.
        """
        declared = fn if type(fn) is Step else to_step(fn)
        if declared.streams:
            return stream_async(self._log, request_step_gen(self, name, declared, args, kwargs))
        return drive_async(self._log, request_step_gen(self, name, declared, args, kwargs))

    async def reply(
        self,
        chat: Conversation | AsyncConversation | str,
        fn: Callable[Concatenate[Any, P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> dict[str, Any]:
        """`Task.reply`, awaited. If `chat` is an id, a synchronous `fn` gets a `Conversation`."""
        return cast(
            "dict[str, Any]", await drive_async(self._log, self._reply_gen(chat, fn, args, kwargs))
        )

    async def make_plan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """`Task.make_plan`, awaited."""
        return await drive_async(self._log, plan_gen(self, plan, args, kwargs, again=False))

    async def replan(self, plan: Any, /, *args: Any, **kwargs: Any) -> list[PlanItem]:
        """`Task.replan`, awaited."""
        return await drive_async(self._log, plan_gen(self, plan, args, kwargs, again=True))

    async def results(self) -> dict[str, Any]:
        """`Task.results`, awaited."""
        return await self._run(self._results_gen())

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
        """`Task.map`, awaited, in asyncio tasks; synchronous functions run in threads."""
        fan = MapRun(self, fn, items, key, concurrency)
        return await map_in_loop(
            fan,
            lambda number: drive_async(
                self._log, request_step_gen(self, name, fan.steps[number], (fan.items[number],), {})
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
        return await drive_async(self._log, self._child_gen(agent, id, goal, input, returns))

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
        return await drive_async(
            self._log, waits.ask(self._require_session(), name, question, payload, returns, timeout)
        )

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
        return await drive_async(
            self._log, waits.wait_for(self._require_session(), name, returns, timeout)
        )

    async def sleep_until(self, time: float | datetime) -> None:
        """`Task.sleep_until`, awaited."""
        await drive_async(self._log, waits.sleep(self._require_session(), time, None))

    async def sleep(self, seconds: float | timedelta) -> None:
        """`Task.sleep`, awaited."""
        await drive_async(self._log, waits.sleep(self._require_session(), None, seconds))

    async def decide(self, what: str, *, why: str | None = None) -> None:
        """`Task.decide`, awaited."""
        await drive_async(self._log, self._note_gen(ev.DECIDED, what, why))

    async def discover(self, what: str) -> None:
        """`Task.discover`, awaited."""
        await drive_async(self._log, self._note_gen(ev.DISCOVERED, what, None))

    async def remember(
        self,
        text: str,
        *,
        tags: Iterable[str] = (),
        importance: float = 0.5,
        author: str = "model",
        at: float | datetime | None = None,
        subject: str | UnsetType | None = UNSET,
        meta: Mapping[str, Any] | None = None,
        ttl: float | timedelta | None = None,
    ) -> str:
        """`Task.remember`, awaited."""
        generator = self._remember_gen(
            text,
            tags=tags,
            importance=importance,
            author=author,
            at=at,
            subject=subject,
            meta=meta,
            ttl=ttl,
        )
        return await drive_async(self._log, generator)

    async def attach(self, name: str, source: Source) -> AsyncArtifact:
        """`Task.attach`, awaited. The source is read in threads."""
        return AsyncArtifact(
            self._log, await drive_async(self._log, attach(self._require_session(), name, source))
        )

    @property
    def artifacts(self) -> dict[str, AsyncArtifact]:
        """`Task.artifacts`, with awaited methods."""
        return {
            found.name: AsyncArtifact(self._log, found)
            for found in list_attachments(self._require_session())
        }

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
            self._log, finish_gen(self, result, args, kwargs, remember=remember)
        )

    async def fail(self, reason: str) -> None:
        """`Task.fail`, awaited."""
        await drive_async(self._log, fail_gen(self, reason))

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> None:
        """`Task.cancel`, awaited."""
        await drive_async(self._log, cancel_gen(self, reason, by))

    async def history(self) -> list[Event]:
        """`Task.history`, awaited."""
        return await self._run(history_gen(self))

    def follow(
        self, *, after: int = 0, timeout: float | timedelta | None = None, until_end: bool = True
    ) -> AsyncIterator[Event]:
        """`Task.follow` as an async iterator."""
        return follow_task_async(self._log, TaskFollower(self._key, after, timeout, until_end))

    async def fork(
        self,
        id: str,
        *,
        version: int | None = None,
        input: object = ...,
        results: Mapping[str, object] | None = None,
        by: str | None = None,
    ) -> AsyncTask:
        """`Task.fork`, awaited."""
        request, stamp = self._fork_request(id, version, input, results, by), new_append_context(by)
        await self._settle(lambda: lifecycle.fork_task(self._key, request, stamp))
        return AsyncTask(self._log, request.child, self._fork_options(), None, True)

    async def version(self) -> int:
        """`Task.version`, awaited."""
        return await self._run(version_gen(self))

    async def view(self, *, version: int | None = None) -> TaskView:
        """`Task.view`, awaited."""
        return await self._run(view_gen(self, version))

    async def preview(self) -> Preview:
        """`Task.preview`, awaited."""
        return (await self.view()).preview()

    async def resume_context(
        self,
        max_tokens: int = DEFAULT_CONTEXT_TOKENS,
        *,
        notes: Sequence[str] = (),
        counter: Counter | None = None,
        memories: int = 5,
        trust: Trust | None = None,
    ) -> ResumeContext:
        """`Task.resume_context`, awaited."""
        view = await self.view()
        found = await drive_async(self._log, self._relevant_memories_gen(view, memories, trust))
        return render_context(self, view, found, max_tokens, notes, counter)

    async def checkpoint(self) -> AgentCheckpoint:
        """`Task.checkpoint`, awaited."""
        return (await self.view()).checkpoint()

    def conversation(self, id: str | None = None) -> AsyncConversation:
        """`Task.conversation`, with awaited methods."""
        key = stream_key(self._key.tenant, "conversation", id or self._key.id)
        return AsyncTaskConversation(self._log, key, self._require_session())

    async def delete(
        self, *, reason: str = "deleted by the program", by: str | None = None
    ) -> bool:
        """`Task.delete`, awaited."""
        deleted = await drive_async(
            self._log,
            children.delete_and_notify(
                self._log, self._key, self._log.redaction.redact_text(reason), by
            ),
        )
        self._close_deleted()
        return deleted

    def _call(self, step: Step[Any, Any], frame: Frame, args: Any, kwargs: Any) -> Any:
        if not step.is_async and in_event_loop():
            how = "async for chunk in" if step.streams else "await"
            raise TypeError(
                f"step {step.name!r} is synchronous and would block the event loop; "
                f"run it in a thread with `{how} task.step({step.name!r}, …)`, or make it async"
            )
        generator = call_step_gen(self, step, frame, step.name, args, kwargs)
        if step.streams:
            return (
                stream_async(self._log, generator)
                if step.is_async
                else stream(self._log, generator)
            )
        return drive_async(self._log, generator) if step.is_async else drive(self._log, generator)

    async def _run(self, operation: Operation[T]) -> T:
        return await ops.run_async(self._log, operation)

    async def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return await ops.run_until_settled_async(self._log, make)
