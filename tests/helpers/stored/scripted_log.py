"""A log on a backend whose answers a test decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import holdfast
from holdfast.backends import Append, AppendResult, VersionMismatch
from holdfast.backends.memory import MemoryBackend


class Scripted(MemoryBackend):
    """A memory backend on which the next appends do what a test says instead."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[Callable[[Sequence[Append]], Any]] = []
        self.batches: list[Sequence[Append]] = []

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        if batch[0].stream.kind == "tenant":
            return super().append(batch)
        self.batches.append(list(batch))
        if self.script:
            answer: Sequence[AppendResult | VersionMismatch] = self.script.pop(0)(batch)
            return answer
        return super().append(batch)

    def really_append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        return super().append(batch)


def numbers(stream: holdfast.Stream) -> list[Any]:
    return [event.data for event in stream.read()]
