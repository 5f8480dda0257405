"""Contents for artifacts, and a look at how they are stored."""

from __future__ import annotations

import inspect
import io
import random
from collections.abc import Callable
from typing import Any

from holdfast import Store
from holdfast.backends import Head
from holdfast.log import operations as ops
from holdfast.log.operations.blobs import CHUNK_BYTES

MIB = CHUNK_BYTES


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


LARGE = content(9 * MIB + 12_345)
"""Ten chunks, in three appends."""


async def done(answer: Any) -> Any:
    """What an artifact's method gives, awaited or not."""
    return await answer if inspect.isawaitable(answer) else answer


def blobs(store: Store) -> list[Head]:
    listed = ops.run(store._log, ops.heads("default", "blob", with_position=True))
    return [head for head in listed if isinstance(head, Head)]


def attached(store: Store, id: str = "t") -> list[Any]:
    return [
        event.data["name"] for event in store.task(id).history() if event.type == "task.attached"
    ]


class Twice(io.BytesIO):
    """A file that does something at a place of its second pass: when it is stored, not when its
    digest is taken."""

    def __init__(self, data: bytes, at: int, act: Callable[[], object]) -> None:
        super().__init__(data)
        self.at, self.act = at, act
        self.passes = 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.passes += offset == 0
        return super().seek(offset, whence)

    def read(self, size: int | None = -1, /) -> bytes:
        if self.passes == 2 and self.tell() >= self.at:
            self.passes += 1
            place = self.tell()
            self.act()
            super().seek(place)
        return super().read(size)
