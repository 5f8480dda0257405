"""A server on loopback that speaks OpenAI's embeddings API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

ANIMALS = {"puppy": [1.0, 0.0], "terrier": [0.9, 0.1], "sedan": [0.0, 1.0]}


def meaning(text: str, length: int = 2) -> list[float]:
    row = np.sum(
        [[0.01, 0.01], *(ANIMALS.get(word, [0.0, 0.0]) for word in text.lower().split())], axis=0
    )
    return [*row.tolist(), *[0.0] * (length - 2)]


class Server(ThreadingHTTPServer):
    """Speaks the embeddings API. It refuses what OpenAI's refuses, and answers out of order, as it
    may."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.status, self.longest = 200, 8_191

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        texts = body["input"]
        wrong = (
            not texts
            or len(texts) > 2048
            or any(not 0 < len(text.encode()) <= self.server.longest for text in texts)
        )
        status = 400 if wrong or self.path != "/v1/embeddings" else self.server.status
        length = body.get("dimensions", 4)
        rows = [
            {"object": "embedding", "index": place, "embedding": meaning(text, length)}
            for place, text in enumerate(texts)
        ]
        answer = {
            "object": "list",
            "data": rows[::-1],
            "model": body["model"],
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }
        sent = json.dumps(answer if status == 200 else {"error": {"message": "no"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
