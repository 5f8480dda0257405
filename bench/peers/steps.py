"""Steps of a task: run them, resume after a kill, and let a worker run whole tasks.

Run as a module with arguments, this file is a process that is killed, one that resumes, or a
worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from .._measure import Lab, interleave, message
from .._servers import postgres
from ..workers import start as start_workers
from .report import OURS, Comparison, compare

RESULT = message("tool", 1_500)
STEPS = 100
RECORDED = 1_000
TASKS = 300
LANGGRAPH, DBOS_SQLITE, DBOS_POSTGRES = "LangGraph tasks", "DBOS on SQLite", "DBOS on PostgreSQL"
ROOT = Path(__file__).resolve().parent.parent.parent


def run(lab: Lab) -> list[Comparison]:
    found = compare_steps(lab, "SQLite", None)
    with postgres(lab) as server:
        found += compare_steps(lab, "PostgreSQL", server)
        return found + compare_resume(lab) + compare_workers(lab, server)


# -- steps -----------------------------------------------------------------------------------------


def compare_steps(lab: Lab, engine: str, server: Any) -> list[Comparison]:
    """A step with a result of 1.5 KB: a task of 100 steps, divided by their number."""
    with lab.place() as place:
        numbers = count()
        url = str(place / "ours.db") if server is None else f"{server.url()}&schema=steps"
        peer = DBOS_SQLITE if server is None else DBOS_POSTGRES
        database = (
            f"sqlite:///{place}/dbos.sqlite" if server is None else new_database(server, "dbos_s")
        )
        import holdfast

        with holdfast.open(url) as store, launched_dbos(database) as flows:
            arms: dict[str, Callable[[], object]] = {
                OURS: lambda: our_steps(store, f"t{next(numbers)}", STEPS),
                peer: lambda: flows["steps"](STEPS),
            }
            if server is None:
                flow = build_langgraph_flow(place / "graph.db")
                arms[LANGGRAPH] = lambda: flow(f"t{next(numbers)}", STEPS)
            for warm_up in arms.values():
                warm_up()
            values = interleave(
                {name: partial(per_step, once) for name, once in arms.items()},
                lab.rng,
                rounds=lab.choose(5, 2),
                repeats=lab.choose(3, 1),
            )
    return compare(f"step on {engine}", values, "µs")


def per_step(once: Callable[[], object]) -> float:
    start = time.perf_counter()
    once()
    return (time.perf_counter() - start) / STEPS * 1e6


def look_up(number: int) -> dict[str, str]:
    return RESULT


def our_steps(store: Any, name: str, steps: int) -> None:
    with store.task(name) as task:
        for number in range(steps):
            task.step("look up", look_up, number)
        task.finish("done")


@contextmanager
def launched_dbos(database: str) -> Iterator[dict[str, Callable[..., Any]]]:
    """DBOS with the flows of this file. It has one instance per process."""
    from dbos import DBOS

    configure_dbos(database)
    flows = declare_dbos_flows()
    DBOS.launch()
    try:
        yield flows
    finally:
        DBOS.destroy(destroy_registry=True)


def configure_dbos(database: str) -> None:
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench-peers",
            "system_database_url": database,
            "log_level": "CRITICAL",
            "console_log_level": "CRITICAL",
            "application_version": "1",
        }
    )


def declare_dbos_flows() -> dict[str, Callable[..., Any]]:
    from dbos import DBOS

    @DBOS.step()
    def dbos_look_up(number: int) -> dict[str, str]:
        return RESULT

    @DBOS.workflow()
    def run_steps(steps: int) -> str:
        for number in range(steps):
            dbos_look_up(number)
        return "done"

    @DBOS.workflow()
    def resume_steps(steps: int) -> str:
        for number in range(steps):
            dbos_look_up(number)
        print("resumed", flush=True)
        time.sleep(600)
        return "done"

    return {"steps": run_steps, "resume": resume_steps}


def build_langgraph_flow(path: Path) -> Callable[[str, int], object]:
    import sqlite3

    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.func import entrypoint, task

    saver = SqliteSaver(sqlite3.connect(path, check_same_thread=False))
    saver.setup()
    graph_look_up = task(look_up)

    @entrypoint(checkpointer=saver)
    def flow(steps: int) -> str:
        for number in range(steps):
            graph_look_up(number).result()
        return "done"

    def once(thread: str, steps: int) -> object:
        return flow.invoke(steps, {"configurable": {"thread_id": thread}}, durability="sync")

    return once


def new_database(server: Any, name: str) -> str:
    """Create an empty database, because DBOS takes a whole one. Return its URL for SQLAlchemy."""
    server.sql(f"CREATE DATABASE {name}")
    parts = server.url().split("?", 1)
    base = parts[0].rsplit("/", 1)[0].replace("postgresql://", "postgresql+psycopg://")
    return f"{base}/{name}" + (f"?{parts[1]}" if len(parts) > 1 else "")


# -- resume ----------------------------------------------------------------------------------------


def compare_resume(lab: Lab) -> list[Comparison]:
    """From a new process, imports done, to the first new step behind 1,000 recorded ones."""

    def seconds(kind: str, place: Path) -> float:
        with subprocess.Popen(
            [sys.executable, "-m", "bench.peers.steps", "resume", kind, str(place)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "imported\n"
                start = time.perf_counter()
                assert process.stdout.readline() == "resumed\n"
                return (time.perf_counter() - start) * 1e3
            finally:
                process.send_signal(signal.SIGKILL)

    with lab.place() as place:
        arms = {OURS: "holdfast", DBOS_SQLITE: "dbos"}
        for kind in arms.values():
            seconds(kind, place)  # runs all steps, and is killed behind them
        values = interleave(
            {name: partial(seconds, kind, place) for name, kind in arms.items()},
            lab.rng,
            rounds=lab.choose(5, 2),
        )
    return compare(f"resume after {RECORDED:,} steps", values, "ms")


def resume_holdfast(place: Path) -> None:
    import holdfast

    print("imported", flush=True)
    with holdfast.open(place / "resume.db") as store, store.task("t") as task:
        for number in range(RECORDED):
            task.step("look up", look_up, number)
        print("resumed", flush=True)
        time.sleep(600)


def resume_dbos(place: Path) -> None:
    import dbos

    print("imported", flush=True)
    with launched_dbos(f"sqlite:///{place}/resume.sqlite") as flows:
        with dbos.SetWorkflowID("t"):
            flows["resume"](RECORDED)


# -- workers ---------------------------------------------------------------------------------------


def compare_workers(lab: Lab, server: Any) -> list[Comparison]:
    """Tasks of three steps that one worker process takes from a queue, on PostgreSQL."""
    from ..workers import submit

    numbers = count()
    tasks = lab.choose(TASKS, 100)

    def our_rate() -> float:
        import asyncio

        url = f"{server.url()}&schema=workers{next(numbers)}"
        asyncio.run(submit(url, tasks))
        [answer] = start_workers(url, 1)
        ends = sorted(answer["ends"])
        return (len(ends) - 1) / (ends[-1] - ends[0])

    def dbos_rate() -> float:
        database = new_database(server, f"dbos_w{next(numbers)}")
        command = [sys.executable, "-m", "bench.peers.steps", "work", database, str(tasks)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=600)
        return float(json.loads(done.stdout.splitlines()[-1]))

    arms = {OURS: our_rate, "DBOS queue": dbos_rate}
    values = interleave(arms, lab.rng, rounds=lab.choose(3, 1))
    return compare("worker on PostgreSQL", values, "tasks per second", better="more")


def work_dbos(database: str, tasks: int) -> float:
    """Enqueue all tasks, then count how many end per second."""
    from dbos import DBOS

    ends: list[float] = []
    configure_dbos(database)

    @DBOS.step()
    def dbos_look_up(number: int) -> dict[str, str]:
        return RESULT

    @DBOS.workflow()
    def three_steps() -> str:
        for number in range(3):
            dbos_look_up(number)
        ends.append(time.perf_counter())
        return "done"

    DBOS.launch()
    queue = DBOS.register_queue("bench", polling_interval_sec=0.2)
    for handle in [queue.enqueue(three_steps) for _ in range(tasks)]:
        handle.get_result()
    ends.sort()
    return (len(ends) - 1) / (ends[-1] - ends[0])


def main() -> None:
    action, *rest = sys.argv[1:]
    if action == "resume":
        {"holdfast": resume_holdfast, "dbos": resume_dbos}[rest[0]](Path(rest[1]))
    else:
        print(json.dumps(work_dbos(rest[0], int(rest[1]))), flush=True)
        os._exit(0)  # without waiting for DBOS's threads


if __name__ == "__main__":
    main()
