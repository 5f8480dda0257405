"""Open pages: many share one poller, and a page on which nothing happens costs next to nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import Unavailable
from holdfast.web import WebOptions, live
from holdfast.web.app import MAX_HANDLERS
from holdfast.web.live import LiveTopics, TooManyPages
from holdfast.web.server import serve_in_background


class CountedBackend(MemoryBackend):
    """A store in memory that counts the calls to it, and can be unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.unreachable = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("append", "read", "head", "heads", "due", "delete", "replace_fields"):
            if self.unreachable:
                self.calls["refused"] += 1
                raise Unavailable("the database is unreachable")
            self.calls[name] += 1
        return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(live, "IDLE_SECONDS", 0.02)


async def _open_pages(topics: LiveTopics, count: int) -> list[AsyncGenerator[str, None]]:
    pages = [topics.follow("tasks", str(number % 2)) for number in range(count)]
    for page in pages:
        assert await anext(page)
    return pages


async def _wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_fifty_pages_share_one_poller_and_read_nothing_once_they_are_closed() -> None:
    backend = CountedBackend()

    async def watch(store: Store) -> None:
        before = asyncio.all_tasks()
        pages = await _open_pages(topics := LiveTopics(store), 50)
        assert len(asyncio.all_tasks() - before) == 1
        waiting = [asyncio.ensure_future(anext(page)) for page in pages]
        await asyncio.to_thread(store.submit, "a", "new")
        assert len({await each for each in waiting}) == 1, "each page is told the same"
        for page in pages:
            await page.aclose()
        await _wait_for(lambda: asyncio.all_tasks() == before)
        backend.calls.clear()
        assert await anext(topics.follow("task", "new")) == "2"
        assert set(backend.calls) == {"head"}

    with holdfast.open(backend) as store:
        asyncio.run(watch(store))


def test_an_idle_page_writes_nothing_and_lists_each_status_once_a_poll() -> None:
    backend = CountedBackend()

    async def watch(store: Store) -> None:
        [page] = await _open_pages(LiveTopics(store), 1)
        waiting = asyncio.ensure_future(anext(page))
        backend.calls.clear()
        await _wait_for(lambda: backend.calls["heads"] >= 5 * 6)
        assert set(backend.calls) == {"heads"}
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await page.aclose()

    with holdfast.open(backend) as store:
        for number in range(30):
            store.submit("a", f"task-{number}")
        asyncio.run(watch(store))


def test_a_page_is_told_of_a_change_after_the_database_was_unreachable() -> None:
    backend = CountedBackend()

    async def watch(store: Store) -> None:
        topics = LiveTopics(store)
        backend.unreachable = True
        with pytest.raises(Unavailable):
            await anext(topics.follow("task", "t"))
        backend.unreachable = False
        page = topics.follow("task", "t")
        assert await anext(page) == "2"
        waiting = asyncio.ensure_future(anext(page))
        backend.unreachable = True
        backend.calls.clear()
        await _wait_for(lambda: backend.calls["refused"] > 0)
        backend.unreachable = False
        await asyncio.to_thread(store.task("t").cancel)
        assert int(await waiting) > 2
        await page.aclose()

    with holdfast.open(backend, timeout=0.2) as store:
        store.submit("a", "t")
        asyncio.run(watch(store))


def test_pages_beyond_the_limit_are_refused_and_a_closed_one_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "MAX_PAGES", 3)

    async def watch(store: Store) -> None:
        topics = LiveTopics(store)
        pages = await _open_pages(topics, 3)
        with pytest.raises(TooManyPages):
            await anext(topics.follow("tasks", ""))
        await pages.pop().aclose()
        pages += await _open_pages(topics, 1)
        for page in pages:
            await page.aclose()

    with holdfast.open("memory://") as store:
        asyncio.run(watch(store))


def test_a_page_is_left_when_its_session_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_UP_SECONDS", 0.01)

    async def watch(store: Store) -> None:
        over: list[bool] = []
        page = LiveTopics(store).follow("tasks", "", lambda: bool(over))
        assert await anext(page)
        waiting = asyncio.ensure_future(anext(page, "ended"))
        over.append(True)
        assert await waiting == "ended"

    with holdfast.open("memory://") as store:
        asyncio.run(watch(store))


class HeldBackend(MemoryBackend):
    """A store in memory whose listings wait until they are let go, and are counted meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.running, self.most = 0, 0
        self.let_go, self._lock = threading.Event(), threading.Lock()

    def heads(self, *args: Any, **options: Any) -> Any:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.let_go.wait()
        with self._lock:
            self.running -= 1
        return super().heads(*args, **options)


def test_fifty_requests_at_once_are_handled_a_few_at_a_time() -> None:
    backend = HeldBackend()
    with (
        holdfast.open(backend) as store,
        serve_in_background(store, WebOptions()) as address,
        ExitStack() as connections,
    ):
        host = urlsplit(address).netloc

        def request(path: str) -> HTTPConnection:
            connection = HTTPConnection(host)
            connections.callback(connection.close)
            connection.request("GET", path)
            return connection

        requests = [request("/api/v1/tasks") for _ in range(50)]
        while backend.running < MAX_HANDLERS:
            time.sleep(0.01)
        # These need no handler. When they are answered, all earlier requests have been read.
        assert [request("/live?topic=no").getresponse().status for _ in range(3)] == [422] * 3
        backend.let_go.set()
        assert [each.getresponse().status for each in requests] == [200] * 50
    assert backend.most == MAX_HANDLERS
