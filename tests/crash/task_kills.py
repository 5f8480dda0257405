"""Run the agent of thirty steps in forks of a prepared process, killed with kill -9 at a chosen
place or a random time.

A boundary is a place in an append of the agent: its name says what is appended, and where in the
append it is. `main` (arguments: ENGINE VARIANT FOLDER WHAT) does one of three things and prints its
findings as JSON, a line for each store that was judged: `each` (one more argument: `share` or
`all`) kills one process at one boundary, for a share or all of them; `relay` kills at every
boundary where no process has died yet, including those that only a resumed run reaches, in one
store; `random` (more arguments: KILLS SEED) kills at random times.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import secrets
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import msgspec

from helpers.stored.notes import read_notes
from holdfast import Store
from holdfast.backends import Append, AppendResult, Backend, VersionMismatch
from holdfast.backends.files import Disk, FilesBackend
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.errors import StepInDoubt
from holdfast.log.codec import Undecodable
from holdfast.log.events import decode_plain_envelope
from holdfast.log.log import Log

from . import agent30
from .agent30 import ID, World
from .points import die
from .task_judge import Outcome, gathered, judge

PLACES = {
    "sqlite": ["before begin", "after insert", "before commit", "after commit"],
    "files": ["before the append", "in the middle of the write", "after the append"],
    "postgres": ["before the append", "after the append"],
}
SERVER = "HOLDFAST_TEST_SERVER"
"""In the environment: the URL of the server, to which options can be added."""
LIFETIME_SECONDS = 60
"""Longer than any process should take; then the alarm ends it, and the program fails."""
KILLS_PER_STORE = 5


class Finding(msgspec.Struct):
    """What became of one store."""

    what: str
    problems: list[str]
    kills: int = 0
    in_flight: int = 0
    """Kills that hit a step while it ran."""
    settled: int = 0
    checked: int = 0


class Failed(Exception):
    """A process did not end as it should."""


class KillPlan:
    """Where a process is killed: at `target`, or with `past` where none has died; else nowhere."""

    def __init__(
        self, world: World, target: str | None = None, past: set[str] | None = None
    ) -> None:
        self.world, self.target, self.past = world, target, past

    def is_due(self, place: str, names: Sequence[str]) -> bool:
        """Whether to end at this place in the append of these, which are stored together or not at
        all."""
        boundaries = boundaries_of(place, names)
        return self.target in boundaries or (
            self.past is not None and not self.past.issuperset(boundaries)
        )

    def at(self, place: str, names: Sequence[str]) -> None:
        if self.is_due(place, names):
            self.end(place, names)

    def end(self, place: str, names: Sequence[str]) -> None:
        self.world.note("dying", boundaries=boundaries_of(place, names))
        die()


class Rehearsal(KillPlan):
    """Ends nowhere, and notes every boundary that it passes."""

    def is_due(self, place: str, names: Sequence[str]) -> bool:
        for boundary in boundaries_of(place, names):
            self.world.note("boundary", name=boundary)
        return False


def boundaries_of(place: str, names: Sequence[str]) -> list[str]:
    return [f"{place}: {name}" for name in names]


def names_of(batch: Sequence[Append]) -> list[str]:
    return [_name(append) for append in batch]


def _name(append: Append) -> str:
    """What an append is about: its last event, because lazy ones come before it. The same in every
    run."""
    if append.stream.kind == "conversation":
        return f"message {append.expected + 1}"
    try:
        event = decode_plain_envelope(append.records[-1][1])
    except Undecodable:  # a large value
        return f"{append.stream.kind} of {sum(len(body) for _, body in append.records)} bytes"
    data = event.data if isinstance(event.data, dict) else {}
    detail = [
        str(data[name]) for name in ("step", "how", "cursor", "text") if data.get(name) is not None
    ]
    if "/" in data.get("id", ""):
        detail.append(
            data["id"].rpartition("/")[2]
        )  # the n-th of its kind; what is before is a keyed hash
    return " ".join([event.type, *detail])


class MortalSQLite(SQLiteBackend):
    """SQLite that may die in each append."""

    def __init__(self, path: Path, kill_plan: KillPlan) -> None:
        self.kill_plan = kill_plan
        self.names: list[str] = []
        super().__init__(path)

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self.names = names_of(batch)
        try:
            return super().append(batch)
        finally:
            self.names = []

    def _begin(self, writer: Any) -> None:  # type: ignore[override]
        self.kill_plan.at("before begin", self.names)
        super()._begin(writer)
        names, self.inserted = list(self.names), False

        def on_change(operation: int, database: str, table: str, row: int) -> None:
            if (operation, table) == (apsw.SQLITE_INSERT, "records") and not self.inserted:
                self.inserted = True
                self.kill_plan.at("after insert", names)

        writer.connection.set_update_hook(on_change)

    def _commit(self, writer: Any) -> None:  # type: ignore[override]
        self.kill_plan.at("before commit", self.names)
        super()._commit(writer)
        self.kill_plan.at("after commit", self.names)


class MortalDisk(Disk):
    """Dies in the middle of the first write of an append."""

    def __init__(self, kill_plan: KillPlan) -> None:
        self.kill_plan = kill_plan
        self.names: list[str] = []

    def write(self, file: int, data: bytes | memoryview, offset: int) -> int:
        names, self.names = self.names, []
        if self.kill_plan.is_due("in the middle of the write", names):
            super().write(file, data[: len(data) // 2], offset)
            self.kill_plan.end("in the middle of the write", names)
        return super().write(file, data, offset)


class MortalFiles(FilesBackend):
    """Files that may die in each append."""

    def __init__(self, path: Path, kill_plan: KillPlan) -> None:
        self.kill_plan, self.mortal = kill_plan, MortalDisk(kill_plan)
        super().__init__(path, disk=self.mortal)

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        names = names_of(batch)
        self.kill_plan.at("before the append", names)
        self.mortal.names = names
        answers = super().append(batch)
        self.kill_plan.at("after the append", names)
        return answers


class MortalPostgres(PostgresBackend):
    """PostgreSQL whose client may die before and after each append."""

    def __init__(self, url: str, kill_plan: KillPlan) -> None:
        self.kill_plan = kill_plan
        super().__init__(url)

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        names = names_of(batch)
        self.kill_plan.at("before the append", names)
        answers = super().append(batch)
        self.kill_plan.at("after the append", names)
        return answers


class Place:
    """A store, its world, and the processes that work on it."""

    def __init__(self, engine: str, variant: str, folder: Path) -> None:
        self.engine, self.variant, self.folder = engine, variant, folder
        folder.mkdir()
        self.world = World(folder / "world")
        self.schema = f"t{secrets.token_hex(8)}"

    def backend(self, kill_plan: KillPlan) -> Backend:
        if self.engine == "sqlite":
            return MortalSQLite(self.folder / "store.db", kill_plan)
        if self.engine == "postgres":
            return MortalPostgres(f"{os.environ[SERVER]}&schema={self.schema}", kill_plan)
        return MortalFiles(self.folder / "store", kill_plan)

    def notes(self) -> list[dict[str, Any]]:
        return list(read_notes(self.folder / "world"))

    def live(self, kill_plan: KillPlan) -> None:
        """Run the task to its end. Steps in doubt are resolved on the way, as a person would."""
        with Store(Log(self.backend(kill_plan)), "default") as store:
            while True:
                try:
                    if self.variant == "async":
                        asyncio.run(agent30.run_async(store.aio, self.world))
                    else:
                        agent30.run(store, self.world)
                    return
                except StepInDoubt as doubt:
                    self.world.note("doubt", pid=os.getpid(), step=doubt.step)
                    settle(store, self.world)

    def begin(self, kill_plan: KillPlan) -> int:
        """Run the task in a fork; return its process id."""
        process = os.fork()
        if process:
            return process
        signal.alarm(LIFETIME_SECONDS)
        code = 1
        try:
            self.live(kill_plan)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def ended(self, process: int) -> bool:
        """Wait for the end of a process; return whether it was killed. Any failure is an error."""
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code not in (0, -signal.SIGKILL):
            raise Failed(f"a process ended with {code}")
        if code:
            # Not by itself before it dies: its other threads may do something more until it is
            # dead.
            self.world.note("kill", pid=process)
        return code != 0

    def to_the_end(self) -> None:
        """Run a process without a kill."""
        if self.ended(self.begin(KillPlan(self.world))):
            raise Failed("something else killed a process")

    def judged(self, what: str, expected: Outcome) -> Finding:
        """The judgement of one who was not there. The place is cleared."""
        with Store(Log(self.backend(KillPlan(self.world))), "default") as store:
            evidence = gathered(store, self.notes())
        running: dict[int, set[str]] = {}
        kills = in_flight = 0
        for note in evidence.notes:
            if note["what"] == "run":
                running.setdefault(note["by"], set()).add(note["step"])
            elif note["what"] == "ack":
                running.setdefault(note["by"], set()).discard(note["step"])
            elif note["what"] == "kill":
                kills, in_flight = kills + 1, in_flight + bool(running.get(note["pid"]))
        settled = sum(event.type == "step.resolved" for event in evidence.history)
        checked = sum(
            event.type == "step.completed" and event.data.get("how") == "checked"
            for event in evidence.history
        )
        finding = Finding(what, judge(evidence, expected), kills, in_flight, settled, checked)
        self.clear()
        return finding

    def clear(self) -> None:
        self.world.close()
        shutil.rmtree(self.folder)


def settle(store: Store, world: World) -> None:
    """What a person does: look whether it was done, and say so."""
    view = store.get_task(ID)
    assert view is not None
    for step in view.steps:
        if step.in_doubt and step.mode == "once":
            receipt = world.receipt(step=step.path)
            if receipt is None:
                store.resolve(ID, step.path, retry=True)
            else:
                store.resolve(ID, step.path, result=receipt)


def rehearsed(engine: str, variant: str, folder: Path) -> tuple[Outcome, list[str], float]:
    """An undisturbed run: what it comes to, the boundaries that it passes, and how long it takes.

    In this process, so that all forks inherit what it has imported.
    """
    place = Place(engine, variant, folder / "rehearsal")
    place.live(Rehearsal(place.world))
    with Store(Log(place.backend(KillPlan(place.world))), "default") as store:
        expected = gathered(store, []).outcome
    boundaries = [note["name"] for note in place.notes() if note["what"] == "boundary"]
    assert {name.partition(": ")[0] for name in boundaries} == set(PLACES[engine])
    place.clear()
    times = []
    for _ in range(3):
        place = Place(engine, variant, folder / "rehearsal")
        began = time.perf_counter()
        place.to_the_end()
        times.append(time.perf_counter() - began)
        finding = place.judged("rehearsal", expected)
        assert not finding.problems, finding.problems
    return expected, boundaries, sorted(times)[1]


def each(engine: str, variant: str, folder: Path, how_many: str) -> Iterator[Finding]:
    """Kill at each boundary, then run a process to the end."""
    expected, boundaries, _ = rehearsed(engine, variant, folder)
    if how_many == "share":
        boundaries = [name for name in boundaries if _is_of(variant, name, engine)]
    double = [boundary for boundary, count in Counter(boundaries).items() if count > 1]
    assert not double, f"several boundaries have one name: {double}"
    ready()
    for boundary in boundaries:
        place = Place(engine, variant, folder / "store")
        try:
            if not place.ended(place.begin(KillPlan(place.world, boundary))):
                raise Failed("nobody died there")
            place.to_the_end()
        except Failed as failed:
            yield Finding(boundary, [str(failed)])
            place.clear()
        else:
            yield place.judged(boundary, expected)


def _is_of(variant: str, boundary: str, engine: str) -> bool:
    """Whether a variant is killed there: at one place of each append, the other variant at the next
    one. The engine does not know who calls it, plain or async, and a relay stops at all of them."""
    place, _, name = boundary.partition(": ")
    places = PLACES[engine]
    return (places.index(place) + crc32(name.encode())) % len(places) == (variant == "async")


def relay(engine: str, variant: str, folder: Path) -> Iterator[Finding]:
    """Kill process after process, each at a boundary where none has died, until one finishes."""
    expected, boundaries, _ = rehearsed(engine, variant, folder)
    ready()
    place = Place(engine, variant, folder / "store")
    past: set[str] = set()
    while place.ended(place.begin(KillPlan(place.world, past=past))):
        died_at = [note["boundaries"] for note in place.notes() if note["what"] == "dying"][-1]
        assert not past.issuperset(died_at), "something else killed a process"
        past.update(died_at)
    never = sorted(set(boundaries) - past)
    finding = place.judged("relay", expected)
    finding.problems += [
        f"nobody died {boundary}" for boundary in never if not _ended_otherwise(boundary, past)
    ]
    yield finding


def _ended_otherwise(boundary: str, past: set[str]) -> bool:
    """Whether it is the end of a step whose outcome had to be found out, and somebody died at
    that."""
    settled = boundary.replace("step.completed", "step.resolved")
    return "step.completed" in boundary and bool({f"{boundary} checked", settled} & past)


def at_random(engine: str, variant: str, folder: Path, kills: str, seed: str) -> Iterator[Finding]:
    """Kills at random times, a few for each store."""
    expected, _, took = rehearsed(engine, variant, folder)
    ready()
    chance = random.Random(f"{seed} {engine} {variant}")
    done = 0
    while done < int(kills):
        place = Place(engine, variant, folder / "store")
        finished = False
        for _ in range(KILLS_PER_STORE):
            process = place.begin(KillPlan(place.world))
            time.sleep(chance.uniform(0, took * 1.1))
            os.kill(
                process, signal.SIGKILL
            )  # not waited for yet: the number cannot be somebody else's
            finished = not place.ended(process)
            if finished:
                break
            done += 1
        if not finished:
            place.to_the_end()
        yield place.judged("random", expected)


def ready() -> None:
    """From now on every fork is alike."""
    assert threading.active_count() == 1, "a fork has only one thread"
    gc.collect()
    gc.freeze()


def main() -> None:
    engine, variant, folder, what, *more = sys.argv[1:]
    found: dict[str, Callable[..., Iterator[Finding]]] = {
        "each": each,
        "relay": relay,
        "random": at_random,
    }
    for finding in found[what](engine, variant, Path(folder), *more):
        sys.stdout.buffer.write(msgspec.json.encode(finding) + b"\n")
