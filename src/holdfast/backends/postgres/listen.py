"""Watch streams with LISTEN and NOTIFY.

A watcher registers its stream in the table `followers`, and only appends to such streams send a
notification. One connection and one thread listen for the whole backend, while there are watchers.
Behind a pooler that gives each transaction another connection, no notification arrives; watchers
poll at a low rate anyway.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ...errors import HoldfastError
from ..interface import StreamKey
from .errors import psycopg
from .pool import PostgresConnection, PostgresPool
from .query_sql import QueryStatements

FOLLOW_SECONDS: Final = 60
"""How long an entry in `followers` is valid. It is renewed after half of it."""
RETRY_SECONDS: Final = 1.0
"""The pause after a failed connection."""

logger = logging.getLogger("holdfast")


class NotifyListener:
    """Calls the watchers of streams. Its thread runs while there are any."""

    def __init__(self, pool: PostgresPool, queries: QueryStatements) -> None:
        self._pool, self._queries = pool, queries
        self._lock = threading.Lock()
        self._watching: dict[StreamKey, list[Callable[[], None]]] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, stream: StreamKey, changed: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._watching.setdefault(stream, []).append(changed)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-listen", daemon=True
                )
                self._thread.start()

        def stop() -> None:
            with self._lock:
                callbacks = self._watching.get(stream, [])
                if changed in callbacks:
                    callbacks.remove(changed)
                if not callbacks:
                    self._watching.pop(stream, None)

        return stop

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._watching.clear()
            thread = self._thread
        self._closing.set()
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
                logger.info(
                    "no notifications from PostgreSQL at present (%s)", type(error).__name__
                )
                # A new watcher does not shorten this pause: the server may be unreachable.
                self._closing.wait(RETRY_SECONDS)
            with self._lock:
                if self._closed or not self._watching:
                    self._thread = None
                    return

    def _listen(self, connection: PostgresConnection) -> None:
        """Receive notifications until there are no watchers."""
        connection.execute(self._queries.listen, prepare=False)
        registered: dict[StreamKey, float] = {}
        while True:
            with self._lock:
                watched = list(self._watching)
            if not watched:
                return
            self._register(connection, watched, registered)
            for notification in connection.notifies(timeout=0.1, stop_after=1):
                self._call_watchers(notification.payload)

    def _register(
        self,
        connection: PostgresConnection,
        watched: list[StreamKey],
        registered: dict[StreamKey, float],
    ) -> None:
        """Register the watched streams, and send a notification for new ones."""
        now = time.monotonic()
        for stream in watched:
            if registered.get(stream, 0.0) < now:
                connection.execute(self._queries.follow, (*stream, FOLLOW_SECONDS), prepare=False)
                if stream not in registered:
                    # Wake the watchers: an append may have come before the registration. Sent on
                    # another connection, it also shows that notifications arrive.
                    with self._pool.connection() as other:
                        other.execute(self._queries.notify, ("\x1f".join(stream),), prepare=False)
                registered[stream] = now + FOLLOW_SECONDS / 2
        for stream in set(registered).difference(watched):
            del registered[stream]
            connection.execute(self._queries.forget_followers, prepare=False)

    def _call_watchers(self, payload: str) -> None:
        with self._lock:
            callbacks = [
                changed
                for stream, watchers in self._watching.items()
                if "\x1f".join(stream) == payload
                for changed in watchers
            ]
        for changed in callbacks:
            try:
                changed()
            except Exception as error:
                logger.warning("a watch callback raised %s", type(error).__name__)
