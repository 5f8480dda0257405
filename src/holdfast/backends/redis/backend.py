"""Redis (or Valkey): each stream is a list of records and a head, changed by one Lua script.

An append is one call of a script that checks everything and then writes (`_redis_lua`); a batch is one call too. How
streams lie in Redis is in `_redis_keys`, what a server must promise in `_redis_server`. A server that has lost what
this process knows that it had is found out, and not written to again until the store is opened anew.
"""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from ...errors import (
    AccessDenied,
    CorruptRecord,
    HeadRegressed,
    HoldfastError,
    NotSetUp,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from ..fork import Forkable, register
from ..interface import (
    Append,
    AppendResult,
    Cursor,
    Description,
    Durability,
    Head,
    Record,
    StreamKey,
    VersionMismatch,
)
from . import keys as layout
from . import lua
from .connection import (
    ConnectionLost,
    NoScriptError,
    RedisError,
    RedisPool,
    address_of,
    ask,
    connect,
    translate,
)
from .keys import RedisKeys
from .read import RedisReader, time_of
from .server import ServerInfo, look, open_store, refuse_unfit
from .watch import RedisWatcher

APPEND_BYTES: Final = 500_000_000
"""Redis takes values of up to 512 MiB, and commands of up to 1 GiB."""
CALL_BYTES: Final = 64 * 1024 * 1024
CALL_APPENDS: Final = 500
"""A larger batch is several calls: nobody else is served while a script runs."""

logger = logging.getLogger("holdfast")


class StoreRegressed(HeadRegressed):
    """The server as a whole went back in time; `stream` says where it was noticed."""

    def __init__(self, where: str, *, acknowledged: int, actual: int) -> None:
        super().__init__(where, acknowledged=acknowledged, actual=actual)
        self.args = (
            f"{where} has {actual} of the {acknowledged} writes that it had acknowledged, or is another store: the engine lost "
            "writes (a restart without its files, a failover, a restored backup); reopen the store to accept its state",
        )


class RedisBackend(Forkable):
    """Streams in a Redis server. `durability` is what the server must promise; see `docs/explanation/redis.md`."""

    def __init__(self, url: str, *, durability: Durability = "disk", create: bool = True) -> None:
        self._address = address_of(url)
        self._durability, self._create = durability, create
        self._keys = RedisKeys(self._address.prefix, self._address.database)
        self._epoch: bytes | None = None
        self._lost: StoreRegressed | None = None
        self._seen: dict[bytes, int] = {}
        """How many writes each shard had, by the name of its counter."""
        self._unconfirmed: object | None = None
        self._short = False
        """Whether it was logged that confirmations are missing."""
        self._server: ServerInfo | None = None
        self._pool = RedisPool(self._address, self._connect)
        self._reading = RedisReader(self._asked, self._keys, self._address.location)
        self._watcher = RedisWatcher(self._address)
        with self._pool.connection():
            pass  # made, looked at, and kept
        register(self)

    def _connect(self) -> Any:
        """A connection to a server that still is what it was, and keeps what was asked for."""
        connection = connect(self._address)
        try:
            self._server, epoch = look(connection, self._address, self._keys)
            refuse_unfit(self._server, self._address, self._durability)
            if self._epoch is None and self._create:
                self._epoch = open_store(
                    connection, self._address, self._keys, os.urandom(16).hex().encode()
                )
            elif self._epoch is None:
                if epoch is None:
                    raise NotSetUp(f"there is no store at {self._address.location}; check the URL")
                self._epoch = epoch
            elif epoch != self._epoch:
                raise self._regressed(self._keys.store, 1, 0)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    # -- writing ---------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self._check()
        answers: dict[int, AppendResult | VersionMismatch] = {}
        calls = self._calls(batch)
        replies = self._write([(lua.APPEND, keys, arguments) for _, keys, arguments in calls])
        errors: list[tuple[HoldfastError, int]] = []
        for (places, _, _), reply in zip(calls, replies, strict=True):
            if isinstance(reply, RedisError) or reply[0] == b"lost":
                errors.append((self._refusal(reply), len(places)))
                continue
            _, (seconds, micros), stored = reply
            now = time_of(seconds, micros)
            for place, answer in zip(places, stored, strict=True):
                try:
                    answers[place] = self._answer(batch[place], answer, now)
                except CorruptRecord as error:
                    errors.append((error, len(places)))
        if errors:
            # An error in the middle of a script: of a single append nothing is stored then, of several some may be.
            halfway = any(
                size > 1 and isinstance(error, CorruptRecord | AccessDenied)
                for error, size in errors
            )
            if halfway or len(errors) < len(calls):
                raise OutcomeUnknown(
                    f"{self._address.location} stored a part of the batch"
                ) from errors[0][0]
            raise errors[0][0]
        return [answers[place] for place in range(len(batch))]

    def _calls(self, batch: Sequence[Append]) -> list[tuple[list[int], list[bytes], list[Any]]]:
        """The batch as calls of the script: one for all, or in a cluster one for each shard."""
        calls: list[tuple[list[int], list[bytes], list[Any]]] = []
        open_calls: dict[str, int] = {}
        sizes: list[int] = []
        for place, append in enumerate(batch):
            _refuse_what_cannot_be_stored(append)
            size = sum(len(body) for _, body in append.records)
            shard = self._keys.tag(append.stream) if self._in_cluster else ""
            number = open_calls.get(shard, -1)
            if (
                number < 0
                or sizes[number] + size > CALL_BYTES
                or len(calls[number][0]) >= CALL_APPENDS
            ):
                number = open_calls[shard] = len(calls)
                calls.append(([], [], []))
                sizes.append(0)
            keys = self._keys.of(append.stream)
            places, all_keys, arguments = calls[number]
            if not places:
                store, epoch = self._guard(keys)
                all_keys.append(store)
                arguments += [epoch, self._keys.channel, int(self._waits)]
            places.append(place)
            all_keys += keys
            arguments += layout.arguments(append, self._seen.get(keys[-1], 0))
            sizes[number] += size
        return calls

    def _answer(
        self, append: Append, answer: list[Any], now: float
    ) -> AppendResult | VersionMismatch:
        what, *rest = answer
        if what == b"conflict":
            return VersionMismatch(layout.head_of(append.stream, rest[0], now))
        if what == b"stored":
            self._note(self._keys.of(append.stream)[-1], rest[2])
        return AppendResult(rest[0], rest[1], what == b"known", now)

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._check()
        keys = self._keys.of(stream)
        store, epoch = self._guard(keys)
        arguments = [epoch, self._seen.get(keys[-1], 0), *expected.place, stream.id.encode()]
        [reply] = self._write([(lua.DELETE, [store, *keys], arguments)])
        if isinstance(reply, RedisError) or reply[0] == b"lost":
            raise self._refusal(reply)
        if reply[0] == b"deleted":
            self._note(keys[-1], reply[1])
        return bool(reply[0] == b"deleted")

    def _write(self, calls: list[tuple[lua.LuaScript, list[bytes], list[Any]]]) -> list[Any]:
        """Run scripts, in one round trip. A refusal is in its place; a lost answer is `OutcomeUnknown`."""
        wait = [self._wait] if self._waits else []
        try:
            with self._pool.connection() as connection:
                replies = ask(
                    connection, [*(script.call(keys, args) for script, keys, args in calls), *wait]
                )
                # A server that was restarted does not know the scripts. Unknown means: not run.
                unknown = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
                if unknown:
                    whole = [calls[n][0].call(*calls[n][1:], whole=True) for n in unknown]
                    for n, reply in zip(
                        [*unknown, len(calls)], ask(connection, [*whole, *wait]), strict=False
                    ):
                        replies[n] = reply
                if any(isinstance(reply, ConnectionLost) for reply in replies[: len(calls)]):
                    raise ConnectionLost
        except ConnectionLost:
            raise OutcomeUnknown(
                f"the connection to {self._address.location} broke before the answer came"
            ) from None
        confirmed = replies.pop() if wait else None
        if wait and any(map(_stores, replies)) and (lacking := self._lacking(confirmed)):
            self._unconfirmed = object()
            raise OutcomeUnknown(f"{self._address.location} has it, but {lacking}")
        return replies

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        self._confirm()
        return self._reading.read(stream, after=after, limit=limit, reverse=reverse)

    def head(self, stream: StreamKey) -> Head | None:
        return self._reading.head(stream)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        return self._reading.heads(tenant, kind, status, after, limit)

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        return self._reading.due(tenant, kind, before, after, limit)

    def damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        """The streams that lists leave out because their heads cannot be read. See `Damaged`."""
        return self._reading.damaged(tenant, kind)

    def _asked(self, *commands: Sequence[Any]) -> list[Any]:
        """The answers of the server, if it still is the one that has the data."""
        self._check()
        epoch, *answers = self._pool.ask(("HGET", self._keys.store, "epoch"), *commands)
        if epoch != self._epoch:
            raise self._regressed(self._keys.store, 1, 0)
        return answers

    # -- what the server may have lost -----------------------------------------------------------

    @property
    def _in_cluster(self) -> bool:
        return self._server is not None and self._server.cluster

    def _guard(self, keys: tuple[bytes, ...]) -> tuple[bytes, bytes]:
        """The key and epoch of the store, for a script to compare. In a cluster it may lie elsewhere: '' means: do not."""
        return (keys[-1], b"") if self._in_cluster else (self._keys.store, self._epoch or b"")

    def _note(self, counter: bytes, count: int) -> None:
        if count > self._seen.get(counter, 0):
            self._seen[counter] = count

    def _refusal(self, reply: Any) -> HoldfastError:
        if isinstance(reply, RedisError):
            return translate(reply, self._address.location)
        _, seen, found, counter = reply
        return self._regressed(counter, seen, found)

    def _regressed(self, key: bytes, seen: int, found: int) -> StoreRegressed:
        """For good: a program that simply tries again must not build on a history that was lost."""
        where = f"{self._address.location} ({key.decode()})"
        self._lost = StoreRegressed(where, acknowledged=seen, actual=found)
        return self._lost

    def _check(self) -> None:
        self._pool.check_open()
        if self._lost is not None:
            raise copy.copy(self._lost)

    # -- replicas and disks that must confirm ----------------------------------------------------

    @property
    def _waits(self) -> bool:
        return self._address.wait_aof or self._address.wait_replicas > 0

    @property
    def _wait(self) -> list[Any]:
        replicas, milliseconds = self._address.wait_replicas, self._address.wait_ms
        return (
            ["WAITAOF", 1, replicas, milliseconds]
            if self._address.wait_aof
            else ["WAIT", replicas, milliseconds]
        )

    def _lacking(self, reply: Any) -> str | None:
        """What is missing of the confirmations that were asked for; None if nothing is.

        Logged once, and once when it is over: whoever appends is told when the time to settle it is up, and not before.
        """
        lacking, location = self._missing(reply), self._address.location
        if (lacking is not None) != self._short:
            self._short = not self._short
            if lacking is not None:
                logger.warning("appends to %s are not confirmed: %s", location, lacking)
            else:
                logger.warning("appends to %s are confirmed again", location)
        return lacking

    def _missing(self, reply: Any) -> str | None:
        wanted, within = self._address.wait_replicas, f"within {self._address.wait_ms} ms"
        if isinstance(reply, RedisError):
            return f"nobody can be asked who confirmed ({translate(reply, self._address.location)})"
        counts = reply if self._address.wait_aof else [1, reply]
        if not isinstance(counts, list) or not all(isinstance(count, int) for count in counts):
            return "no answer came as to who confirmed"
        synced, count = counts
        if synced < 1:
            return f"the server did not sync {within}; see its log, or raise wait_ms in the URL"
        if count < wanted:
            advice = "connect replicas, raise wait_ms, or lower wait_replicas in the URL"
            return f"{count} of {wanted} replicas confirmed {within}; {advice}"
        return None

    def _confirm(self) -> None:
        """After an append that was not confirmed: do not show it as stored before it is. Replicas take writes in order."""
        doubt = self._unconfirmed
        if doubt is not None:
            self._check()
            _, reply = self._pool.ask(("HINCRBY", self._keys.store, "touched", 1), self._wait)
            if lacking := self._lacking(reply):
                raise Unavailable(
                    f"what was written to {self._address.location} is not confirmed: {lacking}"
                )
            if self._unconfirmed is doubt:
                self._unconfirmed = None

    # -- life ------------------------------------------------------------------------------------

    def watch(self, stream: StreamKey, changed: Callable[[], None]) -> Callable[[], None]:
        self._check()
        return self._watcher.watch(self._keys.channel + self._keys.of(stream)[0], changed)

    def index_places(self) -> Sequence[Literal["cache"]]:
        return ["cache"]

    def describe(self) -> Description:
        self._check()
        with self._pool.connection() as connection:
            server, epoch = look(connection, self._address, self._keys)
        if epoch != self._epoch:
            raise self._regressed(self._keys.store, 1, 0)
        return Description(
            engine=server.engine,
            version=server.version,
            location=self._address.location,
            durability=server.durability,
            limits={"append": APPEND_BYTES},
            sizes={"memory": server.memory},
            warnings=server.warnings,
        )

    def close(self) -> None:
        self._watcher.close()
        self._pool.close()

    def after_fork_in_child(self) -> None:
        self._pool.forget()
        self._watcher.forget()


def _refuse_what_cannot_be_stored(append: Append) -> None:
    if sum(len(body) for _, body in append.records) > APPEND_BYTES:
        raise TooLarge(
            f"an append to Redis holds at most {APPEND_BYTES} bytes; attach large things as files"
        )
    if (
        append.fields is not None
        and append.fields.due is not None
        and math.isnan(append.fields.due)
    ):
        raise ValueError("a due time is a number of seconds, not NaN")


def _stores(reply: Any) -> bool:
    """Whether a script answered that something is stored, or deleted."""
    if isinstance(reply, RedisError) or reply[0] != b"done":
        return not isinstance(reply, RedisError) and reply[0] == b"deleted"
    return any(answer[0] != b"conflict" for answer in reply[2])
