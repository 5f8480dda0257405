"""Previews: each step has one fate, and it is the one that a resume would give it."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.example_counts import examples
from helpers.tasks.task_views import T, done, step, view_of, views
from holdfast.tasks.preview import preview_resume
from holdfast.tasks.state.view import ENDED, Drift, Failure, StepInfo, TaskView

unhurried = settings(
    deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow]
)
FATES = ("skipped", "rerun", "waiting", "checked", "in_doubt", "replayed", "pending")


def test_each_step_is_told_with_what_a_resume_would_do() -> None:
    view = view_of(
        done("search", 3),
        step("fetch", "interrupted"),
        step("parse", "retrying", error=Failure("Timeout", "")),
        step("read", "failed", error=Failure("Timeout", "")),
        step("guess", "failed", error=Failure("ValueError", ""), replays=True),
        step("pay", "interrupted", mode="check", in_doubt=True),
        step("book", "failed", mode="once", in_doubt=True, error=Failure("OSError", "")),
        step("send", "retrying", mode="once"),
        plan=["search", "fetch", {"name": "report"}],
        orphaned=["old"],
        drift=[Drift("search", "arguments", "aa", "bb")],
        status="failed",
    )
    found = preview_resume(view, {})
    assert found.to_dict() == {
        "task": "claims-42",
        "status": "failed",
        "version": 9,
        "skipped": ["search"],
        "rerun": ["fetch", "parse", "read", "send"],
        "checked": ["pay"],
        "in_doubt": ["book"],
        "replayed": ["guess"],
        "pending": ["report"],
        "orphaned": ["old"],
        "drift": [{"step": "search", "what": "arguments", "recorded": "aa", "now": "bb"}],
        "waiting": [],
        "waits_for": [],
        "ok": False,
    }
    assert str(found) == """\
task claims-42, failed
  finished                 1  search
  run again                4  fetch, parse, read, send
  its check decides        1  pay
  in doubt                 1  book
  fail as before           1  guess
  not started              1  report
  no longer requested      1  old
  changed                  1  search (arguments)
Resolve each step in doubt: store.resolve(task, step, result=…), or retry=True if it was not done.
The code has changed: resume the task, fork it, or delete it."""  # fmt: skip


def test_a_running_step_is_told_as_if_its_process_died_now() -> None:
    running = [
        step(path, "running", mode=mode)
        for path, mode in (("a", ""), ("b", "check"), ("c", "once"))
    ]
    found = preview_resume(view_of(*running, status="running"), {})
    assert (found.rerun, found.checked, found.in_doubt) == (["a"], ["b"], ["c"])


def test_a_child_that_waits_is_not_run_again_and_shown_as_people_write_it() -> None:
    view = view_of(
        step("letters[claim-2%2Fletter]", "waiting", kind="child", key="claim-2/letter"),
        done("read[50%25]"),
        step("pay[a%2Fb]", "interrupted", mode="once", in_doubt=True),
        status="suspended",
    )
    found = preview_resume(view, {})
    assert (found.waiting, found.rerun, list(view.children)) == (
        ["letters[claim-2%2Fletter]"],
        [],
        ["claim-2/letter"],
    )
    assert "  waiting                  1  letters[claim-2/letter]\n" in str(found)
    assert "  read[50%]\n" in str(found)
    assert "  pay[a%2Fb]\n" in str(found)  # to be given to `resolve`


def test_what_failed_inside_a_finished_step_is_not_tried_again() -> None:
    found = preview_resume(
        view_of(done("a"), step("a/b", "interrupted"), done("a/c"), step("d/e", "interrupted")), {}
    )
    assert (found.skipped, found.rerun) == (["a", "a/c"], ["d/e"])


@pytest.mark.parametrize(
    ("recorded", "now", "differ"),
    [
        ("3.11:aa", "3.11:bb", True),
        ("3.11:aa", "3.11:aa", False),
        ("3.11:aa", "3.12:bb", False),
        ("", "3.11:bb", False),
        ("3.11:aa", "", False),
    ],
)
def test_changed_code_of_a_finished_step_is_drift(recorded: str, now: str, differ: bool) -> None:
    view = view_of(StepInfo(path="a#2", name="a", status="completed", started_at=T, code=recorded))
    found = preview_resume(view, {"a": now, "b": "3.11:cc"})
    assert found.drift == ([Drift("a#2", "code", recorded, now)] if differ else [])
    assert found.ok is not differ


def test_code_of_a_step_that_runs_again_may_change() -> None:
    assert preview_resume(view_of(step("a", "interrupted", code="3.11:aa")), {"a": "3.11:bb"}).ok


def test_a_change_that_the_newest_run_saw_is_told_once() -> None:
    seen = Drift("a", "code", "3.11:aa", "3.11:bb")
    assert preview_resume(
        view_of(done("a", code="3.11:aa"), drift=[seen]), {"a": "3.11:bb"}
    ).drift == [seen]


@pytest.mark.parametrize("status", sorted(ENDED))
def test_of_an_ended_task_nothing_will_run(status: str) -> None:
    view = view_of(
        done("a"),
        step("b", "interrupted"),
        step("c", "interrupted", mode="once", in_doubt=True),
        plan=["d"],
        status=status,
    )
    found = preview_resume(view, {})
    assert [path for fate in FATES for path in getattr(found, fate)] == ["a"]
    assert found.ok
    assert str(found).endswith(f"Nothing will run: the task is {status}.")


def test_a_task_without_steps_has_a_preview_too() -> None:
    assert str(preview_resume(view_of(), {})) == "task claims-42, pending\n  no steps"


def test_long_lists_are_counted_and_names_do_not_move_the_cursor() -> None:
    text = str(preview_resume(view_of(*(done(f"s{n}\x1b[2J\nx") for n in range(1500))), {}))
    assert "1,500  s0\\u001b[2J x, s1" in text
    assert text.endswith(" and 1,492 more")
    assert text.count("\n") == 1


@pytest.mark.slow
@unhurried
@given(views(), st.dictionaries(st.just("search"), st.just("3.11:cc")))
def test_each_step_has_at_most_one_fate(view: TaskView, code: dict[str, str]) -> None:
    found = preview_resume(view, code)
    sorted_steps = [path for fate in FATES[:-1] for path in getattr(found, fate)]
    recorded = {step.path: step for step in view.steps}
    assert len(set(sorted_steps)) == len(sorted_steps)
    assert set(sorted_steps) <= recorded.keys()
    assert not recorded.keys() & set(found.pending)
    assert found.skipped == [path for path, step in recorded.items() if step.status == "completed"]
    if view.status not in ENDED:
        assert set(view.in_doubt) <= {*found.in_doubt, *found.checked}
        assert set(view.plan_paths) <= recorded.keys() | set(found.pending)
    assert all(
        line.isprintable()
        for line in str(found).replace("\u200c", "").replace("\u200d", "").split("\n")
    )
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
