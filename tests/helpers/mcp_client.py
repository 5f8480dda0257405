"""A client of MCP servers that takes task handles, and calls the methods of the tasks extension."""

from __future__ import annotations

from typing import Any, Literal

from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result, TextContent
from pydantic import ConfigDict

PATIENCE_SECONDS = 120.0


class Handle(Result):
    model_config = ConfigDict(extra="allow")

    result_type: Literal["task"] = "task"


class TakesTasks(ClientExtension):
    """Declares the extension; a handle that arrives is for the test."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> list[ResultClaim[Any]]:
        async def resolve(handle: Handle, ctx: ClaimContext) -> CallToolResult:
            raise AssertionError("the test asks for the handle itself")

        return [ResultClaim(result_type="task", model=Handle, resolve=resolve)]


class AnyParams(RequestParams):
    model_config = ConfigDict(extra="allow")


class TaskRequest(Request[Any, Any]):
    name_param = "taskId"


class AnyResult(Result):
    model_config = ConfigDict(extra="allow")


async def call_for_handle(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool. What was answered, as it is on the wire."""
    found = await client.session.call_tool(tool, arguments, allow_claimed=True)
    return found.model_dump(by_alias=True, mode="json", exclude_none=True)


async def send(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """Send a request of the extension. The result, as it is on the wire."""
    request = TaskRequest(method=method, params=AnyParams(**params))
    found = await client.session.send_request(request, AnyResult)
    return found.model_dump(by_alias=True, mode="json", exclude_none=True)


def text_of(result: Any) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))
