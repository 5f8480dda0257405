"""Opening a task: new or as it was left, and who holds it; on every backend, plain and async."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.paths import GOLDEN
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.held_tasks import LARGE, Claim, held
from helpers.tasks.step_functions import idle, never, nothing
from holdfast import LeaseHeld, StepFailed, Store, Task
from holdfast.backends import StreamKey
from holdfast.errors import InvalidId, LeaseLost, NotSerializable, ReplayMismatch
from holdfast.log import operations as ops
from holdfast.log.events import new_append_context


def without_renewal(task: Task) -> Task:
    """As if its process had stopped: nobody renews the lease."""
    task._log.heartbeat.remove(task._require_session().lease.owner)
    return task


# -- opening ---------------------------------------------------------------------------------------


def test_a_task_does_no_io_until_it_is_entered(ways: Ways) -> None:
    ways.task("t", goal="Reach it", input={"a": 1})
    assert ways.store.get_task("t") is None
    assert list(ways.store.tasks()) == []


def test_admission_is_durable_before_any_work(ways: Ways) -> None:
    async def work(task: Any) -> None:
        seen = view(ways)
        assert (seen.goal, seen.input, seen.agent, seen.status) == (
            "Reach it",
            {"a": [1]},
            "claims",
            "running",
        )
        assert (seen.steps, seen.plan, seen.version, seen.runs) == ([], [], 2, 1)
        assert (task.goal, task.input, task.agent, task.status) == (
            "Reach it",
            {"a": [1]},
            "claims",
            "running",
        )
        assert (task.id, await task.version(), task.resumed, task.cancelled, task.result) == (
            "t",
            2,
            False,
            False,
            None,
        )

    ways.resume(work, goal="Reach it", input={"a": [1]}, agent="claims")


def test_what_is_omitted_is_as_it_is_stored(ways: Ways) -> None:
    ways.resume(idle, goal="Reach it", input={"a": 1}, agent="claims")

    async def work(task: Any) -> None:
        assert (task.goal, task.input, task.agent, task.resumed) == (
            "Reach it",
            {"a": 1},
            "claims",
            True,
        )

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
def test_another_goal_input_or_agent_on_an_existing_id_is_refused(
    ways: Ways, other: dict[str, Any], what: str
) -> None:
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
            with pytest.raises(holdfast.errors.NoTask, match="the task is not entered"):
                await call()
        with pytest.raises(holdfast.errors.NoTask, match="the task is not entered"):
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
            with pytest.raises(holdfast.errors.NoTask):
                await call()

    ways.run(program())
    assert [step.path for step in view(ways).steps] == ["a"]
    assert view(ways).status == "pending"


def test_a_handle_can_be_entered_again_but_not_twice_at_once(ways: Ways) -> None:
    async def program() -> None:
        task = ways.task()
        async with task:
            with pytest.raises(RuntimeError, match="already entered"):
                async with task:
                    pass
            with pytest.raises(RuntimeError, match="would deadlock"):
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


# -- who holds it ----------------------------------------------------------------------------------


def test_what_another_holds_is_not_waited_for_with_wait_0(ways: Ways) -> None:
    other = held(ways.store)
    with pytest.raises(LeaseHeld) as caught:
        ways.resume(idle, wait=0)
    assert caught.value.owner == other._require_session().lease.owner
    assert caught.value.until.timestamp() > time.time()
    assert view(ways).owner == caught.value.owner
    other.__exit__(None, None, None)
    ways.resume(idle, wait=0)
    assert (view(ways).owner, view(ways).lease_until) == (None, None)


def test_entering_waits_for_the_lease_owner_with_a_log_line(ways: Ways) -> None:
    other = held(ways.store)

    class Leave(logging.Handler):
        said: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            if "waiting up to" in record.getMessage():
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


def test_a_lease_that_is_not_renewed_ends_and_its_lease_owner_writes_no_more(ways: Ways) -> None:
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
    assert view(ways).status == "pending"
    assert view(ways).decisions == []


@pytest.mark.every_engine
def test_steal_takes_it_from_whoever_has_it(ways: Ways) -> None:
    other = held(ways.store)

    async def work(task: Any) -> None:
        with pytest.raises(LeaseLost) as caught:
            other.step("a", nothing)
        assert (
            caught.value.owner == task._session.lease.owner
            if ways.asynchronous
            else task.plain._session.lease.owner
        )

    ways.resume(work, steal=True, wait=0)
    version = view(ways).version
    other.__exit__(LeaseLost, LeaseLost("t", owner=None), None)
    assert view(ways).version == version, "who has lost it writes nothing"


@pytest.mark.every_engine
def test_a_late_write_is_refused_and_the_history_says_whose_it_was(ways: Ways) -> None:
    other = held(ways.store)
    late = other._require_session().lease.owner

    async def work(task: Any) -> None:
        def charge() -> None:
            with pytest.raises(LeaseLost):
                other.decide("theirs")
            with pytest.raises(LeaseLost):
                other.decide("theirs again")

        other.step("charge", charge)

    with pytest.raises(LeaseLost):  # the result of that step comes too late as well
        ways.resume(work, steal=True, wait=0)
    events = list(ways.store.task("t").history())
    refused = [event.data for event in events if event.type == "task.write_refused"]
    assert refused == [{"owner": late, "steps": ["charge"]}]
    entry = next(
        entry for entry in ways.store.audit("t", kind="task") if entry.what == "late write refused"
    )
    assert entry.details == {"owner": late, "steps": ["charge"]}

    async def again(task: Any) -> None:
        await task.step("a", lambda: "mine")

    ways.resume(again)
    assert [(step.path, step.result) for step in view(ways).steps] == [("a", "mine")]
    assert view(ways).decisions == []


@pytest.mark.every_engine
def test_a_dead_process_of_this_machine_is_taken_over_at_once(durable_url: str) -> None:
    program = (
        "import os, sys, holdfast\n"
        "task = holdfast.open(sys.argv[1], key=os.environ.get('HOLDFAST_KEY')).task('t', "
        "goal='Reach it').__enter__()\n"
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


@pytest.mark.every_engine
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


# -- async functions in plain tasks ----------------------------------------------------------------


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
        for hidden in (
            lambda: task.make_plan(lambda: later()),
            lambda: task.finish(lambda: later()),
        ):
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
    bodies = (GOLDEN / "task-1.jsonl").read_bytes().splitlines()
    expected = json.loads((GOLDEN / "task-1.view.json").read_text())
    with holdfast.open("memory://") as store:
        key = StreamKey("default", "task", "golden")
        ops.run(
            store._log, ops.append(ops.AppendRecords(key, bodies, new_append_context(), expected=0))
        )
        seen = store.get_task("golden")
        assert seen is not None
        told = json.loads(msgspec.json.encode(seen))
        assert as_in(expected, told) == expected
        assert not any(
            told[name] for name in told.keys() - expected.keys()
        )  # what came later was not there
        with store.task("golden") as task:  # what it did is there for the program that did it
            assert task.step("collect", str, "a") == "a"
            assert task.finish(None) == {"pages": 9}
