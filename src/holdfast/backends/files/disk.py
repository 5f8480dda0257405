"""The system calls that durability relies on, in one replaceable object.

All paths are relative to `top`, the open root folder, and are resolved part by part without
following links: a symbolic link anywhere under the root raises an error.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import HoldfastError, ReadOnly, StorageFull, Unavailable, UnsupportedVersion

try:
    import fcntl
except ImportError:  # Windows, where `holdfast.open` refuses stores on disk
    _FULL_SYNC: int | None = None
else:
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
"""The errors of a write for which this process has no permission."""
_FOLDER = os.O_RDONLY
for _flag in ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"):
    _FOLDER |= getattr(os, _flag, 0)  # Windows has none of them


class Disk:
    """POSIX calls. Tests replace it to simulate power loss, a full disk or a broken one."""

    def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file; with `create`, a new one that only its owner can read."""
        # O_NONBLOCK: opening a planted FIFO would wait forever. It has no effect on regular files.
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
            os.fchmod(file, 0o600)  # an odd umask must not lock out the owner
        return file

    def mkdir(self, top: int, path: str) -> None:
        """Create a folder for the owner only, unless it exists."""
        with _parent(top, path) as (folder, name):
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                return
            os.chmod(name, 0o700, dir_fd=folder)

    def list(self, top: int, path: str) -> list[str]:
        """Return the sorted names in a folder; none if it does not exist."""
        try:
            with _open_folder(top, path) as folder:
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
            # On macOS, fsync does not flush the cache of the drive.
            fcntl.fcntl(file, _FULL_SYNC)
        else:
            os.fsync(file)

    def fsync_dir(self, top: int, path: str) -> None:
        """Sync the names in a folder. "" is the root."""
        with _open_folder(top, path) as folder:
            os.fsync(folder)

    def rename(self, top: int, old: str, new: str) -> None:
        """Rename `old` to `new` in the same folder, and replace an existing file."""
        with _parent(top, old) as (folder, name):
            os.rename(name, new.rpartition("/")[2], src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, top: int, path: str) -> None:
        with _parent(top, path) as (folder, name):
            os.unlink(name, dir_fd=folder)


def write_all(disk: Disk, file: int, data: bytes, offset: int) -> None:
    """Write all data, usually with one system call."""
    done = disk.write(file, data, offset)
    while done < len(data):
        done += disk.write(file, memoryview(data)[done:], offset + done)


def translate_os_error(error: OSError, what: str) -> HoldfastError:
    """Return the error to raise for a system call that failed before anything was stored."""
    reason = f"{what}: {os.strerror(error.errno) if error.errno else 'failed'}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageFull(f"{reason}; nothing was written. Free some space and retry")
    if error.errno in READ_ONLY:
        return ReadOnly(f"{reason}; check permissions and mount options")
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
        return UnsupportedVersion(
            f"{reason}; a store must contain only regular files and folders, no links"
        )
    return Unavailable(f"{reason}; nothing was written")


@contextmanager
def _parent(top: int, path: str) -> Iterator[tuple[int, str]]:
    folder, _, name = path.rpartition("/")
    with _open_folder(top, folder) as opened:
        yield opened, name


@contextmanager
def _open_folder(top: int, path: str) -> Iterator[int]:
    folder = os.open(".", _FOLDER, dir_fd=top)
    try:
        for part in path.split("/") if path else ():
            # `folder` is replaced before `outer` is closed: an interrupt must not close it twice.
            outer, folder = folder, os.open(part, _FOLDER, dir_fd=folder)
            os.close(outer)
        yield folder
    finally:
        os.close(folder)
