"""Who may use the dashboard, and what other sites cannot do to it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path
from typing import Any

import click
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from helpers.web import client, fill
from holdfast import Store
from holdfast.cli.operators.serve import read_tokens
from holdfast.web import WebOptions, create_app
from holdfast.web.auth import LOGIN_ATTEMPTS, Guard

TOKEN = "s3cret-token"
ANSWER = {"id": "claim/42", "name": "payout", "value": True}


def test_nothing_can_be_changed_unless_writing_is_allowed(store: Store) -> None:
    fill(store)
    with client(store) as web:
        for path in ("/api/v1/task/answer", "/act/task/answer"):
            answer = web.post(path, json=ANSWER)
            assert (answer.status_code, answer.json()["error"]) == (403, "ReadOnly")
    view = store.get_task("claim/42")
    assert view is not None and view.questions[0].status == "open"


@pytest.mark.parametrize(
    "host",
    [
        "localhost:1/static/?",
        "localhost/static/",
        "a@localhost",
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil",
    ],
)
def test_a_request_for_another_host_name_is_refused(store: Store, host: str) -> None:
    with client(store) as web:
        assert web.get("/", headers={"host": host}).status_code == 421


def test_named_hosts_are_served(store: Store) -> None:
    with client(store, hosts=("agents.example",)) as web:
        assert web.get("/", headers={"host": "agents.example:443"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "null"},
    ],
)
def test_another_site_cannot_send_forms_or_calls(store: Store, headers: dict[str, str]) -> None:
    fill(store)
    with client(store, allow_write=True) as web:
        page = web.get("/").text
        token = re.search(r'name="holdfast-form" content="(\w+)"', page)
        assert token is not None
        form = {**ANSWER, "value": "true", "schema": '{"type": "boolean"}', "form_token": token[1]}
        assert web.post("/act/task/answer", data=form, headers=headers).status_code == 403
        calls = {**headers, "x-holdfast-form": token[1]}
        assert web.post("/api/v1/task/answer", json=ANSWER, headers=calls).status_code == 403
        assert web.post("/api/v1/task/answer", data=ANSWER).status_code == 403, "not JSON"
        without = {**form, "form_token": "0" * 64}
        assert web.post("/act/task/answer", data=without).status_code == 403
    view = store.get_task("claim/42")
    assert view is not None and view.questions[0].status == "open"


def test_with_a_token_nothing_is_shown_without_it(store: Store) -> None:
    fill(store)
    with client(store, token=TOKEN, allow_write=True) as web:
        for path in ("/api/v1/inbox", "/api/openapi.json", "/live"):
            assert web.get(path).status_code == 401, path
        page = web.get("/task?id=claim%2F42")
        assert (page.status_code, page.headers["location"]) == (
            303, "/login?next=%2Ftask%3Fid%3Dclaim%252F42",
        )  # fmt: skip
        assert web.post("/api/v1/task/answer", json=ANSWER).status_code == 401
        good = {"authorization": f"Bearer {TOKEN}"}
        assert web.get("/api/v1/inbox", headers=good).status_code == 200
        for bad in (f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", "Bearer \xe9"):
            answer = web.get("/api/v1/inbox", headers={"authorization": bad.encode("latin-1")})
            assert answer.status_code == 401, bad


def test_people_log_in_with_the_token_and_their_name_is_recorded(store: Store) -> None:
    fill(store)
    with client(store, token=TOKEN, allow_write=True) as web:
        assert web.post("/login", data={"token": "wrong"}).status_code == 401
        done = web.post("/login?next=%2Ftasks", data={"token": TOKEN, "name": "Ann O'Neil"})
        assert (done.status_code, done.headers["location"]) == (303, "/tasks")
        cookie = done.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and TOKEN not in cookie
        page = web.get("/").text
        assert "Ann O&#39;Neil" in page
        token = re.search(r'name="holdfast-form" content="(\w+)"', page)
        assert token is not None
        form = {
            **ANSWER, "value": "true", "schema": '{"type": "boolean"}', "form_token": token[1],
        }  # fmt: skip
        assert web.post("/act/task/answer", data=form).status_code == 303
    view = store.get_task("claim/42")
    assert view is not None and view.questions[0].by == "Ann O'Neil"


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value[:-1] + ("0" if value[-1] != "0" else "1"),
        lambda value: "1" + value,
        lambda value: value.replace(".", "..", 1),
        lambda value: "",
        lambda value: "%00",
    ],
)
def test_an_altered_session_is_none(store: Store, change) -> None:  # type: ignore[no-untyped-def]
    with client(store, token=TOKEN) as web:
        done = web.post("/login", data={"token": TOKEN, "name": "ann"})
        value = done.headers["set-cookie"].partition("=")[2].partition(";")[0]
        web.cookies.clear()
        answer = web.get("/api/v1/inbox", headers={"cookie": f"holdfast_session={change(value)}"})
        assert answer.status_code == 401


def test_a_session_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(store, token=TOKEN) as web:
        web.post("/login", data={"token": TOKEN, "name": "ann"})
        assert web.get("/api/v1/inbox").status_code == 200
        later = time.time() + 13 * 3600
        monkeypatch.setattr("holdfast.web.auth.time.time", lambda: later)
        assert web.get("/api/v1/inbox").status_code == 401


def test_wrong_tokens_are_limited(store: Store) -> None:
    with client(store, token=TOKEN) as web:
        codes = [web.post("/login", data={"token": "x"}).status_code for _ in range(15)]
        assert codes == [401] * LOGIN_ATTEMPTS + [429] * (15 - LOGIN_ATTEMPTS)
        assert web.post("/login", data={"token": TOKEN}).status_code == 429


def test_a_proxys_user_is_believed_only_in_the_named_header(store: Store) -> None:
    with client(store, user_header="x-user", allow_write=True) as web:
        assert web.get("/api/v1/inbox").status_code == 401
        assert web.get("/api/v1/inbox", headers={"x-other": "ann"}).status_code == 401
        page = web.get("/", headers={"x-user": "ann"})
        assert (page.status_code, ">ann<" in page.text) == (200, True)


def test_every_answer_has_the_security_headers_and_no_page_is_stored(store: Store) -> None:
    with client(store) as web:
        for path in ("/", "/api/v1/inbox", "/static/app.js", "/nowhere", "/task?id=nobody"):
            headers = web.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            stored = "no-cache" if path.startswith("/static/") else "no-store"
            assert headers["cache-control"] == stored


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"],
)
def test_files_outside_the_static_folder_are_not_served(store: Store, path: str) -> None:
    with client(store) as web:
        assert web.get(path).status_code == 404


def test_a_body_that_is_too_large_is_refused(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True) as web:
        large = {"id": "claim/42", "name": "payout", "value": "x" * 2_000_000}
        answer = web.post("/api/v1/task/answer", json=large)
        assert (answer.status_code, answer.json()["error"]) == (413, "TooLarge")


def test_nothing_of_a_request_is_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    fill(store)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="holdfast"), client(store) as web:
        web.get("/task?id=claim%2F42")
        web.get("/api/v1/memory?namespace=support&query=canary-in-query")
    assert "canary-in-query" not in caplog.text


def test_a_mounted_dashboard_refuses_other_sites_too(store: Store) -> None:
    fill(store)
    app = Starlette(routes=[Mount("/ops", create_app(store, WebOptions(allow_write=True)))])
    with TestClient(app, base_url="http://127.0.0.1:4040") as web:
        headers = {"origin": "https://evil.example", "content-type": "text/plain"}
        answer = web.post("/ops/api/v1/task/cancel", content='{"id": "mail-1"}', headers=headers)
        assert answer.status_code == 403
    view = store.get_task("mail-1")
    assert view is not None and view.status != "cancelled"


def test_wrong_tokens_of_one_client_do_not_lock_out_others() -> None:
    guard = Guard(WebOptions(token=TOKEN))
    for _ in range(LOGIN_ATTEMPTS):
        guard.note_failed_login("10.0.0.1")
    assert not guard.may_try_login("10.0.0.1")
    assert guard.may_try_login("10.0.0.2")


def test_the_log_in_keeps_the_name_and_offers_no_pages(store: Store) -> None:
    with client(store, token=TOKEN) as web:
        refused = web.post("/login", data={"token": "wrong", "name": 'Ann "<i>'})
        assert refused.status_code == 401 and "not a token of this server" in refused.text
        assert 'value="Ann &#34;&lt;i&gt;"' in refused.text and "<nav" not in refused.text
        assert web.post("/login", data={"token": TOKEN, "name": "Ann"}).status_code == 303
        assert "<nav" in web.get("/").text


def test_a_shared_token_needs_a_name_and_a_token_with_a_name_has_one(store: Store) -> None:
    fill(store)
    options = {"token": TOKEN, "tokens": {"ann": "anns", "ci": "cis"}, "allow_write": True}
    with client(store, **options) as web:
        assert web.post("/login", data={"token": TOKEN, "name": " "}).status_code == 422
        assert web.post("/login", data={"token": "anns", "name": "Bob"}).status_code == 303
        assert ">ann<" in web.get("/").text
        web.cookies.clear()
        for token, status in (("cis", 200), ("anns", 409), ("cisx", 401)):
            headers = {"authorization": f"Bearer {token}"}
            answer = web.post("/api/v1/task/answer", json=ANSWER, headers=headers)
            assert answer.status_code == status
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert web.post("/api/v1/task/retry", json={"id": "broken-1"}, headers=headers).is_success
    view = store.get_task("claim/42")
    assert view is not None and view.questions[0].by == "ci"
    assert store.task("broken-1").history()[-1].by == "api"


def test_a_cookie_is_worth_nothing_after_its_session_was_logged_out(store: Store) -> None:
    with client(store, tokens={"ann": TOKEN}) as web:
        done = web.post("/login", data={"token": TOKEN})
        cookie = {"cookie": done.headers["set-cookie"].partition(";")[0]}
        web.cookies.clear()
        assert web.get("/api/v1/inbox", headers=cookie).status_code == 200
        assert web.post("/logout", headers=cookie).status_code == 303
        assert web.get("/api/v1/inbox", headers=cookie).status_code == 401
        assert web.get("/live", headers=cookie).status_code == 401


def test_tokens_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# who may\n\nann: a:b\nci:c\n")
    assert read_tokens(str(path)) == {"ann": "a:b", "ci": "c"}
    for wrong in ("ann\n", "ann:\n", "ann:x\nann:y\n", "\n"):
        path.write_text(wrong)
        with pytest.raises(click.exceptions.Exit):
            read_tokens(str(path))


@pytest.mark.parametrize("wrong", [{"token": ""}, {"tokens": {"ann": ""}}, {"tokens": {"": "x"}}])
def test_an_empty_token_or_name_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        WebOptions(**wrong)


def test_wrong_tokens_that_are_sent_at_the_same_time_are_limited_too(store: Store) -> None:
    app = create_app(store, WebOptions(token=TOKEN))

    async def log_in(waiting: list[object], go_on: asyncio.Event) -> int:
        async def receive() -> dict[str, Any]:
            waiting.append(None)
            await go_on.wait()
            return {"type": "http.request", "body": b"token=wrong"}

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        statuses: list[Any] = []
        scope = {
            "type": "http", "method": "POST", "path": "/login", "query_string": b"",
            "headers": [(b"host", b"localhost")], "client": ("10.0.0.1", 1),
        }  # fmt: skip
        await app(scope, receive, send)  # type: ignore[arg-type]
        return int(statuses[0])

    async def attack() -> list[int]:
        waiting: list[object] = []
        go_on = asyncio.Event()
        calls = [asyncio.ensure_future(log_in(waiting, go_on)) for _ in range(15)]
        while len(waiting) < len(calls):  # all have sent their headers, and none its token
            await asyncio.sleep(0.001)
        go_on.set()
        return await asyncio.gather(*calls)

    codes = asyncio.run(asyncio.wait_for(attack(), 60))
    assert sorted(codes) == [401] * LOGIN_ATTEMPTS + [429] * (15 - LOGIN_ATTEMPTS)


def test_the_form_token_of_a_page_is_worth_nothing_to_others(store: Store) -> None:
    fill(store)
    tokens = {"ann": "anns", "bob": "bobs"}
    with client(store, tokens=tokens, allow_write=True) as web:
        pages = [web.get("/login").text]
        web.post("/login", data={"token": "bobs"})
        pages.append(web.get("/").text)
        web.cookies.clear()
        web.post("/login", data={"token": "anns"})
        pages.append(web.get("/").text)
        found = [re.findall(r'name="holdfast-form" content="(\w*)"', page)[0] for page in pages]
        codes = []
        for token in found:
            form = {"form_token": token, "id": "mail-1"}
            codes.append(web.post("/act/task/cancel", data=form).status_code)
        assert codes == [403, 403, 303]


def test_strangers_are_not_told_the_tenant(store: Store) -> None:
    with client(store.for_tenant("acme-inc"), tokens={"ann": TOKEN}) as web:
        assert "acme-inc" not in web.get("/login").text
        web.post("/login", data={"token": TOKEN})
        assert "acme-inc" in web.get("/").text


def test_with_the_shared_token_nobody_takes_the_name_of_a_token(store: Store) -> None:
    with client(store, token=TOKEN, tokens={"ann": "anns"}) as web:
        refused = web.post("/login", data={"token": TOKEN, "name": "ann"})
        assert (refused.status_code, "set-cookie" in refused.headers) == (422, False)
        assert web.post("/login", data={"token": TOKEN, "name": "bob"}).status_code == 303


def test_sessions_end_when_the_tokens_change(store: Store) -> None:
    secret = b"k" * 32
    with client(store, tokens={"ann": "anns", "bob": "bobs"}, secret=secret) as web:
        done = web.post("/login", data={"token": "bobs"})
    cookie = {"cookie": done.headers["set-cookie"].partition(";")[0]}
    for tokens, status in (({"bob": "bobs", "ann": "anns"}, 200), ({"ann": "anns"}, 401)):
        with client(store, tokens=tokens, secret=secret) as web:
            assert web.get("/api/v1/inbox", headers=cookie).status_code == status


def test_credentials_that_browsers_add_by_themselves_do_not_replace_the_form_token(
    store: Store,
) -> None:
    fill(store)
    with client(store, user_header="x-user", allow_write=True) as web:
        headers = {"x-user": "ann", "authorization": "Basic YTpi", "origin": "https://evil.example"}
        answer = web.post("/api/v1/task/cancel", json={"id": "mail-1"}, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (403, "CrossSite")


def test_a_session_that_ends_while_its_page_begins_to_listen_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(store, tokens={"ann": TOKEN}) as web:
        web.post("/login", data={"token": TOKEN})
        ended = iter([False, False])  # for the gate, and when the session is read
        monkeypatch.setattr(Guard, "has_ended", lambda *_: next(ended, True))
        assert web.get("/live").status_code == 401


def test_values_that_are_nested_too_deeply_are_refused(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True) as web:
        deep = "[" * 100_000
        headers = {"content-type": "application/json"}
        assert web.post("/api/v1/task/answer", content=deep, headers=headers).status_code == 422
        token = re.findall(r'name="holdfast-form" content="(\w+)"', web.get("/").text)[0]
        form = {"form_token": token, "id": "claim/42", "name": "payout", "value": deep}
        for wrong in ({}, {"schema": deep}):
            answer = web.post("/act/task/answer", data={**form, **wrong})
            assert (answer.status_code, "Not+done" in answer.headers["location"]) == (303, True)
        form = {"form_token": token, "action": "cancel", "ids": '["\\ud800"]'}
        assert web.post("/act/tasks/batch", data=form).status_code == 303


def test_a_fork_that_cannot_be_queued_is_not_made(store: Store) -> None:
    with store.task("scripted", goal="g") as task:
        task.step("one", lambda: 1)
    with client(store, allow_write=True) as web:
        given = {"id": "scripted", "new_id": "forked", "queue": True}
        assert web.post("/api/v1/task/fork", json=given).status_code == 422
    assert store.get_task("forked") is None
