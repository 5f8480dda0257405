"""The leanest program that does the same durable work as Holdfast, by hand.

It has the same table and index, wraps each value in the same JSON envelope and chains the records
with SHA-256; for a step it also makes a fingerprint of the arguments and decodes the stored result.
There is nothing besides: no errors are translated, nothing is checked, retried or looked up. What
Holdfast costs more is what a library can still save.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import apsw
import msgspec

from . import _raw

CREATE = """CREATE TABLE records (
    stream INTEGER NOT NULL, version INTEGER NOT NULL, append_id BLOB NOT NULL,
    hash BLOB NOT NULL, body BLOB NOT NULL) STRICT"""
INDEX = "CREATE UNIQUE INDEX records_by_place ON records (stream, version)"
INSERT = "INSERT INTO records (stream, version, append_id, hash, body) VALUES (?, ?, ?, ?, ?)"

CHECKPOINT_PAGES = 1_000

Record = tuple[int, int, bytes, bytes, bytes]
Unit = tuple[int, bytes, list[bytes]]
"""What is appended at once: number of the stream, append id, bodies."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


def new_id() -> bytes:
    """A UUIDv7, not quite."""
    return (time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10)


def envelopes(values: Sequence[object], kind: bytes, version: int) -> tuple[bytes, list[bytes]]:
    """An append id, and the JSON of each value with id, type, time and count in front of it."""
    id, at = new_id(), encode(time.time())  # noqa: A001
    text = id.hex().encode()
    front = b'{"id":"%b-%b-%b-%b-%b"' % (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    return id, [
        b'%b,"type":"%b","at":%b,"fold":[%d,%d,0,0,null],"data":%b}'
        % (front, kind, at, version, version, encode(value))
        for value in values
    ]


class Chains:
    """The table, and the newest version and hash of each stream."""

    def __init__(self, path: Path) -> None:
        self.connection = _raw.connect(path)
        self.connection.execute(CREATE)
        self.connection.execute(INDEX)
        # In a thread of its own, as Holdfast does it.
        self.connection.wal_autocheckpoint(0)
        self.connection.set_wal_hook(self._on_commit)
        self._checkpoints: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._waiting = False
        self._path = path
        self._thread = threading.Thread(target=self._checkpoint, daemon=True)
        self._thread.start()
        self.heads: dict[int, tuple[int, bytes]] = {}

    def _on_commit(self, connection: apsw.Connection, database: str, pages: int) -> int:
        if pages >= CHECKPOINT_PAGES and not self._waiting:
            self._waiting = True
            self._checkpoints.put(True)
        return 0

    def _checkpoint(self) -> None:
        connection = _raw.connect(self._path)
        while self._checkpoints.get():
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._waiting = False
        connection.close()

    def commit(self, units: Sequence[Unit]) -> None:
        rows: list[Record] = []
        for stream, id, bodies in units:  # noqa: A001
            version, previous = self.heads.get(stream, (0, bytes(32)))
            for body in bodies:
                version += 1
                previous = sha256(
                    previous + version.to_bytes(8, "big") + id + sha256(body).digest()
                ).digest()
                rows.append((stream, version, id, previous, body))
            self.heads[stream] = version, previous
        _execute_all(self.connection, rows)

    def append(self, stream: int, values: Sequence[object], kind: bytes = b"m") -> None:
        version = self.heads.get(stream, (0, b""))[0]
        self.commit([(stream, *envelopes(values, kind, version))])

    def step(self, stream: int, name: str, fn: Callable[..., Any], *args: object) -> Any:
        """Run a function and store its result, as a step does."""
        fingerprint = blake2b(encode([name, args]), digest_size=16).hexdigest()
        raw = encode(fn(*args))
        self.append(stream, [msgspec.Raw(b'{"of":"%b","result":%b}' % (fingerprint.encode(), raw))])
        return decode(raw)

    def close(self) -> None:
        self._checkpoints.put(False)
        self._thread.join()
        self.connection.close()


def _execute_all(connection: apsw.Connection, rows: Sequence[Record]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, rows)
    connection.execute("COMMIT")


class AsyncGroup:
    """What gathers in one turn of the loop, or while a commit is under way, is one commit in a
    thread."""

    def __init__(self, path: Path) -> None:
        self.chains = Chains(path)
        self._loop = asyncio.get_running_loop()
        self._pending: list[tuple[Unit, asyncio.Future[None]]] = []
        self._busy = False
        self._batches: queue.SimpleQueue[list[tuple[Unit, asyncio.Future[None]]]] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    async def append(self, stream: int, values: Sequence[object]) -> None:
        version = self.chains.heads.get(stream, (0, b""))[0]
        await self._submit((stream, *envelopes(values, b"message.appended", version)))

    async def step(self, stream: int, name: str, fn: Callable[..., Any], *args: object) -> Any:
        fingerprint = blake2b(encode([name, args]), digest_size=16).hexdigest()
        raw = encode(await fn(*args))
        value = msgspec.Raw(b'{"of":"%b","result":%b}' % (fingerprint.encode(), raw))
        await self.append(stream, [value])
        return decode(raw)

    async def _submit(self, unit: Unit) -> None:
        future = self._loop.create_future()
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append((unit, future))
        await future

    def _flush(self) -> None:
        if self._pending and not self._busy:
            self._busy = True
            batch, self._pending = self._pending, []
            self._batches.put(batch)

    def _serve(self) -> None:
        while batch := self._batches.get():
            self.chains.commit([unit for unit, _ in batch])
            self._loop.call_soon_threadsafe(self._resolve, [future for _, future in batch])

    def _resolve(self, futures: Sequence[asyncio.Future[None]]) -> None:
        self._busy = False
        for future in futures:
            future.set_result(None)
        self._flush()

    def close(self) -> None:
        self._batches.put([])
        self._thread.join()
        self.chains.close()
