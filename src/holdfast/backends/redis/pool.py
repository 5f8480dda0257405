"""Connections to Redis: open one, send commands, and a bounded pool.

redis-py repeats commands whose answer it has lost; these connections never do. The callers know
whether a call may be repeated: reads may, and the log repeats an append with the same id.
"""

from __future__ import annotations

import queue
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.retry import Retry

from ...errors import StoreClosed, Unavailable
from .. import deadline
from .errors import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionLost,
    RedisError,
    ResponseError,
    translate_connect_error,
    translate_error,
)
from .url import RedisAddress

MAX_CONNECTIONS: Final = 32
CONNECT_SECONDS: Final = 5.0
"""For connecting, TLS and logging in; less if the call's deadline is sooner."""


def connect(address: RedisAddress) -> Any:
    """Open a connection of redis-py, authenticated and with its database selected."""
    timeout = deadline.require(min(CONNECT_SECONDS, address.timeout), address.location)
    settings: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": address.database,
        "username": address.username,
        "password": address.password,
        "socket_connect_timeout": timeout,
        # Also for the TLS handshake and the first commands: a silent server is unreachable.
        "socket_timeout": timeout,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if address.tls:
        settings.update(ssl_cert_reqs="required", ssl_check_hostname=True, ssl_ca_certs=address.ca)
    kind: Any = SSLConnection if address.tls else Connection
    connection = kind(**settings)
    handled = sys.exc_info()[1]
    try:
        connection.connect()
    except (RedisError, OSError, UnicodeError) as error:
        connection.disconnect()
        # The driver wraps the error of the system, unless it is the one that the caller handles.
        cause = None if error.__context__ is handled else error.__context__
        raise translate_connect_error(error, cause, address) from None
    connection._sock.settimeout(deadline.split(address.answer_timeout))
    return connection


def send_commands(connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands at once and return all answers. A refusal is returned as an answer."""
    answers: list[Any] = []
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        for _ in commands:
            try:
                answers.append(connection.read_response(disable_decoding=True))
            except ResponseError as refusal:
                answers.append(refusal)
    except (BusyLoadingError, AuthenticationError) as refusal:
        # The driver closes the connection here: the rest of the answers are lost.
        answers.append(refusal)
        answers += [ConnectionLost() for _ in commands[len(answers) :]]
    except (RedisError, OSError, ValueError):
        raise ConnectionLost from None
    return answers


class RedisPool:
    """A pool of at most `MAX_CONNECTIONS`, each used by one thread at a time."""

    def __init__(self, address: RedisAddress, connect: Callable[[], Any]) -> None:
        self._address, self._connect = address, connect
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._idle: list[Any] = []
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(MAX_CONNECTIONS):
            self._permits.put(None)

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self._address.location} was closed; open it again")

    @contextmanager
    def connection(self, *, fresh: bool = False) -> Iterator[Any]:
        """Yield a connection that seems to be alive; close it after any error."""
        self.check_open()
        permit: list[None] = []
        connection = None
        try:
            try:
                # One call of C code takes and stores the permit: an interrupt in between would
                # lose it permanently.
                left = deadline.require(self._address.timeout, self._address.location)
                permit.extend(map(self._permits.get, (True,), (left,)))
            except queue.Empty:
                raise Unavailable(
                    f"all {MAX_CONNECTIONS} connections to {self._address.location} are in use; "
                    "retry"
                ) from None
            connection = self._take(fresh)
            yield connection
        except BaseException:
            if connection is not None:
                connection.disconnect()
            raise
        else:
            if connection._sock is not None:
                self._idle.append(connection)
            if self._closed:
                self.close()
        finally:
            if permit:
                self._permits.put(None)

    def _take(self, fresh: bool) -> Any:
        while self._idle:
            connection = self._idle.pop()
            try:
                # It is idle, so input means that the server has ended it.
                if not fresh and not connection.can_read(0):
                    # can_read() sets the connect timeout on the socket.
                    connection._sock.settimeout(self._answer_timeout())
                    return connection
            except (RedisError, OSError):
                pass
            connection.disconnect()
        connection = self._connect()
        self._all.add(connection)
        return connection

    def _answer_timeout(self) -> float:
        return deadline.split(self._address.answer_timeout)

    def send(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands that may be repeated; repeat them once. Raise the first refusal."""
        try:
            with self.connection() as connection:
                answers = send_commands(connection, commands)
        except ConnectionLost:
            try:
                with self.connection(fresh=True) as connection:
                    answers = send_commands(connection, commands)
            except ConnectionLost:
                raise Unavailable(
                    f"the connection to {self._address.location} broke; retry"
                ) from None
        for answer in answers:
            if isinstance(answer, RedisError):
                raise translate_error(answer, self._address.location) from None
        return answers

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().disconnect()

    def forget(self) -> None:
        """Close the copies of the sockets in a forked child, without a command to the server."""
        for connection in list(self._all):
            connection.disconnect()
        self._all = weakref.WeakSet()
        self._reset()
