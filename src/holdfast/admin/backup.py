"""Backups by the engine itself, where it can make one while others write."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Protocol, runtime_checkable

from ..backends.urls import checked_path
from .copy.copy import Place, opened


@runtime_checkable
class CanBackUp(Protocol):
    """A backend that can write all it holds at one instant to a file."""

    def backup(self, path: str, *, overwrite: bool) -> int:
        """Write the file, whole or not at all; its size in bytes."""
        ...


def backup(src: Place, path: str | os.PathLike[str], *, overwrite: bool = False) -> int:
    """Write a backup of an SQLite store to a file, as it is at one instant, while others go on writing; its size in bytes.

    The file is a store like any other: open it, or put it in the place of the lost one. It is checked, and there whole or not at
    all. `AlreadyExists` if there is something at `path`, unless `overwrite=True`. For the other engines use
    `holdfast.copy(src, "backup.db")`. From async code: `await asyncio.to_thread(holdfast.backup, …)`.
    """
    target = checked_path(
        os.fspath(path), "a backup is written to one; `holdfast copy` writes to any store"
    )
    with ExitStack() as stack:
        backend = opened(src, stack, create=False)
        if not isinstance(backend, CanBackUp):
            engine = backend.describe().engine
            raise ValueError(
                f"backup is for SQLite files, and this is {engine}; use copy, to a file: copy SRC backup.db"
            )
        return backend.backup(target, overwrite=overwrite)
