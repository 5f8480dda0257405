"""Workers: how many tasks of three steps they finish in a second, at default settings.

All tasks are submitted before the workers start, and the clock runs from the first end to the last,
so that no start of a process is in it. One and two processes, on SQLite and on PostgreSQL.

Run as a module with arguments, this file is one of those processes.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from time import time
from typing import Any

import holdfast
from holdfast.types import RunResult

from ._measure import Lab, Spread, interleave, message, ratio
from ._servers import postgres

TASKS = 600
PROCESSES = (1, 2)
RESULT = message("tool", 600)

ROOT = Path(__file__).resolve().parent.parent


def look_up(number: int) -> dict[str, str]:
    return RESULT


@holdfast.agent("three-steps")
def three_steps(task: holdfast.Task) -> str:
    for number in range(3):
        task.step("look up", look_up, number)
    return "done"


def run(lab: Lab) -> None:
    tasks = lab.choose(TASKS, 200)
    numbers = count()
    with lab.place() as place:
        measure(lab, "sqlite", lambda: str(place / f"{next(numbers)}.db"), tasks)
    with postgres(lab) as server:
        measure(lab, "postgresql", lambda: f"{server.url()}&schema=w{next(numbers)}", tasks)


def measure(lab: Lab, engine: str, new_url: Callable[[], str], tasks: int) -> None:
    cpu: dict[int, list[float]] = {processes: [] for processes in PROCESSES}

    def rate(processes: int) -> float:
        url = new_url()
        asyncio.run(submit(url, tasks))
        answers = start(url, processes)
        ends = sorted(end for answer in answers for end in answer["ends"])
        assert len(ends) >= tasks, f"{len(ends)} of {tasks} tasks ended"
        cpu[processes].append(sum(answer["cpu"] for answer in answers) / tasks)
        return (len(ends) - 1) / (ends[-1] - ends[0])

    arms = {processes: partial(rate, processes) for processes in PROCESSES}
    values = interleave(arms, lab.rng, rounds=lab.choose(5, 2))
    for processes in PROCESSES:
        lab.report(
            f"tasks of three steps per second, {engine}, {processes} worker"
            + ("s" if processes > 1 else ""),
            Spread.of(values[processes]),
            note=f"{Spread.of(cpu[processes]).middle * 1e3:.1f} ms of CPU for each",
        )
    lab.report(f"two workers / one, {engine}", ratio(values[2], values[1]))


async def submit(url: str, tasks: int) -> None:
    async with holdfast.aopen(url) as store:
        for first in range(0, tasks, 50):
            numbers = range(first, min(first + 50, tasks))
            await asyncio.gather(*(store.submit(three_steps, f"task-{n}") for n in numbers))


def start(url: str, processes: int) -> list[dict[str, Any]]:
    """Run the workers until no task is left."""
    command = [sys.executable, "-m", "bench.workers", url]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(processes)
    ]
    try:
        return [json.loads(process.communicate(timeout=300)[0]) for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()


# -- one of the processes ------------------------------------------------------------------------


def work(url: str) -> dict[str, Any]:
    ends: list[float] = []

    def report(result: RunResult) -> None:
        if result.status == "finished":
            ends.append(time())

    with holdfast.open(url) as store:
        worker = holdfast.Worker(store, report=report)
        thread = threading.Thread(target=worker.run)
        thread.start()
        while any(store.tasks(status="pending")) or any(store.tasks(status="running")):
            thread.join(0.2)
        worker.stop()
        thread.join()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"ends": ends, "cpu": used.ru_utime + used.ru_stime}


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1])), flush=True)
