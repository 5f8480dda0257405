"""The root folder of a files store: creates it, marks it and recognizes it."""

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
    """Open the root folder; create it if it does not exist.

    Raise `UnsupportedVersion` if the folder contains something else.
    """
    made = _create_folders(root)
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        others = set(disk.list(top, "")) - {LOCK_FILE, _TEMPORARY}
        # List first: if another process is creating the store, the marker exists by now.
        if others and not is_marked(top, disk):
            raise UnsupportedVersion(
                f"{root} contains other files and is not a Holdfast store; choose an empty folder"
            )
        for folder in made:
            _sync(os.path.dirname(folder))
    except BaseException:
        os.close(top)
        raise
    return top


def is_marked(top: int, disk: Disk) -> bool:
    """Return whether the root has a marker; raise `UnsupportedVersion` if it is unreadable."""
    try:
        file = disk.open(top, MARKER)
    except FileNotFoundError:
        return False
    try:
        marker = msgspec.json.decode(disk.read(file, 4096, 0), type=_Marker)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise UnsupportedVersion(
            f"{MARKER} was not written by Holdfast: this is not a Holdfast store"
        ) from None
    finally:
        os.close(file)
    if marker.format != "holdfast-files" or not 1 <= marker.version <= FORMAT:
        raise UnsupportedVersion(
            f"the store has format {marker.version}, this Holdfast reads up to {FORMAT}; upgrade it"
        )
    return True


def write_marker(root: str, top: int, disk: Disk) -> None:
    """Mark an empty folder as a store. The caller holds the lock."""
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
    """Open the lock file; create it if it does not exist.

    Read access is enough to lock it, even on a read-only file system.
    """
    while True:
        with suppress(FileNotFoundError):
            return disk.open(top, LOCK_FILE)
        with suppress(FileExistsError):
            return disk.open(top, LOCK_FILE, create=True)


def _create_folders(root: str) -> list[str]:
    """Create the root and its missing parents; return the new folders."""
    missing, folder = [], root
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    return missing


def _sync(path: str) -> None:
    # A parent that is not readable was not created by Holdfast.
    with suppress(PermissionError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
