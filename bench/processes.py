"""Four processes of 16 agents each on one SQLite file: no process gets an error, nothing is lost,
and it is not slower than one.

Run as a module with arguments, this file is one of those processes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import holdfast

from . import _raw
from ._measure import Bar, Lab, Spread, interleave, pair, ratio

PROCESSES = 4
AGENTS = 16

ROOT = Path(__file__).resolve().parent.parent


def run(lab: Lab) -> None:
    rounds, seconds = lab.choose(7, 3), 1.0 if not lab.quick else 0.5
    errors: Counter[str] = Counter()
    lost = [0]

    def rate(kind: str, processes: int) -> float:
        with lab.place() as place:
            path = place / "store.db"
            if kind == "raw":
                _raw.create(path).close()
            answers = start(kind, path, processes, seconds)
            if kind == "ours":
                for answer in answers:
                    errors.update(answer["errors"])
                lost[0] += missing(path, answers)
            return sum(float(answer["rate"]) for answer in answers)

    arms = {(kind, n): partial(rate, kind, n) for kind in ("ours", "raw") for n in (1, PROCESSES)}
    values = interleave(arms, lab.rng, rounds=rounds)
    middle = {arm: Spread.of(rates).middle for arm, rates in values.items()}
    lab.report(
        f"{PROCESSES} processes / one, {AGENTS} agents each",
        ratio(values["ours", PROCESSES], values["ours", 1]),
        bar=Bar(1.0, ">="),
        note=f"{middle['ours', PROCESSES]:,.0f}/s, one {middle['ours', 1]:,.0f}/s",
    )
    lab.report(
        f"{PROCESSES} processes / one, raw group",
        ratio(values["raw", PROCESSES], values["raw", 1]),
        note=f"{middle['raw', PROCESSES]:,.0f}/s, one {middle['raw', 1]:,.0f}/s",
    )
    what = ", ".join(f"{name} x {count}" for name, count in errors.most_common())
    lab.report(f"errors in {PROCESSES} processes", errors.total(), bar=Bar(0, "=="), note=what)
    lab.report("acknowledged appends that are not in the file", lost[0], bar=Bar(0, "=="))


def start(kind: str, path: Path, processes: int, seconds: float) -> list[dict[str, Any]]:
    """Start the processes, let them go together when all are ready, and collect what they say."""
    command = [sys.executable, "-m", "bench.processes", kind, str(path), str(seconds)]
    running = [
        subprocess.Popen(
            [*command, f"p{n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for n in range(processes)
    ]
    try:
        for process in running:
            assert process.stdout
            process.stdout.readline()
        for process in running:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=120)[0]) for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()


def missing(path: Path, answers: list[dict[str, Any]]) -> int:
    """How many records were acknowledged and are not there."""
    with holdfast.open(path) as store:
        return sum(
            max(0, records - store.stream(name).version())
            for answer in answers
            for name, records in answer["records"].items()
        )


# -- one of the processes ------------------------------------------------------------------------


async def agents(kind: str, path: Path, seconds: float, name: str) -> dict[str, Any]:
    messages = pair(600)
    events = [("message", message) for message in messages]
    names = [f"{name}-{n}" for n in range(AGENTS)]
    store = await holdfast.aopen(path) if kind == "ours" else None
    group = _raw.AsyncGroup(path) if store is None else None
    appends: dict[str, Callable[[], Awaitable[object]]] = {}
    for stream in names:
        if store is not None:
            appends[stream] = partial(store.stream(stream).append, *events)
        elif group is not None:
            appends[stream] = partial(group.append, stream, messages)
    records: Counter[str] = Counter()
    errors: Counter[str] = Counter()

    async def append(stream: str) -> None:
        try:
            await appends[stream]()
            records[stream] += 2
        except Exception as error:
            errors[type(error).__name__] += 1

    await asyncio.gather(*map(append, names))
    print("ready", flush=True)
    sys.stdin.readline()
    began, started = perf_counter(), records.total()

    async def agent(stream: str) -> None:
        while perf_counter() < began + seconds:
            await append(stream)

    await asyncio.gather(*map(agent, names))
    rate = (records.total() - started) / 2 / (perf_counter() - began)
    if store is not None:
        await store.close()
    elif group is not None:
        group.close()
    return {"rate": rate, "errors": errors, "records": records}


if __name__ == "__main__":
    _kind, _path, _seconds, _name = sys.argv[1:]
    print(json.dumps(asyncio.run(agents(_kind, Path(_path), float(_seconds), _name))), flush=True)
