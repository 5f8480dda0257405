"""Memories for the pages: a page of a namespace, and what a memory said before it was replaced."""

from __future__ import annotations

from datetime import datetime
from time import monotonic
from typing import Final

import msgspec

from .. import Memory, MemoryItem
from ..backends.clock import to_datetime
from ..log import operations as ops
from ..memory.fold import decode_memory_event
from ..memory.memory import build_filter
from ..memory.model import Consolidated, Remembered, Superseded, build_item
from .inbox import LOOK_SECONDS

MAX_CHAIN: Final = 100
"""How many earlier texts of one memory are shown."""


class EarlierMemory(msgspec.Struct, frozen=True):
    """What a memory said before it was replaced. `by` is who replaced the text before it."""

    id: str
    text: str
    author: str
    source: str | None
    at: datetime
    by: str | None


class MemoryChain(msgspec.Struct, frozen=True):
    """A memory, and the texts that it has superseded, newest first.

    `complete` is False if the search for them was given up, because the namespace is large.
    """

    memory: MemoryItem | None
    earlier: list[EarlierMemory]
    complete: bool


def list_memories(memory: Memory, after: int, limit: int) -> tuple[list[MemoryItem], int]:
    """Return a page of memories in the order they were first said, and where to continue."""
    page = memory._read_page(after, build_filter())
    shown = page[:limit]
    return list(map(build_item, shown)), shown[-1].number if len(page) > len(shown) else 0


def trace_memory(memory: Memory, id: str) -> MemoryChain:
    """Return a memory and what it has superseded. Reads the namespace backwards."""
    wanted, after, stop = id, 0, monotonic() + LOOK_SECONDS
    found: list[EarlierMemory] = []
    while wanted and len(found) <= MAX_CHAIN:
        page = ops.run(memory._log, ops.read(memory._key, after=after, reverse=True, decoded=True))
        for stored in page:
            envelope = stored.envelope
            if envelope.id != wanted:
                continue
            payload = decode_memory_event(envelope.type, envelope.data)
            said = payload.by if isinstance(payload, Superseded | Consolidated) else payload
            if not isinstance(said, Remembered):
                continue
            at = to_datetime(envelope.at)
            found.append(
                EarlierMemory(wanted, said.text, said.author, said.source, at, envelope.by)
            )
            wanted = payload.id if isinstance(payload, Superseded) else ""
        if not page or monotonic() > stop:
            break
        after = page[-1].version
    current = memory.get(id)
    return MemoryChain(current, found[1:] if current else found, not wanted)
