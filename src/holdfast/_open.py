"""Opening a store by its URL."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Literal

from ._ids import checked_tenant
from ._log import Log
from ._store import AsyncStore, Store
from .backends import Backend
from .errors import InvalidURL

Durable = Literal["disk", "process", "memory"]

_SCHEMES: Final = (
    "a path, sqlite:///agents.db, file:///directory, memory://, postgresql://host/database, redis://host, "
    "dynamodb://table or s3://bucket/prefix"
)
_SERVERS: Final = {
    "postgresql": ("postgres", "PostgresBackend"),
    "postgres": ("postgres", "PostgresBackend"),
    "redis": ("redis", "RedisBackend"),
    "rediss": ("redis", "RedisBackend"),
    "dynamodb": ("dynamodb", "DynamoDBBackend"),
    "s3": ("s3", "S3Backend"),
}
"""The module and the class of each engine that is reached by the network. They read the options of a URL themselves."""


def open(  # noqa: A001  holdfast.open is the first thing users type
    url: str | os.PathLike[str] | Backend,
    *,
    tenant: str = "default",
    durability: Durable = "disk",
    index: str | os.PathLike[str] | None = None,
) -> Store:
    """Open a store, creating it if it is not there.

    `url` is the path of an SQLite file, or `sqlite:///agents.db` (four slashes for an absolute path), `file:///directory`
    (JSON Lines files one can read with cat and jq), `memory://` (private, gone when closed), `memory://name`
    (shared within the process), `postgresql://user@host/database`, `redis://host` (`rediss://` with TLS),
    `dynamodb://table?region=…` or `s3://bucket/prefix?region=…`. `durability="disk"`: an acknowledged append survives
    power loss; `"process"` is faster, survives the death of the process, and may lose the newest appends when the machine
    (or the server's machine) goes down; `"memory"` takes a Redis server that keeps nothing on disk.
    `index`: where the index of memories is, which is derived and can be deleted. None: in the store's own file or database, in a file
    of this user's cache for engines that cannot search; else `"memory"`, or the path of an SQLite file of its own.
    A `Backend` object may stand in place of a URL: one of your own, or a `FaultyBackend` to test with.
    """
    checked_tenant(tenant)
    if durability not in ("disk", "process", "memory"):
        raise ValueError("durability is 'disk', 'process' or 'memory'")
    return Store(Log(_backend(url, durability), index_at=None if index is None else os.fspath(index)), tenant)


def aopen(
    url: str | os.PathLike[str] | Backend,
    *,
    tenant: str = "default",
    durability: Durable = "disk",
    index: str | os.PathLike[str] | None = None,
) -> Opening:
    """Open a store for async code: `async with holdfast.aopen(url) as store:`, or `store = await holdfast.aopen(url)`."""
    return Opening(url, tenant, durability, index)


class Opening:
    """A store about to be opened: await it, or enter it."""

    def __init__(
        self,
        url: str | os.PathLike[str] | Backend,
        tenant: str,
        durability: Durable,
        index: str | os.PathLike[str] | None,
    ) -> None:
        self._url, self._tenant, self._durability, self._index = url, tenant, durability, index
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        import asyncio

        store = await asyncio.to_thread(
            open, self._url, tenant=self._tenant, durability=self._durability, index=self._index
        )
        return AsyncStore(store._log, store.tenant)

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()


def _backend(url: str | os.PathLike[str] | Backend, durability: Durable) -> Backend:
    """The backend a URL names; each engine is imported only when it is used."""
    if isinstance(url, os.PathLike):
        return _sqlite(os.fspath(url), durability)
    if not isinstance(url, str):
        if isinstance(url, Backend):
            return url
        raise TypeError(f"a store is opened by a URL or a path, not by {type(url).__name__}")
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", url):
        return _sqlite(url, durability)
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme in _SERVERS and rest.startswith("//"):
        module, name = _SERVERS[scheme]
        backend: Backend = getattr(import_module(f".backends.{module}", __package__), name)(url, durability=durability)
        return backend
    from urllib.parse import unquote

    if "?" in rest or "#" in rest:
        raise InvalidURL(f"a {scheme}:// URL takes no options; use keyword arguments of open()")
    if scheme == "memory" and rest.startswith("//") and "/" not in rest[2:]:
        from .backends.memory import MemoryBackend

        return MemoryBackend.named(rest[2:]) if rest[2:] else MemoryBackend()
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > 3:
        return _sqlite(unquote(rest[3:]), durability)
    if scheme == "file" and rest.startswith("///") and len(rest) > 3:
        from .backends.files import FilesBackend

        return FilesBackend(unquote(rest[2:]), durability=_on_disk(durability))
    raise InvalidURL(f"a store URL is {_SCHEMES}, with just these slashes; this one begins with {scheme!r}")


def _sqlite(path: str, durability: Durable) -> Backend:
    from .backends.sqlite import SQLiteBackend

    if not path or path == ":memory:":
        raise ValueError("name a file, like 'agents.db'; for a store in memory use memory://")
    if os.path.isdir(path):
        raise ValueError("this path is a directory; name a file in it, or use file:///directory for JSON files")
    return SQLiteBackend(path, durability=_on_disk(durability))


def _on_disk(durability: Durable) -> Literal["disk", "process"]:
    if durability == "memory":
        raise ValueError("durability='memory' is for redis://; for a store in memory use memory://")
    return durability
