"""The core beside the limit: a turn, many agents, many tasks, a history read again, a cold load.

Beside it are a commit written by hand (`_raw`), and the leanest program that does the same work
(`_lean`). Each is measured by the clock and by the processor time of the process: on a shared
machine only the latter is steady, and it is all that a library can add or save.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from itertools import count, cycle
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import holdfast
from holdfast import Conversation, Store
from holdfast.backends import Append
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.log import chain
from holdfast.log import operations as ops
from holdfast.log.appender import Appender, StreamPosition
from holdfast.log.chain import sha256
from holdfast.log.ids import append_id
from holdfast.log.log import Log

from . import _lean, _raw
from ._measure import (
    Bar,
    Lab,
    Message,
    Spread,
    interleave,
    interleave_with_cpu,
    message,
    pair,
    ratio,
    settle,
    warm,
)
from .tasks import LEASE
from .throughput import as_events

SIZES = (10, 1_000, 10_000, 100_000)
HISTORIES = (10, 1_000, 10_000)
LOADED = 10_000
AGENTS = 64
BATCH = 1_000
MESSAGES = pair(600)
RESULT = message("tool", 1_500)


def run(lab: Lab) -> None:
    turn(lab)
    checks(lab)
    agents(lab)
    tasks(lab)
    histories(lab)
    load(lab)


# -- one turn --------------------------------------------------------------------------------------


def turn(lab: Lab) -> None:
    """Two messages appended to a conversation, short and long."""
    rounds, repeats = lab.choose(9, 3), lab.choose(100, 30)
    sizes = SIZES if not lab.quick else SIZES[:3]
    with lab.place() as place, ExitStack() as stack:
        arms: dict[str, Callable[[], object]] = {}
        for size in sizes:
            # Enough conversations that none grows by more than a tenth, or ten messages.
            names = [f"c{n}" for n in range(-(-2 * rounds * repeats // max(10, size // 10)))]
            arms[f"raw {size}"] = raw_turns(place / f"raw-{size}.db", names, size, stack)
            arms[f"ours {size}"] = turns(place / f"ours-{size}.db", names, size, stack)
        arms["lean"] = lean_turns(place / "lean.db", stack)
        settle()
        taken = interleave_with_cpu(arms, lab.rng, rounds=rounds, repeats=repeats)
    for size in sizes:
        ours, raw = f"ours {size}", f"raw {size}"
        lab.report(
            f"turn at {size:,} messages / a commit by hand",
            ratio(taken.wall[ours], taken.wall[raw]),
            bar=Bar(1.2),
            note="µs: " + taken.describe(ours, raw),
        )
    for name, values in (("", taken.wall), (", CPU", taken.cpu)):
        lab.report(
            f"turn / lean{name}",
            ratio(values[f"ours {sizes[1]}"], values["lean"]),
            note="µs: " + taken.describe(f"ours {sizes[1]}", "lean"),
        )
        lab.report(
            f"turn at {sizes[-1]:,} messages / at {sizes[0]}{name}",
            ratio(values[f"ours {sizes[-1]}"], values[f"ours {sizes[0]}"]),
            bar=Bar(1.15),
        )


def fill(chat: Conversation, size: int) -> None:
    for start in range(0, size, BATCH):
        chat.append(*(list(MESSAGES) * (min(BATCH, size - start) // 2)))


def turns(path: Path, names: list[str], size: int, stack: ExitStack) -> Callable[[], object]:
    """A turn of the next of these conversations, each of `size` messages."""
    store = stack.enter_context(holdfast.open(path))
    chats = [store.conversation(name) for name in names]
    for chat in chats:
        fill(chat, size)
    warm(lambda many: store.conversation("warm").append(*many))
    following = cycle(chats)

    def once() -> object:
        return next(following).append(*MESSAGES)

    for _ in chats:
        once()
    return once


def raw_turns(path: Path, names: list[str], size: int, stack: ExitStack) -> Callable[[], object]:
    table = _raw.Single(path)
    stack.callback(table.close)
    for name in names:
        for start in range(0, size, BATCH):
            many = list(MESSAGES) * (min(BATCH, size - start) // 2)
            _raw.insert(table.connection, _raw.encode(name, many))
    warm(partial(table.append, "warm"))
    following = cycle(names)
    return lambda: table.append(next(following), MESSAGES)


def lean_turns(path: Path, stack: ExitStack) -> Callable[[], object]:
    chains = _lean.Chains(path)
    stack.callback(chains.close)
    warm(partial(chains.append, 0))
    return lambda: chains.append(1, MESSAGES)


# -- what the checks cost --------------------------------------------------------------------------


class UncheckedAppender(Appender):
    """Leaves the append id out of the chain, and stores the fields of a head without a checksum.

    Only for comparison: nothing can be read that it writes.
    """

    def _build_append(self, request: ops.AppendRecords, known: StreamPosition) -> Append:
        name = append_id(request.stamp.id if request.id is None else request.id)
        version, digest = known.version, known.hash if known.version else b""
        links, previous = [], digest or chain.GENESIS
        for body in request.bodies:
            version += 1
            previous = sha256(
                known.seed + previous + version.to_bytes(8, "big") + sha256(body).digest()
            ).digest()
            links.append((previous, body))
        return Append(
            request.stream, known.version, digest, known.incarnation, name, links, request.fields
        )


class UncheckedLog(Log):
    appender = UncheckedAppender


def checks(lab: Lab) -> None:
    """The same append with and without the checks that protect an append id and the head."""
    rounds, repeats = lab.choose(9, 3), lab.choose(100, 30)
    with lab.place() as place, ExitStack() as stack:
        arms: dict[str, Callable[[], object]] = {}
        for arm, kind in (("checked", Log), ("unchecked", UncheckedLog)):
            store = Store(kind(SQLiteBackend(place / f"{arm}.db")), "default")
            stack.enter_context(store)
            stream = store.stream("s")
            warm(lambda many, stream=stream: stream.append(*as_events(many)))
            arms[arm] = partial(stream.append, *as_events(MESSAGES))
            arms[f"{arm}, first"] = partial(start_stream, store, count())
        settle()
        taken = interleave_with_cpu(arms, lab.rng, rounds=rounds, repeats=repeats)
    for what, suffix in (("append", ""), ("first append to a stream", ", first")):
        ours, without = f"checked{suffix}", f"unchecked{suffix}"
        lab.report(
            f"{what} with the checks of append ids and heads / without, CPU",
            ratio(taken.cpu[ours], taken.cpu[without]),
            bar=Bar(1.05),
            note="µs: " + taken.describe(ours, without),
        )


def start_stream(store: Store, numbers: Iterator[int]) -> None:
    store.stream(f"new-{next(numbers)}").append(*as_events(MESSAGES))


# -- many at once ----------------------------------------------------------------------------------

Work = Callable[[], Awaitable[object]]
Start = Callable[[Path], Awaitable[tuple[list[Work], Work]]]
"""Returns what each of them does, and how to close."""


def agents(lab: Lab) -> None:
    """Async agents that append turns back to back, beside the lean group committer."""
    compare(lab, f"{AGENTS} async agents", "turn", our_agents, lean_agents, Bar(1.8))


def tasks(lab: Lab) -> None:
    """Async tasks that step back to back, beside the same."""
    compare(lab, f"{AGENTS} async tasks", "step", our_tasks, lean_tasks, Bar(3.0))


def compare(lab: Lab, who: str, what: str, ours: Start, lean: Start, bar: Bar) -> None:
    seconds = 0.5 if not lab.quick else 0.25
    cpu: dict[str, list[float]] = {"ours": [], "lean": []}

    def rate(name: str, start: Start) -> float:
        with lab.place() as place:
            gc.collect()
            per_second, each = asyncio.run(work_together(start, place / "store.db", seconds))
            cpu[name].append(each)
            return per_second

    arms = {"ours": partial(rate, "ours", ours), "lean": partial(rate, "lean", lean)}
    rates = interleave(arms, lab.rng, rounds=lab.choose(9, 5))
    middle = {name: Spread.of(values).middle for name, values in cpu.items()}
    lab.report(
        f"{who}: CPU of a {what} / lean group commit",
        ratio(cpu["ours"], cpu["lean"]),
        bar=bar,
        note=f"µs: ours {middle['ours'] * 1e6:.1f}, lean {middle['lean'] * 1e6:.1f}",
    )
    lab.report(
        f"{who}: {what}s per second / lean group commit",
        ratio(rates["ours"], rates["lean"]),
        note=", ".join(
            f"{name} {Spread.of(values).middle:,.0f}/s" for name, values in rates.items()
        ),
    )


async def work_together(start: Start, path: Path, seconds: float) -> tuple[float, float]:
    """How much all of them do in a second, and the processor time for each."""
    works, close = await start(path)
    await asyncio.gather(*(work() for work in works))
    began, used = perf_counter(), process_time()
    end = began + seconds

    async def agent(work: Work) -> int:
        done = 0
        while perf_counter() < end:
            await work()
            done += 1
        return done

    done = sum(await asyncio.gather(*map(agent, works)))
    elapsed, used = perf_counter() - began, process_time() - used
    await close()
    return done / elapsed, used / done


async def our_agents(path: Path) -> tuple[list[Work], Work]:
    store = await holdfast.aopen(path)
    chats = [store.conversation(f"c{n}") for n in range(AGENTS)]
    return [partial(chat.append, *MESSAGES) for chat in chats], store.close


async def lean_agents(path: Path) -> tuple[list[Work], Work]:
    group = _lean.AsyncGroup(path)
    works: list[Work] = [partial(group.append, n, MESSAGES) for n in range(AGENTS)]
    return works, partial(asyncio.to_thread, group.close)


async def tool(number: int) -> Message:
    return RESULT


async def our_tasks(path: Path) -> tuple[list[Work], Work]:
    store = await holdfast.aopen(path)
    opened = [store.task(f"t{n}", lease=LEASE) for n in range(AGENTS)]
    await asyncio.gather(*(task.__aenter__() for task in opened))
    numbers = count()

    async def close() -> None:
        await asyncio.gather(*(task.__aexit__(None, None, None) for task in opened))
        await store.close()

    def work(task: holdfast.AsyncTask) -> Work:
        return lambda: task.step("look up", tool, next(numbers))

    return [work(task) for task in opened], close


async def lean_tasks(path: Path) -> tuple[list[Work], Work]:
    group = _lean.AsyncGroup(path)
    numbers = count()

    def work(stream: int) -> Work:
        return lambda: group.step(stream, "look up", tool, next(numbers))

    return [work(n) for n in range(AGENTS)], partial(asyncio.to_thread, group.close)


# -- histories -------------------------------------------------------------------------------------


def histories(lab: Lab) -> None:
    """A turn that reads the whole history and appends, in a process that has read it before."""
    rounds, repeats = lab.choose(7, 3), lab.choose(10, 5)
    peer = find_spec("agents") is not None
    for size in HISTORIES:
        with lab.place() as place, ExitStack() as stack:
            store = stack.enter_context(holdfast.open(place / "ours.db"))
            chat = store.conversation("c")
            fill(chat, size)
            cold = [seconds_of(partial(open_and_read, place / "ours.db")) for _ in range(3)]
            arms: dict[str, Callable[[], object]] = {"ours": partial(read_and_append, chat)}
            if peer:
                arms["SQLiteSession"] = sessions(place / "peer.db", size, stack)
            for once in arms.values():
                once()
            settle()
            taken = interleave_with_cpu(arms, lab.rng, rounds=rounds, repeats=repeats)
            warm_reads = [seconds_of(chat.messages) for _ in range(20)]
        note = "µs: " + taken.describe(*arms)
        if peer:
            for name, values in (("", taken.wall), (", CPU", taken.cpu)):
                lab.report(
                    f"read {size:,} messages and append / OpenAI SQLiteSession{name}",
                    ratio(values["ours"], values["SQLiteSession"]),
                    bar=Bar(1.0),
                    note=note,
                )
        lab.report(
            f"read {size:,} messages, the first time / again, CPU",
            min(cold) / min(warm_reads),
            note=f"{min(cold) * 1e3:.1f} ms, again {min(warm_reads) * 1e3:.2f} ms",
        )


def seconds_of(call: Callable[[], object]) -> float:
    gc.collect()
    start = process_time()
    call()
    return process_time() - start


def read_and_append(chat: Conversation) -> None:
    chat.messages()
    chat.append(*MESSAGES)


def sessions(path: Path, size: int, stack: ExitStack) -> Callable[[], object]:
    """The same with the session of the OpenAI Agents SDK."""
    from agents import SQLiteSession

    session: Any = SQLiteSession("c", path)
    stack.callback(session.close)
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    stack.callback(lambda: loop.run_until_complete(loop.shutdown_default_executor()))
    loop.run_until_complete(session.add_items(list(MESSAGES) * (size // 2)))

    async def read_and_add() -> None:
        await session.get_items()
        await session.add_items(list(MESSAGES))

    return lambda: loop.run_until_complete(read_and_add())


def load(lab: Lab) -> None:
    """All messages of a long conversation, with a new store, beside rows and `json.loads`."""
    with lab.place() as place:
        ours, raw = place / "ours.db", place / "raw.db"
        with holdfast.open(ours) as store:
            fill(store.conversation("c"), LOADED)
        table = _raw.create(raw)
        for _ in range(LOADED // BATCH):
            _raw.insert(table, _raw.encode("c", list(MESSAGES) * (BATCH // 2)))
        table.close()
        settle()
        arms: dict[str, Callable[[], object]] = {
            "ours": partial(open_and_read, ours),
            "raw": partial(read_rows, raw),
        }
        taken = interleave_with_cpu(
            arms, lab.rng, rounds=lab.choose(9, 3), repeats=lab.choose(3, 2)
        )
    lab.report(
        f"load {LOADED:,} messages / rows and json.loads, CPU",
        ratio(taken.cpu["ours"], taken.cpu["raw"]),
        bar=Bar(1.5),
        note="µs: " + taken.describe("ours", "raw"),
    )


def open_and_read(path: Path) -> None:
    with holdfast.open(path) as store:
        store.conversation("c").messages()


def read_rows(path: Path) -> list[object]:
    connection = _raw.connect(path)
    try:
        return [json.loads(body) for (body,) in connection.execute(_raw.SELECT, ("c",))]
    finally:
        connection.close()
