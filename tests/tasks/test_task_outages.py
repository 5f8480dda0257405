"""An engine that cannot be reached for a while: what a task has done is not lost, and the outage is
not the agent's failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import Ways
from holdfast import Store, testing
from holdfast.backends import clock as _clock
from holdfast.backends import deadline
from holdfast.backends.deadline import DEFAULT_TIMEOUT
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import Unavailable
from holdfast.log.log import Log
from holdfast.tasks.ending import RECHECK_SECONDS


class Outage:
    """An engine that is away, and time that passes only in pauses. `seconds`: how long; `passed`:
    how long was waited for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend, self.passed, self.back_at = FaultyBackend(MemoryBackend(), seed=1), 0.0, 0.0
        self.store = Store(Log(self.backend, pause=self.pause), "default")

        async def pause_async(seconds: float) -> None:
            self.pause(seconds)

        monkeypatch.setattr(_clock, "sleep_async", pause_async)
        monkeypatch.setattr(deadline, "monotonic", lambda: self.passed)

    def begin(self, seconds: float) -> None:
        self.backend._rates["unavailable"] = 1.0
        self.back_at = self.passed + seconds

    def pause(self, seconds: float) -> None:
        self.passed += seconds
        if self.passed >= self.back_at:
            self.end()

    def end(self) -> None:
        self.backend._rates["unavailable"] = 0.0


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    outage = Outage(monkeypatch)
    with outage.store:
        yield outage
        outage.end()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("once", [False, True])
def test_a_result_waits_for_the_engine_to_come_back(
    outage: Outage, asynchronous: bool, size: int, once: bool
) -> None:
    calls: list[int] = []

    def paid() -> str:
        calls.append(1)
        outage.begin(DEFAULT_TIMEOUT / 2)
        return "x" * size

    step, ways = holdfast.step(paid, once=once), Ways(outage.store, asynchronous=asynchronous)
    assert ways.resume(lambda task: task.step("a", step)) == "x" * size
    assert outage.backend.injected["unavailable"] > 3
    assert outage.passed >= DEFAULT_TIMEOUT / 2
    assert ways.resume(lambda task: task.step("a", step)) == "x" * size
    assert calls == [1]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_engine_that_stays_away_is_waited_for_once(outage: Outage, asynchronous: bool) -> None:
    ways = Ways(outage.store, asynchronous=asynchronous)

    def cut() -> None:
        outage.begin(1e9)

    async def work(task: Any) -> None:
        await task.step("a", cut)

    with pytest.raises(Unavailable):
        ways.resume(work, lease=0.2)
    assert DEFAULT_TIMEOUT * 0.9 <= outage.passed <= DEFAULT_TIMEOUT, (
        "leaving the block does not wait as long again"
    )


def test_after_an_outage_the_next_one_is_waited_out_too(outage: Outage) -> None:
    def cut(seconds: float) -> float:
        outage.begin(seconds)
        return seconds

    with outage.store.task("t") as task:
        with pytest.raises(Unavailable):
            task.step("a", cut, 1e9)
        outage.end()
        task.decide("go on")
        assert task.step("b", cut, 5.0) == 5.0
    assert outage.passed >= 5.0


def test_an_engine_that_was_away_is_no_failure_of_the_agent(outage: Outage) -> None:
    runs: list[int] = []

    @holdfast.agent("claims", max_attempts=2)
    def claims(task: holdfast.Task) -> str:
        runs.append(1)
        if len(runs) <= 3:
            raise Unavailable("not now")
        return task.step("work", str.upper, "done")

    with testing.fake_clock() as clock:
        outage.store.submit("claims", "t")
        for attempt in range(3):
            outage.store.run_due()
            view = outage.store.get_task("t")
            assert view is not None and (view.status, len(runs)) == ("pending", attempt + 1)
            assert outage.store.run_due() == [], "not at once again"
            clock.advance(RECHECK_SECONDS + 1)
        [ran] = outage.store.run_due()
    assert ran.status == "finished"


def test_a_file_whose_task_was_deleted_is_not_there(outage: Outage) -> None:
    with outage.store.task("t") as task:
        task.attach("report.txt", b"x" * 100)
        artifact = outage.store.artifact("t", "report.txt")
    assert outage.store.task("t").delete()
    with pytest.raises(holdfast.NotFound, match="deleted"):
        artifact.read()
