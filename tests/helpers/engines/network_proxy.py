"""A TCP proxy on loopback that does to a connection what networks do: cuts it, is silent, is slow,
refuses.

It understands the frames of PostgreSQL and of Redis as far as it needs to know what a client asked
for and when the server has answered all of it. So it can cut a connection after a COMMIT was
processed, and not a moment before:

    with Proxy(("127.0.0.1", port), Postgres) as proxy:
        proxy.arm("cut", when=commits, times=1)
        ...                     # the client's next commit is done, and its answer lost
        assert proxy.did["cut"] == 1
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

Target = tuple[str, int] | str
"""A host and a port, or the path of a unix socket."""

Action = Literal["cut", "cut before", "swallow", "hold"]
"""`cut`: the server does it, the answer is lost, the connection ends. `cut before`: the connection
ends, and the server never hears of it. `swallow`: the server does it, and from then on the client
hears nothing. `hold`: the answer waits for `release`."""

When = Callable[[Sequence[bytes]], bool]
"""Whether a rule is for these statements: what the client said since the server was last at
rest."""


State = Literal["answering", "answered", "at rest"]
"""Whether the server has more to say, waits for the client to go on with its transaction, or is
done with it."""


class Speech(Protocol):
    """What was said on one connection. `said` is kept until the server has answered everything and
    is at rest."""

    said: list[bytes]
    failed: bool

    def heard(self, data: bytes) -> None:
        """Take in what the client sends."""

    def answers(self, data: bytes) -> Iterator[tuple[bytes, State]]:
        """Whole frames of the server, and how things stand after each."""


class Postgres:
    """The frames of PostgreSQL's protocol, version 3. A statement is known by its text, also when
    only its name is sent.

    At rest means: everything that was asked is answered, and no transaction is open. So `said` is
    one transaction.
    """

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.failed = False
        self._prepared: dict[bytes, bytes] = {}
        self._started = False
        self._asked = 0
        self._single = 0
        self._up = self._down = b""

    def heard(self, data: bytes) -> None:
        self._up += data
        while frame := self._next():
            if not self._started:
                code = struct.unpack("!i", frame[4:8])[0]
                if code in (80877103, 80877104):  # "do you speak TLS (GSS)?": one byte answers it
                    self._single += 1
                else:
                    self._started = True
                    self._asked += 1
                continue
            kind, body = frame[:1], frame[5:]
            if kind == b"Q":
                self.said.append(body.rstrip(b"\0"))
            elif kind == b"P":
                name, text = body.split(b"\0", 2)[:2]
                self._prepared[name] = text
            elif kind == b"B":
                _, name = body.split(b"\0", 2)[:2]
                self.said.append(self._prepared.get(name, b""))
            self._asked += kind in (b"Q", b"S", b"F")

    def answers(self, data: bytes) -> Iterator[tuple[bytes, State]]:
        self._down += data
        while self._down:
            if self._single:
                self._single -= 1
                frame, self._down = self._down[:1], self._down[1:]
                yield frame, "answered"
                continue
            size = 1 + int.from_bytes(self._down[1:5], "big")
            if len(self._down) < 5 or len(self._down) < size:
                return
            frame, self._down = self._down[:size], self._down[size:]
            self.failed = self.failed or frame[:1] == b"E"
            if frame[:1] == b"Z":  # ReadyForQuery: I(dle), T(ransaction), E(rror in one)
                self._asked -= 1
            state: State = "answering" if self._asked else "answered"
            if not self._asked and frame == b"Z\0\0\0\5I":
                state = "at rest"
            yield frame, state
            if state == "at rest":
                self.said, self.failed = [], False

    def _next(self) -> bytes:
        """The next whole frame of the client, if there is one."""
        at = 1 if self._started else 0
        size = at + int.from_bytes(self._up[at : at + 4], "big")
        if len(self._up) < at + 4 or len(self._up) < size:
            return b""
        frame, self._up = self._up[:size], self._up[size:]
        return frame


class Redis:
    """Commands and replies of Redis. `said` are the commands, their arguments joined by blanks (the
    first 4,000 bytes)."""

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.failed = False
        self._asked = 0
        self._up = self._down = b""

    def heard(self, data: bytes) -> None:
        self._up += data
        while size := _length(self._up):
            words = self._up[:size].split(b"\r\n")[2::2]
            self.said.append(b" ".join(words)[:4000])
            self._up = self._up[size:]
            self._asked += 1

    def answers(self, data: bytes) -> Iterator[tuple[bytes, State]]:
        self._down += data
        while size := _length(self._down):
            frame, self._down = self._down[:size], self._down[size:]
            self.failed = self.failed or frame[:1] == b"-"
            # What a subscription brings was not asked for: then the count is no longer of use, and
            # nothing is held.
            self._asked = max(self._asked - 1, 0)
            yield frame, "answering" if self._asked else "at rest"
            if not self._asked:
                self.said, self.failed = [], False


def _length(data: bytes, at: int = 0) -> int:
    """Where the value that begins there ends, 0 if it is not all there."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return 0
    kind, end = data[at : at + 1], line + 2
    if kind in b"$=" and data[at + 1 : at + 2] != b"-":
        end += int(data[at + 1 : line]) + 2
        return end if end <= len(data) else 0
    if kind in b"*~>%" and data[at + 1 : at + 2] != b"-":
        for _ in range(int(data[at + 1 : line]) * (2 if kind == b"%" else 1)):
            end = _length(data, end)
            if not end:
                return 0
    return end


