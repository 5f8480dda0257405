"""A small transaction-pooling proxy for PostgreSQL, as strict as PgBouncer without support for
prepared statements.

Every transaction of a client goes to another connection of the server than the one before, and
whatever a session keeps (prepared statements, SET, LISTEN, advisory locks, temporary tables) is
gone by then.
"""

from __future__ import annotations

import itertools
import queue
import select
import socket
import struct
import threading
from collections import Counter

ALLOWED = {b"user", b"database", b"application_name", b"client_encoding", b"DateStyle", b"TimeZone"}
"""What a client may ask for when it connects; PgBouncer refuses the rest."""

DISCARD = b"DISCARD ALL"
IDLE = b"Z\0\0\0\5I"
"""ReadyForQuery, with no transaction open."""


class Pooler:
    """Listens on a port of its own, and shares `size` connections to the server among all
    clients."""

    def __init__(
        self, port: int, *, user: str = "postgres", database: str = "postgres", size: int = 3
    ) -> None:
        self.did: Counter[str] = Counter()
        self._free: queue.SimpleQueue[_Server] = queue.SimpleQueue()
        self._servers = [_Server(port, user, database) for _ in range(size)]
        for server in self._servers:
            self._free.put(server)
        self._lock = threading.Lock()
        self._clients: set[socket.socket] = set()
        self._keys = itertools.count(1)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Pooler:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            _end(client)
        for server in self._servers:
            _end(server.socket)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._clients.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._greet(client):
                self._session(client)
        except (OSError, EOFError):
            pass  # the client or the pooler is gone
        finally:
            _end(client)
            with self._lock:
                self._clients.discard(client)

    def _greet(self, client: socket.socket) -> bool:
        """Start a session with a client; False if it is none."""
        while True:
            size = int.from_bytes(_exactly(client, 4), "big")
            body = _exactly(client, size - 4)
            code = struct.unpack("!i", body[:4])[0]
            if code in (80877103, 80877104):  # TLS, GSS: no
                client.sendall(b"N")
                continue
            if code == 80877102:  # a request to cancel something
                return False
            break
        words = body[4:].rstrip(b"\0").split(b"\0")
        refused = [name for name in words[::2] if name not in ALLOWED]
        if refused:
            self._count("refused")
            text = b"SFATAL\0C08P01\0Munsupported startup parameter: " + refused[0] + b"\0\0"
            client.sendall(_message(b"E", text))
            return False
        self._count("sessions")
        key = _message(b"K", struct.pack("!ii", next(self._keys), 0))
        ready = _message(b"Z", b"I")
        client.sendall(
            _message(b"R", struct.pack("!i", 0)) + self._servers[0].parameters + key + ready
        )
        return True

    def _session(self, client: socket.socket) -> None:
        """Pass on message by message; for each transaction, another server."""
        last: _Server | None = None
        while True:
            kind, message = _read(client)
            if kind == b"X":
                return
            server = self._another(last)
            server.discard()
            self._count("transactions")
            if last is not None and server is not last:
                self._count("moves")
            last = server
            # A server that a client leaves in the middle of something is of no use to the next one.
            whole = False
            try:
                whole = server.transact(client, kind, message)
            finally:
                if not whole:
                    server.reconnect()
                self._free.put(server)

    def _another(self, last: _Server | None) -> _Server:
        """A free server, if possible not the one this client had last."""
        server = self._free.get()
        if server is last:
            try:
                other = self._free.get_nowait()
            except queue.Empty:
                return server
            self._free.put(server)
            return other
        return server

    def _count(self, what: str) -> None:
        with self._lock:
            self.did[what] += 1


class _Server:
    """One connection to the server."""

    def __init__(self, port: int, user: str, database: str) -> None:
        self._where, self._who = ("127.0.0.1", port), (user, database)
        self.parameters = b""
        self.reconnect()

    def reconnect(self) -> None:
        if hasattr(self, "socket"):
            _end(self.socket)
        self.socket = socket.create_connection(self._where)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        user, database = (part.encode() for part in self._who)
        body = struct.pack("!i", 196608) + b"user\0" + user + b"\0database\0" + database + b"\0\0"
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        self.parameters = b""
        kind = b""
        while kind != b"Z":
            kind, message = _read(self.socket)
            if kind == b"S":
                self.parameters += message
            elif kind == b"E":
                raise EOFError("the server does not let the pooler in")

    def discard(self) -> None:
        """Forget what the last client left in the session."""
        self.socket.sendall(_message(b"Q", DISCARD + b"\0"))
        kind = b""
        while kind != b"Z":
            kind, _ = _read(self.socket)

    def transact(self, client: socket.socket, kind: bytes, message: bytes) -> bool:
        """Pass on in both directions until the server is at rest. False if the client is gone
        before."""
        asked, begun = 0, False
        answers = b""
        while True:
            if kind == b"X":
                return False
            if kind:
                self.socket.sendall(message)
                ends = kind in (b"Q", b"S", b"F")
                asked, begun = asked + ends, begun if kind == b"H" else not ends
            ready, _, _ = select.select([client, self.socket], [], [])
            kind = b""
            if self.socket in ready:
                # Not message by message: the server may send half of one, and wait for the client
                # before the rest.
                data = self.socket.recv(65536)
                if not data:
                    raise EOFError("the server is gone")
                client.sendall(data)
                answers += data
                while len(answers) >= 5 and len(answers) > (
                    size := int.from_bytes(answers[1:5], "big")
                ):
                    asked -= answers[:1] == b"Z"
                    rests = answers[: size + 1] == IDLE and not asked and not begun
                    answers = answers[size + 1 :]
                    if rests:
                        return True
            elif client in ready:
                kind, message = _read(client)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _read(end: socket.socket) -> tuple[bytes, bytes]:
    """One message: its kind, and all of it."""
    head = _exactly(end, 5)
    return head[:1], head + _exactly(end, int.from_bytes(head[1:], "big") - 4)


def _exactly(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = end.recv(size - len(data))
        if not part:
            raise EOFError("the other side is gone")
        data += part
    return bytes(data)


def _end(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was ended before
    end.close()
