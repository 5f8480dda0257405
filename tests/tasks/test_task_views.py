"""Looking at tasks, at one version or as a list, and forks of them; plain and async."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import Ways, view
from helpers.tasks.held_tasks import LARGE, held, known
from helpers.tasks.step_functions import fail, idle, never, nothing
from holdfast import NotFound, StepFailed
from holdfast.errors import AlreadyExists, HasForks

# -- looking ---------------------------------------------------------------------------------------


def test_get_task_of_an_unknown_id_is_none(ways: Ways) -> None:
    assert ways.store.get_task("none") is None

    async def program() -> None:
        with pytest.raises(NotFound):
            await ways.task("none").view()
        with pytest.raises(NotFound):
            await ways.task("none").view(version=1)
        assert await ways.task("none").history() == []

    ways.run(program())


@pytest.mark.slow
@pytest.mark.every_engine
def test_tasks_are_listed_by_id_and_by_status(ways: Ways) -> None:
    ways.resume(idle, "pending", goal="Reach it", agent="claims")
    ways.resume(lambda task: task.finish(), "finished")
    ways.resume(lambda task: task.cancel(), "cancelled")
    with pytest.raises(ValueError, match="no"):
        ways.resume(lambda task: task.finish(fail), "failed")
    other = held(ways.store, "running")
    statuses = {info.id: info.status for info in ways.store.tasks()}
    assert statuses == {
        name: name for name in ("cancelled", "failed", "finished", "pending", "running")
    }
    assert list(statuses) == sorted(statuses)
    for name in statuses:
        assert [info.id for info in ways.store.tasks(status=name)] == [name]
    ways.store.task("failed").delete()
    assert list(ways.store.tasks(status="failed")) == []
    [info] = ways.store.tasks(status="pending")
    assert (info.goal, info.agent, info.in_doubt, info.owner) == ("Reach it", "claims", False, None)
    [info] = ways.store.tasks(status="running")
    assert info.owner == other._require_session().lease.owner
    with pytest.raises(ValueError, match="status must be one of"):
        list(ways.store.tasks(status="done"))

    async def program() -> Any:
        return [info.id async for info in ways.store.aio.tasks(status="pending")]

    assert asyncio.run(program()) == ["pending"]


@pytest.mark.slow
def test_a_list_of_many_tasks_is_whole() -> None:
    with holdfast.open("memory://") as store:
        for n in range(1100):
            with store.task(f"{n:04}") as task:
                if n % 2:
                    task.finish(n)
        assert [info.id for info in store.tasks()] == [f"{n:04}" for n in range(1100)]
        assert len(list(store.tasks(status="finished"))) == 550


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
            seen = await task.view(version=version)
            assert seen.version == version
            if version in then:
                assert known(seen) == then[version]
        assert (await task.view(version=last)).status == "finished"
        assert (await task.view(version=last)).result == "end"
        assert (await task.view(version=1)).status == "pending"
        assert (await task.view(version=2)).status == "running"
        for version in (0, last + 1):
            with pytest.raises(NotFound):
                await task.view(version=version)
        for wrong in (-1, "1", 1.0, True):
            with pytest.raises((TypeError, ValueError)):
                await task.view(version=wrong)

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


# -- forks -----------------------------------------------------------------------------------------


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
            child = await ways.task().fork(f"fork {at}", version=at)
            async with child as task:
                assert (task.goal, task.input, task.status) == ("Reach it", [1], "running")
                assert task.plan == (["a", "b"] if at >= 3 else [])
                await work(task)

        ways.run(program())
        assert ran == ["a", "b"][done:]
        assert view(ways, f"fork {at}").result == "end"
        assert [step.result for step in view(ways, f"fork {at}").steps] == [
            "a" + LARGE,
            "b" + LARGE,
        ]
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
    assert view(ways, "f").status == "pending"


def test_a_step_whose_failure_was_the_last_that_was_heard_is_tried_again_in_a_fork(
    ways: Ways,
) -> None:
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("a", fail))
    types = [event.type for event in ways.store.task("t").history()]
    for at in (types.index("step.failed") + 1, types.index("task.failed") + 1):
        ways.store.task("t").fork(f"f{at}", version=at)
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
            task.fork("f", version=at)
    with pytest.raises(AlreadyExists):
        task.fork("other")
    with pytest.raises(ValueError, match="must differ from"):
        task.fork("t")
    assert [info.id for info in ways.store.tasks()] == ["other", "t"]
    task.fork("f", version=1)
    task.fork("f", version=1)  # made by a call that was cut off
    ways.resume(idle, "f")
    with pytest.raises(AlreadyExists):
        task.fork("f", version=1)


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
