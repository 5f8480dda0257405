"""Durable steps inside nodes, in processes that are killed with -9."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

import holdfast
from helpers.programs import program
from helpers.stored.notes import Notes, read_notes
from holdfast.integrations.langgraph import HoldfastSaver, NodeTask

from .graphs import Chat, Steps, step_graph, thread


def main() -> None:
    """A graph whose tools pay. Arguments: STORE NOTES. The second payment dies once."""
    place, path = sys.argv[1:]
    first = not os.path.exists(path)
    notes = Notes(path)
    store = holdfast.open(place)

    @holdfast.step(once=True)
    def send(amount: int) -> str:
        notes.write(what="pay", amount=amount)
        return f"paid {amount}"

    @tool
    def pay(amount: int) -> str:
        """Pay an amount."""
        result = send(amount)
        if first and amount == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    tools = ToolNode([pay])

    def ask(state: Chat) -> Any:
        calls = [{"name": "pay", "args": {"amount": n}, "id": str(n)} for n in (8,)]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    def act(state: Chat, config: RunnableConfig) -> Any:
        with NodeTask(store, config) as task:
            task.step("before", lambda: notes.write(what="before"))
            return tools.invoke(state, config)

    builder = StateGraph(Chat)
    builder.add_node("ask", ask)
    builder.add_node("act", act)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "act")
    builder.add_edge("act", END)
    graph = builder.compile(checkpointer=HoldfastSaver(store))
    given = {"messages": [("user", "pay")]} if first else None
    result = graph.invoke(given, thread(), durability="sync")
    notes.write(what="done", text=result["messages"][-1].content)
    store.close()


@pytest.mark.slow
def test_a_tool_that_paid_before_the_process_was_killed_does_not_pay_again(tmp_path: Path) -> None:
    place, notes = tmp_path / "agents.db", tmp_path / "notes"
    command = program("integrations.langgraph.test_node_tasks", place, notes, warnings="error")
    codes = [subprocess.run(command, timeout=240, check=False).returncode for _ in range(2)]
    assert codes == [-signal.SIGKILL, 0]
    assert [(note["what"], note.get("amount", note.get("text"))) for note in read_notes(notes)] == [
        ("before", None),
        ("pay", 8),
        ("done", "paid 8"),
    ]
    with holdfast.open(place) as store:
        assert [task.status for task in store.tasks()] == ["finished"]


@pytest.mark.parametrize("way", ["plain", "async"])
def test_steps_before_an_interrupt_do_not_run_again_after_it(
    store: holdfast.Store, way: str
) -> None:
    ran: list[str] = []

    def act(state: Steps, config: RunnableConfig) -> Any:
        with NodeTask(store, config, goal="Pay") as task:
            task.step("prepare", lambda: ran.append("prepare"))
            answer = interrupt("Pay?")
            return {"log": [f"{answer} {task.step('pay', lambda: ran.append('pay') or 7)}"]}

    async def act_async(state: Steps, config: RunnableConfig) -> Any:
        async with NodeTask(store, config, goal="Pay") as task:
            await task.step("prepare", lambda: ran.append("prepare"))
            answer = interrupt("Pay?")
            paid = await task.step("pay", lambda: ran.append("pay") or 7)
            return {"log": [f"{answer} {paid}"]}

    graph = step_graph(HoldfastSaver(store), [act if way == "plain" else act_async])
    for given in ({"log": []}, Command(resume="yes")):
        if way == "plain":
            result = graph.invoke(given, thread())
        else:
            result = asyncio.run(graph.ainvoke(given, thread()))
    assert result["log"] == ["yes 7"]
    assert ran == ["prepare", "pay"]
    assert [(task.goal, task.status) for task in map(view(store), store.tasks())] == [
        ("Pay", "finished")
    ]


def view(store: holdfast.Store) -> Any:
    return lambda info: store.get_task(info.id)


def test_a_node_task_needs_the_config_of_a_node(store: holdfast.Store) -> None:
    with pytest.raises(ValueError, match="must be the one that LangGraph passes to a node"):
        NodeTask(store, thread())
    with pytest.raises(TypeError, match="use `async with"):
        with NodeTask(store.aio, thread(checkpoint_ns="act:1")):
            pass
