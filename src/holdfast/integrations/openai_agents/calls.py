"""Model calls and tool calls of a durable run, as steps of its task.

The SDK offers no hook around a call that could return a recorded result. So `install` replaces
three functions of the SDK, in the modules that call them: the one that finds the model of an agent,
the one that calls a function tool, and the one that turns an exception of a tool into text for the
model. Outside durable runs they do what they did. These functions are not public, so `install`
checks that the installed SDK has them as expected.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    LocalShellTool,
    Model,
    ModelBehaviorError,
    ModelResponse,
    RunConfig,
    ShellTool,
    Tool,
    Usage,
    UserError,
    __version__,
)
from agents.items import TResponseStreamEvent
from agents.tool_context import ToolContext
from openai.types.responses import ResponseCompletedEvent, ResponseOutputItemDoneEvent

from ... import Step, current_step, step
from ...errors import HoldfastError, StepFailed
from .recorded import (
    dump_output,
    dump_response,
    load_output,
    load_response,
    replay_stream,
    to_usage,
)
from .scope import RecordedRunConfig, RunScope, current_scope, inside

TESTED: Final = "0.24"
"""The version of the SDK that the replaced functions are from."""

Call = Callable[[], Awaitable[Any]]


class _Originals:
    """The functions of the SDK that are replaced."""

    get_model: Callable[..., Model]
    invoke_tool: Callable[..., Awaitable[Any]]
    format_failure: Callable[..., Awaitable[str | None]]
    result: Callable[..., Any]


def install() -> None:
    """Let the SDK call models and tools through this module. Raise if this SDK is not supported."""
    if hasattr(_Originals, "get_model"):
        return
    try:
        modules = ("run_internal.run_loop", "run_internal.tool_execution", "tool")
        found_in: list[Any] = [importlib.import_module(f"agents.{name}") for name in modules]
        run_loop, execution, tool = found_in
        found = (
            run_loop.get_model,
            execution._invoke_function_tool_with_metadata,
            tool.maybe_invoke_function_tool_failure_error_function,
        )
        ours: list[Callable[..., Any]] = [find_model, invoke_tool, format_failure]
        for function, replacement in zip(found, ours, strict=True):
            expected = list(inspect.signature(replacement).parameters)
            if list(inspect.signature(function).parameters) != expected:
                raise AttributeError(function.__name__)
        _Originals.result = tool._FunctionToolInvocationResult
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"HoldfastRunner needs openai-agents {TESTED}, got {__version__}, which calls tools or"
            f" models in another way ({error}): pip install 'openai-agents=={TESTED}.*'."
            " HoldfastSession works with both"
        ) from error
    _Originals.get_model, _Originals.invoke_tool, _Originals.format_failure = map(
        staticmethod, found
    )
    run_loop.get_model = find_model
    execution._invoke_function_tool_with_metadata = invoke_tool
    tool.maybe_invoke_function_tool_failure_error_function = format_failure


@step(kind="model", drift="keep")
async def _ask_model(request: dict[str, Any], call: Call) -> Any:
    return await call()


@step
async def _call_tool(call_id: str, arguments: str, call: Call) -> Any:
    return await call()


# -- models ----------------------------------------------------------------------------------------


def find_model(agent: Agent[Any], run_config: RunConfig) -> Model:
    """Return the model of an agent. In a durable run, its calls are steps."""
    model, scope = _Originals.get_model(agent, run_config), current_scope()
    if scope is None:
        return model
    numbered = scope.is_numbered and isinstance(run_config, RecordedRunConfig)
    return RecordedModel(model, agent.name or "model", scope, numbered)


class RecordedModel(Model):
    """A model for one turn of a durable run. Its call returns the recorded response, if any."""

    def __init__(self, model: Model, name: str, scope: RunScope, numbered: bool) -> None:
        self._model, self._name, self._scope = model, name, scope
        self._key = scope.take_key() if numbered else None
        self._attempt = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)

    async def close(self) -> None:
        await self._model.close()

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,
        model_settings: Any,
        tools: list[Tool],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: Any,
    ) -> ModelResponse:
        async def call() -> Any:
            response = await self._model.get_response(
                system_instructions,
                input,
                model_settings,
                tools,
                output_schema,
                handoffs,
                tracing,
                previous_response_id=previous_response_id,
                conversation_id=conversation_id,
                prompt=prompt,
            )
            self._record_usage(response.usage)
            return dump_response(response)

        request = _describe_request(system_instructions, input, tools, handoffs)
        return load_response(await self._ask(request, call))

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Any,
        model_settings: Any,
        tools: list[Tool],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yield the events as they come. The last one comes after the response is recorded."""
        events: asyncio.Queue[TResponseStreamEvent | None] = asyncio.Queue()
        end: list[ResponseCompletedEvent] = []

        async def call() -> Any:
            stream: Any = self._model.stream_response(
                system_instructions,
                input,
                model_settings,
                tools,
                output_schema,
                handoffs,
                tracing,
                previous_response_id=previous_response_id,
                conversation_id=conversation_id,
                prompt=prompt,
            )
            items = []
            async with aclosing(stream):
                async for event in stream:
                    if isinstance(event, ResponseCompletedEvent):
                        end.append(event)
                        break
                    if isinstance(event, ResponseOutputItemDoneEvent):
                        items.append(event.item)
                    events.put_nowait(event)
            if not end:
                raise ModelBehaviorError("Model did not produce a final response!")
            response = end[0].response
            usage = to_usage(response.usage)
            self._record_usage(usage)
            return dump_response(ModelResponse(response.output or items, usage, response.id))

        request = _describe_request(system_instructions, input, tools, handoffs)
        asked = asyncio.ensure_future(self._ask(request, call))
        asked.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            recorded = load_response(await asked)
        finally:
            if not asked.done():
                asked.cancel()
                await asyncio.wait([asked])
        if end:
            response = end[0].response.model_copy(update={"output": recorded.output})
            yield end[0].model_copy(update={"response": response})
        else:
            for event in replay_stream(recorded):
                yield event

    async def _ask(self, request: dict[str, Any], call: Call) -> Any:
        """Return the recorded response, or call the model and record its response.

        The SDK retries failed calls. Each try is a step: a resumed run skips those that failed.
        """
        while True:
            declared = _ask_model
            if self._key is not None:
                retry = f" try {self._attempt}" if self._attempt > 1 else ""
                declared = declared.using(key=f"{self._key}{retry}")
            try:
                return await self._scope.task.step(self._name, declared, request, call)
            except StepFailed as failure:
                self._attempt += 1
                if failure.__cause__ is not None or failure.final:
                    raise failure.__cause__ or failure from None

    def _record_usage(self, usage: Usage) -> None:
        name = getattr(self._model, "model", None)
        current_step().use(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            model=name if isinstance(name, str) else None,
        )


