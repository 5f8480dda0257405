"""Online backups, made by the database itself while other processes write."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Protocol, runtime_checkable

from ..backends.urls import check_path
from .copy.copy import StorePlace, open_place


@runtime_checkable
class SupportsBackup(Protocol):
    """A backend that can write a consistent snapshot to a file."""

    def backup(self, path: str, *, overwrite: bool) -> int:
        """Write the file atomically. Return its size in bytes."""
        ...


def backup(src: StorePlace, path: str | os.PathLike[str], *, overwrite: bool = False) -> int:
    """Write a snapshot of an SQLite store to a file, and return its size in bytes.

    Other processes may keep writing. The file is a store: open it, or replace a lost store with it.
    It is checked, and written atomically. Raises `AlreadyExists` if `path` exists, unless
    `overwrite=True`. For other backends use `holdfast.copy(src, "backup.db")`. From async code:
    `await asyncio.to_thread(holdfast.backup, …)`.
    """
    target = check_path(
        os.fspath(path), "a backup must go to a file; `holdfast copy` writes to any store"
    )
    with ExitStack() as stack:
        backend = open_place(src, stack, create=False)
        if not isinstance(backend, SupportsBackup):
            engine = backend.describe().engine
            raise ValueError(
                f"the source of a backup must be an SQLite store, got {engine};"
                " copy it to a file instead: copy SRC backup.db"
            )
        return backend.backup(target, overwrite=overwrite)
