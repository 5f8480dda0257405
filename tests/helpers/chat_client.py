"""A web application in a thread of the test, and a client that reads server-sent events."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from holdfast.web.server import AppServer

PATIENCE_SECONDS = 120.0


class SentEvent(NamedTuple):
    kind: str
    id: str | None
    data: Any


@contextmanager
def running(app: Any) -> Iterator[str]:
    """The address of an application while the block runs, served by uvicorn."""
    server = AppServer(app, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def get(url: str, **options: Any) -> httpx.Response:
    return httpx.get(url, timeout=PATIENCE_SECONDS, **options)


def post(url: str, **options: Any) -> httpx.Response:
    return httpx.post(url, timeout=PATIENCE_SECONDS, **options)


def read_events(response: httpx.Response) -> Iterator[SentEvent]:
    """The events of a response as they come, without comments."""
    kind, last, data = "", None, None
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            last = value
        elif name == "data":
            data = value
        elif not line and data is not None:
            yield SentEvent(kind, last, json.loads(data))
            kind, last, data = "", None, None


def send(base: str, conversation: str, text: str, id: str, **headers: str) -> list[SentEvent]:
    """Send a message, and read its answer to the end."""
    body = {"id": id, "message": text}
    url = f"{base}chat/{conversation}"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=PATIENCE_SECONDS) as found:
        assert found.status_code == 200, found.read()
        return list(read_events(found))


def follow(base: str, path: str, last: str, **headers: str) -> list[SentEvent]:
    """Continue after an event, and read to the end."""
    given = {"last-event-id": last, **headers}
    with httpx.stream(
        "GET", f"{base}chat/{path}", headers=given, timeout=PATIENCE_SECONDS
    ) as found:
        assert found.status_code == 200, found.read()
        return list(read_events(found))


def text_of(events: list[SentEvent]) -> str:
    """The text of the newest attempt that the deltas give, as a page would show it."""
    texts: dict[str, str] = {}
    for event in events:
        if event.kind == "delta":
            texts[event.data["of"]] = texts.get(event.data["of"], "") + event.data["text"]
    return list(texts.values())[-1] if texts else ""
