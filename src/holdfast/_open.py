"""Open a store by its URL: `holdfast.open` and `holdfast.aopen`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ._store import AsyncStore, Store
from .backends import Backend, deadline
from .backends.deadline import DEFAULT_TIMEOUT
from .backends.urls import check_path, check_whitespace, pop_option, read_bool_option
from .encryption.detect import is_encrypted, missing_key_error
from .errors import InvalidURL, NotSetUp
from .log.ids import check_tenant
from .log.log import Log
from .log.validation import check_seconds

if TYPE_CHECKING:
    from datetime import timedelta

    from .encryption.cipher import Cipher
    from .keys import KeyLike
    from .memory.vectors.embedding import Embed, Embedding
    from .redact import Hook, Redactor

Durable = Literal["disk", "process", "memory"]

MIN_TIMEOUT: Final = 0.1

_URL_FORMS: Final = (
    "a path, sqlite:///agents.db, file:///directory, memory://, postgresql://host/database,"
    " redis://host, dynamodb://table or s3://bucket/prefix"
)
_SERVER_BACKENDS: Final = {
    "postgresql": ("postgres", "PostgresBackend"),
    "postgres": ("postgres", "PostgresBackend"),
    "redis": ("redis", "RedisBackend"),
    "rediss": ("redis", "RedisBackend"),
    "dynamodb": ("dynamodb", "DynamoDBBackend"),
    "s3": ("s3", "S3Backend"),
}
"""Module and class of each backend that connects over the network. They parse URL options."""


def open(  # noqa: A001  holdfast.open is the first thing users type
    url: str | os.PathLike[str] | Backend,
    *,
    tenant: str = "default",
    durability: Durable | None = None,
    create: bool = True,
    timeout: float | timedelta | None = None,
    index: str | os.PathLike[str] | None = None,
    embed: Embed | None = None,
    key: KeyLike | None = None,
    redact: bool | Redactor | Hook = False,
    tracebacks: bool | None = None,
) -> Store:
    """Open a store. It is created if it does not exist.

    Args:
        url: The path of an SQLite file or `sqlite:///agents.db`; `file:///directory` for JSON Lines
            files; `memory://`, or `memory://name` to share it within the process;
            `postgresql://user@host/database`; `redis://host` or `rediss://host`;
            `dynamodb://table?region=...`; `s3://bucket/prefix?region=...`. Or a `Backend` object.
        tenant: The tenant whose data to use. Tenants cannot see each other's data.
        durability: "disk" (the default): acknowledged writes survive power loss. "process": faster;
            they survive the death of the process. "memory": for a Redis server without
            persistence. A URL may set it too: `?durability=process`.
        create: False to open only a store that exists.
        timeout: How long a call may take before it raises `Unavailable` or `OutcomeUnknown`, in
            seconds or as a timedelta; the default is 30 seconds. A URL may set it too:
            `?timeout=5`. A call that reads many pages may take this long for each of them.
        index: Where to keep the memory index: "memory", or the path of an SQLite file. None: in the
            store's own file or database, or else in this user's cache directory. The index can be
            deleted; it is rebuilt.
        embed: The default embedder of memories; see `Store.memory`.
        key: 32 bytes or a key of `holdfast.keys`. Encrypts everything that may contain content; a
            store is either fully encrypted or unencrypted. The memory index is not encrypted, so an
            encrypted store keeps it in memory unless `index` names a file.
        redact: Remove secrets and personal data before anything is stored. True for those that are
            recognized by their form or field name, a `holdfast.redact.Redactor`, or a function of
            a field's name and a text.
        tracebacks: Whether to store where a step or a task failed: files, lines, functions and
            source lines, without the values of variables. True by default. A URL may set it too:
            `?tracebacks=off`.

    Returns:
        The store. Use it in a `with` block, or close it.

    Raises:
        InvalidURL: The URL does not have one of these forms.
        NotSetUp: There is no store, and `create` is False; or the database does not exist.
        MissingKey, WrongKey: The store is encrypted with a key that was not given.
        MissingExtra: The backend's driver is not installed.
        Unavailable: The server is unreachable.

    Example:
        >>> with holdfast.open("agents.db") as store:
        ...     store.conversation("support-42").append({"role": "user", "content": "Hello"})
    """
    check_tenant(tenant)
    if durability not in (None, "disk", "process", "memory"):
        raise ValueError(f"durability must be 'disk', 'process' or 'memory', got {durability!r}")
    index_path = None if index is None else os.fspath(index)
    embedding = _as_embedding(embed, awaited=False)
    if index_path in (":memory:", "memory:", "memory://"):
        index_path = "memory"  # as SQLite and URLs write it; not a file of that name
    elif index_path is not None:
        check_path(index_path, "index must be 'memory' or the path of a separate file")
    redactor = None
    if redact is not False:
        from .redact import as_redactor

        redactor = as_redactor(redact)
    if key is not None:  # reject an invalid key before anything is created
        from .keys import parse_keys

        key = parse_keys(key)
    url, seconds = split_timeout(url, timeout)
    url, tracebacks = split_tracebacks(url, tracebacks)
    backend = open_backend(url, durability, create=create, timeout=seconds)
    try:
        cipher = _open_cipher(backend, key, create)
        if index_path is not None:
            from .memory.search.locate import check_index_path

            # Rejects another application's file, and the store's own.
            check_index_path(index_path)
    except BaseException:
        if not isinstance(url, Backend):
            backend.close()
        raise
    if cipher is not None and index_path is None:
        index_path = "memory"
    log = Log(backend, timeout=seconds, cipher=cipher, redactor=redactor, tracebacks=tracebacks)
    if index_path is not None or embedding is not None:
        from .memory.resources import MemoryResources

        log.attach(MemoryResources, lambda log: MemoryResources(log, index_path, embedding))
    # Import these before threads share the store: two first calls at once could fail.
    from . import conversations, tasks  # noqa: F401

    return Store(log, tenant)


def _open_cipher(backend: Backend, key: KeyLike | None, create: bool) -> Cipher | None:
    """Return the cipher for `key`, creating the keyring of a new store. None: unencrypted."""
    if key is None:
        if is_encrypted(backend):
            raise missing_key_error()
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
    timeout: float | timedelta | None = None,
    index: str | os.PathLike[str] | None = None,
    embed: Embed | None = None,
    key: KeyLike | None = None,
    redact: bool | Redactor | Hook = False,
    tracebacks: bool | None = None,
) -> StoreOpener:
    """Open a store for async code; await it, or use it with `async with`.

    Args:
        url, tenant, durability, create, timeout, index, key, redact, tracebacks: As for
            `holdfast.open`.
        embed: As for `holdfast.open`; it may be a coroutine function.

    Returns:
        An opener that gives an `AsyncStore` when awaited or entered.

    Raises:
        HoldfastError: The errors of `holdfast.open`, when it is awaited or entered.

    Example:
        >>> async with holdfast.aopen("agents.db") as store:
        ...     await store.conversation("support-42").append({"role": "user", "content": "Hello"})
    """
    return StoreOpener(
        partial(
            open,
            url,
            tenant=tenant,
            durability=durability,
            create=create,
            timeout=timeout,
            index=index,
            embed=cast("Any", _as_embedding(embed, awaited=True)),
            key=key,
            redact=redact,
            tracebacks=tracebacks,
        )
    )


class StoreOpener:
    """A store about to be opened: await it, or enter it."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        import asyncio

        store = await asyncio.to_thread(self._open_store)
        return AsyncStore(store._log, store.tenant)

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        if self._store is not None:
            await self._store.close()


