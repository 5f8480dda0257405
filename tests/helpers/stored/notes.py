"""What the writers say about their work, kept outside the store: the notes, and the plan behind
each append.

An append is known by its key. Everything about it (stream, id, events) follows from the key alone,
so the checker knows byte for byte what should be stored, and a restarted writer can repeat what was
in doubt.

A note is one write to a file opened with O_APPEND, so the order of lines is an order in real time
that all processes share: a `try` line after an `ack` line began after that append was acknowledged.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

SHARED_STREAMS = 3
LARGE = 70_000
"""Characters of text in a large event: over the limit beyond which data is kept apart from its
event."""


class Plan(NamedTuple):
    """One append, as it follows from its key."""

    key: str
    stream: str
    id: str | None
    conditional: bool
    events: list[tuple[str, dict[str, Any]]]

    @property
    def data(self) -> list[dict[str, Any]]:
        return [data for _, data in self.events]


@lru_cache(maxsize=10_000)
def plan(key: str) -> Plan:
    """The append with this key. The part of the key before the last slash names the writer."""
    chance = random.Random(key)
    writer = key.rpartition("/")[0]
    own = chance.random() < 0.4
    stream = f"own {writer}" if own else f"shared {chance.randrange(SHARED_STREAMS)}"
    append_id = f"id of {key}" if chance.random() < 0.5 else None
    conditional = chance.random() < 0.15
    count = chance.choice([1, 1, 1, 2, 5])
    size = LARGE if chance.random() < 0.03 else chance.choice([0, 10, 100, 1000, 5000])
    events = []
    for index in range(count):
        data: dict[str, Any] = {
            "key": key,
            "index": index,
            "of": count,
            "text": f"{chance.random()} ä" * (size // 20),
        }
        data["sum"] = digest(data)
        events.append((f"noted.{index}", data))
    return Plan(key, stream, append_id, conditional, events)


def digest(value: object) -> str:
    """A digest of a JSON value that does not depend on the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Notes:
    """Writes notes. One system call each; nothing is buffered that a kill could lose."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, **facts: object) -> None:
        # A newline on both sides: if a kill cuts a line short, the next writer's line is still its
        # own.
        os.write(self._file, b"\n" + json.dumps(facts).encode() + b"\n")

    def attempt(self, key: str) -> None:
        self.write(what="try", key=key)

    def acknowledged(self, key: str, first: int, last: int) -> None:
        self.write(what="ack", key=key, first=first, last=last)

    def refused(self, key: str, error: BaseException) -> None:
        """The store said that nothing was written."""
        self.write(what="refused", key=key, error=type(error).__name__)

    def saw(self, stream: str, version: int, event: str) -> None:
        self.write(what="saw", stream=stream, version=version, event=event)

    def wrong(self, problem: str) -> None:
        self.write(what="wrong", problem=problem)

    def close(self) -> None:
        os.close(self._file)


def read_notes(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """All notes in order. A line that a kill cut short is skipped: what it announced had not
    begun."""
    for line in Path(path).read_bytes().split(b"\n"):
        if line:
            try:
                yield json.loads(line)
            except ValueError:
                continue
