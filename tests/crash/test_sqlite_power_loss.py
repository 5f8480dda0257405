"""The power goes at every single call that SQLite makes on its files: what was acknowledged is
there afterwards.

`HOLDFAST_KILL_CYCLES` says that it may take long: then there are twice as many appends.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import holdfast
from helpers.stored.checker import judge, stream_names
from helpers.stored.notes import plan
from holdfast import Event, HoldfastError, Store
from holdfast.backends.sqlite import SQLiteBackend, backend
from holdfast.log.log import Log

from .power import LUCKS, Drive, Image, Recorder, materialise
from .vfs import Call, watched

Trace = list[Call | dict[str, Any]]

THREADS = 2
APPENDS = 12 if "HOLDFAST_KILL_CYCLES" in os.environ else 6


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory if possible: the disk is simulated, a real one adds nothing but time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def seed() -> str:
    seed = os.environ.get("HOLDFAST_SEED") or secrets.token_hex(4)
    print(f"HOLDFAST_SEED={seed}")
    return seed


@pytest.fixture(scope="module")
def trace(folder: Path, seed: str) -> Trace:
    return recording(folder / "run", seed, "disk")


def recording(place: Path, seed: str, durability: Literal["disk", "process"]) -> Trace:
    """Every call of a run: two threads append until there was a checkpoint, the store is closed,
    opened again and written to."""
    place.mkdir()
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch, watched(recorder) as vfs:
        patch.setattr(backend, "CHECKPOINT_PAGES", 10)
        for run in range(2):
            with Store(
                Log(SQLiteBackend(place / "store.db", durability=durability, vfs=vfs)), "default"
            ) as store:
                before = len(checkpoints(recorder.trace))
                for turn in range(100):
                    threads = [
                        threading.Thread(
                            target=write, args=(store, recorder, f"{seed}/{run}/{turn}/{number}")
                        )
                        for number in range(THREADS)
                    ]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                    if len(checkpoints(recorder.trace)) > before:
                        break
                else:
                    raise AssertionError("there was no checkpoint")
    return recorder.trace


def checkpoints(trace: Trace) -> list[Call]:
    return [e for e in trace if isinstance(e, Call) and e.kind == "sync" and e.path.endswith(".db")]


def write(store: Store, recorder: Recorder, writer: str) -> None:
    for number in range(APPENDS):
        step = plan(f"{writer}/{number}")
        recorder.note(what="try", key=step.key)
        answer = store.stream(step.stream).append(*step.events, id=step.id)
        recorder.note(what="ack", key=step.key, first=answer.first, last=answer.last)


class Aftermath:
    """Opens what a disk holds after the power went. Equal disks are opened once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[bytes, dict[str, list[Event]] | str] = {}

    @property
    def disks(self) -> int:
        return len(self._found)

    def stored(self, image: Image) -> dict[str, list[Event]] | str:
        """The streams, or why they cannot be read."""
        digest = hashlib.sha256()
        for name, content in sorted(image.items()):
            digest.update(f"{name} {len(content)} ".encode() + content)
        if digest.digest() not in self._found:
            place = self._folder / "aftermath"
            place.mkdir()
            materialise(image, place)
            try:
                self._found[digest.digest()] = opened(place / "store.db")
            except HoldfastError as error:
                self._found[digest.digest()] = f"{type(error).__name__}: {error}"
            shutil.rmtree(place)
        return self._found[digest.digest()]


def opened(path: Path) -> dict[str, list[Event]]:
    """All streams, and proof that the store can still be written to."""
    with holdfast.open(path) as store:
        found = {name: list(store.stream(name).read()) for name in stream_names(store._log.backend)}
        store.stream("after the power came back").append(("noted", None))
        return found


def losses(
    trace: Trace, drive: Drive, aftermath: Aftermath, seed: str, *, step: int = 1
) -> Iterator[str]:
    """What is wrong after losing power at each call in turn (or each `step`-th); `drive` decides
    what reaches the disk."""
    chance = random.Random(seed)
    notes: list[dict[str, Any]] = []
    for number, entry in enumerate(trace):
        if isinstance(entry, dict):
            notes.append(entry)
            continue
        # A call that is under way when the power goes: a write may have reached the disk, a sync
        # has not finished.
        if entry.kind != "sync":
            drive.play(entry)
        for luck in LUCKS if number % step == 0 else ():
            stored = aftermath.stored(drive.image(luck, chance))
            problems = (
                [stored] if isinstance(stored, str) else judge(notes, stored, {})[0].violations
            )
            yield from (
                f"power lost at call {number} ({entry.kind}), {luck} of the rest kept: {p}"
                for p in problems
            )
        if entry.kind == "sync":
            drive.play(entry)


def test_after_power_loss_at_any_call_everything_acknowledged_is_stored(
    trace: Trace, folder: Path, seed: str
) -> None:
    kinds = {entry.kind for entry in trace if isinstance(entry, Call)}
    assert kinds == {"open", "write", "sync", "truncate", "delete"}, (
        "the run did not do everything that can fail"
    )
    aftermath = Aftermath(folder)
    found = list(losses(trace, Drive(), aftermath, seed))
    print(f"{len(trace)} calls and notes, {aftermath.disks} different disks opened")
    assert not found, found[:5]


@pytest.mark.parametrize("lie", ["sync", "sync_names"])
def test_a_disk_that_only_pretends_to_sync_is_caught(
    lie: str, trace: Trace, folder: Path, seed: str
) -> None:
    drive = Drive(sync=lie != "sync", sync_names=lie != "sync_names")
    assert any(
        "acknowledged and is lost" in loss for loss in losses(trace, drive, Aftermath(folder), seed)
    )


def test_the_weaker_durability_class_loses_the_newest_appends_and_nothing_else_goes_wrong(
    folder: Path, seed: str
) -> None:
    trace = recording(folder / "weak", seed, "process")
    found = list(losses(trace, Drive(), Aftermath(folder), seed, step=7))
    assert found, "this class skips the sync of each commit, so some append must get lost"
    assert all("acknowledged and is lost" in loss for loss in found), found
