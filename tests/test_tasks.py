"""Tasks: opened under one id, left in every way there is, and opened again where they were; on every backend, plain and async."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from both_ways import Ways, view
from holdfast import (
    AlreadyExists,
    Expired,
    HasForks,
    Held,
    InvalidId,
    LeaseLost,
    NotFound,
    NotSerializable,
    ReplayMismatch,
    StepFailed,
    StepInDoubt,
    Store,
    Task,
    TaskEnded,
    TaskView,
    Unavailable,
)
from holdfast import _operations as ops
from holdfast._streams import new_stamp
from holdfast.backends import StreamKey
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend

LARGE = "x" * 200_000


ON_MEMORY = pytest.mark.parametrize("url", ["memory://"], ids=["memory"])
"""For what is far above the backends, and asked in many ways."""


@pytest.fixture(params=["plain", "async"])
def ways(request: pytest.FixtureRequest, url: str) -> Iterator[Ways]:
    with holdfast.open(url) as store:
        yield Ways(store, asynchronous=request.param == "async")


def held(store: Store, id: str = "t", **options: Any) -> Task:
    """A task that some other part of the program has entered."""
    task = store.task(id, **options)
    contextvars.copy_context().run(task.__enter__)
    entered.append(task)
    return task


entered: list[Task] = []


@pytest.fixture(autouse=True)
def leave_everything() -> Iterator[None]:
    yield
    while entered:  # what a test did not leave: its store is closed by now
        entered.pop()._outside_again()


def without_renewal(task: Task) -> Task:
    """As if its process had stopped: nobody renews the lease."""
    task._log.heartbeat.release(task._held().holder)
    return task


@dataclass
class Claim:
    number: int
    items: list[str]


def nothing() -> None:
    return None


def never() -> Any:
    raise AssertionError("a finished step was run again")


def fail() -> None:
    raise ValueError("no")


async def idle(task: Any) -> None:
    return None


# -- opening -----------------------------------------------------------------------------------------


def test_a_task_does_no_io_until_it_is_entered(ways: Ways) -> None:
    ways.task("t", goal="Reach it", input={"a": 1})
    assert ways.store.get_task("t") is None
    assert list(ways.store.tasks()) == []


def test_admission_is_durable_before_any_work(ways: Ways) -> None:
    async def work(task: Any) -> None:
        seen = view(ways)
        assert (seen.goal, seen.input, seen.agent, seen.status) == ("Reach it", {"a": [1]}, "claims", "running")
        assert (seen.steps, seen.plan, seen.version, seen.runs) == ([], [], 2, 1)
        assert (task.goal, task.input, task.agent, task.status) == ("Reach it", {"a": [1]}, "claims", "running")
        assert (task.id, task.version, task.resumed, task.cancelled, task.result) == ("t", 2, False, False, None)

    ways.resume(work, goal="Reach it", input={"a": [1]}, agent="claims")


def test_what_is_omitted_is_as_it_is_stored(ways: Ways) -> None:
    ways.resume(idle, goal="Reach it", input={"a": 1}, agent="claims")

    async def work(task: Any) -> None:
        assert (task.goal, task.input, task.agent, task.resumed) == ("Reach it", {"a": 1}, "claims", True)

    ways.resume(work)
    ways.resume(work, goal="Reach it", input={"a": 1}, agent="claims")


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"goal": "Something else"}, "goal"),
        ({"input": {"a": 2}}, "input"),
        ({"input": {"a": True}}, "input"),
        ({"input": [1]}, "input"),
        ({"agent": "clerk"}, "agent"),
        ({"subject": "person-7"}, "subject"),
    ],
)
def test_another_goal_input_or_agent_on_an_existing_id_is_refused(ways: Ways, other: dict[str, Any], what: str) -> None:
    ways.resume(idle, goal="Reach it", input={"a": 1}, agent="claims")
    before = view(ways).version
    with pytest.raises(ReplayMismatch, match=what) as caught:
        ways.resume(idle, **other)
    assert caught.value.step is None
    assert view(ways).version == before


def test_the_order_of_an_inputs_keys_says_nothing(ways: Ways) -> None:
    ways.resume(idle, input={"a": 1, "b": {"x": 1, "y": 2}})
    ways.resume(idle, input={"b": {"y": 2, "x": 1}, "a": 1})


def test_an_input_has_the_type_it_was_opened_with(ways: Ways) -> None:
    claim = Claim(7, ["car"])

    async def work(task: Any) -> Any:
        return task.input

    assert ways.resume(work, input=claim) == claim
    assert ways.resume(work, input=claim) == claim
    assert ways.resume(work) == {"number": 7, "items": ["car"]}


def test_large_inputs_and_results_are_kept(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        assert task.input == [LARGE]
        return await task.finish({"report": LARGE})

    assert ways.resume(work, input=[LARGE]) == {"report": LARGE}
    assert ways.resume(work) == {"report": LARGE}
    assert view(ways).input == [LARGE]
    assert view(ways).result == {"report": LARGE}


def test_an_input_that_cannot_be_stored_is_refused_at_once(ways: Ways) -> None:
    with pytest.raises(NotSerializable):
        ways.task(input=object())


@ON_MEMORY
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"goal": ""}, ValueError),
        ({"goal": "  "}, ValueError),
        ({"goal": 7}, ValueError),
        ({"goal": "\ud800"}, NotSerializable),
        ({"agent": ""}, InvalidId),
        ({"lease": 0}, ValueError),
        ({"lease": 0.01}, ValueError),
        ({"lease": "long"}, (TypeError, ValueError)),
        ({"wait": -1}, ValueError),
        ({"ttl": -1}, ValueError),
        ({"id": ""}, InvalidId),
        ({"id": "a\0b"}, InvalidId),
    ],
)
def test_wrong_options_are_refused_before_anything_is_done(
    ways: Ways, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ways.task(**options)


def test_methods_before_entering_say_what_to_do(ways: Ways) -> None:
    async def work() -> None:
        task = ways.task()
        for call in (
            lambda: task.step("a", nothing),
            lambda: task.make_plan(["a"]),
            lambda: task.decide("x"),
            lambda: task.finish(),
            lambda: task.fail("x"),
        ):
            with pytest.raises(holdfast.NoTask, match="enter the task first"):
                await call()
        with pytest.raises(holdfast.NoTask, match="enter the task first"):
            task.goal  # noqa: B018

    ways.run(work())


def test_a_block_that_was_left_takes_no_more_steps(ways: Ways) -> None:
    async def program() -> None:
        async with ways.task() as task:
            await task.step("a", nothing)
        for call in (
            lambda: task.step("a", nothing),
            lambda: task.step("b", nothing),
            lambda: task.decide("x"),
            lambda: task.make_plan(["a"]),
            lambda: task.finish(1),
        ):
            with pytest.raises(holdfast.NoTask):
                await call()

    ways.run(program())
    assert [step.path for step in view(ways).steps] == ["a"]
    assert view(ways).status == "open"


def test_a_handle_can_be_entered_again_but_not_twice_at_once(ways: Ways) -> None:
    async def program() -> None:
        task = ways.task()
        async with task:
            with pytest.raises(RuntimeError, match="entered already"):
                async with task:
                    pass
            with pytest.raises(RuntimeError, match="wait for itself"):
                async with ways.task():
                    pass
            assert task.status == "running"
        async with task:
            assert task.resumed
            assert await task.step("a", lambda: 1) == 1

    ways.run(program())
    assert view(ways).runs == 2


def test_tenants_are_apart(ways: Ways) -> None:
    async def program(tenant: str) -> Any:
        async with ways.task("t", tenant=tenant, goal=f"of {tenant}") as task:
            return await task.step("a", holdfast.idempotency_key)

    keys = {ways.run(program(tenant)) for tenant in ("acme", "globex")}
    assert len(keys) == 2
    assert ways.store.get_task("t") is None
    assert [info.goal for info in ways.store.for_tenant("acme").tasks()] == ["of acme"]


# -- who holds it ------------------------------------------------------------------------------------


def test_what_another_holds_is_not_waited_for_with_wait_0(ways: Ways) -> None:
    other = held(ways.store)
    with pytest.raises(Held) as caught:
        ways.resume(idle, wait=0)
    assert caught.value.owner == other._held().holder
    assert caught.value.until > time.time()
    assert view(ways).owner == caught.value.owner
    other.__exit__(None, None, None)
    ways.resume(idle, wait=0)
    assert (view(ways).owner, view(ways).lease_until) == (None, None)


def test_entering_waits_for_the_holder_with_a_log_line(ways: Ways) -> None:
    other = held(ways.store)

    class Leave(logging.Handler):
        said: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for it" in record.getMessage():
                self.said.append(record.getMessage())
                other.__exit__(None, None, None)

    logger, handler = logging.getLogger("holdfast"), Leave()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        ways.resume(idle)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert len(handler.said) == 1
    assert view(ways).runs == 2


def test_a_lease_that_is_not_renewed_ends_and_its_holder_writes_no_more(ways: Ways) -> None:
    other = without_renewal(held(ways.store, lease=0.1))

    async def work(task: Any) -> None:
        await task.step("a", lambda: "mine")
        with pytest.raises(LeaseLost):
            other.step("a", lambda: "theirs")
        with pytest.raises(LeaseLost):
            other.decide("theirs")

    ways.resume(work)
    other.__exit__(None, None, None)
    assert [step.result for step in view(ways).steps] == ["mine"]
    assert view(ways).status == "open"
    assert view(ways).decisions == []


def test_steal_takes_it_from_whoever_has_it(ways: Ways) -> None:
    other = held(ways.store)

    async def work(task: Any) -> None:
        with pytest.raises(LeaseLost) as caught:
            other.step("a", nothing)
        assert caught.value.owner == task._session.holder if ways.asynchronous else task.plain._session.holder

    ways.resume(work, steal=True, wait=0)
    version = view(ways).version
    other.__exit__(LeaseLost, LeaseLost("t", owner=None), None)
    assert view(ways).version == version, "who has lost it writes nothing"


def test_a_dead_process_of_this_machine_is_taken_over_at_once(durable_url: str) -> None:
    program = (
        "import os, sys, holdfast\n"
        "task = holdfast.open(sys.argv[1]).task('t', goal='Reach it').__enter__()\n"
        "task.step('a', lambda: 'done')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, durable_url], check=True, timeout=60)
    with holdfast.open(durable_url) as store:
        before = store.get_task("t")
        assert before is not None and before.status == "running" and before.owner
        with store.task("t", wait=0) as task:
            assert task.resumed
            assert task.step("a", never) == "done"


def test_a_held_task_is_renewed_while_its_steps_run(ways: Ways) -> None:
    renewed = threading.Event()

    def wait() -> None:
        before = view(ways).lease_until
        assert before is not None
        while not renewed.wait(0.01):
            now = view(ways).lease_until
            if now is not None and now > before:
                renewed.set()

    async def work(task: Any) -> None:
        await task.step("a", wait)

    ways.resume(work, lease=0.3)
    assert renewed.is_set()


# -- leaving -----------------------------------------------------------------------------------------


def test_leaving_cleanly_without_finishing_leaves_it_open(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.step("a", nothing)

    ways.resume(work)
    seen = view(ways)
    assert (seen.status, seen.owner, seen.lease_until, seen.error) == ("open", None, None, None)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("where", ["block", "step", "nested"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("no"), "failed"),
        (KeyboardInterrupt(), "open"),
        (SystemExit(3), "open"),
        (asyncio.CancelledError(), "open"),
        (Stop(), "open"),
        (StepInDoubt("t", step="s", why="is in doubt"), "open"),
        (LeaseLost("t", owner=None), "open"),
    ],
)
def test_how_a_block_is_left_decides_how_the_task_stands(
    ways: Ways, error: BaseException, status: str, where: str
) -> None:
    def strike() -> None:
        raise error

    async def strike_later() -> None:  # not in a thread: there, nobody is interrupted
        raise error

    strikes: Any = strike_later if ways.asynchronous else strike
    inner = holdfast.step(strikes)

    async def work(task: Any) -> None:
        if where == "block":
            raise error
        await task.step("a", strikes if where == "step" else lambda: inner())

    failed = where != "block" and status == "failed"
    with pytest.raises(StepFailed if failed else type(error)):
        ways.resume(work)
    seen = view(ways)
    assert (seen.status, seen.owner) == (status, None)
    if status == "failed":
        assert seen.error is not None
        assert (seen.error.type, "no" in seen.error.message) == ("StepFailed" if failed else "ValueError", True)
    else:
        assert seen.error is None
    if where != "block":
        assert {step.status for step in seen.steps} == {"retrying" if failed else "interrupted"}
    ways.resume(idle, wait=0)
    assert view(ways).error is None


def test_a_cancelled_async_task_gives_its_lease_back(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            begun = asyncio.Event()

            async def forever() -> None:
                begun.set()
                await asyncio.Event().wait()

            async def work() -> None:
                async with store.task("t") as task:
                    await task.step("a", forever)

            running = asyncio.ensure_future(work())
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            seen = await store.get_task("t")
            assert seen is not None
            assert (seen.status, seen.owner, seen.steps[0].status) == ("open", None, "interrupted")

    asyncio.run(main())


def test_a_plain_function_of_a_cancelled_async_task_is_waited_for_and_its_result_is_kept(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            begun, go_on = threading.Event(), threading.Event()

            def slow() -> str:
                begun.set()
                assert go_on.wait(30)
                return "done"

            async def work() -> None:
                async with store.task("t") as task:
                    await task.step("a", slow)
                    await task.step("b", slow)

            running = asyncio.ensure_future(work())
            await asyncio.to_thread(begun.wait, 30)
            running.cancel()
            await asyncio.sleep(0)
            running.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            seen = await store.get_task("t")
            assert seen is not None
            assert [(step.path, step.result) for step in seen.steps] == [("a", "done")]
            assert (seen.status, seen.owner) == ("open", None)

    asyncio.run(main())


def test_a_group_of_failures_is_a_failure_and_a_group_of_doubts_is_none(ways: Ways) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("there are no exception groups before Python 3.11")
    group = __import__("builtins").ExceptionGroup

    doubt, lost = StepInDoubt("t", step="s", why="is in doubt"), LeaseLost("t", owner=None)
    for error, status in (
        (group("both", [doubt, lost]), "open"),
        (group("one", [group("inner", [doubt])]), "open"),
        (group("mixed", [doubt, ValueError("no")]), "failed"),
    ):

        async def work(task: Any, error: Exception = error) -> None:
            raise error

        with pytest.raises(group):
            ways.resume(work)
        assert view(ways).status == status


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", [None, ValueError("the user's"), KeyboardInterrupt()])
def test_a_storage_that_fails_when_the_block_is_left(
    error: BaseException | None, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)

        async def work(task: Any) -> None:
            await task.step("a", lambda: 1)
            backend._rates["unavailable"] = 1.0
            if error is not None:
                raise error

        with pytest.raises(Unavailable if error is None else type(error)) as caught:
            ways.resume(work, lease=0.2)
        if error is not None:
            assert caught.value is error
            assert "could not be recorded" in caplog.text
        assert backend.injected["unavailable"]
        with pytest.raises(holdfast.NoTask):
            holdfast.current_task()
        backend._rates["unavailable"] = 0.0

        async def again(task: Any) -> Any:
            return await task.step("a", lambda: 2)

        assert ways.resume(again) == 1


def test_fail_gives_up_for_now_and_the_task_goes_on_later(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.step("a", lambda: 1)
        await task.fail("the service is down")
        assert task.status == "failed"
        with pytest.raises(TaskEnded):
            await task.step("b", nothing)

    ways.resume(work)
    seen = view(ways)
    assert (seen.status, seen.owner) == ("failed", None)
    assert seen.error is not None and seen.error.message == "the service is down"

    async def again(task: Any) -> Any:
        assert (task.status, task.resumed) == ("running", True)
        return await task.step("a", lambda: 2), await task.step("b", lambda: 3)

    assert ways.resume(again) == (1, 3)
    with pytest.raises(TypeError):
        ways.resume(lambda task: task.fail(7))


# -- finishing ---------------------------------------------------------------------------------------


def test_finish_stores_a_value_or_what_a_function_gives(ways: Ways) -> None:
    def report(a: int, *, b: int) -> Claim:
        return Claim(a, [str(b)])

    async def work(task: Any) -> Any:
        return await task.finish(report, 1, b=2)

    assert ways.resume(work) == Claim(1, ["2"])
    assert ways.resume(work) == Claim(1, ["2"])
    assert view(ways).result == {"number": 1, "items": ["2"]}
    assert view(ways).status == "finished"
    for name, value in {"dict": {"a": [1, None]}, "none": None, "text": "x", "claim": Claim(1, [])}.items():
        assert ways.resume(lambda task, value=value: task.finish(value), name) == value
        assert ways.resume(lambda task, value=value: task.finish(value), name) == value


def test_a_finished_task_returns_its_result_and_calls_nothing(ways: Ways) -> None:
    calls: list[int] = []

    async def work(task: Any) -> Any:
        return await task.finish(lambda: calls.append(1) or len(calls))

    assert [ways.resume(work), ways.resume(work)] == [1, 1]
    assert calls == [1]

    async def other(task: Any) -> Any:
        assert task.result == 1
        return await task.finish("another value")

    assert ways.resume(other) == 1


def test_a_result_that_cannot_be_stored_does_not_finish_the_task(ways: Ways) -> None:
    async def work(task: Any) -> None:
        with pytest.raises(NotSerializable):
            await task.finish(object())
        with pytest.raises(TypeError, match="arguments are for a function"):
            await task.finish(1, 2)
        assert task.status == "running"
        await task.finish("this")

    ways.resume(work)
    assert view(ways).result == "this"


def test_a_report_that_fails_is_a_failure_and_is_tried_again(ways: Ways) -> None:
    with pytest.raises(ValueError, match="no"):
        ways.resume(lambda task: task.finish(fail))
    assert view(ways).status == "failed"
    assert ways.resume(lambda task: task.finish(lambda: 1)) == 1


def test_steps_in_the_report_are_steps(ways: Ways) -> None:
    ran: list[int] = []
    write = holdfast.step(lambda n: ran.append(n) or n, returns=int)

    def report(break_off: bool) -> int:
        total = int(write(1) + write(2))
        if break_off:
            raise KeyError("later")
        return total

    with pytest.raises(KeyError):
        ways.resume(lambda task: task.finish(report, True))
    assert ways.resume(lambda task: task.finish(report, False)) == 3
    assert ran == [1, 2]


def test_a_task_that_had_ended_opens_as_ended(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.make_plan(["a", "b"])
        await task.step("a", lambda: 1)
        with pytest.raises(StepFailed):
            await task.step("bad", fail)
        await task.decide("x", why="y")
        await task.finish("end")

    ways.resume(work)
    before = view(ways)

    async def again(task: Any) -> None:
        assert (task.status, task.result, task.resumed) == ("finished", "end", False)
        assert await task.make_plan(["other"]) == ["a", "b"]
        assert await task.step("a", lambda: 2) == 1
        with pytest.raises(StepFailed):
            await task.step("bad", nothing)
        await task.decide("x", why="y")
        for call in (
            lambda: task.step("b", nothing),
            lambda: task.step("new", nothing),
            lambda: task.decide("new"),
            lambda: task.discover("new"),
            lambda: task.replan(["c"]),
            lambda: task.fail("no"),
        ):
            with pytest.raises(TaskEnded) as caught:
                await call()
            assert caught.value.status == "finished"
        assert (await task.view()).steps == before.steps
        raise TaskEnded("t", status="finished")

    with pytest.raises(TaskEnded):
        ways.resume(again)
    assert view(ways) == before, "nothing was written"
    assert ways.store.task("t").history()[-1].type == "task.finished"


def test_an_ended_task_is_opened_by_many_at_once(ways: Ways) -> None:
    ways.resume(lambda task: task.finish(1))
    other = held(ways.store)
    assert ways.resume(lambda task: task.finish(), wait=0) == 1
    assert other.result == 1


# -- cancelling --------------------------------------------------------------------------------------


def test_cancel_from_outside_ends_the_holders_work_with_its_next_write(ways: Ways) -> None:
    ran: list[str] = []

    async def work(task: Any) -> None:
        await task.step("a", nothing)
        ways.store.task("t").cancel("not needed any more")
        assert not task.cancelled
        with pytest.raises(TaskEnded) as caught:
            await task.step("b", lambda: ran.append("b"))
        assert caught.value.status == "cancelled"
        assert task.cancelled
        with pytest.raises(TaskEnded):
            await task.step("c", lambda: ran.append("c"))

    ways.resume(work)
    seen = view(ways)
    assert (seen.status, seen.owner) == ("cancelled", None)
    assert ran in ([], ["b"])
    assert [step.path for step in seen.steps] == ["a"]
    event = ways.store.task("t").history()[-1]
    assert (event.type, event.data) == ("task.cancelled", {"reason": "not needed any more"})


def test_a_once_step_of_a_cancelled_task_is_not_begun(ways: Ways) -> None:
    ran: list[int] = []
    pay = holdfast.step(lambda: ran.append(1), once=True)

    async def work(task: Any) -> None:
        ways.store.task("t").cancel()
        await task.step("pay", pay)

    with pytest.raises(TaskEnded):
        ways.resume(work)
    assert ran == []
    assert view(ways).steps == []


def test_the_heartbeat_hears_of_a_cancellation(ways: Ways) -> None:
    async def work(task: Any) -> None:
        mine = task if ways.asynchronous else task.plain
        ways.store.task("t").cancel()
        mine._session.renewed_at = 0.0  # as if a third of the lease were over
        await asyncio.to_thread(mine._beat) if ways.asynchronous else mine._beat()
        assert task.cancelled

    ways.resume(work)


def test_a_task_can_cancel_itself_and_stays_cancelled(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.step("a", lambda: 1)
        await task.cancel()
        assert (task.status, task.cancelled) == ("cancelled", True)
        with pytest.raises(TaskEnded):
            await task.step("b", nothing)

    ways.resume(work)
    ways.store.task("t").cancel("again")
    assert [event.type for event in ways.store.task("t").history()].count("task.cancelled") == 1

    async def again(task: Any) -> None:
        assert (task.status, task.cancelled) == ("cancelled", True)
        assert await task.step("a", never) == 1
        with pytest.raises(TaskEnded):
            await task.finish(1)

    ways.resume(again)


def test_what_cannot_be_cancelled(ways: Ways) -> None:
    with pytest.raises(NotFound):
        ways.run(ways.task("none").cancel())
    ways.resume(lambda task: task.finish())
    with pytest.raises(TaskEnded) as caught:
        ways.run(ways.task().cancel())
    assert caught.value.status == "finished"
    with pytest.raises(TypeError):
        ways.run(ways.task().cancel(7))


# -- expiry and deletion -----------------------------------------------------------------------------


def test_an_expired_id_is_refused_unless_it_is_to_be_restarted(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        key = await task.step("a", holdfast.idempotency_key)
        await task.finish(LARGE)
        return key

    first = ways.resume(work, goal="One", ttl=0)
    assert ways.store.get_task("t") is None
    assert list(ways.store.tasks()) == []
    handle = ways.store.task("t")
    for call in (handle.cancel, handle.view, lambda: handle.at(1), lambda: handle.fork("f")):
        with pytest.raises((Expired, NotFound)):
            call()
    for options in ({}, {"goal": "One"}, {"steal": True}):
        with pytest.raises(Expired):
            ways.resume(idle, **options)

    async def again(task: Any) -> Any:
        assert (task.goal, task.resumed) == ("Two", False)
        assert task.version in (2, 3), "one more where the engine's clock, as far as it is known, is far from ours"
        return await task.step("a", holdfast.idempotency_key)

    assert ways.resume(again, goal="Two", restart=True, ttl=timedelta(days=1)) != first


def test_restart_begins_nothing_anew_that_has_not_expired(ways: Ways) -> None:
    ways.resume(lambda task: task.step("a", lambda: 1))
    assert ways.resume(lambda task: task.step("a", lambda: 2), restart=True) == 1
    ways.resume(lambda task: task.finish("end"))
    assert ways.resume(lambda task: task.finish(), restart=True) == "end"


def test_only_ended_tasks_expire_and_without_ttl_none_does(ways: Ways) -> None:
    ways.resume(idle, "open", ttl=0)
    assert view(ways, "open").expires_at is None
    ways.resume(lambda task: task.finish(), "kept", ttl=None)
    assert view(ways, "kept").expires_at is None
    ways.resume(lambda task: task.finish(), "ended")
    ways.resume(lambda task: task.cancel(), "cancelled", ttl=3600)
    for name, life in {"ended": timedelta(days=7), "cancelled": timedelta(hours=1)}.items():
        seen = view(ways, name)
        assert seen.expires_at is not None
        assert abs(seen.expires_at - seen.updated_at - life) < timedelta(minutes=1)


def test_delete_frees_the_id(ways: Ways) -> None:
    first = ways.resume(lambda task: task.step("a", holdfast.idempotency_key), goal="One", input=[LARGE])
    assert ways.run(ways.task().delete()) is True
    assert ways.run(ways.task().delete()) is False
    assert ways.store.get_task("t") is None
    assert ways.resume(lambda task: task.step("a", holdfast.idempotency_key), goal="Two") != first


def test_who_holds_a_task_that_is_deleted_can_write_no_more(ways: Ways) -> None:
    async def work(task: Any) -> None:
        ways.store.task("t").delete()
        with pytest.raises(LeaseLost):
            await task.step("a", nothing)
        with pytest.raises(LeaseLost):
            await task.decide("b")

    ways.resume(work)
    assert ways.store.get_task("t") is None


def test_an_expired_task_can_be_deleted(ways: Ways) -> None:
    ways.resume(lambda task: task.finish(), goal="One", ttl=0)
    assert ways.run(ways.task().delete()) is True
    ways.resume(idle, goal="Two")


# -- the plan ----------------------------------------------------------------------------------------


def test_a_plan_is_made_once_ever(ways: Ways) -> None:
    calls: list[str] = []

    def make(goal: str, *, size: int) -> list[str]:
        calls.append(goal)
        return [f"{goal} {n}" for n in range(size)]

    async def work(task: Any) -> Any:
        assert task.plan == ([] if not task.resumed else ["Reach it 0", "Reach it 1"])
        first = await task.make_plan(make, task.goal, size=2)
        assert task.plan == first
        return await task.make_plan(["another"])

    for _ in range(2):
        assert ways.resume(work, goal="Reach it") == ["Reach it 0", "Reach it 1"]
    assert calls == ["Reach it"]


def test_an_empty_plan_is_a_plan(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        return await task.make_plan([]), list(task.remaining()), await task.make_plan(["late"])

    assert ways.resume(work) == ([], [], [])
    assert ways.resume(work) == ([], [], [])


@ON_MEMORY
@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ("text", TypeError),
        (None, TypeError),
        ([""], TypeError),
        ([1], TypeError),
        ([{}], TypeError),
        ([{"name": 7}], TypeError),
        ([{"name": "a", "with": object()}], NotSerializable),
        (["\ud800"], InvalidId),
        (["x" * 600], InvalidId),
        (["a\0b"], InvalidId),
    ],
)
def test_what_is_no_plan_is_refused_and_can_be_made_again(ways: Ways, plan: Any, error: type[Exception]) -> None:
    async def work(task: Any) -> Any:
        with pytest.raises(error):
            await task.make_plan(plan)
        with pytest.raises(error):
            await task.make_plan(lambda: plan)
        with pytest.raises(error):
            await task.replan(plan)
        return await task.make_plan(("a",))

    assert ways.resume(work) == ["a"]


def test_a_large_plan_is_kept(ways: Ways) -> None:
    plan = [{"name": f"item {n}", "text": "x" * 1000} for n in range(200)]
    assert ways.resume(lambda task: task.make_plan(plan)) == plan
    assert view(ways).plan == plan


def test_finished_items_are_not_given_again_and_the_others_are(ways: Ways) -> None:
    ran: list[Any] = []
    plan: list[Any] = ["a", {"name": "b", "with": [1]}, "a", "c/#[]%é"]

    def execute(item: Any, break_at: int) -> int:
        ran.append(item)
        if len(ran) == break_at:
            raise ValueError("no")
        return len(ran)

    async def work(task: Any, break_at: int) -> Any:
        await task.make_plan(plan)
        given = []
        for item in task.remaining():
            given.append(item)
            await task.step(item, lambda item: execute(item, break_at), item)
        return given

    with pytest.raises(StepFailed):
        ways.resume(lambda task: work(task, 3))
    assert ran == plan[:3]
    assert view(ways).plan_paths == ["a", "b", "a#2", "c%2F%23%5B%5D%25é"]
    assert ways.resume(lambda task: work(task, 0)) == plan[2:]
    assert ran == [*plan[:3], *plan[2:]]
    assert ways.resume(lambda task: work(task, 0)) == []
    assert [step.status for step in view(ways).steps] == ["completed"] * 4
    assert view(ways).unasked == []


def test_remaining_goes_on_to_the_next_item_after_one_that_failed(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.make_plan(["a", "b"])
        given = []
        for item in task.remaining():
            given.append(item)
            try:
                await task.step(item, fail if item == "a" else nothing)
            except StepFailed:
                pass
        return given

    assert ways.resume(work) == ["a", "b"]
    assert ways.resume(work) == ["a"], "a failed item remains"


def test_an_item_that_failed_is_given_once_in_a_run_though_the_plan_is_replaced(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.make_plan(["a", "b"])
        given = []
        for item in task.remaining():
            given.append(item)
            if item == "a":
                with pytest.raises(StepFailed):
                    await task.step(item, fail)
                await task.replan(["a", "c"])
            else:
                await task.step(item, nothing)
        return given

    assert ways.resume(work) == ["a", "c"]


def test_an_item_in_doubt_remains(ways: Ways) -> None:
    pay = holdfast.step(fail, once=True)

    async def work(task: Any) -> None:
        await task.make_plan(["pay", "b"])
        for item in task.remaining():
            await task.step(item, pay)

    with pytest.raises(StepInDoubt):
        ways.resume(work)

    async def look(task: Any) -> Any:
        return list(task.remaining()), task.in_doubt

    assert ways.resume(look) == (["pay", "b"], ["pay"])


def test_remaining_sees_what_replan_adds(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.make_plan(["a", "b", "c"])
        given = []
        for item in task.remaining():
            given.append(item)
            await task.step(item, lambda name: name, item)
            if item == "b":
                assert await task.replan(["d", {"name": "e"}]) == ["a", "b", "d", {"name": "e"}]
        return given

    assert ways.resume(work) == ["a", "b", "d", {"name": "e"}]
    assert view(ways).plan == ["a", "b", "d", {"name": "e"}]
    assert ways.resume(lambda task: task.make_plan(["x"])) == ["a", "b", "c"], "the first one, as it was stored"


@pytest.mark.parametrize(
    ("new", "merged", "left"),
    [
        (["d"], ["a", "b", "d"], ["d"]),
        (["b", "d", "a"], ["b", "d", "a"], ["d"]),
        (["a", "a", "d"], ["b", "a", "a", "d"], ["a", "d"]),
        ([], ["a", "b"], []),
        ([{"name": "a", "new": 1}, "c"], ["b", {"name": "a", "new": 1}, "c"], ["c"]),
    ],
)
def test_finished_items_stay_when_the_plan_is_replaced(
    ways: Ways, new: list[Any], merged: list[Any], left: list[Any]
) -> None:
    ran: list[Any] = []

    async def work(task: Any) -> Any:
        await task.make_plan(["a", "b", "c"])
        for name in ("a", "b"):
            await task.step(name, ran.append, name)
        return await task.replan(new), list(task.remaining())

    assert ways.resume(work) == (merged, left)
    assert ways.resume(work) == (merged, left)
    assert ran == ["a", "b"]


def test_all_finished_duplicates_stay_when_the_plan_is_replaced(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.make_plan(["a", "a", "c"])
        for _ in range(2):
            await task.step("a", nothing)
        return await task.replan(["a", "d"]), list(task.remaining())

    assert ways.resume(work) == (["a", "a", "d"], ["d"])
    assert ways.resume(work) == (["a", "a", "d"], ["d"])


def test_a_finished_duplicate_stays_the_step_it_was_when_an_earlier_one_is_dropped(ways: Ways) -> None:
    ran: list[int] = []

    def first_fails() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise ValueError("no")
        return len(ran)

    async def work(task: Any) -> Any:
        await task.make_plan(["a", "a", "z"])
        for _ in range(2):
            try:
                await task.step("a", first_fails)
            except StepFailed:
                pass
        return await task.replan(["b"]), list(task.remaining())

    assert ways.resume(work) == (["a", "b"], ["b"])
    assert view(ways).plan_paths == ["a#2", "b"]
    assert [(step.path, step.status) for step in view(ways).steps] == [("a", "failed"), ("a#2", "completed")]


def test_replan_is_done_once_for_each_call(ways: Ways) -> None:
    calls: list[str] = []

    def make(name: str) -> list[str]:
        calls.append(name)
        return [f"{name} {len(calls)}"]

    async def work(task: Any) -> Any:
        return [
            await task.replan(make, "x"),
            await task.replan(make, "y"),
            await task.replan(make, "x"),
            await task.replan(["z"]),
        ]

    plans = [["x 1"], ["y 2"], ["x 3"], ["z"]]
    assert ways.resume(work) == plans
    assert ways.resume(work) == plans
    assert calls == ["x", "y", "x"]
    assert view(ways).plan == ["z"]


# -- notes and messages ------------------------------------------------------------------------------


def test_notes_made_again_on_resume_are_made_once(ways: Ways) -> None:
    def inside() -> None:
        task = ways.store.task("t")
        assert task.id == "t"

    async def work(task: Any) -> None:
        await task.decide("vendor A", why="cheapest")
        await task.decide("vendor A", why="cheapest")
        await task.decide("vendor A")
        await task.discover("vendor A")
        await task.discover("100 calls a minute")
        await task.step("a", inside)

    for _ in range(3):
        ways.resume(work)
    seen = view(ways)
    assert [(note.text, note.why) for note in seen.decisions] == [("vendor A", "cheapest")] * 2 + [("vendor A", None)]
    assert [note.text for note in seen.discoveries] == ["vendor A", "100 calls a minute"]
    assert {note.step for note in seen.decisions} == {""}
    types = [event.type for event in ways.store.task("t").history()]
    assert (types.count("task.decided"), types.count("task.discovered")) == (3, 2)


def test_notes_are_told_with_the_step_they_were_made_in(store: Store) -> None:
    with store.task("t") as task:

        def look(what: str) -> None:
            task.discover(what)
            task.decide("the same")

        def work() -> None:
            task.step("look", look, "one")
            task.step("look", look, "two")
            task.decide("the same")

        work()
    seen = store.get_task("t")
    assert seen is not None
    assert [(note.text, note.step) for note in seen.discoveries] == [("one", "look"), ("two", "look#2")]
    assert [note.step for note in seen.decisions] == ["look", "look#2", ""]


def test_notes_of_a_step_that_is_run_again_are_made_once(store: Store) -> None:
    for broken in (True, False):

        def look(broken: bool = broken) -> None:
            holdfast.current_task().discover("once")  # type: ignore[unused-coroutine]
            if broken:
                raise ValueError("no")

        try:
            with store.task("t") as task:
                task.step("look", look)
        except StepFailed:
            assert broken
    seen = store.get_task("t")
    assert seen is not None
    assert [note.text for note in seen.discoveries] == ["once"]


@ON_MEMORY
@pytest.mark.parametrize("wrong", [7, None, b"x", "\ud800"])
def test_what_is_no_text_is_no_note(ways: Ways, wrong: Any) -> None:
    async def work(task: Any) -> None:
        for call in (lambda: task.decide(wrong), lambda: task.discover(wrong)):
            with pytest.raises((TypeError, NotSerializable)):
                await call()
        if wrong is not None:
            with pytest.raises((TypeError, NotSerializable)):
                await task.decide("x", why=wrong)

    ways.resume(work)
    assert (view(ways).decisions, view(ways).discoveries) == ([], [])


def test_messages_appended_again_on_resume_are_appended_once(ways: Ways) -> None:
    async def append(chat: Any, text: str) -> None:
        made = chat.append({"role": "user", "content": text})
        if ways.asynchronous:
            await made

    async def work(task: Any) -> None:
        for chat in (task.conversation(), task.conversation("other")):
            for text in ("a", "b", "a"):
                await append(chat, text)

    for _ in range(3):
        ways.resume(work)
    for name in ("t", "other"):
        messages = ways.store.conversation(name).messages()
        assert [message["content"] for message in messages] == ["a", "b", "a"]


def test_a_message_with_an_id_or_at_a_version_is_appended_as_the_caller_says(store: Store) -> None:
    message = {"role": "user", "content": "a"}
    with store.task("t") as task:
        chat = task.conversation()
        assert chat.append(message, id="mine").duplicate is False
        assert chat.append(message, id="mine").duplicate is True
        assert chat.append(message, if_version=1).first == 2
        with chat.turn() as turn:
            turn.append(message)
        assert len(chat) == 3


# -- looking -----------------------------------------------------------------------------------------


def test_get_task_of_an_unknown_id_is_none(ways: Ways) -> None:
    assert ways.store.get_task("none") is None

    async def program() -> None:
        with pytest.raises(NotFound):
            await ways.task("none").view()
        with pytest.raises(NotFound):
            await ways.task("none").at(1)
        assert await ways.task("none").history() == []

    ways.run(program())


def test_tasks_are_listed_by_id_and_by_status(ways: Ways) -> None:
    ways.resume(idle, "open", goal="Reach it", agent="claims")
    ways.resume(lambda task: task.finish(), "finished")
    ways.resume(lambda task: task.cancel(), "cancelled")
    with pytest.raises(ValueError, match="no"):
        ways.resume(lambda task: task.finish(fail), "failed")
    other = held(ways.store, "running")
    statuses = {info.id: info.status for info in ways.store.tasks()}
    assert statuses == {name: name for name in ("cancelled", "failed", "finished", "open", "running")}
    assert list(statuses) == sorted(statuses)
    for name in statuses:
        assert [info.id for info in ways.store.tasks(status=name)] == [name]
    ways.store.task("failed").delete()
    assert list(ways.store.tasks(status="failed")) == []
    [info] = ways.store.tasks(status="open")
    assert (info.goal, info.agent, info.in_doubt, info.owner) == ("Reach it", "claims", False, None)
    [info] = ways.store.tasks(status="running")
    assert info.owner == other._held().holder
    with pytest.raises(ValueError, match="status is one of"):
        list(ways.store.tasks(status="done"))

    async def program() -> Any:
        return [info.id async for info in ways.store.aio.tasks(status="open")]

    assert asyncio.run(program()) == ["open"]


def test_a_list_of_many_tasks_is_whole() -> None:
    with holdfast.open("memory://") as store:
        for n in range(1100):
            with store.task(f"{n:04}") as task:
                if n % 2:
                    task.finish(n)
        assert [info.id for info in store.tasks()] == [f"{n:04}" for n in range(1100)]
        assert len(list(store.tasks(status="finished"))) == 550


def known(seen: TaskView) -> Any:
    """What a view of a version says, but for what only a live task knows."""
    steps = [(step.path, step.status, step.result, step.error, step.in_doubt) for step in seen.steps]
    return seen.version, seen.plan, steps, seen.decisions, seen.discoveries, seen.goal, seen.runs


def test_every_version_can_be_seen_as_it_was(ways: Ways) -> None:
    then: dict[int, Any] = {}

    async def work(task: Any) -> None:
        async def note() -> None:
            seen = await task.view()
            then[seen.version] = known(seen)

        await note()
        await task.make_plan(["a", "b"])
        await note()
        await task.step("a", lambda: LARGE)
        await note()
        try:
            await task.step("b", fail)
        except StepFailed:
            pass
        await note()
        await task.decide("x", why="y")
        await note()
        await task.discover("z")
        await note()
        await task.replan(["c"])
        await note()
        await task.step("c", pay)
        await note()

    pay = holdfast.step(lambda: 7, once=True)
    ways.resume(work, goal="Reach it")
    then[view(ways).version] = known(view(ways))
    ways.resume(work)
    ways.resume(lambda task: task.finish("end"))
    then[view(ways).version] = known(view(ways))

    async def program() -> None:
        task = ways.task()
        last = view(ways).version
        for version in range(1, last + 1):
            seen = await task.at(version)
            assert seen.version == version
            if version in then:
                assert known(seen) == then[version]
        assert (await task.at(last)).status == "finished"
        assert (await task.at(last)).result == "end"
        assert (await task.at(1)).status == "open"
        assert (await task.at(2)).status == "running"
        for version in (0, last + 1):
            with pytest.raises(NotFound):
                await task.at(version)
        for wrong in (-1, "1", 1.0, True):
            with pytest.raises((TypeError, ValueError)):
                await task.at(wrong)

    ways.run(program())
    assert len(then) >= 9


def test_history_tells_who_did_what_in_order(ways: Ways) -> None:
    async def work(task: Any) -> None:
        with holdfast.correlate("req-7", actor="worker-1"):
            await task.step("a", lambda: LARGE)
        await task.decide("x")
        await task.finish(1)

    ways.resume(work, goal="Reach it")
    events = ways.run(ways.task().history())
    assert [event.type for event in events] == [
        "task.created", "task.claimed", "step.completed", "task.decided", "task.finished",
    ]  # fmt: skip
    assert [event.version for event in events] == [1, 2, 3, 4, 5]
    assert (events[2].correlation, events[2].by, events[3].by) == ("req-7", "worker-1", None)
    assert events[2].data["step"] == "a"
    assert events[4].data["result"] == 1


def test_a_view_has_everything_and_no_connection(ways: Ways) -> None:
    ways.resume(lambda task: task.step("a", lambda: {"x": 1}), goal="Reach it")
    seen = view(ways)
    ways.store.task("t").delete()
    [step] = seen.steps
    assert (step.path, step.name, step.status, step.result, step.mode, step.how) == (
        "a", "a", "completed", {"x": 1}, "", "ran",
    )  # fmt: skip
    assert step.ended_at is not None
    assert seen.created_at <= step.started_at <= step.ended_at <= seen.updated_at


# -- forks -------------------------------------------------------------------------------------------


def test_a_fork_at_every_version_skips_what_was_done_there(ways: Ways) -> None:
    ran: list[str] = []

    def do(name: str) -> str:
        ran.append(name)
        return name + LARGE

    async def work(task: Any) -> None:
        await task.make_plan(["a", "b"])
        for item in task.remaining():
            await task.step(item, do, item)
        await task.finish("end")

    ways.resume(work, goal="Reach it", input=[1])
    events = ways.store.task("t").history()
    done = 0
    for at, event in enumerate(events, 1):
        done += event.type == "step.completed"
        ran.clear()

        async def program(at: int = at) -> None:
            child = await ways.task().fork(f"fork {at}", at=at)
            async with child as task:
                assert (task.goal, task.input, task.status) == ("Reach it", [1], "running")
                assert task.plan == (["a", "b"] if at >= 3 else [])
                await work(task)

        ways.run(program())
        assert ran == ["a", "b"][done:]
        assert view(ways, f"fork {at}").result == "end"
        assert [step.result for step in view(ways, f"fork {at}").steps] == ["a" + LARGE, "b" + LARGE]
    assert view(ways).result == "end"
    assert done == 2


def test_a_fork_has_keys_of_its_own_and_leaves_its_parent_alone(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        return await task.step("a", nothing), await task.step("b", holdfast.idempotency_key)

    ways.resume(lambda task: task.step("a", nothing))

    async def program() -> Any:
        async with await ways.task().fork("f") as task:
            return await work(task)

    _, forked = ways.run(program())
    _, mine = ways.resume(work)
    assert forked != mine
    assert [step.path for step in view(ways, "f").steps] == ["a", "b"]
    assert ways.resume(work, "f") == (None, forked)


def test_a_fork_is_made_while_its_parent_is_held(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.step("a", lambda: 1)
        await task.fork("f")
        assert await task.step("b", lambda: 2) == 2

    ways.resume(work)
    assert [step.path for step in view(ways, "f").steps] == ["a"]
    assert view(ways, "f").status == "open"


def test_a_step_whose_failure_was_the_last_that_was_heard_is_tried_again_in_a_fork(ways: Ways) -> None:
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("a", fail))
    types = [event.type for event in ways.store.task("t").history()]
    for at in (types.index("step.failed") + 1, types.index("task.failed") + 1):
        ways.store.task("t").fork(f"f{at}", at=at)
        assert ways.resume(lambda task: task.step("a", lambda: 1), f"f{at}") == 1


def test_a_fork_of_a_fork_has_the_results_of_both(ways: Ways) -> None:
    first = ways.store.task("t")
    ways.resume(lambda task: task.step("a", lambda: LARGE + "1"))
    first.fork("f")
    ways.resume(lambda task: task.step("b", lambda: LARGE + "2"), "f")
    ways.store.task("f").fork("g")

    async def work(task: Any) -> Any:
        return [await task.step(name, never) for name in ("a", "b")]

    assert ways.resume(work, "g") == [LARGE + "1", LARGE + "2"]


def test_what_cannot_be_forked(ways: Ways) -> None:
    ways.resume(idle)
    ways.resume(idle, "other")
    task = ways.store.task("t")
    with pytest.raises(NotFound):
        ways.store.task("none").fork("f")
    for at in (0, 99):
        with pytest.raises(NotFound):
            task.fork("f", at=at)
    with pytest.raises(AlreadyExists):
        task.fork("other")
    with pytest.raises(ValueError, match="an id of its own"):
        task.fork("t")
    assert [info.id for info in ways.store.tasks()] == ["other", "t"]
    task.fork("f", at=1)
    task.fork("f", at=1)  # made by a call that was cut off
    ways.resume(idle, "f")
    with pytest.raises(AlreadyExists):
        task.fork("f", at=1)


def test_what_forks_begin_with_cannot_be_deleted_before_them(ways: Ways) -> None:
    ways.resume(lambda task: task.step("a", lambda: LARGE))
    task = ways.store.task("t")
    fork = task.fork("f")
    with pytest.raises(HasForks) as caught:
        ways.run(ways.task().delete())
    assert caught.value.forks == ["f"]
    assert view(ways, "f").steps[0].result == LARGE
    assert fork.delete() is True
    assert ways.run(ways.task().delete()) is True


def test_a_fork_and_the_rest_are_awaited_in_an_async_store(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:

            async def step() -> int:
                await asyncio.sleep(0)
                return 1

            async with store.task("t", goal="Reach it") as task:
                await task.make_plan(step_names)
                assert await task.step("a", step) == 1
                assert await task.finish(step) == 1
            fork = await store.task("t").fork("f")
            assert [event.type for event in await fork.history()] == ["task.branched"]
            assert (await fork.view()).steps[0].result == 1
            seen = await store.get_task("f")
            assert seen is not None and seen.plan == ["a"]
            await fork.cancel("no")
            assert await fork.delete()

    async def step_names() -> list[str]:
        return ["a"]

    asyncio.run(main())


# -- async functions in plain tasks ------------------------------------------------------------------


def test_an_async_function_in_a_plain_task_points_to_the_async_one(store: Store) -> None:
    async def later() -> list[str]:
        return ["a"]

    calls: list[Callable[[Task], Any]] = [
        lambda task: task.step("a", later),
        lambda task: task.step("a", holdfast.step(later)),
        lambda task: task.make_plan(later),
        lambda task: task.finish(later),
    ]
    with store.task("t") as task:
        for call in calls:
            with pytest.raises(TypeError, match="async with store"):
                call(task)
        for hidden in (lambda: task.make_plan(lambda: later()), lambda: task.finish(lambda: later())):
            with pytest.raises(TypeError, match="async with store"):
                hidden()
        with pytest.raises(StepFailed, match="async with store"):
            task.step("hidden", lambda: later())
    assert task.id == "t"


def as_in(known: Any, told: Any) -> Any:
    """What is told now, without what was not known then."""
    if isinstance(known, dict):
        return {name: as_in(known[name], told[name]) for name in known}
    if isinstance(known, list) and len(known) == len(told):
        return [as_in(*pair) for pair in zip(known, told, strict=True)]
    return told


def test_what_was_stored_by_the_first_version_is_read_for_ever() -> None:
    golden = Path(__file__).parent / "golden"
    bodies = (golden / "task-1.jsonl").read_bytes().splitlines()
    expected = json.loads((golden / "task-1.view.json").read_text())
    with holdfast.open("memory://") as store:
        key = StreamKey("default", "task", "golden")
        ops.run(store._log, ops.append(ops.Append(key, bodies, new_stamp(), expected=0)))
        seen = store.get_task("golden")
        assert seen is not None
        told = json.loads(msgspec.json.encode(seen))
        assert as_in(expected, told) == expected
        assert not any(told[name] for name in told.keys() - expected.keys())  # what came later was not there
        with store.task("golden") as task:  # what it did is there for the program that did it
            assert task.step("collect", str, "a") == "a"
            assert task.finish(None) == {"pages": 9}
