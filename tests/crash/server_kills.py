"""Kill a server again and again while several processes write to it, and see what the writers were
told and what is stored."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from helpers.stored.checker import Verdict

from .crew import PATIENCE_SECONDS, Crew, checked

KILLS = int(os.environ.get("HOLDFAST_SERVER_KILLS", "8"))
CUTS = int(os.environ.get("HOLDFAST_SERVER_CUTS", "100"))
PROCESSES = 3


class ServerCrew(Crew):
    """Writers who outlive their server. `doubts` counts the commits that ended without an
    answer."""

    module = "server_load"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.doubts = 0

    def hear(self, word: bytes, pid: bytes) -> None:
        super().hear(word, pid)
        self.doubts += word == b"doubt"

    def wait_for_all(self, acks: int) -> None:
        """Until each of the processes has that many more acknowledgements."""
        before, deadline = self.acks.copy(), time.monotonic() + PATIENCE_SECONDS
        while any(self.acks[pid] < before[pid] + acks for pid in self.alive):
            self.listen(1.0)
            assert time.monotonic() < deadline, (
                f"writers are stuck: {before} before, {self.acks} now"
            )
            assert self.main.poll() is None, "the writers ended by themselves"


def killed_under_load(
    url: str, place: Path, kill: Callable[[], None], start: Callable[[], None], kills: int = KILLS
) -> Verdict:
    """Kill the server that often, each time while all processes are writing; the verdict on what is
    stored then."""
    seed = os.environ.get("HOLDFAST_SEED") or secrets.token_hex(4)
    chance = random.Random(seed)
    crew = ServerCrew(url, place / "notes", seed, PROCESSES, 120 + kills * 10)
    hits = 0
    try:
        crew.wait_for(1, processes=PROCESSES)
        for _ in range(kills):
            # Every process has to have come back by itself from the kill before.
            crew.wait_for_all(chance.randrange(3, 20))
            crew.listen(
                chance.uniform(0, 0.01)
            )  # an instant that depends on nothing the writers do
            before = crew.doubts
            kill()
            start()
            crew.wait_for_all(1)
            hits += crew.doubts > before
        crew.wait_for_all(5)
    finally:
        crew.end()
    verdict = checked(url, place / "notes", place / "seen")
    print(
        f"HOLDFAST_SEED={seed}: {kills} kills, {hits} of them hit a commit in flight "
        f"({crew.doubts} in all); "
        f"{verdict.attempts} appends, {verdict.acknowledged} acknowledged, {verdict.refused} "
        "refused, "
        f"in doubt: {verdict.in_doubt_stored} stored, {verdict.in_doubt_absent} not"
    )
    assert verdict.ok, verdict.violations[:10]
    assert verdict.acknowledged > kills * PROCESSES
    assert hits, "no kill hit a commit in flight: this run proved nothing"
    return verdict
