"""A problem that repeats is logged at its start, then summed up, and its end once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from holdfast.log.repeated_warning import QUIET_SECONDS, SUMMARY_SECONDS, RepeatedWarning
from holdfast.testing import FakeClock, fake_clock


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with fake_clock() as clock:
        yield clock


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        yield caplog


def test_thousands_of_failures_are_a_few_lines(
    clock: FakeClock, warnings: pytest.LogCaptureFixture
) -> None:
    problem = RepeatedWarning("writes succeed again")
    for _ in range(3):
        for _ in range(1_000):
            problem.note_failure("a write failed (StorageFull)")
        clock.advance(SUMMARY_SECONDS)
    problem.note_failure("a write failed (Unavailable)")
    clock.advance(QUIET_SECONDS)
    problem.note_success()
    problem.note_success()
    assert warnings.messages == [
        "a write failed (StorageFull)",
        "a write failed (StorageFull); 1,001 failures in 60 s",
        "a write failed (StorageFull); 2,001 failures in 120 s",
        "a write failed (Unavailable); 3,001 failures in 180 s",
        "writes succeed again, after 3,001 failures in 180 s",
    ]


def test_a_success_between_failures_is_not_the_end(
    clock: FakeClock, warnings: pytest.LogCaptureFixture
) -> None:
    """A small append may still fit on a full disk."""
    problem = RepeatedWarning("writes succeed again")
    for _ in range(100):
        problem.note_failure("a write failed")
        problem.note_success()
        clock.advance(0.5)
    assert warnings.messages == ["a write failed"]
    assert problem.active
    clock.advance(QUIET_SECONDS)
    problem.note_success()
    assert not problem.active
    assert warnings.messages[1:] == ["writes succeed again, after 100 failures in 50 s"]


def test_the_next_problem_is_logged_at_its_start_again(
    clock: FakeClock, warnings: pytest.LogCaptureFixture
) -> None:
    problem = RepeatedWarning("writes succeed again")
    for _ in range(2):
        problem.note_failure("a write failed")
        clock.advance(QUIET_SECONDS)
        problem.note_success()
    assert warnings.messages == ["a write failed", "writes succeed again, after 1 failure"] * 2


def test_each_failure_is_logged_for_who_debugs(caplog: pytest.LogCaptureFixture) -> None:
    problem = RepeatedWarning("writes succeed again")
    with caplog.at_level(logging.DEBUG, logger="holdfast"):
        for _ in range(3):
            problem.note_failure("a write failed")
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG", "DEBUG"]
    assert {record.correlation for record in caplog.records} == {None}  # type: ignore[attr-defined]
