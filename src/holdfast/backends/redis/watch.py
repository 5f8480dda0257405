"""Watch streams: each stream has a channel in Redis. A message without a subscriber is lost."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from ...errors import HoldfastError, Unavailable
from .errors import RedisError
from .pool import CONNECT_SECONDS, connect
from .url import RedisAddress

RECONNECT_SECONDS: Final = 1.0
PING_SECONDS: Final = 15.0
"""Seconds of silence until a PING is sent; after as many again, the connection counts as broken."""

logger = logging.getLogger("holdfast")


class RedisWatcher:
    """Calls the watchers of streams, with one connection and one thread while there are any."""

    def __init__(self, address: RedisAddress) -> None:
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
                self._send("SUBSCRIBE", channel)
            if self._thread is None:
                self._stopping = threading.Event()
                thread = threading.Thread(
                    target=self._run,
                    args=(self._stopping,),
                    name="holdfast-redis-watch",
                    daemon=True,
                )
                thread.start()
                self._thread = thread
        return lambda: self._unwatch(channel, changed)

    def _unwatch(self, channel: bytes, changed: Callable[[], None]) -> None:
        with self._lock:
            callbacks = self._watching.get(channel, [])
            if changed in callbacks:
                callbacks.remove(changed)
                if not callbacks:
                    del self._watching[channel]
                    self._send("UNSUBSCRIBE", channel)
            if not self._watching:
                self._stop()

    def _send(self, *command: Any) -> None:
        """Send a command if there is a connection. The caller has the lock.

        The thread subscribes to everything when it connects again.
        """
        try:
            if self._connection is not None:
                self._connection.send_command(*command)
        except (RedisError, OSError):
            pass  # the thread notices the broken connection

    def _stop(self) -> threading.Thread | None:
        """Make the thread end, without waiting for it. The caller has the lock."""
        self._stopping.set()
        try:
            if self._connection is not None:
                # Wakes the thread, which closes the connection.
                self._connection._sock.shutdown(socket.SHUT_RDWR)
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
            thread.join(CONNECT_SECONDS)

    def forget(self) -> None:
        """Drop everything in a forked child: the thread and the watchers are the parent's."""
        connection = self._connection
        self._reset()
        if connection is not None:
            connection.disconnect()

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                self._listen(stopping)
            except (HoldfastError, RedisError, OSError, ValueError):
                stopping.wait(RECONNECT_SECONDS)

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
                    self._call_watchers(connection.read_response(disable_decoding=True))
                    pinged = False
                elif pinged:
                    raise Unavailable("the server does not answer a PING")
                else:
                    with self._lock:
                        self._send("PING")
                    pinged = True
        finally:
            with self._lock:
                if self._connection is connection:
                    self._connection = None
            connection.disconnect()

    def _call_watchers(self, message: Any) -> None:
        # Also called when a subscription starts, even after a reconnect: there are no messages
        # about earlier appends.
        if message[0] not in (b"message", b"subscribe"):
            return
        with self._lock:
            callbacks = list(self._watching.get(message[1], ()))
        for changed in callbacks:
            try:
                changed()
            except Exception as error:
                logger.warning("a watch callback raised %s", type(error).__name__)
