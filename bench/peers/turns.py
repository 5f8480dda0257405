"""Turns of a conversation: append one, read the whole history first, 64 at once, and disk space."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from agents import SQLiteSession
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

import holdfast

from .._measure import Lab, compact, interleave, pair, settle
from .report import OURS, Comparison, compare

SIZES = (10, 1_000)
AGENTS = 64
STORED = 200
MESSAGES = pair(600)
LANGGRAPH, OPENAI = "LangGraph SqliteSaver", "OpenAI SQLiteSession"
ASYNC = f"{OURS}, async"
"""The OpenAI session is async only, and is compared with our async conversation."""

Once = Callable[[], object]


def run(lab: Lab) -> list[Comparison]:
    found: list[Comparison] = []
    for size in SIZES:
        found += compare_turns(lab, size, whole=False)
        found += compare_turns(lab, size, whole=True)
    return found + compare_agents(lab) + compare_space(lab)


# -- one conversation ------------------------------------------------------------------------------


def compare_turns(lab: Lab, size: int, whole: bool) -> list[Comparison]:
    """A turn of two messages at a length, with or without reading the history before it."""
    with lab.place() as place, ExitStack() as stack:
        loop = stack.enter_context(closing(asyncio.new_event_loop()))
        store = stack.enter_context(holdfast.open(place / "ours.db"))
        arms: dict[str, Once] = {
            OURS: our_turn(store, size, whole),
            ASYNC: our_async_turn(store, loop, size, whole),
            OPENAI: openai_turn(place / "openai.db", loop, size, whole, stack),
        }
        if whole:  # a graph always has its whole state at hand, and stores it
            arms[LANGGRAPH] = graph_turn(place / "graph.db", size, stack)
        settle()
        values = interleave(
            {name: partial(seconds_of, once) for name, once in arms.items()},
            lab.rng,
            rounds=lab.choose(5, 2),
            repeats=lab.choose(15, 5),
        )
    what = f"turn {'with its whole history' if whole else ''} at {size:,} messages"
    what = " ".join(what.split())
    micro = {name: [value * 1e6 for value in taken] for name, taken in values.items()}
    against_async = {name: micro[name] for name in (ASYNC, OPENAI)}
    found = compare(what, against_async, "µs", ours=ASYNC)
    if whole:
        found += compare(what, {name: micro[name] for name in (OURS, LANGGRAPH)}, "µs")
    return found


def seconds_of(once: Once) -> float:
    start = perf_counter()
    once()
    return perf_counter() - start


def our_turn(store: holdfast.Store, size: int, whole: bool) -> Once:
    chat = store.conversation("sync")
    chat.append(*(list(MESSAGES) * (size // 2)))

    def once() -> None:
        if whole:
            chat.messages()
        chat.append(*MESSAGES)

    return once


def our_async_turn(
    store: holdfast.Store, loop: asyncio.AbstractEventLoop, size: int, whole: bool
) -> Once:
    chat = store.aio.conversation("async")

    async def turn() -> None:
        if whole:
            await chat.messages()
        await chat.append(*MESSAGES)

    loop.run_until_complete(chat.append(*(list(MESSAGES) * (size // 2))))
    return lambda: loop.run_until_complete(turn())


def openai_turn(
    path: Path, loop: asyncio.AbstractEventLoop, size: int, whole: bool, stack: ExitStack
) -> Once:
    session = SQLiteSession("chat", path)
    stack.callback(session.close)
    items: list[Any] = list(MESSAGES)

    async def turn() -> None:
        if whole:
            await session.get_items()
        await session.add_items(items)

    loop.run_until_complete(session.add_items(items * (size // 2)))
    return lambda: loop.run_until_complete(turn())


def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [MESSAGES[1]]}


def build_graph() -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph


def graph_turn(path: Path, size: int, stack: ExitStack) -> Once:
    connection = stack.enter_context(closing(sqlite3.connect(path, check_same_thread=False)))
    saver = SqliteSaver(connection)
    saver.setup()
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "not durable"
    app = build_graph().compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "chat"}}
    app.update_state(config, {"messages": list(MESSAGES) * (size // 2)}, as_node="answer")
    return lambda: app.invoke({"messages": [MESSAGES[0]]}, config, durability="sync")


# -- many at once ----------------------------------------------------------------------------------

Work = Callable[[], Awaitable[object]]


def compare_agents(lab: Lab) -> list[Comparison]:
    """Async agents that append turns back to back, each to a conversation of its own."""
    seconds = 2.0 if not lab.quick else 0.5

    def rate(start: Callable[[Path, AsyncExitStack], Awaitable[list[Work]]]) -> float:
        async def together() -> float:
            with lab.place() as place:
                async with AsyncExitStack() as stack:
                    works = await start(place / "store.db", stack)
                    await asyncio.gather(*(work() for work in works))
                    began = perf_counter()
                    end = began + seconds
                    done = sum(await asyncio.gather(*(repeat(work, end) for work in works)))
                    return done / (perf_counter() - began)

        return asyncio.run(together())

    arms = {OURS: our_agents, OPENAI: openai_agents, "LangGraph AsyncSqliteSaver": graph_agents}
    values = interleave(
        {name: partial(rate, start) for name, start in arms.items()},
        lab.rng,
        rounds=lab.choose(3, 1),
    )
    return compare(f"{AGENTS} agents", values, "turns per second", better="more")


async def repeat(work: Work, end: float) -> int:
    done = 0
    while perf_counter() < end:
        await work()
        done += 1
    return done


async def our_agents(path: Path, stack: AsyncExitStack) -> list[Work]:
    store = stack.enter_context(holdfast.open(path)).aio
    return [partial(store.conversation(f"c{n}").append, *MESSAGES) for n in range(AGENTS)]


async def openai_agents(path: Path, stack: AsyncExitStack) -> list[Work]:
    sessions = [SQLiteSession(f"c{n}", path) for n in range(AGENTS)]
    for session in sessions:
        stack.callback(session.close)
    items: list[Any] = list(MESSAGES)
    return [partial(session.add_items, items) for session in sessions]


async def graph_agents(path: Path, stack: AsyncExitStack) -> list[Work]:
    saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(path)))
    app = build_graph().compile(checkpointer=saver)

    def work(number: int) -> Work:
        config = {"configurable": {"thread_id": str(number)}}
        return lambda: app.ainvoke({"messages": [MESSAGES[0]]}, config, durability="sync")

    return [work(number) for number in range(AGENTS)]


# -- disk space ------------------------------------------------------------------------------------


def compare_space(lab: Lab) -> list[Comparison]:
    """Bytes on disk after a conversation, for each byte of its messages. All files are closed."""
    payload = STORED * sum(len(compact(message)) for message in MESSAGES)
    files = {OURS: "ours.db", OPENAI: "openai.db", LANGGRAPH: "graph.db"}
    with lab.place() as place:
        with ExitStack() as stack:
            loop = stack.enter_context(closing(asyncio.new_event_loop()))
            store = stack.enter_context(holdfast.open(place / files[OURS]))
            for once in (
                our_turn(store, 2, whole=False),
                openai_turn(place / files[OPENAI], loop, 2, False, stack),
                graph_turn(place / files[LANGGRAPH], 2, stack),
            ):
                for _ in range(STORED):
                    once()
        values = {
            name: [sum(path.stat().st_size for path in place.glob(f"{file}*")) / payload]
            for name, file in files.items()
        }
    return compare(f"space of {STORED:,} turns", values, "bytes per byte")
