"""The same work by hand: what a careful program would write on SQLite if it had no library.

One table of JSON messages, an index on the session, WAL, a sync for each commit. `Single` commits
for each caller, the two groups commit for everyone who waits, in the shape of Holdfast's own
committer and nothing besides: no versions, no checks, no chain, no ids.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Sequence
from pathlib import Path

import apsw

from ._measure import Message

Row = tuple[str, str]

INSERT = "INSERT INTO messages (session, body) VALUES (?, ?)"
SELECT = "SELECT body FROM messages WHERE session = ? ORDER BY id"


def connect(path: Path, vfs: str | None = None) -> apsw.Connection:
    connection = apsw.Connection(str(path), vfs=vfs)
    connection.set_busy_timeout(30_000)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL").fetchall()
    return connection


def create(path: Path, vfs: str | None = None) -> apsw.Connection:
    connection = connect(path, vfs)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, session TEXT, body TEXT)"
    )
    connection.execute("CREATE INDEX IF NOT EXISTS messages_by_session ON messages (session)")
    return connection


def encode(session: str, messages: Sequence[Message]) -> list[Row]:
    return [(session, json.dumps(message)) for message in messages]


def insert(connection: apsw.Connection, rows: Sequence[Row]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, rows)
    connection.execute("COMMIT")


class Single:
    """One connection behind a lock, a commit for each append."""

    def __init__(self, path: Path, vfs: str | None = None) -> None:
        self.connection = create(path, vfs)
        self._lock = threading.Lock()
        self._async_lock = asyncio.Lock()

    def append(self, session: str, messages: Sequence[Message]) -> None:
        rows = encode(session, messages)
        with self._lock:
            insert(self.connection, rows)

    async def append_async(self, session: str, messages: Sequence[Message]) -> None:
        rows = encode(session, messages)
        async with self._async_lock:
            await asyncio.to_thread(insert, self.connection, rows)

    def close(self) -> None:
        self.connection.close()


class AsyncGroup:
    """What gathers in one turn of the loop, or while a commit is under way, is one commit in a
    thread."""

    def __init__(self, path: Path) -> None:
        self._connection = create(path)
        self._loop = asyncio.get_running_loop()
        self._pending: list[tuple[list[Row], asyncio.Future[None]]] = []
        self._busy = False
        self._batches: queue.SimpleQueue[list[tuple[list[Row], asyncio.Future[None]]]] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def insert(self, session: str, messages: Sequence[Message]) -> None:
        """Without the group, while no other thread appends."""
        insert(self._connection, encode(session, messages))

    async def append(self, session: str, messages: Sequence[Message]) -> None:
        rows = encode(session, messages)
        future = self._loop.create_future()
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append((rows, future))
        await future

    def _flush(self) -> None:
        if self._pending and not self._busy:
            self._busy = True
            batch, self._pending = self._pending, []
            self._batches.put(batch)

    def _serve(self) -> None:
        while batch := self._batches.get():
            insert(self._connection, [row for rows, _ in batch for row in rows])
            self._loop.call_soon_threadsafe(self._resolve, [future for _, future in batch])

    def _resolve(self, futures: Sequence[asyncio.Future[None]]) -> None:
        self._busy = False
        for future in futures:
            future.set_result(None)
        self._flush()

    def close(self) -> None:
        self._batches.put([])
        self._thread.join()
        self._connection.close()


class _Place:
    __slots__ = ("leads", "rows", "wake")

    def __init__(self, rows: list[Row]) -> None:
        self.rows, self.leads, self.wake = rows, False, threading.Lock()
        self.wake.acquire()


class ThreadGroup:
    """A thread that finds no leader commits for everyone who waits, then lets one of the next
    lead."""

    def __init__(self, path: Path) -> None:
        self._connection = create(path)
        self._lock = threading.Lock()
        self._pending: list[_Place] = []
        self._leading = False

    def append(self, session: str, messages: Sequence[Message]) -> None:
        place = _Place(encode(session, messages))
        with self._lock:
            self._pending.append(place)
            if not self._leading:
                self._leading = place.leads = True
        if not place.leads:
            place.wake.acquire()  # until it is committed, or leads
        if place.leads:
            self._lead(place)

    def _lead(self, own: _Place) -> None:
        with self._lock:
            batch, self._pending = self._pending, []
        insert(self._connection, [row for place in batch for row in place.rows])
        for place in batch:
            if place is not own:
                place.wake.release()
        with self._lock:
            if self._pending:
                self._pending[0].leads = True
                self._pending[0].wake.release()
            else:
                self._leading = False

    def close(self) -> None:
        self._connection.close()
