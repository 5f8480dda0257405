"""The decisions about a step, by the rows of their tables."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends import StreamKey
from holdfast.errors import NotDone, StepFailed
from holdfast.tasks.state.fold import StepRecord, TaskState
from holdfast.tasks.steps.declare import StepOptions
from holdfast.tasks.steps.doubt import is_truth_value
from holdfast.tasks.steps.failures import can_retry
from holdfast.tasks.steps.matching import StepMatcher
from holdfast.tasks.steps.run import decide_recorded


def record(path: str = "s", **facts: Any) -> StepRecord:
    step = StepRecord(path)
    for name, value in facts.items():
        setattr(step, name, value)
    return step


COMPLETED = {"state": "completed"}
FINAL = {"state": "failed", "final": True}
FAILED = {"state": "failed"}
STARTED_ONCE = {"state": "started", "mode": "once", "run": 1}
FAILED_IN_DOUBT = {"state": "failed", "mode": "check", "doubt": True}


@pytest.mark.parametrize(
    ("facts", "call", "outcome"),
    [
        (COMPLETED, {}, "use"),
        (COMPLETED, {"same_args": False}, "mismatch"),
        (COMPLETED, {"same_args": False, "by_identity": True}, "use"),
        (COMPLETED, {"same_args": False, "drift": "keep"}, "use"),
        (COMPLETED, {"same_args": False, "drift": "rerun"}, "run"),
        (COMPLETED, {"drift": "rerun"}, "use"),
        (FINAL, {}, "failed"),
        (FINAL, {"same_args": False}, "mismatch"),
        (FINAL, {"same_args": False, "drift": "rerun"}, "run"),
        (FINAL, {"same_args": False, "drift": "keep"}, "failed"),
        (STARTED_ONCE, {}, "in doubt"),
        (STARTED_ONCE, {"same_args": False, "by_identity": True}, "mismatch"),
        (FAILED_IN_DOUBT, {"has_check": True}, "check"),
        (FAILED_IN_DOUBT, {"has_check": True, "same_args": False}, "mismatch"),
        (FAILED, {}, "failed"),
        (FAILED, {"same_args": False, "by_identity": True}, "failed"),
        (FAILED, {"same_args": False}, "run"),
        ({"state": "started"}, {}, "run"),
        ({"state": "retrying"}, {"same_args": False}, "run"),
    ],
)
def test_what_a_call_of_a_recorded_step_leads_to(
    facts: dict[str, Any], call: dict[str, Any], outcome: str
) -> None:
    given = {"same_args": True, "by_identity": False, "drift": "refuse", "has_check": False, **call}
    assert decide_recorded(record(**facts), **given) == outcome


@pytest.mark.parametrize(
    ("error", "options", "attempt", "over_budget", "retried"),
    [
        (OSError(), StepOptions(max_attempts=2), 1, False, True),
        (OSError(), StepOptions(max_attempts=2), 2, False, False),
        (OSError(), StepOptions(max_attempts=2), 1, True, False),
        (OSError(), StepOptions(max_attempts=2, retry_on=(ValueError,)), 1, False, False),
        (OSError(), StepOptions(max_attempts=2, once=True), 1, False, False),
        (NotDone("no"), StepOptions(max_attempts=2, once=True), 1, False, True),
        (
            StepFailed("t", step="s", type="TypeError", message="", causes=(), final=True),
            StepOptions(max_attempts=2),
            1,
            False,
            False,
        ),
    ],
)
def test_which_attempt_is_followed_by_another(
    error: Exception, options: StepOptions, attempt: int, over_budget: bool, retried: bool
) -> None:
    assert can_retry(error, options, attempt, over_budget=over_budget) is retried


@pytest.mark.parametrize(
    ("found", "returns", "wrong"),
    [
        (True, str, True),
        (False, str, True),
        (False, bool, False),
        (True, None, False),
        (False, None, True),
        ("receipt", str, False),
        (0, int, False),
    ],
)
def test_a_check_that_says_yes_or_no_is_told_from_a_result(
    found: object, returns: Any, wrong: bool
) -> None:
    assert is_truth_value(found, returns) is wrong


def matcher(*steps: StepRecord, plan: tuple[str, ...] = ()) -> StepMatcher:
    state = TaskState(StreamKey("default", "task", "t"))
    state.steps = {step.path: step for step in steps}
    state.plan, state.plan_paths = list(plan), {name: place for place, name in enumerate(plan)}
    return StepMatcher(state)


ASK = record("ask", state="completed", args="1", origin="1")


@pytest.mark.parametrize(
    ("matching", "call", "match"),
    [
        (matcher(), ("", "ask", "ask", None, "1", None), ("ask", "ask", "1", False)),
        (matcher(), ("outer", "ask", "ask", None, "1", None), ("outer/ask", "ask", "1", False)),
        (matcher(ASK), ("", "ask", "ask", None, "1", None), ("ask", "ask", "1", False)),
        (matcher(ASK), ("", "ask", "ask", "k", "1", None), ("ask[k]", "ask", "1", True)),
        (matcher(ASK), ("", "query", "query", None, "1", ("ask",)), ("ask", "ask", "1", False)),
        (matcher(plan=("ask",)), ("", "ask", "ask", None, "7", None), ("ask", "ask", "7", True)),
        (matcher(ASK), ("", "ask", "ask", None, "named", None), ("ask", "ask", "1", False)),
    ],
)
def test_a_call_is_matched_by_name_key_plan_and_arguments(
    matching: StepMatcher, call: tuple[Any, ...], match: tuple[str, str, str, bool]
) -> None:
    assert matching.match_step(*call, lambda: "1") == match
