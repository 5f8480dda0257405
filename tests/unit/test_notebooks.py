"""What a notebook shows of tasks, conversations, memories, contexts, previews and health: small,
without scripts, and with hostile content as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

import holdfast
from holdfast import Store

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m \u202e & \"'"
ALLOWED = {"div", "p", "strong", "br", "table", "tr", "td", "th", "pre"}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in ALLOWED and not attrs, (tag, attrs)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(shown: Any) -> str:
    """Return the text of what a notebook shows, which has only plain tags without attributes."""
    html = shown._repr_html_()
    assert len(html) < 30_000
    tags = _Tags()
    tags.feed(html)
    assert not tags.open
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", html)
    return tags.text


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory://") as store:
        yield store


def test_a_task_shows_its_goal_steps_and_plan(store: Store) -> None:
    with store.task("t", goal=f"Settle {HOSTILE}") as task:
        task.make_plan(["assess", f"pay {HOSTILE}"])
        task.step("assess", lambda: {"text": HOSTILE})
        for number in range(50):
            task.step(f"read {number}", lambda: "x" * 100_000)
        during = read(task)
    for shown in (read(store.task("t")), read(store.get_task("t")), during):
        assert "Settle <script>alert(1)</script>" in shown
        assert "read 49" in shown and "read 5\n" not in shown and "earlier steps" in shown
        assert "to do" in shown and r"\u001b" in shown and r"\u202e" in shown
    assert "is not in the store" in read(store.task("none"))


def test_showing_a_running_task_does_not_count_as_reading_its_record(store: Store) -> None:
    with store.task("t") as task:
        task._repr_html_()
        session = task._session
        assert session is not None and not session.matching.consulted


def test_a_task_that_cannot_be_read_says_so() -> None:
    store = holdfast.open("memory://")
    task, chat = store.task("t"), store.conversation("c")
    store.close()
    assert "can't be read" in read(task)
    assert "can't be read" in read(chat)


def test_a_conversation_shows_its_newest_messages(store: Store) -> None:
    chat = store.conversation("c")
    assert "is empty" in read(chat)
    chat.append(*({"role": "user", "content": f"no. {n} {HOSTILE}"} for n in range(30)))
    chat.append({"role": "assistant", "content": None, "tool_calls": [], "name": HOSTILE})
    shown = read(chat)
    assert "no. 29 <script>" in shown and "no. 5 <script>" not in shown and "assistant" in shown


def test_hits_show_their_score_and_the_reasons(store: Store) -> None:
    store.memory("m").remember(f"Ann signs {HOSTILE}")
    [hit] = store.memory("m").recall("who signs")
    shown = read(hit)
    assert "Ann signs <script>" in shown and "score" in shown and "words" in shown
    assert "Ann signs" in read(store.memory("m").get(hit.id))


def test_a_resume_context_and_a_preview_are_text(store: Store) -> None:
    with store.task("t", goal=HOSTILE) as task:
        task.make_plan(["one", f"two {HOSTILE}"])
        task.step("one", lambda: HOSTILE)
    assert "Continue from step 2" in read(store.task("t").resume_context(2000))
    shown = read(store.task("t").preview())
    assert "finished" in shown and "not started" in shown


def test_health_is_a_table(store: Store) -> None:
    store.conversation("c").append({"role": "user", "content": "hi"})
    shown = read(store.health())
    assert "memory" in shown and "conversation streams" in shown
