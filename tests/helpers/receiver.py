"""A real HTTP server that records the notifications it gets, and may be down."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE_SECONDS = 30.0


class Received:
    """A request as it came."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path, self.headers, self.body = path, headers, body
        self.data: dict[str, Any] = json.loads(body)


class Receiver:
    """An HTTP server on a free port of this machine."""

    def __init__(self) -> None:
        self.all: list[Received] = []
        """What it has accepted."""
        self.attempts = 0
        self.status = 204
        self.headers: dict[str, str] = {}
        """Headers of its responses."""
        self.answers = threading.Event()
        """While it is not set, requests are not answered."""
        self.answers.set()
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with outer._changed:
                    outer.attempts += 1
                    outer._changed.notify_all()
                if not outer.answers.is_set():
                    outer.answers.wait()
                    self.close_connection = True
                    return
                with outer._changed:
                    if 200 <= outer.status < 300:
                        outer.all.append(Received(self.path, dict(self.headers), body))
                    outer._changed.notify_all()
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    @property
    def told(self) -> list[tuple[str, str]]:
        """The tasks and kinds of what was accepted, in order."""
        return [(each.data["task"], each.data["kind"]) for each in self.all]

    def wait_for(self, count: int, patience: float = PATIENCE_SECONDS) -> list[Received]:
        """Wait until so many different notifications have come. Return them all."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: len({each.data["id"] for each in self.all}) >= count, patience
            ), self.told
            return list(self.all)

    def wait_for_attempts(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.attempts >= count, PATIENCE_SECONDS)

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
