"""Which recorded step a call is, by the rows of the rule of step identity."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends import StreamKey
from holdfast.tasks.state.fold import StepRecord, TaskState
from holdfast.tasks.steps.matching import StepMatcher


def recorded(path: str, args: object = "", **facts: Any) -> StepRecord:
    step = StepRecord(path)
    step.args = step.origin = str(args)
    step.state = "completed"
    for name, value in facts.items():
        setattr(step, name, value)
    return step


def matcher(*steps: StepRecord, plan: tuple[str, ...] = ()) -> StepMatcher:
    state = TaskState(StreamKey("default", "task", "t"))
    state.steps = {step.path: step for step in steps}
    state.plan = list(plan)
    state.plan_paths = {name: place for place, name in enumerate(plan)}
    return StepMatcher(state)


ASK_1, ASK_2 = recorded("ask", 1), recorded("ask#2", 2)


@pytest.mark.parametrize(
    ("steps", "calls", "paths"),
    [
        ([ASK_1, ASK_2], ["ask 2"], ["ask#2"]),
        ([ASK_1, recorded("ask#2", 1, nth=1)], ["ask 1"] * 3, ["ask", "ask#2", "ask#3"]),
        ([ASK_1], ["ask 7"], ["ask"]),
        ([recorded("ask", 1, state="started")], ["ask 7"], ["ask"]),
        ([ASK_1, ASK_2], ["new 5", "ask 2", "ask 1"], ["new", "ask#2", "ask"]),
        (
            [recorded("ask", 1, parallel=True), recorded("ask#2", 2, parallel=True)],
            ["ask 2", "ask 3"],
            ["ask#2", "ask#3"],
        ),
        ([ASK_1, ASK_2], ["ask 1", "ask 3"], ["ask", "ask#2"]),
    ],
)
def test_a_call_without_a_key(steps: list[StepRecord], calls: list[str], paths: list[str]) -> None:
    matching = matcher(*steps)
    assert [matching.match_args("", *call.split()) for call in calls] == paths


def test_a_call_with_a_key_is_the_step_with_that_key() -> None:
    matching = matcher(recorded("ask[k]", 1))
    assert [matching.match_key("", "ask", "k") for _ in range(2)] == ["ask[k]", "ask[k]"]


def test_a_call_that_is_given_back_is_the_same_step_again() -> None:
    matching = matcher(recorded("pay", 1, mode="once", state="started"))
    assert matching.match_args("", "pay", "1") == "pay"
    matching.release("", "pay", "1", "pay")
    assert matching.match_args("", "pay", "1") == "pay"
    matching.release("", "pay", "1", "pay")
    assert matching.match_args("", "pay", "2") == "pay#2", "it was recognized by its own call"
    assert matching.match_args("", "pay", "1") == "pay"


def test_a_failure_that_is_known_is_not_given_back_unless_its_result_is_lost() -> None:
    for final, path in ((False, "pay#2"), (True, "pay")):
        matching = matcher(recorded("pay", 1, state="failed", final=final))
        assert matching.match_args("", "pay", "1") == "pay"
        matching.release("", "pay", "1", "pay")
        assert matching.match_args("", "pay", "1") == path


@pytest.mark.parametrize(
    ("steps", "args", "name"),
    [
        ([], "1", "new"),
        ([recorded("old", 1)], "1", "old"),
        ([recorded("old", 1), recorded("new", 1)], "1", "old"),
        ([recorded("old", 1), recorded("new", 2)], "2", "new"),
        ([recorded("old", 1)], "7", "old"),
        ([recorded("old", 1, parallel=True)], "7", "new"),
        ([recorded("older", 1), recorded("old", 1)], "1", "older"),
    ],
)
def test_the_name_of_a_renamed_step(steps: list[StepRecord], args: str, name: str) -> None:
    names = ("older", "old", "new")
    assert matcher(*steps).choose_name("", names, None, args, in_plan=False) == name


def test_the_name_of_a_renamed_step_with_a_key_or_in_the_plan() -> None:
    matching = matcher(recorded("old[k]", 1), plan=("old", "write"))
    assert matching.choose_name("", ("old", "new"), "k", "7", in_plan=True) == "old"
    assert matching.choose_name("", ("old", "new"), "j", "7", in_plan=True) == "new"
    assert matching.choose_name("", ("old", "new"), None, "7", in_plan=True) == "old"
    matching.match_item("old", "old")
    assert matching.choose_name("", ("old", "new"), None, "7", in_plan=True) == "new"


def test_only_what_was_or_may_have_been_done_and_is_not_requested_can_be_renamed() -> None:
    matching = matcher(
        recorded("done", mode="once"),
        recorded("requested", mode="once"),
        recorded("given back", mode="once", state="started"),
        recorded("in doubt", mode="once", state="started"),
        recorded("not done", mode="once", state="failed"),
        recorded("lost", mode="once", state="failed", final=True),
        recorded("retried", mode="once", state="retrying"),
        recorded("ordinary"),
        recorded("item", mode="once"),
        recorded("outer", state="started"),
        recorded("outer/inner", mode="once"),
        recorded("running", state="started"),
        recorded("running/inner", mode="once"),
        plan=("item",),
    )
    matching.match_args("", "requested", "")
    matching.match_args("", "running", "")
    matching.match_args("", "given back", "")
    matching.release("", "given back", "", "given back")
    found = [step.path for step in matching.find_unrequested("new")]
    assert found == ["done", "in doubt", "lost", "outer/inner"]
    assert [step.path for step in matching.find_unrequested("running/new")] == ["running/inner"]
    assert matching.find_new_ancestor("new/inner/deep") == "new"
    assert matching.find_new_ancestor("running/new/deep") == "running/new"
    assert matching.find_new_ancestor("running/new") == "running/new"
