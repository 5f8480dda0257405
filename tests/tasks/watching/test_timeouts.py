"""Timeouts of synchronous steps, whose threads are abandoned, and of whole tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from holdfast.errors import NoTask, StepFailed, StepInDoubt, TaskTimeout

SHORT = 0.02
PATIENCE_SECONDS = 60.0


class Hanging:
    """A function that returns only when it is released, in whatever thread it is called."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self.threads: list[threading.Thread] = []
        self.after: Callable[[], object] | None = None
        self.outcome: object = None

    def __call__(self) -> str:
        self.threads.append(threading.current_thread())
        assert self._free.wait(PATIENCE_SECONDS)
        if self.after is not None:
            try:
                self.outcome = self.after()
            except BaseException as error:
                self.outcome = error
        return "late"

    def release(self) -> None:
        """Let it end, and wait until its threads have ended."""
        self._free.set()
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(PATIENCE_SECONDS)
                assert not thread.is_alive()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    found = Hanging()
    yield found
    found.release()


def view(store: holdfast.Store, id: str = "t") -> holdfast.TaskView:
    found = store.get_task(id)
    assert found is not None
    return found


# -- steps -----------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_step_that_takes_too_long_fails_and_its_late_result_is_refused(
    ways: Any, hanging: Hanging
) -> None:
    step = holdfast.step(lambda: hanging(), timeout=SHORT)

    async def work(task: Any) -> None:
        with pytest.raises(StepFailed) as caught:
            await task.step("slow", step)
        assert caught.value.type == "TimeoutError"
        assert isinstance(caught.value.__cause__, TimeoutError)
        hanging.release()
        assert await task.step("next", int) == 0

    ways.resume(work)
    slow, following = view(ways.store).steps
    assert (slow.status, slow.result, slow.in_doubt) == ("failed", None, False)
    assert following.status == "completed"


def test_a_step_that_ends_in_time_is_like_any_other(ways: Any) -> None:
    inner = holdfast.step(lambda: holdfast.current_step().path)

    @holdfast.step(timeout=PATIENCE_SECONDS)
    def outer() -> str:
        if not ways.asynchronous:
            assert inner() == "outer/<lambda>"
        return holdfast.current_step().path

    @holdfast.step(timeout=PATIENCE_SECONDS)
    def failing() -> None:
        raise KeyError("gone")

    async def work(task: Any) -> Any:
        with pytest.raises(StepFailed, match="gone"):
            await task.step("failing", failing)
        return await task.step("outer", outer)

    assert ways.resume(work) == "outer"
    assert [step.in_doubt for step in view(ways.store).steps] == [False] * len(
        view(ways.store).steps
    )
    assert ways.resume(lambda task: task.step("outer", outer)) == "outer"


def test_a_step_that_takes_too_long_is_retried(ways: Any, hanging: Hanging, no_pause: None) -> None:
    calls: list[int] = []

    @holdfast.step(timeout=SHORT, max_attempts=2, retry_on=TimeoutError)
    def sometimes() -> str:
        calls.append(1)
        return hanging() if len(calls) == 1 else "second"

    assert ways.resume(lambda task: task.step("s", sometimes)) == "second"
    hanging.release()
    assert view(ways.store).steps[0].result == "second"


@pytest.mark.every_engine
def test_a_once_step_that_takes_too_long_is_in_doubt(ways: Any, hanging: Hanging) -> None:
    step = holdfast.step(lambda: hanging(), timeout=SHORT, once=True, max_attempts=3)
    with pytest.raises(StepInDoubt):
        ways.resume(lambda task: task.step("pay", step))
    assert view(ways.store).in_doubt == ["pay"]
    assert len(hanging.threads) == 1
    with pytest.raises(StepInDoubt):
        ways.resume(lambda task: task.step("pay", step))
    assert len(hanging.threads) == 1


def test_a_check_step_is_not_run_again_while_its_thread_may_still_do_it(
    ways: Any, hanging: Hanging, no_pause: None, clock: Any
) -> None:
    done: list[str] = []
    checks: list[int] = []

    def check() -> str | None:
        checks.append(1)
        return done[0] if done else None

    def pay() -> str:
        hanging()
        done.append("paid")
        return "paid"

    step = holdfast.step(pay, timeout=SHORT, check=check, max_attempts=3)
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("pay", step))
    with pytest.raises(StepInDoubt, match="still runs in this process"):
        ways.resume(lambda task: task.step("pay", step))
    assert (len(hanging.threads), checks) == (1, [])
    hanging.release()
    before = clock.now()
    assert ways.resume(lambda task: task.step("pay", step)) == "paid"
    assert clock.now() - before >= 25  # as after a crash: the request may be under way
    assert (len(hanging.threads), checks, done) == (1, [1], ["paid"])


