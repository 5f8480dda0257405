"""Inspect a Redis server: its version, its guarantees, and whether it fits the store."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import msgspec

from ...errors import Unavailable, UnsupportedServer, UnsupportedVersion
from ..interface import Durability
from .errors import (
    ConnectionLost,
    RedisError,
    ResponseError,
    command_denied_error,
    is_denied,
    translate_error,
)
from .keys import RedisKeys
from .lua import OPEN, PROBE
from .pool import send_commands
from .url import RedisAddress

SCHEMA: Final = 1
MIN_VERSION: Final = (6, 2)
MIN_WAITAOF_VERSION: Final = (7, 2)
SYNC_MS: Final = 1_000
"""How long a sync may take when checking whether the server syncs every write."""

_WEAKEST_FIRST: Final[tuple[Durability, ...]] = ("memory", "process", "disk")


class ServerInfo(msgspec.Struct, frozen=True):
    """The state of a server.

    Attributes:
        fsync: The setting appendfsync; None if the server does not reveal it.
        skips_fsync: It does not sync while it saves or rewrites (no-appendfsync-on-rewrite),
            regardless of `fsync`.
        waits_aof: Each append waits until it is synced (wait_aof in the URL).
        replicas: The number of connected replicas; None if the server does not reveal it.
        required_replicas: The number of replicas that must confirm an append.
        aof_pending: The append-only file was turned on and does not exist yet.
    """

    engine: str
    version: str
    aof: bool
    fsync: str | None
    skips_fsync: bool
    waits_aof: bool
    maxmemory: int
    policy: str
    evicted: int
    memory: int
    cluster: bool
    replica: bool
    replicas: int | None
    required_replicas: int
    aof_pending: bool = False

    @property
    def durability(self) -> Durability:
        """The durability that the server guarantees now."""
        return "memory" if self.aof_pending else self.configured_durability

    @property
    def configured_durability(self) -> Durability:
        """The durability that the server guarantees by its configuration."""
        if not self.aof:
            return "memory"
        return "disk" if self.syncs or self.waits_aof else "process"

    @property
    def syncs(self) -> bool:
        """Whether the server syncs every write before it confirms it."""
        return self.fsync == "always" and not self.skips_fsync

    @property
    def version_number(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split(".")[:2] if part.isdigit())

    @property
    def supports_waitaof(self) -> bool:
        return self.engine != "redis" or self.version_number >= MIN_WAITAOF_VERSION

    @property
    def warnings(self) -> list[str]:
        candidates = (
            (
                self.aof_pending,
                "the append-only file is still being created: a restart would lose current writes",
            ),
            (
                self.fsync == "always" and self.skips_fsync,
                "no-appendfsync-on-rewrite is not 'no': while the server saves or rewrites, it "
                "confirms writes before it syncs them",
            ),
            (
                self.aof and self.fsync is None,
                "the server does not reveal its appendfsync (CONFIG is forbidden): more may be "
                "durable than reported here",
            ),
            (
                self.policy != "noeviction",
                f"maxmemory-policy is {self.policy}: with a maxmemory, Redis would delete data; "
                "set noeviction",
            ),
            (
                self.evicted,
                f"the server has evicted {self.evicted} keys since it started; some may be from "
                "this store",
            ),
            (self.replica, "the server is a replica: it may lag behind, and is read-only"),
            (
                self.replicas is not None and self.replicas < self.required_replicas,
                f"wait_replicas is {self.required_replicas}, but {self.replicas} replicas are "
                "connected: no append can be confirmed; connect replicas, or lower wait_replicas "
                "in the URL",
            ),
        )
        return [text for applies, text in candidates if applies]


def inspect_server(
    connection: Any, address: RedisAddress, keys: RedisKeys
) -> tuple[ServerInfo, bytes | None]:
    """Return the state of the server and the epoch of the store, None if there is no store."""
    # A pattern for appendfsync and no-appendfsync-on-rewrite: Redis 6 accepts only one argument.
    commands = [
        ("INFO",),
        ("CONFIG", "GET", "*appendfsync*"),
        ("HMGET", keys.store, "schema", "epoch"),
    ]
    info, config, store = _send(connection, address, commands)
    if isinstance(info, RedisError):
        raise translate_error(info, address.location) from None
    facts = _parse_info(info)
    settings = dict(zip(config[::2], config[1::2], strict=True)) if isinstance(config, list) else {}
    fsync = settings.get(b"appendfsync")
    version = facts.get("redis_version", "0")
    server = ServerInfo(
        engine=facts.get("server_name", "redis"),
        version=facts.get("valkey_version", version),
        aof=facts.get("aof_enabled") == "1",
        fsync=None if fsync is None else fsync.decode(),
        skips_fsync=settings.get(b"no-appendfsync-on-rewrite") != b"no",
        waits_aof=address.wait_aof,
        maxmemory=int(facts.get("maxmemory", 0)),
        policy=facts.get("maxmemory_policy", "noeviction"),
        evicted=int(facts.get("evicted_keys", 0)),
        memory=int(facts.get("used_memory", 0)),
        cluster=facts.get("cluster_enabled") == "1",
        replica=facts.get("role") == "slave",
        replicas=int(facts["connected_slaves"]) if "connected_slaves" in facts else None,
        required_replicas=address.wait_replicas,
    )
    if isinstance(store, ResponseError) and "WRONGTYPE" in str(store):
        raise _foreign_keys_error(address)
    if isinstance(store, RedisError):
        raise translate_error(store, address.location) from None
    epoch = _decode_epoch(store, address)
    if (
        server.aof
        and not server.replica
        and _is_rewriting(facts)
        and not _is_aof_in_use(connection, address, keys, server, facts)
    ):
        server = msgspec.structs.replace(server, aof_pending=True)
    return server, epoch


def _parse_info(info: bytes) -> dict[str, str]:
    """Parse the answer to INFO."""
    return dict(
        line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line
    )


def _is_rewriting(facts: dict[str, str]) -> bool:
    return "1" in (facts.get("aof_rewrite_in_progress"), facts.get("aof_rewrite_scheduled"))


def _is_aof_in_use(
    connection: Any,
    address: RedisAddress,
    keys: RedisKeys,
    server: ServerInfo,
    facts: dict[str, str],
) -> bool:
    """Return whether writes during a rewrite go to a file that a restart reads.

    After `CONFIG SET appendonly yes`, and after the resync of a replica, there is no such file
    until the first rewrite ends, and INFO looks much as in any other rewrite. So write something
    and check where it goes:

    - A server that syncs every write answers WAITAOF, which knows the difference.
    - Redis 6 writes nothing to the file until it exists, so a file that grows is in use.
    - Redis 7 without WAITAOF writes to a temporary file. There, check for an earlier base file;
      that one may be left over if the file was turned off and on again.
    """
    write, sync = PROBE.call([keys.probe], [], send_text=True), ("WAITAOF", 1, 0, SYNC_MS)
    wait_for_sync = server.syncs and server.supports_waitaof
    refused, info, *synced = _send(
        connection, address, [write, ("INFO", "persistence"), *([sync] if wait_for_sync else [])]
    )
    if isinstance(info, RedisError):
        raise translate_error(info, address.location) from None
    now = _parse_info(info)
    has_base = _size(now, "aof_base_size") > 0
    if isinstance(refused, RedisError) or refused:
        return has_base  # the server may be full, and accept no writes now
    for answer in synced:
        if isinstance(answer, list):
            return bool(answer[0] >= 1)
    grown = (
        _size(now, "aof_current_size") > _size(facts, "aof_current_size")
        or _size(now, "aof_buffer_length") > 0
    )
    return not _is_rewriting(now) or (grown and (has_base or server.version_number < (7,)))


def _size(facts: dict[str, str], name: str) -> int:
    return int(facts.get(name, 0))


def check_server(server: ServerInfo, address: RedisAddress, durability: Durability) -> None:
    """Raise if the server cannot guarantee this durability."""
    if server.engine == "redis" and server.version_number < MIN_VERSION:
        raise UnsupportedServer(
            f"{address.location} is Redis {server.version}; Holdfast needs 6.2 or newer, or Valkey"
        )
    if address.wait_aof and not (server.aof and server.supports_waitaof):
        raise UnsupportedServer(
            f"wait_aof needs Redis 7.2 or newer with appendonly yes; "
            f"{address.location} is {server.version}"
        )
    if server.maxmemory and server.policy != "noeviction":
        raise UnsupportedServer(
            f"{address.location} deletes data when its memory is full "
            f"(maxmemory-policy {server.policy}); set maxmemory-policy noeviction"
        )
    guaranteed = server.configured_durability
    if _WEAKEST_FIRST.index(guaranteed) >= _WEAKEST_FIRST.index(durability):
        if server.aof_pending and durability != "memory":
            raise Unavailable(
                f"{address.location} is still creating its append-only file; retry later"
            )
        return
    needed = "appendonly yes" + (" and appendfsync always" if durability == "disk" else "")
    has = "appendonly no" if not server.aof else f"appendfsync {server.fsync}"
    if server.aof and server.fsync == "always":
        needed, has = f"{needed} and no-appendfsync-on-rewrite no", "no-appendfsync-on-rewrite yes"
    elif server.aof and server.fsync is None:
        has = "an appendfsync that it does not reveal, because CONFIG is forbidden"
    raise UnsupportedServer(
        f"durability={durability!r} needs {needed}; {address.location} has {has}. "
        f"Change its configuration, or open the store with durability={guaranteed!r} "
        f"(in the URL: ?durability={guaranteed})"
    )


def create_store(connection: Any, address: RedisAddress, keys: RedisKeys, epoch: bytes) -> bytes:
    """Create the store if it does not exist; return its epoch.

    Raise `AccessDenied` if the user lacks a permission that the other commands need.
    """
    commands = [
        PROBE.call([keys.probe], [], send_text=True),
        OPEN.call([keys.store], [SCHEMA, epoch], send_text=True),
    ]
    refused, opened = _send(connection, address, commands)
    if isinstance(refused, RedisError):
        raise translate_error(refused, address.location) from None
    for command, why in zip(refused[::2], refused[1::2], strict=True):
        # A server that is full or a replica can still be read.
        if is_denied(why.decode("utf-8", "replace")):
            raise command_denied_error(command.decode().lower(), address.location)
    if isinstance(opened, RedisError):
        raise translate_error(opened, address.location) from None
    found = _decode_epoch(opened, address)
    if found is None:
        raise _foreign_keys_error(address)
    return found


def _send(connection: Any, address: RedisAddress, commands: list[Any]) -> list[Any]:
    try:
        answers = send_commands(connection, commands)
    except ConnectionLost:
        raise Unavailable(f"{address.location} closed the connection; retry") from None
    for before, answer in pairwise(answers):
        if isinstance(answer, ConnectionLost):
            raise translate_error(before, address.location) from None
    return answers


def _decode_epoch(store: list[Any], address: RedisAddress) -> bytes | None:
    schema, epoch = store
    if schema is None and epoch is None:
        return None
    if schema is None or not schema.isdigit() or len(schema) > 9 or not isinstance(epoch, bytes):
        raise _foreign_keys_error(address)
    if int(schema) > SCHEMA:
        raise UnsupportedVersion(
            f"{address.location} has schema version {int(schema)}, this Holdfast supports "
            f"{SCHEMA}; upgrade Holdfast"
        )
    return epoch


def _foreign_keys_error(address: RedisAddress) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{address.location} has a key of this name that is not Holdfast's; choose another prefix"
    )