class Proxy:
    """Listens on a port of its own and passes everything on, until told otherwise. `did` counts
    what it did."""

    def __init__(self, target: Target, speech: Callable[[], Speech]) -> None:
        self.target, self.speech = target, speech
        self.did: Counter[str] = Counter()
        self.delay = 0.0
        """Seconds that everything waits, in both directions: the time itself is what a slow network
        does."""
        self.silent = False
        """Whether new connections are accepted, and then nothing happens."""
        self._changed = threading.Condition()
        self._action: Action | None = None
        self._when: When = lambda said: True
        self._times = 0
        self._links: set[_Link] = set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.allow()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- what to do ------------------------------------------------------------------------------

    def arm(self, action: Action, *, when: When, times: int = 1) -> None:
        """Do that to the next so many exchanges for which `when` is true and which the server does
        not refuse."""
        with self._changed:
            self._action, self._when, self._times = action, when, times

    def disarm(self) -> None:
        """Do nothing more of it, and let answers go that are held. What was swallowed is gone."""
        with self._changed:
            self._action, self._times = None, 0
            self._changed.notify_all()

    release = disarm

    def wait_for(self, what: str, times: int = 1, seconds: float = 30) -> None:
        """Until it did that so many times."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.did[what] >= times, seconds), (
                f"never: {what} ({self.did})"
            )

    def refuse(self) -> None:
        """From now on nobody listens: a new connection is refused. Those that are there go on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def allow(self) -> None:
        """Listen, again on the same port."""
        if self._listener is None:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self.port))
            listener.listen(128)
            self.port = listener.getsockname()[1]
            self._listener = listener
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut_all(self) -> None:
        """End all connections there are."""
        with self._changed:
            links = list(self._links)
        for link in links:
            link.cut()
            self.count("cut idle")

    def close(self) -> None:
        self.refuse()
        self.disarm()
        self.cut_all()

    # -- what is done ----------------------------------------------------------------------------

    def count(self, what: str) -> None:
        with self._changed:
            self.did[what] += 1
            self._changed.notify_all()

    def wanted(self, said: Sequence[bytes]) -> Action | None:
        """What is to be done to these statements."""
        with self._changed:
            return self._action if self._times and self._when(said) else None

    def take(self, action: Action) -> bool:
        """Do it now: False if somebody else just had the last turn."""
        with self._changed:
            if not self._times or self._action != action:
                return False
            self._times -= 1
            self.did[action] += 1
            self._changed.notify_all()
            return True

    def wait_for_release(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._action != "hold")

    def ended(self, link: _Link) -> None:
        with self._changed:
            self._links.discard(link)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.count("silence" if self.silent else "connection")
            try:
                server = _connected(self.target)
            except OSError:
                _end(client)
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(self, client, server, self.speech())
            with self._changed:
                self._links.add(link)
            if not self.silent:
                link.start()


class _Link:
    """One connection: two sockets, and a thread for each direction."""

    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket, speech: Speech
    ) -> None:
        self._proxy, self._client, self._server, self._speech = proxy, client, server, speech
        self._lock = threading.Lock()
        self._swallows = False

    def start(self) -> None:
        for pump in (self._upward, self._downward):
            threading.Thread(target=self._run, args=(pump,), daemon=True).start()

    def cut(self) -> None:
        """End both sides at once, with a reset: what was on its way is lost."""
        for end in (self._client, self._server):
            _end(end)

    def _run(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except OSError:
            pass  # one side is gone, and so is the other, then
        self.cut()
        self._proxy.ended(self)

    def _upward(self) -> None:
        while data := self._client.recv(65536):
            if self._proxy.delay:
                time.sleep(self._proxy.delay)
            with self._lock:
                self._speech.heard(data)
                action = self._proxy.wanted(self._speech.said) if self._speech.said else None
            if action == "cut before" and self._proxy.take(action):
                return
            self._server.sendall(data)

    def _downward(self) -> None:
        held = b""
        while data := self._server.recv(65536):
            if self._proxy.delay:
                time.sleep(self._proxy.delay)
            with self._lock:
                frames = []
                for frame, state in self._speech.answers(data):
                    wanted = self._proxy.wanted(self._speech.said) if self._speech.said else None
                    frames.append((frame, state, self._speech.failed, wanted))
            for frame, state, failed, wanted in frames:
                held += frame
                if wanted in ("cut", "swallow", "hold") and state == "answering":
                    continue
                if (
                    wanted is not None
                    and state == "at rest"
                    and not failed
                    and self._proxy.take(wanted)
                ):
                    if wanted == "cut":
                        return
                    if wanted == "hold":
                        self._proxy.wait_for_release()
                    self._swallows = self._swallows or wanted == "swallow"
                if not self._swallows:
                    self._client.sendall(held)
                held = b""


def _connected(target: Target) -> socket.socket:
    if isinstance(target, tuple):
        server = socket.create_connection(target)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server
    server = socket.socket(socket.AF_UNIX)
    server.connect(target)
    return server


def _end(end: socket.socket) -> None:
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
    except OSError:
        pass  # it was ended before
    end.close()
