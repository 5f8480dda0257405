"""Conversations: what is appended comes back, once, in order, on every backend."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    AlreadyExists,
    Conflict,
    CorruptFile,
    CorruptRecord,
    Expired,
    HasForks,
    Held,
    IdReused,
    LeaseLost,
    NotFound,
    NotSerializable,
    OutcomeUnknown,
    Store,
    Unavailable,
)
from holdfast import _operations as ops
from holdfast._streams import new_stamp
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.conversations._fold import BRANCHED, Ancestor, Branched, Fold
from holdfast.conversations._writing import new_event, put


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(*ids: str) -> dict[str, Any]:
    calls = [{"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}} for name in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id: str, text: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}


def one(message: Any) -> int:
    """A counter that makes a budget a number of messages."""
    return 1


# -- appending ---------------------------------------------------------------------------------------


def test_messages_come_back_in_order_in_another_process(durable_url: str) -> None:
    with holdfast.open(durable_url) as store:
        chat = store.conversation("c")
        chat.append(SYSTEM, user("Hello"))
        chat.append(assistant("Hi"))
    with holdfast.open(durable_url) as store:
        chat = store.conversation("c")
        assert chat.messages() == [SYSTEM, user("Hello"), assistant("Hi")]
        assert [entry.version for entry in chat.entries()] == [1, 2, 3]
        assert len(chat) == chat.count() == 3


def test_an_unused_conversation_does_not_exist(store: Store) -> None:
    chat = store.conversation("c")
    assert (chat.messages(), len(chat), chat.version(), chat.info(), chat.pending) == ([], 0, 0, None, None)
    assert (chat.pop(), chat.repair(), chat.validate(), chat.drafts(), chat.delete()) == (None, [], [], [], False)
    assert chat.window(100) == []
    assert list(store.conversations()) == []
    assert chat


def test_the_same_append_id_is_stored_once(store: Store) -> None:
    chat = store.conversation("c")
    first = chat.append(user("Hello"), id="req-1")
    chat.append(assistant("Hi"))
    again = store.conversation("c").append(user("Hello"), id="req-1")
    assert (first.first, first.duplicate, again.first, again.duplicate) == (1, False, 1, True)
    assert len(chat) == 2
    with pytest.raises(IdReused):
        chat.append(user("Goodbye"), id="req-1")
    with pytest.raises(IdReused):
        chat.append(user("Hello"), id="req-1", meta={"other": 1})


def test_a_system_prompt_repeated_under_its_id_is_no_other_content(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM, id="begin")
    chat.append(user("Hello"))
    assert chat.append(SYSTEM, id="begin").duplicate


def test_if_version_refuses_a_stale_writer(store: Store) -> None:
    chat = store.conversation("c")
    version = chat.append(user("a"), if_version=0).last
    chat.append(user("b"), if_version=version)
    with pytest.raises(Conflict) as caught:
        chat.append(user("c"), if_version=version)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert len(chat) == 2


def test_a_renewed_turn_is_no_reason_to_refuse_a_version(store: Store) -> None:
    chat = store.conversation("c")
    with chat.turn() as turn:
        version = chat.append(user("a")).last
        held = chat._log.heartbeat._beats
        [(_, renew)] = held.values()
        renew()
        assert chat.append(user("b"), if_version=version).first > version + 1
        with pytest.raises(Conflict):
            turn.append(user("c"), if_version=version)


def test_if_version_with_an_id_repeats_what_is_stored(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), id="1", if_version=0, pin=True)
    chat.append(user("b"))
    assert chat.append(user("a"), id="1", if_version=0, pin=True).duplicate
    with pytest.raises(Conflict):
        chat.append(user("x"), id="2", if_version=0)
    with pytest.raises(Conflict):
        chat.append(user("x"), if_version=9)


def test_an_append_of_several_messages_is_all_or_nothing(store: Store) -> None:
    chat = store.conversation("c")
    with pytest.raises(NotSerializable, match=r"\$\.message\.content"):
        chat.append(user("fine"), {"role": "user", "content": object()})
    assert chat.messages() == []


@pytest.mark.parametrize("wrong", ["text", ["list"], {}, 7, None])
def test_what_is_no_message_is_refused(store: Store, wrong: object) -> None:
    with pytest.raises(TypeError):
        store.conversation("c").append(wrong)
    with pytest.raises(ValueError, match="at least one"):
        store.conversation("c").append()


@pytest.mark.parametrize("seed", range(20))
def test_a_turn_retried_after_a_lost_answer_is_never_doubled(seed: int) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=seed, lost_answer=0.3, lost_request=0.1, unavailable=0.1)
    turns = [f"turn {number}" for number in range(20)]
    with holdfast.open(backend) as store:
        for turn in turns:
            while True:
                try:
                    store.conversation("c").append(user(turn), id=turn)  # as a new process would
                    break
                except (OutcomeUnknown, Unavailable):
                    continue
        assert sum(backend.injected.values()) > 0
        backend._rates = dict.fromkeys(backend._rates, 0.0)
        assert [message["content"] for message in store.conversation("c").messages()] == turns


def test_what_one_writer_knew_does_not_mislead_another(store: Store) -> None:
    one, two = store.conversation("c"), store.conversation("c")
    one.append(user("a"), user("b"), user("c"))
    two.pop()
    one.append(user("d"))
    one.append(user("e"))
    assert one.messages() == [user(text) for text in "abde"]
    assert len(store.conversation("c")) == 4


def test_meta_and_origin_stay_beside_the_message(store: Store) -> None:
    chat = store.conversation("c")
    with holdfast.correlate("req-7", actor="worker-1"):
        chat.append(user("Hello"), meta={"channel": "mail"})
    [entry] = chat.entries()
    assert (entry.message, entry.meta, entry.by, entry.correlation) == (
        user("Hello"),
        {"channel": "mail"},
        "worker-1",
        "req-7",
    )
    assert chat.messages() == [user("Hello")]


def test_large_messages_are_kept_and_counted(store: Store) -> None:
    chat = store.conversation("c")
    picture = user("x" * 300_000)
    chat.append(user("a"))
    chat.append(picture)
    chat.append(assistant("nice"))
    chat.append(picture, assistant("again"))
    other = store.conversation("c")
    assert (other.count(), other.messages(last=2)) == (5, [picture, assistant("again")])
    assert chat.delete()
    assert store.health().streams.get("blob", 0) == 0


# -- reading costs what it returns -------------------------------------------------------------------


class CountingBackend(MemoryBackend):
    records = 0

    def read(self, *args: Any, **options: Any) -> Any:
        page = super().read(*args, **options)
        self.records += len(page)
        return page


def test_the_newest_50_of_100_000_messages_read_about_50_records() -> None:
    backend = CountingBackend()
    with holdfast.open(backend) as store:
        chat = store.conversation("c")
        chat.append(SYSTEM)
        for start in range(0, 100_000, 5_000):
            chat.append(*[user(str(n)) for n in range(start, start + 5_000)])
        fresh = store.conversation("c")
        backend.records = 0
        assert [m["content"] for m in fresh.messages(last=50)] == [str(n) for n in range(99_950, 100_000)]
        assert backend.records < 60
        backend.records = 0
        assert fresh.count() == 100_001
        fresh.append(user("one more"))
        assert fresh.pending is not None
        window = fresh.window(20, counter=one)
        assert window[0] == SYSTEM and len(window) == 20
        assert backend.records < 150


# -- rewinding ---------------------------------------------------------------------------------------


def test_rewind_goes_back_and_can_be_undone(store: Store) -> None:
    chat = store.conversation("c")
    for text in "abcd":
        chat.append(user(text))
    assert chat.rewind(to=2) == 2
    assert chat.messages() == [user("a"), user("b")]
    chat.append(user("e"))
    assert chat.messages() == [user("a"), user("b"), user("e")]
    assert chat.rewind(to=4) == 0
    assert chat.messages() == [user(text) for text in "abcd"]
    chat.clear()
    assert (chat.messages(), len(chat)) == ([], 0)
    with pytest.raises(NotFound):
        chat.rewind(to=99)


def test_pop_takes_the_newest_message(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), user("b"))
    assert [chat.pop(), chat.pop(), chat.pop()] == [user("b"), user("a"), None]
    chat.append(user("c"))
    assert chat.messages() == [user("c")]


def test_no_two_threads_pop_the_same_message(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(*[user(str(n)) for n in range(40)])
    popped: list[str] = []
    lock = threading.Lock()

    def take() -> None:
        mine = store.conversation("c")
        while (message := mine.pop()) is not None:
            with lock:
                popped.append(message["content"])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(popped, key=int) == [str(n) for n in range(40)]


# -- sync --------------------------------------------------------------------------------------------


def test_sync_appends_only_what_is_new(store: Store) -> None:
    chat = store.conversation("c")
    messages = [SYSTEM, user("a")]
    assert chat.sync(messages) == 2
    messages.append(assistant("b"))
    assert (chat.sync(messages), chat.sync(messages), store.conversation("c").sync(messages)) == (1, 0, 0)
    assert (chat.messages(), chat.version()) == (messages, 3)


def test_sync_rewinds_to_where_the_lists_part(store: Store) -> None:
    chat = store.conversation("c")
    chat.sync([user("a"), assistant("b"), user("c")])
    assert chat.sync([user("a"), assistant("better")]) == 1
    assert chat.messages() == [user("a"), assistant("better")]
    assert chat.sync([user("a")]) == 0
    assert chat.messages() == [user("a")]


def test_sync_of_a_trimmed_list_forgets_nothing(store: Store) -> None:
    chat = store.conversation("c")
    history = [SYSTEM, *[user(str(n)) for n in range(10)]]
    chat.sync(history)
    assert chat.sync([SYSTEM, *history[-3:], assistant("new")]) == 1
    assert chat.messages() == [*history, assistant("new")]


def test_sync_does_not_undo_what_somebody_else_stored(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs = store.conversation("c"), store.conversation("c")
    mine.sync([user("a")])
    theirs.sync([user("a"), assistant("b")])
    for wrong in ([user("a"), assistant("mine")], [user("a")]):
        with pytest.raises(Conflict):
            mine.sync(wrong)
    assert mine.sync([user("a"), assistant("b"), user("c")]) == 1
    with pytest.raises(ValueError, match="clear"):
        mine.sync([])
    with caplog.at_level(logging.WARNING, "holdfast"):
        mine.sync([user("a")])
    assert "2 messages" in caplog.text
    assert theirs.messages() == [user("a")]


@pytest.mark.parametrize("keep", range(5))
def test_sync_after_a_repair_keeps_just_what_the_list_has(store: Store, keep: int) -> None:
    chat = store.conversation("c")
    chat.append(user("1"), call("x"), user("2"), result("nobody"))
    chat.repair()
    chat.append(assistant("3"))
    wanted = [*chat.messages()[:keep], user("edited")]
    chat.sync(wanted)
    assert chat.messages() == wanted == store.conversation("c").messages()
    assert len(chat) == keep + 1
    assert chat.sync([*wanted, user("more")]) == 1


@pytest.mark.parametrize("system", [None, "Another prompt"])
def test_sync_of_a_window_forgets_nothing(store: Store, system: str | None) -> None:
    chat = store.conversation("c")
    for n in range(50):
        chat.append(user(f"question {n}"), assistant(f"answer {n}"))
    chat.summarize(lambda messages: "many questions", keep_last=10)
    window = chat.window(9, system=system, counter=one)
    assert chat.sync([*window, user("new")]) == 1
    assert len(chat) == 101


# -- windows -----------------------------------------------------------------------------------------


def test_a_window_keeps_system_prompt_and_pins_and_whole_exchanges(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM)
    chat.append(user("my name is Ann"), pin=True)
    for n in range(50):
        chat.append(user(f"q{n}"), call(f"c{n}"), result(f"c{n}"), assistant(f"a{n}"))
    window = chat.window(11, counter=one)
    assert window[:2] == [SYSTEM, user("my name is Ann")]
    assert window[2:] == chat.messages(last=8)
    other = chat.window(11, counter=one, system="Another prompt")
    assert other[0] == {"role": "system", "content": "Another prompt"} and SYSTEM not in other
    assert chat.window(1000, counter=one) == chat.messages()
    everything = chat.window(1000, counter=one, system="Another prompt")
    assert everything == [{"role": "system", "content": "Another prompt"}, *chat.messages()[1:]]


def test_a_system_message_in_the_middle_is_cut_like_any_other(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM, {"role": "developer", "content": "Be kind."}, user("a"), {"role": "system", "content": "late"})
    chat.append(assistant("b"), user("c"))
    assert chat.window(3, counter=one) == [SYSTEM, {"role": "developer", "content": "Be kind."}, user("c")]


def test_a_popped_message_is_pinned_no_more(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("fact"), pin=True)
    assert chat.pop() == user("fact")
    chat.append(*[user(str(n)) for n in range(10)])
    assert chat.window(2, counter=one) == [user("8"), user("9")]


def test_a_pinned_call_brings_its_result(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("pay"))
    chat.append(call("x"), pin=True)
    chat.append(result("x", "PAID 100"), assistant("paid"))
    for n in range(100):
        chat.append(user(f"q{n}"), assistant(f"a{n}"))
    assert chat.window(6, counter=one)[:2] == [call("x"), result("x", "PAID 100")]


def test_a_window_too_small_for_the_newest_exchange_says_so(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("q"), call("1"), result("1"), assistant("a"))
    with pytest.raises(holdfast.BudgetExceeded) as caught:
        chat.window(3, counter=one)
    assert (caught.value.needed, caught.value.budget) == (4, 3)
    with pytest.raises(ValueError, match="max_tokens"):
        chat.window(0)


def test_the_error_says_what_the_whole_newest_exchange_needs(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("before"), assistant("this"))
    chat.append(user("q"))
    for n in range(30):
        chat.append(call(str(n)), result(str(n)))
    with pytest.raises(holdfast.BudgetExceeded) as caught:
        chat.window(10, counter=one)
    assert caught.value.needed == 61


def test_a_window_reads_on_when_it_cannot_begin_where_the_budget_ends(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), assistant("b"), user("pay"), {"type": "mcp_approval_request", "id": "r", "name": "pay"})
    chat.append(*[user("are you there?") for _ in range(40)])
    chat.append({"type": "mcp_approval_response", "approval_request_id": "r", "approve": True}, user("thanks"))
    assert chat.window(1, counter=one) == [user("thanks")]
    with pytest.raises(holdfast.BudgetExceeded):
        contents = chat.fork("d", at=chat.version() - 1)
        contents.window(10, counter=one)


def test_a_window_shows_a_dangling_call_as_interrupted_without_storing_that(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("q"), call("1", "2"), result("1"))
    window = chat.window(1000)
    assert [message["role"] for message in window] == ["user", "assistant", "tool", "tool"]
    assert window[3]["tool_call_id"] == "2"
    assert chat.version() == 3


# -- summaries ---------------------------------------------------------------------------------------


def test_a_summary_stands_for_what_a_window_cuts(store: Store) -> None:
    chat = store.conversation("c")
    for n in range(20):
        chat.append(user(f"q{n}"), assistant(f"a{n}"))
    seen: list[list[Any]] = []

    def summarise(messages: list[Any]) -> str:
        seen.append(messages)
        return f"{len(messages)} messages"

    entry = chat.summarize(summarise, keep_last=10)
    assert entry is not None and entry.meta == {"covers": [1, 30]}
    window = chat.window(7, counter=one)
    assert window[0]["content"].endswith("30 messages") and window[1:] == chat.messages(last=6)
    assert chat.summarize(summarise, keep_last=10) is None
    assert chat.messages()[0] == user("q0")
    chat.append(user("q20"), assistant("a20"))
    again = chat.summarize(summarise, keep_last=10)
    assert again is not None and again.meta == {"covers": [1, 32]}
    assert seen[1][0] == entry.message and seen[1][1:] == [user("q15"), assistant("a15")]
    assert chat.window(1000, counter=one) == chat.messages()


def test_a_summary_survives_a_rewind_that_leaves_its_range(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(*[user(str(n)) for n in range(10)])
    chat.summarize(lambda messages: "long ago", keep_last=4)
    chat.rewind(to=8)
    assert "long ago" in chat.window(2, counter=one)[0]["content"]
    chat.rewind(to=3)
    assert chat.window(2, counter=one) == [user("1"), user("2")]


def test_a_summary_of_messages_that_were_rewound_meanwhile_is_refused(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(*[user(str(n)) for n in range(10)])

    def slow(messages: list[Any]) -> str:
        store.conversation("c").rewind(to=2)
        return "too late"

    with pytest.raises(Conflict) as caught:
        chat.summarize(slow, keep_last=2)
    assert (caught.value.expected, caught.value.actual) == (10, chat.version())
    assert chat.window(2, counter=one) == [user("0"), user("1")]


def test_messages_appended_while_a_summary_is_made_do_not_matter(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(*[user(str(n)) for n in range(10)])

    def slow(messages: list[Any]) -> str:
        store.conversation("c").append(user("more"))
        return "fine"

    assert chat.summarize(slow, keep_last=2)
    assert len(chat) == 11


def test_a_message_that_a_repair_put_in_does_not_hide_others_from_the_summary(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("1"), call("x"), user("IMPORTANT"), assistant("ok"))
    chat.repair()
    chat.summarize(lambda messages: "S1", keep_last=2)
    for n in range(4):
        chat.append(user(f"q{n}"), assistant(f"a{n}"))
    given: list[Any] = []
    chat.summarize(lambda messages: given.extend(messages) or "S2", keep_last=2)  # type: ignore[func-returns-value]
    assert user("IMPORTANT") in given and assistant("ok") in given


def test_a_summary_of_what_a_rewind_takes_away_goes_with_it(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("1"), assistant("secret"), user("3"))
    chat.clear()
    empty = chat.version()
    chat.rewind(to=3)
    chat.summarize(lambda messages: "about the secret", keep_last=0)
    chat.rewind(to=empty)
    info = chat.info()
    assert info is not None and (info.messages, info.summarized_upto) == (0, 0)


def test_a_conversation_begun_anew_while_it_is_summarised_is_a_conflict(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM, user("1"), assistant("2"), user("3"))
    chat.append(user("p"), pin=True)

    def slow(messages: list[Any]) -> str:
        store.conversation("c").delete()
        store.conversation("c").append(user("n"))
        return "S"

    with pytest.raises(Conflict):
        chat.summarize(slow, keep_last=1)


# -- repair ------------------------------------------------------------------------------------------


def test_repair_answers_dangling_calls_once_and_is_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    chat = store.conversation("c")
    chat.append(user("q"), call("1"), user("are you there?"), call("2"))
    chat.append(result("nobody", "stray"))
    found = chat.validate()
    assert sorted(problem.kind for problem in found) == ["dangling call", "dangling call", "orphan result"]
    assert chat.version() == 5
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert chat.repair() == found
    assert "dangling call" in caplog.text and "stray" not in caplog.text
    other = store.conversation("c")
    assert other.validate() == [] and other.repair() == []
    assert [message["role"] for message in other.messages()] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert "stray" in str(other.messages()[-1]["content"])
    assert other.count() == 7
    assert [entry.message for entry in other.follow(timeout=0)][4] == result("nobody", "stray")


def test_an_interrupted_answer_is_kept_as_such(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("Tell me a story"))
    chat.draft("Once upon ", of="answer-1")
    chat.draft("a time", of="answer-1")
    assert (len(chat), chat.messages()) == (1, [user("Tell me a story")])
    [draft] = store.conversation("c").drafts()
    assert (draft.of, draft.text) == ("answer-1", "Once upon a time")
    assert chat.pending is not None
    assert [problem.kind for problem in chat.repair()] == ["interrupted answer"]
    assert chat.messages()[-1] == assistant("Once upon a time")
    assert chat.entries()[-1].meta == {"interrupted": True, "of": "answer-1"}
    assert (chat.drafts(), chat.repair(), chat.pending) == ([], [], None)


def test_of_several_attempts_at_an_answer_the_newest_is_kept(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("q"))
    chat.draft("first try", of="1")
    chat.draft("second try", of="2")
    assert [draft.text for draft in chat.drafts()] == ["first try", "second try"]
    chat.repair()
    assert chat.messages() == [user("q"), assistant("second try")]


def test_another_question_does_not_lose_a_draft(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("q"))
    chat.draft("half an ans", of="1")
    chat.append(user("are you there?"))
    assert [draft.text for draft in chat.drafts()] == ["half an ans"]


def test_a_finished_answer_settles_its_draft(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("q"))
    chat.draft("par", of="1")
    chat.append(assistant("partly"))
    assert (chat.drafts(), chat.repair()) == ([], [])


def test_pending_is_the_user_turn_without_an_answer(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM)
    assert chat.pending is None
    chat.append(user("q"))
    for message in (call("1"), result("1")):
        pending = chat.pending
        assert pending is not None and pending.message == user("q")
        chat.append(message)
    assert chat.pending is not None
    chat.append(assistant("a"))
    assert chat.pending is None


def test_a_late_retry_gets_its_own_answer(store: Store) -> None:
    chat = store.conversation("c")
    first = chat.append(user("first"), id="1").last
    assert chat.answer(first) is None
    chat.append(call("x"))
    assert chat.answer(first) is None
    chat.append(result("x"), assistant("to the first"))
    second = chat.append(user("second"), id="2").last
    again = chat.append(user("first"), id="1").last
    found = chat.answer(again)
    assert found is not None and found.message == assistant("to the first")
    assert chat.answer(second) is None
    chat.append(assistant("one moment"), call("y"))
    assert chat.answer(second) is None
    chat.append(result("y"), assistant("to the second"))
    found = chat.answer(second)
    assert found is not None and found.message == assistant("to the second")
    assert chat.answer(99) is None


# -- forks -------------------------------------------------------------------------------------------


def test_a_fork_copies_nothing_and_goes_its_own_way(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM, user("a"), assistant("b"), user("c"))
    fork = chat.fork("d", at=3)
    fork.append(user("other"))
    chat.append(assistant("d"))
    assert fork.messages() == [SYSTEM, user("a"), assistant("b"), user("other")]
    assert fork.messages(last=2) == [assistant("b"), user("other")]
    assert chat.messages() == [SYSTEM, user("a"), assistant("b"), user("c"), assistant("d")]
    info = fork.info()
    assert info is not None and (info.forked_from, info.forked_at, info.messages) == ("c", 3, 4)
    assert fork.window(2, counter=one) == [SYSTEM, user("other")]
    assert [entry.message for entry in fork.follow(timeout=0)] == fork.messages()


def test_a_fork_has_versions_of_its_own_that_go_on_from_its_parents(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), user("b"))
    fork = chat.fork("d")
    answer = fork.append(user("c"))
    assert fork.version() == answer.last
    with pytest.raises(Conflict):
        fork.append(user("d"), if_version=2)
    fork.append(user("d"), if_version=answer.last)
    assert fork.rewind(to=1) == 3
    assert (fork.messages(), chat.messages()) == ([user("a")], [user("a"), user("b")])


def test_making_the_same_fork_again_is_harmless_another_one_is_not(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), user("b"))
    chat.fork("d", at=1)
    assert chat.fork("d", at=1).messages() == [user("a")]
    chat.fork("e")
    assert chat.fork("e").messages() == [user("a"), user("b")]
    with pytest.raises(AlreadyExists):
        chat.fork("d", at=2)
    store.conversation("e").append(user("c"))
    with pytest.raises(AlreadyExists):
        chat.fork("e")
    with pytest.raises(NotFound):
        chat.fork("f", at=99)
    with pytest.raises(ValueError, match="own"):
        chat.fork("c")


def test_a_conversation_with_living_forks_is_not_deleted(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), user("b"))
    fork = chat.fork("d")
    grandchild = fork.fork("e", at=1)  # its messages are all in the first
    with pytest.raises(HasForks) as caught:
        chat.delete()
    assert caught.value.forks == ["d", "e"]
    assert fork.delete()
    with pytest.raises(HasForks):
        chat.delete()
    assert grandchild.messages() == [user("a")]
    assert grandchild.delete() and chat.delete()
    assert list(store.conversations()) == []


def test_a_fork_whose_parent_was_removed_beneath_it_says_so(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"))
    fork = chat.fork("d")
    stream = store.stream("c")
    stream._key = chat._key
    stream.delete()
    with pytest.raises(CorruptRecord, match="forked from"):
        fork.messages()
    chat.append(user("another life"))
    with pytest.raises(CorruptRecord, match="forked from"):
        fork.messages()


# -- turns -------------------------------------------------------------------------------------------


def test_two_turns_do_not_interleave(store: Store) -> None:
    inside = threading.Event()

    def other() -> None:
        mine = store.conversation("c")
        with mine.turn():
            inside.set()
            mine.append(user("second question"))
            mine.append(assistant("second answer"))

    chat = store.conversation("c")
    thread = threading.Thread(target=other)
    with chat.turn():
        chat.append(user("first question"))
        thread.start()
        with pytest.raises(Held):
            with holdfast_turn(store):
                pass
        assert not inside.is_set()
        chat.append(assistant("first answer"))
    thread.join()
    assert [message["content"] for message in chat.messages()] == [
        "first question",
        "first answer",
        "second question",
        "second answer",
    ]
    assert len(chat) == 4


def holdfast_turn(store: Store) -> Any:
    """A turn asked for by somebody else: not in this thread's context."""
    from contextlib import contextmanager

    @contextmanager
    def asked() -> Any:
        def enter() -> None:
            with store.conversation("c").turn(wait=0):
                pass

        contextvars.Context().run(enter)
        yield

    return asked()


