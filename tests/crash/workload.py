"""Writers that append until they are killed.

`main` (arguments: URL NOTES --seed 3f --cycle 7 --processes 3) forks that many processes on one
store. In each, threads and async agents append to their own streams and to shared ones, single
events and batches, with and without an id, and now and then read. Each append is noted before it
begins and after it was acknowledged. Standard output tells whoever is to kill them: a line `start
PID` when a process is ready, a line `ack PID` for each acknowledgement.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import holdfast
from helpers.stored.notes import Notes, Plan, plan
from holdfast.backends import AppendResult
from holdfast.errors import Conflict, OutcomeUnknown, StorageFull, Unavailable

THREADS = 2
AGENTS = 3
LIFETIME_SECONDS = 60
"""If nobody comes to kill us, the alarm does."""

NOT_STORED = (Conflict, Unavailable, StorageFull)


class Process:
    """What the writers of one process share, from its start to its end."""

    def __init__(
        self, url: str, notes: Notes, name: str, cycle: int, doubts: Sequence[str]
    ) -> None:
        self.store, self.notes = holdfast.open(url), notes
        self.name, self.cycle, self.doubts = name, cycle, doubts

    def live(self) -> None:
        """Write until killed."""
        writers: list[Callable[[], None]] = [lambda: asyncio.run(self.run_agents())]
        for number in range(THREADS):
            # Appends that an earlier process left in doubt are repeated first.
            writers.append(partial(self.write, f"thread {number}", self.doubts[number::THREADS]))
        threads = [threading.Thread(target=self.guarded, args=(writer,)) for writer in writers]
        say(f"start {os.getpid()}")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def guarded(self, writer: Callable[[], None]) -> None:
        try:
            writer()
        except BaseException as error:
            self.notes.wrong(f"{self.name}: {type(error).__name__}: {error}")

    def keys(self, writer: str) -> Iterator[str]:
        for number in itertools.count():
            yield f"{self.name}/{writer}/{self.cycle}.{number}"

    def write(self, writer: str, doubts: Sequence[str]) -> None:
        chance = random.Random(f"{self.name}/{writer}/{self.cycle}")
        for key in itertools.chain(doubts, self.keys(writer)):
            step = plan(key)
            stream = self.store.stream(step.stream)
            self.notes.attempt(key)
            try:
                expected = stream.version() if step.conditional else None
                answer = stream.append(*step.events, id=step.id, if_version=expected)
            except NOT_STORED as error:
                self.notes.refused(key, error)
                continue
            except OutcomeUnknown:
                continue  # an attempt without an answer, like one that was killed
            self.acknowledge(key, answer)
            self.look_back(step, answer, chance)

    def look_back(self, step: Plan, answer: AppendResult, chance: random.Random) -> None:
        """Now and then, repeat what was acknowledged, and read."""
        stream = self.store.stream(step.stream)
        if step.id is not None and chance.random() < 0.2:
            again = stream.append(*step.events, id=step.id)
            if not again.duplicate or (again.first, again.last) != (answer.first, answer.last):
                self.notes.wrong(f"{step.key} was repeated with its id: {answer}, then {again}")
        if chance.random() < 0.1:
            for event in stream.last(1):
                self.notes.saw(step.stream, event.version, event.id)

    async def run_agents(self) -> None:
        await asyncio.gather(*(self.write_async(f"agent {number}") for number in range(AGENTS)))

    async def write_async(self, writer: str) -> None:
        for key in self.keys(writer):
            step = plan(key)
            stream = self.store.aio.stream(step.stream)
            self.notes.attempt(key)
            try:
                expected = await stream.version() if step.conditional else None
                answer = await stream.append(*step.events, id=step.id, if_version=expected)
            except NOT_STORED as error:
                self.notes.refused(key, error)
                continue
            except OutcomeUnknown:
                continue
            self.acknowledge(key, answer)

    def acknowledge(self, key: str, answer: AppendResult) -> None:
        self.notes.acknowledged(key, answer.first, answer.last)
        say(f"ack {os.getpid()}")


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("notes")
    parser.add_argument("--seed", required=True)
    parser.add_argument("--cycle", type=int, default=0)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--doubts", help="a file of keys, one per line, to repeat first")
    given = parser.parse_args()
    notes = Notes(given.notes)
    doubts = (
        [key for key in Path(given.doubts).read_text().split("\n") if key] if given.doubts else []
    )
    for number in range(given.processes):
        if os.fork() == 0:
            signal.alarm(LIFETIME_SECONDS)
            mine = doubts[number :: given.processes]
            Process(given.url, notes, f"{given.seed}/{number}", given.cycle, mine).live()
            os._exit(1)
    for _ in range(given.processes):
        os.wait()
