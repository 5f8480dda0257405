"""Durable turns on PostgreSQL: one 600-byte message appended to a chat.

Beside it: one row inserted and committed by hand with psycopg, and LangGraph's PostgresSaver, which
stores a checkpoint with all messages so far for each turn. Everything shares one server, one disk
and one hour.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import dict_row

import holdfast

from ._measure import Bar, Lab, Spread, interleave, message, ratio
from ._servers import postgres
from .throughput import appends_per_second

if TYPE_CHECKING:
    from helpers.engines.postgres_server import PostgresServer

AGENTS = 64
HISTORY = 50
"""Messages in each chat before the first turn, when chats are compared with checkpoints."""
POOL = 20
TURN = message("user", 600)
BODY = json.dumps(TURN)

CREATE = (
    "CREATE TABLE messages (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
    " session text NOT NULL, body text NOT NULL)",
    "CREATE INDEX messages_by_session ON messages (session)",
)
INSERT = "INSERT INTO messages (session, body) VALUES (%s, %s)"

Append = Callable[[], Awaitable[object]]


def run(lab: Lab) -> None:
    with postgres(lab) as server:
        server.sql(*CREATE)
        one_turn(lab, server)
        many_agents(lab, server)
        commits(lab, server)


# -- one turn ------------------------------------------------------------------------------------


def one_turn(lab: Lab, server: PostgresServer) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(holdfast.open(server.url()))
        chat = store.conversation("alone")
        by_hand = stack.enter_context(psycopg.connect(server.url()))
        automatic = stack.enter_context(psycopg.connect(server.url(), autocommit=True))

        def insert_and_commit() -> None:
            by_hand.execute(INSERT, ("alone", json.dumps(TURN)))
            by_hand.commit()

        arms: dict[str, Callable[[], object]] = {
            "ours": lambda: chat.append(TURN),
            "INSERT+COMMIT": insert_and_commit,
            "autocommit": lambda: automatic.execute(INSERT, ("alone", json.dumps(TURN))),
        }
        for work in [*arms.values()] * 50:
            work()
        timers = {name: partial(seconds, work) for name, work in arms.items()}
        values = interleave(timers, lab.rng, rounds=lab.choose(15, 5), repeats=lab.choose(200, 60))
    middle = {name: Spread.of(times).middle * 1e6 for name, times in values.items()}
    for name, bar in (("INSERT+COMMIT", Bar(1.5)), ("autocommit", None)):
        lab.report(
            f"a durable turn / {name} by hand, p50",
            ratio(values["ours"], values[name]),
            bar=bar,
            note=f"{middle['ours']:.0f} µs, by hand {middle[name]:.0f} µs",
        )


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


# -- many agents ---------------------------------------------------------------------------------


def many_agents(lab: Lab, server: PostgresServer) -> None:
    duration = 1.0 if not lab.quick else 0.5
    names = (f"run-{number}" for number in itertools.count())

    def rate(make: Callable[..., Awaitable[float]], count: int) -> Callable[[], float]:
        return lambda: asyncio.run(make(server, next(names), count, duration))  # type: ignore[arg-type]

    arms = {
        "one agent": rate(ours, 1),
        "ours": rate(ours, AGENTS),
        "by hand": rate(by_hand, AGENTS),
        "LangGraph": rate(partial(langgraph, shared=True), AGENTS),
        "LangGraph, a saver each": rate(partial(langgraph, shared=False), AGENTS),
    }
    values = interleave(arms, lab.rng, rounds=lab.choose(9, 3))
    note = ", ".join(f"{name} {Spread.of(rates).middle:,.0f}/s" for name, rates in values.items())
    lab.report(
        f"{AGENTS} async agents / one, turns",
        ratio(values["ours"], values["one agent"]),
        bar=Bar(4, ">="),
        note=note,
    )
    lab.report(
        f"{AGENTS} async agents, ours / INSERTs by hand",
        ratio(values["ours"], values["by hand"]),
        note=f"pool of {POOL}",
    )
    package = "langgraph-checkpoint-postgres"
    saver = f"{package} {version(package)}, chats of {HISTORY} messages"
    lab.report(
        f"{AGENTS} async agents, ours / LangGraph's saver",
        ratio(values["ours"], values["LangGraph"]),
        bar=Bar(10, ">="),
        note=f"{saver}, one AsyncPostgresSaver on a pool of {POOL}",
    )
    lab.report(
        f"{AGENTS} async agents, ours / a LangGraph saver each",
        ratio(values["ours"], values["LangGraph, a saver each"]),
        note="the same pool; without the lock that agents with one saver share",
    )


async def ours(server: PostgresServer, name: str, count: int, duration: float) -> float:
    async with holdfast.aopen(server.url()) as store:
        chats = [store.conversation(f"{name}-{number}") for number in range(count)]
        await asyncio.gather(*(chat.append(*[TURN] * HISTORY) for chat in chats))
        return await appends_per_second([partial(chat.append, TURN) for chat in chats], duration)


async def by_hand(server: PostgresServer, name: str, count: int, duration: float) -> float:
    from psycopg_pool import AsyncConnectionPool

    async with AsyncConnectionPool(
        server.url(), max_size=POOL, kwargs={"autocommit": True}
    ) as pool:

        async def append(session: str) -> None:
            async with pool.connection() as connection:
                await connection.execute(INSERT, (session, json.dumps(TURN)))

        sessions = [f"{name}-{number}" for number in range(count)]
        return await appends_per_second(
            [partial(append, session) for session in sessions], duration
        )


async def langgraph(
    server: PostgresServer, name: str, count: int, duration: float, *, shared: bool
) -> float:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg_pool import AsyncConnectionPool

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(server.url(), max_size=POOL, kwargs=options) as pool:
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await saver.setup()
        chats = []
        for number in range(count):
            own = saver if shared else AsyncPostgresSaver(pool)  # type: ignore[arg-type]
            chats.append(checkpoints(own, f"{name}-{number}"))
        return await appends_per_second(chats, duration)


def checkpoints(saver: object, thread: str) -> Append:
    """A turn in LangGraph's way: one more message, and a checkpoint of all of them."""
    from langchain_core.messages import HumanMessage
    from langgraph.checkpoint.base import empty_checkpoint

    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    messages = [HumanMessage(TURN["content"]) for _ in range(HISTORY)]
    channel: str | None = None
    step = 0

    async def turn() -> None:
        nonlocal config, channel, step
        messages.append(HumanMessage(TURN["content"]))
        channel, step = saver.get_next_version(channel, None), step + 1  # type: ignore[attr-defined]
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": list(messages)}
        checkpoint["channel_versions"] = {"messages": channel}
        metadata = {"source": "loop", "step": step, "parents": {}}
        config = await saver.aput(config, checkpoint, metadata, {"messages": channel})  # type: ignore[attr-defined]

    return turn


