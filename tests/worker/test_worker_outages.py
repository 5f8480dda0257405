"""A worker whose database is full or unreachable: it waits instead of trying as fast as it fails,
and says so once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pytest

import holdfast
from helpers.tasks.running_workers import Watched, wait_until, working
from helpers.tasks.worker_tasks import simple
from holdfast import HoldfastError, Store, testing
from holdfast.backends import Append, AppendResult, VersionMismatch
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import OutcomeUnknown, StorageFull, Unavailable
from holdfast.worker.polling import DueTaskScanner

ROUNDS = 30


class Full(Watched):
    """A backend that can be read, and refuses to store anything while it is full."""

    error: HoldfastError | None = None

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        if self.error is not None:
            self.counts["refused"] += 1
            raise self.error
        return super().append(batch)


@pytest.fixture
def full() -> Full:
    return Full(MemoryBackend())


@pytest.fixture
def store(full: Full) -> Iterator[Store]:
    with holdfast.open(full) as store:
        yield store


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a worker has made."""
    pauses: list[float] = []
    pause = DueTaskScanner.pause

    def note(scanner: DueTaskScanner) -> float:
        pauses.append(pause(scanner))
        return pauses[-1]

    monkeypatch.setattr(DueTaskScanner, "pause", note)
    return pauses


@pytest.mark.parametrize("error", [StorageFull("no space left"), Unavailable("it is gone")])
def test_a_worker_waits_for_a_full_database_and_says_so_once(
    error: HoldfastError,
    full: Full,
    store: Store,
    rounds: list[float],
    clock: testing.FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    simple()
    for number in range(50):
        store.submit("simple", f"t{number:02}")
    full.error = error
    with (
        caplog.at_level(logging.WARNING, logger="holdfast"),
        working(store, concurrency=4) as worker,
    ):
        wait_until(lambda: len(rounds) > ROUNDS)  # the clock stands still, and so do attempts
        first = full.counts["refused"]
        assert 1 <= first <= 4
        clock.advance(1)
        wait_until(lambda: full.counts["refused"] > first)
        full.error = None
        clock.advance(10)
        worker.reports.wait_until(lambda said: sum(ran.status == "finished" for ran in said) == 50)
        assert not [ran for ran in worker.reports.all if ran.error]
    [start, end] = [text for text in caplog.messages if "start" in text]
    assert start.startswith("cannot start simple 't")
    assert start.endswith(f"' ({type(error).__name__}); retrying")
    assert end.startswith("tasks start again, after ")


@pytest.mark.parametrize("error", [StorageFull("no space left"), OutcomeUnknown("no answer")])
def test_run_due_tries_each_task_once_and_returns(
    error: HoldfastError, full: Full, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._log, "timeout", 0.0)
    simple()
    for number in range(3):
        store.submit("simple", f"t{number}")
    full.error = error
    ran = store.run_due()
    assert sorted((run.id, run.error) for run in ran) == [
        (f"t{number}", type(error).__name__) for number in range(3)
    ]
    full.error = None
    assert sorted(run.status for run in store.run_due()) == ["finished"] * 3


def test_writes_that_are_retried_are_one_warning(
    full: Full, store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._log, "timeout", 0.0)
    store.stream("s").append(("n", 0))
    full.error = OutcomeUnknown("no answer")
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        for _ in range(20):
            with pytest.raises(OutcomeUnknown):
                store.stream("s").append(("n", 1))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["a write failed (OutcomeUnknown: no answer); retrying 1 append"]
