"""Connections to Redis: how one is made, how many there are, and what the driver's errors mean.

redis-py sends again by itself what it has lost the answer of; these connections never do. Whether a call may be
repeated is known one floor up: reads may, and an append is settled by its id.
"""

from __future__ import annotations

import os
import queue
import re
import socket
import ssl
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from ...errors import (
    AccessDenied,
    CorruptRecord,
    HoldfastError,
    InvalidURL,
    MissingExtra,
    ReadOnly,
    StorageFull,
    StoreClosed,
    Unavailable,
    UnsupportedServer,
)
from ..urls import flag, number, parse, shown

try:
    from redis.backoff import NoBackoff
    from redis.connection import Connection, SSLConnection
    from redis.exceptions import AuthenticationError, BusyLoadingError, InvalidResponse
    from redis.exceptions import NoScriptError as NoScriptError
    from redis.exceptions import RedisError as RedisError
    from redis.exceptions import ResponseError as ResponseError
    from redis.exceptions import TimeoutError as NoAnswer
    from redis.retry import Retry
except ModuleNotFoundError:
    raise MissingExtra("a redis:// store", "redis") from None

CONNECTIONS: Final = 32
OPTIONS: Final = (
    "ca",
    "connect_timeout_ms",
    "prefix",
    "timeout_ms",
    "wait_aof",
    "wait_ms",
    "wait_replicas",
)


class ConnectionLost(Exception):
    """The connection broke after something was sent on it."""


class Address(NamedTuple):
    """What a URL says."""

    location: str
    tls: bool
    host: str
    port: int
    database: int
    username: str | None
    password: str | None
    ca: str | None
    prefix: str
    connect_seconds: float
    seconds: float
    wait_replicas: int
    wait_aof: bool
    wait_ms: int

    @property
    def patience(self) -> float:
        """How long an answer may take, in seconds."""
        return self.seconds + self.wait_ms / 1000

    def __repr__(self) -> str:
        return f"Address({self.location!r})"  # without the password


def address_of(url: str) -> Address:
    parts, options = parse(
        url, example="redis://user:password@host:6379/0?prefix=holdfast", options=OPTIONS
    )
    path = parts.path.strip("/")
    if not parts.hostname or not re.fullmatch(r"\d{0,5}", path):
        raise InvalidURL(
            "a Redis URL names a host, and a database by its number: redis://host:6379/0"
        )
    if parts.username and parts.password is None:
        # Most likely it is the password, so it is not shown. A user who needs none is written with the colon.
        raise InvalidURL(
            "the URL has a user and no password; write redis://:password@host or redis://user:password@host"
        )
    prefix = options.get("prefix", "holdfast")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", prefix):
        raise InvalidURL(
            "the option 'prefix' of the URL is up to 64 letters, digits, dots, dashes and underscores"
        )
    tls = parts.scheme.lower() == "rediss"
    if "ca" in options and not tls:
        raise InvalidURL("the option 'ca' is for rediss:// URLs; redis:// is not encrypted")
    if "ca" in options and not os.path.isfile(options["ca"]):
        raise InvalidURL(
            "the option 'ca' of the URL names a file of certificates, which is not there"
        )
    return Address(
        location=shown(parts) + ("" if prefix == "holdfast" else f"?prefix={prefix}"),
        tls=tls,
        host=parts.hostname,
        port=parts.port or 6379,
        database=int(path or "0"),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        ca=options.get("ca"),
        prefix=prefix,
        connect_seconds=number(options, "connect_timeout_ms", 5_000, least=1) / 1000,
        seconds=number(options, "timeout_ms", 30_000, least=1) / 1000,
        wait_replicas=number(options, "wait_replicas", 0),
        wait_aof=flag(options, "wait_aof", False),
        wait_ms=number(options, "wait_ms", 1_000, least=1),
    )