def test_an_abandoned_thread_can_no_longer_use_the_task(ways: Any, hanging: Hanging) -> None:
    effects: list[str] = []
    inner = holdfast.step(lambda: effects.append("inner"), once=True)
    hanging.after = lambda: inner()
    step = holdfast.step(lambda: hanging(), timeout=SHORT)

    async def work(task: Any) -> None:
        with pytest.raises(StepFailed):
            await task.step("slow", step)
        hanging.release()
        assert isinstance(hanging.outcome, NoTask)
        await task.finish("done")

    ways.resume(work)
    assert (effects, [step.path for step in view(ways.store).steps]) == ([], ["slow"])


def test_an_inner_step_in_an_abandoned_thread_holds_nothing_up(
    store: holdfast.Store, hanging: Hanging, no_pause: None
) -> None:
    inner = holdfast.step(lambda: hanging())
    calls: list[int] = []

    @holdfast.step(timeout=SHORT, max_attempts=2)
    def outer() -> str:
        calls.append(1)
        return inner() if len(calls) == 1 else "second"

    with store.task("t") as task:
        assert task.step("outer", outer) == "second"
        hanging.release()  # its result comes too late
        task.finish()
    assert view(store).result is None
    assert [step.status for step in view(store).steps if step.path == "outer"] == ["completed"]


def test_an_inner_check_step_is_not_run_again_while_its_thread_may_still_do_it(
    store: holdfast.Store, hanging: Hanging, no_pause: None
) -> None:
    pay = holdfast.step(lambda: hanging(), check=lambda: None)

    @holdfast.step(timeout=SHORT, max_attempts=2)
    def outer() -> str:
        return pay()

    with pytest.raises(StepInDoubt, match="still runs in this process"), store.task("t") as task:
        task.step("outer", outer)
    assert len(hanging.threads) == 1


def test_an_async_function_behind_a_plain_one_is_limited_too(store: holdfast.Store) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with store.aio.task("t") as task:
            with pytest.raises(StepFailed) as caught:
                await task.step("slow", holdfast.step(lambda: forever(), timeout=SHORT))
            assert caught.value.type == "TimeoutError"

    asyncio.run(main())


# -- tasks -----------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_task_fails_when_its_time_is_over_counted_over_runs(ways: Any, clock: Any) -> None:
    async def first(task: Any) -> None:
        await task.step("a", int)

    ways.resume(first, timeout=timedelta(minutes=10))
    clock.advance(9 * 60)
    ways.resume(first)
    found = view(ways.store)
    assert (found.timeout, found.deadline is not None) == (600.0, True)
    clock.advance(2 * 60)
    with pytest.raises(TaskTimeout) as caught:
        ways.resume(lambda task: task.step("b", int))
    assert (caught.value.timeout, isinstance(caught.value, TimeoutError)) == (600.0, True)
    failed = view(ways.store)
    assert (failed.status, failed.error and failed.error.type) == ("failed", "TaskTimeout")


@pytest.mark.every_engine
def test_a_task_whose_step_hangs_is_failed_by_the_heartbeat(ways: Any, clock: Any) -> None:
    seen: list[str] = []

    def hang() -> str:
        clock.advance(5)
        seen.append(view(ways.store).status)
        clock.advance(10)
        seen.append(view(ways.store).status)
        return "too late"

    with pytest.raises(TaskTimeout):
        ways.resume(lambda task: task.step("hang", hang), timeout=10)
    assert seen == ["running", "failed"]
    found = view(ways.store)
    assert (found.error and found.error.type, found.steps[0].result) == ("TaskTimeout", None)


def test_a_once_step_that_was_running_is_in_doubt(store: holdfast.Store, clock: Any) -> None:
    pay = holdfast.step(lambda: clock.advance(20), once=True)
    with pytest.raises(TaskTimeout), store.task("t", timeout=10) as task:
        task.step("pay", pay)
    assert view(store).in_doubt == ["pay"]


