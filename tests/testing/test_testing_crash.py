"""`testing.crash`: a run that dies at a chosen place leaves what a killed one leaves, and the next
one goes on."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from holdfast import testing
from holdfast.errors import StepFailed, StepInDoubt


class Bank:
    """Three steps, of which the middle one pays."""

    def __init__(self, ways: Ways, **options: Any) -> None:
        self.ways, self.paid = ways, 0
        self._pay = holdfast.step(self._paying, **options)

    def _paying(self, amount: int) -> str:
        self.paid += 1
        return f"paid {amount}"

    def run(self) -> str:
        async def program() -> Any:
            async with self.ways.task() as task:
                await task.step("look", lambda: 1)
                receipt = await task.step("pay", self._pay, 7)
                await task.step("send", lambda: 2)
                return await task.finish(receipt)

        result: str = self.ways.run(program())
        return result


def paths(ways: Ways) -> list[str]:
    return [step.path for step in view(ways).steps]


@pytest.mark.every_engine
def test_after_a_step_its_end_is_stored_and_nothing_else(ways: Ways) -> None:
    bank = Bank(ways)
    with testing.crash(after="pay") as crash:
        bank.run()
    assert crash.happened
    assert paths(ways) == ["look", "pay"]
    assert view(ways).status == "running"  # nobody gave it back
    assert view(ways).abandoned
    assert bank.run() == "paid 7"
    assert bank.paid == 1


def test_before_a_step_its_function_has_not_run(ways: Ways) -> None:
    bank = Bank(ways)
    with testing.crash(before="pay"):
        bank.run()
    assert bank.paid == 0
    assert paths(ways) == ["look"]
    assert bank.run() == "paid 7"
    assert bank.paid == 1


def test_during_a_step_its_function_has_run_and_nobody_knows(ways: Ways) -> None:
    bank = Bank(ways)
    with testing.crash(during="pay"):
        bank.run()
    assert bank.paid == 1
    assert paths(ways) == ["look"]
    assert bank.run() == "paid 7"
    assert bank.paid == 2  # an ordinary step is run again


def test_before_a_once_step_its_start_is_stored_so_that_it_is_in_doubt(ways: Ways) -> None:
    bank = Bank(ways, once=True)
    with testing.crash(before="pay"):
        bank.run()
    assert view(ways).in_doubt == ["pay"]
    with pytest.raises(StepInDoubt):
        bank.run()
    assert bank.paid == 0


@pytest.mark.parametrize(
    ("writes", "stored"), [(1, ["look"]), (2, ["look", "pay"]), (3, ["look", "pay", "send"])]
)
def test_at_a_number_of_writes_so_many_are_stored(
    ways: Ways, writes: int, stored: list[str]
) -> None:
    bank = Bank(ways)
    with testing.crash(write=writes):
        bank.run()
    assert paths(ways) == stored
    assert bank.run() == "paid 7"


@ON_MEMORY
def test_a_point_that_nobody_comes_to_is_an_error_that_names_the_steps(ways: Ways) -> None:
    bank = Bank(ways)
    with pytest.raises(
        AssertionError,
        match="no crash happened after 'sell': steps that ran: 'look', 'pay', 'send'",
    ):
        with testing.crash(after="sell") as crash:
            bank.run()
    assert not crash.happened


@ON_MEMORY
def test_another_exception_leaves_the_block_as_it_is(ways: Ways) -> None:
    with pytest.raises(ZeroDivisionError):
        with testing.crash(after="pay"):
            raise ZeroDivisionError


@ON_MEMORY
def test_outside_of_the_block_nothing_dies(ways: Ways) -> None:
    with pytest.raises(AssertionError), testing.crash(after="pay"):
        pass
    assert Bank(ways).run() == "paid 7"


@ON_MEMORY
def test_a_program_that_catches_everything_writes_nothing_after_its_death(ways: Ways) -> None:
    refused: list[str] = []

    async def program() -> None:
        async with ways.task() as task:
            attempts: list[Callable[[], Any]] = [
                lambda: task.step("pay", lambda: 1),
                lambda: task.step("late", lambda: 1),
                lambda: task.decide("late"),
                lambda: task.conversation().append({"role": "user", "content": "late"}),
                lambda: task.finish("late"),
            ]
            for attempt in attempts:
                try:
                    await attempt()
                except BaseException as error:
                    refused.append(type(error).__name__)

    with testing.crash(after="pay") as crash:
        ways.run(program())
    assert crash.happened
    assert refused == ["Crashed"] * 5
    assert [event.type for event in ways.store.task("t").history()][-1] == "step.completed"
    assert not ways.store.conversation("t").messages()


@ON_MEMORY
def test_a_step_that_fails_has_its_end_too(ways: Ways) -> None:
    def fail() -> None:
        raise ValueError("as always")

    async def program() -> None:
        async with ways.task() as task:
            await task.step("flaky", fail)

    with testing.crash(after="flaky"):
        ways.run(program())
    assert view(ways).steps[0].status == "failed"
    with pytest.raises(StepFailed):
        ways.run(program())


@ON_MEMORY
def test_a_step_is_named_by_its_name_or_by_its_path(ways: Ways) -> None:
    async def program() -> None:
        async with ways.task() as task:
            for number in range(3):
                await task.step("fetch", lambda n: n, number)

    with testing.crash(after="fetch#2"):
        ways.run(program())
    assert paths(ways) == ["fetch", "fetch#2"]


def test_all_tasks_of_the_program_die_with_it() -> None:
    with testing.temporary_store("memory") as store:
        with testing.crash(after="inner"):
            with store.task("outer") as outer:
                outer.step("first", lambda: 1)
                with store.task("other") as other:
                    other.step("inner", lambda: 1)
        outside = store.get_task("outer")
        assert outside is not None
        assert outside.abandoned  # it was not left: it died
        with store.task("outer", wait=0):
            pass


def test_a_thread_of_the_program_writes_nothing_after_its_death() -> None:
    with testing.temporary_store("memory") as store:
        died = threading.Event()

        def late() -> int:
            died.wait()
            return 1

        refused: list[BaseException] = []

        def beside(task: holdfast.Task) -> None:
            try:
                task.step("late", late)
            except BaseException as error:
                refused.append(error)

        with testing.crash(after="pay"):
            with store.task("t") as task:
                thread = threading.Thread(target=beside, args=(task,))
                thread.start()
                try:
                    task.step("pay", lambda: 1)
                finally:
                    died.set()
                    thread.join()
        found = store.get_task("t")
        assert found is not None
        assert "late" not in [step.path for step in found.steps if step.status == "completed"]
        assert [type(error) for error in refused] == [testing.Crashed]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a TaskGroup is of Python 3.11")
def test_a_crash_inside_a_task_group_is_swallowed_too() -> None:
    async def program(store: holdfast.AsyncStore) -> None:
        async with store.task("t") as task, asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
            group.create_task(task.step("a", lambda: 1))
            group.create_task(task.step("b", lambda: 1))

    with testing.temporary_store("memory") as store:
        with testing.crash(after="a") as crash:
            asyncio.run(program(store.aio))
        assert crash.happened


@pytest.mark.parametrize("given", [{}, {"after": "a", "before": "b"}])
def test_one_place_has_to_be_named(given: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="takes one of"):
        testing.crash(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="integer >= 1"):
        testing.crash(write=0)
