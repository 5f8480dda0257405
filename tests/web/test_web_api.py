"""The JSON API and the pages of the dashboard."""

from __future__ import annotations

import html
import json
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import holdfast
from helpers.web import HOSTILE, client, fill
from holdfast import Store, Usage
from holdfast.web import WebOptions, create_app
from holdfast.web.api import ENDPOINTS

PAGES = [
    "/", "/tasks", "/tasks?status=suspended&query=claim", "/task?id=claim%2F42",
    "/task?id=done-1&version=4&compare=2&step=one", "/task?id=mail-1", "/task?id=broken-1",
    "/conversations", "/conversation?id=support-42", "/memory",
    "/memory?namespace=support&query=who+signs", "/memory?namespace=support&view=names",
    "/memory?namespace=support&about=Ann", "/streams", "/stream?id=orders", "/store",
]  # fmt: skip


def get(web: httpx.Client, path: str, **params: Any) -> Any:
    answer = web.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def read_whole_inbox(web: httpx.Client) -> list[Any]:
    """All pages: a request stops to look after a while, so that a slow store has several."""
    page = get(web, "inbox")
    items = page["items"]
    while page["after"]:
        page = get(web, "inbox", after=page["after"])
        items += page["items"]
    return list(items)


def form_token(web: httpx.Client) -> str:
    found = re.search(r'name="holdfast-form" content="(\w+)"', web.get("/").text)
    assert found is not None
    return found[1]


@pytest.mark.every_engine
def test_the_inbox_has_everything_that_waits_for_a_person(store: Store) -> None:
    fill(store)
    with client(store) as web:
        items = {item["task"]: item for item in read_whole_inbox(web)}
    assert {name: item["kind"] for name, item in items.items()} == {
        "claim/42": "question",
        "mail-1": "in doubt",
        "broken-1": "failed",
    }
    assert items["claim/42"]["schema"] == {"type": "boolean"}
    assert items["mail-1"]["error"]["type"] == "ConnectionError"


@pytest.mark.every_engine
def test_questions_are_answered_and_doubts_resolved_with_the_name_of_who_did_it(
    store: Store,
) -> None:
    fill(store)
    with client(store, allow_write=True, user="ann") as web:
        answered = {"id": "claim/42", "name": "payout", "value": True}
        assert web.post("/api/v1/task/answer", json=answered).status_code == 200
        assert web.post("/api/v1/task/answer", json=answered).status_code == 409
        resolved = {"id": "mail-1", "step": "send", "result": "sent"}
        assert web.post("/api/v1/task/resolve", json=resolved).status_code == 200
        assert web.post("/api/v1/task/retry", json={"id": "broken-1"}).status_code == 200
        assert not read_whole_inbox(web)
    store.run_due()
    claim, mail = store.get_task("claim/42"), store.get_task("mail-1")
    assert claim is not None and mail is not None
    assert (claim.result, claim.questions[0].by) == (True, "ann")
    assert (mail.status, mail.result) == ("finished", "sent")
    assert any("ann" in str(entry) for entry in store.audit("mail-1").entries)
    assert any("ann" in str(entry) for entry in store.audit("broken-1").entries)


def test_an_answer_of_another_type_is_refused_and_changes_nothing(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True) as web:
        wrong = {"id": "claim/42", "name": "payout", "value": "maybe"}
        answer = web.post("/api/v1/task/answer", json=wrong)
        assert (answer.status_code, answer.json()["error"]) == (422, "TypeError")
        assert len(get(web, "inbox")["items"]) == 3


def test_tasks_are_found_by_status_agent_and_words_page_by_page(store: Store) -> None:
    for number in range(25):
        store.submit("a" if number % 5 else "b", f"task-{number:02}", goal=f"Goal {number}")
    with client(store) as web:
        seen: list[str] = []
        after = ""
        while True:
            page = get(web, "tasks", limit=10, after=after)
            seen += [task["id"] for task in page["tasks"]]
            after = page["after"]
            if not after:
                break
        assert seen == [f"task-{number:02}" for number in range(25)]
        assert len(get(web, "tasks", agent="b")["tasks"]) == 5
        assert [t["id"] for t in get(web, "tasks", query="GOAL 7")["tasks"]] == ["task-07"]
        assert get(web, "tasks", status="running")["tasks"] == []
        assert web.get("/api/v1/tasks?status=nonsense").status_code == 422