# -- commits -------------------------------------------------------------------------------------


def commits(lab: Lab, server: PostgresServer) -> None:
    turns = lab.choose(100, 20)

    async def agents(turns: int) -> None:
        async with holdfast.aopen(server.url()) as store:

            async def agent(number: int) -> None:
                chat = store.conversation(f"counted-{number}")
                for _ in range(turns):
                    await chat.append(TURN)

            await asyncio.gather(*map(agent, range(AGENTS)))

    asyncio.run(agents(1))
    before = counted(server)
    asyncio.run(agents(turns))
    commits, syncs = (after - then for after, then in zip(counted(server), before, strict=True))
    lab.report(
        f"syncs of the WAL per turn, {AGENTS} async agents",
        syncs / (AGENTS * turns),
        bar=Bar(1 / 16),
        note=f"{commits:,} transactions, those that only read too, and {syncs:,} syncs "
        f"for {AGENTS * turns:,} turns",
    )


def counted(server: PostgresServer) -> tuple[int, int]:
    """Commits and syncs of the WAL so far, by everybody, once all who have left have told what they
    did."""
    while server.sql("SELECT 1 FROM pg_stat_activity WHERE application_name = 'holdfast'"):
        time.sleep(0.01)
    [(commits,)] = server.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")
    [(syncs,)] = server.sql("SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'")
    return commits, syncs
