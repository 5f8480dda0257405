"""What a Redis server is and promises, as far as it tells."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import msgspec

from ...errors import Unavailable, UnsupportedServer, UnsupportedVersion
from ..interface import Durability
from .connection import (
    Address,
    ConnectionLost,
    RedisError,
    ResponseError,
    ask,
    denied_command,
    is_denied,
    translate,
)
from .keys import RedisKeys
from .lua import OPEN, PROBE

SCHEMA: Final = 1
OLDEST: Final = (6, 2)
WITH_WAITAOF: Final = (7, 2)
SYNC_MS: Final = 1_000
"""How long a server that syncs every write may take for one, when it is asked whether it does."""

_ORDER: Final[tuple[Durability, ...]] = ("memory", "process", "disk")


class ServerInfo(msgspec.Struct, frozen=True):
    """What one connection found. `fsync` is None if the server does not tell.

    `lenient`: it does not sync while it saves or rewrites (no-appendfsync-on-rewrite), whatever `fsync` says. `replicas` are
    connected (None if it does not tell), `wanted` ones must confirm an append. `making`: its append-only file was switched on,
    and is not yet there.
    """

    engine: str
    version: str
    aof: bool
    fsync: str | None
    lenient: bool
    synced: bool
    maxmemory: int
    policy: str
    evicted: int
    memory: int
    cluster: bool
    replica: bool
    replicas: int | None
    wanted: int
    making: bool = False

    @property
    def durability(self) -> Durability:
        return "memory" if self.making else self.promised

    @property
    def promised(self) -> Durability:
        """What its configuration comes to."""
        if not self.aof:
            return "memory"
        return "disk" if self.syncs or self.synced else "process"

    @property
    def syncs(self) -> bool:
        """Whether everything is synced before it is confirmed."""
        return self.fsync == "always" and not self.lenient

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split(".")[:2] if part.isdigit())

    @property
    def knows_waitaof(self) -> bool:
        return self.engine != "redis" or self.number >= WITH_WAITAOF

    @property
    def warnings(self) -> list[str]:
        found = []
        if self.making:
            found.append(
                "the append-only file is still being made: a restart would lose what is written now"
            )
        if self.fsync == "always" and self.lenient:
            found.append(
                "no-appendfsync-on-rewrite is not 'no': while the server saves or rewrites, it confirms what it has not synced"
            )
        if self.aof and self.fsync is None:
            found.append(
                "the server does not tell its appendfsync (CONFIG is forbidden): more may be durable than is said here"
            )
        if self.policy != "noeviction":
            found.append(
                f"maxmemory-policy is {self.policy}: with a maxmemory, Redis would delete data; set noeviction"
            )
        if self.evicted:
            found.append(
                f"the server has evicted {self.evicted} keys since it started; some may have been of this store"
            )
        if self.replica:
            found.append("the server is a replica: it may be behind, and cannot be written to")
        if self.replicas is not None and self.replicas < self.wanted:
            found.append(
                f"wait_replicas asks for {self.wanted}, and {self.replicas} replicas are connected: no append can be confirmed; "
                "connect replicas, or lower wait_replicas in the URL"
            )
        return found


def look(connection: Any, address: Address, keys: RedisKeys) -> tuple[ServerInfo, bytes | None]:
    """What the server is, and the epoch of the store; None if there is no store."""
    # A pattern, which means appendfsync and no-appendfsync-on-rewrite: Redis 6 takes only one.
    commands = [
        ("INFO",),
        ("CONFIG", "GET", "*appendfsync*"),
        ("HMGET", keys.store, "schema", "epoch"),
    ]
    info, config, store = _asked(connection, address, commands)
    if isinstance(info, RedisError):
        raise translate(info, address.location) from None
    facts = _facts(info)
    settings = dict(zip(config[::2], config[1::2], strict=True)) if isinstance(config, list) else {}
    fsync = settings.get(b"appendfsync")
    version = facts.get("redis_version", "0")
    server = ServerInfo(
        engine=facts.get("server_name", "redis"),
        version=facts.get("valkey_version", version),
        aof=facts.get("aof_enabled") == "1",
        fsync=None if fsync is None else fsync.decode(),
        lenient=settings.get(b"no-appendfsync-on-rewrite") != b"no",
        synced=address.wait_aof,
        maxmemory=int(facts.get("maxmemory", 0)),
        policy=facts.get("maxmemory_policy", "noeviction"),
        evicted=int(facts.get("evicted_keys", 0)),
        memory=int(facts.get("used_memory", 0)),
        cluster=facts.get("cluster_enabled") == "1",
        replica=facts.get("role") == "slave",
        replicas=int(facts["connected_slaves"]) if "connected_slaves" in facts else None,
        wanted=address.wait_replicas,
    )
    if isinstance(store, ResponseError) and "WRONGTYPE" in str(store):
        raise _not_ours(address)
    if isinstance(store, RedisError):
        raise translate(store, address.location) from None
    epoch = _epoch(store, address)
    if (
        server.aof
        and not server.replica
        and _rewrites(facts)
        and not _in_place(connection, address, keys, server, facts)
    ):
        server = msgspec.structs.replace(server, making=True)
    return server, epoch


def _facts(info: bytes) -> dict[str, str]:
    """What INFO says."""
    return dict(
        line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line
    )


def _rewrites(facts: dict[str, str]) -> bool:
    return "1" in (facts.get("aof_rewrite_in_progress"), facts.get("aof_rewrite_scheduled"))


def _in_place(
    connection: Any, address: Address, keys: RedisKeys, server: ServerInfo, facts: dict[str, str]
) -> bool:
    """Whether what is written during a rewrite goes to a file that is read after a restart.

    After `CONFIG SET appendonly yes`, and after a replica has been filled anew, there is none before the first rewrite has
    ended, and INFO looks much as in any other rewrite. So something is written, to see where it goes. A server that syncs every
    write is asked whether it has (WAITAOF); it knows the difference. An older one writes nothing to the file while it is being
    made, so one that grows is in place. Redis 7 has no word for it without WAITAOF, and writes to a file of another name then;
    there it counts whether a base was made before, which does not tell if the file was switched off and on again.
    """
    write, sync = PROBE.call([keys.probe], [], whole=True), ("WAITAOF", 1, 0, SYNC_MS)
    asks_for_sync = server.syncs and server.knows_waitaof
    refused, info, *synced = _asked(
        connection, address, [write, ("INFO", "persistence"), *([sync] if asks_for_sync else [])]
    )
    if isinstance(info, RedisError):
        raise translate(info, address.location) from None
    now = _facts(info)
    based = _size(now, "aof_base_size") > 0
    if isinstance(refused, RedisError) or refused:
        return based  # it is full, say, and nothing can be written now
    for answer in synced:
        if isinstance(answer, list):
            return bool(answer[0] >= 1)
    grown = (
        _size(now, "aof_current_size") > _size(facts, "aof_current_size")
        or _size(now, "aof_buffer_length") > 0
    )
    return not _rewrites(now) or (grown and (based or server.number < (7,)))


def _size(facts: dict[str, str], name: str) -> int:
    return int(facts.get(name, 0))


def refuse_unfit(server: ServerInfo, address: Address, durability: Durability) -> None:
    """Raise if the server cannot promise what was asked for."""
    if server.engine == "redis" and server.number < OLDEST:
        raise UnsupportedServer(
            f"{address.location} is Redis {server.version}; Holdfast needs 6.2 or newer, or Valkey"
        )
    if address.wait_aof and not (server.aof and server.knows_waitaof):
        raise UnsupportedServer(
            f"wait_aof needs Redis 7.2 or newer with appendonly yes; {address.location} is {server.version}"
        )
    if server.maxmemory and server.policy != "noeviction":
        raise UnsupportedServer(
            f"{address.location} deletes data when its memory is full (maxmemory-policy {server.policy}); "
            "set maxmemory-policy noeviction"
        )
    if _ORDER.index(server.promised) >= _ORDER.index(durability):
        if server.making and durability != "memory":
            raise Unavailable(
                f"{address.location} is still making its append-only file; try again when it is done"
            )
        return
    needed = "appendonly yes" + (" and appendfsync always" if durability == "disk" else "")
    has = "appendonly no" if not server.aof else f"appendfsync {server.fsync}"
    if server.aof and server.fsync == "always":
        needed, has = f"{needed} and no-appendfsync-on-rewrite no", "no-appendfsync-on-rewrite yes"
    elif server.aof and server.fsync is None:
        has = "an appendfsync that it does not tell, because CONFIG is forbidden"
    raise UnsupportedServer(
        f"durability={durability!r} needs {needed}; {address.location} has {has}. "
        f"Change its configuration, or open the store with durability={server.promised!r} "
        f"(in the URL: ?durability={server.promised})"
    )


def open_store(connection: Any, address: Address, keys: RedisKeys, epoch: bytes) -> bytes:
    """Make the store if it is not there; its epoch. Raises if the user may not do what will be needed."""
    commands = [
        PROBE.call([keys.probe], [], whole=True),
        OPEN.call([keys.store], [SCHEMA, epoch], whole=True),
    ]
    refused, opened = _asked(connection, address, commands)
    if isinstance(refused, RedisError):
        raise translate(refused, address.location) from None
    for command, why in zip(refused[::2], refused[1::2], strict=True):
        # Being full, or a replica, is no reason not to open: one can still read.
        if is_denied(why.decode("utf-8", "replace")):
            raise denied_command(command.decode().lower(), address.location)
    if isinstance(opened, RedisError):
        raise translate(opened, address.location) from None
    found = _epoch(opened, address)
    if found is None:
        raise _not_ours(address)
    return found


def _asked(connection: Any, address: Address, commands: list[Any]) -> list[Any]:
    try:
        answers = ask(connection, commands)
    except ConnectionLost:
        raise Unavailable(f"{address.location} closed the connection") from None
    for before, answer in pairwise(answers):
        if isinstance(answer, ConnectionLost):
            raise translate(before, address.location) from None
    return answers


def _epoch(store: list[Any], address: Address) -> bytes | None:
    schema, epoch = store
    if schema is None and epoch is None:
        return None
    if schema is None or not schema.isdigit() or len(schema) > 9 or not isinstance(epoch, bytes):
        raise _not_ours(address)
    if int(schema) > SCHEMA:
        raise UnsupportedVersion(
            f"{address.location} has schema {int(schema)}, this Holdfast knows {SCHEMA}; upgrade holdfast"
        )
    return epoch


def _not_ours(address: Address) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{address.location} is used by something else; choose another prefix"
    )
