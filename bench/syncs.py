"""Disk syncs for each append, counted where SQLite calls the operating system.

An append that is alone costs one sync, of the WAL. When the WAL restarts after a checkpoint, its
header costs one more; checkpoints themselves run in a thread of their own. Both are counted apart.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from holdfast import AsyncStream
from holdfast._store import Store
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.log.log import Log

from . import _raw
from ._measure import Bar, Lab, pair

AGENTS = 64
VFS = "holdfast-bench-counting"

EVENTS = [("message", message) for message in pair(600)]


def run(lab: Lab) -> None:
    appends = lab.choose(2_000, 400)
    tally = Tally()
    vfs = CountingVFS(tally)
    try:
        with lab.place() as place:
            raw_alone(lab, place / "raw.db", tally, appends)
            alone(lab, place / "sync.db", tally, appends)
            asyncio.run(alone_async(lab, place / "async.db", tally, appends))
            asyncio.run(together(lab, place / "together.db", tally, appends // 40))
    finally:
        vfs.unregister()


# -- counting ------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Syncs by what they were for: an append, a WAL that restarts, a checkpoint. And the bytes
    written to the WAL."""

    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, count: int = 1) -> None:
        with self.lock:
            self.counts[what] += count

    def take(self) -> Counter[str]:
        with self.lock:
            counts, self.counts = self.counts, Counter()
            return counts


class CountingVFS(apsw.VFS):
    """The operating system's files, with their syncs counted."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        super().__init__(VFS, base="")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _CountingFile(self.tally, name, flags)


class _CountingFile(apsw.VFSFile):
    def __init__(self, tally: Tally, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self.tally, self.is_wal, self.new_header = (
            tally,
            bool(flags[0] & apsw.SQLITE_OPEN_WAL),
            False,
        )

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self.new_header = self.new_header or offset == 0
        if self.is_wal:
            self.tally.add("bytes", len(data))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if threading.current_thread().name == "holdfast-checkpoint" or not self.is_wal:
            self.tally.add("checkpoint")
        else:
            self.tally.add("new wal" if self.new_header else "append")
        self.new_header = False
        super().xSync(flags)


# -- what is counted -----------------------------------------------------------------------------


def report(lab: Lab, what: str, counts: Counter[str], appends: int, bar: Bar | None = None) -> None:
    note = (
        f"{counts['bytes'] / appends:,.0f} bytes to the WAL for each of {appends:,} appends; "
        f"more syncs: {counts['new wal']} for new WALs, {counts['checkpoint']} by checkpoints"
    )
    lab.report(f"syncs per append, {what}", counts["append"] / appends, bar=bar, note=note)


def raw_alone(lab: Lab, path: Path, tally: Tally, appends: int) -> None:
    table = _raw.Single(path, VFS)
    tally.take()
    for _ in range(appends):
        table.append("s", pair(600))
    report(lab, "raw", tally.take(), appends)
    table.close()


def alone(lab: Lab, path: Path, tally: Tally, appends: int) -> None:
    with Store(Log(SQLiteBackend(path, vfs=VFS)), "default") as store:
        stream = store.stream("s")
        stream.append(*EVENTS)
        tally.take()
        for _ in range(appends):
            stream.append(*EVENTS)
        report(lab, "alone", tally.take(), appends, Bar(1, "=="))


async def alone_async(lab: Lab, path: Path, tally: Tally, appends: int) -> None:
    store = Store(Log(SQLiteBackend(path, vfs=VFS)), "default")
    stream = store.aio.stream("s")
    await stream.append(*EVENTS)
    tally.take()
    for _ in range(appends):
        await stream.append(*EVENTS)
    report(lab, "alone, async", tally.take(), appends, Bar(1, "=="))
    await asyncio.to_thread(store.close)


async def together(lab: Lab, path: Path, tally: Tally, turns: int) -> None:
    store = Store(Log(SQLiteBackend(path, vfs=VFS)), "default")
    streams = [store.aio.stream(f"s{n}") for n in range(AGENTS)]
    await asyncio.gather(*(stream.append(*EVENTS) for stream in streams))
    tally.take()

    async def agent(stream: AsyncStream) -> None:
        for _ in range(turns):
            await stream.append(*EVENTS)

    await asyncio.gather(*map(agent, streams))
    report(lab, f"{AGENTS} async agents", tally.take(), AGENTS * turns, Bar(1 / 16))
    await asyncio.to_thread(store.close)
