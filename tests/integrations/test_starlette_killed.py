"""The example of a web chat under load, with its server killed in the middle of the answers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

import holdfast
from helpers.chat_client import (
    PATIENCE_SECONDS,
    SentEvent,
    follow,
    get,
    post,
    read_events,
    send,
    text_of,
)
from helpers.model_server import ModelServer
from helpers.paths import ROOT
from holdfast import testing
from holdfast.types import DraftPiece

CHATS = 8


class KilledServer:
    """The example, served by uvicorn in a process of its own, which the test kills and restarts.

    The test keeps the listening socket, so the address stays, and a client that connects while no
    server runs waits for the next one.
    """

    def __init__(self, store: Path, model: ModelServer) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._settings = {
            "CHAT_STORE": str(store),
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "none",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        handle = self._listener.fileno()
        command = ["-m", "uvicorn", "--app-dir", str(ROOT / "examples"), "--fd", str(handle)]
        self.process = subprocess.Popen(
            [sys.executable, *command, "--log-level", "warning", "fastapi_chat:app"],
            pass_fds=[handle],
            env={**os.environ, **self._settings},
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._listener.close()


@contextmanager
def served(tmp_path: Path) -> Iterator[tuple[KilledServer, ModelServer]]:
    with ModelServer() as model:
        server = KilledServer(tmp_path / "chat.db", model)
        try:
            server.start()
            yield server, model
        finally:
            server.close()


class Browser:
    """A page that sends one message, and reconnects with the id of its last event until done."""

    def __init__(self, base: str, name: str) -> None:
        self._base, self.name = base, name
        self.events: list[SentEvent] = []
        self.connections = 0
        self.has_seen = threading.Event()

    def run(self) -> Browser:
        deadline = time.monotonic() + 3 * PATIENCE_SECONDS
        while not (self.events and self.events[-1].kind == "done"):
            assert time.monotonic() < deadline, self.events
            try:
                self._connect()
            except httpx.TransportError:
                time.sleep(0.05)  # the server was killed
        return self

    def _connect(self) -> None:
        last = [event.id for event in self.events if event.id is not None]
        path = f"{self._base}chat/{self.name}"
        if last:
            request = httpx.stream(
                "GET",
                f"{path}/events",
                headers={"last-event-id": last[-1]},
                timeout=PATIENCE_SECONDS,
            )
        else:
            body = {"id": "only", "message": f"Tell {self.name} a long story about birds"}
            request = httpx.stream("POST", path, json=body, timeout=PATIENCE_SECONDS)
        with request as response:
            assert response.status_code == 200, response.read()
            self.connections += 1
            for event in read_events(response):
                self.events.append(event)
                self.has_seen.set()


@pytest.mark.slow
def test_nothing_is_missed_or_doubled_when_the_server_is_killed_under_load(tmp_path: Path) -> None:
    with served(tmp_path) as (server, model), ThreadPoolExecutor(CHATS) as pool:
        finished = [Browser(server.base, f"early-{n}").run() for n in range(2)]
        assert len(model.requests) == 2
        # Half of the calls are stopped before their first byte, half in the middle of the stream.
        holds = [model.hold(after=3 * (number % 2)) for number in range(CHATS)]
        browsers = [Browser(server.base, f"chat-{n}") for n in range(CHATS)]
        runs = [pool.submit(browser.run) for browser in browsers]
        for hold in holds:
            hold.wait()
        _wait_until(lambda: sum(b.has_seen.is_set() for b in browsers) >= CHATS // 2)
        server.kill()
        for hold in holds:
            hold.release()
        server.start()
        for run in runs:
            run.result(3 * PATIENCE_SECONDS)

    assert len(model.requests) == 2 + 2 * CHATS  # no finished call is repeated
    with holdfast.open(tmp_path / "chat.db") as store:
        for browser in [*finished, *browsers]:
            _check_exact(store, browser)
        assert all(browser.connections >= 2 for browser in browsers)
        statuses = [info.status for info in store.tasks()]
        assert statuses == ["finished"] * (2 + CHATS)


def _check_exact(store: holdfast.Store, browser: Browser) -> None:
    """The page has seen what is stored after its message: each event once, in order."""
    chat = store.conversation(browser.name)
    user, answer = chat.entries()
    stored = list(chat.follow_with_drafts(after=user.version, timeout=0))
    seen = [(event.kind, event.id) for event in browser.events if event.id is not None]
    kinds = ["delta" if isinstance(item, DraftPiece) else "message" for item in stored]
    assert seen == [(kind, str(item.version)) for kind, item in zip(kinds, stored, strict=True)]
    assert f"Tell {browser.name} a long story" in answer.message["content"]
    assert text_of(browser.events) == answer.message["content"]


@pytest.mark.slow
def test_an_approval_outlives_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as (server, model):
        events = send(server.base, "c", "I want a refund", "r1", **{"x-user": "ann"})
        assert [event.kind for event in events] == ["question", "done"]
        server.kill()
        server.start()
        found = get(f"{server.base}chat/c").json()
        assert found["status"] == "asks"
        answer = {"question": found["questions"][0]["id"], "value": True}
        said = post(f"{server.base}chat/c/answer", json=answer, headers={"x-user": "bob"})
        assert said.status_code == 204
        hold = model.hold(after=2)  # and killed once more, in the answer after it
        threading.Thread(target=_follow_until_cut, args=(server.base,), daemon=True).start()
        hold.wait()
        server.kill()
        hold.release()
        server.start()
        events = follow(server.base, "c/events", "0")
        assert events[-1].data["status"] == "finished"
    with holdfast.open(tmp_path / "chat.db") as store:
        view = store.get_task("support/c/r1")
        assert view is not None
        assert view.questions[0].by == "bob"
        assert [step.attempts for step in view.steps if step.name == "pay"] == [1]


@pytest.fixture
def page() -> Iterator[Page]:
    chromium = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or ""
    if not chromium:
        message = "LEFT OUT: the browser tests need Chromium (apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        yield page
        browser.close()


@pytest.mark.slow
def test_a_page_in_a_browser_continues_when_the_server_was_killed(
    tmp_path: Path, page: Page
) -> None:
    with served(tmp_path) as (server, model):
        page.goto(server.base)
        hold = model.hold(after=2)
        page.fill("input", "Tell me a long story about birds")
        page.click("button")
        hold.wait()
        log = page.locator("#log p")
        expect(log.nth(1)).to_contain_text("seen", timeout=PATIENCE_SECONDS * 1000)
        server.kill()
        hold.release()
        server.start()
        whole = "seen 1 messages; last: Tell me a long story about birds"
        expect(log.nth(1)).to_have_text(whole, timeout=PATIENCE_SECONDS * 1000)
        expect(log).to_have_count(2)


def _follow_until_cut(base: str) -> None:
    try:
        follow(base, "c/events", "0")
    except httpx.TransportError:
        pass  # the server was killed


def _wait_until(known: object) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not known():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_a_turn_that_is_killed_around_its_writes_ends_as_if_it_were_not() -> None:
    report = testing.crash_matrix(
        f"{Path(__file__).parent / 'chat_matrix_app.py'}:whole_turn",
        input={"conversation": "c", "version": 1},
        answers={"refund": True},
        points=16,
    )
    assert report.ok, str(report)
