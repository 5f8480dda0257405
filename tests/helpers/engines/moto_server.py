"""moto's server, made fast: the suite sends it hundreds of thousands of requests.

Requests are carried out one at a time: moto checks the condition of a put and then puts, and AWS
does both in one step. The HTTP around it keeps connections open, as AWS does. What moto works out
anew for every request, it works out once.
"""

from __future__ import annotations

import functools
import gc
import io
import os
import sys
import threading
from email.utils import formatdate
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"  # headers for browsers, with every answer

from moto.core import errors, responses
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

LONGEST_LINE = 65_536
_one_at_a_time = threading.Lock()
_lookup_of_errors = errors.ErrorLookupFactory()


class Request(NamedTuple):
    """`headers` are named as in WSGI: upper case, with underscores."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def environ(self) -> dict[str, Any]:
        path, _, query = self.target.partition("?")
        plain = ("CONTENT_TYPE", "CONTENT_LENGTH")
        return {
            **{
                name if name in plain else f"HTTP_{name}": value
                for name, value in self.headers.items()
            },
            "REQUEST_METHOD": self.method,
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
            "QUERY_STRING": query,
            "RAW_URI": self.target,
            "SCRIPT_NAME": "",
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(self.body),
            "wsgi.errors": sys.stderr,
        }


class Connection(StreamRequestHandler):
    """One request after the other, until the client goes away."""

    disable_nagle_algorithm = (
        True  # or the second request of a connection waits 40 ms for its answer
    )
    server: Server

    def handle(self) -> None:
        try:
            while (request := self._request()) is not None:
                self.wfile.write(self._answer(request))
                if request.headers.get("CONNECTION", "").lower() == "close":
                    return
        except ConnectionError:
            pass

    def _request(self) -> Request | None:
        """The next one, whole: of one that breaks off nothing is carried out."""
        words = self._line().split()
        if len(words) != 3:
            return None
        headers: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.partition(":")
            headers[name.upper().replace("-", "_")] = value.strip()
        if headers.get("EXPECT", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(headers.get("CONTENT_LENGTH", 0))
        body = self.rfile.read(length)
        return Request(words[0], words[1], headers, body) if len(body) == length else None

    def _line(self) -> str:
        return self.rfile.readline(LONGEST_LINE).decode("latin-1").rstrip("\r\n")

    def _answer(self, request: Request) -> bytes:
        said: list[Any] = []
        with _one_at_a_time:
            body = b"".join(
                self.server.moto(
                    request.environ(), lambda *status_and_headers: said.extend(status_and_headers)
                )
            )
        status, headers = said[:2]
        names = {name.lower() for name, _ in headers}
        if "content-length" not in names:
            headers.append(("Content-Length", str(len(body))))
        if "date" not in names:
            headers.append(("Date", formatdate(usegmt=True)))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + body


class Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        self.moto = DomainDispatcherApplication(create_backend_app)
        super().__init__(("127.0.0.1", port), Connection)


def remember_what_does_not_change() -> None:
    """What moto asks its own source for with every request: which service it is for, its methods,
    its errors."""
    DomainDispatcherApplication.get_backend_for_host = functools.lru_cache(  # type: ignore[method-assign]
        DomainDispatcherApplication.get_backend_for_host
    )
    responses.method_names_from_class = functools.lru_cache(responses.method_names_from_class)
    errors.ErrorLookupFactory = lambda: _lookup_of_errors  # type: ignore[assignment,misc]


if __name__ == "__main__":
    gc.set_threshold(100_000)  # it holds many objects, and few of them in cycles
    remember_what_does_not_change()
    with Server(int(sys.argv[1])) as server:
        server.serve_forever()
