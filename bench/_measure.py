"""Interleaved pairs, and what comes out of them: results, bars, and curves to plot."""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Literal, TypeVar

import apsw

from holdfast.backends.filesystem import detect_filesystem

Name = TypeVar("Name")
Message = dict[str, str]


@dataclass(frozen=True)
class Bar:
    """What we want a value to be: at most, at least, or exactly the limit."""

    limit: float
    sense: Literal["<=", ">=", "=="] = "<="

    def met(self, value: float) -> bool:
        if self.sense == "==":
            return value == self.limit
        return value >= self.limit if self.sense == ">=" else value <= self.limit

    def share(self, value: float) -> float:
        """How much of the bar is used up: up to 1 it is met, whichever way it points."""
        return self.limit / value if self.sense == ">=" else value / self.limit

    def __str__(self) -> str:
        return f"{self.sense} {self.limit:g}"


@dataclass(frozen=True)
class Spread:
    """The middle of several rounds, and the least and the most of them."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    part: str
    what: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    bar: Bar | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        return "" if self.bar is None else "PASS" if self.bar.met(self.value) else "FAIL"


@dataclass
class Lab:
    """What every part of the benchmark works with: chance, a place on disk, and the notebook."""

    rng: random.Random
    quick: bool
    directory: Path
    results: list[Result] = field(default_factory=list)
    curves: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    part: str = ""
    say: Callable[[Result], None] = lambda result: None
    remark: Callable[[str], None] = lambda text: None

    def choose(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def report(
        self,
        what: str,
        value: float | Spread,
        *,
        unit: str = "",
        bar: Bar | None = None,
        note: str = "",
    ) -> None:
        if isinstance(value, Spread):
            result = Result(self.part, what, value.middle, unit, value.low, value.high, bar, note)
        else:
            result = Result(self.part, what, value, unit, bar=bar, note=note)
        self.results.append(result)
        self.say(result)

    def plot(self, panel: str, line: str, x: float, y: float) -> None:
        self.curves.setdefault(panel, {}).setdefault(line, []).append((x, y))

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A new directory on the disk under test, removed afterwards."""
        path = Path(tempfile.mkdtemp(dir=self.directory))
        try:
            yield path
        finally:
            rmtree(path, ignore_errors=True)


def interleave(
    arms: Mapping[Name, Callable[[], float]], rng: random.Random, *, rounds: int, repeats: int = 1
) -> dict[Name, list[float]]:
    """Each arm's value in each round: the median of `repeats` calls.

    All arms are called once before any is called again, each time in another order, so that what
    the machine does meanwhile happens to all of them.
    """
    values: dict[Name, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for _ in range(rounds):
        gc.collect()
        samples: dict[Name, list[float]] = {name: [] for name in arms}
        for _ in range(repeats):
            rng.shuffle(order)
            for name in order:
                samples[name].append(arms[name]())
        for name in order:
            values[name].append(median(samples[name]))
    return values


def ratio(ours: Sequence[float], raw: Sequence[float]) -> Spread:
    """The ratio round by round: a slow second slows both sides of it."""
    return Spread.of([a / b for a, b in zip(ours, raw, strict=True)])


def message(role: str, size: int) -> Message:
    """A message with some of the characters that JSON must escape, `size` bytes long as compact
    JSON."""
    words = 'The "holdfast" keeps its place,\nwhatever the storm; '
    made = {"role": role, "content": ""}
    room = size - len(compact(made))
    while room - len(json.dumps(words)) + 2 >= 0:
        made["content"] += words
        room = size - len(compact(made))
    made["content"] += "x" * room
    return made


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def pair(size: int) -> tuple[Message, Message]:
    """A question and its answer."""
    return message("user", size), message("assistant", size)


def warm(append: Callable[[Sequence[Message]], object]) -> None:
    """Bring a write-ahead log to the size at which it restarts, where it is in a program that has
    run for a while.

    While a new log still grows, each sync also writes the file system's journal, which hides
    everything else.
    """
    messages = list(pair(600)) * 1_000
    for _ in range(4):
        append(messages)
    time.sleep(0.1)  # for a checkpoint in the background
    for _ in range(4):
        append(messages[:2])


def settle() -> None:
    """Let the disk finish what was prepared, so that it does not run on into what is measured."""
    gc.collect()
    os.sync()


def machine(directory: Path) -> dict[str, object]:
    """What a reader must know to compare numbers. No names of hosts or paths."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
        "sqlite of python": sqlite3.sqlite_version,
        "filesystem": detect_filesystem(directory) or "unknown",
    }


@dataclass(frozen=True)
class Clocks:
    """What the calls of each arm took, round by round: seconds that passed, and of the
    processor."""

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]

    def describe(self, *arms: str) -> str:
        """The middle of each arm in µs, as time that passed and of the processor."""
        return ", ".join(
            f"{arm} {Spread.of(self.wall[arm]).middle * 1e6:,.0f}"
            f" ({Spread.of(self.cpu[arm]).middle * 1e6:,.0f} CPU)"
            for arm in arms
        )


def interleave_with_cpu(
    arms: Mapping[str, Callable[[], object]], rng: random.Random, *, rounds: int, repeats: int
) -> Clocks:
    """`interleave`, by both clocks. The processor time is that of all threads: a checkpoint in the
    background is in it."""
    cpu: dict[str, list[float]] = {name: [] for name in arms}

    def timed(name: str) -> float:
        start, used = time.perf_counter(), time.process_time()
        arms[name]()
        cpu[name].append(time.process_time() - used)
        return time.perf_counter() - start

    wall = interleave(
        {name: partial(timed, name) for name in arms}, rng, rounds=rounds, repeats=repeats
    )
    return Clocks(wall, medians_of(cpu, repeats))


def medians_of(samples: Mapping[str, list[float]], repeats: int) -> dict[str, list[float]]:
    """The median of each round of `repeats` samples."""
    return {
        name: [median(values[n : n + repeats]) for n in range(0, len(values), repeats)]
        for name, values in samples.items()
    }
