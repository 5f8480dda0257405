"""A store with something of everything, its dashboard, and a client for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

import holdfast
from holdfast import Store
from holdfast.web import WebOptions, create_app

HOSTILE = "<script>alert(1)</script><svg onload=alert(2)> \x1b[31m \u202e javascript:alert(3)"


def fill(store: Store) -> None:
    """Tasks that wait for a person in every way, a conversation, a memory and a stream."""

    @holdfast.agent(name="payout")
    def payout(task: Any) -> bool:
        task.step("look", lambda: {"sum": 41})
        return bool(task.ask("payout", f"Pay? {HOSTILE}", returns=bool, payload={"to": HOSTILE}))

    @holdfast.agent(name="mail", max_attempts=1)
    def mail(task: Any) -> str:
        return str(task.step("send", holdfast.step(_lose_answer, once=True)))

    @holdfast.agent(name="broken", max_attempts=1)
    def broken(task: Any) -> None:
        task.step("read", lambda: HOSTILE)
        task.decide(f"pay {HOSTILE}", why="complete")
        raise KeyError("oops")

    store.submit("payout", "claim/42", goal=f"Settle claim 42 {HOSTILE}")
    store.submit("mail", "mail-1", goal="Send the letter")
    store.submit("broken", "broken-1")
    store.run_due()
    with store.task("done-1", goal="A finished one", agent="claims") as task:
        task.make_plan(["one", "two"])
        for item in task.remaining():
            task.step(item, lambda: "ok")
        task.finish({"ok": True})
    chat = store.conversation("support-42")
    chat.append({"role": "user", "content": HOSTILE}, {"role": "assistant", "content": "Hi"})
    store.memory("support").remember(f"Ann signs the orders {HOSTILE}")
    store.stream("orders").append(("ordered", {"text": HOSTILE}))


def _lose_answer() -> str:
    raise ConnectionError("no answer")


@contextmanager
def client(store: Store, **options: Any) -> Iterator[httpx.Client]:
    """A client of the dashboard, in this process. It follows no redirects."""
    from starlette.testclient import TestClient

    app = create_app(store, WebOptions(**options))
    with TestClient(app, base_url="http://127.0.0.1:4040", follow_redirects=False) as found:
        yield found
