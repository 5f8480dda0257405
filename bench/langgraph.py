"""A LangGraph graph on our saver and on LangGraph's own SqliteSaver and AsyncSqliteSaver.

Each turn is a question and an answer: what a thousand of them take on disk, what one costs when
the thread has a thousand messages, and what the first look at a long thread costs in a new process.
Both savers sync each commit to disk. SqliteSaver stores the whole state at each step, so a thousand
turns are about a gigabyte there; `--quick` takes fewer.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver

from ._measure import Bar, Lab, Spread, interleave, ratio, settle
from .space import bytes_of

MESSAGES = 1_000
QUESTION, ANSWER = "word " * 30, "word " * 60
THREAD: Any = {"configurable": {"thread_id": "chat"}}
MODES = ("async", "sync")


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def run(lab: Lab) -> None:
    space(lab)
    turn(lab)


def build(saver: Any) -> Any:
    builder = StateGraph(Chat)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(ANSWER)]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def space(lab: Lab) -> None:
    """Bytes on disk after many turns, and the first look at them."""
    turns = lab.choose(1_000, 200)
    with lab.place() as place:
        with holdfast.open(place / "ours.db", durability="process") as store:
            take(build(HoldfastSaver(store)), turns)
        file = sqlite3.connect(place / "theirs.db", check_same_thread=False)
        file.execute("PRAGMA synchronous=OFF")  # only the size counts here
        take(build(SqliteSaver(file)), turns)
        file.close()
        sizes = bytes_of(place / "theirs.db"), bytes_of(place / "ours.db")
        lab.report(
            f"bytes of SqliteSaver / ours, {turns:,} turns",
            sizes[0] / sizes[1],
            bar=Bar(20, ">="),
            note=f"{sizes[0] / 1e6:,.1f} MB, ours {sizes[1] / 1e6:,.1f} MB",
        )
        settle()
        arms = {
            "ours": partial(look, place / "ours.db"),
            "theirs": partial(look_there, place / "theirs.db"),
        }
        looks = interleave(arms, lab.rng, rounds=lab.choose(9, 3))
    note = ", ".join(
        f"{name} {Spread.of(times).middle * 1e3:.0f} ms" for name, times in looks.items()
    )
    what = f"open and get the state after {turns:,} turns: SqliteSaver / ours"
    lab.report(what, ratio(looks["theirs"], looks["ours"]), note=note)


def take(graph: Any, turns: int) -> None:
    for _ in range(turns):
        graph.invoke({"messages": [HumanMessage(QUESTION)]}, THREAD)


def look(path: Path) -> float:
    start = perf_counter()
    with holdfast.open(path) as store:
        build(HoldfastSaver(store)).get_state(THREAD)
        return perf_counter() - start


def look_there(path: Path) -> float:
    start = perf_counter()
    file = sqlite3.connect(path, check_same_thread=False)
    build(SqliteSaver(file)).get_state(THREAD)
    file.close()
    return perf_counter() - start


def turn(lab: Lab) -> None:
    """One turn of a thread with a thousand messages, as LangGraph saves by default and in sync."""
    with lab.place() as place, ExitStack() as stack:
        loop = stack.enter_context(closing(asyncio.new_event_loop()))
        store = stack.enter_context(holdfast.open(place / "ours.db"))
        async_store = stack.enter_context(holdfast.open(place / "ours-async.db"))
        file = sqlite3.connect(place / "theirs.db", check_same_thread=False)
        stack.callback(file.close)
        opened = AsyncSqliteSaver.from_conn_string(str(place / "theirs-async.db"))
        async_saver = loop.run_until_complete(opened.__aenter__())
        stack.callback(lambda: loop.run_until_complete(opened.__aexit__(None, None, None)))
        turns = {
            ("SqliteSaver", "ours"): start(HoldfastSaver(store)),
            ("SqliteSaver", "theirs"): start(SqliteSaver(file)),
            ("AsyncSqliteSaver", "ours"): start_async(HoldfastSaver(async_store), loop),
            ("AsyncSqliteSaver", "theirs"): start_async(async_saver, loop),
        }
        settle()
        arms = {
            (peer, whose, mode): partial(time_turn, once, mode)
            for (peer, whose), once in turns.items()
            for mode in MODES
        }
        times = interleave(arms, lab.rng, rounds=lab.choose(15, 5), repeats=3)
    for peer in ("SqliteSaver", "AsyncSqliteSaver"):
        for mode in MODES:
            ours, theirs = times[peer, "ours", mode], times[peer, "theirs", mode]
            note = ", ours ".join(f"{Spread.of(one).middle * 1e3:.1f} ms" for one in (theirs, ours))
            what = f"a turn at {MESSAGES:,} messages, durability {mode}: {peer} / ours"
            lab.report(what, ratio(theirs, ours), bar=Bar(3, ">="), note=note)


def make_history() -> dict[str, list[AnyMessage]]:
    pairs = (
        (HumanMessage(QUESTION, id=f"q{n}"), AIMessage(ANSWER, id=f"a{n}"))
        for n in range(MESSAGES // 2)
    )
    return {"messages": [message for pair in pairs for message in pair]}


def ask() -> dict[str, list[AnyMessage]]:
    return {"messages": [HumanMessage(QUESTION)]}


def start(saver: Any) -> Callable[[str], object]:
    """Return a function that takes a turn of a thread with a history."""
    graph = build(saver)
    graph.update_state(THREAD, make_history())
    return lambda mode: graph.invoke(ask(), THREAD, durability=mode)


def start_async(saver: Any, loop: asyncio.AbstractEventLoop) -> Callable[[str], object]:
    """Return the same with `ainvoke`."""
    graph = build(saver)
    loop.run_until_complete(graph.aupdate_state(THREAD, make_history()))
    return lambda mode: loop.run_until_complete(graph.ainvoke(ask(), THREAD, durability=mode))


def time_turn(once: Callable[[str], object], mode: str) -> float:
    began = perf_counter()
    once(mode)
    return perf_counter() - began
