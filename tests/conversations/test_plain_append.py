"""The direct way of a plain append stores and returns what the general way does."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncConversation, Conversation, Store
from holdfast.conversations.base import ConversationBase
from holdfast.errors import HoldfastError
from holdfast.testing import FakeClock, fake_clock, seeded_ids

TEXT = {"role": "user", "content": 'Ünïcode, "quotes" and\nlines'}
ANSWER = {"role": "assistant", "content": "yes"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "function": {"name": "f"}}],
}
LOCATION = "memory://"


class GeneralConversation(Conversation):
    """Appends everything the general way."""

    def _prepare_plain_append(self, messages: Any) -> None:
        return None


class AsyncGeneralConversation(AsyncConversation):
    """Appends everything the general way."""

    def _prepare_plain_append(self, messages: Any) -> None:
        return None


class Chat:
    """A conversation of one of the two ways, sync or async, and what its calls answered."""

    def __init__(self, store: Store, clock: FakeClock, kind: type[ConversationBase]) -> None:
        self.store, self.clock = store, clock
        self.loop = asyncio.new_event_loop()
        self.handle = kind(store._log, store.conversation("c")._key)
        self.answers: list[Any] = []

    def append(self, *messages: Any, **options: Any) -> None:
        handle: Any = self.handle
        try:
            answer = handle.append(*messages, **options)
            if asyncio.iscoroutine(answer):
                answer = self.loop.run_until_complete(answer)
        except (HoldfastError, TypeError, ValueError) as error:
            answer = f"{type(error).__name__}: {error}"
        self.answers.append(answer)

    def other(self) -> Conversation:
        """Another handle, as another process has it."""
        return GeneralConversation(self.store._log, self.handle._key)

    def records(self) -> Any:
        key = self.handle._key
        records = self.store._log.reader.read_page(key)
        bodies = [(record.version, record.append_id, record.body) for record in records]
        return bodies, list(self.other().messages()), self.other().version()


def expire(chat: Chat, seconds: float, *, sliding: bool) -> None:
    chat.other().expire(seconds, sliding=sliding)
    chat.append(TEXT)
    chat.append(TEXT)


def append_in_a_turn(chat: Chat) -> None:
    with chat.other().turn():
        chat.append(TEXT)
    chat.append(TEXT)


def append_with_a_correlation_id(chat: Chat) -> None:
    with holdfast.correlate("request-7", actor="ada"):
        chat.append(TEXT)


def append_as_another(chat: Chat) -> None:
    chat.other().append(ANSWER)
    chat.append(TEXT)
    chat.append(TEXT)


def append_to_a_fork(chat: Chat) -> None:
    chat.other().fork("fork", version=1)
    chat.handle._key = chat.handle._key._replace(id="fork")
    chat.handle._snapshot = None
    chat.append(TEXT)
    chat.append(TEXT, ANSWER)


def append_later(chat: Chat) -> None:
    chat.clock.advance(10)
    chat.append(TEXT)


def mutate(chat: Chat) -> None:
    message = dict(TEXT)
    chat.append(message)
    message["content"] = "changed"
    chat.append(message)


def write_a_draft(chat: Chat) -> None:
    chat.other().draft("piece", of="answer")
    chat.append(TEXT)
    chat.append(ANSWER)


CASES: dict[str, tuple[int, Callable[[Chat], object]]] = {
    # How many of its appends take the direct way.
    "one text": (1, lambda chat: chat.append(TEXT)),
    "a turn": (1, lambda chat: chat.append(TEXT, ANSWER)),
    "16 texts": (1, lambda chat: chat.append(*[TEXT] * 16)),
    "17 texts": (0, lambda chat: chat.append(*[TEXT] * 17)),
    "no message": (0, lambda chat: chat.append()),
    "an empty message": (0, lambda chat: chat.append({})),
    "no dict": (0, lambda chat: chat.append("hello")),
    "another mapping": (0, lambda chat: chat.append(OrderedDict(TEXT))),
    "a tool call": (0, lambda chat: chat.append(TEXT, CALL)),
    "no text": (0, lambda chat: chat.append({"role": "user", "content": 7})),
    "a key that is no text": (0, lambda chat: chat.append({"role": "user", 7: "x"})),
    "half a character": (0, lambda chat: chat.append({"role": "user", "content": "\ud800"})),
    "a long text": (0, lambda chat: chat.append({"role": "user", "content": "x" * 20_000})),
    "a text that grows": (0, lambda chat: chat.append({"role": "user", "content": "\0" * 15_000})),
    "a blob": (0, lambda chat: chat.append({"role": "user", "content": "x" * 100_000})),
    "a system prompt": (0, lambda chat: chat.append({"role": "system", "content": "Be kind."})),
    "a developer prompt": (0, lambda chat: chat.append({"role": "developer", "content": "x"})),
    "pinned": (0, lambda chat: chat.append(TEXT, pin=True)),
    "with meta": (0, lambda chat: chat.append(TEXT, meta={"a": 1})),
    "with an id": (0, lambda chat: (chat.append(TEXT, id="1"), chat.append(TEXT, id="1"))),
    "at a version": (0, lambda chat: chat.append(TEXT, if_version=2)),
    "at another version": (0, lambda chat: chat.append(TEXT, if_version=1)),
    "with a correlation id": (1, append_with_a_correlation_id),
    "in a turn": (1, append_in_a_turn),
    "after another writer": (1, append_as_another),
    "to a fork": (1, append_to_a_fork),
    "later": (0, append_later),
    "changed after the append": (2, mutate),
    "after a draft": (1, write_a_draft),
    "with an expiry": (1, lambda chat: expire(chat, 60, sliding=False)),
    "with a sliding expiry": (1, lambda chat: expire(chat, 60, sliding=True)),
    "expired": (1, lambda chat: expire(chat, 0, sliding=False)),
}


@contextmanager
def opened(kind: type[ConversationBase], **options: Any) -> Iterator[Chat]:
    with (
        seeded_ids(7),
        fake_clock(1_800_000_000) as clock,
        holdfast.open(LOCATION, **options) as store,
    ):
        chat = Chat(store, clock, kind)
        chat.append(TEXT)
        chat.append(ANSWER)
        yield chat
        chat.loop.close()


@pytest.fixture
def direct_appends(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects the answers of appends that took the direct way."""
    answers: list[Any] = []
    finish = ConversationBase._finish_plain_append

    def finish_and_note(self: Any, plain: Any, answer: Any) -> Any:
        answers.append(answer)
        return finish(self, plain, answer)

    monkeypatch.setattr(ConversationBase, "_finish_plain_append", finish_and_note)
    return answers


