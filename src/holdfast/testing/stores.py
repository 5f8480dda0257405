"""Stores for one test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._open import open as open_store
from .._store import Store


@contextmanager
def temporary_store(where: str = "sqlite") -> Iterator[Store]:
    """An empty store, gone at the end of the block: `sqlite`, `files` or `memory`; or a URL, of which a new tenant is used.

    What is written under a URL stays there, under its tenant.
    """
    import tempfile

    with (
        tempfile.TemporaryDirectory(prefix="holdfast-") as folder,
        store_at(where, Path(folder)) as store,
    ):
        yield store


def store_at(where: str, folder: Path) -> Store:
    """An empty store of a kind, below a folder; or a new tenant of the store at a URL."""
    if where == "memory":
        return open_store("memory://")
    if where in ("sqlite", "files"):
        # It need not outlive the machine, and syncs are most of what a test would wait for.
        return open_store(url_at(where, folder), durability="process")
    if "://" not in where:
        raise ValueError(f"a store for tests is sqlite, files, memory or a URL, not {where!r}")
    return open_store(where, tenant=f"test-{secrets.token_hex(8)}")


def url_at(where: str, folder: Path) -> str:
    """The URL of a store of files or of SQLite, below a folder."""
    from urllib.parse import quote

    return (
        f"sqlite:///{quote(str(folder / 'agents.db'))}"
        if where == "sqlite"
        else f"file://{quote(str(folder / 'agents'))}"
    )
