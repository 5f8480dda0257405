"""How a task ends: left, finished, cancelled, expired or deleted; plain and async."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import Ways, view
from helpers.tasks.held_tasks import LARGE, Claim, held
from helpers.tasks.step_functions import fail, idle, never, nothing
from holdfast import NotFound, StepFailed, StepInDoubt
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import (
    Expired,
    InvalidId,
    LeaseLost,
    NotSerializable,
    Suspended,
    TaskEnded,
    Unavailable,
)

# -- leaving ---------------------------------------------------------------------------------------


def test_leaving_cleanly_without_finishing_leaves_it_open(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.step("a", nothing)

    ways.resume(work)
    seen = view(ways)
    assert (seen.status, seen.owner, seen.lease_until, seen.error) == ("pending", None, None, None)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("where", ["block", "step", "nested"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("no"), "failed"),
        (KeyboardInterrupt(), "pending"),
        (SystemExit(3), "pending"),
        (asyncio.CancelledError(), "pending"),
        (Stop(), "pending"),
        (StepInDoubt("t", step="s", why="is in doubt"), "pending"),
        (LeaseLost("t", owner=None), "pending"),
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
        assert (seen.error.type, "no" in seen.error.message) == (
            "StepFailed" if failed else "ValueError",
            True,
        )
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
            assert (seen.status, seen.owner, seen.steps[0].status) == (
                "pending",
                None,
                "interrupted",
            )

    asyncio.run(main())


def test_a_plain_function_of_a_cancelled_async_task_is_waited_for_and_its_result_is_kept(
    url: str,
) -> None:
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
            assert (seen.status, seen.owner) == ("pending", None)

    asyncio.run(main())


def test_a_group_of_failures_is_a_failure_and_a_group_of_doubts_is_none(ways: Ways) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("there are no exception groups before Python 3.11")
    group = __import__("builtins").ExceptionGroup

    doubt, lost = StepInDoubt("t", step="s", why="is in doubt"), LeaseLost("t", owner=None)
    for error, status in (
        (group("both", [doubt, lost]), "pending"),
        (group("one", [group("inner", [doubt])]), "pending"),
        (group("mixed", [doubt, ValueError("no")]), "failed"),
    ):

        async def work(task: Any, error: Exception = error) -> None:
            raise error

        with pytest.raises(group):
            ways.resume(work)
        assert view(ways).status == status


@pytest.mark.slow
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
            assert "could not record how" in caplog.text
        assert backend.injected["unavailable"]
        with pytest.raises(holdfast.errors.NoTask):
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


# -- finishing -------------------------------------------------------------------------------------


def test_finish_stores_a_value_or_what_a_function_gives(ways: Ways) -> None:
    def report(a: int, *, b: int) -> Claim:
        return Claim(a, [str(b)])

    async def work(task: Any) -> Any:
        return await task.finish(report, 1, b=2)

    assert ways.resume(work) == Claim(1, ["2"])
    assert ways.resume(work) == Claim(1, ["2"])
    assert view(ways).result == {"number": 1, "items": ["2"]}
    assert view(ways).status == "finished"
    for name, value in {
        "dict": {"a": [1, None]},
        "none": None,
        "text": "x",
        "claim": Claim(1, []),
    }.items():
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
        with pytest.raises(TypeError, match="arguments are allowed only with a function"):
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


# -- cancelling ------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_cancel_from_outside_ends_the_lease_owners_work_with_its_next_write(ways: Ways) -> None:
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
        mine._session.lease.renewed_at = 0.0  # as if a third of the lease were over
        await asyncio.to_thread(mine._beat, mine._entry) if ways.asynchronous else mine._beat(
            mine._entry
        )
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


def test_a_cancelled_task_shows_why_and_by_whom_and_a_fork_of_it_does_not(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.step("a", nothing)

    ways.resume(work)
    assert view(ways).cancellation is None
    ways.run(ways.task().cancel("no longer needed", by="ann"))
    ways.run(ways.task().cancel("again", by="bob"))
    seen = view(ways).cancellation
    assert seen is not None
    assert (seen.reason, seen.by, seen.at) == ("no longer needed", "ann", view(ways).updated_at)
    [entry] = [entry for entry in ways.store.audit("t") if entry.what == "cancelled"]
    assert entry.by == "ann"
    ways.store.task("t").fork("t-2")
    forked = ways.store.get_task("t-2")
    assert forked is not None and (forked.status, forked.cancellation) == ("pending", None)


def test_a_cancellation_reaches_children_with_its_reason_and_person(ways: Ways) -> None:
    @holdfast.agent("asks")
    def asks(task: holdfast.Task) -> None:
        task.ask("approve", question="May I?")

    async def work(task: Any) -> None:
        await task.run_child(asks, "child")

    with pytest.raises(Suspended):
        ways.resume(work)
    ways.run(ways.task().cancel("no longer needed", by="ann"))
    child = ways.store.get_task("child")
    assert child is not None and child.cancellation is not None
    assert (child.cancellation.reason, child.cancellation.by) == ("no longer needed", "ann")


def test_what_cannot_be_cancelled(ways: Ways) -> None:
    with pytest.raises(NotFound):
        ways.run(ways.task("none").cancel())
    ways.resume(lambda task: task.finish())
    with pytest.raises(TaskEnded) as caught:
        ways.run(ways.task().cancel())
    assert caught.value.status == "finished"
    with pytest.raises(TypeError):
        ways.run(ways.task().cancel(7))
    with pytest.raises(InvalidId):
        ways.run(ways.task().cancel(by=""))


# -- expiry and deletion ---------------------------------------------------------------------------


def test_an_expired_id_is_refused_unless_it_is_to_be_restarted(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        key = await task.step("a", holdfast.idempotency_key)
        await task.finish(LARGE)
        return key

    first = ways.resume(work, goal="One", ttl=0)
    assert ways.store.get_task("t") is None
    assert list(ways.store.tasks()) == []
    handle = ways.store.task("t")
    for call in (
        handle.cancel,
        handle.view,
        lambda: handle.view(version=1),
        lambda: handle.fork("f"),
    ):
        with pytest.raises((Expired, NotFound)):
            call()
    for options in ({}, {"goal": "One"}, {"steal": True}):
        with pytest.raises(Expired):
            ways.resume(idle, **options)

    async def again(task: Any) -> Any:
        assert (task.goal, task.resumed) == ("Two", False)
        assert await task.version() in (2, 3), (
            "one more where the engine's clock, as far as it is known, is far from ours"
        )
        return await task.step("a", holdfast.idempotency_key)

    assert ways.resume(again, goal="Two", restart=True, ttl=timedelta(days=1)) != first


def test_restart_begins_nothing_anew_that_has_not_expired(ways: Ways) -> None:
    ways.resume(lambda task: task.step("a", lambda: 1))
    assert ways.resume(lambda task: task.step("a", lambda: 2), restart=True) == 1
    ways.resume(lambda task: task.finish("end"))
    assert ways.resume(lambda task: task.finish(), restart=True) == "end"


def test_only_ended_tasks_expire_and_without_ttl_none_does(ways: Ways) -> None:
    ways.resume(idle, "pending", ttl=0)
    assert view(ways, "pending").expires_at is None
    ways.resume(lambda task: task.finish(), "kept", ttl=None)
    assert view(ways, "kept").expires_at is None
    ways.resume(lambda task: task.finish(), "ended")
    ways.resume(lambda task: task.cancel(), "cancelled", ttl=3600)
    for name, ttl in {"ended": timedelta(days=7), "cancelled": timedelta(hours=1)}.items():
        seen = view(ways, name)
        assert seen.expires_at is not None
        assert abs(seen.expires_at - seen.updated_at - ttl) < timedelta(minutes=1)


@pytest.mark.every_engine
def test_delete_frees_the_id(ways: Ways) -> None:
    first = ways.resume(
        lambda task: task.step("a", holdfast.idempotency_key), goal="One", input=[LARGE]
    )
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
