"""Repairs: what a provider would refuse is mended, nothing is lost on the way, and what is right is
left alone."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from helpers.example_counts import examples
from helpers.message_histories import damaged_histories, labels, refusal, whole_histories
from holdfast.conversations.messages import INTERRUPTED
from holdfast.conversations.repair import Insert, Remove, Replace, apply_fixes, find_fixes

Message = dict[str, Any]
unhurried = settings(
    deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow]
)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def call(*ids: str) -> Message:
    calls = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for name in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(name: str, content: str = "found") -> Message:
    return {"role": "tool", "tool_call_id": name, "content": content}


def item(name: str, kind: str = "function_call") -> Message:
    return {"type": kind, "call_id": name, "name": "look", "arguments": "{}"}


def output(name: str, content: str = "found") -> Message:
    return {"type": "function_call_output", "call_id": name, "output": content}


REASONING: Message = {"type": "reasoning", "id": "rs_1", "summary": []}
ANSWER: Message = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Done"}],
}


def mended(messages: list[Message]) -> list[Message]:
    return apply_fixes(messages, find_fixes(messages))


def kinds(messages: list[Message]) -> list[str]:
    return [fix.kind for fix in find_fixes(messages)]


# Laws


@unhurried
@given(whole_histories())
def test_a_history_that_a_provider_accepts_has_no_fixes(history: list[Message]) -> None:
    assert refusal(history) is None
    assert find_fixes(history) == []


@unhurried
@given(damaged_histories())
def test_a_mended_history_is_accepted_and_has_no_fixes(history: list[Message]) -> None:
    now = mended(history)
    assert refusal(now) is None
    assert find_fixes(now) == []


@unhurried
@given(damaged_histories())
def test_what_is_refused_has_fixes_and_what_is_accepted_has_none(history: list[Message]) -> None:
    assert (refusal(history) is None) == (find_fixes(history) == [])


@pytest.mark.slow
@unhurried
@given(damaged_histories())
def test_no_content_is_lost_except_reasoning_that_led_nowhere(history: list[Message]) -> None:
    before, fixes = copy.deepcopy(history), find_fixes(history)
    now = apply_fixes(history, fixes)
    assert history == before
    dropped = {
        fix.index for fix in fixes if isinstance(fix, Remove) and fix.kind == "dangling reasoning"
    }
    assert all(history[index]["type"] == "reasoning" for index in dropped)
    rest = [message for index, message in enumerate(history) if index not in dropped]
    assert sorted(labels(now)) == sorted(labels(rest))


@unhurried
@given(damaged_histories())
def test_everything_that_no_fix_names_stays_as_it_is_and_in_order(history: list[Message]) -> None:
    fixes = find_fixes(history)
    touched = {fix.index for fix in fixes if isinstance(fix, Replace | Remove)}
    untouched = [id(message) for index, message in enumerate(history) if index not in touched]
    placed = {id(fix.message) for fix in fixes if isinstance(fix, Insert | Replace)}
    now = [id(message) for message in apply_fixes(history, fixes)]
    assert [one for one in now if one not in placed or one in untouched] == untouched


@unhurried
@given(damaged_histories())
def test_what_was_wrong_is_told_without_content(history: list[Message]) -> None:
    said = " ".join(fix.what for fix in find_fixes(history))
    assert labels([{"said": said}]) == []
    assert "found" not in said


# Calls without results


def test_a_call_without_a_result_gets_one_that_says_it_was_interrupted() -> None:
    history = [user("hi"), call("a")]
    [fix] = find_fixes(history)
    assert fix == Insert(
        1,
        {"role": "tool", "tool_call_id": "a", "content": INTERRUPTED},
        "dangling call",
        "a call of look has no result",
    )


def test_missing_results_of_parallel_calls_come_last_in_the_order_of_the_calls() -> None:
    now = mended([user("hi"), call("a", "b", "c"), result("b"), user("and?")])
    assert [message.get("tool_call_id") for message in now] == [None, None, "b", "a", "c", None]


def test_missing_outputs_of_parallel_items_come_last_in_the_order_of_the_calls() -> None:
    now = mended([user("hi"), item("a"), item("b"), item("c"), output("b"), ANSWER])
    assert [message.get("call_id") for message in now] == [None, "a", "b", "c", "b", "a", "c", None]


def test_a_call_whose_id_was_answered_in_an_earlier_turn_still_needs_its_own_result() -> None:
    now = mended(
        [user("hi"), call("call_1"), result("call_1", "first"), user("again"), call("call_1")]
    )
    assert [message.get("content") for message in now[2:]] == ["first", "again", None, INTERRUPTED]


def test_a_result_belongs_to_the_newest_call_of_its_id() -> None:
    history = [
        user("hi"),
        call("call_1"),
        user("again"),
        call("call_1"),
        result("call_1", "second"),
    ]
    assert kinds(history) == ["dangling call"]
    assert mended(history)[2]["content"] == INTERRUPTED


def test_two_calls_of_one_id_in_one_message_take_two_results() -> None:
    assert find_fixes([call("a", "a"), result("a"), result("a")]) == []
    assert kinds([call("a", "a"), result("a")]) == ["dangling call"]


@pytest.mark.parametrize(
    "kind", ["web_search_call", "file_search_call", "code_interpreter_call", "mcp_call"]
)
def test_calls_that_the_provider_runs_itself_need_no_result(kind: str) -> None:
    assert (
        find_fixes([user("hi"), {"type": kind, "id": "x_1", "status": "completed"}, ANSWER]) == []
    )


def test_an_approval_that_nobody_gave_yet_is_no_damage() -> None:
    request = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "name": "pay",
        "arguments": "{}",
        "server_label": "bank",
    }
    response = {"type": "mcp_approval_response", "approval_request_id": "mcpr_2", "approve": True}
    assert find_fixes([user("hi"), request]) == []
    assert find_fixes([response, user("hi")]) == []


# Results without calls


def test_a_result_without_its_call_becomes_text_that_keeps_its_content() -> None:
    [fix] = find_fixes([user("hi"), result("a", "17 degrees"), user("so?")])
    assert isinstance(fix, Replace)
    assert (fix.index, fix.kind) == (1, "orphan result")
    assert fix.message == {"role": "user", "content": "Result of the tool call a:\n17 degrees"}


def test_an_output_before_its_call_is_an_orphan() -> None:
    assert sorted(kinds([user("hi"), output("a"), item("a")])) == ["dangling call", "orphan result"]


def test_a_second_result_of_the_same_call_becomes_text() -> None:
    history = [call("a"), result("a", "one"), result("a", "two")]
    assert kinds(history) == ["duplicate result"]
    assert "two" in mended(history)[2]["content"]


def test_a_second_result_between_parallel_ones_does_not_part_them_from_their_calls() -> None:
    now = mended([call("a", "b"), result("a", "one"), result("a", "two"), result("b", "three")])
    assert [message["role"] for message in now] == ["assistant", "tool", "tool", "user"]


def test_a_late_result_goes_back_to_its_call() -> None:
    history = [call("a"), user("hello?"), result("a", "late"), user("ah")]
    assert mended(history) == [history[0], history[2], history[1], history[3]]
    assert kinds(history) == ["late result", "late result"]
    [insert, remove] = find_fixes(history)
    assert isinstance(insert, Insert)
    assert insert.source == 2
    assert remove == Remove(2, "late result", remove.what)


def test_an_output_after_the_next_question_goes_back_to_its_call() -> None:
    history = [user("hi"), item("a"), user("hello?"), output("a"), ANSWER]
    assert mended(history) == [history[0], history[1], history[3], history[2], history[4]]


def test_an_output_after_other_items_of_its_turn_is_not_late() -> None:
    assert find_fixes([user("hi"), item("a"), ANSWER, output("a"), ANSWER]) == []


def test_a_chat_result_does_not_answer_an_item() -> None:
    assert sorted(kinds([user("hi"), item("a"), result("a")])) == ["dangling call", "orphan result"]


# Several results in one message


def responses(*ids: str) -> Message:
    each = [{"tool_call_id": name, "role": "tool", "content": f"found {name}"} for name in ids]
    return {
        "role": "tool",
        "content": "\n\n".join(f"found {name}" for name in ids),
        "tool_responses": each,
        "name": "user",
    }


def test_one_of_several_responses_without_its_call_becomes_text_after_the_others() -> None:
    now = mended([call("a"), responses("a", "z"), user("so?")])
    assert now[1] == responses("a")
    assert now[2] == {"role": "user", "content": "Result of the tool call z:\nfound z"}


def test_missing_responses_are_added_as_a_message_of_their_own() -> None:
    now = mended([call("a", "b"), responses("b"), user("so?")])
    assert now[1:3] == [
        responses("b"),
        {"role": "tool", "tool_call_id": "a", "content": INTERRUPTED},
    ]


def blocks(*ids: str, text: str | None = None) -> Message:
    content: list[Message] = [
        {"type": "tool_result", "tool_use_id": name, "content": f"found {name}"} for name in ids
    ]
    return {"role": "user", "content": content + ([{"type": "text", "text": text}] if text else [])}


def use(*ids: str) -> Message:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": name, "name": "look", "input": {}} for name in ids],
    }


def test_missing_result_blocks_stay_before_what_else_the_user_said() -> None:
    now = mended([user("hi"), use("a", "b"), blocks("a", text="hurry")])
    assert refusal(now) is None
    assert now[2]["content"][0]["tool_use_id"] == "b"
    assert now[3] == blocks("a", text="hurry")


def test_what_the_user_said_beside_a_result_without_its_call_is_kept() -> None:
    now = mended([user("hi"), blocks("z", text="hurry")])
    assert "hurry" in json.dumps(now)
    assert "found z" in json.dumps(now)
    assert refusal(now) is None


# Reasoning


@pytest.mark.parametrize("after", [[], [user("next")], [REASONING, user("next")]])
def test_reasoning_that_led_to_nothing_is_removed(after: list[Message]) -> None:
    history = [user("hi"), REASONING, *after]
    assert set(kinds(history)) == {"dangling reasoning"}
    assert REASONING not in mended(history)


def test_reasoning_stays_before_what_it_led_to_when_a_late_result_stood_between() -> None:
    history = [user("hi"), item("a"), user("next"), REASONING, output("a"), ANSWER]
    assert mended(history) == [history[0], history[1], history[4], history[2], REASONING, ANSWER]


def test_an_answer_that_says_nothing_is_left_out() -> None:
    empty, refused = (
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "refusal": "No."},
    )
    question = {"role": "user", "content": "Hello"}
    fixes = find_fixes([question, empty, question, refused])
    assert [(fix.kind, getattr(fix, "index", None)) for fix in fixes] == [("empty answer", 1)]
    assert apply_fixes([question, empty], find_fixes([question, empty])) == [question]
