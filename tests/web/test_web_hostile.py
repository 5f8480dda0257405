"""Requests that no page of ours sends: the dashboard answers them all, and never fails."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import hypothesis
import msgspec
import pytest
import schemathesis
import uvicorn
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.web import HOSTILE, client, fill
from holdfast import Store
from holdfast.web import WebOptions, create_app
from holdfast.web.api import ENDPOINTS
from holdfast.web.openapi import describe_api

TOKEN = "s3cret-token"
PARAMETERS = {
    "/": [("", "after")],
    "/tasks": [("", "after", "status", "query", "agent")],
    "/task": [("", "id"), ("id=done-1", "version", "compare", "step", "after")],
    "/conversations": [("", "after")],
    "/conversation": [("", "id"), ("id=support-42", "max_tokens")],
    "/memory": [("", "namespace", "after"), ("namespace=support", "query")],
    "/streams": [("", "after", "kind")],
    "/stream": [("", "id"), ("id=orders", "kind", "last")],
    "/store": [("",)],
    "/login": [("", "next")],
}
PAGES = (*PARAMETERS, "/live")
KNOWN = ("claim/42", "mail-1", "broken-1", "done-1", "support-42", "support", "orders", "send")
DESCRIPTION = msgspec.json.decode(msgspec.json.encode(describe_api(ENDPOINTS)))
OPERATIONS = {
    each.ok().label: each.ok()
    for each in schemathesis.openapi.from_dict(DESCRIPTION).get_all_operations()
}


@pytest.fixture(scope="module")
def filled() -> Iterator[Store]:
    with holdfast.open("memory://") as store:
        fill(store)
        yield store


@pytest.mark.parametrize("label", list(OPERATIONS))
def test_no_described_request_fails_and_each_answer_has_the_described_form(
    filled: Store, label: str
) -> None:
    operation = OPERATIONS[label]
    with client(filled, allow_write=True) as web:

        @hypothesis.settings(
            max_examples=examples(15),
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(operation.as_strategy(), st.data())
        def check(case: Any, data: Any) -> None:
            given = case.as_transport_kwargs(base_url="http://127.0.0.1:4040")
            for values in (given.get("params"), given.get("json")):
                for name in ("id", "name", "step", "namespace"):
                    if isinstance(values, dict) and name in values:
                        values[name] = data.draw(st.sampled_from((values[name], *KNOWN)))
            wanted = {name: given[name] for name in ("params", "json") if name in given}
            answer = web.request(given["method"], given["url"], **wanted)
            assert answer.status_code in (200, 404, 409, 422), answer.text
            body = answer.json()
            if answer.status_code == 200:
                described = operation.definition.raw["responses"]["200"]
                _validate(body, described["content"]["application/json"]["schema"])
            else:
                assert set(body) == {"error", "message"}

        check()


def _validate(body: Any, schema: Any) -> None:
    import jsonschema_rs

    whole = {**schema, "components": DESCRIPTION["components"]}
    jsonschema_rs.validate(whole, body)


@pytest.mark.parametrize(
    "value",
    [
        "%00", "%", "%ff%fe", "a\r\nX-Injected: 1", "-1", "9" * 5000, "x" * 30_000, "\ud83d", "é",
        HOSTILE,
    ],
)  # fmt: skip
@pytest.mark.parametrize("page", PARAMETERS)
def test_no_parameter_makes_a_page_fail(filled: Store, page: str, value: str) -> None:
    raw = value if value.startswith("%") else quote(value.encode("utf-8", "surrogatepass"))
    with client(filled) as web:
        for known, *names in PARAMETERS[page]:
            for name in ("notice", *names):
                answer = web.get(f"{page}?{known}&{name}={raw}")
                assert answer.status_code < 500, (page, name)
                assert "x-injected" not in answer.headers
        assert web.get(f"/live?topic={raw}").status_code == 422


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_other_methods_read_and_change_nothing(filled: Store, method: str) -> None:
    with client(filled, allow_write=True) as web:
        for path in (*PAGES, "/act/task/cancel", "/logout", "/api/v1/tasks", "/api/v1/task/cancel"):
            answer = web.request(method, path, params={"id": "done-1"})
            assert answer.status_code < 500, (method, path)
            assert method == "HEAD" or answer.status_code in (403, 405), (method, path)


@pytest.mark.parametrize("value", ["\xe9", "\xff", "a" * 60_000, "..", "é.é"])
def test_headers_of_any_bytes_are_answered(filled: Store, value: str) -> None:
    raw = value.encode("latin-1")
    for options in ({}, {"token": TOKEN}, {"user_header": "x-user"}):
        with client(filled, allow_write=True, **options) as web:
            for name in (
                "cookie", "authorization", "origin", "x-user", "x-holdfast-form", "sec-fetch-site",
            ):  # fmt: skip
                given = b"holdfast_session=" + raw if name == "cookie" else raw
                for path in ("/", "/api/v1/inbox"):
                    assert web.get(path, headers={name: given}).status_code < 500, name
                answer = web.post("/api/v1/task/retry", json={"id": "x"}, headers={name: given})
                assert answer.status_code < 500, name
                form = {"form_token": value, "token": value, "name": value}
                for path in ("/act/task/retry", "/login", "/logout"):
                    answer = web.post(path, data=form, headers={name: given})
                    assert answer.status_code < 500, (name, path)


def test_a_notice_may_have_any_characters(filled: Store) -> None:
    with client(filled, allow_write=True) as web:
        token = re.search(r'name="holdfast-form" content="(\w+)"', web.get("/").text)
        assert token is not None
        form = {"form_token": token[1], "id": "tâche ✓", "name": "x", "value": "1"}
        answer = web.post("/act/task/answer", data=form)
        assert answer.status_code == 303
        shown = web.get(answer.headers["location"])
        assert shown.status_code == 200 and "Not done" in shown.text


@pytest.mark.parametrize("back", ["//e.example", "/\\e.example", "https://e.example", "/\t/e", ""])
def test_log_in_leads_to_no_other_site(filled: Store, back: str) -> None:
    with client(filled, token=TOKEN) as web:
        done = web.post("/login", params={"next": back}, data={"token": TOKEN, "name": "ann"})
        assert (done.status_code, done.headers["location"]) == (303, "/")


def test_a_planted_session_never_becomes_valid(filled: Store) -> None:
    with client(filled, token=TOKEN) as web:
        planted = {"cookie": "holdfast_session=planted-by-another-site"}
        done = web.post("/login", data={"token": TOKEN, "name": "ann"}, headers=planted)
        assert "planted" not in done.headers["set-cookie"]
        fresh = done.headers["set-cookie"].partition(";")[0]
        web.cookies.clear()
        assert web.get("/api/v1/inbox", headers=planted).status_code == 401
        assert web.get("/api/v1/inbox", headers={"cookie": fresh}).status_code == 200
        again = (
            web.post("/login", data={"token": TOKEN, "name": "ann"})
            .headers["set-cookie"]
            .partition(";")[0]
        )
        assert again != fresh


def test_people_log_out_of_a_read_only_server(filled: Store) -> None:
    with client(filled, token=TOKEN) as web:
        web.post("/login", data={"token": TOKEN, "name": "ann"})
        assert web.post("/logout").status_code == 303
        assert web.get("/api/v1/inbox").status_code == 401


def test_a_session_over_tls_is_sent_over_tls_only(filled: Store) -> None:
    with client(filled, token=TOKEN) as web:
        over_tls = {"origin": "https://127.0.0.1:4040"}
        done = web.post("/login", data={"token": TOKEN, "name": "ann"}, headers=over_tls)
        assert "secure" in done.headers["set-cookie"].lower()


def test_a_user_header_that_comes_twice_is_believed_in_neither(filled: Store) -> None:
    with client(filled, user_header="x-user") as web:
        twice = [("x-user", "admin"), ("x-user", "ann")]
        assert web.get("/api/v1/inbox", headers=twice).status_code == 401
        assert web.get("/api/v1/inbox", headers={"x-user": "ann"}).status_code == 200


def test_named_hosts_are_served_in_any_case(filled: Store) -> None:
    with client(filled, hosts=("Agents.Example",)) as web:
        assert web.get("/", headers={"host": "agents.EXAMPLE"}).status_code == 200


def test_values_of_every_stored_type_are_shown(store: Store) -> None:
    def at() -> datetime:
        return datetime.now(timezone.utc)

    def cost() -> Decimal:
        return Decimal("1.5")

    def raw() -> bytes:
        return b"\0\xff"

    with store.task("typed", goal="Show types") as task:
        for function in (at, cost, raw):
            task.step(function.__name__, function)
        task.finish()
    with client(store) as web:
        for place in ("", "&step=at", "&step=raw", "&version=3&compare=2"):
            assert web.get(f"/task?id=typed{place}").status_code == 200, place
        for path in ("task", "task/timeline", "task/events", "task/context"):
            assert web.get(f"/api/v1/{path}?id=typed").status_code == 200, path


# -- on a socket -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(filled: Store) -> Iterator[tuple[str, int]]:
    """The address of a real server, with a token."""
    config = uvicorn.Config(
        create_app(filled, WebOptions(token=TOKEN, allow_write=True)),
        port=0, log_level="critical", lifespan="off", timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    listener.listen()
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield listener.getsockname()
    server.should_exit = True
    thread.join()


HEAD = "POST /api/v1/task/cancel HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
SMUGGLED = "GET /api/v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    "request_text",
    [
        HEAD + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   " + SMUGGLED,
        HEAD + "Content-Length: -1\r\n\r\n" + SMUGGLED,
        HEAD + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "GET /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        "GET /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b\r\n c: d\r\n\r\n",
        "GET http://evil.example/tasks HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET //evil.example/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /static/..%2f..%2fapp.py HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /static/%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /%2e%2e/task HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /tasks?" + "a" * 100_000 + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /tasks\0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /static/style.css HTTP/1.0\r\n\r\n",
    ],
)
def test_smuggled_requests_reach_nothing(address: tuple[str, int], request_text: str) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request_text.encode("latin-1"))
        connection.shutdown(socket.SHUT_WR)
        got = b""
        while part := connection.recv(65536):
            got += part
    statuses = re.findall(rb"HTTP/1.1 (\d+)", got)
    assert not {b"200", b"500"} & set(statuses), got[:500]
    assert b"claim" not in got and b"evil.example\r\n" not in got.partition(b"\r\n\r\n")[0]
