"""A layer between SQLite and its files that lets a test see, stop or spoil every call that changes
them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import apsw

_numbers = itertools.count()


class Call(NamedTuple):
    """One call: `kind` is open, read, write, sync, truncate or delete; `handle` tells apart the
    openings of one path."""

    kind: str
    path: str
    handle: int = 0
    offset: int = 0
    data: bytes = b""
    flags: int = 0


class Watcher(Protocol):
    """Told of every call that changes a file, and with `reads` of those that read. Does it, or not.

    `part` does a write, but only of the first bytes.
    """

    @property
    def reads(self) -> bool: ...

    def around(self, call: Call, do: Callable[[], None], part: Callable[[int], None]) -> None: ...


class _VFS(apsw.VFS):
    def __init__(self, name: str, watcher: Watcher) -> None:
        super().__init__(name, "")
        self.watcher = watcher

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        handle, opened = next(_numbers), []
        call = Call("open", path, handle, flags=flags[0])
        self.watcher.around(
            call, lambda: opened.append(_File(self.watcher, call, name, flags)), _no_part
        )
        return opened[0]

    def xDelete(self, filename: str, syncdir: bool) -> None:
        call = Call("delete", filename, flags=int(syncdir))
        self.watcher.around(call, lambda: super(_VFS, self).xDelete(filename, syncdir), _no_part)


class _File(apsw.VFSFile):
    def __init__(
        self, watcher: Watcher, call: Call, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)
        self.watcher, self.place = watcher, (call.path, call.handle)

    def xRead(self, amount: int, offset: int) -> bytes:
        read = super().xRead
        if not self.watcher.reads:
            return read(amount, offset)
        found: list[bytes] = []
        self.watcher.around(
            Call("read", *self.place, offset), lambda: found.append(read(amount, offset)), _no_part
        )
        return found[0]

    def xWrite(self, data: bytes, offset: int) -> None:
        write = super().xWrite
        call = Call("write", *self.place, offset, bytes(data))
        self.watcher.around(
            call, lambda: write(data, offset), lambda size: write(bytes(data[:size]), offset)
        )

    def xSync(self, flags: int) -> None:
        sync = super().xSync
        self.watcher.around(Call("sync", *self.place, flags=flags), lambda: sync(flags), _no_part)

    def xTruncate(self, newsize: int) -> None:
        truncate = super().xTruncate
        self.watcher.around(
            Call("truncate", *self.place, newsize), lambda: truncate(newsize), _no_part
        )


def _no_part(size: int) -> None:
    """Only writes have parts."""


@contextmanager
def watched(watcher: Watcher) -> Iterator[str]:
    """The name of a VFS whose calls go through `watcher`."""
    name = f"watched {next(_numbers)}"
    vfs = _VFS(name, watcher)
    try:
        yield name
    finally:
        vfs.unregister()