def test_a_task_is_shown_as_it_was_at_any_version(store: Store) -> None:
    fill(store)
    with client(store) as web:
        newest = get(web, "task", id="done-1")
        assert newest["status"] == "finished"
        old = get(web, "task", id="done-1", version=4)
        assert old["version"] == 4 and old["status"] == "running"
        assert "Continue from step" in get(web, "task/context", id="done-1", version=4)["text"]
        changed = get(web, "task/diff", id="done-1", before=4, after=newest["version"])
        assert {"path": "status", "what": "changed", "before": "running", "after": "finished"} in (
            changed
        )
        shown = get(web, "task/timeline", id="done-1")
        assert [step["path"] for step in shown["timeline"]["steps"]] == ["one", "two"]


def test_a_task_whose_resume_context_does_not_fit_is_shown_without_it(store: Store) -> None:
    fill(store)
    with client(store) as web:
        shown = web.get("/task?id=claim%2F42&max_tokens=1")
        assert shown.status_code == 200 and "fit 1 tokens" in shown.text
        assert web.get("/api/v1/task/context?id=done-1&max_tokens=1").status_code == 422


def test_a_task_is_forked_at_a_version(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True) as web:
        fork = {"id": "done-1", "new_id": "again", "version": 4}
        assert web.post("/api/v1/task/fork", json=fork).status_code == 200
    with store.task("again") as task:
        assert task.remaining()


@pytest.mark.parametrize("page", PAGES)
def test_each_page_is_complete_without_scripts_and_shows_hostile_content_as_text(
    store: Store, page: str
) -> None:
    fill(store)
    with client(store, allow_write=True) as web:
        answer = web.get(page)
    assert answer.status_code == 200
    text = answer.text
    assert "<script>alert" not in text and "<svg onload" not in text
    assert "\x1b" not in text and "\u202e" not in text
    assert re.findall(r"<script[^>]*>", text) == ['<script type="module" src="/static/app.js">'], (
        "no script but ours"
    )
    assert " style=" not in text and "javascript:" not in re.findall(r'href="([^"]*)"', text)


def test_forms_do_what_the_api_does_and_return_to_their_page(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True, user="ann") as web:
        form = {
            "form_token": form_token(web), "next": "/task?id=claim%2F42", "id": "claim/42",
            "name": "payout", "schema": '{"type": "boolean"}', "value": "true",
        }  # fmt: skip
        answer = web.post("/act/task/answer", data=form)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/task?id=claim%2F42&notice=")
        assert "answered payout" in web.get(answer.headers["location"]).text
        again = web.post("/act/task/answer", data=form)
        assert "Not done" in web.get(again.headers["location"]).text
        away = web.post("/act/task/cancel", data={**form, "next": "//elsewhere.example/"})
        assert away.headers["location"].startswith("/?notice=")
    view = store.get_task("claim/42")
    assert view is not None and view.questions[0].answer is True


def submit_form(web: httpx.Client, action: str, **fields: str) -> str:
    """Submit a form, and return the page with its notice."""
    answer = web.post(f"/act/{action}", data={"form_token": form_token(web), **fields})
    assert answer.status_code == 303
    return html.unescape(web.get(answer.headers["location"]).text)


def leave_in_doubt(store: Store) -> None:
    @holdfast.step(once=True)
    def send() -> Any:
        raise ConnectionError

    with pytest.raises(holdfast.StepInDoubt), store.task("t") as task:
        task.step("send", send)


def test_a_doubt_is_not_resolved_without_saying_whether_it_was_done(store: Store) -> None:
    leave_in_doubt(store)
    with client(store, allow_write=True) as web:
        for outcome in ({}, {"outcome": ""}, {"outcome": "perhaps"}):
            page = submit_form(web, "task/resolve", id="t", step="send", value='"sent"', **outcome)
            assert "Not done: Was it done?" in page
        assert "step.resolved" not in [event.type for event in store.task("t").history()]
        submit_form(web, "task/resolve", id="t", step="send", value='"sent"', outcome="done")
    assert "step.resolved" in [event.type for event in store.task("t").history()]


def test_a_form_names_the_input_that_is_no_json(store: Store) -> None:
    leave_in_doubt(store)
    with client(store, allow_write=True) as web:
        resolve = {"id": "t", "step": "send", "outcome": "done", "value": "{"}
        assert "Not done: Its result: must be JSON" in submit_form(web, "task/resolve", **resolve)
        fork = {"id": "t", "new_id": "u"}
        for wrong, label in (({"input": "{"}, "Input"), ({"step": "send", "value": "{"}, "Result")):
            page = submit_form(web, "task/fork", **fork, **wrong)
            assert f"Not done: {label}: must be JSON" in page
        page = submit_form(web, "task/signal", id="t", name="s", value="{")
        assert "Not done: Payload: must be JSON" in page
        page = submit_form(web, "task/retry", id="t", tokens="many")
        assert "Not done: New limit of tokens: must be a number" in page


