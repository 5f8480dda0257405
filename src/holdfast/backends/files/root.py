"""The root folder of a files store: made once, marked as ours, recognised ever after."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from ...errors import UnsupportedVersion
from .disk import Disk, write_all
from .lock import LOCK_FILE

MARKER = "holdfast.json"
FORMAT = 1
_TEMPORARY = f"{MARKER}.tmp"


class _Marker(msgspec.Struct):
    format: str
    version: int


def open_root(root: str, disk: Disk) -> int:
    """A handle on the root folder, which is made if it is missing. Refuses a folder that holds something else."""
    made = _make_folders(root)
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        others = set(disk.list(top, "")) - {LOCK_FILE, _TEMPORARY}
        # The names first: if another process is just making the store, the marker is there by now.
        if others and not is_marked(top, disk):
            raise UnsupportedVersion(
                f"{root} holds other files and is not a Holdfast store; choose an empty folder"
            )
        for folder in made:
            _sync(os.path.dirname(folder))
    except BaseException:
        os.close(top)
        raise
    return top


def is_marked(top: int, disk: Disk) -> bool:
    """Whether this is a store that we can read; False if it is none yet."""
    try:
        file = disk.open(top, MARKER)
    except FileNotFoundError:
        return False
    try:
        marker = msgspec.json.decode(disk.read(file, 4096, 0), type=_Marker)
    except msgspec.MsgspecError:
        raise UnsupportedVersion(
            f"{MARKER} is not what Holdfast writes: this is not a Holdfast store"
        ) from None
    finally:
        os.close(file)
    if marker.format != "holdfast-files" or marker.version > FORMAT:
        raise UnsupportedVersion(
            f"the store has format {marker.version}, this Holdfast reads up to {FORMAT}; upgrade it"
        )
    return True


def mark(root: str, top: int, disk: Disk) -> None:
    """Make an empty folder ours. The lock is held."""
    os.fchmod(top, 0o700)
    with suppress(FileNotFoundError):
        disk.unlink(top, _TEMPORARY)
    file = disk.open(top, _TEMPORARY, create=True)
    try:
        write_all(disk, file, msgspec.json.encode(_Marker("holdfast-files", FORMAT)) + b"\n", 0)
        disk.fsync(file)
    finally:
        os.close(file)
    disk.rename(top, _TEMPORARY, MARKER)
    disk.fsync_dir(top, "")
    _sync(os.path.dirname(root))


def open_lock(top: int, disk: Disk) -> int:
    """The lock file, made if it is missing. Reading is enough to lock it, also on a read-only file system."""
    while True:
        with suppress(FileNotFoundError):
            return disk.open(top, LOCK_FILE)
        with suppress(FileExistsError):
            return disk.open(top, LOCK_FILE, create=True)


def _make_folders(root: str) -> list[str]:
    """Make the root and what is missing above it; returns the new ones."""
    missing, folder = [], root
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    return missing


def _sync(path: str) -> None:
    # A parent that we may not even open for reading was not made by us.
    with suppress(PermissionError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
