"""kill -9 of a consolidation at random instants: no memory is lost, none is merged twice, and the
evidence is intact.

Kills before the run has written something don't count. `HOLDFAST_TASK_KILLS` says how many do for
each engine and variant (by default 3, at most 50); `HOLDFAST_SEED` repeats a run's draws.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from helpers.stored.notes import read_notes

from .consolidator import NAMESPACE, PAIRS, RUN, fill, gather, judge
from .crew import program

KILLS = min(int(os.environ.get("HOLDFAST_TASK_KILLS", "3")), 50)
KILLS_PER_STORE = 4
MAX_LIVES_PER_KILL = 30
PATIENCE_SECONDS = 120.0
PARTS = 3
"""A process lives for up to this part of an undisturbed run, so the kills spread over all of it."""


class Place:
    """A store with memories, and processes that consolidate them."""

    def __init__(self, url: str, variant: str, world: Path) -> None:
        self.url, self._variant, self._world = url, variant, world
        with holdfast.open(url) as store:
            fill(store)
            self.before = {item.id: item.text for item in store.memory(NAMESPACE).all()}

    @contextmanager
    def start(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run a process that has begun to work. It does not outlive the block."""
        command = program("consolidator", self.url, self._variant, self._world)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                yield process
            finally:
                process.kill()

    def finish(self) -> float:
        """Let a process run to its end, and return how long it took."""
        with self.start() as process:
            begun = time.monotonic()
            assert process.stdout is not None
            assert process.stdout.read() == b"done\n"
            assert process.wait(PATIENCE_SECONDS) == 0
            return time.monotonic() - begun

    def kill_after(self, seconds: float) -> bool:
        """Kill a process after this time; return False if it has ended before."""
        with self.start() as process:
            try:
                # The life of a process, not a pause of the test: it is killed wherever it is then.
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
            assert process.returncode in (0, -signal.SIGKILL)
            return process.returncode != 0

    def has_begun(self) -> bool:
        """Whether a killed run has written something, and has not finished."""
        with holdfast.open(self.url) as store:
            view = store.get_task(RUN)
            return view is not None and view.status != "finished"

    def asked(self) -> int:
        return sum(note["what"] == "asked" for note in read_notes(self._world))


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS + 15 * KILLS)
@pytest.mark.parametrize("variant", ["sync", "async"])
@pytest.mark.parametrize("engine", ["sqlite", "files"])
def test_killed_at_random_instants_it_comes_to_the_same(
    engine: str, variant: str, folder: Path
) -> None:
    seed = os.environ.get("HOLDFAST_SEED") or secrets.token_hex(4)
    print(f"HOLDFAST_SEED={seed}", file=sys.stderr)
    chance = random.Random(seed)

    def make(name: str) -> Place:
        schemes = {"sqlite": f"{folder / name}.db", "files": f"file://{folder / name}"}
        return Place(schemes[engine], variant, folder / f"{name}.world")

    calm = make("calm")
    length = calm.finish()
    with holdfast.open(calm.url) as store:
        right = gather(store)
        assert judge(store, right, calm.before, calm.asked(), 0) == []
    kinds = {"duplicate": PAIRS, "merge": PAIRS, "summary": PAIRS, "supersede": 2 * PAIRS}
    assert right.counts == kinds
    span, kills, before, stores, lives = length / PARTS, 0, 0, 0, 0
    while kills < KILLS:
        stores += 1
        place, own = make(f"store-{stores}"), 0
        while own < min(KILLS_PER_STORE, KILLS - kills):
            lives += 1
            assert lives < MAX_LIVES_PER_KILL * KILLS, "hardly any kill hits the run"
            if not place.kill_after(chance.uniform(0, span)):
                span *= 0.9
                break
            if place.has_begun():
                own += 1
            else:
                before, span = before + 1, span * 1.2
        place.finish()
        with holdfast.open(place.url) as store:
            assert judge(store, right, place.before, place.asked(), own) == [], seed
        kills += own
    print(f"{engine}, {variant}: {kills} kills in {stores} stores; {before} before the run began")
