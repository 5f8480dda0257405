"""What a task is doing, and what takes longer than expected: a step, or a task that was cancelled
and does not end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import holdfast


def info(store: holdfast.Store, id: str = "t") -> holdfast.TaskInfo:
    [found] = [task for task in store.tasks() if task.id == id]
    return found


def warnings(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and words in record.getMessage()
    ]


def declared(fn: Callable[..., Any], way: str, **options: Any) -> Any:
    """A step with options, given to the decorator or to `using`."""
    return holdfast.step(fn, **options) if way == "declared" else holdfast.step(fn).using(**options)


@pytest.mark.every_engine
def test_views_and_listings_show_the_running_step_since_when_and_how_far_it_is(
    ways: Any, clock: Any
) -> None:
    seen: list[tuple[Any, Any]] = []

    def read() -> None:
        holdfast.current_step().save("page 3", done=3, total=10, flush=True)
        clock.advance(12)
        seen.append((ways.store.get_task("t"), info(ways.store)))

    began = clock.now()
    ways.resume(lambda task: task.step("read", read))
    [(view, listed)] = seen
    [step] = view.steps
    assert (step.status, step.overdue, view.overdue, listed.overdue) == (
        "running",
        False,
        [],
        False,
    )
    assert abs(step.started_at.timestamp() - began) < 5
    assert (step.progress.done, step.progress.total) == (3, 10)
    assert (listed.step.path, listed.step.done, listed.step.total) == ("read", 3, 10)
    assert listed.step.started_at == step.started_at
    assert info(ways.store).step is None  # it has ended


@pytest.mark.parametrize("way", ["declared", "using"])
@pytest.mark.every_engine
def test_a_step_that_takes_longer_than_expected_is_reported_once(
    ways: Any, clock: Any, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append((ways.store.get_task("t").overdue, info(ways.store).overdue))

    def read() -> None:
        clock.advance(5)
        look()
        clock.advance(30)
        look()
        clock.advance(30)

    step = declared(read, way, expect=timedelta(seconds=20))
    ways.resume(lambda task: task.step("read", step))
    assert seen == [([], False), (["read"], True)]
    [warning] = warnings(caplog, "expected to take 20 s")
    assert "'read'" in warning
    assert ways.store.get_task("t").overdue == []


def test_a_report_of_what_takes_too_long_shows_parts_of_seconds(
    store: holdfast.Store, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @holdfast.step(expect=0.2)
    def read() -> None:
        clock.advance(30)
        store.get_task("t")
        clock.advance(30)

    with store.task("t") as task:
        task.step("read", read)
    assert warnings(caplog, "expected to take 0.2 s")


def test_a_listing_names_the_innermost_step_unless_another_one_is_overdue(
    store: holdfast.Store, clock: Any
) -> None:
    seen: list[str] = []

    def look() -> None:
        clock.advance(11)
        step = info(store).step
        assert step is not None
        seen.append(step.path)

    @holdfast.step(expect=20)
    def outer() -> None:
        task.step("first", look)
        task.step("second", look)

    with store.task("t") as task:
        task.step("outer", outer)
    assert seen == ["outer/first", "outer"]


def test_steps_without_expectation_are_never_overdue(
    store: holdfast.Store, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> None:
        clock.advance(timedelta(minutes=10))
        view = store.get_task("t")
        assert view is not None
        assert view.overdue == []

    with store.task("t") as task:
        task.step("read", read)
    assert not warnings(caplog, "expected")


@pytest.mark.parametrize("expect", [-1, "soon"])
def test_a_wrong_expectation_is_refused_where_it_is_written(expect: Any) -> None:
    with pytest.raises(ValueError, match="expect must be"):
        holdfast.step(int, expect=expect)
    with pytest.raises(ValueError, match="expect must be"):
        holdfast.step(int).using(expect=expect)


@pytest.mark.every_engine
def test_a_cancelled_task_that_does_not_end_is_reported_until_it_has_ended(
    ways: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store, seen = ways.store, list[Any]()

    def hang() -> None:
        store.task("t").cancel("it hangs", by="ann")
        clock.advance(20)
        seen.append((store.get_task("t").overdue, info(store).overdue))
        clock.advance(60)
        seen.append((store.get_task("t").overdue, info(store).overdue))

    with pytest.raises(holdfast.errors.TaskEnded):
        ways.resume(lambda task: task.step("hang", hang))
    assert seen == [([], False), (["hang"], True)]
    [warning] = warnings(caplog, "still runs its step")
    assert "'hang'" in warning
    view = store.get_task("t")
    assert (view.status, view.overdue, info(store).overdue) == ("cancelled", [], False)
    assert (view.cancellation.reason, view.cancellation.running) == ("it hangs", [])
    types = [event.type for event in store.task("t").history()]
    assert types.count("task.lingered") == 2


def test_a_cancelled_task_whose_steps_end_in_time_is_not_reported(
    store: holdfast.Store, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        store.task("t").cancel()
        clock.advance(20)

    with pytest.raises(holdfast.errors.TaskEnded), store.task("t") as task:
        task.step("work", work)
    assert not warnings(caplog, "still runs")
    assert [event.type for event in store.task("t").history()][-1] == "task.cancelled"
