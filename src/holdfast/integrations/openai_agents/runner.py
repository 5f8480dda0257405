"""Durable runs of the Agents SDK: `HoldfastRunner` instead of `Runner`."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields
from hashlib import sha256
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from agents import Agent, RunConfig, Runner, RunResult, RunResultStreaming, RunState
from agents.items import ToolApprovalItem, TResponseInputItem
from agents.run_config import RunOptions
from agents.stream_events import StreamEvent
from pydantic import TypeAdapter
from typing_extensions import Unpack

from ... import AsyncStore, AsyncTask, Store, current_task
from ...errors import AlreadyAnswered, HoldfastError, NoTask, NotFound, StepFailed, Suspended
from . import calls
from .recorded_session import RecordedSession
from .scope import RecordedRunConfig, RunScope, ToolDecision, inside

TContext = TypeVar("TContext")
AnyResult = RunResult | RunResultStreaming
Input = str | list[TResponseInputItem]

_runs: WeakKeyDictionary[object, Counter[str]] = WeakKeyDictionary()
"""How many runs with the same agent and input a task's block has started."""


class HoldfastRunner:
    """Runs agents as `Runner` does, and records each model call and each tool call.

    If the process dies, make the same call again: finished calls return what is recorded. A run is
    the task with the id `task_id`. Without `task_id`, inside a task, it is part of that task.

    Example:
        >>> runner = HoldfastRunner(store)
        >>> result = await runner.run(agent, "Pay bill 7", task_id="bill-7")
        >>> result.final_output
    """

    def __init__(self, store: Store | AsyncStore) -> None:
        if not isinstance(store, Store | AsyncStore):
            raise TypeError(
                'HoldfastRunner(store): store must be an open store, like holdfast.open("agents.db"'
                f"), got {type(store).__name__}"
            )
        self._store = store.aio if isinstance(store, Store) else store
        calls.install()

    async def run(
        self,
        starting_agent: Agent[TContext],
        input: Input | RunState[TContext],
        *,
        task_id: str | None = None,
        **options: Unpack[RunOptions[TContext]],
    ) -> RunResult:
        """Run an agent, or resume its run.

        Args:
            starting_agent: The agent to start with.
            input: What the user says, or the state of an interrupted run with your decisions.
            task_id: The id of the task. The same id resumes the run.
            **options: The other arguments of `Runner.run`.

        Returns:
            The result. If tools wait for approval, it has `interruptions`, and the task waits:
            answer with `store.answer`, or pass `result.to_state()` with your decisions.

        Raises:
            ReplayMismatch: The task was started with another input.
            StepInDoubt: A `once` tool was started, and its outcome is unknown.
            LeaseHeld: Another process runs this task.

        Example:
            >>> result = await HoldfastRunner(store).run(agent, "Pay bill 7", task_id="bill-7")
        """
        run = _DurableRun(self._store, starting_agent, input, task_id, dict(options))

        async def start(input: Any, options: dict[str, Any]) -> RunResult:
            return await Runner.run(starting_agent, input, **options)

        return cast("RunResult", await run.run(start))

    def run_sync(
        self,
        starting_agent: Agent[TContext],
        input: Input | RunState[TContext],
        *,
        task_id: str | None = None,
        **options: Unpack[RunOptions[TContext]],
    ) -> RunResult:
        """`run`, for code that has no event loop. Like `Runner.run_sync`, it keeps its loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError("an event loop is running here: use `await runner.run(…)`")
        loop = _get_default_loop()
        running = loop.create_task(self.run(starting_agent, input, task_id=task_id, **options))
        try:
            return loop.run_until_complete(running)
        except BaseException:
            if not running.done():  # interrupted: leave the task cleanly
                running.cancel()
                loop.run_until_complete(asyncio.wait([running]))
            raise

    def run_streamed(
        self,
        starting_agent: Agent[TContext],
        input: Input | RunState[TContext],
        *,
        task_id: str | None = None,
        **options: Unpack[RunOptions[TContext]],
    ) -> RunStream:
        """Start or resume a run, and stream its events.

        A resumed run first streams what is recorded, each text as one piece, and then continues.

        Returns:
            A `RunStream`, which is used like the result of `Runner.run_streamed`.
        """
        run = _DurableRun(self._store, starting_agent, input, task_id, dict(options))
        return RunStream(run)


class RunStream:
    """A streamed durable run. It has the attributes of `RunResultStreaming`."""

    def __init__(self, run: _DurableRun) -> None:
        self._run = run
        self._result: RunResultStreaming | None = None
        self._events: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        self._cancelled: str | None = None
        self._is_read = False
        self._running = asyncio.get_running_loop().create_task(run.run(self._start))
        self._running.add_done_callback(lambda _: self._events.put_nowait(None))

    async def _start(self, input: Any, options: dict[str, Any]) -> RunResultStreaming:
        result = Runner.run_streamed(self._run.agent, input, **options)
        self._result = result
        if self._cancelled is not None:
            result.cancel(mode=cast("Any", self._cancelled))
        async for event in result.stream_events():
            self._events.put_nowait(event)
        return result

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """Yield the events of the run as they come. Raise what ended the run, if it failed."""
        while not self._is_read:
            event = await self._events.get()
            if event is None:
                self._is_read = True
            else:
                yield event
        await asyncio.shield(self._running)

    def cancel(self, mode: str = "immediate") -> None:
        """Stop the run, now or `after_turn`. Its task stays unfinished: run it again to resume."""
        self._cancelled = mode
        self._run.is_cancelled = True
        if self._result is not None:
            self._result.cancel(mode=cast("Any", mode))

    @property
    def is_complete(self) -> bool:
        """Whether the run has ended."""
        return self._running.done()

    def __getattr__(self, name: str) -> Any:
        if self._result is None:
            raise AttributeError(
                f"{name!r} is known after the first event: iterate over stream_events() first"
            )
        return getattr(self._result, name)


class _DurableRun:
    """One run of an agent, inside a task of its own or inside the current one."""

    def __init__(
        self,
        store: AsyncStore,
        agent: Agent[Any],
        input: Input | RunState[Any],
        task_id: str | None,
        options: dict[str, Any],
    ) -> None:
        if not isinstance(agent, Agent):
            raise TypeError(f"starting_agent must be an Agent, got {type(agent).__name__}")
        self.agent, self.is_cancelled = agent, False
        self._store, self._input, self._task_id = store, input, task_id
        self._options = options
        self._task: AsyncTask | None = None if task_id is not None else _find_task(input)

    async def run(self, start: Callable[[Any, dict[str, Any]], Awaitable[AnyResult]]) -> AnyResult:
        """Run the agent until it ends or waits for approval. `start` starts a run of the SDK."""
        try:
            if self._task is not None:
                prefix = _number_run(self._task, self.agent, cast("Input", self._input))
                return await self._run_in(self._task, self._input, prefix, start)
            return await self._run_in_own_task(start)
        except Exception as error:
            # The SDK wraps what a tool raises.
            about_task = _find_task_error(error)
            if about_task is None or about_task is error:
                raise
            raise about_task from None

    async def _run_in_own_task(
        self, start: Callable[[Any, dict[str, Any]], Awaitable[AnyResult]]
    ) -> AnyResult:
        task_id = cast("str", self._task_id)
        if isinstance(self._input, RunState):
            await self._answer_from(self._input, task_id)
            if self._options.get("context") is None and self._input._context is not None:
                self._options["context"] = self._input._context.context
            opened = self._store.task(task_id)
        else:
            goal = _first_text(self._input)
            opened = self._store.task(task_id, goal=goal, input={"input": self._input})
        async with opened as task:
            recorded = task.input
            if not isinstance(recorded, dict) or "input" not in recorded:
                raise ValueError(f"task {task_id!r} is not a run of HoldfastRunner; use another id")
            result: list[AnyResult] = []

            async def start_and_keep(input: Any, options: dict[str, Any]) -> AnyResult:
                result[:] = [await start(input, options)]
                return result[0]

            try:
                await self._run_in(task, recorded["input"], "", start_and_keep)
            except Suspended:
                if not (result and result[0].interruptions):
                    raise
                return result[0]
            if task.status == "running" and not self._is_cut_off(result[0]):
                await task.finish(_to_plain(result[0].final_output))
            return result[0]

    def _is_cut_off(self, result: AnyResult) -> bool:
        return self.is_cancelled and result.final_output is None

    async def _run_in(
        self,
        task: AsyncTask,
        input: Any,
        prefix: str,
        start: Callable[[Any, dict[str, Any]], Awaitable[AnyResult]],
    ) -> AnyResult:
        options = dict(self._options)
        given = options.get("run_config")
        config = options["run_config"] = _record_config(given)
        session = None
        if options.get("session") is not None:
            session = options["session"] = RecordedSession(options["session"], task)
        try:
            with inside(RunScope(task, prefix, is_numbered=True)):
                result = await start(input, options)
                for name in ("context", "conversation_id", "previous_response_id"):
                    options.pop(name, None)  # the state has them
                options.pop("auto_previous_response_id", None)
                while result.interruptions and not self.is_cancelled:
                    state = result.to_state()
                    await _decide(task, state)
                    result = await start(state, options)
            if session is not None and not self._is_cut_off(result):
                await session.save()
            return result
        finally:
            if given is None or (isinstance(given, dict) and "model_provider" not in given):
                await config.model_provider.aclose()

    async def _answer_from(self, state: RunState[Any], task_id: str) -> None:
        """Record the decisions in a run state as answers to the task's questions."""
        view = await self._store.get_task(task_id)
        if view is None:
            raise NotFound(
                f"there is no task {task_id!r} to resume; start it with the run's input, not with"
                " its state"
            )
        for item in state.get_interruptions():
            decision = _read_decision(state, item)
            name = _question_name(item)
            if decision is not None and any(asked.name == name for asked in view.questions):
                try:
                    await self._store.answer(task_id, name, decision)
                except AlreadyAnswered:
                    pass  # the first answer counts


