"""kill -9 at random instants: several writing processes on one store, killed, checked and started again, many times.

`HOLDFAST_KILL_CYCLES` says how many kills per engine (20 unless told), `HOLDFAST_SEED` repeats a run's draws.
"""

from __future__ import annotations

import os
import random
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from servers import SERVERS, url_on

from .checker import Verdict

CYCLES = int(os.environ.get("HOLDFAST_KILL_CYCLES", "20"))
CYCLES_PER_STORE = 50
PROCESSES = 3
PATIENCE_SECONDS = 30.0
"""Longer than anything should take: who waits for a dead process's lock has failed by then."""

TESTS = Path(__file__).parents[1]


def url_of(engine: str, folder: Path) -> str:
    if engine in SERVERS:
        return url_on(engine, folder)
    return f"sqlite:///{folder / 'store.db'}" if engine == "sqlite" else f"file://{folder / 'store'}"


def program(module: str, *args: object) -> list[str]:
    # Not -m: the folder of the tests must come last in the path, it has modules named like those of Python itself.
    start = f"import sys; sys.path.append({str(TESTS)!r}); from crash.{module} import main; main()"
    return [sys.executable, "-c", start, *map(str, args)]


class Crew:
    """A running workload: reads what its processes say, and kills them."""

    module = "workload"

    def __init__(self, *args: object) -> None:
        self.main = subprocess.Popen(program(self.module, *args), stdout=subprocess.PIPE)
        assert self.main.stdout is not None
        self.output = self.main.stdout
        os.set_blocking(self.output.fileno(), False)
        self.alive: set[int] = set()
        self.acks: Counter[int] = Counter()

    def listen(self, seconds: float) -> None:
        """Take in what was said; wait up to that long for something."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            selector.select(seconds)
        for line in (self.output.read() or b"").split(b"\n"):
            word, _, pid = line.partition(b" ")
            self.hear(word, pid)

    def hear(self, word: bytes, pid: bytes) -> None:
        if word == b"start":
            self.alive.add(int(pid))
        elif word == b"ack" and int(pid) in self.alive:
            self.acks[int(pid)] += 1

    def wait_for(self, acks: int, *, processes: int | None = None) -> None:
        """Until the living have that many more acknowledgements among them."""
        before, deadline = self.acks.total(), time.monotonic() + PATIENCE_SECONDS
        while (processes is not None and len(self.alive) < processes) or self.acks.total() < before + acks:
            self.listen(1.0)
            assert time.monotonic() < deadline, "the writers are stuck"
            assert self.main.poll() is None, "the writers ended by themselves"

    def kill(self, pid: int) -> None:
        self.alive.discard(pid)
        os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        for pid in list(self.alive):
            self.kill(pid)
        self.main.wait(PATIENCE_SECONDS)
        self.output.close()


def crash_once(chance: random.Random, *args: object) -> None:
    """Start the writers, let them work for a while, kill them: all at once, or one while the others go on."""
    crew = Crew(*args, "--processes", PROCESSES)
    try:
        crew.wait_for(chance.randrange(5, 60), processes=PROCESSES)
        crew.listen(chance.uniform(0, 0.01))  # an instant that depends on nothing the writers do
        if chance.random() < 0.5:
            crew.kill(chance.choice(sorted(crew.alive)))
            crew.wait_for(chance.randrange(1, 30))
    finally:
        crew.end()


def checked(url: str, notes: Path, seen: Path) -> Verdict:
    done = subprocess.run(program("checker", url, notes, seen), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Verdict)


@pytest.mark.timeout(120 + CYCLES * 5)
@pytest.mark.parametrize("engine", ["sqlite", "files", "postgres"])
def test_killed_writers_lose_nothing_acknowledged_and_store_nothing_twice(engine: str, tmp_path: Path) -> None:
    seed = os.environ.get("HOLDFAST_SEED") or secrets.token_hex(4)
    print(f"HOLDFAST_SEED={seed}")
    chance = random.Random(f"{seed} {engine}")
    in_flight = settled = 0
    cycles = CYCLES // 5 if engine in SERVERS else CYCLES  # there more is in flight with each
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
            f"{engine}: {verdict.attempts} appends, {verdict.acknowledged} acknowledged, {verdict.refused} refused, "
            f"in doubt: {verdict.in_doubt_stored} stored, {verdict.in_doubt_absent} not"
        )
    print(f"{in_flight} appends in flight when killed, {settled} of them settled later by repeating with the same id")
    assert in_flight, "no kill hit an append in flight: this run proved nothing"
    assert settled, "no append in doubt was ever repeated: this run proved nothing about ids"
