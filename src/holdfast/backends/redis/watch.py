"""Hearing of appends as they happen: each stream has a channel of Redis. What is published while nobody listens is gone."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from ...errors import HoldfastError, Unavailable
from .connection import Address, RedisError, connect

AGAIN_SECONDS: Final = 1.0
PING_SECONDS: Final = 15.0

logger = logging.getLogger("holdfast")


class RedisWatcher:
    """Calls those who watch. One connection and one thread for all of them, while there are any."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._watching: dict[bytes, list[Callable[[], None]]] = {}
        self._connection: Any = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, channel: bytes, changed: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            callbacks = self._watching.setdefault(channel, [])
            callbacks.append(changed)
            if len(callbacks) == 1:
                self._say("SUBSCRIBE", channel)
            if self._thread is None:
                self._stopping = threading.Event()
                run = threading.Thread(
                    target=self._run,
                    args=(self._stopping,),
                    name="holdfast-redis-watch",
                    daemon=True,
                )
                run.start()
                self._thread = run
        return lambda: self._unwatch(channel, changed)

    def _unwatch(self, channel: bytes, changed: Callable[[], None]) -> None:
        with self._lock:
            callbacks = self._watching.get(channel, [])
            if changed in callbacks:
                callbacks.remove(changed)
                if not callbacks:
                    del self._watching[channel]
                    self._say("UNSUBSCRIBE", channel)
            if not self._watching:
                self._stop()

    def _say(self, *command: Any) -> None:
        """Tell the server, if it is there; the thread tells it everything when it connects again. Called with the lock held."""
        try:
            if self._connection is not None:
                self._connection.send_command(*command)
        except (RedisError, OSError):
            pass  # the thread finds the connection broken

    def _stop(self) -> threading.Thread | None:
        """Let the thread end, without waiting for it. Called with the lock held."""
        self._stopping.set()
        try:
            if self._connection is not None:
                self._connection._sock.shutdown(
                    socket.SHUT_RDWR
                )  # wakes the thread, which closes it
        except (OSError, AttributeError):
            pass  # it is broken already
        self._connection = None
        thread, self._thread = self._thread, None
        return thread

    def close(self) -> None:
        with self._lock:
            self._watching = {}
            thread = self._stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._address.connect_seconds)

    def forget(self) -> None:
        """In a forked child: the thread is not there, and those who watched are the parent's."""
        connection = self._connection
        self._reset()
        if connection is not None:
            connection.disconnect()

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                self._listen(stopping)
            except (HoldfastError, RedisError, OSError, ValueError):
                stopping.wait(AGAIN_SECONDS)

    def _listen(self, stopping: threading.Event) -> None:
        connection = connect(self._address)
        try:
            with self._lock:
                if stopping.is_set():
                    return
                self._connection = connection
                if self._watching:
                    connection.send_command("SUBSCRIBE", *self._watching)
            pinged = False
            while not stopping.is_set():
                if connection.can_read(PING_SECONDS):
                    self._tell(connection.read_response(disable_decoding=True))
                    pinged = False
                elif pinged:
                    raise Unavailable("the server does not answer")
                else:
                    with self._lock:
                        self._say("PING")
                    pinged = True
        finally:
            with self._lock:
                if self._connection is connection:
                    self._connection = None
            connection.disconnect()

    def _tell(self, said: Any) -> None:
        # What was appended before the subscription began is not told: so that it has begun is news too, also after a reconnect.
        if said[0] not in (b"message", b"subscribe"):
            return
        with self._lock:
            callbacks = list(self._watching.get(said[1], ()))
        for changed in callbacks:
            try:
                changed()
            except Exception as error:
                logger.warning("what was to be told of an append failed (%s)", type(error).__name__)
