"""The two drivers, with effects and a log that answers from a list."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.backends import StreamKey, deadline
from holdfast.errors import Conflict
from holdfast.log import operations as ops
from holdfast.log.drivers import (
    Effect,
    EffectGen,
    Ended,
    NewDeadline,
    drive,
    drive_async,
    drive_uncancelled,
    run_to,
)

KEY = StreamKey("t", "stream", "s")


class Answers:
    """Answers requests from a list, and notes the deadline of each."""

    timeout = 30.0

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.deadlines: list[deadline.Deadline | None] = []
        self.lock, self.async_lock = threading.Lock(), asyncio.Lock()

    def handle(self, request: ops.Request) -> Any:
        self.deadlines.append(deadline.get_current())
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def handle_async(self, request: ops.Request) -> Any:
        return self.handle(request)

    def conflict_lock(self) -> threading.Lock:
        return self.lock

    def conflict_lock_async(self) -> asyncio.Lock:
        return self.async_lock


class Do(Effect):
    """Call a function, in place of the user's."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def perform(self, log: Any) -> Any:
        return self.call()

    async def perform_async(self, log: Any) -> Any:
        return self.call()


class InThread(Do):
    runs_in_thread = True

    def start_thread(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(None, self.call)


class Record(Do):
    outlives_cancellation = True


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Callable[[Answers, EffectGen[Any]], Any]:
    if request.param == "sync":
        return drive
    return lambda log, generator: asyncio.run(drive_async(log, generator))


def test_requests_and_effects_are_answered_in_one_generator(run: Any) -> None:
    def work() -> EffectGen[list[Any]]:
        first = yield from ops.head(KEY)
        second = yield Do(lambda: "effect")
        try:
            yield Do(lambda: 1 / 0)
        except ZeroDivisionError:
            return [first, second, "caught"]
        raise AssertionError

    assert run(Answers("head"), work()) == ["head", "effect", "caught"]


def test_requests_share_a_deadline_that_user_code_does_not_have(run: Any) -> None:
    log, seen = Answers(), []

    def work() -> EffectGen[None]:
        yield from ops.head(KEY)
        yield from ops.head(KEY)
        yield Do(lambda: seen.append(deadline.get_current()))
        yield from ops.head(KEY)
        yield NewDeadline()
        yield from ops.head(KEY)

    run(log, work())
    first, second, third, fourth = log.deadlines
    assert first is second and first is not None
    assert third is not None and third is not first
    assert fourth is not None and fourth is not third
    assert seen == [None] and deadline.get_current() is None


def test_an_outer_deadline_counts(run: Any) -> None:
    log, outer = Answers(), deadline.start(5.0)
    with deadline.until(outer):
        run(log, ops.head(KEY))
        assert deadline.get_current() is outer
    assert log.deadlines == [outer]


def test_retries_after_a_conflict_hold_the_lock_and_keep_the_deadline(run: Any) -> None:
    conflict = Conflict("s", expected=1, actual=2)
    log = Answers(conflict, conflict, "done")
    held: list[bool] = []

    def make() -> ops.Operation[Any]:
        held.append(log.lock.locked() or log.async_lock.locked())
        return (yield from ops.head(KEY))

    assert run(log, ops.settle(make)) == "done"
    assert held == [False, True, True]
    assert len(set(map(id, log.deadlines))) == 1
    assert not log.lock.locked() and not log.async_lock.locked()


def test_run_to_stops_before_a_request_and_goes_on_with_a_value_or_an_error(run: Any) -> None:
    def work() -> EffectGen[str]:
        assert (yield Do(lambda: "before")) == "before"
        assert (yield from ops.find_append(KEY, "id")) == "given"
        try:
            yield from ops.find_append(KEY, "id")
        except KeyError:
            return "end"
        raise AssertionError

    generator, log = work(), Answers()
    assert isinstance(run(log, run_to(ops.FindAppend, generator, generator.send)), ops.FindAppend)
    again = run(log, run_to(ops.FindAppend, generator, generator.send, "given"))
    assert isinstance(again, ops.FindAppend)
    end = run(log, run_to(ops.FindAppend, generator, generator.throw, KeyError()))
    assert isinstance(end, Ended) and end.value == "end"
    assert log.deadlines == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancellation_waits_for_the_thread_whose_outcome_is_recorded(fails: bool) -> None:
    running, proceed, recorded = threading.Event(), threading.Event(), []

    def function() -> str:
        running.set()
        assert proceed.wait(60)
        if fails:
            raise KeyError
        return "result"

    def work() -> EffectGen[None]:
        try:
            outcome = yield InThread(function)
        except KeyError:
            outcome = "failure"
        yield from ops.head(KEY)
        yield Record(lambda: recorded.append(outcome))
        yield Do(lambda: recorded.append("never"))

    async def main() -> None:
        log = Answers()
        task = asyncio.ensure_future(drive_async(log, work()))
        await asyncio.to_thread(running.wait, 10)
        task.cancel()
        proceed.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(log.deadlines) == 1

    asyncio.run(main())
    assert recorded == ["failure" if fails else "result"]


def test_an_uncancelled_generator_runs_to_its_end_first() -> None:
    done = []

    async def main() -> None:
        started = asyncio.Event()

        class Pause(Effect):
            async def perform_async(self, log: Any) -> None:
                started.set()
                await asyncio.sleep(0)

        def work() -> EffectGen[None]:
            yield Pause()
            yield Do(lambda: done.append(True))

        task = asyncio.ensure_future(drive_uncancelled(Answers(), work()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert done == [True]
