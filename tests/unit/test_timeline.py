"""The timeline of a task, computed from its events."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast import Event
from holdfast.web.diff import diff_values
from holdfast.web.timeline import Timeline, TimelineBuilder, build_timeline

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ONE, TWO = "web-1/boot/7/1/a", "web-2/boot/9/1/b"


def timeline(*events: tuple[float, str, dict[str, Any]], now: float = 100.0) -> Timeline:
    return build_timeline(listed(*events), START + timedelta(seconds=now))


def listed(*events: tuple[float, str, dict[str, Any]]) -> list[Event]:
    return [
        Event(version, f"id-{version}", name, data, START.timestamp() + at)
        for version, (at, name, data) in enumerate(events, 1)
    ]


def seconds(at: datetime) -> float:
    return (at - START).total_seconds()


def since(at: float) -> float:
    return START.timestamp() + at


def test_a_run_that_ends_by_itself_has_the_end_that_it_says() -> None:
    shown = timeline(
        (0, "task.created", {}),
        (1, "task.claimed", {"owner": ONE}),
        (3, "step.completed", {"step": "read", "since": since(1.5)}),
        (4, "task.finished", {}),
    )
    [run] = shown.runs
    assert (run.how, seconds(run.start), seconds(run.end)) == ("finished", 1, 4)
    [step] = shown.steps
    assert (step.path, step.status, seconds(step.start), seconds(step.end)) == (
        "read", "completed", 1.5, 3,
    )  # fmt: skip
    assert shown.lanes == ["process 7 on web-1"]
    assert not shown.gaps


def test_a_killed_run_ends_with_its_last_sign_of_life_and_interrupts_its_steps() -> None:
    shown = timeline(
        (0, "task.created", {}),
        (1, "task.claimed", {"owner": ONE}),
        (2, "step.started", {"step": "pay", "mode": "once"}),
        (30, "task.claimed", {"owner": TWO, "alive_at": since(2)}),
        (31, "task.failed", {"type": "X", "message": ""}),
    )
    first, second = shown.runs
    assert (first.how, seconds(first.end)) == ("killed", 2)
    assert (second.how, second.took_over, second.lane) == ("failed", True, 1)
    [step] = shown.steps
    assert (step.status, step.mode) == ("interrupted", "once")
    assert [(seconds(gap.start), seconds(gap.end)) for gap in shown.gaps] == [(2, 30), (31, 100)]


def test_a_run_whose_process_is_known_to_be_dead_was_killed_though_nobody_took_over() -> None:
    builder = TimelineBuilder()
    for event in listed(
        (1, "task.claimed", {"owner": ONE}), (2, "step.started", {"step": "pay", "mode": "once"})
    ):
        builder.add(event)
    now = START + timedelta(seconds=9)
    shown = builder.finish(now, abandoned=True)
    assert [(run.how, seconds(run.end)) for run in shown.runs] == [("killed", 2)]
    assert [(step.status, seconds(step.end)) for step in shown.steps] == [("interrupted", 2)]
    assert [(gap.why, seconds(gap.end)) for gap in shown.gaps] == [("killed", 9)]
    shown = builder.finish(now)
    assert (shown.runs[0].how, shown.steps[0].status, shown.gaps) == ("running", "running", [])


def test_a_stolen_task_is_taken_over_and_a_running_one_runs_until_now() -> None:
    shown = timeline(
        (0, "task.claimed", {"owner": ONE}),
        (5, "task.claimed", {"owner": TWO, "stolen": True}),
        (6, "step.started", {"step": "slow"}),
        now=9,
    )
    assert [run.how for run in shown.runs] == ["taken over", "running"]
    assert seconds(shown.runs[1].end) == 9
    assert (shown.steps[0].status, seconds(shown.steps[0].end)) == ("running", 9)


def test_a_late_write_is_marked_on_the_lane_of_the_process_that_came_too_late() -> None:
    shown = timeline(
        (0, "task.claimed", {"owner": ONE}),
        (5, "task.claimed", {"owner": TWO, "alive_at": since(1)}),
        (6, "step.started", {"step": "read"}),
        (9, "task.write_refused", {"owner": ONE, "steps": ["read"]}),
        (20, "task.claimed", {"owner": TWO}),
    )
    (mark,) = shown.marks
    assert (mark.what, mark.lane, seconds(mark.at)) == ("late write refused", 0, 9)
    assert seconds(shown.runs[1].end) == 6, "it is no sign of life of the owner"


def test_each_attempt_is_shown_and_what_people_did_is_marked() -> None:
    shown = timeline(
        (0, "task.claimed", {"owner": ONE}),
        (1, "step.failed", {"step": "ask", "again": True, "since": since(0.5)}),
        (3, "step.completed", {"step": "ask", "attempt": 2, "since": since(2)}),
        (4, "task.suspended", {"waits": ["w"]}),
        (5, "step.resolved", {"step": "pay", "by": "ann"}),
        (6, "task.answered", {"wait": "w", "by": "bob"}),
    )
    assert [(step.status, step.attempt) for step in shown.steps] == [
        ("retrying", 1), ("completed", 2),
    ]  # fmt: skip
    assert [(mark.what, mark.by) for mark in shown.marks] == [
        ("resolved by an operator", "ann"), ("wait ended", "bob"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "data", [{}, {"owner": 7}, {"step": 7}, {"step": "a", "since": "x", "attempt": "y"}, [], None]
)
@pytest.mark.parametrize("name", ["task.claimed", "step.started", "step.completed", "task.asked"])
def test_events_that_anybody_may_have_forged_break_nothing(name: str, data: Any) -> None:
    shown = timeline((0, "task.claimed", {"owner": ONE}), (1, name, data), (2, name, data))
    assert shown.version == 3


@pytest.mark.parametrize(
    ("before", "after", "places"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, [("a", "changed")]),
        ({"a": 1}, {"a": True}, [("a", "changed")]),
        ({}, {"a": None}, [("a", "added")]),
        ({"a": [1, 2]}, {"a": [1]}, [("a[1]", "removed")]),
        ({"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 2}]}}, [("a.b[0].c", "changed")]),
        ([1], {"a": 1}, [("", "changed")]),
    ],
)
def test_a_diff_names_the_changed_places(
    before: Any, after: Any, places: list[tuple[str, str]]
) -> None:
    assert [(change.path, change.what) for change in diff_values(before, after)] == places