async def _decide(task: AsyncTask, state: RunState[Any]) -> None:
    """Ask for approval of each call that needs it, and note the answers in the run's state."""
    items = {_question_name(item): item for item in state.get_interruptions()}

    async def ask(name: str) -> bool | ToolDecision:
        item = items[name]
        tool, payload = item.tool_name or "a tool", _describe_call(item)
        question = f"May {payload['agent']} call {tool}?"
        answer: bool | ToolDecision = await task.ask(
            name, question, payload, returns=cast("Any", bool | ToolDecision)
        )
        return answer

    answers = await task.map("approval", ask, list(items), key=lambda name: name)
    for item, answer in zip(items.values(), answers, strict=True):
        decision = ToolDecision(answer) if isinstance(answer, bool) else answer
        if decision.approve:
            state.approve(item, always_approve=decision.always)
        else:
            state.reject(item, always_reject=decision.always, rejection_message=decision.message)


def _question_name(item: ToolApprovalItem) -> str:
    return f"{item.tool_name or 'tool'} {item.call_id or ''}".strip()


def _describe_call(item: ToolApprovalItem) -> dict[str, Any]:
    arguments: Any = item.arguments
    try:
        arguments = json.loads(arguments or "null")
    except ValueError:
        pass  # a model may write anything
    return {"agent": item.agent.name, "tool": item.tool_name, "arguments": arguments}


