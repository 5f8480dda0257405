"""Opening a store by its URL."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ._store import AsyncStore, Store
from .backends import Backend
from .backends.urls import checked_path, without, without_space
from .encryption.detect import is_encrypted, missing_key
from .errors import InvalidURL, NotSetUp
from .log.ids import checked_tenant
from .log.log import Log

if TYPE_CHECKING:
    from .encryption.cipher import Cipher
    from .keys import KeyLike
    from .memory.vectors.embedding import Embed, Embedding
    from .redact import Hook, Redactor

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
    durability: Durable | None = None,
    create: bool = True,
    index: str | os.PathLike[str] | None = None,
    embed: Embed | None = None,
    key: KeyLike | None = None,
    redact: bool | Redactor | Hook = False,
) -> Store:
    """Open a store; it is created if it does not exist.

    Args:
        url: The path of an SQLite file or `sqlite:///agents.db`; `file:///directory` for JSON Lines
            files; `memory://`, or `memory://name` to share it within the process;
            `postgresql://user@host/database`; `redis://host` or `rediss://host`;
            `dynamodb://table?region=...`; `s3://bucket/prefix?region=...`. Or a `Backend` object.
        tenant: Whose data it is. Tenants see nothing of each other.
        durability: "disk" (the default): what is acknowledged survives power loss. "process":
            faster, survives the death of the process. "memory": for a Redis server that stores
            nothing on disk. A URL may say it too: `?durability=process`.
        create: False to open only a store that exists.
        index: Where the index of memories is: "memory", or the path of an SQLite file. None: in the
            store's own file or database, else in this user's cache. It can be deleted and rebuilt.
        embed: The default embedder of memories; see `Store.memory`.
        key: 32 bytes or a key of `holdfast.keys`: encrypts everything that may hold content. A
            store is encrypted as a whole or not at all. Its memory index is then kept in memory,
            unless `index` says otherwise: the index is not encrypted.
        redact: Remove secrets and personal data before anything is stored: True for what is known
            by its shape or name, a `holdfast.redact.Redactor`, or a function of a field's name and
            a text.

    Returns:
        The store. Use it in a `with` block, or close it.

    Raises:
        InvalidURL: The URL is not one of these.
        NotSetUp: There is no store, and `create` is False; or the database is not there.
        MissingKey, WrongKey: The store is encrypted with a key that was not given.
        MissingExtra: The engine's driver is not installed.
        Unavailable: The server cannot be reached.

    Example:
        >>> with holdfast.open("agents.db") as store:
        ...     store.conversation("support-42").append({"role": "user", "content": "Hello"})
    """
    checked_tenant(tenant)
    if durability not in (None, "disk", "process", "memory"):
        raise ValueError(f"durability must be 'disk', 'process' or 'memory', got {durability!r}")
    at, embedding = None if index is None else os.fspath(index), _embedding(embed, awaited=False)
    if at in (":memory:", "memory:", "memory://"):
        at = "memory"  # as SQLite and URLs say it; a file of that name is not meant
    elif at is not None:
        checked_path(at, "index= names one of its own, or is 'memory'")
    redactor = _redactor(redact)
    if key is not None:  # what is no key is refused before anything is made
        from .keys import given

        key = given(key)
    backend = _backend(url, durability, create=create)
    try:
        cipher = _cipher(backend, key, create)
        if at is not None:
            _check_index(at)
    except BaseException:
        if not isinstance(url, Backend):
            backend.close()
        raise
    if cipher is not None and at is None:
        at = "memory"
    log = Log(backend, cipher=cipher, redactor=redactor)
    if at is not None or embedding is not None:
        _set_up_memory(log, at, embedding)
    return Store(log, tenant)


def _set_up_memory(log: Log, index_at: str | None, embedding: Embedding | None) -> None:
    from .memory.resources import MemoryResources

    log.attach(MemoryResources, lambda log: MemoryResources(log, index_at, embedding))


def _check_index(path: str) -> None:
    """Refuse a file of something else at once, the store's own among them: the index would be made in its place."""
    from .memory.search.locate import check_index

    check_index(path)


def _redactor(redact: bool | Redactor | Hook) -> Redactor | None:
    if redact is False:  # as it is in most programs, which need not import it
        return None
    from .redact import as_redactor

    return as_redactor(redact)


def _cipher(backend: Backend, key: KeyLike | None, create: bool) -> Cipher | None:
    """What seals and opens, if the store is encrypted, or is to be."""
    if key is None:
        if is_encrypted(backend):
            raise missing_key()
        return None
    from .encryption.cipher import Cipher
    from .encryption.keyring import open_keyring

    return Cipher(backend, open_keyring(backend, key, create=create))


def aopen(
    url: str | os.PathLike[str] | Backend,
    *,
    tenant: str = "default",
    durability: Durable | None = None,
    create: bool = True,
    index: str | os.PathLike[str] | None = None,
    embed: Embed | None = None,
    key: KeyLike | None = None,
    redact: bool | Redactor | Hook = False,
) -> StoreOpener:
    """Open a store for async code; await it, or use it with `async with`.

    Args:
        url, tenant, durability, create, index, key, redact: As for `holdfast.open`.
        embed: As for `holdfast.open`; it may be a coroutine function.

    Returns:
        An `AsyncStore`, once awaited or entered.

    Raises:
        What `holdfast.open` raises, when it is awaited or entered.

    Example:
        >>> async with holdfast.aopen("agents.db") as store:
        ...     await store.conversation("support-42").append({"role": "user", "content": "Hello"})
    """
    return StoreOpener(
        url, tenant, durability, create, index, _embedding(embed, awaited=True), key, redact
    )


