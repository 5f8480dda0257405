"""Dies at every place where a process can die: at each named point, and at each call that changes a
file.

`main` (arguments: ENGINE FOLDER STEP) runs one short fixed workload again and again. Each time a
new process kills itself one call later (STEP calls later), another process judges what is stored, a
third one goes on where the first one died, and the judge looks again; until the workload comes
through alive. One line of JSON for each death.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import apsw
import msgspec

from helpers.stored.checker import Verdict, check
from helpers.stored.notes import Notes, Plan, plan
from holdfast import Store
from holdfast.backends import Backend
from holdfast.backends.files import Disk, FilesBackend
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.log.events import INLINE_BYTES
from holdfast.log.log import Log

from .vfs import Call, watched


def first_key(wanted: Callable[[Plan], bool]) -> str:
    return next(
        key for key in (f"points/{number}" for number in range(10_000)) if wanted(plan(key))
    )


KEYS = [
    first_key(lambda step: step.stream == "shared 0" and len(step.events) == 1 and step.id is None),
    first_key(
        lambda step: step.stream == "shared 0" and len(step.events) == 5 and step.id is not None
    ),
    first_key(lambda step: step.stream == "shared 1" and len(step.events) == 2 and step.id is None),
    first_key(
        lambda step: step.stream == "shared 1" and len(step.events) == 1 and step.id is not None
    ),
    first_key(lambda step: len(step.events) == 1 and len(step.data[0]["text"]) > INLINE_BYTES),
]
CHECKPOINT_AFTER = KEYS[2]
LATER_KEYS = [f"later/{number}" for number in (0, 1, 2)]


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
    raise AssertionError("still alive")


class Death(msgspec.Struct):
    """What one line of the output says. `killed` is false for the last pass of a sweep, which came
    through alive."""

    point: str
    passes: int
    killed: bool
    verdict: Verdict
    later: Verdict


class Countdown:
    """Dies at the n-th pass."""

    def __init__(self, passes: int) -> None:
        self.left = passes
        self.lock = threading.Lock()

    def due(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left == 0

    def __call__(self) -> None:
        if self.due():
            die()


class DyingSQLite(SQLiteBackend):
    """Dies at a named point of its n-th transaction."""

    def __init__(self, path: str, point: str, countdown: Countdown) -> None:
        self.point, self.countdown = point, countdown
        super().__init__(path)

    def _begin(self, writer: Any) -> None:  # type: ignore[override]
        self._at("before begin")
        super()._begin(writer)
        self._at("after begin")
        if self.point == "after insert":
            writer.connection.set_update_hook(self._on_change)

    def _on_change(self, operation: int, database: str, table: str, row: int) -> None:
        if (operation, table) == (apsw.SQLITE_INSERT, "records"):
            self.countdown()

    def _commit(self, writer: Any) -> None:  # type: ignore[override]
        self._at("before commit")
        super()._commit(writer)
        self._at("after commit, before the answer")

    def _at(self, point: str) -> None:
        if point == self.point:
            self.countdown()


class DyingCalls:
    """Dies before the n-th call that changes a file; or, `torn`, in the middle of the n-th
    write."""

    reads = False

    def __init__(self, countdown: Countdown, *, torn: bool) -> None:
        self.countdown, self.torn = countdown, torn

    def around(self, call: Call, do: Callable[[], None], part: Callable[[int], None]) -> None:
        if (not self.torn or call.kind == "write") and self.countdown.due():
            part(len(call.data) // 2 if self.torn else 0)
            die()
        do()


class DyingDisk(Disk):
    """The same for the files backend: dies before a call, or in the middle of a write."""

    def __init__(self, countdown: Countdown, *, torn: bool) -> None:
        self.countdown, self.torn = countdown, torn

    def write(self, file: int, data: bytes | memoryview, offset: int) -> int:
        if self.countdown.due():
            if self.torn:
                super().write(file, data[: len(data) // 2], offset)
            die()
        return super().write(file, data, offset)

    def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
        self._pass(create)
        return super().open(top, path, write=write, create=create)

    def mkdir(self, top: int, path: str) -> None:
        self._pass()
        super().mkdir(top, path)

    def truncate(self, file: int, size: int) -> None:
        self._pass()
        super().truncate(file, size)

    def fsync(self, file: int) -> None:
        self._pass()
        super().fsync(file)

    def fsync_dir(self, top: int, path: str) -> None:
        self._pass()
        super().fsync_dir(top, path)

    def rename(self, top: int, old: str, new: str) -> None:
        self._pass()
        super().rename(top, old, new)

    def unlink(self, top: int, path: str) -> None:
        self._pass()
        super().unlink(top, path)

    def _pass(self, changes: bool = True) -> None:
        if changes and not self.torn:
            self.countdown()


def work(backend: Backend, notes: Notes, keys: list[str]) -> None:
    """The fixed workload: one append after another."""
    with Store(Log(backend), "default") as store:
        for key in keys:
            step = plan(key)
            notes.attempt(key)
            answer = store.stream(step.stream).append(*step.events, id=step.id)
            notes.acknowledged(key, answer.first, answer.last)
            if key == CHECKPOINT_AFTER and isinstance(backend, SQLiteBackend):
                connection = backend._connect()
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                connection.close()


def run_first_process(point: str, passes: int, url: str, notes: Notes) -> None:
    countdown = Countdown(passes)
    torn = point == "in the middle of a write"
    if url.startswith("file"):
        work(
            FilesBackend(url.partition("://")[2], disk=DyingDisk(countdown, torn=torn)), notes, KEYS
        )
    elif point in NAMED_POINTS:
        work(DyingSQLite(url.partition(":///")[2], point, countdown), notes, KEYS)
    else:
        with watched(DyingCalls(countdown, torn=torn)) as vfs:
            work(SQLiteBackend(url.partition(":///")[2], vfs=vfs), notes, KEYS)


def run_second_process(url: str, notes: Notes, doubts: list[str]) -> None:
    """Repeat what was in doubt, then go on."""
    path = url.partition(":///" if url.startswith("sqlite") else "://")[2]
    work(
        FilesBackend(path) if url.startswith("file") else SQLiteBackend(path),
        notes,
        [*doubts, *LATER_KEYS],
    )


NAMED_POINTS = [
    "before begin",
    "after begin",
    "after insert",
    "before commit",
    "after commit, before the answer",
]
CALLS = ["before a call", "in the middle of a write"]


def in_child(work: Callable[[], None]) -> int:
    """Run something in a process of its own; how it ended (negative: by that signal)."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(60)
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def judged(url: str, folder: Path, before: Callable[[], None] = lambda: None) -> Verdict:
    """The verdict of a process of its own, after something else that it does first."""
    result = folder / "verdict"

    def judge() -> None:
        before()
        result.write_bytes(
            msgspec.json.encode(check(url, str(folder / "notes"), str(folder / "seen")))
        )

    if in_child(judge) != 0:
        return Verdict(["the checker failed"])
    return msgspec.json.decode(result.read_bytes(), type=Verdict)


