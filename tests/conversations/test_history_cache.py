"""Reading a conversation again: it costs what is new, and is right whatever happened since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import Ways
from holdfast import Conversation, Store
from holdfast.backends import Record
from holdfast.backends.memory import MemoryBackend
from holdfast.conversations import history
from holdfast.errors import Erased, Expired
from holdfast.log.log import Log


class CountingBackend(MemoryBackend):
    """Counts the records that are read."""

    records = 0

    def read(self, *args: Any, **options: Any) -> Any:
        page = super().read(*args, **options)
        self.records += len(page)
        return page


@pytest.fixture
def backend() -> CountingBackend:
    return CountingBackend()


@pytest.fixture
def chat(backend: CountingBackend) -> Conversation:
    chat = Store(Log(backend), "default").conversation("c")
    chat.append(*[{"role": "user", "content": f"message {number}"} for number in range(500)])
    assert len(chat.messages()) == 500
    backend.records = 0
    return chat


def texts(messages: list[Any]) -> list[Any]:
    return [message["content"] for message in messages]


@pytest.mark.parametrize("last", [None, 1, 3, 500, 1000])
def test_a_second_read_reads_only_what_is_new(
    chat: Conversation, backend: CountingBackend, last: int | None
) -> None:
    before = chat.messages(last=last)
    assert backend.records <= 2, "nothing is new"
    elsewhere = Store(Log(backend), "default").conversation("c")
    elsewhere.append({"role": "user", "content": "new"})
    backend.records = 0
    assert texts(chat.messages(last=last)) == [*texts(before), "new"][-(last or 501) :]
    assert backend.records <= 5
    assert len(chat.entries()) == 501, "entries are read from the store"


def test_the_cache_is_shared_by_the_handles_of_a_store(
    chat: Conversation, backend: CountingBackend
) -> None:
    again = Store(chat._log, "default").conversation("c")
    assert len(again.messages()) == 500
    assert backend.records <= 2


def test_a_caller_may_change_what_it_got(chat: Conversation) -> None:
    chat.append({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "add"}}]})
    first = chat.messages()
    first[0]["content"] = "changed"
    first[-1]["tool_calls"][0]["function"]["name"] = "changed"
    first[-1]["tool_calls"].append("changed")
    again = chat.messages()
    assert again[0]["content"] == "message 0"
    assert again[-1]["tool_calls"] == [{"id": "1", "function": {"name": "add"}}]


CHANGES: dict[str, Callable[[Conversation], object]] = {
    "popped": lambda chat: chat.pop(),
    "rewound": lambda chat: chat.rewind(version=7),
    "rewound and continued": lambda chat: (
        chat.rewind(version=7),
        chat.append({"role": "user", "content": "other"}),
    ),
    "cleared": lambda chat: chat.clear(),
    "repaired": lambda chat: (
        chat.append({"role": "assistant", "tool_calls": [{"id": "9", "function": {}}]}),
        chat.append({"role": "user", "content": "later"}),
        chat.repair(),
    ),
    "deleted": lambda chat: chat.delete(),
    "created again": lambda chat: (
        chat.delete(),
        chat.append({"role": "user", "content": "of another incarnation"}),
    ),
    "summarized": lambda chat: chat.summarize(lambda messages: "short", keep_last=1),
    "forked": lambda chat: chat.fork("child").append({"role": "user", "content": "child"}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_change_is_seen(
    chat: Conversation, backend: CountingBackend, change: str, elsewhere: bool
) -> None:
    other = Store(Log(backend), "default").conversation("c") if elsewhere else chat
    CHANGES[change](other)
    fresh = Store(Log(backend), "default").conversation("c").messages()
    assert list(chat.messages()) == list(fresh)
    assert list(chat.messages(last=2)) == list(fresh)[-2:]


def test_an_expired_or_erased_conversation_is_not_returned_from_the_cache(ways: Ways) -> None:
    store = ways.store
    chat = store.conversation("c", subject="person-7")
    chat.append({"role": "user", "content": "hello"})
    assert len(chat.messages()) == 1
    chat.expire(0)
    with pytest.raises(Expired):
        chat.messages()
    assert store._log.attachment(history.HistoryCache).size == 0


def test_an_erased_conversation_is_dropped(tmp_path: Any) -> None:
    with holdfast.open(tmp_path / "a.db", key=holdfast.keys.generate()) as store:
        chat = store.conversation("c", subject="person-7")
        chat.append({"role": "user", "content": "hello"})
        assert len(chat.messages()) == 1
        store.erase(subject="person-7")
        with pytest.raises(Erased):
            chat.messages()
        assert store._log.attachment(history.HistoryCache).size == 0


def test_the_cache_has_a_limit_and_the_oldest_goes_first(
    backend: CountingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_BYTES", 100_000)
    store = Store(Log(backend), "default")
    for number in range(20):
        store.conversation(f"c{number}").append({"role": "user", "content": "x" * 10_000})
        assert len(store.conversation(f"c{number}").messages()) == 1
    cache = store._log.attachment(history.HistoryCache)
    assert 50_000 < cache.size <= 100_000
    large = store.conversation("large")
    large.append({"role": "user", "content": "x" * 200_000})
    assert len(large.messages()[0]["content"]) == 200_000
    assert large._key not in cache._histories, "larger than the limit"
    assert 50_000 < cache.size <= 100_000


def test_a_record_that_is_gone_is_noticed(
    chat: Conversation, backend: CountingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.append({"role": "user", "content": "new"})
    whole = CountingBackend.read

    def holey(self: CountingBackend, *args: Any, **options: Any) -> list[Record]:
        return [record for record in whole(self, *args, **options) if record.version != 501]

    monkeypatch.setattr(CountingBackend, "read", holey)
    with pytest.raises(holdfast.errors.HoldfastError):
        chat.messages()


def nest(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


HISTORIES: dict[str, Callable[[Conversation], object]] = {
    "texts": lambda chat: chat.append({"role": "user", "content": 'Ünïcode, "quotes" {[('}),
    "other values": lambda chat: chat.append({"role": "user", "a": None, "b": 1.5, "c": [True]}),
    "nested values": lambda chat: chat.append({"role": "user", "content": nest(90)}),
    "many brackets": lambda chat: chat.append({"role": "user", "content": [{"a": "{[" * 500}]}),
    "meta": lambda chat: chat.append({"role": "user", "content": "x"}, meta={"a": {"b": 1}}),
    "pins": lambda chat: chat.append({"role": "user", "content": "x"}, pin=True),
    "a blob": lambda chat: chat.append({"role": "user", "content": "x" * 100_000}),
    "a draft": lambda chat: chat.draft("piece", of="answer"),
    **CHANGES,
}


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("ends", ["last", "in the middle"])
def test_messages_are_those_of_the_entries(history: str, ends: str) -> None:
    """Entries are decoded in another way."""
    backend = MemoryBackend()
    chat = Store(Log(backend), "default").conversation("c")
    chat.append(*[{"role": "user", "content": f"message {number}"} for number in range(20)])
    HISTORIES[history](chat)
    if ends == "in the middle":
        chat.append({"role": "user", "content": "end"})
    for name in ("c", "child"):
        fresh = Store(Log(backend), "default").conversation(name)
        assert fresh.messages() == [entry.message for entry in fresh.entries()]


def test_a_fork_keeps_its_messages_when_its_parent_changes(backend: CountingBackend) -> None:
    store = Store(Log(backend), "default")
    parent = store.conversation("parent")
    parent.append(*[{"role": "user", "content": f"message {number}"} for number in range(20)])
    child = parent.fork("child", version=10)
    assert len(parent.messages()) == 20
    assert len(child.messages()) == 10
    child.append({"role": "user", "content": "of the child"})
    parent.rewind(version=5)
    backend.records = 0
    assert texts(child.messages()) == [f"message {number}" for number in range(10)] + [
        "of the child"
    ]
    assert backend.records <= 5
    assert len(parent.messages()) == 5
