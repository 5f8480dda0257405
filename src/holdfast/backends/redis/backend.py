"""The Redis (or Valkey) backend: a stream is a list of records and a head, changed by a Lua script.

An append is one call of a script that first checks everything and then writes (`lua.py`); a batch
is one call too. The layout of streams is in `keys.py`, the check of the server in `server.py`, and
the check of stored data in `check.py`. If the server has lost writes that it acknowledged to this
process, the backend refuses to write until the store is opened again.
"""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
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
from ..deadline import DEFAULT_TIMEOUT
from ..fork import Forkable, register_forkable
from ..interface import (
    Append,
    AppendResult,
    BackendProblem,
    Cursor,
    Description,
    Durability,
    Head,
    HeadFields,
    Record,
    StreamKey,
    VersionMismatch,
)
from . import keys as layout
from . import lua
from .check import RedisCheck
from .errors import ConnectionLost, NoScriptError, RedisError, translate_error
from .keys import RedisKeys, RedisStreamKeys
from .pool import RedisPool, connect, send_commands
from .read import RedisReader, decode_time
from .server import ServerInfo, check_server, create_store, inspect_server
from .url import parse_redis_url
from .watch import RedisWatcher

MAX_APPEND_BYTES: Final = 500_000_000
"""Redis accepts values of up to 512 MiB, and commands of up to 1 GiB."""
CALL_BYTES: Final = 64 * 1024 * 1024
CALL_APPENDS: Final = 500
"""A larger batch becomes several calls: Redis serves no other client while a script runs."""

logger = logging.getLogger("holdfast")


class StoreRegressed(HeadRegressed):
    """The server as a whole lost acknowledged writes; `stream` is where it was noticed."""

    def __init__(self, where: str, *, acknowledged: int, actual: int) -> None:
        super().__init__(where, acknowledged=acknowledged, actual=actual)
        self.args = (
            f"{where} has {actual} of the {acknowledged} writes that it had acknowledged, or is "
            "another store: the database lost writes (a restart without its files, a failover, a "
            "restored backup); reopen the store to accept its state",
        )


