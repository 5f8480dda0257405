"""A proxy on loopback between boto3 and moto, which does to chosen requests what networks and busy
services do.

A rule is a function from a request to its answer: it may pass the request on (once, twice, or
changed), answer by itself, or return None, which closes the connection without an answer.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def changed(self, **fields: Any) -> Reply:
        """The same answer with other fields in its JSON."""
        headers = {
            name: value for name, value in self.headers.items() if name.lower() != "x-amz-crc32"
        }
        return Reply(self.status, headers, json.dumps({**self.json(), **fields}).encode())


class Request:
    """`operation` is PutItem, Query, … for DynamoDB, and the HTTP method for S3."""

    def __init__(
        self, proxy: AwsProxy, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        self.proxy, self.method, self.path, self.headers, self.body = (
            proxy,
            method,
            path,
            headers,
            body,
        )
        self.operation = headers.get("x-amz-target", "").rpartition(".")[2] or method
        self.conditional = "ConditionExpression" in (
            self.json() if self.operation != method else headers
        ) or bool({"if-none-match", "if-match"} & {name.lower() for name in headers})

    def json(self) -> Any:
        return json.loads(self.body)

    def pass_on(self, body: bytes | None = None) -> Reply:
        host = urlsplit(self.proxy.target)
        connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=30)
        try:
            sent = self.body if body is None else body
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in HOP_BY_HOP
            }
            connection.request(
                self.method, self.path, sent, {**headers, "Content-Length": str(len(sent))}
            )
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def lose(self) -> None:
        """Carry it out, and let nobody know."""
        self.proxy.faults["lost"] += 1
        self.pass_on()

    def cut(self) -> None:
        """Close the connection before anything is done."""
        self.proxy.faults["cut"] += 1

    def refuse(self, code: str, status: int = 400) -> Reply:
        """Answer with an error, without passing it on."""
        self.proxy.faults["refused"] += 1
        if self.operation != self.method:
            kind = "application/x-amz-json-1.0"
            body = json.dumps(
                {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "no"}
            ).encode()
        else:
            kind, body = (
                "application/xml",
                f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode(),
            )
        return Reply(
            status, {"Content-Type": kind, "x-amz-request-id": "1", "x-amzn-requestid": "1"}, body
        )


HOP_BY_HOP = {"connection", "expect", "transfer-encoding", "content-length"}
Rule = Callable[[Request], "Reply | None"]


class AwsProxy:
    """`endpoint` is where it listens. `rule` may be changed at any time; `faults` counts what was
    done to requests."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.rule: Rule = Request.pass_on
        self.faults: Counter[str] = Counter()
        self.seen: list[Request] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def operations(self) -> list[str]:
        return [request.operation for request in self.seen]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def proxy_to(target: str) -> Iterator[AwsProxy]:
    proxy = AwsProxy(target)
    thread = threading.Thread(
        target=proxy._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()


def _handler(proxy: AwsProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(proxy, self.command, self.path, headers, self._body())
            proxy.seen.append(request)
            self.close_connection = True
            reply = proxy.rule(request)
            if reply is None:
                return
            self.send_response_only(reply.status)
            for name, value in reply.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            # An answer to HEAD has the length of the body it does not have.
            length = (
                reply.headers.get("Content-Length", "0")
                if self.command == "HEAD"
                else str(len(reply.body))
            )
            self.send_header("Content-Length", length)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(reply.body)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return body

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
