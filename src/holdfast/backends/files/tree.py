"""The files and folders of the streams below a root: opening, making, syncing and walking them."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...errors import ReadOnly
from ..interface import StreamKey
from .disk import Disk, translated, write_all
from .index import FileIndexRow
from .names import STREAMS, TEMPORARY, TORN, folder_of, path_of, torn_name
from .scan import FileSpan, last_frame
from .state import mark_of, state_at

log = logging.getLogger("holdfast")


class Tree:
    """All below `top`, the open root. `durable` is False if nothing is to be synced."""

    def __init__(self, root: str, top: int, disk: Disk, *, durable: bool) -> None:
        self.root, self.top, self.disk, self.durable = root, top, disk, durable
        self.forget()

    def forget(self) -> None:
        """Forget which folders are known to be on the disk."""
        self._synced: set[str] = set()

    @contextmanager
    def opened(self, stream: StreamKey, *, write: bool = False) -> Iterator[int | None]:
        """The file of a stream, None if there is none. If it may not be written, it is open for reading."""
        file = self._open(stream, write=write)
        try:
            yield file
        finally:
            if file is not None:
                os.close(file)

    def _open(self, stream: StreamKey, *, write: bool) -> int | None:
        try:
            return self.disk.open(self.top, path_of(stream), write=write)
        except FileNotFoundError:
            return None
        except OSError as error:
            if write and isinstance(translated(error, ""), ReadOnly):
                return self._open(stream, write=False)
            raise

    def create(self, stream: StreamKey) -> int:
        """A new file for a stream, in folders that are made as needed."""
        path = path_of(stream)
        with suppress(FileNotFoundError):
            return self.disk.open(self.top, path, create=True)
        self.forget()
        for folder in reversed(_upwards(folder_of(stream))[:-1]):
            self.disk.mkdir(self.top, folder)
        return self.disk.open(self.top, path, create=True)

    def span(self, file: int | None, end: int) -> FileSpan:
        if file is None:
            return FileSpan(lambda size, offset: b"", 0)
        return FileSpan(lambda size, offset: self.disk.read(file, size, offset), end)

    def place(self, stream: StreamKey) -> str:
        return os.path.join(self.root, path_of(stream))

    def sync(self, file: int) -> None:
        if self.durable:
            self.disk.fsync(file)

    def sync_names(self, folder: str) -> None:
        """Make the names in a folder durable, and those of the folders above it if we have not done so before.

        That a folder exists does not say that it is on the disk: whoever made it may have been killed.
        """
        if not self.durable:
            return
        self.disk.fsync_dir(self.top, folder)
        for path in _upwards(folder)[:-1]:
            if path not in self._synced:
                self.disk.fsync_dir(self.top, path.rpartition("/")[0])
                self._synced.add(path)

    def put_aside(self, stream: StreamKey, data: bytes, offset: int) -> str:
        """Keep bytes that are about to be cut off a stream's file; returns where."""
        self.disk.mkdir(self.top, TORN)
        number = 1
        while True:
            path = f"{TORN}/{torn_name(stream)}{offset}-{number}"
            with suppress(FileExistsError):
                file = self.disk.open(self.top, path, create=True)
                break
            number += 1
        try:
            write_all(self.disk, file, data, 0)
            self.sync(file)
        finally:
            os.close(file)
        self.sync_names(TORN)
        return path

    def drop_aside(self, stream: StreamKey) -> None:
        """Delete what was put aside: a deleted stream leaves nothing behind."""
        for name in self.disk.list(self.top, TORN):
            if name.startswith(torn_name(stream)):
                self.disk.unlink(self.top, f"{TORN}/{name}")

    def scan(self, locked: bool) -> Iterator[FileIndexRow]:
        """A row for each stream there is a file of. Under the lock, what rewrites left unfinished is removed."""
        for folder in self._folders(STREAMS, 3):
            for name in self._names(folder):
                path = f"{folder}/{name}"
                if name.endswith(TEMPORARY):
                    if locked:
                        self.disk.unlink(self.top, path)
                    continue
                row = self._scan_file(path)
                if row is not None:
                    yield row

    def _names(self, path: str) -> list[str]:
        try:
            return self.disk.list(self.top, path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            log.warning("%s is not a folder; it is not listed", path)
            return []

    def _folders(self, path: str, depth: int) -> Iterator[str]:
        for name in self._names(path):
            if depth == 1:
                yield f"{path}/{name}"
            else:
                yield from self._folders(f"{path}/{name}", depth - 1)

    def _scan_file(self, path: str) -> FileIndexRow | None:
        try:
            file = self.disk.open(self.top, path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            log.warning("%s is a link or a folder; it is not listed", path)
            return None
        try:
            mark = mark_of(file)
            place = last_frame(self.span(file, mark.size))
        finally:
            os.close(file)
        if place is None or path_of(place.frame.stream) != path:
            if mark.size:  # an empty file is all that a failed first append leaves
                log.warning(
                    "%s holds no valid frame of the stream it is named for; it is not listed", path
                )
            return None
        state = state_at(place, mark)
        return state.row(place.frame.stream, dirty=state.torn, synced=False)._replace(ids=0)


def _upwards(folder: str) -> list[str]:
    """The folder, the one above it, and so on to the root, which is ""."""
    paths = [folder]
    while folder:
        folder = folder.rpartition("/")[0]
        paths.append(folder)
    return paths
