"""Traps that tasks have fallen into: each was once an effect done twice, a result of another call,
or a task that hung."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy
import pydantic
import pytest

import holdfast
from holdfast import StepFailed, StepInDoubt, Store
from holdfast.backends import Append, Record, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import NoTask, ReplayMismatch, SchemaMismatch, Unavailable
from holdfast.tasks.steps.identity import fingerprint

if TYPE_CHECKING:
    from nowhere import Client  # type: ignore[import-not-found]


class Slow(MemoryBackend):
    """A backend whose appends of one kind of event wait, and whose reads can be made to fail."""

    def __init__(self, event: bytes = b"") -> None:
        super().__init__()
        self.event, self.reached, self.go_on = event, threading.Event(), threading.Event()
        self.fails_to_read: str | None = None

    def append(self, batch: Sequence[Append]) -> Any:
        if self.event and any(self.event in body for append in batch for _, body in append.records):
            self.reached.set()
            assert self.go_on.wait(60)
        return super().append(batch)

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        if stream.kind == self.fails_to_read:
            raise Unavailable("not now")
        return super().read(stream, after=after, limit=limit, reverse=reverse)


@pytest.fixture
def store() -> Store:
    return holdfast.open("memory://")


# -- a call that gives nothing does not use its step up --------------------------------------------


def test_a_loop_around_a_step_in_doubt_does_it_once(store: Store) -> None:
    paid: list[int] = []

    @holdfast.step(once=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        raise TimeoutError

    with store.task("t"):
        for _ in range(3):
            with pytest.raises(StepInDoubt):
                pay(7)
    assert paid == [7]


def test_a_loop_around_a_step_with_a_check_asks_it(store: Store) -> None:
    paid: list[int] = []

    @holdfast.step(check=lambda amount: amount if paid else None)
    def pay(amount: int) -> int:
        paid.append(amount)
        raise TimeoutError

    with store.task("t"):
        with pytest.raises(StepFailed):
            pay(7)
        assert pay(7) == 7
    assert paid == [7]


def test_a_result_that_cannot_be_read_now_is_read_later_and_the_step_is_not_run_again() -> None:
    backend, paid = Slow(), []

    @holdfast.step(once=True)
    def pay() -> str:
        paid.append(1)
        return "r" * 100_000

    with holdfast.open(backend) as store:
        with store.task("t"):
            pay()
        with store.task("t"):
            backend.fails_to_read = "blob"
            with pytest.raises(Unavailable):
                pay()
            backend.fails_to_read = None
            assert pay() == "r" * 100_000
    assert paid == [1]


def test_a_call_that_was_refused_leaves_its_step_to_the_right_one(store: Store) -> None:
    ran: list[int] = []
    with store.task("t") as task:
        task.step("a", ran.append, 1)
    with store.task("t") as task:
        with pytest.raises(ReplayMismatch):
            task.step("a", ran.append, 2)
        task.step("a", ran.append, 1)
    assert ran == [1]


def test_a_result_of_another_type_stays_the_steps_result(store: Store) -> None:
    ran: list[int] = []
    with store.task("t") as task:
        task.step("a", holdfast.step(lambda: ran.append(1) or "text", returns=str))
    with store.task("t") as task:
        for _ in range(2):
            with pytest.raises(SchemaMismatch):
                task.step("a", holdfast.step(lambda: ran.append(1) or 1, returns=int))
    assert ran == [1]


def test_a_step_that_was_cut_off_and_is_asked_for_again_has_its_key_still(store: Store) -> None:
    keys: list[str] = []

    async def call(slow: asyncio.Event) -> str:
        keys.append(holdfast.idempotency_key())
        if len(keys) == 1:
            slow.set()
            await asyncio.sleep(60)
        return "done"

    async def main() -> None:
        slow = asyncio.Event()
        async with store.aio.task("t") as task:
            cut_off = asyncio.ensure_future(task.step("a", call, slow))
            await slow.wait()
            cut_off.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cut_off
            assert await task.step("a", call, slow) == "done"

    asyncio.run(main())
    assert len(set(keys)) == 1
    assert len(keys) == 2


# -- checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["called", "task.step"])
def test_what_a_check_finds_out_is_found_out_afresh(store: Store, how: str) -> None:
    paid: list[int] = []

    @holdfast.step
    def find() -> int | None:
        return paid[0] if paid else None

    def check(fails: str) -> int | None:
        task = holdfast.current_task()
        assert isinstance(task, holdfast.Task)
        return find() if how == "called" else task.step("find", find)

    @holdfast.step(check=check, key=lambda fails: "p", drift="keep")
    def pay(fails: str) -> int:
        if fails_at[0] == "before":
            raise KeyboardInterrupt
        paid.append(5)
        if fails_at[0] == "after":
            raise KeyboardInterrupt
        return 5

    fails_at = [""]
    for moment in ("before", "after"):
        fails_at[0] = moment
        with pytest.raises(KeyboardInterrupt), store.task("t"):
            pay("")
    fails_at[0] = ""
    with store.task("t"):
        assert pay("") == 5
    assert paid == [5]


@pytest.mark.parametrize("answer", [True, False])
def test_a_check_that_answers_yes_or_no_leaves_the_doubt(store: Store, answer: bool) -> None:
    @holdfast.step(check=lambda: answer)
    def pay() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.task("t"):
        pay()
    with pytest.raises(StepInDoubt, match=f"returned {answer}"), store.task("t"):
        pay()


def test_of_a_step_that_returns_nothing_a_check_may_say_yes_but_not_no(store: Store) -> None:
    sent: list[str] = []

    @holdfast.step(check=lambda: "ann" in sent)
    def mail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.task("t"):
        mail()
    with pytest.raises(StepInDoubt, match="returned False"), store.task("t"):
        mail()
    sent.append("ann")
    with store.task("t") as task:
        mail()
        assert task.view().steps[0].how == "checked"


def test_a_check_that_answers_with_another_type_leaves_the_doubt(store: Store) -> None:
    @holdfast.step(check=lambda: {"id": 1})
    def pay() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.task("t"):
        pay()
    with pytest.raises(StepInDoubt, match="result can't be stored"), store.task("t"):
        pay()


def test_a_check_that_cannot_take_the_steps_arguments_is_refused_when_decorating() -> None:
    for check in (lambda: None, lambda order, amount, currency: None, lambda order: None):
        with pytest.raises(TypeError, match="must accept the same arguments"):
            holdfast.step(check=check)(_pay)
    for check in (
        lambda order, amount: None,
        lambda *given: None,
        lambda order, amount=1, more=2: None,
    ):
        holdfast.step(check=check)(_pay)


def _pay(order: str, amount: int, idempotency_key: str = "") -> str:
    return order


# -- one key, many threads -------------------------------------------------------------------------


def test_one_key_in_many_threads_is_run_once(store: Store) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for number in range(60):
                ran: list[int] = []

                def pay(ran: list[int] = ran) -> str:
                    ran.append(1)
                    return "paid"

                step = holdfast.step(pay, once=True).using(key="one")
                with store.task(f"t{number}") as task:
                    calls = [pool.submit(task.step, "pay", step) for _ in range(4)]
                    ends = [call.exception() or call.result() for call in calls]
                assert len(ran) == 1
                assert "paid" in ends
                assert all(end == "paid" or "already running" in str(end) for end in ends)
    finally:
        sys.setswitchinterval(interval)


def test_what_ran_in_parallel_may_come_in_another_order_with_more_of_it(store: Store) -> None:
    """The first to come on resume may be one that was never recorded."""
    both, ran = threading.Barrier(2), []

    def work(item: str) -> str:
        ran.append(item)
        if item in ("a", "b"):
            both.wait(60)
        if item == "a":
            raise KeyboardInterrupt
        return item

    with ThreadPoolExecutor(2) as pool, pytest.raises(KeyboardInterrupt), store.task("t") as task:
        first = [pool.submit(task.step, "work", work, item) for item in ("a", "b")]
        assert first[1].result() == "b"
        raise first[0].exception()  # type: ignore[misc]
    both.abort()
    with store.task("t") as task:
        assert [task.step("work", lambda item: item, item) for item in ("c", "b")] == ["c", "b"]
    assert sorted(ran) == ["a", "b"]


# -- functions and arguments -----------------------------------------------------------------------


def test_a_step_of_a_step_has_the_new_options(store: Store) -> None:
    inner = holdfast.step(lambda: None)
    assert holdfast.step(inner, once=True).options.once


def test_a_callable_with_attributes_of_its_own_is_called_as_it_is(store: Store) -> None:
    class Tool:
        def __init__(self) -> None:
            self.fn, self.options, self.key, self.owner = len, {"a": 1}, "k", ("x",)

        def __call__(self, text: str) -> str:
            return text.upper()

    with store.task("t") as task:
        assert task.step("tool", Tool(), "abc") == "ABC"
        assert task.view().steps[0].path == "tool"


def test_annotations_that_only_a_type_checker_can_resolve_do_no_harm(store: Store) -> None:
    def pay(client: Client, amount: int) -> int:
        return amount

    with store.task("t") as task:
        assert task.step("pay", pay, object(), 7) == 7


class Box(pydantic.BaseModel):
    tags: set[str]


class Name(str):
    pass


@dataclass
class Big:
    number: int


DIFFERENT: list[Callable[[], Sequence[object]]] = [
    lambda: (float("nan"), float("inf"), float("-inf"), None),
    lambda: (b"a", "YQ==", Name("a"), Name("b")),
    lambda: (deque([1]), deque([2]), range(1), range(2)),
    lambda: (Fraction(1, 2), Fraction(1, 3)),
    lambda: (Big, Box, len, max),
    lambda: (functools.partial(max, 1), functools.partial(max, 2)),
    lambda: (numpy.array([1]), numpy.array([2]), numpy.array([[1]])),
    lambda: (Big(1 << 70), Big(1 << 71)),
]


@pytest.mark.parametrize("values", DIFFERENT)
def test_arguments_that_differ_have_fingerprints_that_differ(
    values: Callable[[], Sequence[object]],
) -> None:
    prints = [fingerprint(b"salt", (value,), {}) for value in values()]
    assert len(set(prints)) == len(prints)
    assert prints == [fingerprint(b"salt", (value,), {}) for value in values()]


@pytest.mark.slow
def test_a_set_in_a_model_has_one_fingerprint_in_every_process() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_task_traps import Box, fingerprint\n"
        "print(fingerprint(b'salt', (Box(tags={'a', 'b', 'c', 'd'}),), {}))"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-c", program, *sys.path],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(prints) == 1


def test_what_a_function_was_partially_called_with_counts(store: Store) -> None:
    with store.task("t") as task:
        assert task.step("a", functools.partial(max, 1), 0) == 1
    with store.task("t") as task, pytest.raises(ReplayMismatch):
        task.step("a", functools.partial(max, 2), 0)


# -- plans -----------------------------------------------------------------------------------------


def test_items_of_one_name_are_told_apart_by_what_they_say(store: Store) -> None:
    plan = [{"name": "s", "q": 1}, {"name": "s", "q": 2}]
    done: list[int] = []

    def work(item: dict[str, int]) -> int:
        done.append(item["q"])
        return item["q"]

    with store.task("t") as task:
        task.make_plan(plan)
        assert task.step(plan[1], work, plan[1]) == 2
    with store.task("t") as task:
        assert [task.step(item, work, item) for item in task.remaining()] == [1]
        assert [step.result for step in task.view().steps] == [2, 1]
    assert done == [2, 1]


def test_a_plan_that_is_changed_outside_is_not_changed_inside(store: Store) -> None:
    with store.task("t") as task:
        made = task.make_plan([{"name": "s", "q": [1]}])
        for items in (made, task.plan, list(task.remaining())):
            assert isinstance(items[0], dict)
            items[0]["q"].append(2)
        assert task.plan == [{"name": "s", "q": [1]}]


# -- ends ------------------------------------------------------------------------------------------


def test_nothing_is_written_behind_the_end_of_a_task() -> None:
    backend = Slow(b"task.finished")
    with holdfast.open(backend) as store:
        with store.task("t") as task:
            finishing = threading.Thread(target=task.finish, args=("done",))
            finishing.start()
            assert backend.reached.wait(60)
            task._require_session().lease.renewed_at -= (
                60  # a heartbeat is due, and waits behind it
            )
            beating = threading.Thread(target=task._beat, args=(task._entry,))
            beating.start()
            deadline = time.monotonic() + 60
            while len(store._log._committer._pending) < 2:
                assert time.monotonic() < deadline
            backend.go_on.set()
            finishing.join()
            beating.join()
        assert store.task("t").history()[-1].type == "task.finished"
        [info] = store.tasks()
        assert (info.status, info.owner) == ("finished", None)
        assert info.expires_at is not None


def test_who_is_cancelled_while_entering_gives_the_task_back() -> None:
    backend = Slow(b"task.claimed")

    async def main(store: holdfast.AsyncStore) -> None:
        async def enter() -> None:
            async with store.task("t"):
                raise AssertionError("entered")

        entering = asyncio.ensure_future(enter())
        assert await asyncio.to_thread(backend.reached.wait, 10)
        entering.cancel()
        await asyncio.sleep(0)
        backend.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await entering
        async with store.task("t", wait=0):
            pass

    with holdfast.open(backend) as store:
        asyncio.run(main(store.aio))


def test_a_cancellation_is_heard_of_although_the_function_failed(store: Store) -> None:
    started, go_on = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert go_on.wait(60)
        raise ValueError("no")

    async def main() -> None:
        async with store.aio.task("t") as task:
            working = asyncio.ensure_future(task.step("work", work))
            assert await asyncio.to_thread(started.wait, 10)
            working.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert (await task.view()).steps[0].status == "failed"

    asyncio.run(main())


def test_a_task_may_be_deleted_inside_its_block(store: Store) -> None:
    with store.task("t") as task:
        assert task.delete()
        with pytest.raises(holdfast.errors.TaskEnded):
            task.step("a", len, "x")
    assert store.get_task("t") is None


def test_blocks_may_be_left_in_another_order_than_they_were_entered(store: Store) -> None:
    one, two = store.task("one"), store.task("two")
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert holdfast.current_task() is two
    two.__exit__(None, None, None)
    with pytest.raises(NoTask):
        holdfast.current_task()
    assert holdfast.step(lambda: 1)() == 1


def test_a_wrong_result_of_a_person_can_be_corrected(store: Store) -> None:
    @holdfast.step(once=True)
    def pay() -> int:
        raise TimeoutError

    with pytest.raises(StepInDoubt), store.task("t"):
        pay()
    with pytest.raises(TypeError, match="must be integer"):
        store.resolve("t", "pay", result="seven")
    store.resolve("t", "pay", result=6)
    store.resolve("t", "pay", result=7, override=True)
    with store.task("t"):
        assert pay() == 7
