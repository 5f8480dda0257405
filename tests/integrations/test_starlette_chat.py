"""Durable chats in web applications: streams that continue, busy ones, approvals, tenants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import holdfast
from helpers.chat_client import (
    PATIENCE_SECONDS,
    follow,
    get,
    post,
    read_events,
    running,
    send,
    text_of,
)
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.integrations.starlette import (
    ChatTurn,
    CorrelationMiddleware,
    DurableChat,
    StoreLifespan,
    get_store,
)

WORDS = ["One ", "two ", "three ", "four."]


class ScriptedChat:
    """A chat whose answers the test stops, fails and counts."""

    def __init__(self, url: Any, **options: Any) -> None:
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()
        self.failures = 0
        self.asked: list[str] = []
        chat = DurableChat("scripted", max_attempts=1, user=lambda r: r.headers.get("x-user"))
        self.chat = chat
        chat.answer(self.answer)
        self.app = Starlette(routes=[chat.mount("/chat")], lifespan=StoreLifespan(url, **options))
        self.app.add_middleware(CorrelationMiddleware)

    async def answer(self, turn: ChatTurn) -> AsyncIterator[str]:
        text = turn.message["content"]
        self.asked.append(text)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the model is down")
        yield WORDS[0]
        if "approve" in text:
            approved = await turn.task.ask("ok", "Really?", {"text": text}, returns=bool)
            yield f"approved: {approved} "
        self.reached.set()
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        for word in WORDS[1:]:
            yield word


@pytest.mark.every_engine
def test_an_answer_is_streamed_and_can_be_continued(url: str) -> None:
    with running(ScriptedChat(url).app) as base:
        events = send(base, "c", "Count", "r1")
        assert [event.kind for event in events[-2:]] == ["message", "done"]
        assert text_of(events) == "".join(WORDS) == events[-2].data["message"]["content"]
        assert events[0].id is not None
        assert follow(base, "c/events", events[0].id) == events[1:]


def test_a_stream_continues_after_any_of_its_events(url: str) -> None:
    with running(ScriptedChat(url).app) as base:
        events = send(base, "c", "Count", "r1")
        ids = [int(event.id) for event in events if event.id is not None]
        assert ids == sorted(set(ids))
        for number, event in enumerate(events):
            if event.id is not None:
                assert follow(base, "c/events", event.id) == events[number + 1 :]
        assert follow(base, "c/events", "0")[1:] == events  # the user's message comes first
        assert follow(base, "c/events", str(ids[-1])) == events[-1:]


def test_a_client_that_has_left_misses_nothing(url: str) -> None:
    scripted = ScriptedChat(url)
    scripted.gate.clear()
    with running(scripted.app) as base:
        body = {"id": "r1", "message": "Count"}
        with httpx.stream("POST", f"{base}chat/c", json=body, timeout=PATIENCE_SECONDS) as found:
            first = next(read_events(found))
            assert first.data["text"] == WORDS[0]
        scripted.gate.set()  # nothing listens
        assert first.id is not None
        rest = follow(base, "c/events", first.id)
        assert text_of([first, *rest]) == "".join(WORDS)
        assert rest[-1].data == {"status": "finished", "error": None}
    assert scripted.asked == ["Count"]


def test_the_same_request_twice_is_one_message_and_one_answer(url: str) -> None:
    scripted = ScriptedChat(url)
    with running(scripted.app) as base, ThreadPoolExecutor(4) as pool:
        first = send(base, "c", "Count", "r1")
        again = list(pool.map(lambda _: send(base, "c", "Count", "r1"), range(4)))
        assert again == [first] * 4
        shown = get(f"{base}chat/c").json()
        assert [each["message"]["role"] for each in shown["messages"]] == ["user", "assistant"]
        assert (shown["status"], shown["turn"]) == ("finished", "scripted/c/r1")
        refused = post(f"{base}chat/c", json={"id": "", "message": {"no": "text"}})
        assert refused.status_code == 422
    assert scripted.asked == ["Count"]


def test_a_conversation_that_is_busy_is_refused_before_the_stream_begins(url: str) -> None:
    scripted = ScriptedChat(url)
    scripted.gate.clear()
    with running(scripted.app) as base, ThreadPoolExecutor(1) as pool:
        first = pool.submit(send, base, "c", "Count", "r1")
        assert scripted.reached.wait(PATIENCE_SECONDS)
        refused = post(f"{base}chat/c", json={"id": "r2", "message": "And more"})
        assert refused.status_code == 409
        assert refused.json()["error"] == "ChatBusy"
        assert refused.json()["turn"] == "scripted/c/r1"
        scripted.gate.set()
        assert first.result(PATIENCE_SECONDS)[-1].kind == "done"
        assert send(base, "c", "And more", "r2")[-1].kind == "done"
        messages = get(f"{base}chat/c").json()["messages"]
        assert [each["message"]["content"] for each in messages][::2] == ["Count", "And more"]


def test_a_conversation_is_busy_from_the_message_to_its_answer(tmp_path: Any) -> None:
    path = tmp_path / "chat.db"
    more = {"id": "r2", "message": "And more"}
    scripted = ScriptedChat(path)
    with running(scripted.app) as base:
        send(base, "c", "approve it", "r1")  # it waits for an answer, and no process has it
        assert post(f"{base}chat/c", json=more).status_code == 409
    with holdfast.open(path) as store:  # queued, and no worker has taken it
        store.conversation("d").append(
            {"role": "user", "content": "Count"}, id="turn/r1", meta={"turn": "scripted/d/r1"}
        )
        store.submit("scripted", "scripted/d/r1", input={"conversation": "d", "version": 1})
    with running(ScriptedChat(path, workers=False).app) as base:
        refused = post(f"{base}chat/d", json=more)
        assert (refused.status_code, refused.json()["turn"]) == (409, "scripted/d/r1")


def test_a_store_that_does_not_answer_is_a_503_before_the_stream_begins() -> None:
    backend = FaultyBackend(MemoryBackend(), seed=7)
    scripted = ScriptedChat(backend, timeout=1, workers=False)
    with running(scripted.app) as base:
        for _ in range(10_000):
            backend.next("unavailable")
        refused = post(f"{base}chat/c", json={"id": "r1", "message": "Hello"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["content-type"] == "application/json"


def test_more_streams_than_allowed_are_a_503(url: str) -> None:
    scripted = ScriptedChat(url)
    scripted.chat._max_streams = 0
    with running(scripted.app) as base:
        refused = post(f"{base}chat/c", json={"id": "r1", "message": "Hello"})
        assert (refused.status_code, refused.json()["error"]) == (503, "Unavailable")
        assert get(f"{base}chat/c").json()["messages"] == []  # nothing of it was done
        scripted.chat._max_streams = 1
        assert send(base, "c", "Hello", "r1")[-1].data["status"] == "finished"
        assert scripted.asked == ["Hello"]


def test_an_approval_is_asked_answered_and_recorded(url: str) -> None:
    with running(ScriptedChat(url).app) as base:
        events = send(base, "c", "approve it", "r1")
        asked, done = events[-2:]
        assert (asked.kind, done.data["status"]) == ("question", "asks")
        [question] = asked.data["questions"]
        assert question["schema"] == {"type": "boolean"}
        assert question["payload"] == {"text": "approve it"}
        answer = {"question": question["id"], "value": "perhaps"}
        assert post(f"{base}chat/c/answer", json=answer).status_code == 422
        answer = {"question": question["id"], "value": True}
        headers = {"x-user": "ann"}
        for _ in range(2):  # the response may be lost: the same answer again is the same
            said = post(f"{base}chat/c/answer", json=answer, headers=headers)
            assert said.status_code == 204
        other = post(f"{base}chat/c/answer", json={**answer, "value": False})
        assert other.status_code in (404, 409)
        missing = post(f"{base}chat/c/answer", json={"question": "none", "value": 1})
        assert missing.status_code == 404
        last = [event.id for event in events if event.id is not None][-1]
        rest = follow(base, "c/events", last)
        assert text_of(rest) == "One approved: True two three four."
        assert rest[-1].data["status"] == "finished"


def test_only_questions_of_the_own_conversation_can_be_answered(tmp_path: Any) -> None:
    with running(ScriptedChat(tmp_path / "chat.db").app) as base:
        [question] = send(base, "anns", "approve it", "r1")[-2].data["questions"]
        send(base, "bobs", "Hello", "r1")
        given = {"question": question["id"], "value": True, "turn": "scripted/anns/r1"}
        refused = post(f"{base}chat/bobs/answer", json=given)
        assert (refused.status_code, refused.json()["error"]) == (404, "NotFound")
        assert get(f"{base}chat/anns").json()["status"] == "asks"
        assert post(f"{base}chat/anns/answer", json=given).status_code == 204


def test_an_id_with_slashes_does_not_lead_into_another_conversation(tmp_path: Any) -> None:
    with running(ScriptedChat(tmp_path / "chat.db").app) as base:
        run = {
            "threadId": "a/b", "runId": "1",
            "messages": [{"id": "c", "role": "user", "content": "approve the secret"}],
        }  # fmt: skip
        assert "approve the secret" in post(f"{base}chat/agui", json=run).text
        other = post(f"{base}chat/a", json={"id": "b/c", "message": "Hello"})
        assert (other.status_code, other.json()["error"]) == (409, "IdReused")
        assert get(f"{base}chat/a").json()["messages"] == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_bodies_that_other_sites_can_send_are_refused(tmp_path: Any, kind: str) -> None:
    scripted = ScriptedChat(tmp_path / "chat.db")
    with running(scripted.app) as base:
        for path in ("c", "c/answer", "agui"):
            content = b'{"id": "r1", "message": "Hello", "question": "q", "value": true}'
            headers = {"content-type": kind} if kind else {}
            refused = post(f"{base}chat/{path}", content=content, headers=headers)
            assert (refused.status_code, "application/json" in refused.text) == (422, True)
        assert get(f"{base}chat/c").json()["messages"] == []


def test_a_body_that_is_nested_too_deeply_is_refused(tmp_path: Any) -> None:
    with running(ScriptedChat(tmp_path / "chat.db").app) as base:
        headers = {"content-type": "application/json"}
        refused = post(f"{base}chat/c", content=b"[" * 100_000, headers=headers)
        assert refused.status_code == 422


def test_who_approved_is_in_the_record(tmp_path: Any) -> None:
    with running(ScriptedChat(tmp_path / "chat.db").app) as base:
        [question] = send(base, "c", "approve it", "r1")[-2].data["questions"]
        answer = {"question": question["id"], "value": True}
        post(f"{base}chat/c/answer", json=answer, headers={"x-user": "ann"})
        follow(base, "c/events", "0")
    with holdfast.open(tmp_path / "chat.db") as store:
        view = store.get_task("scripted/c/r1")
        assert view is not None and view.questions[0].by == "ann"


def test_a_failed_answer_ends_the_stream_and_the_same_request_tries_again(url: str) -> None:
    scripted = ScriptedChat(url)
    scripted.failures = 1
    with running(scripted.app) as base:
        assert send(base, "c", "Count", "r1")[-1].data == {
            "status": "failed",
            "error": "StepFailed",
        }
        assert send(base, "c", "Count", "r1")[-1].data["status"] == "finished"
        scripted.failures = 1
        assert send(base, "c", "Other", "r2")[-1].data["status"] == "failed"
        # A failed turn does not keep the conversation busy.
        assert send(base, "c", "Next", "r3")[-1].data["status"] == "finished"
    assert scripted.asked == ["Count", "Count", "Other", "Next"]


def test_a_message_that_was_stored_without_its_task_is_answered_when_a_client_comes(
    tmp_path: Any,
) -> None:
    path = tmp_path / "chat.db"
    with holdfast.open(path) as store:  # the server died right after the append
        store.conversation("c").append(
            {"role": "user", "content": "Count"}, id="turn/r1", meta={"turn": "scripted/c/r1"}
        )
    with running(ScriptedChat(path).app) as base:
        assert text_of(follow(base, "c/events", "0")) == "".join(WORDS)


def test_ids_may_have_characters_that_headers_and_urls_may_not(url: str) -> None:
    with running(ScriptedChat(url).app) as base:
        for name in ("%C3%A9%F0%9F%90%A6", "a%20b%3F%23"):
            events = send(base, name, "Count", "r\n1")
            assert events[-1].data["status"] == "finished"
            assert get(f"{base}chat/{name}").json()["version"] > 0


def test_an_answer_without_pieces_is_a_message(url: str) -> None:
    chat = DurableChat("plain")

    @chat.answer
    async def answer(turn: ChatTurn) -> str:
        return turn.message["content"].upper()

    app = Starlette(routes=[chat.mount("/chat")], lifespan=StoreLifespan(url))
    with running(app) as base:
        [message, done] = send(base, "c", "loud", "r1")
        assert message.data["message"] == {"role": "assistant", "content": "LOUD"}
        assert done.kind == "done"
    with pytest.raises(TypeError, match="must be async"):
        chat.answer(lambda turn: "text")


def test_tenants_are_kept_apart_and_each_has_its_worker(tmp_path: Any) -> None:
    def find_tenant(request: HTTPConnection) -> str:
        return request.headers.get("x-tenant", "default")

    scripted = ScriptedChat(tmp_path / "chat.db", tenant=find_tenant)
    with running(scripted.app) as base:
        for tenant in ("acme", "zen"):
            events = send(base, "c", tenant, "r1", **{"x-tenant": tenant})
            assert events[-1].data["status"] == "finished"
        assert get(f"{base}chat/c").json()["messages"] == []
    with holdfast.open(tmp_path / "chat.db", tenant="acme") as store:
        assert store.conversation("c").messages()[0]["content"] == "acme"


def test_the_id_of_the_request_is_stored_with_everything_and_returned(tmp_path: Any) -> None:
    path = tmp_path / "chat.db"
    with running(ScriptedChat(path).app) as base:
        send(base, "c", "Count", "r1", **{"x-request-id": "req-7"})
        bad = {"x-request-id": "x" * 300}
        made = get(f"{base}chat/c", headers=bad).headers["x-request-id"]
        assert made and made != bad["x-request-id"]
        kept = get(f"{base}chat/c", headers={"x-request-id": "req-8"})
        assert kept.headers["x-request-id"] == "req-8"
    with holdfast.open(path) as store:
        [user, _] = store.conversation("c").entries()
        assert user.correlation == "req-7"
        assert store.task("scripted/c/r1").history()[0].correlation == "req-7"


def test_fastapi_gets_the_store_of_the_tenant_as_a_dependency(url: str) -> None:
    app = FastAPI(lifespan=StoreLifespan(url, tenant=lambda r: r.headers["x-tenant"]))

    @app.post("/notes/{name}")
    async def add(name: str, store: holdfast.AsyncStore = Depends(get_store)) -> int:  # noqa: B008
        return (await store.stream(name).append(("noted", {}))).last

    with TestClient(app) as client:
        for tenant, version in (("a", 1), ("a", 2), ("b", 1)):
            added = client.post("/notes/n", headers={"x-tenant": tenant})
            assert added.json() == version


def test_without_a_lifespan_the_error_says_what_to_do() -> None:
    async def show(request: Any) -> JSONResponse:
        return JSONResponse(str(get_store(request)))

    with TestClient(Starlette(routes=[Route("/", show)])) as client:
        with pytest.raises(RuntimeError, match="lifespan=StoreLifespan"):
            client.get("/")
    with pytest.raises(RuntimeError, match="has not started"):
        _ = StoreLifespan("memory://").store


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 40, "²"])
def test_an_id_that_is_none_is_refused(last: str) -> None:
    with running(ScriptedChat("memory://").app) as base:
        found = get(f"{base}chat/c/events", params={"after": last})
        assert found.status_code == 422
