"""Fills a disk that is really full, then makes room, in a process of its own.

`main` (arguments: PATH limit|full). `limit`: the system refuses to let any file grow beyond a size.
`full`: the file system of PATH is a small one; another file on it takes what is left.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.stored.checker import judge, read_store
from helpers.stored.notes import plan
from holdfast import OutcomeUnknown, Store
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.errors import StorageFull
from holdfast.log.log import Log

LIMIT = 300_000


@contextmanager
def limited(path: Path) -> Iterator[None]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a failing write, please, not a signal
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def filled(path: Path) -> Iterator[None]:
    ballast = path.with_name("ballast")
    with ballast.open("wb", buffering=0) as file:
        room = os.statvfs(path.parent)
        file.write(bytes(max(room.f_bavail * room.f_frsize - LIMIT, 0)))
    try:
        yield
    finally:
        ballast.unlink()


def main() -> None:
    path, way = Path(sys.argv[1]), sys.argv[2]
    store = Store(Log(SQLiteBackend(path), timeout=0, pause=lambda seconds: None), "default")
    notes: list[dict[str, object]] = []
    refused: list[str] = []

    def append(key: str, *, append_id: str | None = None) -> None:
        step = plan(key)
        notes.append({"what": "try", "key": key})
        answer = store.stream(step.stream).append(*step.events, id=append_id or step.id)
        notes.append({"what": "ack", "key": key, "first": answer.first, "last": answer.last})

    def stored() -> int:
        return sum(len(list(store.stream(f"shared {number}").read())) for number in range(3))

    for number in range(20):
        append(f"before/{number}")
    doubts: list[tuple[str, str]] = []
    with limited(path) if way == "limit" else filled(path):
        for number in range(2000):
            try:
                append(f"during/{number}")
            except StorageFull:
                refused.append(f"during/{number}")
                notes.append({"what": "refused", "key": f"during/{number}"})
                if len(refused) == 20:
                    break
            except OutcomeUnknown as error:
                doubts.append((f"during/{number}", str(error.id)))
                if len(doubts) == 20:
                    break
        assert refused or doubts, "there was room for everything"
        assert refused, (
            f"a full disk was never called that, but {len(doubts)} times an unknown outcome"
        )
        full = stored()
        assert full, "what was stored before cannot be read while the disk is full"
    for key, append_id in doubts:
        append(key, append_id=append_id)
    for number in range(20):
        append(f"after/{number}")
    assert stored() > full
    store.close()
    verdict, _ = judge(notes, read_store(f"sqlite:///{path}"), {})
    assert verdict.ok, verdict.violations
    print(
        f"{verdict.acknowledged} acknowledged, {len(refused)} refused for want of room, "
        f"{len(doubts)} in doubt"
    )
