"""The files and folders of the streams under a root: opens, creates, syncs and scans them."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...errors import ReadOnly
from ..interface import StreamKey
from .disk import Disk, translate_os_error, write_all
from .index import FileIndexRow
from .names import STREAMS, TEMPORARY, TORN, folder_of, path_of, torn_prefix
from .scan import FileSpan, find_last_frame
from .state import read_stamp, state_after

log = logging.getLogger("holdfast")


class Tree:
    """The files under `top`, the open root. If `durable` is False, nothing is synced."""

    def __init__(self, root: str, top: int, disk: Disk, *, durable: bool) -> None:
        self.root, self.top, self.disk, self.durable = root, top, disk, durable
        self.forget()

    def forget(self) -> None:
        """Forget which folders are known to be on disk."""
        self._synced: set[str] = set()

    @contextmanager
    def open_stream(self, stream: StreamKey, *, write: bool = False) -> Iterator[int | None]:
        """Open the file of a stream, only for reading if it is read-only; None if there is none."""
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
            if write and isinstance(translate_os_error(error, ""), ReadOnly):
                return self._open(stream, write=False)
            raise

    @contextmanager
    def open_path(self, path: str) -> Iterator[int]:
        """Open a file for reading by its path."""
        file = self.disk.open(self.top, path)
        try:
            yield file
        finally:
            os.close(file)

    def create(self, stream: StreamKey) -> int:
        """Create the file of a stream, and its folders as needed."""
        path = path_of(stream)
        with suppress(FileNotFoundError):
            return self.disk.open(self.top, path, create=True)
        self.forget()
        for folder in reversed(_list_ancestors(folder_of(stream))[:-1]):
            self.disk.mkdir(self.top, folder)
        return self.disk.open(self.top, path, create=True)

    def span(self, file: int | None, end: int) -> FileSpan:
        if file is None:
            return FileSpan(lambda size, offset: b"", 0)
        return FileSpan(lambda size, offset: self.disk.read(file, size, offset), end)

    def full_path(self, stream: StreamKey) -> str:
        return os.path.join(self.root, path_of(stream))

    def sync(self, file: int) -> None:
        if self.durable:
            self.disk.fsync(file)

    def sync_names(self, folder: str) -> None:
        """Sync the names in a folder and, the first time, in the folders above it.

        An existing folder may not be on disk: the process that created it may have been killed.
        """
        if not self.durable:
            return
        self.disk.fsync_dir(self.top, folder)
        for path in _list_ancestors(folder)[:-1]:
            if path not in self._synced:
                self.disk.fsync_dir(self.top, path.rpartition("/")[0])
                self._synced.add(path)

    def save_torn(self, stream: StreamKey, data: bytes, offset: int) -> str:
        """Save bytes that are about to be truncated from a stream's file; return the path."""
        self.disk.mkdir(self.top, TORN)
        number = 1
        while True:
            path = f"{TORN}/{torn_prefix(stream)}{offset}-{number}"
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

    def delete_torn(self, stream: StreamKey) -> None:
        """Delete the side files of a stream: a deleted stream leaves nothing behind."""
        for name in self.disk.list(self.top, TORN):
            if name.startswith(torn_prefix(stream)):
                self.disk.unlink(self.top, f"{TORN}/{name}")

    def scan_rows(self, locked: bool) -> Iterator[FileIndexRow]:
        """Yield a row for each stream that has a file. If `locked`, remove unfinished rewrites."""
        for folder in self.iter_folders(STREAMS, 3):
            for name in self.list(folder):
                path = f"{folder}/{name}"
                if name.endswith(TEMPORARY):
                    if locked:
                        self.disk.unlink(self.top, path)
                    continue
                row = self._scan_file(path)
                if row is not None:
                    yield row

    def list(self, path: str) -> list[str]:
        """Return the names in a folder; none, with a warning, if it is something else."""
        try:
            return self.disk.list(self.top, path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            log.warning("%a is not a folder; it is not listed", path)
            return []

    def iter_folders(self, path: str, depth: int) -> Iterator[str]:
        """Yield the folders `depth` levels below this one."""
        for name in self.list(path):
            if depth == 1:
                yield f"{path}/{name}"
            else:
                yield from self.iter_folders(f"{path}/{name}", depth - 1)

    def _scan_file(self, path: str) -> FileIndexRow | None:
        try:
            with self.open_path(path) as file:
                stamp = read_stamp(file)
                place = find_last_frame(self.span(file, stamp.size))
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            log.warning("%a is a link or a folder; it is not listed", path)
            return None
        if place is None or path_of(place.frame.stream) != path:
            if stamp.size:  # a failed first append leaves an empty file
                log.warning(
                    "%a has no valid frame of the stream that it is named for; it is not listed",
                    path,
                )
            return None
        state = state_after(place, stamp)
        return state.to_row(place.frame.stream, dirty=state.has_torn_tail, synced=False)._replace(
            ids=0
        )


def _list_ancestors(folder: str) -> list[str]:
    """Return the folder and all folders above it, up to the root, which is ""."""
    paths = [folder]
    while folder:
        folder = folder.rpartition("/")[0]
        paths.append(folder)
    return paths