KINDS = {
    "sync": (Conversation, GeneralConversation),
    "async": (AsyncConversation, AsyncGeneralConversation),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_both_ways_store_and_answer_the_same(
    case: str, kind: str, direct_appends: list[Any]
) -> None:
    count, act = CASES[case]
    found = []
    for way in KINDS[kind]:
        with opened(way) as chat:
            before = len(direct_appends)
            try:
                act(chat)
                records: Any = chat.records()
            except HoldfastError as error:
                records = repr(error)
            found.append((chat.answers, records))
            used = len(direct_appends) - before
            assert used == (count if way is KINDS[kind][0] else 0)
    assert found[0] == found[1]
    assert direct_appends, "the second append is plain"


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_deletion_the_general_way_starts_a_new_conversation(
    kind: str, direct_appends: list[Any]
) -> None:
    for way in KINDS[kind]:
        with opened(way) as chat:
            chat.other().delete()
            chat.append(TEXT)
            chat.append(ANSWER)
            assert [(answer.first, answer.duplicate) for answer in chat.answers[2:]] == [
                (1, False),
                (2, False),
            ]
            assert chat.other().messages() == [TEXT, ANSWER]
    assert len(direct_appends) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_with_redaction_takes_the_general_way(kind: str, direct_appends: list[Any]) -> None:
    with opened(KINDS[kind][0], redact=True) as chat:
        chat.append({"role": "user", "content": "write to ada@example.com"})
        assert not direct_appends
        assert "ada@example.com" not in str(chat.records())


def test_a_plain_append_is_encrypted(tmp_path: Path, direct_appends: list[Any]) -> None:
    with holdfast.open(tmp_path / "a.db", key=holdfast.keys.generate()) as store:
        chat = store.conversation("c")
        chat.append(TEXT)
        chat.append({"role": "user", "content": "a secret"})
        assert len(direct_appends) == 1
        assert [m["content"] for m in chat.messages()] == [TEXT["content"], "a secret"]
        stored = store._log.backend.read(chat._key)
        assert not any(b"a secret" in record.body for record in stored)


def test_a_subject_is_registered_before_a_plain_append(direct_appends: list[Any]) -> None:
    with holdfast.open(LOCATION) as store:
        store.conversation("c").append(TEXT)
        chat = store.conversation("c", subject="person-7")
        chat.append(TEXT)
        chat.append(TEXT)
        assert not direct_appends
