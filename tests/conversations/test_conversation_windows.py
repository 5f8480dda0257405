"""Windows, summaries and repairs of a conversation, and forks of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import holdfast
from helpers.chat_messages import SYSTEM, assistant, call, one, result, user
from holdfast import Conflict, NotFound, Store
from holdfast.errors import AlreadyExists, CorruptRecord, HasForks

# -- windows ---------------------------------------------------------------------------------------


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
    chat.append(
        SYSTEM,
        {"role": "developer", "content": "Be kind."},
        user("a"),
        {"role": "system", "content": "late"},
    )
    chat.append(assistant("b"), user("c"))
    assert chat.window(3, counter=one) == [
        SYSTEM,
        {"role": "developer", "content": "Be kind."},
        user("c"),
    ]


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
    with pytest.raises(holdfast.errors.BudgetExceeded) as caught:
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
    with pytest.raises(holdfast.errors.BudgetExceeded) as caught:
        chat.window(10, counter=one)
    assert caught.value.needed == 61


def test_a_window_reads_on_when_it_cannot_begin_where_the_budget_ends(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(
        user("a"),
        assistant("b"),
        user("pay"),
        {"type": "mcp_approval_request", "id": "r", "name": "pay"},
    )
    chat.append(*[user("are you there?") for _ in range(40)])
    chat.append(
        {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
        user("thanks"),
    )
    assert chat.window(1, counter=one) == [user("thanks")]
    with pytest.raises(holdfast.errors.BudgetExceeded):
        contents = chat.fork("d", version=chat.version() - 1)
        contents.window(10, counter=one)


def test_a_window_shows_a_dangling_call_as_interrupted_without_storing_that(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("q"), call("1", "2"), result("1"))
    window = chat.window(1000)
    assert [message["role"] for message in window] == ["user", "assistant", "tool", "tool"]
    assert window[3]["tool_call_id"] == "2"
    assert chat.version() == 3


# -- summaries -------------------------------------------------------------------------------------


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
    chat.rewind(version=8)
    assert "long ago" in chat.window(2, counter=one)[0]["content"]
    chat.rewind(version=3)
    assert chat.window(2, counter=one) == [user("1"), user("2")]


def test_a_summary_of_messages_that_were_rewound_meanwhile_is_refused(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(*[user(str(n)) for n in range(10)])

    def slow(messages: list[Any]) -> str:
        store.conversation("c").rewind(version=2)
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
    assert chat.count() == 11


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
    chat.rewind(version=3)
    chat.summarize(lambda messages: "about the secret", keep_last=0)
    chat.rewind(version=empty)
    info = chat.view()
    assert (info.messages, info.summarized_upto) == (0, 0)


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


# -- repair ----------------------------------------------------------------------------------------


def test_repair_answers_dangling_calls_once_and_is_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    chat = store.conversation("c")
    chat.append(user("q"), call("1"), user("are you there?"), call("2"))
    chat.append(result("nobody", "stray"))
    found = chat.validate()
    assert sorted(problem.kind for problem in found) == [
        "dangling call",
        "dangling call",
        "orphan result",
    ]
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
    assert (chat.count(), chat.messages()) == (1, [user("Tell me a story")])
    [draft] = store.conversation("c").drafts()
    assert (draft.of, draft.text) == ("answer-1", "Once upon a time")
    assert chat.pending() is not None
    assert [problem.kind for problem in chat.repair()] == ["interrupted answer"]
    assert chat.messages()[-1] == assistant("Once upon a time")
    assert chat.entries()[-1].meta == {"interrupted": True, "of": "answer-1"}
    assert (chat.drafts(), chat.repair(), chat.pending()) == ([], [], None)


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
    assert chat.pending() is None
    chat.append(user("q"))
    for message in (call("1"), result("1")):
        pending = chat.pending()
        assert pending is not None and pending.message == user("q")
        chat.append(message)
    assert chat.pending() is not None
    chat.append(assistant("a"))
    assert chat.pending() is None


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


# -- forks -----------------------------------------------------------------------------------------


def test_a_fork_copies_nothing_and_goes_its_own_way(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM, user("a"), assistant("b"), user("c"))
    fork = chat.fork("d", version=3)
    fork.append(user("other"))
    chat.append(assistant("d"))
    assert fork.messages() == [SYSTEM, user("a"), assistant("b"), user("other")]
    assert fork.messages(last=2) == [assistant("b"), user("other")]
    assert chat.messages() == [SYSTEM, user("a"), assistant("b"), user("c"), assistant("d")]
    info = fork.view()
    assert (info.forked_from, info.forked_version, info.messages) == ("c", 3, 4)
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
    assert fork.rewind(version=1) == 3
    assert (fork.messages(), chat.messages()) == ([user("a")], [user("a"), user("b")])


def test_making_the_same_fork_again_is_harmless_another_one_is_not(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), user("b"))
    chat.fork("d", version=1)
    assert chat.fork("d", version=1).messages() == [user("a")]
    chat.fork("e")
    assert chat.fork("e").messages() == [user("a"), user("b")]
    with pytest.raises(AlreadyExists):
        chat.fork("d", version=2)
    store.conversation("e").append(user("c"))
    with pytest.raises(AlreadyExists):
        chat.fork("e")
    with pytest.raises(NotFound):
        chat.fork("f", version=99)
    with pytest.raises(ValueError, match="own"):
        chat.fork("c")


def test_a_conversation_with_living_forks_is_not_deleted(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), user("b"))
    fork = chat.fork("d")
    grandchild = fork.fork("e", version=1)  # its messages are all in the first
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
    chat.append(user("created again"))
    with pytest.raises(CorruptRecord, match="forked from"):
        fork.messages()
