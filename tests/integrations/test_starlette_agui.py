"""Durable chats over the AG-UI protocol: each event is one of the protocol's own models, approvals
are interrupts, and a client continues after any event."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from ag_ui.core import Event, RunAgentInput, UserMessage
from pydantic import TypeAdapter

import holdfast
from helpers.chat_client import PATIENCE_SECONDS, SentEvent, follow, get, post, read_events, running
from integrations.test_starlette_chat import WORDS, ScriptedChat

EVENT: TypeAdapter[Any] = TypeAdapter(Event)


def run(base: str, thread: str, run_id: str, **given: Any) -> list[SentEvent]:
    """Send what a client of the protocol sends, and read the events of the run."""
    body = RunAgentInput(thread_id=thread, run_id=run_id, **{"messages": [], **given})
    url = f"{base}chat/agui"
    sent = body.model_dump(mode="json", by_alias=True)
    with httpx.stream("POST", url, json=sent, timeout=PATIENCE_SECONDS) as found:
        assert found.status_code == 200, found.read()
        return list(read_events(found))


def ask(base: str, thread: str, run_id: str, text: str) -> list[SentEvent]:
    message = UserMessage(id=f"m-{run_id}", content=text)
    return run(base, thread, run_id, messages=[message])


class Page:
    """What a client makes of the events: it checks their order and keeps the messages."""

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}
        self.open: str | None = None
        self.running = False
        self.outcome: Any = None

    def apply(self, events: list[SentEvent]) -> Page:
        for sent in events:
            event = EVENT.validate_python(sent.data)
            kind = event.type.value
            if kind == "RUN_STARTED":
                assert not self.running
                self.running = True
            elif kind == "TEXT_MESSAGE_START":
                assert self.running and self.open is None
                assert event.message_id not in self.messages
                self.open = event.message_id
                self.messages[event.message_id] = ""
            elif kind == "TEXT_MESSAGE_CONTENT":
                assert event.message_id == self.open
                self.messages[event.message_id] += event.delta
            elif kind == "TEXT_MESSAGE_END":
                assert event.message_id == self.open
                self.open = None
            elif kind == "MESSAGES_SNAPSHOT":
                assert self.open is None
                self.messages = {each.id: each.content for each in event.messages}
            else:
                assert kind in ("RUN_FINISHED", "RUN_ERROR")
                assert self.open is None
                self.running, self.outcome = False, event
        return self


def test_a_run_streams_its_answer_in_events_of_the_protocol(url: str) -> None:
    with running(ScriptedChat(url).app) as base:
        events = ask(base, "c", "run-1", "Count")
        page = Page().apply(events)
        assert list(page.messages.values()) == ["".join(WORDS)]
        assert page.outcome.outcome.type == "success"
        assert page.outcome.run_id == "run-1"


def test_a_run_continues_after_any_event(url: str) -> None:
    with running(ScriptedChat(url).app) as base:
        events = ask(base, "c", "run-1", "Count")
        assert len({event.id for event in events}) == len(events)
        for number, event in enumerate(events):
            assert event.id is not None
            assert follow(base, "agui/c?runId=run-1", event.id) == events[number + 1 :]


def test_an_approval_is_an_interrupt_and_its_answer_continues_in_another_run(url: str) -> None:
    with running(ScriptedChat(url).app) as base:
        page = Page().apply(first := ask(base, "c", "run-1", "approve it"))
        [interrupt] = page.outcome.outcome.interrupts
        assert (interrupt.message, interrupt.response_schema) == ("Really?", {"type": "boolean"})
        assert list(page.messages.values()) == [WORDS[0]]
        resume = [{"interruptId": interrupt.id, "status": "resolved", "payload": True}]
        second = run(base, "c", "run-2", resume=resume)
        # The text before the approval is taken back: the answer is written again.
        page.apply(second)
        assert list(page.messages.values()) == ["approve it", "One approved: True two three four."]
        assert page.outcome.outcome.type == "success"
        for number, event in enumerate(second):
            assert event.id is not None
            assert follow(base, "agui/c?runId=run-2", event.id) == second[number + 1 :]
        # The response was lost: the same request again gets the whole answer.
        again = Page().apply(first).apply(run(base, "c", "run-2", resume=resume))
        assert list(again.messages.values())[-1] == "One approved: True two three four."


def test_an_abandoned_interrupt_cancels_the_turn(url: str) -> None:
    with running(ScriptedChat(url).app) as base:
        [interrupt] = Page().apply(ask(base, "c", "r1", "approve it")).outcome.outcome.interrupts
        resume = [{"interruptId": interrupt.id, "status": "cancelled"}]
        page = Page().apply(run(base, "c", "r2", resume=resume))
        assert page.outcome.outcome.type == "cancelled"
        assert Page().apply(ask(base, "c", "r3", "Count")).outcome.outcome.type == "success"


def test_a_failed_answer_is_an_error_of_the_run(url: str) -> None:
    scripted = ScriptedChat(url)
    scripted.failures = 1
    with running(scripted.app) as base:
        page = Page().apply(ask(base, "c", "r1", "Count"))
        assert page.outcome.type.value == "RUN_ERROR"


def test_an_attempt_that_died_is_taken_back(tmp_path: Any) -> None:
    path = tmp_path / "chat.db"
    with holdfast.open(path) as store:  # a server that was killed in the middle of its answer
        chat = store.conversation("c")
        asked = chat.append(
            {"role": "user", "content": "Count"}, id="turn/m-r1", meta={"turn": "scripted/c/m-r1"}
        )
        store.submit("scripted", "scripted/c/m-r1", input={"conversation": "c", "version": 1})
        chat.draft("Uno due ", of="dead")
    with running(ScriptedChat(path).app) as base:
        events = ask(base, "c", "r1", "Count")
        page = Page().apply(events)
        assert asked.last == 1
        assert list(page.messages.values()) == ["Count", "".join(WORDS)]
        deltas = [event.data["delta"] for event in events if "delta" in event.data]
        assert deltas[0] == "Uno due "
        for number, event in enumerate(events):
            assert event.id is not None
            assert follow(base, "agui/c?runId=r1", event.id) == events[number + 1 :]


@pytest.mark.parametrize(
    "body",
    [
        {"threadId": "c", "runId": "", "messages": []},
        {"threadId": "", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "x"}]},
        {"threadId": "c", "runId": "r", "messages": []},
        {"threadId": "c", "runId": "r", "messages": [{"role": "user", "content": "x"}]},
        {"threadId": "c", "runId": "r", "messages": [{"id": "m", "role": "tool"}]},
        {"threadId": "c", "runId": "r", "resume": [{"interruptId": "i", "status": "maybe"}]},
        [],
    ],
)
def test_what_is_no_run_is_refused(body: Any) -> None:
    with running(ScriptedChat("memory://").app) as base:
        assert post(f"{base}chat/agui", json=body).status_code == 422
        for last in ("", "1", "1.2", "1.2.3.4", "a.b.c"):
            found = get(f"{base}chat/agui/c", headers={"last-event-id": last})
            assert found.status_code == 422
