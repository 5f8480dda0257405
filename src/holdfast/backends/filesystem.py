"""Detect network file systems, on which file locks and shared memory are unreliable."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import UnsupportedFilesystem

# On all of these, flock and mmap are unreliable or local to one client. FUSE mounts of object
# stores also rewrite whole files after fsync returned.
NETWORK_FILESYSTEMS = frozenset(
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
    """Raise `UnsupportedFilesystem` if `path`, which need not exist, is on a network file system.

    Where there is no mount table to read (macOS, Windows), check nothing.
    """
    kind = detect_filesystem(path, mounts=mounts)
    if kind in NETWORK_FILESYSTEMS:
        raise UnsupportedFilesystem(os.fspath(path), kind)


def detect_filesystem(path: str | os.PathLike[str], *, mounts: str = _MOUNTS) -> str | None:
    """Return the type of the file system of `path`, None if it is unknown."""
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
        # `>=`: of two mounts on the same point, the later one hides the earlier.
        if _is_inside(real, point) and len(point) >= best:
            best, kind = len(point), parts[2]
    return kind


def _is_inside(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(point.rstrip("/") + "/")