def _read_decision(state: RunState[Any], item: ToolApprovalItem) -> bool | ToolDecision | None:
    """Return the decision about a call in a run's state; None if there is none."""
    nested = state._find_nested_approval_state(item)  # of an agent that is used as a tool
    state, item = nested or (state, item)
    context, name, call_id = state._context, item.tool_name or "", item.call_id or ""
    if context is None:
        return None
    approved = context.get_approval_status(name, call_id, existing_pending=item)
    if approved is None:
        return None
    always = context.is_tool_approved(name, f"not {call_id}") is not None
    message = (
        None if approved else context.get_rejection_message(name, call_id, existing_pending=item)
    )
    return ToolDecision(approved, always, message) if always or message else approved


def _find_task(input: object) -> AsyncTask:
    """Return the task that the calling code is in."""
    try:
        task = current_task()
    except NoTask:
        raise TypeError(
            "a durable run needs a task: pass task_id=…, or call it inside `async with"
            " store.aio.task(id)`"
        ) from None
    if not isinstance(task, AsyncTask):
        raise TypeError(
            "a durable run inside a task needs an async one: open it with `async with"
            " store.aio.task(id)`, or pass a task_id=… of its own"
        )
    if isinstance(input, RunState):
        raise TypeError(
            "inside a task, answer approvals with store.answer(…), and call it with the run's input"
        )
    return task


def _number_run(task: AsyncTask, agent: Agent[Any], input: Input) -> str:
    """Return a prefix for the steps of a run, the same whenever the task's code starts it."""
    about = json.dumps([agent.name, input], sort_keys=True, default=str)
    digest = sha256(about.encode(errors="surrogatepass")).hexdigest()[:8]
    started = _runs.setdefault(task._require_session(), Counter())
    started[digest] += 1
    number = f"-{started[digest]}" if started[digest] > 1 else ""
    return f"{digest}{number} "


def _record_config(given: RunConfig | dict[str, Any] | None) -> RecordedRunConfig:
    if isinstance(given, dict):
        return RecordedRunConfig(**given)
    values = {each.name: getattr(given, each.name) for each in fields(RunConfig) if given}
    return RecordedRunConfig(**values)


def _find_task_error(error: BaseException | None) -> HoldfastError | None:
    """Return the error about the task that caused this one; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, HoldfastError) and not isinstance(error, StepFailed):
            return error
        error = error.__cause__ or error.__context__
    return None


def _first_text(input: Input) -> str | None:
    """Return the text of the first message, as the goal of the task."""
    if isinstance(input, str):
        return input if input.strip() else None
    for item in input:
        content = item.get("content")
        if isinstance(content, str) and content.strip():
            return content
    return None


def _to_plain(output: Any) -> Any:
    """Return the final output as plain JSON values; as text, if it has no such form."""
    try:
        return TypeAdapter(Any).dump_python(output, mode="json")
    except ValueError:
        return str(output)


def _get_default_loop() -> asyncio.AbstractEventLoop:
    """Return the thread's event loop. Clients keep connections in it from one call to the next."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            loop = asyncio.get_event_loop_policy().get_event_loop()
        except RuntimeError:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
    if loop.is_closed():
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
    return loop
