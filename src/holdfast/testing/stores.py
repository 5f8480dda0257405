"""Temporary stores for tests."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._open import open as open_store
from .._store import Store


@contextmanager
def temporary_store(where: str = "sqlite") -> Iterator[Store]:
    """Open an empty store that is deleted at the end of the block.

    `where` is `sqlite`, `files`, `memory`, or a URL. With a URL, a new tenant is used; its data
    stays there.
    """
    import tempfile

    with (
        tempfile.TemporaryDirectory(prefix="holdfast-") as folder,
        store_at(where, Path(folder)) as store,
    ):
        yield store


def store_at(where: str, folder: Path) -> Store:
    """Open an empty store of the given kind in `folder`, or a new tenant of the store at a URL."""
    if where == "memory":
        return open_store("memory://")
    if where in ("sqlite", "files"):
        # It need not survive a power cut, and most of a test's time would be spent on syncs.
        return open_store(url_at(where, folder), durability="process")
    if "://" not in where:
        raise ValueError(f"where must be 'sqlite', 'files', 'memory' or a URL, got {where!r}")
    return open_store(where, tenant=f"test-{secrets.token_hex(8)}")


def url_at(where: str, folder: Path) -> str:
    """Return the URL of a SQLite or files store in `folder`."""
    from urllib.parse import quote

    return (
        f"sqlite:///{quote(str(folder / 'agents.db'))}"
        if where == "sqlite"
        else f"file://{quote(str(folder / 'agents'))}"
    )
