"""Stores of files, and what tests do to them behind their backs."""

from __future__ import annotations

from pathlib import Path

from holdfast.backends import StreamKey
from holdfast.backends.files.names import path_of


def file_of(root: Path, stream: StreamKey) -> Path:
    return root / path_of(stream)


def forget_index(root: Path) -> None:
    """As after a reboot: what was acknowledged is only known from the files."""
    for path in root.glob("index.db*"):
        path.unlink()