@pytest.mark.every_engine
def test_an_async_step_is_cancelled_when_the_time_of_its_task_is_over(
    store: holdfast.Store, clock: Any
) -> None:
    cancelled: list[bool] = []

    async def forever() -> None:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE_SECONDS)
        except asyncio.CancelledError:
            cancelled.append(True)
            clock.advance(1)  # the timer of the event loop does not move this clock
            raise

    async def main() -> None:
        async with store.aio.task("t", timeout=10.0) as task:
            clock.advance(10.0 - SHORT)  # however slow the backend is, the step starts in time
            await task.step("forever", forever)

    with pytest.raises(TaskTimeout):
        asyncio.run(main())
    assert cancelled == [True]
    assert view(store).status == "failed"


def test_workers_end_tasks_that_wait_and_do_not_retry_them(
    store: holdfast.Store, clock: Any, no_agents: None
) -> None:
    @holdfast.agent("slow", timeout=timedelta(hours=1), max_attempts=5)
    def slow(task: holdfast.Task) -> None:
        task.ask("ok", "Is it?")

    store.submit("slow", "t")
    assert [run.status for run in store.run_due()] == ["suspended"]
    assert view(store).timeout == 3600.0
    clock.advance(3000)
    assert store.run_due() == []
    clock.advance(700)
    [run] = store.run_due()
    assert (run.status, run.error) == ("failed", "TaskTimeout")
    assert store.wait("t", timeout=0).status == "failed"
    clock.advance(7200)
    assert store.run_due() == []


def test_a_run_that_ends_after_its_task_was_failed_reports_the_time_out(
    store: holdfast.Store, no_agents: None
) -> None:
    pause = threading.Event()

    @holdfast.agent("late", timeout=0.05, max_attempts=1)
    def late(task: holdfast.Task) -> str:
        while view(store).status == "running":
            pause.wait(0.01)
        return "done"

    store.submit("late", "t")
    [run] = store.run_due()
    assert (run.status, run.error) == ("failed", "TaskTimeout")


@pytest.mark.parametrize("again", ["submit", "retry"])
def test_submitting_again_starts_the_time_anew_and_may_change_it(
    store: holdfast.Store, clock: Any, no_agents: None, again: str
) -> None:
    @holdfast.agent("slow", timeout=100)
    def slow(task: holdfast.Task) -> str:
        if task.input:
            task.step("work", clock.advance, 150)
        return "done"

    store.submit(slow, "t", input=True, timeout=120)
    assert [run.error for run in store.run_due()] == ["TaskTimeout"]
    if again == "submit":
        store.submit(slow, "t", timeout=200)
    else:
        store.retry("t", timeout=200)
    assert view(store).timeout == 200.0
    assert [run.status for run in store.run_due()] == ["finished"]


def test_a_child_that_takes_too_long_fails_and_its_parent_hears_of_it(
    ways: Any, clock: Any, no_agents: None
) -> None:
    if ways.asynchronous:

        @holdfast.agent("child", timeout=10)
        async def child(task: holdfast.AsyncTask) -> None:
            await task.step("work", clock.advance, 20)
            await task.step("more", int)
    else:

        @holdfast.agent("child", timeout=10)
        def child(task: holdfast.Task) -> None:
            task.step("work", clock.advance, 20)
            task.step("more", int)

    async def parent(task: Any) -> str:
        try:
            await task.run_child("child", "c")
        except holdfast.errors.ChildFailed as error:
            return error.type
        return "?"

    assert ways.resume(parent) == "TaskTimeout"
    assert view(ways.store, "c").status == "failed"


@pytest.mark.parametrize("timeout", [0, -1, "1"])
def test_wrong_timeouts_of_tasks_are_refused(store: holdfast.Store, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        store.task("t", timeout=timeout)
    with pytest.raises(ValueError, match="timeout must be"):
        store.submit("agent", "t", timeout=timeout)
    with pytest.raises(ValueError, match="timeout must be"):
        holdfast.agent("x", timeout=timeout)


def test_a_task_that_finishes_in_time_is_not_touched(store: holdfast.Store, clock: Any) -> None:
    with store.task("t", timeout=10) as task:
        task.step("a", clock.advance, 5)
        task.finish("ok")
    clock.advance(100)
    assert store.run_due() == []
    with store.task("t") as task:
        assert task.finish() == "ok"
