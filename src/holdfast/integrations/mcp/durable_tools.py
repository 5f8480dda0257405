"""Tools whose calls are tasks: `DurableTools`, the tasks extension of MCP on a store."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import timedelta
from time import monotonic
from typing import Any, Final, TypeVar, get_type_hints

import pydantic_core
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, ToolBinding
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    RequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter
from starlette.requests import Request

from ... import AsyncStore, HoldfastError, Store, TaskView, agent, correlate
from ...errors import AlreadyAnswered, NotFound, TaskEnded
from ...tasks.agents.declare import DEFAULT_ATTEMPTS
from .wire import (
    TOOL_AGENTS,
    describe_handle,
    describe_task,
    find_reply,
    find_status,
    make_reply,
    make_tool_error,
    open_questions,
    quote_stored,
    read_answer,
)

F = TypeVar("F", bound=Callable[..., Any])

MAX_WAIT_SECONDS: Final = 60.0
"""How long one call of `get_task` waits at most."""
USER_SCOPE: Final = "holdfast_user"
"""Where the gate of the HTTP server puts the name of the user."""
_ENDED: Final = ("completed", "failed", "cancelled")

_created: ContextVar[list[TaskView] | None] = ContextVar("holdfast_mcp_created", default=None)
"""Collects the task that the tool call in progress has created."""


class TaskRequestParams(RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class TaskUpdateParams(TaskRequestParams):
    """The parameters of `tasks/update`."""

    input_responses: dict[str, dict[str, Any]]


class DurableTools(Extension):
    """The tasks extension of MCP: tools whose calls are durable tasks of a store.

    A worker runs the tasks (`holdfast worker`, or `holdfast.Worker` in the server's process), so
    they survive the server. Clients that know the extension get a task handle and use `tasks/get`,
    `tasks/update` and `tasks/cancel`. For the others there are the tools `get_task`,
    `answer_question` and `cancel_task`.

    Args:
        store: The store that keeps the tasks.
        any_task: Serve all tasks of the store, not only those that these tools have started.
        allow_write: Whether clients may answer questions and cancel tasks.
        user: The name to record for actions of clients. The name of the client program is added.

    Example:
        >>> tools = DurableTools(holdfast.open("jobs.db"))
        >>> @tools.tool()
        ... def build(task: holdfast.Task, project: str) -> str:
        ...     return task.step("compile", compile_project, project)
        >>> server = MCPServer("builds", extensions=[tools])
    """

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        any_task: bool = False,
        allow_write: bool = True,
        user: str | None = None,
    ) -> None:
        self._store = store.aio if isinstance(store, Store) else store
        self._any_task, self._allow_write, self._user = any_task, allow_write, user
        self._bindings: list[ToolBinding] = []
        self._required: set[str] = set()

    def tool(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        max_attempts: int = DEFAULT_ATTEMPTS,
        timeout: float | timedelta | None = None,
        required: bool = False,
    ) -> Callable[[F], F]:
        """Make a function a durable tool. Its first parameter is the task, the others the tool's.

        Args:
            name: The name of the tool; default: that of the function. The agent of its tasks is
                `mcp/` and this name.
            description: What the tool does; default: the function's docstring.
            max_attempts: As for `holdfast.agent`.
            timeout: As for `holdfast.agent`.
            required: Refuse calls of clients that don't know the tasks extension.

        Raises:
            TypeError: The function has no parameter for the task.

            A `ToolError` that the function raises is the result of the tool; an `MCPError` is a
            failure of the protocol. Anything else is retried as for any task.
        """

        def register(fn: F) -> F:
            tool = name or fn.__name__
            self._add_tool(fn, tool, description, max_attempts, timeout)
            if required:
                self._required.add(tool)
            return fn

        return register

    def _add_tool(
        self,
        fn: Callable[..., Any],
        name: str,
        description: str | None,
        max_attempts: int,
        timeout: float | timedelta | None,
    ) -> None:
        signature = inspect.signature(fn)
        if not signature.parameters:
            raise TypeError(f"tool {name!r} must take the task as its first parameter")
        hints, types = get_type_hints(fn, include_extras=True), get_type_hints(fn)
        parameters = [
            each.replace(annotation=hints.get(each.name, each.annotation))
            for each in list(signature.parameters.values())[1:]
        ]
        agent_name = f"{TOOL_AGENTS}{name}"

        async def call(holdfast_context: Context[Any, Any], **arguments: Any) -> CallToolResult:
            stored = pydantic_core.to_jsonable_python(arguments)
            try:
                return await self.start(holdfast_context.request_context, agent_name, stored)
            except HoldfastError as error:
                raise ToolError(str(error)) from error

        context = inspect.Parameter(
            "holdfast_context", inspect.Parameter.KEYWORD_ONLY, annotation=Context[Any, Any]
        )
        keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        call.__signature__ = inspect.Signature([*keyword_only, context])  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in [*keyword_only, context]}
        call.__annotations__["return"] = CallToolResult
        call.__doc__, call.__name__ = inspect.getdoc(fn), name
        readers = {
            each.name: TypeAdapter(types.get(each.name, Any)).validate_python for each in parameters
        }

        def read_arguments(task: Any) -> dict[str, Any]:
            return {name: readers[name](value) for name, value in task.input.items()}

        agent(agent_name, max_attempts=max_attempts, timeout=timeout)(
            _record_outcome(fn, read_arguments)
        )
        self._bindings.append(
            ToolBinding(
                call, kwargs={"name": name, "description": description, "structured_output": False}
            )
        )

    async def start(
        self,
        ctx: ServerRequestContext[Any, Any],
        agent_name: str,
        input: Any,
        *,
        id: str | None = None,
        goal: str | None = None,
    ) -> CallToolResult:
        """Submit a task for a tool call, and return the handle for a client without the extension.

        The id is not guessable, unless the caller chooses it.
        """
        task_id = id or f"{agent_name}/{secrets.token_urlsafe(18)}"
        by = self.find_actor(ctx)
        with correlate(f"mcp/{secrets.token_hex(8)}", actor=by):
            await self._store.submit(agent_name, task_id, input=input, goal=goal, by=by)
        view = await self._load(task_id)
        created = _created.get()
        if created is not None:
            created.append(view)
        text = "The task was started and runs in the background. Poll it with the tool get_task."
        return CallToolResult(
            content=[TextContent(type="text", text=text)],
            structured_content={"task": view.id, "status": find_status(view)},
        )

    def find_actor(self, ctx: ServerRequestContext[Any, Any]) -> str | None:
        """Return whom to record for a request: the user, and the name of the client program."""
        user = self._user
        if isinstance(ctx.request, Request):
            user = ctx.request.scope.get(USER_SCOPE) or user
        params = ctx.session.client_params
        program = "" if params is None else params.client_info.name
        program = "".join(filter(str.isprintable, program))[:80].strip()
        return " via ".join(filter(None, (user, program))) or None

    # -- what the extension adds to a server -----------------------------------------------------

    def tools(self) -> Sequence[ToolBinding]:
        """Return the durable tools, and those for clients without the extension."""
        reading = ToolAnnotations(read_only_hint=True)
        found = [*self._bindings, _plain_tool(self.get_task, reading)]
        if self._allow_write:
            found += [_plain_tool(self.answer_question), _plain_tool(self.cancel_task)]
        return found

    def methods(self) -> Sequence[MethodBinding]:
        """Return the methods of the extension."""
        modern = frozenset(MODERN_PROTOCOL_VERSIONS)
        return [
            MethodBinding("tasks/get", TaskRequestParams, self._handle_get, modern),
            MethodBinding("tasks/update", TaskUpdateParams, self._handle_update, modern),
            MethodBinding("tasks/cancel", TaskRequestParams, self._handle_cancel, modern),
        ]

    async def intercept_tool_call(
        self,
        params: CallToolRequestParams,
        ctx: ServerRequestContext[Any, Any],
        call_next: CallNext,
    ) -> HandlerResult:
        """Answer with a task handle if the call has created a task and the client takes one."""
        if params.name in self._required:
            require_client_extension(ctx, self.identifier)
        created: list[TaskView] = []
        token = _created.set(created)
        try:
            result = await call_next(ctx)
        finally:
            _created.reset(token)
        return describe_handle(created[0]) if created and self._is_known(ctx) else result

    def _is_known(self, ctx: ServerRequestContext[Any, Any]) -> bool:
        capabilities = ctx.session.client_capabilities
        declared = (capabilities.extensions if capabilities else None) or {}
        return self.identifier in declared and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    # -- the methods -----------------------------------------------------------------------------

    async def _handle_get(
        self, ctx: ServerRequestContext[Any, Any], params: TaskRequestParams
    ) -> HandlerResult:
        require_client_extension(ctx, self.identifier)
        return describe_task(await self._load_for_client(ctx, params.task_id))

    async def _handle_update(
        self, ctx: ServerRequestContext[Any, Any], params: TaskUpdateParams
    ) -> HandlerResult:
        require_client_extension(ctx, self.identifier)
        self._check_write()
        view = await self._load_for_client(ctx, params.task_id)
        asked = {question.id: question for question in open_questions(view)}
        for key, response in params.input_responses.items():
            if key not in asked:
                continue  # answered already, or never asked
            try:
                value = read_answer(asked[key], response)
                if value is not None:
                    await self._answer(ctx, view.id, asked[key].name, value, key)
            except (AlreadyAnswered, NotFound):
                continue  # another client has answered it meanwhile
            except (TypeError, ValueError) as error:
                raise MCPError(code=INVALID_PARAMS, message=str(error)) from None
            except HoldfastError as error:
                raise _protocol_failure(error) from None
        return {}

    async def _handle_cancel(
        self, ctx: ServerRequestContext[Any, Any], params: TaskRequestParams
    ) -> HandlerResult:
        require_client_extension(ctx, self.identifier)
        self._check_write()
        view = await self._load_for_client(ctx, params.task_id)
        if find_status(view) in _ENDED:
            return {}  # it cannot be cancelled any more
        try:
            await self._store.task(view.id).cancel(
                "cancelled by the client", by=self.find_actor(ctx)
            )
        except TaskEnded:
            pass  # meanwhile
        except HoldfastError as error:
            raise _protocol_failure(error) from None
        return {}

    def _check_write(self) -> None:
        if not self._allow_write:
            raise MCPError(code=INVALID_PARAMS, message="this server is read-only")

    async def _answer(
        self, ctx: ServerRequestContext[Any, Any], id: str, name: str, value: Any, question: str
    ) -> None:
        by = self.find_actor(ctx)
        await self._store.answer(id, name, value, by=by, question=question)

    async def _load_for_client(self, ctx: ServerRequestContext[Any, Any], id: str) -> TaskView:
        named = ctx.request.headers.get("mcp-name") if isinstance(ctx.request, Request) else None
        if named is not None and decode_header_value(named) != id:
            raise MCPError(code=HEADER_MISMATCH, message="Mcp-Name must be the id of the task")
        try:
            return await self._load(id)
        except HoldfastError as error:
            raise _protocol_failure(error) from None

    async def _load(self, id: str) -> TaskView:
        if not self._any_task and not id.startswith(TOOL_AGENTS):
            raise NotFound(f"there is no task {id!r}")
        view = await self._store.get_task(id)
        if view is None:
            raise NotFound(f"there is no task {id!r}, or it has expired")
        return view

    # -- tools for clients without the extension ---------------------------------------------------

    async def get_task(self, task: str, wait_seconds: float = 0) -> CallToolResult:
        """Get the status of a task, and its result once it has one.

        Args:
            task: The task's id, as the tool that started it returned it.
            wait_seconds: How long to wait, at most 60 seconds, for the task to end or to ask.
        """
        try:
            view = await self._wait(task, min(max(wait_seconds, 0.0), MAX_WAIT_SECONDS))
        except HoldfastError as error:
            raise ToolError(str(error)) from None
        status = find_status(view)
        if status == "completed":
            return CallToolResult.model_validate(find_reply(view))
        found = describe_task(view)
        lines = [f"status: {status}", *filter(None, [found.get("statusMessage")])]
        for question in open_questions(view) if status == "input_required" else ():
            lines.append("It asks; answer with the tool answer_question:")
            form = found["inputRequests"][question.id]["params"]
            shown = f"{question.name}\n{form['message']}\n{form['requestedSchema']}"
            lines += quote_stored("name, question and form of the answer:", shown).split("\n")
        facts = [
            {"name": each.name, "id": each.id, "schema": each.schema}
            for each in open_questions(view)
        ]
        return say("\n".join(lines), task=view.id, status=status, questions=facts)

    async def answer_question(
        self, ctx: Context[Any, Any], task: str, name: str, value: Any, question: str | None = None
    ) -> CallToolResult:
        """Answer a question that a task asks. Only with the consent of the person who is asked.

        Args:
            task: The task that asks.
            name: The name of the question.
            value: The answer, of the type that the question requires.
            question: The id of the question. If the task has replaced it, the answer is rejected.
        """
        try:
            view = await self._load(task)
            by = self.find_actor(ctx.request_context)
            await self._store.answer(view.id, name, value, by=by, question=question)
        except (HoldfastError, TypeError, ValueError) as error:
            raise ToolError(str(error)) from None
        return say("answered")

    async def cancel_task(
        self, ctx: Context[Any, Any], task: str, reason: str | None = None
    ) -> CallToolResult:
        """Cancel a task. A step that is running may still finish.

        Args:
            task: The task.
            reason: Why; it is recorded.
        """
        try:
            view = await self._load(task)
            by = self.find_actor(ctx.request_context)
            await self._store.task(view.id).cancel(reason, by=by)
        except (HoldfastError, ValueError) as error:
            raise ToolError(str(error)) from None
        return say("cancelled")

    async def _wait(self, id: str, seconds: float) -> TaskView:
        """Return the task once it has ended or asks, or when the time is over."""
        view = await self._load(id)
        while find_status(view) == "working" and seconds > 0:
            started = monotonic()
            async for _ in self._store.follow(id, after=view.version, timeout=seconds):
                break
            seconds -= monotonic() - started
            view = await self._load(id)
        return view


def say(text: str, **facts: Any) -> CallToolResult:
    """Return a tool's result: a text of our own, and facts for programs."""
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=facts or None
    )


