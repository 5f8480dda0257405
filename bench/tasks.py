"""What a step of a task costs, beside a row inserted and committed by hand, and how fast a long
task is back.

A step runs a small function and stores its result of 1,500 bytes. What it costs must be near the
bare commit, whether it is the tenth or the ten-thousandth. Leases are long here, so that no renewal
of another task falls into what is measured.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, cycle
from pathlib import Path
from time import perf_counter, thread_time
from urllib.parse import quote

import holdfast
from holdfast import AsyncTask, Store, Task
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.log.log import Log

from . import _raw
from ._measure import Bar, Lab, Message, Spread, compact, interleave, message, ratio, settle, warm
from .space import bytes_of
from .syncs import VFS, CountingVFS, Tally

SHORT, LONG = 10, 10_000
RESUMED = 1_000
TOGETHER = 64
LEASE = 3_600.0
RESULT = message("tool", 1_500)

Once = Callable[[], float]


def tool(number: int) -> Message:
    return RESULT


async def async_tool(number: int) -> Message:
    return RESULT


@holdfast.step(once=True)
def once_tool(number: int) -> Message:
    return RESULT


@holdfast.step(check=lambda number: None)
def checked_tool(number: int) -> Message:
    return RESULT


def run(lab: Lab) -> None:
    single(lab)
    processor(lab)
    kinds(lab)
    plans(lab)
    resume(lab)
    space(lab)
    together(lab)


# -- one step --------------------------------------------------------------------------------------


def single(lab: Lab) -> None:
    """A step, early and late in its task."""
    rounds, repeats = lab.choose(9, 5), lab.choose(100, 30)
    with lab.place() as place, ExitStack() as stack:
        arms: dict[tuple[str, int], Once] = {}
        for size in (SHORT, LONG):
            number = many(size, rounds * repeats)
            arms["raw", size] = timed(commits(place / f"raw-{size}.db", number, size, stack))
            arms["sqlite", size] = timed(
                steps(str(place / f"ours-{size}.db"), number, size, tool, stack)
            )
        settle()
        values = interleave(arms, lab.rng, rounds=rounds, repeats=repeats)
    for size in (SHORT, LONG):
        report(lab, f"step {size:,}, sqlite", values["sqlite", size], values["raw", size], Bar(1.4))
    lab.report(
        f"step {LONG:,} / step {SHORT}",
        ratio(values["sqlite", LONG], values["sqlite", SHORT]),
        bar=Bar(1.15),
        note=f"raw {ratio(values['raw', LONG], values['raw', SHORT]).middle:.2f}",
    )


def processor(lab: Lab) -> None:
    """Without the disk: what the processor does for a step, and for the append of an event with the
    same bytes."""
    rounds, repeats, size = lab.choose(9, 5), lab.choose(100, 30), RESUMED
    with lab.place() as place, ExitStack() as stack:
        arms: dict[str, Once] = {
            "raw": timed(commits(place / "raw.db", 1, size, stack), thread_time),
            "append": timed(appends(place / "append.db", stack), thread_time),
            "step": timed(steps(str(place / "ours.db"), 1, size, tool, stack), thread_time),
        }
        settle()
        values = interleave(arms, lab.rng, rounds=rounds, repeats=repeats)
    report(lab, "CPU time of a step", values["step"], values["raw"])
    report(lab, "CPU time of a step", values["step"], values["append"], beside="an append")


def kinds(lab: Lab) -> None:
    """Steps that are written down before they begin, and steps of the other engines."""
    rounds, repeats = lab.choose(5, 3), lab.choose(50, 20)
    with lab.place() as place, ExitStack() as stack:
        number = many(SHORT, rounds * repeats)
        arms: dict[str, Once] = {"raw": timed(commits(place / "raw.db", number, SHORT, stack))}
        for name, url, fn in (
            ("once, sqlite", str(place / "once.db"), once_tool),
            ("check, sqlite", str(place / "check.db"), checked_tool),
            ("files", f"file://{quote(str(place / 'files'))}", tool),
            ("memory", "memory://tasks", tool),
        ):
            arms[name] = timed(steps(url, number, SHORT, fn, stack))
        settle()
        values = interleave(arms, lab.rng, rounds=rounds, repeats=repeats)
    for name in arms:
        if name != "raw":
            report(lab, f"step, {name}", values[name], values["raw"])


def plans(lab: Lab) -> None:
    """A plan gone through item by item, a short one and a long one; in memory, where a cost that
    grows would show."""
    sizes = (100, LONG)
    values = interleave(
        {size: partial(planned, size) for size in sizes}, lab.rng, rounds=lab.choose(5, 3)
    )
    short, long = (values[size] for size in sizes)
    note = f"{Spread.of(long).middle * 1e6:.0f} µs of CPU time"
    lab.report(f"step of a plan of {LONG:,} / of {sizes[0]}, memory", ratio(long, short), note=note)


def planned(size: int) -> float:
    """Seconds for each step of a plan."""
    with holdfast.open("memory://") as store, store.task("planned", lease=LEASE) as task:
        task.make_plan([f"look up {number}" for number in range(size)])
        start = thread_time()
        for number, item in enumerate(task.remaining()):
            task.step(item, tool, number)
        return (thread_time() - start) / size


def report(
    lab: Lab,
    what: str,
    ours: Sequence[float],
    raw: Sequence[float],
    bar: Bar | None = None,
    beside: str = "raw",
) -> None:
    note = f"{Spread.of(ours).middle * 1e6:.0f} µs, {beside} {Spread.of(raw).middle * 1e6:.0f} µs"
    lab.report(f"{what} / {beside}", ratio(ours, raw), bar=bar, note=note)


def many(size: int, calls: int) -> int:
    """Enough tasks that none grows by more than a tenth, or by ten steps, while it is measured."""
    return -(-calls // max(10, size // 10))


def timed(call: Callable[[], object], clock: Callable[[], float] = perf_counter) -> Once:
    def once() -> float:
        start = clock()
        call()
        return clock() - start

    return once


def steps(
    url: str, tasks: int, size: int, fn: Callable[[int], Message], stack: ExitStack
) -> Callable[[], object]:
    """A step of the next of these tasks, each of which has had `size`."""
    store = stack.enter_context(holdfast.open(url))
    warm(lambda messages: store.stream("warm").append(*(("message", each) for each in messages)))
    opened = [stack.enter_context(store.task(f"task-{n}", lease=LEASE)) for n in range(tasks)]
    for task in opened:
        fill(task, size)
    turn, number = cycle(opened), count(size)
    return lambda: next(turn).step("look up", fn, next(number))


def fill(task: Task, size: int) -> None:
    for number in range(size):
        task.step("look up", tool, number)


def commits(path: Path, sessions: int, size: int, stack: ExitStack) -> Callable[[], object]:
    """The same bytes by hand."""
    table = _raw.Single(path)
    stack.callback(table.close)
    names = [f"task-{n}" for n in range(sessions)]
    warm(partial(table.append, "warm"))
    for name in names:
        _raw.insert(table.connection, _raw.encode(name, [RESULT] * size))
    turn = cycle(names)
    return lambda: table.append(next(turn), [RESULT])


def appends(path: Path, stack: ExitStack) -> Callable[[], object]:
    """The same bytes as an event of a stream."""
    stream = stack.enter_context(holdfast.open(path)).stream("s")
    warm(lambda messages: stream.append(*(("message", each) for each in messages)))
    return lambda: stream.append(("message", RESULT))


# -- coming back -----------------------------------------------------------------------------------


def resume(lab: Lab) -> None:
    """A task of many steps, entered again with a new store on the same file, up to the last
    recorded result."""
    with lab.place() as place:
        path, table = place / "ours.db", _raw.create(place / "raw.db")
        with holdfast.open(path) as store, store.task("long", lease=LEASE) as task:
            fill(task, RESUMED)
        _raw.insert(table, _raw.encode("long", [RESULT] * RESUMED))
        table.close()
        settle()
        arms = {"ours": partial(resumed, path), "raw": partial(reread, place / "raw.db")}
        values = interleave(arms, lab.rng, rounds=lab.choose(9, 5), repeats=lab.choose(5, 3))
    milliseconds = Spread.of([seconds * 1e3 for seconds in values["ours"]])
    note = f"after import, in this process, with a new store; reading {RESUMED:,} rows by hand: "
    note += f"{Spread.of(values['raw']).middle * 1e3:.1f} ms"
    lab.report(
        f"open, enter and replay {RESUMED:,} steps", milliseconds, unit="ms", bar=Bar(35), note=note
    )


def resumed(path: Path) -> float:
    start = perf_counter()
    with holdfast.open(path) as store, store.task("long", lease=LEASE) as task:
        for number in range(RESUMED):
            assert task.step("look up", not_again, number) == RESULT
        return perf_counter() - start


def not_again(number: int) -> Message:
    raise AssertionError("this step is recorded")


def reread(path: Path) -> float:
    start = perf_counter()
    table = _raw.connect(path)
    found = [json.loads(body) for (body,) in table.execute(_raw.SELECT, ("long",))]
    elapsed = perf_counter() - start
    table.close()
    assert len(found) == RESUMED
    return elapsed


# -- space -----------------------------------------------------------------------------------------


def space(lab: Lab) -> None:
    """What a step stores besides its result: in its event, and on the disk."""
    size = len(compact(RESULT))
    with lab.place() as place:
        with holdfast.open(place / "ours.db") as store:
            with store.task("long", lease=LEASE) as task:
                fill(task, RESUMED)
            key = task._key
            after, event, found = 0, 0, 0
            while page := store._log.backend.read(key, after=after):
                bodies = [
                    record.body for record in page if b'"type":"step.completed"' in record.body
                ]
                event, found, after = (
                    event + sum(map(len, bodies)),
                    found + len(bodies),
                    page[-1].version,
                )
        on_disk = bytes_of(place / "ours.db") / RESUMED
    assert found == RESUMED
    note = f"{on_disk - size:,.0f} on the disk, of a file with {RESUMED:,} steps"
    lab.report(
        f"bytes of a step's event beside its result of {size:,}", event / RESUMED - size, note=note
    )


# -- many tasks ------------------------------------------------------------------------------------


def together(lab: Lab) -> None:
    """Async tasks that step back to back: how fast, and how many syncs."""
    seconds = 0.5 if not lab.quick else 0.25
    arms = {number: partial(in_place, lab, number, seconds) for number in (1, TOGETHER)}
    values = interleave(arms, lab.rng, rounds=lab.choose(9, 5))
    note = ", ".join(
        f"{number}: {Spread.of(rates).middle:,.0f}/s" for number, rates in values.items()
    )
    lab.report(
        f"steps per second, {TOGETHER} async tasks / 1",
        ratio(values[TOGETHER], values[1]),
        bar=Bar(5, ">="),
        note=note,
    )
    tally = Tally()
    vfs = CountingVFS(tally)
    try:
        with lab.place() as place:
            per_task = lab.choose(50, 10)
            counts = asyncio.run(count_syncs(place / "agents.db", tally, per_task))
    finally:
        vfs.unregister()
    number = TOGETHER * per_task
    note = (
        f"{number:,} steps; more syncs: {counts['new wal']} for new WALs, "
        f"{counts['checkpoint']} by checkpoints"
    )
    lab.report(
        f"syncs per step, {TOGETHER} async tasks",
        counts["append"] / number,
        bar=Bar(1 / 16),
        note=note,
    )


def in_place(lab: Lab, number: int, seconds: float) -> float:
    with lab.place() as place:
        return asyncio.run(steps_per_second(place / "agents.db", number, seconds))


async def steps_per_second(path: Path, number: int, seconds: float) -> float:
    store = holdfast.open(path)
    warm(lambda messages: store.stream("warm").append(*(("message", each) for each in messages)))
    end = start = 0.0

    async def agent(task: AsyncTask) -> int:
        done = 0
        while perf_counter() < end:
            await task.step("look up", async_tool, done)
            done += 1
        return done

    tasks = [store.aio.task(f"task-{n}", lease=LEASE) for n in range(number)]
    await asyncio.gather(*(task.__aenter__() for task in tasks))
    start = perf_counter()
    end = start + seconds
    done = sum(await asyncio.gather(*map(agent, tasks)))
    rate = done / (perf_counter() - start)
    await asyncio.gather(*(task.__aexit__(None, None, None) for task in tasks))
    await asyncio.to_thread(store.close)
    return rate


async def count_syncs(path: Path, tally: Tally, per_task: int) -> dict[str, int]:
    store = Store(Log(SQLiteBackend(path, vfs=VFS)), "default")
    tasks = [store.aio.task(f"task-{n}", lease=LEASE) for n in range(TOGETHER)]
    await asyncio.gather(*(task.__aenter__() for task in tasks))
    tally.take()

    async def agent(task: AsyncTask) -> None:
        for number in range(per_task):
            await task.step("look up", async_tool, number)

    await asyncio.gather(*map(agent, tasks))
    counts = tally.take()
    await asyncio.gather(*(task.__aexit__(None, None, None) for task in tasks))
    await asyncio.to_thread(store.close)
    return counts
