"""Compiled graphs on a saver: time travel, forks, interrupts, subgraphs, delta channels."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver

from .graphs import Steps, chat_graph, step_graph, thread

DURABILITIES = ("sync", "async", "exit")


class GraphRunner:
    """Runs a graph with the sync or with the async methods."""

    def __init__(self, graph: Any, asynchronous: bool) -> None:
        self._graph, self._asynchronous = graph, asynchronous

    def invoke(self, given: Any, config: Any, **options: Any) -> Any:
        if self._asynchronous:
            return asyncio.run(self._graph.ainvoke(given, config, **options))
        return self._graph.invoke(given, config, **options)

    def state(self, config: Any, **options: Any) -> Any:
        if self._asynchronous:
            return asyncio.run(self._graph.aget_state(config, **options))
        return self._graph.get_state(config, **options)

    def update(self, config: Any, values: Any) -> Any:
        if self._asynchronous:
            return asyncio.run(self._graph.aupdate_state(config, values))
        return self._graph.update_state(config, values)

    def history(self, config: Any) -> list[Any]:
        if not self._asynchronous:
            return list(self._graph.get_state_history(config))

        async def collect() -> list[Any]:
            return [one async for one in self._graph.aget_state_history(config)]

        return asyncio.run(collect())


@pytest.fixture(params=["plain", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


def extend(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(one for some in writes for one in some)]


class DeltaSteps(TypedDict):
    log: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=4)]


def contents(state: Any) -> list[str]:
    return [message.content for message in state.values["messages"]]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_chat_goes_on_in_another_process_and_every_step_can_be_looked_at(
    tmp_path: Path, asynchronous: bool, durability: str
) -> None:
    expected = InMemorySaver()
    for turn in range(3):
        with holdfast.open(tmp_path / "agents.db") as store:
            for saver in (HoldfastSaver(store), expected):
                graph = GraphRunner(chat_graph(saver), asynchronous)
                said = {"messages": [HumanMessage(f"question {turn}", id=f"{turn}")]}
                graph.invoke(said, thread(), durability=durability)
    with holdfast.open(tmp_path / "agents.db") as store:
        found = GraphRunner(chat_graph(HoldfastSaver(store)), asynchronous).history(thread())
        wanted = GraphRunner(chat_graph(expected), asynchronous).history(thread())
    assert [contents(one) for one in found if "messages" in one.values] == [
        contents(one) for one in wanted if "messages" in one.values
    ]
    assert [(one.next, one.metadata["step"]) for one in found] == [
        (one.next, one.metadata["step"]) for one in wanted
    ]
    assert len(contents(found[0])) == 6


def test_a_run_can_start_from_any_checkpoint_and_forks_do_not_disturb_each_other(
    store: holdfast.Store, asynchronous: bool
) -> None:
    graph = GraphRunner(chat_graph(HoldfastSaver(store)), asynchronous)
    graph.invoke({"messages": [HumanMessage("one")]}, thread())
    graph.invoke({"messages": [HumanMessage("two")]}, thread())
    first = next(one for one in graph.history(thread()) if len(contents(one)) == 2 and not one.next)
    # Two runs from the same place: they have the same channel versions and other values.
    for text in ("three", "four"):
        graph.invoke({"messages": [HumanMessage(text)]}, first.config)
        assert contents(graph.state(thread())) == ["one", "answer 1", text, "answer 3"]
    ends = [contents(one)[2] for one in graph.history(thread()) if len(one.values["messages"]) == 4]
    assert ends == ["four", "three", "two"]
    changed = graph.update(first.config, {"messages": [AIMessage("changed", id="x")]})
    assert contents(graph.state(changed))[-1] == "changed"
    assert contents(graph.state(first.config)) == ["one", "answer 1"]


def test_an_interrupt_is_answered_in_another_process_and_no_finished_node_runs_again(
    tmp_path: Path, asynchronous: bool
) -> None:
    ran: list[str] = []

    def prepare(state: Steps) -> Any:
        ran.append("prepare")
        return {"log": ["prepared"]}

    def ask(state: Steps) -> Any:
        ran.append("ask")
        return {"log": [f"answered {interrupt('Pay?')}"]}

    def finish(state: Steps) -> Any:
        ran.append("finish")
        return {"log": ["finished"]}

    for given in ({"log": []}, Command(resume="yes")):
        with holdfast.open(tmp_path / "agents.db") as store:
            graph = GraphRunner(
                step_graph(HoldfastSaver(store), [prepare, ask, finish]), asynchronous
            )
            result = graph.invoke(given, thread(), durability="sync")
            if isinstance(given, dict):
                assert [one.value for one in result["__interrupt__"]] == ["Pay?"]
                assert graph.state(thread()).next == ("ask",)
    assert result["log"] == ["prepared", "answered yes", "finished"]
    assert ran == ["prepare", "ask", "ask", "finish"]


def test_a_subgraph_has_a_namespace_of_its_own_and_waits_for_its_answer(
    store: holdfast.Store, asynchronous: bool
) -> None:
    def ask(state: Steps) -> Any:
        return {"log": [interrupt("inner?")]}

    inner = step_graph(None, [ask])
    builder = StateGraph(Steps)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    builder.add_edge("inner", END)
    saver = HoldfastSaver(store)
    graph = GraphRunner(builder.compile(checkpointer=saver), asynchronous)
    graph.invoke({"log": ["start"]}, thread())
    waiting = graph.state(thread(), subgraphs=True)
    assert waiting.tasks[0].state.next == ("ask",)
    namespaces = {one.config["configurable"]["checkpoint_ns"] for one in saver.list(None)}
    assert len(namespaces) == 2 and "" in namespaces
    result = graph.invoke(Command(resume="done"), thread())
    assert result["log"] == ["start", "start", "done"]


def test_tasks_that_run_in_parallel_keep_their_order_and_their_results(
    store: holdfast.Store, asynchronous: bool
) -> None:
    saver = HoldfastSaver(store)
    ran: list[int] = []
    broken = [True]

    def count_saved() -> int:
        found = saver.get_tuple(thread())
        return len([one for one in (found and found.pending_writes) or () if one[1] == "log"])

    def spread(state: Steps) -> Any:
        return [Send("work", {"n": n}) for n in range(5)]

    def work(given: Any) -> Any:
        if given["n"] == 3 and broken:
            until = monotonic() + 60
            while count_saved() < 4 and monotonic() < until:
                sleep(0.01)  # the others finish first: LangGraph cancels them otherwise
            raise RuntimeError("out of order")
        ran.append(given["n"])
        return {"log": [f"work {given['n']}"]}

    builder = StateGraph(Steps)
    builder.add_node("work", work)
    builder.add_conditional_edges(START, spread, ["work"])
    graph = GraphRunner(builder.compile(checkpointer=saver), asynchronous)
    with pytest.raises(RuntimeError):
        graph.invoke({"log": []}, thread(), durability="sync")
    assert sorted(ran) == [0, 1, 2, 4]
    broken.clear()
    result = graph.invoke(None, thread(), durability="sync")
    assert result["log"] == [f"work {n}" for n in range(5)]
    assert sorted(ran) == list(range(5))  # those that had finished did not run again


def test_a_delta_channel_is_rebuilt_from_its_writes_also_after_pruning_and_copying(
    tmp_path: Path, asynchronous: bool
) -> None:
    def build(saver: Any) -> GraphRunner:
        builder = StateGraph(DeltaSteps)
        builder.add_node("echo", lambda state: {"log": [f"echo {len(state['log'])}"]})
        builder.add_edge(START, "echo")
        builder.add_edge("echo", END)
        return GraphRunner(builder.compile(checkpointer=saver), asynchronous)

    expected = build(InMemorySaver())
    for turn in range(5):
        with holdfast.open(tmp_path / "agents.db") as store:
            graph = build(HoldfastSaver(store))
            for one in (graph, expected):
                one.invoke({"log": [f"turn {turn}"]}, thread())
    with holdfast.open(tmp_path / "agents.db") as store:
        saver = HoldfastSaver(store)
        graph = build(saver)
        wanted = [one.values for one in expected.history(thread())]
        assert [one.values for one in graph.history(thread())] == wanted
        saver.copy_thread("t", "copy")
        before = len(list(saver.list(thread())))
        saver.prune(["t"])
        assert 1 < len(list(saver.list(thread()))) < before
        for name in ("t", "copy"):
            assert graph.state(thread(name)).values == wanted[0]
            result = graph.invoke({"log": ["on"]}, thread(name))
            assert result["log"] == [*wanted[0]["log"], "on", f"echo {len(wanted[0]['log']) + 1}"]


def test_sync_durability_has_each_step_on_disk_before_the_next_one_runs(tmp_path: Path) -> None:
    url = tmp_path / "agents.db"
    seen: list[list[str]] = []

    def look(state: Steps) -> Any:
        with holdfast.open(url) as other:  # a store of its own, which shares nothing
            found = HoldfastSaver(other).get_tuple(thread())
            assert found is not None
            seen.append(found.checkpoint["channel_values"]["log"])
        return {"log": [f"step {len(seen)}"]}

    def first(state: Steps) -> Any:
        return look(state)

    def second(state: Steps) -> Any:
        return look(state)

    def third(state: Steps) -> Any:
        return look(state)

    with holdfast.open(url) as store:
        graph = step_graph(HoldfastSaver(store), [first, second, third])
        graph.invoke({"log": ["start"]}, thread(), durability="sync")
    assert seen == [["start"], ["start", "step 1"], ["start", "step 1", "step 2"]]