class RedisBackend(Forkable):
    """Stores streams in a Redis server, which must guarantee this `durability`."""

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "disk",
        create: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._address = parse_redis_url(url, timeout)
        self._durability, self._create = durability, create
        self._keys = RedisKeys(self._address.prefix, self._address.database)
        self._epoch: bytes | None = None
        self._lost: StoreRegressed | None = None
        self._seen: dict[bytes, int] = {}
        """The number of writes to each shard, by the key of its counter."""
        self._unconfirmed: object | None = None
        self._logged_missing = False
        """Whether it was logged that confirmations are missing."""
        self._server: ServerInfo | None = None
        self._pool = RedisPool(self._address, self._connect)
        self._reader = RedisReader(self._send, self._keys, self._address.location)
        self._check = RedisCheck(self._send, self._repair, self._keys)
        self._watcher = RedisWatcher(self._address)
        with self._pool.connection():
            pass  # opens, checks and keeps a connection
        register_forkable(self)

    def _connect(self) -> Any:
        """Open a connection; raise if it is not the same server or not durable enough."""
        connection = connect(self._address)
        try:
            self._server, epoch = inspect_server(connection, self._address, self._keys)
            check_server(self._server, self._address, self._durability)
            if self._epoch is None and self._create:
                self._epoch = create_store(
                    connection, self._address, self._keys, os.urandom(16).hex().encode()
                )
            elif self._epoch is None:
                if epoch is None:
                    raise NotSetUp(f"there is no store at {self._address.location}; check the URL")
                self._epoch = epoch
            elif epoch != self._epoch:
                raise self._note_regression(self._keys.store, 1, 0)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    # -- writing -----------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self._check_usable()
        answers: dict[int, AppendResult | VersionMismatch] = {}
        calls = self._build_calls(batch)
        replies = self._write([(lua.APPEND, keys, arguments) for _, keys, arguments in calls])
        errors: list[tuple[HoldfastError, int]] = []
        for (indexes, _, _), reply in zip(calls, replies, strict=True):
            if isinstance(reply, RedisError) or reply[0] == b"lost":
                errors.append((self._translate_refusal(reply), len(indexes)))
                continue
            _, (seconds, micros), stored = reply
            now = decode_time(seconds, micros)
            for index, answer in zip(indexes, stored, strict=True):
                try:
                    answers[index] = self._decode_answer(batch[index], answer, now)
                except CorruptRecord as error:
                    errors.append((error, len(indexes)))
        if errors:
            # After an error in the middle of a script, a single append is not stored, but some of
            # several may be.
            partial = any(
                size > 1 and isinstance(error, CorruptRecord | AccessDenied)
                for error, size in errors
            )
            if partial or len(errors) < len(calls):
                raise OutcomeUnknown(
                    f"{self._address.location} stored a part of the batch; retry with the same ids"
                ) from errors[0][0]
            raise errors[0][0]
        return [answers[index] for index in range(len(batch))]

    def _build_calls(
        self, batch: Sequence[Append]
    ) -> list[tuple[list[int], list[bytes], list[Any]]]:
        """Return the batch as calls of the script: one, or in a cluster one for each shard.

        A call has the indexes of its appends, and keys and arguments of the script.
        """
        calls: list[tuple[list[int], list[bytes], list[Any]]] = []
        open_calls: dict[str, int] = {}
        sizes: list[int] = []
        for index, append in enumerate(batch):
            _refuse_unstorable(append)
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
            keys = self._keys.for_stream(append.stream)
            indexes, all_keys, arguments = calls[number]
            if not indexes:
                store, epoch = self._store_key(keys)
                all_keys.append(store)
                arguments += [epoch, self._keys.channel, int(self._waits)]
            indexes.append(index)
            all_keys += keys
            arguments += layout.encode_append(append, self._seen.get(keys.counter, 0))
            sizes[number] += size
        return calls

    def _decode_answer(
        self, append: Append, answer: list[Any], now: float
    ) -> AppendResult | VersionMismatch:
        what, *rest = answer
        if what == b"conflict":
            return VersionMismatch(layout.decode_head(append.stream, rest[0], now))
        if what == b"stored":
            self._note_count(self._keys.for_stream(append.stream).counter, rest[2])
        return AppendResult(rest[0], rest[1], what == b"known", now)

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._check_usable()
        keys = self._keys.for_stream(stream)
        store, epoch = self._store_key(keys)
        arguments = [epoch, self._seen.get(keys.counter, 0), *expected.position, stream.id.encode()]
        [reply] = self._write([(lua.DELETE, [store, *keys], arguments)])
        if isinstance(reply, RedisError) or reply[0] == b"lost":
            raise self._translate_refusal(reply)
        if reply[0] == b"deleted":
            self._note_count(keys.counter, reply[1])
        return bool(reply[0] == b"deleted")

    def _write(self, calls: list[tuple[lua.LuaScript, list[bytes], list[Any]]]) -> list[Any]:
        """Run scripts in one round trip and return their replies, refusals included."""
        wait = [self._wait_command] if self._waits else []
        try:
            with self._pool.connection() as connection:
                replies = send_commands(
                    connection, [*(script.call(keys, args) for script, keys, args in calls), *wait]
                )
                # A restarted server does not know the scripts, and has not run the unknown ones.
                unknown = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
                if unknown:
                    texts = [calls[n][0].call(*calls[n][1:], send_text=True) for n in unknown]
                    again = send_commands(connection, [*texts, *wait])
                    for n, reply in zip([*unknown, len(calls)], again, strict=False):
                        replies[n] = reply
                if any(isinstance(reply, ConnectionLost) for reply in replies[: len(calls)]):
                    raise ConnectionLost
        except ConnectionLost:
            raise OutcomeUnknown(
                f"the connection to {self._address.location} broke before the answer arrived; "
                "retry with the same id"
            ) from None
        confirmed = replies.pop() if wait else None
        written = wait and any(map(_has_written, replies))
        if written and (missing := self._check_confirmed(confirmed)):
            self._unconfirmed = object()
            raise OutcomeUnknown(f"{self._address.location} has it, but {missing}")
        return replies

    # -- reading -----------------------------------------------------------------------------------

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        self._confirm_writes()
        return self._reader.find_append(stream, id)

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        self._confirm_writes()
        return self._reader.read(stream, after=after, limit=limit, reverse=reverse)

    def head(self, stream: StreamKey) -> Head | None:
        return self._reader.head(stream)

    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        return self._reader.first_head(streams)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        return self._reader.heads(tenant, kind, status, after, limit)

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        return self._reader.due(tenant, kind, before, after, limit)

    def list_damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        return self._reader.list_damaged(tenant, kind)

    def list_scopes(self) -> Sequence[tuple[str, str]]:
        return self._check.list_scopes()

    def check(self) -> Iterator[BackendProblem]:
        return self._check.check()

    def rebuild(self) -> int:
        return self._check.rebuild()

    def replace_fields(self, expected: Head, fields: HeadFields) -> bool:
        keys = self._keys.for_stream(expected.stream)
        position = [*expected.position, expected.stream.id.encode()]
        arguments = [*position, *layout.encode_fields(fields)]
        return self._repair([keys.head, keys.shard_index], arguments, lua.REPLACE_FIELDS) > 0

    def _repair(
        self, keys: list[bytes], arguments: list[Any], script: lua.LuaScript = lua.REPAIR
    ) -> int:
        """Run a script that repairs a stream; return the number of changes."""
        self._check_usable()
        [reply] = self._write([(script, keys, arguments)])
        if isinstance(reply, RedisError):
            raise self._translate_refusal(reply)
        return int(reply[1])

    def _send(self, *commands: Sequence[Any]) -> list[Any]:
        """Return the answers to commands that read; raise if it is another store."""
        self._check_usable()
        epoch, *answers = self._pool.send(("HGET", self._keys.store, "epoch"), *commands)
        if epoch != self._epoch:
            raise self._note_regression(self._keys.store, 1, 0)
        return answers

    # -- lost writes -------------------------------------------------------------------------------

    @property
    def _in_cluster(self) -> bool:
        return self._server is not None and self._server.cluster

    def _store_key(self, keys: RedisStreamKeys) -> tuple[bytes, bytes]:
        """Return key and epoch of the store for a script to compare.

        In a cluster that key may be on another node: the epoch b"" skips the comparison.
        """
        return (keys.counter, b"") if self._in_cluster else (self._keys.store, self._epoch or b"")

    def _note_count(self, counter: bytes, count: int) -> None:
        if count > self._seen.get(counter, 0):
            self._seen[counter] = count

    def _translate_refusal(self, reply: Any) -> HoldfastError:
        if isinstance(reply, RedisError):
            return translate_error(reply, self._address.location)
        _, seen, found, counter = reply
        return self._note_regression(counter, seen, found)

    def _note_regression(self, key: bytes, seen: int, found: int) -> StoreRegressed:
        """Refuse all further calls: a retry must not build on a history that was lost."""
        where = f"{self._address.location} ({key.decode()})"
        self._lost = StoreRegressed(where, acknowledged=seen, actual=found)
        return self._lost

    def _check_usable(self) -> None:
        self._pool.check_open()
        if self._lost is not None:
            raise copy.copy(self._lost)

    # -- confirmation by replicas and disks --------------------------------------------------------

    @property
    def _waits(self) -> bool:
        return self._address.wait_aof or self._address.wait_replicas > 0

    @property
    def _wait_command(self) -> list[Any]:
        replicas, milliseconds = self._address.wait_replicas, self._address.wait_ms
        return (
            ["WAITAOF", 1, replicas, milliseconds]
            if self._address.wait_aof
            else ["WAIT", replicas, milliseconds]
        )

    def _check_confirmed(self, reply: Any) -> str | None:
        """Return which confirmations are missing, None if there are enough.

        Log once that they are missing, and once that they are back: the caller of an append gets an
        error only when its retries end.
        """
        missing, location = self._missing_confirmations(reply), self._address.location
        if (missing is not None) != self._logged_missing:
            self._logged_missing = not self._logged_missing
            if missing is not None:
                logger.warning("appends to %s are not confirmed: %s", location, missing)
            else:
                logger.warning("appends to %s are confirmed again", location)
        return missing

    def _missing_confirmations(self, reply: Any) -> str | None:
        wanted, within = self._address.wait_replicas, f"within {self._address.wait_ms} ms"
        if isinstance(reply, RedisError):
            return f"WAIT failed ({translate_error(reply, self._address.location)})"
        counts = reply if self._address.wait_aof else [1, reply]
        if not isinstance(counts, list) or not all(isinstance(count, int) for count in counts):
            return "WAIT got no valid answer"
        synced, count = counts
        if synced < 1:
            return f"the server did not sync {within}; see its log, or raise wait_ms in the URL"
        if count < wanted:
            advice = "connect replicas, raise wait_ms, or lower wait_replicas in the URL"
            return f"{count} of {wanted} replicas confirmed {within}; {advice}"
        return None

    def _confirm_writes(self) -> None:
        """Wait for the confirmation of unconfirmed appends before they are read.

        Replicas apply writes in order, so the confirmation of a later write is enough.
        """
        unconfirmed = self._unconfirmed
        if unconfirmed is not None:
            self._check_usable()
            touch = ("HINCRBY", self._keys.store, "touched", 1)
            _, reply = self._pool.send(touch, self._wait_command)
            if missing := self._check_confirmed(reply):
                raise Unavailable(
                    f"an earlier write to {self._address.location} is not confirmed: {missing}"
                )
            if self._unconfirmed is unconfirmed:
                self._unconfirmed = None

    # -- lifecycle ---------------------------------------------------------------------------------

    def watch(self, stream: StreamKey, changed: Callable[[], None]) -> Callable[[], None]:
        self._check_usable()
        return self._watcher.watch(self._keys.channel + self._keys.for_stream(stream).head, changed)

    def index_locations(self) -> Sequence[Literal["cache"]]:
        return ["cache"]

    def describe(self) -> Description:
        self._check_usable()
        with self._pool.connection() as connection:
            server, epoch = inspect_server(connection, self._address, self._keys)
        if epoch != self._epoch:
            raise self._note_regression(self._keys.store, 1, 0)
        return Description(
            engine=server.engine,
            version=server.version,
            location=self._address.location,
            durability=server.durability,
            limits={"append": MAX_APPEND_BYTES},
            sizes={"memory": server.memory},
            warnings=server.warnings,
        )

    def close(self) -> None:
        self._watcher.close()
        self._pool.close()

    def after_fork_in_child(self) -> None:
        self._pool.forget()
        self._watcher.forget()


def _refuse_unstorable(append: Append) -> None:
    size = sum(len(body) for _, body in append.records)
    if size > MAX_APPEND_BYTES:
        raise TooLarge(
            f"an append to Redis must have at most {MAX_APPEND_BYTES} bytes, got {size}; "
            "attach large values as files"
        )
    if (
        append.fields is not None
        and append.fields.due is not None
        and math.isnan(append.fields.due)
    ):
        raise ValueError("due_at and expires_at must be numbers of seconds, got NaN")


def _has_written(reply: Any) -> bool:
    """Return whether the script's reply says that it stored or deleted something."""
    if isinstance(reply, RedisError) or reply[0] != b"done":
        return not isinstance(reply, RedisError) and reply[0] in (b"deleted", b"repaired")
    return any(answer[0] != b"conflict" for answer in reply[2])