def die_once(engine: str, point: str, passes: int, place: Path) -> Death:
    """Run a process until it dies, judge the store, run the next process, and judge again."""
    place.mkdir()
    url = f"sqlite:///{place / 'store.db'}" if engine == "sqlite" else f"file://{place / 'store'}"
    notes = Notes(place / "notes")
    code = in_child(lambda: run_first_process(point, passes, url, notes))
    assert code in (0, -signal.SIGKILL), f"the workload failed instead of dying: {code}"
    verdict = judged(url, place)
    later = judged(url, place, lambda: run_second_process(url, notes, verdict.doubts))
    notes.close()
    shutil.rmtree(place)
    return Death(point, passes, killed=code != 0, verdict=verdict, later=later)


def sweep(engine: str, point: str, folder: Path, step: int) -> Iterator[Death]:
    """Die so many passes later each time, until the workload comes through alive."""
    for passes in itertools.count(1 + secrets.randbelow(step), step):
        yield (death := die_once(engine, point, passes, folder / str(passes)))
        if not death.killed:
            return


def main() -> None:
    engine, folder, step = sys.argv[1:]
    for point in NAMED_POINTS * (engine == "sqlite") + CALLS:
        for death in sweep(engine, point, Path(folder), int(step) if point in CALLS else 1):
            sys.stdout.buffer.write(msgspec.json.encode(death) + b"\n")