def connect(address: Address) -> Any:
    """A connection of redis-py, authenticated and with its database selected, within the connect timeout."""
    settings: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": address.database,
        "username": address.username,
        "password": address.password,
        "socket_connect_timeout": address.connect_seconds,
        # Also for the TLS handshake and the first commands: a server that says nothing is one that cannot be reached.
        "socket_timeout": address.connect_seconds,
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
        # The driver hides the system's error behind one of its own. What the caller handles just now is none of it.
        hidden = None if error.__context__ is handled else error.__context__
        raise _translate_connecting(error, hidden, address) from None
    connection._sock.settimeout(address.patience)
    return connection


def ask(connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands in one go and read all answers. A refusal is returned in its place, not raised."""
    answers: list[Any] = []
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        for _ in commands:
            try:
                answers.append(connection.read_response(disable_decoding=True))
            except ResponseError as refusal:
                answers.append(refusal)
    except (BusyLoadingError, AuthenticationError) as refusal:
        # The driver closes the connection and reads no further: of what comes behind, nothing is known.
        answers.append(refusal)
        answers += [ConnectionLost() for _ in commands[len(answers) :]]
    except (RedisError, OSError, ValueError):
        raise ConnectionLost from None
    return answers


class RedisPool:
    """A bounded number of connections, each used by one thread at a time."""

    def __init__(self, address: Address, connect: Callable[[], Any]) -> None:
        self._address, self._connect = address, connect
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._idle: list[Any] = []
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(CONNECTIONS):
            self._permits.put(None)

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self._address.location} was closed; open it again")

    @contextmanager
    def connection(self, *, fresh: bool = False) -> Iterator[Any]:
        """A connection that is alive as far as one can tell. Whatever goes wrong with it, nobody gets it again."""
        self.check_open()
        place: list[None] = []
        connection = None
        try:
            try:
                # Taken and noted by one call of C, which no Ctrl-C comes between: a place that is taken and not noted is lost for good.
                place.extend(map(self._permits.get, (True,), (self._address.seconds,)))
            except queue.Empty:
                raise Unavailable(
                    f"all {CONNECTIONS} connections to {self._address.location} are in use"
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
            if place:
                self._permits.put(None)

    def _take(self, fresh: bool) -> Any:
        while self._idle:
            connection = self._idle.pop()
            try:
                # Nothing was asked on it: if there is something to read, it is the end of the connection.
                if not fresh and not connection.can_read(0):
                    # can_read leaves the socket with the timeout that was meant for connecting.
                    connection._sock.settimeout(self._address.patience)
                    return connection
            except (RedisError, OSError):
                pass
            connection.disconnect()
        connection = self._connect()
        self._all.add(connection)
        return connection

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Ask what may be asked twice. The first refusal is raised."""
        try:
            with self.connection() as connection:
                answers = ask(connection, commands)
        except ConnectionLost:
            try:
                with self.connection(fresh=True) as connection:
                    answers = ask(connection, commands)
            except ConnectionLost:
                raise Unavailable(f"the connection to {self._address.location} broke") from None
        for answer in answers:
            if isinstance(answer, RedisError):
                raise translate(answer, self._address.location) from None
        return answers

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().disconnect()

    def forget(self) -> None:
        """In a forked child: close its copies of the sockets, without a word to the server."""
        for connection in list(self._all):
            connection.disconnect()
        self._all = weakref.WeakSet()
        self._reset()


def translate(error: Exception, location: str) -> HoldfastError:
    """A refusal as one of our errors. Nothing was written. Only the code is taken from Redis' text: the rest may name keys."""
    text = f"{getattr(error, 'status_code', None) or ''} {error}"
    if isinstance(error, AuthenticationError):
        return AccessDenied(f"{location} {_not_let_in(text)}")
    if is_denied(text):
        command = re.search(r"'([a-z|]+)' command", text)
        return denied_command(
            command[1] if command else "a command that Holdfast needs, or touch its keys", location
        )
    if "READONLY" in text:
        return ReadOnly(f"{location} is a replica, which cannot be written to; name the primary")
    if "OOM" in text:
        return StorageFull(
            f"{location} has reached its maxmemory; raise it, or delete something. Nothing was written"
        )
    if "MISCONF" in text:
        return StorageFull(
            f"{location} cannot write to its disk and takes no writes until it can; see its log"
        )
    if re.search(r"MOVED|\bASK\b|CROSSSLOT", text):
        return UnsupportedServer(
            f"{location} is one node of a cluster of several, which Holdfast cannot use"
        )
    code = re.search(r"\b(LOADING|BUSY|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|TRYAGAIN)\b", text)
    if not code and re.search(r"WRONGTYPE|CORRUPT|user_script|not an integer|would overflow", text):
        return CorruptRecord(location, what="a key of it is not as Holdfast wrote it")
    return Unavailable(
        f"{location} refuses at the moment ({code[1] if code else type(error).__name__})"
    )


def _not_let_in(text: str) -> str:
    """What is wrong with the user and the password, and what to do."""
    if re.search(r"without any password configured|no password is set", text):
        return "has no password, and the URL has one; remove it from the URL, or set requirepass on the server"
    if re.search(r"NOAUTH|Authentication required", text):
        return "wants a password, and got none; write redis://:password@host or redis://user:password@host"
    return (
        "does not take the user and the password of the URL; correct them, and write @ : / ? # in a password "
        "as %40 %3A %2F %3F %23"
    )


def is_denied(text: str) -> bool:
    """Whether a refusal is for want of a right; inside of scripts, Redis 6.2 and later ones each say it in their own way."""
    return re.search(r"NOPERM|ACL failure|can't run this command", text) is not None


def denied_command(command: str, location: str) -> AccessDenied:
    return AccessDenied(
        f"the user of {location} may not run {command}; let an administrator allow it (ACL SETUSER)"
    )


def _translate_connecting(
    error: Exception, hidden: BaseException | None, address: Address
) -> HoldfastError:
    if isinstance(error, ResponseError | AuthenticationError):
        if re.search("DB index|cluster mode", str(error)):
            return InvalidURL(
                f"{address.location} has no such database; choose a lower number, in a cluster 0"
            )
        if "protected mode" in str(error):
            return AccessDenied(
                f"{address.location} has no password and lets in only its own machine (protected mode); set requirepass"
            )
        return translate(error, address.location)
    if isinstance(error, BusyLoadingError):
        return Unavailable(f"{address.location} is loading its data; try again soon")
    return Unavailable(
        f"cannot connect to {address.location}: {_not_connected(error, hidden, address)}"
    )


def _not_connected(error: Exception, hidden: BaseException | None, address: Address) -> str:
    """Why there is no connection, and what to look at."""
    reason = hidden if isinstance(error, RedisError) else error
    tls = "does it speak TLS, with a certificate that is trusted here?"
    if isinstance(reason, ConnectionRefusedError):
        return "nothing listens there; check host and port, and that the server runs"
    if isinstance(reason, socket.gaierror | UnicodeError):
        return "the host name is not known; check it, and write @ : / ? # in a password as %40 %3A %2F %3F %23"
    if isinstance(error, NoAnswer) or isinstance(reason, TimeoutError):
        late = f"no answer within {address.connect_seconds:g} s; check host and port, and that it can be reached"
        return f"{late}; {tls}" if address.tls else late
    if isinstance(reason, ssl.SSLError):
        return f"no secure connection; {tls} The option 'ca' names a file of certificates to trust"
    if "max number of clients" in str(error):
        return "it takes no more clients (maxclients); try again later, or raise it"
    if isinstance(reason, OSError) and reason.errno and not isinstance(reason, ConnectionError):
        return f"{os.strerror(reason.errno)}; check host and port, and the network"
    other = "" if address.tls else ", whether it wants TLS (rediss://)"
    if isinstance(error, InvalidResponse):
        return f"what answers there is not Redis; check host and port{other}"
    return f"the connection is closed at once; check host and port{other}, and whether the server is in protected mode"
