"""The ordeal of the demo: writers on one stream, killed with -9 one after the other, and the store checked each time.

What was acknowledged is noted here, outside the store, from what the writers say through pipes.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import holdfast

from ._writer import work

STREAM = "jobs"
WRITERS = 3
START_SECONDS = 60.0


class WriterFailed(Exception):
    """A writer ended by itself, before anybody killed it."""


@dataclass
class Tally:
    """What an ordeal has counted so far. `problems` is what must never happen."""

    kills: int = 0
    in_flight: int = 0
    already_stored: int = 0
    acknowledged: int = 0
    found: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.torn or self.problems)


class Writer:
    """A writer process, and what it said."""

    def __init__(self, url: str, name: str) -> None:
        self.asked: str | None = None
        self.acknowledged: set[str] = set()
        self._writing = threading.Event()
        command = [sys.executable, "-m", "holdfast.cli._writer", url, STREAM, name]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # noqa: S603  our own module
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            mark, job = line.split()
            if mark == "?":
                self.asked = job
            else:
                self.acknowledged.add(job)
                self._writing.set()
        self._writing.set()  # it ended; whoever waits will notice

    def wait_until_writing(self) -> None:
        if not self._writing.wait(START_SECONDS) or self._process.poll() is not None:
            raise WriterFailed("a writer did not get to work; its error is above")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def mourn(self) -> str | None:
        """Wait for its end and hear its last words. Returns the job it was at, if that was not acknowledged."""
        self._process.wait()
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self.asked if self.asked not in self.acknowledged else None


class Ordeal:
    """Kills `kills` writers of the store at `url`. `progress` is called after each."""

    def __init__(self, url: str, *, kills: int, seed: int, progress: Callable[[Tally], None]) -> None:
        self._url, self._kills, self._progress = url, kills, progress
        self._random = random.Random(seed)  # noqa: S311  chooses victims, keeps no secrets
        self._tally = Tally()
        self._acknowledged: set[str] = set()
        self._found: dict[str, list[int]] = {}
        self._version = 0
        self._started = 0

    def run(self) -> Tally:
        writers = [self._start() for _ in range(min(WRITERS, self._kills))]
        try:
            for _ in range(self._kills - len(writers)):
                victim = self._random.choice(writers)
                self._kill([victim], writers)
                writers[writers.index(victim)] = self._start()
            self._kill(writers, writers)  # the last ones all at once
        finally:
            for writer in writers:
                writer.kill()
                writer.mourn()
        self._version, self._found = 0, {}
        self._check([])  # everything once more, from the first event on
        return self._tally

    def _start(self) -> Writer:
        self._started += 1
        return Writer(self._url, f"writer{self._started}")

    def _kill(self, victims: Sequence[Writer], writers: Sequence[Writer]) -> None:
        for victim in victims:
            victim.wait_until_writing()
        time.sleep(self._random.uniform(0.0, 0.1))
        for victim in victims:
            victim.kill()
        unsettled = [job for victim in victims if (job := victim.mourn()) is not None]
        self._tally.kills += len(victims)
        self._tally.in_flight += len(unsettled)
        self._check(writers)
        self._settle(unsettled)
        self._progress(self._tally)

    def _check(self, writers: Sequence[Writer]) -> None:
        """Read what is new, with a fresh store. Reading verifies the hash chain."""
        for writer in writers:
            self._acknowledged |= writer.acknowledged.copy()  # before the store is read: all of it must be there
        try:
            self._read()
        except holdfast.HoldfastError as error:
            self._tally.problems.append(f"{type(error).__name__}: {error}")
        versions = self._found.values()
        self._tally.acknowledged = len(self._acknowledged)
        self._tally.found = len(self._found)
        self._tally.lost = len(self._acknowledged - self._found.keys())
        self._tally.doubled = sum(len(of_job) > 2 for of_job in versions)
        self._tally.torn = sum(len(of_job) < 2 or of_job[1] != of_job[0] + 1 for of_job in versions)

    def _read(self) -> None:
        with holdfast.open(self._url) as store:
            for event in store.stream(STREAM).read(after=self._version):
                if event.version != self._version + 1:
                    self._tally.problems.append(f"version {event.version} follows {self._version}")
                self._version = event.version
                self._found.setdefault(event.data["job"], []).append(event.version)

    def _settle(self, jobs: Sequence[str]) -> None:
        """Repeat what was in flight under the same id. Whether it had been stored or not, it then is, once."""
        with holdfast.open(self._url) as store:
            for job in jobs:
                self._tally.already_stored += work(store.stream(STREAM), job).duplicate
                self._acknowledged.add(job)
