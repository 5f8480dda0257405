"""An MCP server whose tool calls survive kill -9: each is a task with steps and an approval.

    pip install '.[mcp]'          # in a clone of the repository
    python examples/mcp_jobs.py [jobs.db]          # the command for your MCP client

A client that knows the tasks extension gets a task handle; others poll with the tool get_task.
"""

import os
import sys
import threading

from mcp.server import MCPServer

import holdfast
from holdfast.integrations.mcp import DurableTools

store = holdfast.open(sys.argv[1] if len(sys.argv) > 1 else "jobs.db")
tools = DurableTools(store)


def build(service: str) -> str:
    return f"{service}:1"  # a stand-in for a build that takes an hour


def push(image: str) -> None:
    """Stand in for the deployment itself."""


@tools.tool()
def deploy(task: holdfast.Task, service: str) -> str:
    """Build a service and deploy it, after a person has approved."""
    image = task.step("build", build, service)
    if not task.ask("approval", f"Deploy {image}?", returns=bool):
        return "not deployed"
    task.step("push", push, image)
    return f"deployed {image}"


server = MCPServer("jobs", extensions=[tools], log_level="WARNING")


@server.tool()
def process_id() -> str:
    """Return the id of this process, to try kill -9."""
    return str(os.getpid())


if __name__ == "__main__":
    worker = holdfast.Worker(store)
    threading.Thread(target=worker.run, daemon=True).start()
    server.run("stdio")
