"""Steps that fail: what is recorded, what is tried again, and how often; plain and async."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import Ways, view
from helpers.tasks.step_functions import Counting, Stop, fail, paths
from holdfast import NotDone, StepFailed, StepInDoubt, Store
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import Unavailable
from holdfast.tasks.steps import failures

# -- failures --------------------------------------------------------------------------------------


def test_a_failure_is_the_same_on_the_first_run_and_on_replay(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        try:
            await task.step("a", fail, "out of paper")
        except StepFailed as error:
            await task.decide("went on")
            return error

    first, again = ways.resume(work), ways.resume(work)
    assert str(first) == str(again)
    for error in (first, again):
        assert (error.step, error.type, error.message, error.causes) == (
            "a",
            "ValueError",
            "out of paper",
            (),
        )
    assert isinstance(first.__cause__, ValueError)
    assert again.__cause__ is None
    [step] = view(ways).steps
    assert (step.status, step.replays, step.in_doubt) == ("failed", True, False)
    assert step.error is not None
    assert (step.error.type, step.error.message) == ("ValueError", "out of paper")


def test_a_failure_that_ended_the_run_is_tried_again(ways: Ways) -> None:
    fn = Counting(ValueError("no"), ValueError("no"), "done")
    for _ in range(2):
        with pytest.raises(StepFailed):
            ways.resume(lambda task: task.step("a", fn))
        assert view(ways).steps[0].status == "retrying"
    assert ways.resume(lambda task: task.step("a", fn)) == "done"
    assert view(ways).steps[0].error is None


def wrapped(how: str) -> Callable[[StepFailed], BaseException]:
    def wrap(error: StepFailed) -> BaseException:
        try:
            if how == "from it":
                raise KeyError("wrapped") from error
            if how == "from another":
                raise KeyError("wrapped") from OSError()
            if how == "from none":
                raise KeyError("wrapped") from None
            raise KeyError("wrapped")
        except KeyError as found:
            return found

    return wrap


@pytest.mark.parametrize("how", ["from it", "from another", "from none", "during"])
def test_a_failure_that_ended_the_run_in_another_exception_is_tried_again(
    ways: Ways, how: str
) -> None:
    async def work(task: Any, fn: Any) -> Any:
        try:
            return await task.step("a", fn)
        except StepFailed as error:
            raise wrapped(how)(error)  # noqa: B904

    with pytest.raises(KeyError):
        ways.resume(lambda task: work(task, fail))
    assert ways.resume(lambda task: work(task, lambda: 1)) == 1


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="there are no task groups before Python 3.11"
)
def test_failures_in_a_group_are_tried_again(url: str) -> None:
    async def no() -> None:
        raise ValueError("no")

    async def yes() -> int:
        return 1

    async def main() -> None:
        async with holdfast.aopen(url) as store:
            with pytest.raises(__import__("builtins").ExceptionGroup):
                async with store.task("t") as task, asyncio.TaskGroup() as group:
                    group.create_task(task.step("a", no))
                    group.create_task(task.step("b", no))
            async with store.task("t") as task:
                assert [await task.step(name, yes) for name in "ab"] == [1, 1]

    asyncio.run(main())


def test_a_failure_that_was_caught_replays_though_the_run_failed_elsewhere(ways: Ways) -> None:
    fn = Counting(ValueError("no"))

    async def work(task: Any, later: Any) -> Any:
        try:
            await task.step("a", fn)
        except StepFailed:
            pass
        return await task.step("b", later)

    with pytest.raises(StepFailed):
        ways.resume(lambda task: work(task, fail))
    assert [step.status for step in view(ways).steps] == ["failed", "retrying"]
    assert ways.resume(lambda task: work(task, lambda: 1)) == 1
    assert fn.calls == [()]


def test_a_failure_does_not_replay_for_a_call_with_other_arguments(ways: Ways) -> None:
    fn = Counting(ValueError("no"))

    async def work(task: Any, x: int) -> Any:
        try:
            return await task.step("a", fn, x)
        except StepFailed:
            await task.decide("went on")

    assert ways.resume(lambda task: work(task, 1)) is None
    assert ways.resume(lambda task: work(task, 2)) == 2
    assert fn.calls == [1, 2]


def test_a_failure_after_which_the_block_was_left_in_order_replays(ways: Ways) -> None:
    fn = Counting(ValueError("no"))

    async def work(task: Any) -> None:
        with pytest.raises(StepFailed):
            await task.step("a", fn)

    ways.resume(work)
    ways.resume(work)
    assert fn.calls == [()]


def test_a_failure_after_which_nothing_was_heard_is_tried_again(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        try:
            return await task.step("a", fn)
        except StepFailed:
            raise Stop() from None

    fn = Counting(ValueError("no"), "done")
    with pytest.raises(Stop):
        ways.resume(work)
    assert ways.resume(work) == "done"


def test_the_failure_of_an_inner_step_is_that_of_the_outer_and_both_are_tried_again(
    ways: Ways,
) -> None:
    fn = Counting(ValueError("no"), "done")
    inner = holdfast.step(lambda: fn("inner"), returns=str)
    inner.fn.__name__ = "inner"

    async def work(task: Any) -> Any:
        return await task.step("outer", lambda: inner())

    with pytest.raises(StepFailed) as caught:
        ways.resume(work)
    assert (caught.value.step, caught.value.type, caught.value.causes) == (
        "outer",
        "StepFailed",
        ("outer/inner",),
    )
    assert {step.status for step in view(ways).steps} == {"retrying"}
    assert ways.resume(work) == "done"


def test_an_inner_failure_that_the_outer_step_caught_is_its_own_affair(ways: Ways) -> None:
    fn = Counting(ValueError("no"))
    inner = holdfast.step(lambda: fn("inner"), returns=str)

    def outer(then: str) -> str:
        try:
            return str(inner())
        except StepFailed:
            if then == "stop":
                raise Stop() from None
            return then

    assert ways.resume(lambda task: task.step("a", outer, "went on")) == "went on"
    assert ways.resume(lambda task: task.step("a", outer, "went on")) == "went on"
    assert fn.calls == ["inner"]


def test_a_message_that_cannot_be_stored_is_stored_as_well_as_can_be(ways: Ways) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    for name, error in {
        "surrogate": ValueError("a\ud800b"),
        "mute": Mute(),
        "long": ValueError("x" * 100_000),
    }.items():
        with pytest.raises(StepFailed):
            ways.resume(lambda task, name=name, error=error: task.step(name, Counting(error)))
    messages = {step.name: step.error.message for step in view(ways).steps if step.error}
    assert messages["surrogate"] == "a?b"
    assert messages["mute"] == ""
    assert 1000 < len(messages["long"]) < 10_000


def test_a_stop_iteration_is_a_failure_like_any_other(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        with pytest.raises(StepFailed, match="StopIteration"):
            await task.step("a", lambda: next(iter([])))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await task.make_plan(lambda: next(iter([])))
        return await task.step("b", lambda: 1)

    assert ways.resume(work) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_start_that_could_not_be_written_is_written_later(asynchronous: bool) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    inner = holdfast.step(lambda: 1, returns=int)
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)

        def outer() -> None:
            backend.next("unavailable")
            with pytest.raises(Unavailable):
                inner()
            raise Stop

        with pytest.raises(Stop):
            ways.resume(lambda task: task.step("outer", outer))
        assert backend.injected["unavailable"] == 1
        assert [step.status for step in view(ways).steps if step.path == "outer"] == ["interrupted"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_storage_that_fails_is_not_the_steps_failure(asynchronous: bool) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    fn = Counting("first", "second")
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)

        def work_and_cut() -> Any:
            backend._rates["unavailable"] = 1.0
            return fn()

        with pytest.raises(Unavailable):
            ways.resume(lambda task: task.step("a", work_and_cut), lease=0.2)
        backend._rates["unavailable"] = 0.0
        assert ways.resume(lambda task: task.step("a", fn)) == "second"


# -- attempts --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_pause")
def test_a_step_is_tried_as_often_as_it_says(ways: Ways) -> None:
    fn = Counting(ValueError("1"), ValueError("2"), "done")
    step = holdfast.step(fn, max_attempts=3)
    assert ways.resume(lambda task: task.step("a", step)) == "done"
    assert len(fn.calls) == 3
    [seen] = view(ways).steps
    assert (seen.status, seen.attempts, seen.error) == ("completed", 3, None)
    fn = Counting(*[ValueError("no")] * 9)
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("b", holdfast.step(fn, max_attempts=3)))
    assert len(fn.calls) == 3
    assert view(ways).steps[1].attempts == 3


@pytest.mark.usefixtures("no_pause")
def test_only_what_is_to_be_retried_is(ways: Ways) -> None:
    for retry_on, calls in ((OSError, 1), ((OSError, ValueError), 2), (ValueError, 2)):
        fn = Counting(ValueError("no"), "done")
        step = holdfast.step(fn, max_attempts=2, retry_on=retry_on)

        async def work(task: Any, step: Any = step) -> None:
            try:
                await task.step(str(retry_on), step)  # noqa: B023
            except StepFailed:
                pass

        ways.resume(work)
        assert len(fn.calls) == calls


@pytest.mark.usefixtures("no_pause")
def test_an_interruption_is_never_retried(ways: Ways) -> None:
    fn = Counting(Stop(), "done")
    with pytest.raises(Stop):
        ways.resume(lambda task: task.step("a", holdfast.step(fn, max_attempts=5)))
    assert len(fn.calls) == 1


@pytest.mark.usefixtures("no_pause")
def test_a_once_step_is_retried_only_if_it_was_surely_not_done(ways: Ways) -> None:
    fn = Counting(NotDone("busy"), "done")
    assert (
        ways.resume(lambda task: task.step("a", holdfast.step(fn, once=True, max_attempts=2)))
        == "done"
    )
    fn = Counting(ValueError("no"), "done")
    with pytest.raises(StepInDoubt):
        ways.resume(lambda task: task.step("a", holdfast.step(fn, once=True, max_attempts=2)), "u")
    assert len(fn.calls) == 1


@pytest.mark.usefixtures("no_pause")
def test_a_retry_of_a_check_step_asks_the_check_first(ways: Ways) -> None:
    order: list[str] = []

    def pay(x: int) -> Any:
        order.append("pay")
        raise ValueError("no")

    def check(x: int) -> Any:
        order.append("check")
        return "found" if order.count("check") == 2 else None

    assert (
        ways.resume(lambda task: task.step("a", holdfast.step(pay, check=check, max_attempts=5), 1))
        == "found"
    )
    assert order == ["pay", "check", "pay", "check"]
    order.clear()

    def not_done(x: int) -> Any:
        order.append("pay")
        if len(order) == 1:
            raise NotDone
        return 1

    assert (
        ways.resume(
            lambda task: task.step("a", holdfast.step(not_done, check=check, max_attempts=5), 1),
            "u",
        )
        == 1
    )
    assert order == ["pay", "pay"]


@pytest.mark.usefixtures("no_pause")
def test_a_retry_does_not_repeat_what_had_finished_inside(ways: Ways) -> None:
    ran: list[Any] = []
    bad = Counting(ValueError("no"), ValueError("no"), "done")

    @holdfast.step(returns=Any)
    def inner(n: int) -> Any:
        ran.append((n, holdfast.idempotency_key()))
        return n

    fragile = holdfast.step(lambda: bad("bad"), returns=Any)
    fragile.fn.__name__ = "fragile"

    @holdfast.step(max_attempts=3, returns=Any)
    def outer() -> Any:
        return [inner(1), inner(1), inner(2), fragile(), inner(3)]

    async def work(task: Any) -> Any:
        return await task.step("outer", outer)

    assert ways.resume(work) == [1, 1, 2, "done", 3]
    assert [n for n, _ in ran] == [1, 1, 2, 3]
    assert len({key for _, key in ran}) == 4
    assert sorted(paths(ways)) == [
        "outer",
        "outer/fragile",
        "outer/inner",
        "outer/inner#2",
        "outer/inner#3",
        "outer/inner#4",
    ]
    assert ways.resume(work) == [1, 1, 2, "done", 3]


@pytest.mark.usefixtures("no_pause")
def test_a_retry_does_not_try_again_what_failed_before_it_and_was_caught(ways: Ways) -> None:
    first, second = Counting(ValueError("no")), Counting(ValueError("no"), "done")

    async def work(task: Any) -> Any:
        try:
            return await task.step("first", first)
        except StepFailed:
            return await task.step("second", holdfast.step(second, max_attempts=2))

    assert [ways.resume(work), ways.resume(work)] == ["done", "done"]
    assert (len(first.calls), len(second.calls)) == (1, 2)


@pytest.mark.usefixtures("no_pause")
def test_what_a_retry_says_again_is_said_once(store: Store) -> None:
    fn = Counting(ValueError("no"), "done")
    with store.task("t") as task:

        def talk() -> Any:
            task.decide("x")
            task.discover("y")
            task.conversation().append({"role": "user", "content": "z"})
            return fn()

        assert task.step("a", holdfast.step(talk, max_attempts=2)) == "done"
        task.decide("x")
    seen = store.get_task("t")
    assert seen is not None
    assert [note.step for note in seen.decisions] == ["a", ""]
    assert len(seen.discoveries) == 1
    assert store.conversation("t").count() == 1


def test_pauses_grow_and_have_an_end() -> None:
    pauses = {
        attempt: [failures.retry_delay(attempt) for _ in range(200)] for attempt in (1, 5, 50)
    }
    assert max(pauses[1]) < min(pauses[5]) < max(pauses[50]) <= 61
    assert len(set(pauses[1])) > 100, "not the same for all who wait"


def test_a_cancelled_step_is_not_tried_again(url: str, no_pause: None) -> None:
    async def main() -> None:
        begun, go_on, calls = threading.Event(), threading.Event(), list[int]()

        def slow() -> None:
            calls.append(1)
            begun.set()
            assert go_on.wait(30)
            raise ValueError("no")

        async def work(store: holdfast.AsyncStore) -> None:
            async with store.task("t") as task:
                await task.step("a", holdfast.step(slow, max_attempts=3))

        async with holdfast.aopen(url) as store:
            running = asyncio.ensure_future(work(store))
            await asyncio.to_thread(begun.wait, 30)
            running.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert calls == [1]
            seen = await store.get_task("t")
            assert seen is not None
            assert (seen.status, seen.owner) == ("pending", None)

    asyncio.run(main())


def test_an_async_step_has_a_time_limit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "retry_delay", lambda attempt: 0.0)
    calls: list[int] = []

    async def slow() -> int:
        calls.append(1)
        if len(calls) < 3:
            await asyncio.Event().wait()
        return 1

    async def main() -> None:
        async with holdfast.aopen(url) as store:
            with pytest.raises(StepFailed) as caught:
                async with store.task("t") as task:
                    await task.step("a", holdfast.step(slow, timeout=0.01))
            assert caught.value.type == "TimeoutError"
            async with store.task("t") as task:
                assert await task.step("a", holdfast.step(slow, timeout=0.05, max_attempts=2)) == 1

    asyncio.run(main())
    assert len(calls) == 3