class StoreOpener:
    """A store about to be opened: await it, or enter it."""

    def __init__(
        self,
        url: str | os.PathLike[str] | Backend,
        tenant: str,
        durability: Durable | None,
        create: bool,
        index: str | os.PathLike[str] | None,
        embedding: Embedding | None,
        key: KeyLike | None,
        redact: bool | Redactor | Hook,
    ) -> None:
        self._url, self._tenant, self._durability, self._create, self._index = (
            url,
            tenant,
            durability,
            create,
            index,
        )
        self._embedding, self._key, self._redact = embedding, key, redact
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        import asyncio

        store = await asyncio.to_thread(
            open,
            self._url,
            tenant=self._tenant,
            durability=self._durability,
            create=self._create,
            index=self._index,
            embed=cast("Any", self._embedding),
            key=self._key,
            redact=self._redact,
        )
        return AsyncStore(store._log, store.tenant)

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        if self._store is not None:
            await self._store.close()


def _embedding(embed: Embed | Embedding | None, *, awaited: bool) -> Embedding | None:
    if embed is None:
        return None
    from .memory.vectors.embedding import Embedding  # needs numpy

    return embed if isinstance(embed, Embedding) else Embedding(embed, awaited=awaited)


def _backend(
    url: str | os.PathLike[str] | Backend, durability: Durable | None = None, *, create: bool = True
) -> Backend:
    """The backend a URL names; each engine is imported only when it is used."""
    if isinstance(url, os.PathLike):
        return _sqlite(os.fspath(url), durability or "disk", create)
    if not isinstance(url, str):
        if isinstance(url, Backend):
            return url
        raise TypeError(f"url must be a URL, a path or a Backend, got {type(url).__name__}")
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", without_space(url)):
        return _sqlite(checked_path(url), durability or "disk", create)
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "memory" and rest.startswith("//") and not set("/?#") & set(rest[2:]):
        from .backends.memory import MemoryBackend

        return MemoryBackend.named(rest[2:]) if rest[2:] else MemoryBackend()
    if scheme in _SERVERS and rest.startswith("//"):
        url, chosen = _durability(f"{scheme}:{rest}", durability)
        module, name = _SERVERS[scheme]
        kind = getattr(import_module(f".backends.{module}", __package__), name)
        return cast("Backend", kind(url, durability=chosen, create=create))
    if scheme in ("sqlite", "file") and rest.startswith("///"):
        rest, chosen = _durability(rest, durability)
        if len(rest) > 3 and not set("?#") & set(rest):
            return _of_files(scheme, rest, chosen, create)
    if scheme in ("memory", "sqlite", "file") and set("?#") & set(rest):
        but = "" if scheme == "memory" else " but 'durability'"
        raise InvalidURL(
            f"a {scheme}:// URL takes no options{but}; write a '?' or '#' in a path as %3F or %23"
        )
    raise InvalidURL(
        f"a store URL is {_SCHEMES}, with just these slashes; this one begins with {scheme!r}"
    )


def _of_files(scheme: str, rest: str, durability: Durable, create: bool) -> Backend:
    """What `sqlite:///…` or `file:///…` names; `rest` begins with the slashes."""
    from urllib.parse import unquote

    if scheme == "sqlite":
        return _sqlite(unquote(rest[3:]), durability, create)
    from .backends.files import FilesBackend

    path = unquote(rest[2:])
    if not create and not _is_folder_store(path):
        raise _no_store(path)
    return FilesBackend(path, durability=_on_disk(durability))


def _sqlite(path: str, durability: Durable, create: bool) -> Backend:
    from .backends.sqlite.backend import SQLiteBackend

    if not path or path == ":memory:":
        raise InvalidURL("name a file, like 'agents.db'; for a store in memory use memory://")
    if os.path.isdir(path):
        raise InvalidURL(
            "this path is a directory; name a file in it, or use file:///directory for JSON files"
        )
    if not create and not _is_file_store(path):
        raise _no_store(path)
    return SQLiteBackend(path, durability=_on_disk(durability))


def _no_store(path: str) -> NotSetUp:
    return NotSetUp(f"there is no store at {path}; check the path")


def _durability(url: str, asked: Durable | None) -> tuple[str, Durable]:
    """The URL without its option `durability`, and what is to be promised: as the option says, or the keyword."""
    url, told = without(url, "durability")
    if told is None:
        return url, asked or "disk"
    if told not in ("disk", "process", "memory"):
        raise InvalidURL("the option 'durability' of the URL is 'disk', 'process' or 'memory'")
    if asked is not None and asked != told:
        raise InvalidURL(f"the URL says durability={told}, the keyword {asked!r}; give one of them")
    return url, cast("Durable", told)


def _on_disk(durability: Durable) -> Literal["disk", "process"]:
    if durability == "memory":
        raise ValueError("durability='memory' is for redis://; for a store in memory use memory://")
    return durability


def _is_file_store(path: str) -> bool:
    """Whether there is an SQLite file. An empty one is what somebody left who was killed while making a store."""
    return os.path.exists(path) and os.path.getsize(path) > 0


def _is_folder_store(path: str) -> bool:
    """Whether there is a folder of files that Holdfast has marked as its own."""
    return _is_file_store(os.path.join(path, "holdfast.json"))