def _as_embedding(embed: Embed | Embedding | None, *, awaited: bool) -> Embedding | None:
    if embed is None:
        return None
    from .memory.vectors.embedding import Embedding  # needs numpy

    return embed if isinstance(embed, Embedding) else Embedding(embed, allow_async=awaited)


def open_backend(
    url: str | os.PathLike[str] | Backend,
    durability: Durable | None = None,
    *,
    create: bool = True,
    timeout: float | None = None,
) -> Backend:
    """Open the backend that a URL names. Each backend is imported only when it is used."""
    url, timeout = split_timeout(url, timeout)
    url, _ = split_tracebacks(url, None)
    with deadline.until(deadline.start(timeout)):
        return _open_backend(url, durability, create, timeout)


def _open_backend(
    url: str | os.PathLike[str] | Backend, durability: Durable | None, create: bool, timeout: float
) -> Backend:
    if isinstance(url, os.PathLike):
        return _open_sqlite(os.fspath(url), durability or "disk", create)
    if not isinstance(url, str):
        if isinstance(url, Backend):
            return url
        raise TypeError(f"url must be a URL, a path or a Backend, got {type(url).__name__}")
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", check_whitespace(url)):
        return _open_sqlite(check_path(url), durability or "disk", create)
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "memory" and rest.startswith("//") and not set("/?#") & set(rest[2:]):
        from .backends.memory import MemoryBackend

        return MemoryBackend.get_shared(rest[2:]) if rest[2:] else MemoryBackend()
    if scheme in _SERVER_BACKENDS and rest.startswith("//"):
        url, chosen = _split_durability(f"{scheme}:{rest}", durability)
        module, name = _SERVER_BACKENDS[scheme]
        kind = getattr(import_module(f".backends.{module}", __package__), name)
        return cast("Backend", kind(url, durability=chosen, create=create, timeout=timeout))
    if scheme in ("sqlite", "file") and rest.startswith("///"):
        rest, chosen = _split_durability(rest, durability)
        if len(rest) > 3 and not set("?#") & set(rest):
            return _open_local(scheme, rest, chosen, create)
    if scheme in ("memory", "sqlite", "file") and set("?#") & set(rest):
        names = ["'timeout'", "'tracebacks'", *(["'durability'"] if scheme != "memory" else [])]
        exception = f" except {', '.join(names[:-1])} and {names[-1]}"
        raise InvalidURL(
            f"a {scheme}:// URL takes no options{exception};"
            " write a '?' or '#' in a path as %3F or %23"
        )
    raise InvalidURL(
        f"a store URL must be {_URL_FORMS}, with exactly these slashes, got the scheme {scheme!r}"
    )


