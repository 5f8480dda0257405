"""Merging a new plan with the work that is done, by rows."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tasks import plan
from holdfast.tasks.plan import check_plan, merge_plan
from holdfast.tasks.state.fold import plan_step_paths
from holdfast.tasks.state.view import PlanItem

KEPT, OPEN = True, False
PAY_10: PlanItem = {"name": "pay", "amount": 10}
PAY_20: PlanItem = {"name": "pay", "amount": 20}


@pytest.mark.parametrize(
    ("old", "steps", "new", "items", "paths"),
    [
        pytest.param([], {}, ["a", "a"], ["a", "a"], ["a", "a#2"], id="first plan"),
        pytest.param(["a", "b"], {}, ["c"], ["c"], ["c"], id="nothing done"),
        pytest.param(["a", "b"], {"a": KEPT}, ["c"], ["a", "c"], ["a", "c"], id="done stays first"),
        pytest.param(
            ["a", "b"], {"a": KEPT}, ["c", "a"], ["c", "a"], ["c", "a"], id="done stays in place"
        ),
        pytest.param(["a", "b"], {"a": OPEN}, ["b"], ["b"], ["b"], id="open work is dropped"),
        pytest.param(
            ["a", "a"], {"a#2": KEPT}, ["a"], ["a"], ["a#2"], id="equal: kept before open"
        ),
        pytest.param(
            ["a", "a"], {"a": KEPT}, ["a", "a"], ["a", "a"], ["a", "a#2"], id="equal items in order"
        ),
        pytest.param(
            [PAY_10], {"pay": KEPT}, [PAY_20], [PAY_20], ["pay"], id="a unique name is the step"
        ),
        pytest.param(
            [PAY_10],
            {"pay": KEPT},
            [PAY_20, PAY_20],
            [PAY_10, PAY_20, PAY_20],
            ["pay", "pay#2", "pay#3"],
            id="an ambiguous name is new work",
        ),
        pytest.param(
            [], {"a": OPEN}, ["a"], ["a"], ["a#2"], id="a step outside the plan has its path"
        ),
        pytest.param(
            ["a/b"], {"a%2Fb": KEPT}, ["c"], ["a/b", "c"], ["a%2Fb", "c"], id="escaped names"
        ),
    ],
)
def test_a_new_plan_is_merged_with_the_work_that_is_done(
    old: list[PlanItem],
    steps: dict[str, bool],
    new: list[PlanItem],
    items: list[PlanItem],
    paths: list[str],
) -> None:
    by_path = dict(zip(plan_step_paths(old), old, strict=True))
    assert merge_plan(by_path, steps, new) == (items, paths)


names = st.sampled_from("abc")
plans = st.lists(names | st.fixed_dictionaries({"name": names, "n": st.integers(0, 2)}), max_size=5)


@given(plans, plans, st.data())
def test_no_path_is_given_twice_and_no_kept_work_is_lost(
    old: list[PlanItem], new: list[PlanItem], data: st.DataObject
) -> None:
    by_path = dict(zip(plan_step_paths(old), old, strict=True))
    recorded = st.sampled_from([*by_path, "a#7", "d"])
    steps = data.draw(st.dictionaries(recorded, st.booleans()))
    items, paths = merge_plan(by_path, steps, new)
    assert len(items) == len(paths) == len(set(paths))
    assert items[len(items) - len(new) :] == new
    assert {path for path in by_path if steps.get(path)} <= set(paths)


def test_the_examples_of_the_docstring_are_true() -> None:
    assert doctest.testmod(plan).failed == 0


@pytest.mark.parametrize("value", ["a", {"name": "a"}, [1], [{"title": "a"}], [""], None])
def test_what_is_not_a_plan_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a plan must be a list of names"):
        check_plan(value)


def test_a_checked_plan_shares_nothing_with_the_given_one() -> None:
    given_plan = ({"name": "a", "tags": ["x"]}, "b")
    checked = check_plan(given_plan)
    assert checked == [{"name": "a", "tags": ["x"]}, "b"]
    assert checked[0] is not given_plan[0]
