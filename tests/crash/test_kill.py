"""kill -9 at random instants: several writing processes on one store, killed, checked and started
again, many times.

`HOLDFAST_KILL_CYCLES` says how many kills per engine (6 unless told), `HOLDFAST_SEED` repeats a
run's draws.
"""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path

import pytest

from helpers.servers import SERVERS
from helpers.stored.checker import Verdict

from .crew import Crew, checked, url_of

CYCLES = int(os.environ.get("HOLDFAST_KILL_CYCLES", "6"))

CYCLES_PER_STORE = 50

PROCESSES = 3


def crash_once(chance: random.Random, *args: object) -> None:
    """Start the writers, let them work for a while, kill them: all at once, or one while the others
    go on."""
    crew = Crew(*args, "--processes", PROCESSES)
    try:
        crew.wait_for(chance.randrange(5, 60), processes=PROCESSES)
        crew.listen(chance.uniform(0, 0.01))  # an instant that depends on nothing the writers do
        if chance.random() < 0.5:
            crew.kill(chance.choice(sorted(crew.alive)))
            crew.wait_for(chance.randrange(1, 30))
    finally:
        crew.end()


@pytest.mark.timeout(120 + CYCLES * 5)
@pytest.mark.parametrize("engine", ["sqlite", "files", "postgres"])
def test_killed_writers_lose_nothing_acknowledged_and_store_nothing_twice(
    engine: str, tmp_path: Path
) -> None:
    seed = os.environ.get("HOLDFAST_SEED") or secrets.token_hex(4)
    print(f"HOLDFAST_SEED={seed}")
    chance = random.Random(f"{seed} {engine}")
    in_flight = settled = 0
    # On servers more is in flight with each.
    cycles = max(2, CYCLES // 5) if engine in SERVERS else CYCLES
    for first in range(0, cycles, CYCLES_PER_STORE):
        folder = tmp_path / str(first)
        folder.mkdir()
        url, notes, doubts = url_of(engine, folder), folder / "notes", folder / "doubts"
        verdict = Verdict()
        for cycle in range(first, min(first + CYCLES_PER_STORE, cycles)):
            doubts.write_text("\n".join(verdict.doubts))
            crash_once(chance, url, notes, "--seed", seed, "--cycle", cycle, "--doubts", doubts)
            before, verdict = verdict, checked(url, notes, folder / "seen")
            assert verdict.ok, verdict.violations[:10]
            assert verdict.acknowledged > before.acknowledged
            in_flight += len(set(verdict.in_flight) - set(before.in_flight))
            settled += len(set(before.doubts) - set(verdict.doubts))
        print(
            f"{engine}: {verdict.attempts} appends, {verdict.acknowledged} acknowledged, "
            f"{verdict.refused} refused, "
            f"in doubt: {verdict.in_doubt_stored} stored, {verdict.in_doubt_absent} not"
        )
    print(
        f"{in_flight} appends in flight when killed, {settled} of them settled later by repeating "
        "with the same id"
    )
    assert in_flight, "no kill hit an append in flight: this run proved nothing"
    assert settled, "no append in doubt was ever repeated: this run proved nothing about ids"