def test_a_turn_inside_a_turn_is_the_same_turn(store: Store) -> None:
    chat = store.conversation("c")
    with chat.turn():
        with store.conversation("c").turn(wait=0):
            chat.append(user("a"))
    assert chat.messages() == [user("a")]


def test_a_turn_that_was_taken_over_writes_nothing_more(store: Store) -> None:
    chat = store.conversation("c")
    with chat.turn(lease=0.001):
        chat._log.heartbeat.stop()  # as if this process had been stopped for longer than its lease
        chat.append(user("mine"))
        contextless(lambda: take_turn_and_append(store))
        for write in (
            lambda: chat.append(user("late")),
            chat.pop,
            chat.clear,
            lambda: chat.sync([user("late")]),
            lambda: chat.draft("late", of="x"),
            lambda: chat.fork("d"),
            lambda: chat.expire(5),
            chat.delete,
            chat.repair,
        ):
            with pytest.raises(LeaseLost):
                write()  # type: ignore[no-untyped-call]
    assert chat.messages() == [user("mine"), user("theirs")]


def take_turn_and_append(store: Store) -> None:
    with store.conversation("c").turn() as other:
        other.append(user("theirs"))


def contextless(do: Any) -> None:
    contextvars.Context().run(do)


def test_a_turn_holds_in_another_context_for_the_object_it_gives(store: Store) -> None:
    chat = store.conversation("c")

    def stream() -> Any:
        with chat.turn(lease=0.001) as mine:
            yield
            chat._log.heartbeat.stop()
            contextless(lambda: take_turn_and_append(store))
            with pytest.raises(LeaseLost):
                mine.append(user("late"))
            yield

    steps = stream()
    for _ in range(2):  # as a web framework does, which runs each step of a generator in a context of its own
        contextvars.copy_context().run(next, steps)
    steps.close()
    assert chat.messages() == [user("theirs")]