def _open_local(scheme: str, rest: str, durability: Durable, create: bool) -> Backend:
    """Open the backend of `sqlite:///…` or `file:///…`. `rest` starts with the slashes."""
    from urllib.parse import unquote

    if scheme == "sqlite":
        return _open_sqlite(unquote(rest[3:]), durability, create)
    _check_platform()
    from .backends.files import FilesBackend

    path = unquote(rest[2:])
    if not create and not _is_folder_store(path):
        raise _no_store(path)
    return FilesBackend(path, durability=_check_local(durability))


def _open_sqlite(path: str, durability: Durable, create: bool) -> Backend:
    _check_platform()
    from .backends.sqlite.backend import SQLiteBackend

    if not path or path == ":memory:":
        raise InvalidURL(
            "the path must name a file, like 'agents.db'; for a store in memory use memory://"
        )
    if os.path.isdir(path):
        raise InvalidURL(
            "the path must name a file, got a directory; name a file in it, or use"
            " file:///directory for JSON files"
        )
    if not create and not _is_file_store(path):
        raise _no_store(path)
    return SQLiteBackend(path, durability=_check_local(durability))


def _check_platform() -> None:
    """Refuse stores on disk where file locks and permissions don't work as on Linux and macOS."""
    if find_spec("fcntl") is None:
        raise OSError(
            "stores on disk need Linux or macOS; on Windows, run Python in WSL 2, or use memory://"
            " for tests"
        )


def _no_store(path: str) -> NotSetUp:
    return NotSetUp(f"there is no store at {path}; check the path")


def _split_durability(url: str, keyword: Durable | None) -> tuple[str, Durable]:
    """Return the URL without its option `durability`, and the durability from it or `keyword`."""
    url, option = pop_option(url, "durability")
    if option is None:
        return url, keyword or "disk"
    if option not in ("disk", "process", "memory"):
        raise InvalidURL("the option 'durability' of the URL must be 'disk', 'process' or 'memory'")
    if keyword is not None and keyword != option:
        raise InvalidURL(
            f"the URL has durability={option}, the keyword is {keyword!r}; give only one of them"
        )
    return url, cast("Durable", option)


def split_timeout(
    url: str | os.PathLike[str] | Backend, keyword: float | timedelta | None
) -> tuple[str | os.PathLike[str] | Backend, float]:
    """Return the URL without its option `timeout`, and the timeout from it or `keyword`."""
    option = None
    if isinstance(url, str) and re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", url):
        url, option = pop_option(url, "timeout")
    if option is None:
        return url, DEFAULT_TIMEOUT if keyword is None else check_seconds(
            keyword, "timeout", MIN_TIMEOUT
        )
    if keyword is not None:
        raise InvalidURL("the timeout is set in the URL and as a keyword; give only one of them")
    try:
        return url, check_seconds(float(option), "timeout", MIN_TIMEOUT)
    except ValueError:
        raise InvalidURL(
            "the option 'timeout' of the URL must be a number of seconds, at least 0.1"
        ) from None


def split_tracebacks(
    url: str | os.PathLike[str] | Backend, keyword: bool | None
) -> tuple[str | os.PathLike[str] | Backend, bool]:
    """Return the URL without its option `tracebacks`, and whether to store tracebacks."""
    option = None
    if isinstance(url, str) and re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", url):
        url, option = pop_option(url, "tracebacks")
    if option is None:
        return url, keyword is not False
    if keyword is not None:
        raise InvalidURL("the URL has an option 'tracebacks' already; give only one of them")
    return url, read_bool_option({"tracebacks": option}, "tracebacks", True)


def _check_local(durability: Durable) -> Literal["disk", "process"]:
    if durability == "memory":
        raise ValueError("durability='memory' is for redis://; for a store in memory use memory://")
    return durability


def _is_file_store(path: str) -> bool:
    """Return whether the file exists and isn't empty. A process killed early leaves it empty."""
    return os.path.exists(path) and os.path.getsize(path) > 0


def _is_folder_store(path: str) -> bool:
    """Return whether the directory has the marker file that Holdfast writes."""
    return _is_file_store(os.path.join(path, "holdfast.json"))
