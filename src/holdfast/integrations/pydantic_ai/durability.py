"""`HoldfastDurability`: the model requests and tool calls of a PydanticAI agent as steps of a task.

PydanticAI splits a run into durable operations and gives them to an engine. This is the engine.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import ModelAPIError, ModelRetry
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, RunContext

from ... import AsyncStore, AsyncTask, Step, Store, current_step, current_task, step
from ...errors import NoTask, StepFailed

if TYPE_CHECKING:
    from pydantic_ai.capabilities.abstract import WrapRunHandler

Body = Callable[[], Awaitable[object]]

_counts: WeakKeyDictionary[object, Counter[tuple[str, ...]]] = WeakKeyDictionary()
"""How often each thing was done in a task's block, to number repeated calls."""

_generated: ContextVar[str | None] = ContextVar("holdfast_generated_run_id", default=None)
"""The run id that was generated for a run whose caller gave none."""


@step(kind="model", drift="keep")
async def _ask_model(model: str, body: Body) -> Any:
    response: Any = await body()
    usage = response.get("usage") or {}
    current_step().use(
        input_tokens=usage.get("input_tokens") or 0,
        output_tokens=usage.get("output_tokens") or 0,
        model=response.get("model_name"),
    )
    return response


@step
async def _call_tool(run: str, call_id: str | None, arguments: Any, body: Body) -> Any:
    return await body()


@step
async def _perform(run: str, call_id: str | None, body: Body) -> Any:
    return await body()


class HoldfastDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes the runs of an agent durable: recorded work is not repeated.

    A run with a `run_id` is the task of that id: make the same call again to resume it. Inside a
    task, a run is part of that task. Other runs are not recorded.

    Example:
        >>> agent = Agent(model, name="clerk", capabilities=[HoldfastDurability(store)])
        >>> result = await agent.run("Pay bill 7", run_id="bill-7")
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        # A run is left after its task, so what is entered must not depend on being in a task.
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-always",
            "dynamic": "enter-never",
        },
    )

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
    ) -> None:
        """Record runs in a store.

        Args:
            store: The open store.
            models: Models that a run may switch to, by name, besides the agent's own.
            event_stream_handler: Receives events as they come, also from inside a model request. A
                resumed run does not repeat those of finished requests.
            name: The name of the agent's steps. Default: the agent's name.
        """
        if not isinstance(store, Store | AsyncStore):
            raise TypeError(
                "HoldfastDurability(store): store must be an open store, "
                f'like holdfast.open("agents.db"), got {type(store).__name__}'
            )
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._store = store.aio if isinstance(store, Store) else store

    @property
    def in_durable_context(self) -> bool:
        """Whether the running code is in an async task."""
        return _find_task() is not None

    def get_default_run_id(self) -> str | None:
        task = _find_task()
        if task is not None:
            return f"{task.id}:{_scope()}{_take_number(task, 'run')}"
        made_up = str(uuid.uuid4())
        _generated.set(made_up)
        return made_up

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return None if run_id == _generated.get() else conversation_id_from_run_id(run_id)

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        """Run inside the task of the run's id, unless a task is open already."""
        run_id = ctx.run_id
        if self.in_durable_context or run_id is None or run_id == _generated.get():
            return await super().wrap_run(ctx, handler=handler)
        prompt = ctx.prompt if isinstance(ctx.prompt, str) else None
        goal = prompt if prompt and prompt.strip() else None
        async with self._store.task(run_id, goal=goal, input={"prompt": prompt}) as task:
            result = await super().wrap_run(ctx, handler=handler)
            if task.status == "running":
                await task.finish(_to_plain(result.output))
            return result

    def get_durable_operation_backend(self) -> StepBackend:
        return StepBackend(self.name)


class StepBackend(JournalCallableOperationBackend[None]):
    """Runs each durable operation of an agent as a step of the current task."""

    def __init__(self, agent: str) -> None:
        config = RoleBasedOperationConfig[None](model=None, event=None, capability=None, tool=None)
        super().__init__(agent_name=agent, config=config)
        self._agent = agent

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Body,
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        task = _find_task()
        if task is None:
            return await body()
        context = next((part for part in cache_key if isinstance(part, RunContext)), None)
        run = (context.run_id if context is not None else None) or ""
        call_id = None if context is None else context.tool_call_id
        try:
            if isinstance(operation_id, ModelRequestId):
                # Requests of a run come one after the other, so their number identifies them. Their
                # messages contain times, which differ when a run is resumed.
                number = _take_number(task, "request", run)
                key = number if run == task.id else f"{run} {number}"
                declared = _ask_model.using(key=key)
                return await task.step(self._agent, declared, operation_id.model_name, body)
            if isinstance(operation_id, ToolsetCallToolId):
                tool, arguments = str(cache_key[0]), cache_key[1]
                if _find_step(cache_key) is not None:
                    return await body()
                return await task.step(tool, _call_tool, run, call_id, arguments, body)
            return await task.step(name, _perform, run, call_id, body)
        except StepFailed as failure:
            raise _unwrap(failure, _find_step(cache_key)) from None


def _list_names(kind: type[Exception]) -> set[str]:
    return {kind.__name__}.union(*(_list_names(each) for each in kind.__subclasses__()))


_API_ERRORS: Final = frozenset(_list_names(ModelAPIError))
"""The names of errors after which PydanticAI may use another model."""


def _unwrap(failure: StepFailed, tool: Step[..., Any] | None) -> Exception:
    """Return the exception of a failed step as PydanticAI expects it."""
    if tool is not None and tool.mode == "check" and failure.type != "NotDone":
        return failure  # whether it was done is known only when it is checked
    if isinstance(failure.__cause__, Exception):
        return failure.__cause__
    # Recorded, and PydanticAI continued after it: it has to do that again.
    if failure.type == ModelRetry.__name__:
        return ModelRetry(failure.message)
    return ModelAPIError("", failure.message) if failure.type in _API_ERRORS else failure


def _find_step(cache_key: tuple[object, ...]) -> Step[..., Any] | None:
    """Return the function of a called tool, if it is a step itself."""
    for part in cache_key:
        schema = getattr(getattr(part, "call_func", None), "__self__", None)
        function = getattr(schema, "function", None)
        if isinstance(function, Step):
            return function
    return None


def _find_task() -> AsyncTask | None:
    """Return the async task that the running code is in; None if there is none."""
    try:
        task = current_task()
    except NoTask:
        return None
    return task if isinstance(task, AsyncTask) else None


def _scope() -> str:
    """Return the path of the running step, to tell runs in different steps apart."""
    try:
        return f"{current_step().path} "
    except NoTask:
        return ""


def _take_number(task: AsyncTask, *what: str) -> str:
    """Return how often this was done in the running block and step, counted from 1."""
    counts = _counts.setdefault(task._require_session(), Counter())
    place = (_scope(), *what)
    counts[place] += 1
    return str(counts[place])


def _to_plain(output: Any) -> Any:
    """Return the output as plain JSON values; as text, if it has no such form."""
    try:
        return TypeAdapter(Any).dump_python(output, mode="json")
    except ValueError:
        return str(output)
