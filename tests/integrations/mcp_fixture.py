"""An MCP server with the tools that the protocol's own conformance scenarios call.

To run them (they need Node 22 and are not on this machine's disk):

    python tests/integrations/mcp_fixture.py 4951
    npx @modelcontextprotocol/conformance@0.2.0-alpha.12 server --url http://127.0.0.1:4951/mcp \
        --scenario tasks-lifecycle

The scenarios tasks-lifecycle, -capability-negotiation, -wire-fields, -request-state-removal,
-mrtr-input, -request-headers, -dispatch-and-envelope, -required-task-error, -mrtr-composition and
dns-rebinding-protection pass; tasks-status-notifications skips itself.
"""

from __future__ import annotations

import sys
import threading
from typing import Annotated, TypedDict

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

import holdfast
from holdfast.integrations.mcp import DurableTools, create_http_app


class Confirmation(TypedDict):
    confirm: bool


class Person(BaseModel):
    name: str


async def ask_name() -> Elicit[Person]:
    return Elicit("What is your name?", Person)


def create_fixture(store: holdfast.Store) -> MCPServer:
    tools = DurableTools(store, user="ann")

    @tools.tool()
    def slow_compute(task: holdfast.Task, seconds: float = 1, label: str = "") -> str:
        """Compute for a while."""
        task.sleep(seconds)
        return f"computed {label}"

    @tools.tool(required=True)
    def failing_job(task: holdfast.Task) -> str:
        """Fail as a tool."""
        raise ToolError("no luck")

    @tools.tool()
    def protocol_error_job(task: holdfast.Task) -> str:
        """Fail as a request."""
        raise MCPError(code=-32603, message="broken")

    @tools.tool()
    def confirm_delete(task: holdfast.Task, filename: str) -> str:
        """Ask, then delete."""
        answer = task.ask("confirm", f"Delete {filename}?", {"size": 3}, returns=Confirmation)
        return f"{'deleted' if answer['confirm'] else 'kept'} {filename}"

    @tools.tool()
    def multi_input(task: holdfast.Task) -> str:
        """Ask two things at once."""

        def ask(name: str) -> Confirmation:
            return task.ask(name, f"Is {name} right?", returns=Confirmation)

        return str([each["confirm"] for each in task.map("ask", ask, ["one", "two"])])

    @tools.tool(required=True)
    def test_tool_with_task(
        task: holdfast.Task, person: Annotated[Person, Resolve(ask_name)]
    ) -> str:
        """Ask before the task is created."""
        return f"hello {person.name}"

    @tools.tool()
    async def add(task: holdfast.AsyncTask, numbers: list[int]) -> dict[str, int]:
        """Add numbers."""
        return {"sum": await task.step("add", sum, numbers)}

    server = MCPServer("fixture", extensions=[tools], log_level="WARNING")

    @server.tool()
    def greet(name: str) -> str:
        """Greet."""
        return f"Hello, {name}!"

    return server


if __name__ == "__main__":
    import uvicorn

    store = holdfast.open("memory://")
    server = create_fixture(store)
    worker = holdfast.Worker(store, poll=0.05)
    threading.Thread(target=worker.run, daemon=True).start()
    uvicorn.run(create_http_app(server), port=int(sys.argv[1]), log_level="warning")