def test_lines_of_a_text_answer_end_as_they_do_in_python(store: Store) -> None:
    @holdfast.agent(name="writer")
    def writer(task: Any) -> Any:
        return task.ask("text", "What?", returns=str)

    store.submit("writer", "w")
    store.run_due()
    with client(store, allow_write=True) as web:
        text = {"schema": '{"type": "string"}', "value": "one\r\ntwo\r\n"}
        submit_form(web, "task/answer", id="w", name="text", **text)
    view = store.get_task("w")
    assert view is not None and view.questions[0].answer == "one\ntwo\n"


def test_a_notice_that_the_server_did_not_write_is_not_shown(store: Store) -> None:
    with client(store) as web:
        assert "PAY MALLORY" not in web.get("/?notice=00.PAY%20MALLORY").text


def test_what_is_missing_or_malformed_is_an_answer_not_a_failure(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True) as web:
        for path in ("/task?id=nobody", "/stream?id=nothing", "/conversation?id=nobody"):
            assert web.get(path).status_code in (404, 422), path
        for path in ("/task", "/task?id=done-1&version=x", "/task?id=done-1&version=999"):
            assert web.get(path).status_code in (404, 422), path
        for endpoint in ENDPOINTS:
            for given in ({}, {"id": ""}, {"id": "x" * 5000}, {"id": "nobody", "bogus": "1"}):
                if endpoint.method == "GET":
                    answer = web.get(f"/api/v1/{endpoint.path}", params=given)
                else:
                    answer = web.post(f"/api/v1/{endpoint.path}", json=given)
                assert answer.status_code < 500, (endpoint.path, given, answer.text)


@pytest.mark.parametrize("prefix", ["", "/ops"])
def test_the_api_refuses_unknown_paths_and_methods_in_its_own_form(
    store: Store, prefix: str
) -> None:
    app: Any = create_app(store, WebOptions(allow_write=True))
    if prefix:
        app = Starlette(routes=[Mount(prefix, app)])
    with TestClient(app, base_url="http://127.0.0.1:4040") as web:
        for path in ("/api/v1/nothing", "/api/", "/api/v2/tasks"):
            missing = web.get(prefix + path)
            assert (missing.status_code, missing.json()["error"]) == (404, "NotFound"), path
            assert missing.headers["content-type"] == "application/json"
            assert missing.headers["x-content-type-options"] == "nosniff"
        wrong = web.get(f"{prefix}/api/v1/task/answer")
        expected = {"error": "MethodNotAllowed", "message": "use POST"}
        assert (wrong.status_code, wrong.json()) == (405, expected)
        assert wrong.headers["allow"] == "POST"
        page = web.get(f"{prefix}/nothing")
        assert (page.status_code, page.text) == (404, "Not Found")


