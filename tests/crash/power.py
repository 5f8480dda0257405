"""A disk that loses power: what of a program's writes is there afterwards, and what is not.

`Recorder` writes down every call that SQLite makes on its files. `Drive` plays the recording up to
any call and then says what the disk would hold if the power went at that instant: all that was
synced, and of the rest any part, in any order. The assumptions are those of SQLite itself: a sector
of 512 bytes is written whole or not at all, and a write does not damage bytes it does not touch.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import apsw

from .vfs import Call

SECTOR = 512

Luck = Literal["none", "all", "some writes", "some sectors", "newest", "garbage"]
LUCKS: tuple[Luck, ...] = ("none", "all", "some writes", "some sectors", "newest", "garbage")
"""What of the unsynced writes reached the disk. `newest`: the last ones did, those before them did
not. `garbage`: some sectors did, and where the file grew the others hold what happened to be there
before."""

Image = dict[str, bytes]
"""The files of a disk, by name."""


class Recorder:
    """Watches SQLite's calls, and notes among them. Syncs are recorded and not done: nothing here
    needs a real disk."""

    reads = False

    def __init__(self) -> None:
        self.trace: list[Call | dict[str, Any]] = []
        self._lock = threading.Lock()

    def around(self, call: Call, do: Callable[[], None], part: Callable[[int], None]) -> None:
        # One call at a time, so that the recording has an order.
        with self._lock:
            if call.kind != "sync":
                do()
            self.trace.append(call)

    def note(self, **facts: Any) -> None:
        with self._lock:
            self.trace.append(facts)


class _Change(NamedTuple):
    """An unsynced change of one file: bytes at an offset, or (`data` is None) its length."""

    offset: int
    data: bytes | None


class _File:
    def __init__(self) -> None:
        self.synced = b""
        self.unsynced: list[_Change] = []

    def sync(self) -> None:
        self.synced = _applied(self.synced, self.unsynced)
        self.unsynced = []


class Drive:
    """The state of the disk after a part of a recording. `sync` and `sync_names` can be switched
    off: a disk that lies."""

    def __init__(self, *, sync: bool = True, sync_names: bool = True) -> None:
        self._sync, self._sync_names = sync, sync_names
        self._files: dict[str, _File] = {}
        self._synced_names: dict[str, _File] = {}
        self._unsynced_names: list[tuple[str, _File | None]] = []
        self._will_sync_names: set[int] = set()

    def play(self, call: Call) -> None:
        name = os.path.basename(call.path)
        match call.kind:
            case "open":
                if name not in self._files:
                    self._rename(name, _File())
                if name.endswith(("-wal", "-journal")) and call.flags & apsw.SQLITE_OPEN_CREATE:
                    # SQLite on Unix syncs the folder with the first sync of such a file, inside
                    # that call.
                    self._will_sync_names.add(call.handle)
            case "write":
                self._files[name].unsynced.append(_Change(call.offset, call.data))
            case "truncate":
                self._files[name].unsynced.append(_Change(call.offset, None))
            case "sync":
                if self._sync:
                    self._files[name].sync()
                if call.handle in self._will_sync_names:
                    self._will_sync_names.discard(call.handle)
                    self._commit_names()
            case "delete":
                self._rename(name, None)
                if call.flags:
                    self._commit_names()

    def _rename(self, name: str, file: _File | None) -> None:
        self._unsynced_names.append((name, file))
        if file is None:
            self._files.pop(name, None)
        else:
            self._files[name] = file

    def _commit_names(self) -> None:
        if self._sync_names:
            self._synced_names = dict(self._files)
            self._unsynced_names = []

    def image(self, luck: Luck, chance: random.Random) -> Image:
        """The files after the power went."""
        names = dict(self._synced_names)
        for name, file in self._unsynced_names:
            if luck == "none" or (luck != "all" and chance.random() < 0.5):
                continue
            if file is None:
                names.pop(name, None)
            else:
                names[name] = file
        return {name: _survived(file, luck, chance) for name, file in names.items()}


def _survived(file: _File, luck: Luck, chance: random.Random) -> bytes:
    changes = file.unsynced
    if luck == "none" or not changes:
        return file.synced
    if luck == "all":
        return _applied(file.synced, changes)
    if luck == "newest":
        return _applied(file.synced, changes[chance.randrange(len(changes)) :])
    if luck == "some writes":
        return _applied(file.synced, [change for change in changes if chance.random() < 0.5])
    share = chance.choice([0.1, 0.5, 0.9])
    kept = [sector for change in changes for sector in _sectors(change) if chance.random() < share]
    grown = file.synced
    if luck == "garbage":
        length = len(_applied(file.synced, changes))
        grown += chance.randbytes(max(length - len(grown), 0))
    return _applied(grown, kept)


def _sectors(change: _Change) -> Sequence[_Change]:
    """A write as writes of single sectors."""
    if change.data is None:
        return [change]
    end = change.offset + len(change.data)
    edges = [change.offset, *range((change.offset // SECTOR + 1) * SECTOR, end, SECTOR), end]
    return [
        _Change(a, change.data[a - change.offset : b - change.offset]) for a, b in pairwise(edges)
    ]


def _applied(content: bytes, changes: Sequence[_Change]) -> bytes:
    result = bytearray(content)
    for offset, data in changes:
        end = offset if data is None else offset + len(data)
        if end > len(result):
            result.extend(bytes(end - len(result)))
        if data is None:
            del result[offset:]
        else:
            result[offset:end] = data
    return bytes(result)


def materialise(image: Image, folder: Path) -> None:
    """Write the files of an image into an empty folder."""
    for name, content in image.items():
        (folder / name).write_bytes(content)