def _plain_tool(fn: Callable[..., Any], annotations: ToolAnnotations | None = None) -> ToolBinding:
    return ToolBinding(fn, kwargs={"structured_output": False, "annotations": annotations})


def _protocol_failure(error: HoldfastError) -> MCPError:
    code = INVALID_PARAMS if isinstance(error, NotFound) else INTERNAL_ERROR
    return MCPError(code=code, message=str(error))


def _record_outcome(
    fn: Callable[..., Any], read_arguments: Callable[[Any], dict[str, Any]]
) -> Callable[[Any], Any]:
    """Return an agent whose result says, in MCP's form, what the tool returned or how it failed."""
    if inspect.iscoroutinefunction(fn):

        async def run_async(task: Any) -> dict[str, Any]:
            try:
                return {"mcp": make_reply(await fn(task, **read_arguments(task)))}
            except (ToolError, MCPError) as error:
                return _describe_failure(error)

        return run_async

    def run(task: Any) -> dict[str, Any]:
        try:
            return {"mcp": make_reply(fn(task, **read_arguments(task)))}
        except (ToolError, MCPError) as error:
            return _describe_failure(error)

    return run


def _describe_failure(error: ToolError | MCPError) -> dict[str, Any]:
    if isinstance(error, MCPError):
        return {"mcp_error": error.error.model_dump(mode="json", exclude_none=True)}
    return {"mcp": make_tool_error(str(error))}
