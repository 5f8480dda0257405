"""Appends per second when many agents write at once, each to its own stream, back to back.

Beside it: a group committer written by hand in the same shape, and what most programs have, one
connection behind a lock with a commit each.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from urllib.parse import quote

import holdfast
from holdfast import Store

from . import _raw
from ._measure import Bar, Lab, Message, Spread, interleave, pair, ratio, warm

AGENTS = (1, 8, 64, 256)
THREADS = (1, 8, 64)
OTHERS_AT = (1, 64)

MESSAGES = pair(600)

Rate = Callable[[str, int, float], float]


def run(lab: Lab) -> None:
    rounds = lab.choose(9, 3)
    seconds = 0.5 if not lab.quick else 0.25
    others = ["memory", "files"] if has_files_backend() else ["memory"]
    for mode, counts, rates in (("async agents", AGENTS, ASYNC), ("threads", THREADS, THREADED)):
        for count in counts:
            names = ["raw group", "raw single", "sqlite", *(others if count in OTHERS_AT else [])]
            arms = {
                name: partial(in_place, lab, rates[name], name, count, seconds) for name in names
            }
            values = interleave(arms, lab.rng, rounds=rounds)
            report(lab, mode, count, values)


def report(lab: Lab, mode: str, count: int, values: dict[str, list[float]]) -> None:
    note = ", ".join(f"{name} {Spread.of(rates).middle:,.0f}/s" for name, rates in values.items())
    barred = (mode, count) == ("async agents", 64)
    for name, rates in values.items():
        lab.plot(f"throughput, {mode}", name, count, Spread.of(rates).middle)
        if name == "sqlite":
            bar = Bar(0.40, ">=") if barred else None
            lab.report(
                f"{count} {mode}, sqlite / raw group",
                ratio(rates, values["raw group"]),
                bar=bar,
                note=note,
            )
            bar = Bar(4.0, ">=") if barred else None
            lab.report(
                f"{count} {mode}, sqlite / raw single", ratio(rates, values["raw single"]), bar=bar
            )
        elif not name.startswith("raw"):
            lab.report(f"{count} {mode}, {name} / raw group", ratio(rates, values["raw group"]))


def in_place(lab: Lab, rate: Rate, name: str, count: int, seconds: float) -> float:
    with lab.place() as place:
        gc.collect()
        return rate(url(name, place), count, seconds)


def as_events(messages: Sequence[Message]) -> list[tuple[str, object]]:
    return [("message", message) for message in messages]


def url(name: str, place: Path) -> str:
    if name == "memory":
        return "memory://"
    return f"file://{quote(str(place / 'store'))}" if name == "files" else str(place / "store.db")


def has_files_backend() -> bool:
    return find_spec("holdfast.backends.files") is not None


# -- async ---------------------------------------------------------------------------------------


async def appends_per_second(
    appends: Sequence[Callable[[], Awaitable[object]]], seconds: float
) -> float:
    """The rate of agents that append back to back, once all of them are under way."""
    await asyncio.gather(*(append() for append in appends))
    start = perf_counter()
    end = start + seconds

    async def agent(append: Callable[[], Awaitable[object]]) -> int:
        count = 0
        while perf_counter() < end:
            await append()
            count += 1
        return count

    counts = await asyncio.gather(*map(agent, appends))
    return sum(counts) / (perf_counter() - start)


def ours_async(url: str, count: int, seconds: float) -> float:
    async def main() -> float:
        async with holdfast.aopen(url) as store:
            sync = Store(store._log, store.tenant, owner=False)
            await asyncio.to_thread(warm, lambda many: sync.stream("warm").append(*as_events(many)))
            streams = [store.stream(f"s{n}") for n in range(count)]
            return await appends_per_second(
                [partial(stream.append, *as_events(MESSAGES)) for stream in streams], seconds
            )

    return asyncio.run(main())


def raw_group_async(url: str, count: int, seconds: float) -> float:
    async def main() -> float:
        group = _raw.AsyncGroup(Path(url))
        warm(partial(group.insert, "warm"))
        try:
            appends = [partial(group.append, f"s{n}", MESSAGES) for n in range(count)]
            return await appends_per_second(appends, seconds)
        finally:
            group.close()

    return asyncio.run(main())


def raw_single_async(url: str, count: int, seconds: float) -> float:
    async def main() -> float:
        single = _raw.Single(Path(url))
        warm(partial(single.append, "warm"))
        try:
            appends = [partial(single.append_async, f"s{n}", MESSAGES) for n in range(count)]
            return await appends_per_second(appends, seconds)
        finally:
            single.close()

    return asyncio.run(main())


# -- threads -------------------------------------------------------------------------------------


def appends_per_second_of_threads(appends: Sequence[Callable[[], object]], seconds: float) -> float:
    ready = threading.Barrier(len(appends) + 1)
    counts: list[int] = []

    def agent(append: Callable[[], object]) -> None:
        append()
        ready.wait()
        count, end = 0, perf_counter() + seconds
        while perf_counter() < end:
            append()
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=agent, args=(append,)) for append in appends]
    for thread in threads:
        thread.start()
    ready.wait()
    start = perf_counter()
    for thread in threads:
        thread.join()
    elapsed = perf_counter() - start
    if len(counts) < len(threads):
        raise RuntimeError("an agent failed; its traceback is above")
    return sum(counts) / elapsed


def ours_threads(url: str, count: int, seconds: float) -> float:
    with holdfast.open(url) as store:
        warm(lambda many: store.stream("warm").append(*as_events(many)))
        streams = [store.stream(f"s{n}") for n in range(count)]
        return appends_per_second_of_threads(
            [partial(stream.append, *as_events(MESSAGES)) for stream in streams], seconds
        )


def raw_group_threads(url: str, count: int, seconds: float) -> float:
    group = _raw.ThreadGroup(Path(url))
    warm(partial(group.append, "warm"))
    try:
        return appends_per_second_of_threads(
            [partial(group.append, f"s{n}", MESSAGES) for n in range(count)], seconds
        )
    finally:
        group.close()


def raw_single_threads(url: str, count: int, seconds: float) -> float:
    single = _raw.Single(Path(url))
    warm(partial(single.append, "warm"))
    try:
        return appends_per_second_of_threads(
            [partial(single.append, f"s{n}", MESSAGES) for n in range(count)], seconds
        )
    finally:
        single.close()


ASYNC: dict[str, Rate] = {
    "raw group": raw_group_async,
    "raw single": raw_single_async,
    "sqlite": ours_async,
    "memory": ours_async,
    "files": ours_async,
}
THREADED: dict[str, Rate] = {
    "raw group": raw_group_threads,
    "raw single": raw_single_threads,
    "sqlite": ours_threads,
    "memory": ours_threads,
    "files": ours_threads,
}
