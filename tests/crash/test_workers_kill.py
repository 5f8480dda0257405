"""Two workers on one store, one of them killed every second if it has tasks: all end, and every
effect is within its mode.

The tasks ask, sleep, wait for signals and have children; a third process is the person who answers.
On the engines of one machine the workers run on it, and the dead are known at once. On servers each
worker is on a machine of its own, as far as anybody can tell: another host name, and directories
that nobody else has and that go with it. They share the server and nothing else, so what a dead one
held is taken over when its lease has ended. `HOLDFAST_TASK_KILLS` says how long (30 unless told).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.programs import program
from helpers.servers import SERVERS
from helpers.stored.notes import read_notes
from holdfast import Event, Store

from .crew import url_of
from .worker_app import agent_of, expected

KILLS = int(os.environ.get("HOLDFAST_TASK_KILLS", "30"))
TASKS = {
    "sqlite": 4 * KILLS,
    "files": 4 * KILLS,
    "postgres": KILLS,
    "redis": KILLS,
    "dynamodb": KILLS // 5,
    "s3": KILLS // 5,
}
MOST_KILLS = {
    "sqlite": KILLS // 2,
    "files": KILLS // 2,
    "postgres": KILLS // 5,
    "redis": KILLS // 5,
    "dynamodb": KILLS // 16,
    "s3": KILLS // 16,
}
"""Then they are left to come to the end: on a slow machine a second may be too short for any work.
On servers each costs a lease."""
WORKERS = 2
SPARE = 2
"""Workers that have begun and wait to be let go: it is the killing that is tested, not how long
Python takes to start."""
PATIENCE_SECONDS = 120.0 + 4 * KILLS
ROUND_SECONDS = 1.0
LOOK_SECONDS = 0.1


class Killed(msgspec.Struct):
    """What the kills hit."""

    kills: int = 0
    busy: int = 0
    """Kills of a worker that had tasks at that moment."""
    tasks: int = 0
    """Tasks that were being run when their worker was killed."""


class Machine:
    """A process of `worker_app`, and the machine that it has for itself: a name, unless it is ours,
    and directories."""

    def __init__(self, function: str, engine: str, url: str, notes: Path) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="holdfast-machine-"))
        name = self.place.name if engine in SERVERS else ""
        self.process = subprocess.Popen(
            program("crash.worker_app", url, notes, name, function=function),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd=self.place,
            env={**os.environ, "HOME": str(self.place), "TMPDIR": str(self.place)},
        )

    def let_go(self) -> Machine:
        """It begins to look for tasks."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self

    def tasks(self, store: Store) -> int:
        """How many tasks it has."""
        mine = str(self.process.pid)
        return sum(
            info.owner is not None and info.owner.split("/")[2] == mine for info in store.tasks()
        )

    def kill(self, store: Store, killed: Killed) -> None:
        """Kill it, and see what it was at. It stays a zombie until the count is taken: its number
        is its own."""
        os.kill(self.process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        had = self.tasks(store)
        killed.kills, killed.busy, killed.tasks = (
            killed.kills + 1,
            killed.busy + bool(had),
            killed.tasks + had,
        )
        assert self.process.wait() == -signal.SIGKILL
        self.end()

    def end(self) -> None:
        """Everything that it had is gone."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        shutil.rmtree(self.place, ignore_errors=True)


def run_and_kill(engine: str, url: str, notes: Path) -> Killed:
    """Workers, of which the oldest that has tasks is killed every second, until all have ended."""
    killed = Killed()
    person = Machine("person", engine, url, notes).let_go()
    spare = [Machine("main", engine, url, notes) for _ in range(WORKERS + SPARE)]
    workers = [spare.pop(0).let_go() for _ in range(WORKERS)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    next_kill = time.monotonic() + ROUND_SECONDS
    try:
        with holdfast.open(url, durability="process") as store:
            while True:
                try:
                    person.process.wait(LOOK_SECONDS)  # until there is nothing left to attend to
                    break
                except subprocess.TimeoutExpired:
                    assert time.monotonic() < deadline, sorted(
                        (i.id, i.status) for i in store.tasks()
                    )[:20]
                parked = [info.id for info in store.tasks() if info.status == "stuck"]
                assert not parked, [
                    (e.at, e.type, e.data)
                    for task in parked[:3]
                    for e in store.task(task).history()
                ]
                assert [each.process.poll() for each in workers] == [None] * WORKERS, (
                    "a worker ended by itself"
                )
                if killed.kills == MOST_KILLS[engine] or time.monotonic() < next_kill:
                    continue
                busy = next((each for each in workers if each.tasks(store)), None)
                if busy is None:
                    continue
                workers.remove(busy)
                busy.kill(store, killed)
                next_kill = time.monotonic() + ROUND_SECONDS
                workers.append(spare.pop(0).let_go())
                spare.append(Machine("main", engine, url, notes))
        assert person.process.returncode == 0
    finally:
        for machine in (person, *workers, *spare):
            machine.end()
    return killed


@pytest.mark.timeout(int(PATIENCE_SECONDS) + 60)
@pytest.mark.parametrize("engine", TASKS)
def test_workers_killed_every_second_bring_all_tasks_to_their_end(
    engine: str, folder: Path
) -> None:
    url, notes, tasks = url_of(engine, folder), folder / "notes", TASKS[engine]
    with holdfast.open(url, durability="process") as store:
        for number in range(tasks):
            store.submit(agent_of(number), f"order-{number}", input=number)
    began = time.monotonic()
    killed = run_and_kill(engine, url, notes)
    took = time.monotonic() - began
    facts = list(read_notes(notes))
    with holdfast.open(url, durability="process") as store:
        problems = [*ends_of(store, tasks), *effects_of(store, facts)]
    assert not problems, problems[:10]
    settled = Counter(fact["done"] for fact in facts if fact["what"] == "settled")
    print(
        f"{engine}: {tasks} tasks in {took:.0f} s; {killed.kills} kills, {killed.busy} of a worker "
        "at work, "
        f"{killed.tasks} tasks cut off; {sum(settled.values())} steps settled by a person, "
        f"{settled[True]} as done"
    )
    assert killed.busy > killed.kills / 2, "most kills hit nobody at work: this run proved little"
    assert killed.tasks, "no task was ever cut off: this run proved nothing"
    assert settled or tasks < 4 * KILLS, (
        "no step was ever in doubt: this run proved nothing about `once`"
    )


def ends_of(store: Store, tasks: int) -> Iterator[str]:
    """Every task, and every child, has ended as it should; whoever wrote to it had it."""
    for number in range(tasks):
        view = store.get_task(f"order-{number}")
        assert view is not None
        if (view.status, view.result) != ("finished", expected(number)):
            yield f"{view.id} is {view.status}, with {view.result}"
    for info in store.tasks():
        if info.status != "finished" or info.owner is not None or info.due_at is not None:
            yield f"{info.id} is {info.status}, owned by {info.owner}, due {info.due_at}"
        yield from (
            f"{info.id}: {problem}" for problem in history_of(store.task(info.id).history())
        )


def history_of(history: list[Event]) -> Iterator[str]:
    """No step is completed twice, and none is begun after it was."""
    done: set[str] = set()
    for event in history:
        if event.type in ("step.started", "step.completed") and event.data["step"] in done:
            yield (
                f"version {event.version}: {event.type} of {event.data['step']}, which was "
                "completed"
            )
        if event.type == "step.completed" or (
            event.type == "step.resolved" and not event.data.get("again")
        ):
            done.add(event.data["step"])
        if event.type == "task.stuck":
            yield f"version {event.version}: it was parked, and no step of it kills"


def effects_of(store: Store, facts: list[dict[str, Any]]) -> Iterator[str]:
    """How often the world saw each step: an ordinary one at least once, a `once` one at most once,
    a checked one once."""
    seen: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for fact in facts:
        if fact["what"] == "effect":
            seen[fact["task"], fact["step"]].append(fact)
    steps = {
        (info.id, step.path): step.mode
        for info in store.tasks()
        if (view := store.get_task(info.id)) is not None
        for step in view.steps
        if step.kind != "child"
    }
    for place, mode in steps.items():
        times = len(seen[place])
        # After a person who looks has settled what was in doubt, `once` is once too.
        if (mode and times != 1) or times < 1:
            yield f"{place} ({mode or 'ordinary'}) had its effect {times} times"
    for place, found in seen.items():
        if place not in steps or len({fact["key"] for fact in found}) > 1:
            yield f"{place} is not recorded, or did not keep its idempotency key"
