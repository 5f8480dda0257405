"""Hearing of appends that others make: LISTEN and NOTIFY, as a hint.

Whoever follows a stream says so in a table, and only appends to such streams send a notification. One connection and one thread
listen for the whole backend, while somebody follows. Behind a pooler that gives each transaction another connection nothing
is ever heard; followers look now and then all the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ...errors import HoldfastError
from ..interface import StreamKey
from .pool import PostgresConnection, PostgresPool, psycopg
from .sql import StoreStatements

FOLLOW_SECONDS: Final = 60
"""How long an entry in the table of followers counts; it is renewed at half of it."""
RETRY_SECONDS: Final = 1.0

logger = logging.getLogger("holdfast")


class NotifyListener:
    """Calls those who follow. Its thread runs while there are any."""

    def __init__(self, pool: PostgresPool, sql: StoreStatements) -> None:
        self._pool, self._sql = pool, sql
        self._lock = threading.Lock()
        self._following: dict[StreamKey, list[Callable[[], None]]] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, stream: StreamKey, changed: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._following.setdefault(stream, []).append(changed)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-listen", daemon=True
                )
                self._thread.start()

        def stop() -> None:
            with self._lock:
                callbacks = self._following.get(stream, [])
                if changed in callbacks:
                    callbacks.remove(changed)
                if not callbacks:
                    self._following.pop(stream, None)

        return stop

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._following.clear()
            thread = self._thread
        self._ended.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            try:
                connection = self._pool.connect()
                try:
                    self._listen(connection)
                finally:
                    connection.close()
            except (HoldfastError, psycopg.Error) as error:
                logger.info("no notifications from PostgreSQL for now (%s)", type(error).__name__)
                # However many begin to follow meanwhile: a server that is away is not asked more often for it.
                self._ended.wait(RETRY_SECONDS)
            with self._lock:
                if self._closed or not self._following:
                    self._thread = None
                    return

    def _listen(self, connection: PostgresConnection) -> None:
        """Until nobody follows any more."""
        connection.execute(self._sql.listen, prepare=False)
        registered: dict[StreamKey, float] = {}
        while True:
            with self._lock:
                following = list(self._following)
            if not following:
                return
            self._register(connection, following, registered)
            for note in connection.notifies(timeout=0.1, stop_after=1):
                self._call(note.payload)

    def _register(
        self,
        connection: PostgresConnection,
        following: list[StreamKey],
        registered: dict[StreamKey, float],
    ) -> None:
        """Say whom we follow, and ring for those who are new."""
        now = time.monotonic()
        for stream in following:
            if registered.get(stream, 0.0) < now:
                connection.execute(self._sql.follow, (*stream, FOLLOW_SECONDS), prepare=False)
                if stream not in registered:
                    # Something may have been appended before we said so. Sent by another connection: if we hear it, we
                    # hear others too, and the followers know.
                    with self._pool.connection() as other:
                        other.execute(self._sql.ring, ("\x1f".join(stream),), prepare=False)
                registered[stream] = now + FOLLOW_SECONDS / 2
        for stream in set(registered).difference(following):
            del registered[stream]
            connection.execute(self._sql.forget_followers, prepare=False)

    def _call(self, payload: str) -> None:
        with self._lock:
            callbacks = [
                changed
                for stream, those in self._following.items()
                if "\x1f".join(stream) == payload
                for changed in those
            ]
        for changed in callbacks:
            try:
                changed()
            except Exception as error:
                logger.warning("what was to be told of an append failed (%s)", type(error).__name__)