def _describe_request(
    instructions: str | None, input: Any, tools: list[Tool], handoffs: list[Any]
) -> dict[str, Any]:
    """Return what a model is asked. If it differs when a run is resumed, that is drift."""
    for tool in tools:
        if isinstance(tool, _UNRECORDED):
            raise UserError(
                f"HoldfastRunner can't record calls of {tool.name!r} ({type(tool).__name__}), so "
                "it would run again when the run is resumed; make it a function_tool"
            )
    return {
        "instructions": instructions,
        "input": input,
        "tools": sorted(tool.name for tool in tools),
        "handoffs": sorted(handoff.tool_name for handoff in handoffs),
    }


_UNRECORDED: Final = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool, ShellTool)
"""Tools that act on this machine, and that the SDK calls elsewhere."""


# -- tools -----------------------------------------------------------------------------------------


async def invoke_tool(
    *, function_tool: FunctionTool, context: ToolContext[Any], arguments: str
) -> Any:
    """Call a tool. In a durable run, the call is a step.

    If the tool's function is a step already, no other step is added. The calls of an agent that is
    used as a tool are steps themselves: a step around the agent could not wait for an approval.
    """

    async def call() -> Any:
        return await _Originals.invoke_tool(
            function_tool=function_tool, context=context, arguments=arguments
        )

    scope = current_scope()
    if scope is None:
        return await call()
    if function_tool._is_agent_tool:
        with inside(scope.enter_agent_tool(context.tool_call_id)):
            return await call()
    with inside(scope.enter_tool()):
        if _step_of(function_tool) is not None:
            return await call()

        async def call_and_dump() -> Any:
            result = await call()
            is_error = result.is_sdk_generated_error
            return {**dump_output(function_tool, result.output), "is_error": is_error}

        try:
            recorded = await scope.task.step(
                function_tool.name, _call_tool, context.tool_call_id, arguments, call_and_dump
            )
        except StepFailed as failure:
            raise failure.__cause__ or failure from None
    return _Originals.result(
        load_output(function_tool, recorded), is_sdk_generated_error=recorded["is_error"]
    )


async def format_failure(
    *, function_tool: FunctionTool, context: Any, error: BaseException
) -> str | None:
    """Return what the model reads about an error; None to raise it, if it is about the task."""
    if current_scope() is None:
        pass
    elif isinstance(error, StepFailed):
        if _leaves_doubt(function_tool, error):
            return None
        error = error.__cause__ or error
    elif isinstance(error, HoldfastError):
        return None
    return await _Originals.format_failure(
        function_tool=function_tool, context=context, error=error
    )


def _leaves_doubt(tool: FunctionTool, failure: StepFailed) -> bool:
    """Whether a step with a check failed, so that only the next run can tell if it was done."""
    declared = _step_of(tool)
    return declared is not None and declared.mode == "check" and failure.type != "NotDone"


def _step_of(tool: FunctionTool) -> Step[..., Any] | None:
    function = getattr(tool, "__wrapped__", None)
    return function if isinstance(function, Step) else None
