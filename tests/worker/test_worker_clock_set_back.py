"""The clock of the machine is set back: what was due at once is due all the same, and a worker says
that it has seen it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import holdfast
from helpers.tasks.worker_tasks import seen, simple
from holdfast import Store, Task, testing

HOUR = 3600


def ran(store: Store) -> list[tuple[str, str]]:
    return sorted((run.id, run.status) for run in store.run_due())


@pytest.fixture
def store(store: Store, clock: testing.FakeClock) -> Store:
    """Every kind of store, by a clock that can be set back."""
    return store


def test_tasks_that_were_queued_before_run_at_once(store: Store, clock: testing.FakeClock) -> None:
    @holdfast.agent("asks")
    def asks(task: Task) -> str:
        return task.ask("approve", "May I?", returns=str)

    simple()
    for number in range(3):
        store.submit("simple", f"queued-{number}")
    store.submit("asks", "answered")
    store.run_due(limit=4)
    store.answer("answered", "approve", "yes")
    for number in range(3, 6):
        store.submit("simple", f"queued-{number}")
    clock.set_back(HOUR)
    assert ("answered", "finished") in (done := ran(store))
    assert {run for run in done if run[0] != "answered"} >= {
        (f"queued-{number}", "finished") for number in range(3, 6)
    }
    assert ran(store) == []


def test_tasks_that_are_due_later_still_wait(store: Store, clock: testing.FakeClock) -> None:
    @holdfast.agent("sleeps")
    def sleeps(task: Task) -> str:
        task.sleep(HOUR)
        return "awake"

    @holdfast.agent("retries", max_attempts=5)
    def retries(task: Task) -> None:
        raise ValueError

    simple()
    store.submit("sleeps", "timer")
    store.submit("retries", "retry")
    store.submit("simple", "scheduled", at=clock.now() + HOUR)
    store.submit("simple", "opened", at=clock.now() + HOUR)
    with store.task("opened"):  # opened and left: still for later
        pass
    assert ran(store) == [("retry", "retrying"), ("timer", "suspended")]
    clock.set_back(HOUR)
    assert ran(store) == []
    assert seen(store, "scheduled").status == "pending"
    clock.advance(2 * HOUR + 1)
    assert [name for name, _ in ran(store)] == ["opened", "retry", "scheduled", "timer"]


def test_a_worker_that_sees_it_says_so_once_and_runs_what_is_queued(
    store: Store, clock: testing.FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    simple()
    scanner = holdfast.Worker(store)._scanner

    def found() -> list[str]:
        return sorted(head.stream.id for head in scanner.scan(4))

    store.submit("letters", "not ours")
    assert found() == []
    store.submit("simple", "before")
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        clock.set_back(HOUR)
        assert found() == ["before"]
        store.submit("simple", "after")
        assert ran(store) == [("after", "finished"), ("before", "finished")]
        for _ in range(10):
            clock.advance(30)
            assert found() == []
    said: list[Any] = [text for text in caplog.messages if "clock" in text]
    assert said == [
        "the database clock was set back by 3600 s; timers, retries and leases set "
        "before that wait until it has caught up"
    ]


def test_a_clock_that_is_a_little_behind_is_not_worth_a_word(
    store: Store, clock: testing.FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    simple()
    scanner = holdfast.Worker(store)._scanner
    store.submit("simple", "t")
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        for _ in range(20):
            clock.advance(10)
            clock.set_back(0.5)
            scanner.scan(4)
    assert not [text for text in caplog.messages if "clock" in text]
