"""The system calls that durability rests on, in one replaceable object.

All paths are relative to `top`, the open root folder, and are walked part by part without
following links: a symbolic link planted anywhere below the root is refused, not followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import HoldfastError, ReadOnly, StorageFull, Unavailable, UnsupportedVersion

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk:
    """Plain POSIX calls. Tests replace it to lose power, fill the disk or break it."""

    def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file; `create` makes a new one, readable by its owner only, and fails if there is one."""
        # O_NONBLOCK: opening a planted FIFO would wait for ever for its other end. For files it means nothing.
        flags = (
            (os.O_RDWR if write or create else os.O_RDONLY)
            | os.O_NOFOLLOW
            | os.O_CLOEXEC
            | os.O_NONBLOCK
        )
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        with _parent(top, path) as (folder, name):
            file = os.open(name, flags, 0o600, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.ELOOP, "not a regular file")
        if create:
            os.fchmod(file, 0o600)  # a strange umask must not lock the owner out
        return file

    def mkdir(self, top: int, path: str) -> None:
        """Make a folder for the owner only. One that is there already is fine."""
        with _parent(top, path) as (folder, name):
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                return
            os.chmod(name, 0o700, dir_fd=folder)

    def list(self, top: int, path: str) -> list[str]:
        """The names in a folder, sorted; none if it does not exist."""
        try:
            with _opened_folder(top, path) as folder:
                return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def read(self, file: int, size: int, offset: int) -> bytes:
        return os.pread(file, size, offset)

    def write(self, file: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(file, data, offset)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def fsync(self, file: int) -> None:
        if _FULL_SYNC is not None:
            # On macOS fsync stops at the drive's cache.
            fcntl.fcntl(file, _FULL_SYNC)
        else:
            os.fsync(file)

    def fsync_dir(self, top: int, path: str) -> None:
        """Make the names in a folder durable. "" is the root."""
        with _opened_folder(top, path) as folder:
            os.fsync(folder)

    def rename(self, top: int, old: str, new: str) -> None:
        """Replace `new` by `old`; both are in the same folder."""
        with _parent(top, old) as (folder, name):
            os.rename(name, new.rpartition("/")[2], src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, top: int, path: str) -> None:
        with _parent(top, path) as (folder, name):
            os.unlink(name, dir_fd=folder)


def write_all(disk: Disk, file: int, data: bytes, offset: int) -> None:
    """One write, and more only if the system took less than all of it."""
    done = disk.write(file, data, offset)
    while done < len(data):
        done += disk.write(file, memoryview(data)[done:], offset + done)


def translated(error: OSError, what: str) -> HoldfastError:
    """The error to raise for a system call that failed before anything could have been stored."""
    reason = f"{what}: {os.strerror(error.errno) if error.errno else 'failed'}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageFull(f"{reason}; nothing was written, make room and try again")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return ReadOnly(f"{reason}; check permissions and mount options")
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
        return UnsupportedVersion(f"{reason}; a store holds plain files and folders only, no links")
    return Unavailable(f"{reason}; nothing was written")


@contextmanager
def _parent(top: int, path: str) -> Iterator[tuple[int, str]]:
    folder, _, name = path.rpartition("/")
    with _opened_folder(top, folder) as opened:
        yield opened, name


@contextmanager
def _opened_folder(top: int, path: str) -> Iterator[int]:
    folder = os.open(".", _FOLDER, dir_fd=top)
    try:
        for part in path.split("/") if path else ():
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)
