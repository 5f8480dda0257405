"""How long after the end of its lease a task is taken over, when the machine of its worker is gone.

A worker in another process, that looks like one of another machine, holds tasks and is killed;
another one, with the settings that it has by default, looks for due tasks. Both times are recorded
ones: that at which the lease of the dead one ends, by the engine's clock, and that of the claim of
its successor. DynamoDB and S3 are simulated, so their figures tell of our way of looking, and of a
slow server, and not of theirs.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import quote

import holdfast
from holdfast import Store, Task
from holdfast.tasks.agents.declare import registered_agents
from holdfast.types import RunResult

from ._measure import Bar, Lab
from ._servers import from_tests

ENGINES = ("sqlite", "files", "postgres", "redis", "dynamodb", "s3")
TASKS = 8
PATIENCE_SECONDS = 60.0


def run(lab: Lab) -> None:
    for engine in ENGINES:
        late: list[float] = []
        for _ in range(lab.choose(5, 2)):
            with lab.place() as place:
                late += taken_over(url_of(engine, place))
        note = f"median {median(late):.2f} s of {len(late)} tasks"
        lab.report(
            f"taken over after the end of a lease, {engine}: most",
            max(late),
            unit="s",
            bar=Bar(1.0),
            note=note,
        )


def url_of(engine: str, place: Path) -> str:
    if engine == "sqlite":
        return str(place / "agents.db")
    if engine == "files":
        return f"file://{quote(str(place / 'agents'))}"
    return str(from_tests("helpers.servers").url_on(engine, place))


def taken_over(url: str) -> list[float]:
    """Seconds, for each task of a worker that was killed."""
    program, lease = from_tests("crash.crew").program, from_tests("crash.elsewhere").LEASE
    names = [f"task-{number}" for number in range(TASKS)]
    with holdfast.open(url) as store, letting_go(lease):
        for name in names:
            store.submit("holding", name)
        with subprocess.Popen(program("elsewhere", url, TASKS), stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            for _ in names:
                assert owner.stdout.readline() == b"began\n"
            with working(store) as ended:
                owner.kill()
                owner.wait()
                ends = {info.id: info.lease_until for info in store.tasks()}
                for _ in names:
                    assert ended.acquire(timeout=PATIENCE_SECONDS), "a task was not taken over"
        late = []
        for name in names:
            [_, second] = [
                event for event in store.task(name).history() if event.type == "task.claimed"
            ]
            end = ends[name]
            assert end is not None
            late.append((second.at - end).total_seconds())
    return late


@contextmanager
def letting_go(lease: float) -> Iterator[None]:
    """The same agent as that of the one that is killed; here its step ends."""
    before = dict(registered_agents)

    @holdfast.agent("holding", lease=lease)
    def holding(task: Task) -> str:
        task.step("hold", str)
        return "let go"

    try:
        yield
    finally:
        registered_agents.clear()
        registered_agents.update(before)


@contextmanager
def working(store: Store) -> Iterator[threading.Semaphore]:
    """A worker beside; released for each task that is finished."""
    ended = threading.Semaphore(0)

    def report(ran: RunResult) -> None:
        if ran.status == "finished":
            ended.release()

    worker = holdfast.Worker(store, concurrency=TASKS, report=report)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield ended
    finally:
        worker.stop()
        thread.join()
