"""A store as an MCP server (`holdfast mcp`), and durable tools for an MCP server of your own.

    tools = DurableTools(store)

    @tools.tool()
    def build(task: holdfast.Task, project: str) -> str: ...

    server = MCPServer("builds", extensions=[tools])

A call of such a tool returns a task handle at once, by the tasks extension of MCP (SEP-2663);
clients without the extension poll with a tool. The task survives the server and the client.
"""

from __future__ import annotations

try:
    from .durable_tools import DurableTools
    from .http import create_http_app
    from .server import McpOptions, create_server
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.mcp needs the MCP SDK, version 2.3 or newer, Starlette and Jinja:"
        " pip install 'holdfast[mcp]'"
    ) from error

__all__ = ["DurableTools", "McpOptions", "create_http_app", "create_server"]
