"""How much memory a worker needs after many tasks: `python -m bench.growth [--tasks 200000]`.

The tasks have three steps each, and run in this process, on SQLite. Memory grows until the caches
are full, and must then stay where it is. `store.health()` names the caches.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import tempfile
from pathlib import Path

import holdfast
from holdfast import Store, Task, Worker
from holdfast.types import RunResult

TASKS, PARTS = 200_000, 20
MAX_BYTES_PER_TASK = 50.0
"""The growth over the second half of the tasks, by a line through it."""


@holdfast.agent("three-steps")
def three_steps(task: Task) -> int:
    return sum(task.step(f"step {number}", lambda: 1) for number in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    tasks = parser.parse_args().tasks
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "agents.db"
        sizes = [(0, rss())]
        with holdfast.open(path, durability="process") as store:
            for part in range(PARTS):
                first, end = tasks * part // PARTS, tasks * (part + 1) // PARTS
                asyncio.run(submit(path, first, end))
                run(store, end - first)
                gc.collect()
                sizes.append((end, rss()))
                print(f"{end:>8,} tasks  {sizes[-1][1] / 1e6:7.1f} MB", flush=True)
            for name, cache in store.health().caches.items():
                print(f"{name}: {cache.used:,} of {cache.limit:,} {cache.unit}")
    slope = line_through(sizes[PARTS // 2 :])
    verdict = "ok" if slope <= MAX_BYTES_PER_TASK else "TOO MUCH"
    print(f"{slope:.0f} bytes per task over the second half (<= {MAX_BYTES_PER_TASK:g}) {verdict}")


async def submit(path: Path, first: int, end: int) -> None:
    async with holdfast.aopen(path, durability="process") as store:
        for start in range(first, end, 64):
            numbers = range(start, min(start + 64, end))
            await asyncio.gather(*(store.submit("three-steps", f"task {n}") for n in numbers))


def run(store: Store, count: int) -> None:
    """Run this many tasks with a worker."""
    left = count

    def report(ran: RunResult) -> None:
        nonlocal left
        left -= ran.status == "finished"
        if not left:
            worker.stop()

    worker = Worker(store, report=report, poll=0.05)
    worker.run()


def rss() -> float:
    """The memory of this process, in bytes."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE"))
    except OSError:  # not Linux: the most that it ever had
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def line_through(points: list[tuple[int, float]]) -> float:
    """The slope of the line that fits best."""
    middle = sum(x for x, _ in points) / len(points)
    level = sum(y for _, y in points) / len(points)
    over = sum((x - middle) ** 2 for x, _ in points)
    return sum((x - middle) * (y - level) for x, y in points) / over


if __name__ == "__main__":
    main()