def test_a_task_started_in_a_turn_has_turns_of_its_own_after_it(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat, over = store.conversation("c"), asyncio.Event()

            async def later() -> None:
                await over.wait()
                async with chat.turn():
                    await chat.append(user("later"))

            async with chat.turn():
                task = asyncio.create_task(later())
            over.set()
            await task
            assert await chat.messages() == [user("later")]

    asyncio.run(main())


@pytest.mark.parametrize("pauses", range(12))
def test_a_turn_cancelled_at_any_point_is_given_back(url: str, pauses: int) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat = store.conversation("c")
            await chat.append(user("a"))

            async def turn() -> None:
                async with chat.turn(lease=60):
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)

            task = asyncio.create_task(turn())
            for _ in range(pauses):
                await asyncio.sleep(0 if pauses < 6 else 0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with chat.turn(wait=0):
                pass

    asyncio.run(main())


def test_one_failed_renewal_does_not_end_all_others() -> None:
    class Failing(MemoryBackend):
        fails = 0

        def head(self, *args: Any, **options: Any) -> Any:
            if threading.current_thread().name == "holdfast-leases" and not self.fails:
                self.fails += 1
                raise OSError("gone for a moment")
            return super().head(*args, **options)

    backend = Failing()
    with holdfast.open(backend) as store:
        chat = store.conversation("c")
        with chat.turn(lease=0.06):
            while not any(b"turn.renewed" in record.body for record in backend.read(chat._key)):
                threading.Event().wait(0.01)
        assert backend.fails == 1


def test_async_pending_without_await_is_refused(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            with pytest.raises(TypeError, match="await"):
                assert store.conversation("c").pending

    asyncio.run(main())


def test_expiry_is_looked_at_again(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("1"))
    chat.expire(0.001)
    with pytest.raises(Expired):
        while True:
            chat.append(user("2"))
    store.conversation("c").expire(None)
    chat.append(user("3"))
    assert chat.messages()[-1] == user("3")


def test_a_fork_of_what_is_deleted_meanwhile_leaves_nothing() -> None:
    class Racing(MemoryBackend):
        meanwhile: Any = None

        def append(self, batch: Any) -> Any:
            if self.meanwhile and batch[0].stream.id == "child":
                now, self.meanwhile = self.meanwhile, None
                now()
            return super().append(batch)

    backend = Racing()
    with holdfast.open(backend) as store, holdfast.open(backend) as other:
        chat = store.conversation("c")
        chat.append(user("1"))
        backend.meanwhile = other.conversation("c").delete
        with pytest.raises(NotFound):
            chat.fork("child")
        assert [item.id for item in store.conversations()] == []


def test_health_tells_who_has_a_turn(store: Store) -> None:
    assert store.health().oldest_lease is None
    chat = store.conversation("c")
    with chat.turn():
        lease = store.health().oldest_lease
        assert lease is not None and lease.stream == "c" and str(os.getpid()) in lease.owner
    assert store.health().oldest_lease is None


def test_a_turn_is_renewed_while_it_lasts(store: Store) -> None:
    chat = store.conversation("c")
    renewed = threading.Event()
    with chat.turn(lease=0.06):
        original = chat._renew

        def renew(turn: Any) -> None:
            original(turn)
            renewed.set()

        chat._renew = renew  # type: ignore[method-assign]
        assert renewed.wait(30)
        chat.append(user("still mine"))
    assert chat.messages() == [user("still mine")]


# -- following ---------------------------------------------------------------------------------------


def test_follow_goes_on_from_a_cursor_without_gaps(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), user("b"))
    seen = [entry.version for entry in chat.follow(timeout=0)]
    chat.append(user("c"))
    assert [entry.message for entry in chat.follow(after=seen[-1], timeout=0)] == [user("c")]


def test_follow_sees_what_is_appended_while_it_waits(store: Store) -> None:
    chat = store.conversation("c")
    follower = store.conversation("c").follow()

    def write() -> None:
        for n in range(50):
            chat.append(user(str(n)))

    thread = threading.Thread(target=write)
    thread.start()
    assert [next(follower).message["content"] for _ in range(50)] == [str(n) for n in range(50)]
    thread.join()


def test_follow_of_a_deleted_conversation_ends_with_an_error(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"))
    follower = chat.follow()
    next(follower)
    chat.delete()
    with pytest.raises(NotFound):
        next(follower)


# -- life --------------------------------------------------------------------------------------------


def test_an_expired_conversation_is_invisible_and_can_be_brought_back(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"))
    chat.expire(timedelta(days=1))
    info = chat.info()
    assert info is not None and info.expires_at is not None
    chat.expire(0)
    for use in (chat.messages, chat.count, lambda: chat.append(user("b")), lambda: chat.window(100), chat.pop):
        with pytest.raises(Expired):
            use()  # type: ignore[operator]
    assert list(store.conversations()) == []
    chat.expire(None)
    assert chat.messages() == [user("a")]
    chat.expire(0)
    assert chat.delete()
    chat.append(user("new"))
    assert chat.messages() == [user("new")]
    with pytest.raises(NotFound):
        store.conversation("none").expire(5)


def test_a_conversation_deleted_and_begun_anew_elsewhere_is_noticed(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(*[user(str(n)) for n in range(10)])
    other = store.conversation("c")
    other.delete()
    other.append(user("new life"))
    assert chat.append(user("here too")).last == 2
    assert chat.messages() == [user("new life"), user("here too")] and len(chat) == 2
    chat.sync([user("x")])
    other.delete()
    assert chat.sync([user("x")]) == 1
    assert chat.messages() == [user("x")]


def test_conversations_are_listed_by_id(store: Store) -> None:
    for name in "cab":
        store.conversation(name).append(user(name))
    assert [chat.id for chat in store.conversations()] == ["a", "b", "c"]
    assert [chat.id for chat in store.for_tenant("other").conversations()] == []


def test_a_hostile_record_is_an_error_not_a_message(store: Store) -> None:
    for n, (kind, data) in enumerate(
        [
            ("message.appended", {"message": "text"}),
            ("message.appended", ["nothing"]),
            ("conversation.rewound", {"to": 99, "left": 3}),
            ("conversation.rewound", {"to": "x"}),
            ("message.removed", {}),
            ("message.removed", {"version": 99}),
            ("message.inserted", {"after": 99, "message": {"role": "user"}, "why": "x"}),
            ("message.replaced", {"version": -1, "message": {"role": "user"}, "why": "x"}),
            ("conversation.branched", {"parent": "x", "at": 1, "ancestors": []}),
        ]
    ):
        chat = store.conversation(f"c{n}")
        chat.append(user("a"))
        stream = store.stream(f"c{n}")
        stream._key = chat._key
        stream.append((kind, data))
        with pytest.raises(CorruptRecord):
            chat.messages()


@pytest.mark.parametrize(("base", "upto"), [(6, 5), (-3, 5), (1, 5), (0, 4)])
def test_a_fork_that_lies_about_where_its_messages_are_is_an_error(store: Store, base: int, upto: int) -> None:
    parent = store.conversation("p")
    parent.append(*[user(str(n)) for n in range(5)])
    head = store._log.backend.head(parent._key)
    assert head is not None
    branched = Branched("p", 5, [Ancestor("p", head.incarnation.hex(), base, upto)])
    child = store.conversation("h")
    event = new_event(BRANCHED, branched, Fold(5, 5, 5))
    ops.run(store._log, put(child._key, None, [event], new_stamp(), expected=0))
    with pytest.raises(CorruptRecord):
        child.messages()


def test_many_tasks_in_one_turn_all_get_through(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat = store.conversation("c")
            async with chat.turn():
                await asyncio.gather(*[chat.append(user(str(n))) for n in range(150)])
            popped = await asyncio.gather(*[chat.pop() for _ in range(150)])
            assert sorted(int(message["content"]) for message in popped) == list(range(150))

    asyncio.run(main())


# -- files -------------------------------------------------------------------------------------------


@pytest.mark.in_clear("an export of what is encrypted must be meant")
def test_export_and_import_round_trip(store: Store, tmp_path: Path) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM, user("a"), call("1"), result("1"), assistant("b"))
    chat.export_json(tmp_path / "chat.json")
    other = store.conversation("d")
    assert other.import_json(tmp_path / "chat.json") == holdfast.Imported(5, True)
    assert other.import_json(tmp_path / "chat.json").messages == 5
    assert other.messages() == chat.messages()


def test_a_damaged_file_is_refused_untouched_or_salvaged(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    whole = b'[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "us'
    path.write_bytes(whole)
    chat = store.conversation("c")
    with pytest.raises(CorruptFile):
        chat.import_json(path)
    assert (chat.messages(), path.read_bytes()) == ([], whole)
    assert chat.import_json(path, salvage=True) == holdfast.Imported(2, False)
    assert chat.messages() == [user("a"), assistant("b")]


# -- async -------------------------------------------------------------------------------------------


@pytest.mark.in_clear("an export of what is encrypted must be meant")
def test_the_async_conversation_does_the_same(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat = store.conversation("c")
            await chat.append(SYSTEM, user("a"))
            pending = await chat.pending
            assert pending is not None and pending.message == user("a")
            async with chat.turn():
                await chat.append(assistant("b"))
            answer = await chat.answer(2)
            assert answer is not None and answer.message == assistant("b")
            assert await chat.sync([SYSTEM, user("a"), assistant("b"), user("c")]) == 1
            assert (await chat.count(), len(await chat.entries(last=2))) == (4, 2)
            assert await chat.pop() == user("c")
            fork = await chat.fork("d", at=2)
            assert await fork.messages() == [SYSTEM, user("a")]

            async def summarise(messages: list[Any]) -> str:
                return str(len(messages))

            assert await chat.summarize(summarise, keep_last=1)
            assert await chat.summarize(lambda messages: "plain", keep_last=0)
            assert len(await chat.window(1000)) == 3
            await chat.draft("x", of="1")
            assert [draft.text for draft in await chat.drafts()] == ["x"]
            assert len(await chat.repair()) == 1 and await chat.validate() == []
            await chat.export_json(tmp_path / "c.json")
            assert (await chat.import_json(tmp_path / "c.json")).messages == 4
            followed = [entry.message async for entry in chat.follow(after=1, timeout=0)]
            assert followed[0] == user("a")
            assert await chat.rewind(to=2) > 0
            await chat.clear()
            await chat.expire(100)
            info = await chat.info()
            assert info is not None and info.messages == 0 and await chat.version() == info.version
            assert [item.id async for item in store.conversations()] == ["c", "d"]
            assert await fork.delete() and await chat.delete()

    asyncio.run(main())


def test_async_turns_do_not_interleave(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:

            async def request(name: str) -> None:
                chat = store.conversation("c")
                async with chat.turn():
                    await chat.append(user(name))
                    await asyncio.sleep(0)
                    await chat.append(assistant(name))

            await asyncio.gather(*[request(str(n)) for n in range(5)])
            messages = await store.conversation("c").messages()
            for question, answer in zip(messages[::2], messages[1::2], strict=True):
                assert question["content"] == answer["content"]

    asyncio.run(main())


def test_many_tasks_append_to_one_conversation(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat = store.conversation("c")
            await asyncio.gather(*[chat.append(user(str(n))) for n in range(100)])
            assert sorted(int(m["content"]) for m in await chat.messages()) == list(range(100))
            assert await chat.count() == 100

    asyncio.run(main())


def test_what_is_decided_on_another_process_s_writes_is_stored(durable_url: str) -> None:
    with holdfast.open(durable_url) as here, holdfast.open(durable_url) as there:
        mine, theirs = here.conversation("c"), there.conversation("c")
        mine.append(user("a"))
        theirs.append(user("b"), user("c"))
        assert mine.pop() == user("c")
        theirs.append(user("d"))
        assert mine.rewind(to=2) == 1
        theirs.append(call("1"))
        assert [problem.kind for problem in mine.repair()] == ["dangling call"]
        theirs.append(user("e"))
        with mine.turn():
            mine.append(user("f"))
        assert mine.sync([user("a")]) == 0
        theirs.append(user("pinned"), pin=True)
        mine.fork("d")
        assert theirs.messages() == [user("a"), user("pinned")]


def test_what_was_stored_by_the_first_version_is_read_for_ever(store: Store) -> None:
    golden = Path(__file__).parent / "golden"
    bodies = (golden / "conversation-1.jsonl").read_bytes().splitlines()
    expected = json.loads((golden / "conversation-1.messages.json").read_text())
    chat = store.conversation("c")
    ops.run(store._log, ops.append(ops.Append(chat._key, bodies, new_stamp(), expected=0)))
    assert (chat.messages(), len(chat)) == (expected["messages"], expected["count"])
    assert chat.window(7, counter=one) == expected["window"]
    assert [draft.text for draft in chat.drafts()] == expected["drafts"]
