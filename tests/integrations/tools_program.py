"""Durable tools in LangGraph nodes and behind an MCP server, killed at every boundary they have.

Arguments: BASE_URL STORE NOTES FRAMEWORK. A run asks the model in a step, then has two effects: a
plain step and a `once` step that pays. The program is killed after each write of a task, in each
effect before and after it, and while the model call is in flight. The MCP server and its worker die
with their client, which then asks about the task that it had started.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import openai

import holdfast

from .process_runs import REHEARSAL
from .step_kills import PAID, MortalProgram, NeedsOperator, run_ways

WAYS = {"langgraph": ("plain", "async"), "mcp": ("call",)}
PATIENCE_SECONDS = 45.0
SAID = f"seen 1 messages; last: {{way}}; tallied 1; paid {PAID}"


class ToolsProgram(MortalProgram):
    """What the tools of both frameworks do."""

    def ask(self, way: str) -> str:
        def requesting(request: Any) -> None:
            if json.loads(request.content)["model"] != REHEARSAL:
                self.process.note("request", way=way)
                self.process.die_in_flight(f"the call of {way}")

        http = openai.DefaultHttpxClient(event_hooks={"request": [requesting]}, verify=False)
        with openai.OpenAI(
            base_url=self.base_url, api_key="none", max_retries=0, http_client=http
        ) as client:
            asked: Any = [{"role": "user", "content": way}]
            answer = client.chat.completions.create(model=self.model, messages=asked)
            return str(answer.choices[0].message.content)

    def make_steps(self) -> tuple[Any, Any]:
        @holdfast.step
        def tally(way: str) -> str:
            """Count something."""
            self.act(f"{way}: tally 1")
            return "tallied 1"

        @holdfast.step(once=True)
        def pay(way: str) -> str:
            """Pay."""
            self.act(f"{way}: pay {PAID}")
            return f"paid {PAID}"

        return tally, pay


class GraphProgram(ToolsProgram):
    """A graph of two nodes. The second one calls both tools through LangGraph's `ToolNode`."""

    def build(self, way: str) -> Any:
        from langchain_core.messages import AIMessage
        from langchain_core.runnables import RunnableConfig
        from langchain_core.tools import tool
        from langgraph.graph import END, START, StateGraph
        from langgraph.prebuilt import ToolNode

        from holdfast.integrations.langgraph import HoldfastSaver, NodeTask

        from .langgraph.graphs import Chat

        tools = ToolNode([tool(step) for step in self.make_steps()])

        def call(name: str) -> Any:
            calls = [{"name": name, "args": {"way": way}, "id": name}]
            return [*tools.invoke({"messages": [AIMessage("", tool_calls=calls)]})["messages"]]

        def ask(state: Any, config: RunnableConfig) -> Any:
            with NodeTask(self.store, config) as task:
                return {"messages": [AIMessage(task.step("ask", self.ask, way))]}

        def work(state: Any, config: RunnableConfig) -> Any:
            with NodeTask(self.store, config):
                said = [one.content for name in ("tally", "pay") for one in call(name)]
            return {"messages": [AIMessage("; ".join([state["messages"][-1].content, *said]))]}

        builder = StateGraph(Chat)
        builder.add_node("ask", ask)
        builder.add_node("work", work)
        builder.add_edge(START, "ask")
        builder.add_edge("ask", "work")
        builder.add_edge("work", END)
        return builder.compile(checkpointer=HoldfastSaver(self.store))

    def run(self, way: str) -> str:
        graph, config = self.build(way), {"configurable": {"thread_id": way}}
        started = graph.get_state(config).created_at is not None
        given = None if started else {"messages": [("user", "pay")]}
        if way == "async":
            result = asyncio.run(graph.ainvoke(given, config, durability="sync"))
        else:
            result = graph.invoke(given, config, durability="sync")
        return str(result["messages"][-1].content)

    def find_task(self, way: str) -> str:
        [found] = [t.id for t in self.store.tasks() if t.id.startswith(f"langgraph/{way}/work:")]
        return found


class ServerProgram(ToolsProgram):
    """An MCP server with one durable tool, its worker, and a client of the SDK."""

    def run(self, way: str) -> str:
        from mcp.server import MCPServer

        from holdfast.integrations.mcp import DurableTools

        tools = DurableTools(self.store)
        tally, pay = self.make_steps()

        @tools.tool()
        def order(task: holdfast.Task, way: str) -> str:
            """Order something."""
            return "; ".join([task.step("ask", self.ask, way), tally(way), pay(way)])

        server = MCPServer("orders", extensions=[tools], log_level="WARNING")
        answer = asyncio.run(self.talk(server, way))
        if answer is None:
            raise NeedsOperator
        return answer

    async def talk(self, server: Any, way: str) -> str | None:
        from mcp import Client

        from helpers.mcp_client import TakesTasks, call_for_handle, send

        async with Client(server, extensions=[TakesTasks()]) as client:
            known = [task.id for task in self.store.tasks()]
            if not known:
                handle = await call_for_handle(client, "order", way=way)
                known = [handle["taskId"]]
                if self.model != REHEARSAL:
                    self.process.point("after the handle")
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                got = await send(client, "tasks/get", taskId=known[0])
                if got["status"] == "completed":
                    assert not got["result"].get("isError"), got
                    return str(got["result"]["content"][0]["text"])
                assert got["status"] != "failed", got
                view = self.store.get_task(known[0])
                if view is not None and view.in_doubt:
                    return None
                await asyncio.to_thread(lambda: self.store.run_due())
                await asyncio.sleep(0.01)
        raise AssertionError(f"the task has not ended: {got}")

    def find_task(self, way: str) -> str:
        [found] = [task.id for task in self.store.tasks()]
        return found


PROGRAMS = {"langgraph": GraphProgram, "mcp": ServerProgram}


def main() -> None:
    base_url, place, notes, framework = sys.argv[1:]
    run_ways(PROGRAMS[framework], WAYS[framework], base_url, place, notes)
