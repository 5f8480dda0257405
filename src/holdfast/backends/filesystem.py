"""Which file system a path is on: locks and shared memory do not work on network ones."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import UnsupportedFilesystem

# flock and mmap are unreliable, or local to one client, on all of these. Fuse mounts of object
# stores also rewrite whole files behind fsync.
NETWORK = frozenset(
    {
        "9p",
        "afs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "prl_fs",
        "smb3",
        "smbfs",
        "vboxsf",
    }
)
_MOUNTS = "/proc/self/mounts"
_OCTAL = re.compile(r"\\([0-7]{3})")


def refuse_network_filesystem(path: str | os.PathLike[str], *, mounts: str = _MOUNTS) -> None:
    """Raise `UnsupportedFilesystem` if `path` (or, if it does not exist yet, its place) is on a network file system.

    Where the kernel has no mount table to read (macOS, Windows) nothing is checked.
    """
    kind = filesystem_of(path, mounts=mounts)
    if kind is not None and kind in NETWORK:
        raise UnsupportedFilesystem(os.fspath(path), kind)


def filesystem_of(path: str | os.PathLike[str], *, mounts: str = _MOUNTS) -> str | None:
    """The type of the file system that holds `path`, None if it cannot be told."""
    try:
        table = Path(mounts).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    real = os.path.realpath(path)
    best, kind = -1, None
    for line in table.splitlines():
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), parts[1])
        # `>=`: of two mounts on the same point the later one hides the earlier.
        if _is_inside(real, point) and len(point) >= best:
            best, kind = len(point), parts[2]
    return kind


def _is_inside(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(point.rstrip("/") + "/")
