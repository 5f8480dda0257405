"""Windows: they fit, a provider accepts them, what must stay stays, and nothing is cut that need
not be."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from helpers.example_counts import examples
from helpers.message_histories import damaged_histories, labels, refusal, whole_histories
from holdfast.conversations.repair import apply_fixes, find_fixes
from holdfast.conversations.window import NoCutFound, find_unit_starts, fit_window
from holdfast.errors import BudgetExceeded

Message = dict[str, Any]
unhurried = settings(
    deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow]
)

SYSTEM: Message = {"role": "system", "content": "be brief <900>"}
SUMMARY: Message = {"role": "user", "content": "so far <901>"}


def count(message: Message) -> int:
    return len(json.dumps(message))


def cost(messages: list[Message]) -> int:
    return sum(map(count, messages))


def repaired(messages: list[Message]) -> list[Message]:
    return apply_fixes(messages, find_fixes(messages))


def is_question(message: Message) -> bool:
    return message.get("role") == "user" and isinstance(message["content"], str)


class Case:
    """A history of which the part from `start` on has been read, with what `fit_window` is told
    about it."""

    def __init__(self, draw: st.DrawFn, history: list[Message]) -> None:
        self.history = history
        self.start = draw(st.sampled_from((0, 0, draw(st.integers(0, len(history))))))
        self.pins = (
            sorted(draw(st.sets(st.sampled_from(range(len(history))), max_size=3)))
            if history
            else []
        )
        self.covers = draw(st.sampled_from((0, draw(st.integers(0, len(history))))))
        self.system = [SYSTEM] if draw(st.booleans()) else []
        self.budget = cost([*history, SYSTEM, SUMMARY]) * draw(st.integers(0, 10)) // 10

    @property
    def tail(self) -> list[Message]:
        return self.history[self.start :]

    def fit(self, budget: int) -> list[Message]:
        return fit_window(
            self.tail,
            budget=budget,
            count=count,
            whole=self.start == 0,
            system=self.system,
            pins=[self.history[index] for index in self.pins if index < self.start],
            pinned=[index - self.start for index in self.pins if index >= self.start],
            summary=SUMMARY if self.covers else None,
            covered=max(self.covers - self.start, 0),
        )

    def read_on(self, starts: Iterable[int] | None = None) -> None:
        """Read further back, until a window can begin somewhere; `starts` are the places from which
        it may be read."""
        allowed = range(len(self.history) + 1) if starts is None else starts
        for self.start in sorted((start for start in allowed if start <= self.start), reverse=True):
            try:
                self.fit(10**9)
            except NoCutFound:
                continue
            return
        raise AssertionError("the whole history has no place to begin")

    def fit_or_none(self, budget: int) -> list[Message] | None:
        try:
            return self.fit(budget)
        except BudgetExceeded as error:
            assert (error.budget, error.needed > budget) == (budget, True)
            return None

    def __repr__(self) -> str:
        lines = [f"{index:3} {json.dumps(message)}" for index, message in enumerate(self.history)]
        return "\n".join(
            [
                *lines,
                f"from {self.start}, pinned {self.pins}, summary of {self.covers}, budget "
                f"{self.budget}",
            ]
        )


@st.composite
def cases(draw: st.DrawFn, damaged: bool = True) -> Case:
    case = Case(draw, draw(damaged_histories() if damaged else whole_histories()))
    case.read_on()
    return case


# Laws


@pytest.mark.slow
@unhurried
@given(cases())
def test_a_window_fits_and_is_accepted(case: Case) -> None:
    before = copy.deepcopy(case.history)
    window = case.fit_or_none(case.budget)
    assert case.history == before
    assume(window is not None)
    assert window is not None
    assert cost(window) <= case.budget
    assert refusal(window) is None


@pytest.mark.slow
@unhurried
@given(cases())
def test_system_prompt_and_pinned_messages_stay(case: Case) -> None:
    window = case.fit_or_none(case.budget)
    assume(window is not None)
    assert window is not None
    assert window[: len(case.system)] == case.system
    pinned = [
        case.history[index] for index in case.pins if case.history[index].get("type") != "reasoning"
    ]
    assert set(labels(pinned)) <= set(labels(window))


@pytest.mark.slow
@unhurried
@given(cases(damaged=False))
def test_a_window_is_what_is_pinned_then_the_summary_then_the_newest_messages_without_a_gap(
    case: Case,
) -> None:
    case.read_on(find_unit_starts(case.history))
    case.pins = [
        index for index in case.pins if index >= case.start
    ]  # what is read in halves is mended, see below
    window = case.fit_or_none(case.budget)
    assume(window is not None)
    assert window is not None
    rest = window[len(case.system) :]
    places = [case.history.index(message) for message in rest if message != SUMMARY]
    assert places == sorted(set(places))
    gap = set(range(len(case.history))) - set(places)
    assert (SUMMARY in rest) == bool(case.covers and gap)
    newest = (
        rest[rest.index(SUMMARY) + 1 :]
        if SUMMARY in rest
        else case.history[max(gap, default=-1) + 1 :]
    )
    assert newest == case.history[len(case.history) - len(newest) :]
    assert rest[len(rest) - len(newest) :] == newest
    assert set(places[: len(places) - len(newest)]).isdisjoint(
        range(len(case.history) - len(newest), len(case.history))
    )


@pytest.mark.slow
@unhurried
@given(cases(damaged=False))
def test_a_shortened_window_begins_with_a_question_or_where_a_summary_leads_on(case: Case) -> None:
    case.pins = []
    window = case.fit_or_none(case.budget)
    assume(window is not None)
    assert window is not None
    rest = [message for message in window[len(case.system) :] if message != SUMMARY]
    while rest and rest[0] == case.history[0] and rest[0].get("role") == "system":
        rest = rest[1:]  # the stored prompt
    assume(len(rest) < len(case.history) - 1)
    first = case.history.index(rest[0])
    if not is_question(rest[0]):
        assert first >= case.covers > case.start
        assert not any(map(is_question, case.history[case.covers : first]))


@pytest.mark.slow
@unhurried
@given(cases(damaged=False))
def test_reasoning_stays_with_what_it_led_to(case: Case) -> None:
    case.read_on(find_unit_starts(case.history))
    case.pins = [index for index in case.pins if index >= case.start]
    window = case.fit_or_none(case.budget)
    assume(window is not None)
    assert window is not None
    here = {
        message["id"].removeprefix("rs ")
        for message in window
        if message.get("type") == "reasoning"
    }
    followers = {message["thought"] for message in window if "thought" in message}
    assert here == followers


@unhurried
@given(damaged_histories(), st.booleans())
def test_what_fits_is_returned_whole(history: list[Message], summarized: bool) -> None:
    whole = repaired(history)
    summary = SUMMARY if summarized else None
    given_back = fit_window(
        history,
        budget=cost(whole),
        count=count,
        whole=True,
        summary=summary,
        covered=len(history) // 2,
    )
    assert given_back == whole


@pytest.mark.slow
@unhurried
@given(cases(), st.integers(0, 1000))
def test_a_larger_budget_never_loses_a_message(case: Case, more: int) -> None:
    smaller, larger = case.fit_or_none(case.budget), case.fit_or_none(case.budget + more)
    assume(smaller is not None)
    assert smaller is not None
    assert larger is not None
    assert set(labels(smaller)) - {"<901>"} <= set(labels(larger))


@unhurried
@given(cases())
def test_the_same_history_gives_the_same_window(case: Case) -> None:
    again = copy.deepcopy(case)
    assert case.fit_or_none(case.budget) == again.fit_or_none(case.budget)


@unhurried
@given(cases())
def test_what_is_needed_is_enough_and_nothing_less_is(case: Case) -> None:
    try:
        case.fit(case.budget)
    except BudgetExceeded as error:
        assert cost(case.fit(error.needed)) == error.needed
        assert case.fit_or_none(error.needed - 1) is None


@unhurried
@given(whole_histories(), st.integers(0, 10), st.integers(0, 20))
def test_how_far_back_was_read_beyond_the_budget_makes_no_difference(
    history: list[Message], tenths: int, further: int
) -> None:
    budget = cost(history) * tenths // 10
    start = len(history)
    while start and not (cost(history[start:]) > budget and any(map(is_question, history[start:]))):
        start -= 1

    def window(start: int) -> list[Message] | int:
        prompt = [message for message in history[:1] if start and message.get("role") == "system"]
        try:
            return fit_window(
                history[start:], budget=budget, count=count, whole=start == 0, pins=prompt
            )
        except BudgetExceeded as error:
            return error.needed

    assert window(start) == window(max(start - further, 0)) == window(0)


@unhurried
@given(damaged_histories())
def test_cutting_a_mended_history_between_units_leaves_two_that_are_accepted(
    history: list[Message],
) -> None:
    history = repaired(history)
    starts = find_unit_starts(history)
    assert starts[:1] == ([0] if history else [])
    for start in starts:
        assert refusal(history[:start]) is None
        assert refusal(history[start:]) is None


# Cases


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(id: str) -> Message:
    return {
        "role": "assistant",
        "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": ""}}],
    }


def result(id: str) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": "found"}


def one(message: Message) -> int:
    """A counter by which every message costs one."""
    return 1


CHAT = [user("a"), said("b"), user("c"), call("1"), result("1"), said("d")]


def test_the_oldest_exchanges_go_first() -> None:
    assert fit_window(CHAT, budget=6, count=one, whole=True) == CHAT
    assert fit_window(CHAT, budget=5, count=one, whole=True) == CHAT[2:]
    assert fit_window(CHAT, budget=4, count=one, whole=True) == CHAT[2:]


def test_a_newest_exchange_that_does_not_fit_is_an_error_that_says_how_much_it_takes() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        fit_window(CHAT, budget=3, count=one, whole=True)
    assert (caught.value.needed, caught.value.budget) == (4, 3)


def test_a_system_prompt_that_does_not_fit_is_the_same_error() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        fit_window([], budget=1, count=one, whole=True, system=[SYSTEM, SYSTEM])
    assert caught.value.needed == 2


def test_an_empty_history_is_the_system_prompt() -> None:
    assert fit_window([], budget=1, count=one, whole=True, system=[SYSTEM]) == [SYSTEM]


def test_the_stored_system_prompt_stays() -> None:
    assert fit_window([SYSTEM, *CHAT], budget=5, count=one, whole=True) == [SYSTEM, *CHAT[2:]]


def test_a_summary_stands_where_something_was_cut_and_nowhere_else() -> None:
    assert fit_window(CHAT, budget=6, count=one, whole=True, summary=SUMMARY, covered=2) == CHAT
    assert fit_window(CHAT, budget=5, count=one, whole=True, summary=SUMMARY, covered=2) == [
        SUMMARY,
        *CHAT[2:],
    ]


def test_the_exchange_in_which_the_summary_ends_may_be_cut_between_its_units() -> None:
    assert fit_window(CHAT, budget=4, count=one, whole=True, summary=SUMMARY, covered=3) == [
        SUMMARY,
        *CHAT[3:],
    ]
    assert fit_window(CHAT, budget=3, count=one, whole=True, summary=SUMMARY, covered=3) == [
        SUMMARY,
        CHAT[5],
    ]


def test_a_summary_that_ends_between_a_call_and_its_result_does_not_part_them() -> None:
    assert fit_window(CHAT, budget=4, count=one, whole=True, summary=SUMMARY, covered=4) == [
        SUMMARY,
        CHAT[5],
    ]


def test_an_exchange_that_the_summary_does_not_reach_into_is_not_cut() -> None:
    with pytest.raises(BudgetExceeded):
        fit_window(CHAT, budget=4, count=one, whole=True, summary=SUMMARY, covered=2)


def test_what_is_pinned_comes_before_the_summary() -> None:
    window = fit_window(
        CHAT, budget=6, count=one, whole=True, summary=SUMMARY, covered=2, pinned=[1]
    )
    assert window == CHAT
    window = fit_window(
        [user("x"), *CHAT], budget=6, count=one, whole=True, summary=SUMMARY, covered=1, pinned=[2]
    )
    assert window == [CHAT[1], SUMMARY, *CHAT[2:]]


def test_a_pinned_result_brings_its_call() -> None:
    history = [*CHAT, user("e"), said("f")]
    assert fit_window(history, budget=4, count=one, whole=True, pinned=[4]) == [
        CHAT[3],
        CHAT[4],
        *history[6:],
    ]


def test_a_pinned_result_whose_call_was_not_read_is_kept_as_text() -> None:
    window = fit_window([user("e")], budget=9, count=one, whole=False, pins=[result("1")])
    assert window == [{"role": "user", "content": "Result of the tool call 1:\nfound"}, user("e")]


def test_a_pinned_pair_that_reading_parted_comes_together_again() -> None:
    window = fit_window(
        [result("1"), user("e")], budget=9, count=one, whole=False, pins=[call("1")], pinned=[0]
    )
    assert window == [call("1"), result("1"), user("e")]


def test_pinned_reasoning_is_not_taken_for_that_of_the_first_message_that_was_read() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    tail = [{"type": "message", "role": "assistant", "content": "d"}, user("e")]
    assert fit_window(tail, budget=9, count=one, whole=False, pins=[thought]) == [user("e")]
    assert fit_window(tail, budget=9, count=one, whole=False, pins=[thought], pinned=[0]) == [
        thought,
        *tail,
    ]


def test_a_result_whose_call_was_not_read_is_no_place_to_begin() -> None:
    tail = [result("1"), said("d"), user("e")]
    assert fit_window(tail, budget=9, count=one, whole=False) == [user("e")]
    with pytest.raises(NoCutFound):
        fit_window(tail[:2], budget=9, count=one, whole=False)


def test_a_history_without_a_question_is_cut_between_units() -> None:
    assert fit_window([said("a"), call("1"), result("1")], budget=2, count=one, whole=True) == [
        call("1"),
        result("1"),
    ]


def test_an_approval_stays_with_its_request() -> None:
    request = {
        "type": "mcp_approval_request",
        "id": "r1",
        "name": "pay",
        "arguments": "{}",
        "server_label": "bank",
    }
    response = {"type": "mcp_approval_response", "approval_request_id": "r1", "approve": True}
    history = [user("a"), request, user("b"), response, user("c")]
    assert fit_window(history, budget=4, count=one, whole=True) == [user("c")]
    assert fit_window(history[2:], budget=9, count=one, whole=False) == [user("c")]
    assert find_unit_starts(history) == [0, 1, 4]


def test_a_damaged_history_is_mended_before_it_is_cut() -> None:
    history = [user("a"), call("1"), user("b"), result("1"), said("c")]
    assert fit_window(history, budget=5, count=one, whole=True) == [
        user("a"),
        call("1"),
        result("1"),
        user("b"),
        said("c"),
    ]
    assert fit_window(history, budget=4, count=one, whole=True) == [user("b"), said("c")]


def test_a_pinned_result_that_came_late_is_still_pinned_after_it_was_put_back() -> None:
    history = [user("a"), call("1"), user("b"), result("1"), said("c")]
    assert fit_window(history, budget=4, count=one, whole=True, pinned=[3]) == [
        call("1"),
        result("1"),
        user("b"),
        said("c"),
    ]


def test_a_summary_that_covers_a_call_covers_its_late_result_too() -> None:
    history = [user("a"), call("1"), user("b"), said("x"), result("1"), said("c")]
    window = fit_window(history, budget=3, count=one, whole=True, summary=SUMMARY, covered=3)
    assert window == [SUMMARY, said("x"), said("c")]