def test_the_description_of_the_api_lists_every_endpoint(store: Store) -> None:
    with client(store) as web:
        described = web.get("/api/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    assert set(described["paths"]) == {f"/api/v1/{endpoint.path}" for endpoint in ENDPOINTS}


def test_a_server_shows_one_tenant(store: Store) -> None:
    other = store.for_tenant("other")
    other.submit("a", "secret-of-other")
    with client(store) as web:
        assert "secret-of-other" not in web.get("/tasks").text
        assert web.get(f"/task?id={quote('secret-of-other')}").status_code == 404


def test_every_list_continues_where_it_stopped(store: Store) -> None:
    for number in range(5):
        store.conversation(f"chat-{number}").append({"role": "user", "content": "Hi"})
        store.memory(f"space-{number}").remember("Ann signs")
        store.stream(f"orders-{number}").append(("ordered", {}))
    lists = {"conversations": "chat", "memories": "space", "streams": "orders"}
    with client(store) as web:
        for path, name in lists.items():
            seen: list[str] = []
            after = ""
            while True:
                page = get(web, path, limit=2, after=after)
                seen, after = [*seen, *page["names"]], page["after"]
                if not after:
                    break
            assert seen == [f"{name}-{number}" for number in range(5)], path
        chats = get(web, "streams", kind="conversation", after="chat-2")["names"]
        assert chats == ["chat-3", "chat-4"]
        assert "chat-4" in web.get("/streams?kind=conversation").text


def test_memories_are_recalled_with_reasons_and_forgotten(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True) as web:
        [hit] = get(web, "memory", namespace="support", query="who signs the orders")["hits"]
        assert HOSTILE in hit["text"] and hit["why"]
        forget = {"namespace": "support", "id": hit["id"]}
        assert web.post("/api/v1/memory/forget", json=forget).status_code == 200
        assert web.post("/api/v1/memory/forget", json=forget).status_code == 404
    assert store.memory("support").get(hit["id"]) is None


def test_work_that_a_resume_did_not_repeat_is_counted(store: Store) -> None:
    def ask() -> str:
        used = Usage(calls=1, input_tokens=1000, output_tokens=10, cost=0.5)
        holdfast.current_step().set_usage(used)
        return "ok"

    for _ in range(3):
        with store.task("t", goal="Resume") as task:
            task.step("ask", ask)
            task.step("read", lambda: "ok")
    with client(store) as web:
        saved = get(web, "task/timeline", id="t")["savings"]
    assert (saved["resumes"], saved["steps"]) == (2, 4)
    assert (saved["tokens"], saved["cost"]) == (2020, 1.0)


def test_several_tasks_are_cancelled_or_retried_after_a_confirmation(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True, user="ann") as web:
        page = web.get("/").text
        assert page.count('form="batch"') == 3
        asked = web.get("/confirm?action=cancel&task=claim%2F42&task=mail-1&task=nobody").text
        assert "Cancel 3 tasks?" in asked
        found = re.search(r'name="ids" value="([^"]*)"', asked)
        assert found is not None
        view = store.get_task("claim/42")
        assert view is not None and view.status == "suspended", "asking changes nothing"
        form = {
            "form_token": form_token(web), "action": "cancel", "reason": "not needed",
            "ids": html.unescape(found[1]),
        }  # fmt: skip
        done = web.post("/act/tasks/batch", data=form)
        assert "Cancelled 2 tasks; 1 not done" in web.get(done.headers["location"]).text
        for task in ("claim/42", "mail-1"):
            view = store.get_task(task)
            assert view is not None and view.cancellation is not None
            assert (view.cancellation.by, view.cancellation.reason) == ("ann", "not needed")
        retried = web.post("/api/v1/tasks/batch", json={"action": "retry", "ids": ["broken-1"]})
        assert retried.json() == {"done": ["broken-1"], "failed": {}}
        assert web.get("/confirm?action=erase&task=x").status_code == 422


def test_a_waiting_task_is_sent_a_signal(store: Store) -> None:
    @holdfast.agent(name="shop")
    def shop(task: Any) -> Any:
        return task.wait_for("paid")

    store.submit("shop", "order-7")
    store.run_due()
    with client(store, allow_write=True) as web:
        assert "Send a signal" in web.get("/task?id=order-7").text
        form = {"form_token": form_token(web), "id": "order-7", "name": "paid", "value": "30"}
        assert web.post("/act/task/signal", data=form).status_code == 303
        again = {"id": "order-7", "name": "paid", "payload": 1, "signal_id": "w1"}
        answers = [web.post("/api/v1/task/signal", json=again).json()["done"] for _ in range(2)]
        assert answers == ["signalled paid", "paid was sent before"]
    store.run_due()
    view = store.get_task("order-7")
    assert view is not None and view.result == 30


def test_files_and_histories_are_saved_and_never_shown(store: Store) -> None:
    with store.task("t") as task:
        task.attach("<script>.html", b"<script>alert(1)</script>")
        task.finish("done")
    with client(store) as web:
        file = web.get("/artifact", params={"id": "t", "name": "<script>.html"})
        assert file.content == b"<script>alert(1)</script>"
        history = web.get("/history?id=t")
        events = [json.loads(line) for line in history.text.splitlines()]
        assert [event["version"] for event in events] == list(range(1, len(events) + 1))
        assert events[0]["type"] == "task.created"
        for answer in (file, history):
            assert answer.headers["content-disposition"].startswith("attachment;")
            assert answer.headers["content-type"] == "application/octet-stream"
        for path in ("/artifact?id=t&name=none", "/artifact?id=t", "/history?id=none", "/history"):
            assert web.get(path).status_code == 404, path


def test_a_memory_is_edited_and_its_author_is_who_did_it(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True, user="ann") as web:
        [old] = get(web, "memory", namespace="support")["memories"]
        form = {
            "form_token": form_token(web), "namespace": "support", "id": old["id"],
            "text": "Bob signs the orders",
        }  # fmt: skip
        assert web.post("/act/memory/supersede", data=form).status_code == 303
        [new] = get(web, "memory", namespace="support")["memories"]
        assert (new["text"], new["author"]) == ("Bob signs the orders", "ann")
        gone = {"namespace": "support", "id": "none", "text": "x"}
        assert web.post("/api/v1/memory/supersede", json=gone).status_code == 404
