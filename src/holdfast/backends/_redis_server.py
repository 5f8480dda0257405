"""What a Redis server is and promises, as far as it tells."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import msgspec

from ..errors import Unavailable, UnsupportedServer, UnsupportedVersion
from ._redis_connection import Address, Lost, RedisError, ResponseError, ask, denied_command, is_denied, translate
from ._redis_keys import Keys
from ._redis_lua import OPEN, PROBE
from ._seam import Durability

SCHEMA: Final = 1
OLDEST: Final = (6, 2)
WITH_WAITAOF: Final = (7, 2)

_ORDER: Final[tuple[Durability, ...]] = ("memory", "process", "disk")


class Server(msgspec.Struct, frozen=True):
    """What one connection found. `fsync` is None if the server does not tell."""

    engine: str
    version: str
    aof: bool
    fsync: str | None
    synced: bool
    maxmemory: int
    policy: str
    evicted: int
    memory: int
    cluster: bool
    replica: bool

    @property
    def durability(self) -> Durability:
        if not self.aof:
            return "memory"
        return "disk" if self.fsync == "always" or self.synced else "process"

    @property
    def warnings(self) -> list[str]:
        found = []
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
        return found


def look(connection: Any, address: Address, keys: Keys) -> tuple[Server, bytes | None]:
    """What the server is, and the epoch of the store; None if there is no store."""
    commands = [("INFO",), ("CONFIG", "GET", "appendfsync"), ("HMGET", keys.store, "schema", "epoch")]
    info, config, store = _asked(connection, address, commands)
    if isinstance(info, RedisError):
        raise translate(info, address.location) from None
    facts: dict[str, str] = dict(
        line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line
    )
    fsync = config[1].decode() if isinstance(config, list) and len(config) == 2 else None
    version = facts.get("redis_version", "0")
    server = Server(
        engine=facts.get("server_name", "redis"),
        version=facts.get("valkey_version", version),
        aof=facts.get("aof_enabled") == "1",
        fsync=fsync,
        synced=address.wait_aof,
        maxmemory=int(facts.get("maxmemory", 0)),
        policy=facts.get("maxmemory_policy", "noeviction"),
        evicted=int(facts.get("evicted_keys", 0)),
        memory=int(facts.get("used_memory", 0)),
        cluster=facts.get("cluster_enabled") == "1",
        replica=facts.get("role") == "slave",
    )
    if isinstance(store, ResponseError) and "WRONGTYPE" in str(store):
        raise UnsupportedVersion(f"{address.location} is used by something else; choose another prefix")
    if isinstance(store, RedisError):
        raise translate(store, address.location) from None
    return server, _epoch(store, address)


def refuse_unfit(server: Server, address: Address, durability: Durability) -> None:
    """Raise if the server cannot promise what was asked for."""
    number = tuple(int(part) for part in server.version.split(".")[:2] if part.isdigit())
    old = server.engine == "redis" and number < OLDEST
    if old:
        raise UnsupportedServer(f"{address.location} is Redis {server.version}; Holdfast needs 6.2 or newer, or Valkey")
    if address.wait_aof and not (server.aof and (server.engine != "redis" or number >= WITH_WAITAOF)):
        raise UnsupportedServer(
            f"wait_aof needs Redis 7.2 or newer with appendonly yes; {address.location} is {server.version}"
        )
    if server.maxmemory and server.policy != "noeviction":
        raise UnsupportedServer(
            f"{address.location} deletes data when its memory is full (maxmemory-policy {server.policy}); "
            "set maxmemory-policy noeviction"
        )
    if _ORDER.index(server.durability) >= _ORDER.index(durability):
        return
    needed = "appendonly yes" + (" and appendfsync always" if durability == "disk" else "")
    has = "appendonly no" if not server.aof else f"appendfsync {server.fsync}"
    if server.aof and server.fsync is None:
        has = "an appendfsync that it does not tell, because CONFIG is forbidden"
    raise UnsupportedServer(
        f"durability={durability!r} needs {needed}; {address.location} has {has}. "
        f"Change its configuration, or open the store with durability={server.durability!r}"
    )


def open_store(connection: Any, address: Address, keys: Keys, epoch: bytes) -> bytes:
    """Make the store if it is not there; its epoch. Raises if the user may not do what will be needed."""
    commands = [PROBE.call([keys.probe], [], whole=True), OPEN.call([keys.store], [SCHEMA, epoch], whole=True)]
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
    assert found is not None
    return found


def _asked(connection: Any, address: Address, commands: list[Any]) -> list[Any]:
    try:
        answers = ask(connection, commands)
    except Lost:
        raise Unavailable(f"{address.location} closed the connection") from None
    for before, answer in pairwise(answers):
        if isinstance(answer, Lost):
            raise translate(before, address.location) from None
    return answers


def _epoch(store: list[Any], address: Address) -> bytes | None:
    schema, epoch = store
    if schema is None and epoch is None:
        return None
    if schema is None or not schema.isdigit() or not isinstance(epoch, bytes):
        raise UnsupportedVersion(f"{address.location} is used by something else; choose another prefix")
    if int(schema) > SCHEMA:
        raise UnsupportedVersion(
            f"{address.location} has schema {int(schema)}, this Holdfast knows {SCHEMA}; upgrade holdfast"
        )
    return epoch
