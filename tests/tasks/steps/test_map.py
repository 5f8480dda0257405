"""Many at once: `task.map`, and functions that know their task in any thread; on every backend,
plain and async."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import AwaitedTask, Ways, view
from holdfast import StepFailed, StepInDoubt, Store, Suspended
from holdfast.errors import NoTask, NotSerializable, ReplayMismatch, TaskEnded

SECONDS = 20
"""Longer than anything here takes; whoever waits so long waits for what does not come."""


def inside(ways: Ways, work: Any) -> Callable[..., Any]:
    """Work that awaits what its task does, as a function for a step of a task of this kind."""
    if ways.asynchronous:

        async def later(*args: Any) -> Any:
            return await work(holdfast.current_task(), *args)

        return later

    def now(*args: Any) -> Any:
        task: Any = holdfast.current_task()
        return ways.run(work(AwaitedTask(task), *args))

    return now


def mapped(fn: Callable[..., Any], items: Any, **options: Any) -> Any:
    async def work(task: Any) -> Any:
        return await task.map("m", fn, items, **options)

    return work


def paths(ways: Ways) -> set[str]:
    return {step.path for step in view(ways).steps if step.status == "completed"}


# -- results ---------------------------------------------------------------------------------------


def test_the_results_are_in_the_order_of_the_items_whoever_ends_first(ways: Ways) -> None:
    ended = [threading.Event() for _ in range(4)]

    def backwards(number: int) -> int:
        if number < 3:
            assert ended[number + 1].wait(SECONDS)
        ended[number].set()
        return number * number

    assert ways.resume(mapped(backwards, range(4))) == [0, 1, 4, 9]
    assert ways.resume(mapped(backwards, range(4))) == [0, 1, 4, 9]


@pytest.mark.every_engine
def test_what_is_finished_is_not_run_again(ways: Ways) -> None:
    ran: list[int] = []

    def note(number: int) -> int:
        ran.append(number)
        return -number

    assert ways.resume(mapped(note, [1, 2])) == [-1, -2]
    assert ways.resume(mapped(note, [3, 2, 1])) == [-3, -2, -1]
    assert sorted(ran) == [1, 2, 3]


def test_with_a_key_an_item_is_known_by_it(ways: Ways) -> None:
    ran: list[str] = []

    def note(item: dict[str, Any]) -> str:
        ran.append(item["id"])
        return f"{item['id']} {item['text']}"

    def by_id(item: dict[str, Any]) -> object:
        return item["id"]

    first = [{"id": "a", "text": 1}, {"id": "b", "text": 1}]
    assert ways.resume(mapped(note, first, key=by_id)) == ["a 1", "b 1"]
    changed = [{"id": "b", "text": 2}, {"id": "a", "text": 1}]
    assert ways.resume(mapped(note, changed, key=by_id)) == ["b 1", "a 1"]
    assert sorted(ran) == ["a", "b"]
    assert paths(ways) == {"m[a]", "m[b]"}


def test_two_items_of_one_key_are_refused_before_anything_runs(ways: Ways) -> None:
    def never(item: Any) -> Any:
        raise AssertionError

    with pytest.raises(ValueError, match="got 1 keys that items share") as caught:
        ways.resume(mapped(never, ["secret", "secret", "other"], key=str))
    assert "secret" not in str(caught.value)
    assert view(ways).steps == []


def test_equal_items_without_a_key_are_as_many_steps(ways: Ways) -> None:
    assert ways.resume(mapped(str, [7, 7, 7])) == ["7", "7", "7"]
    assert len(paths(ways)) == 3
    assert ways.resume(mapped(str, [7, 7, 7])) == ["7", "7", "7"]
    assert len(paths(ways)) == 3


def test_no_items_and_wrong_arguments(ways: Ways) -> None:
    assert ways.resume(mapped(str, [])) == []
    for wrong in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="concurrency"):
            ways.resume(mapped(str, [1], concurrency=wrong))
    with pytest.raises(TypeError):
        ways.resume(mapped(str, [1], key=lambda item: 1.5))
    with pytest.raises(TypeError):
        ways.resume(mapped("no function", [1]))  # type: ignore[arg-type]  # that is what is tested


def test_items_may_be_an_iterator_and_results_are_typed(ways: Ways) -> None:
    def pair(number: int) -> tuple[int, str]:
        return number, str(number)

    assert ways.resume(mapped(pair, iter([1, 2]))) == [(1, "1"), (2, "2")]
    with pytest.raises(StepFailed, match=NotSerializable.__name__):
        ways.resume(mapped(lambda number: object(), [1]), "u")


def test_an_ended_task_gives_the_recorded_results_and_begins_no_other(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        return await task.finish(await task.map("m", str, [1, 2]))

    assert ways.resume(work) == ways.resume(work) == ["1", "2"]
    with pytest.raises(TaskEnded):
        ways.resume(mapped(str, [1, 2, 3]))


# -- so many at a time -----------------------------------------------------------------------------


class Gauge:
    """Meets the others at a barrier, and counts how many are there at once."""

    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties)
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __call__(self, number: int) -> int:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.barrier.wait(SECONDS)
        with self.lock:
            self.now -= 1
        return number


def test_as_many_as_allowed_run_at_once_and_no_more(ways: Ways) -> None:
    gauge = Gauge(3)
    assert ways.resume(mapped(gauge, range(9), concurrency=3)) == list(range(9))
    assert gauge.most == 3


def test_async_functions_run_at_once_in_one_thread(url: str) -> None:
    now = most = 0
    threads = set()

    async def meet(number: int) -> int:
        nonlocal now, most
        threads.add(threading.get_ident())
        now += 1
        most = max(most, now)
        while most < 3:  # until the others have come
            await asyncio.sleep(0)
        now -= 1
        return number

    with holdfast.open(url) as store:
        ways = Ways(store, asynchronous=True)
        assert ways.resume(mapped(meet, range(9), concurrency=3)) == list(range(9))
    assert most == 3
    assert len(threads) == 1


def test_one_at_a_time_is_one_after_the_other(ways: Ways) -> None:
    order: list[int] = []
    ways.resume(mapped(order.append, range(5), concurrency=1))
    assert order == [0, 1, 2, 3, 4]


def test_a_map_in_a_map_and_in_a_step(ways: Ways) -> None:
    meet = Gauge(4)

    def leaf(number: int) -> int:
        return meet(number)

    async def branch(task: Any, number: int) -> Any:
        return await task.map("leaf", leaf, [10 * number, 10 * number + 1])

    async def trunk(task: Any) -> Any:
        return await task.map("branch", inside(ways, branch), [1, 2], key=str)

    async def work(task: Any) -> Any:
        return await task.step("trunk", inside(ways, trunk))

    assert ways.resume(work) == [[10, 11], [20, 21]]
    assert meet.most == 4
    assert paths(ways) == {
        "trunk",
        "trunk/branch[1]",
        "trunk/branch[2]",
        *(f"trunk/branch[{branch}]/leaf{number}" for branch in (1, 2) for number in ("", "#2")),
    }
    assert ways.resume(work) == [[10, 11], [20, 21]]


# -- failures --------------------------------------------------------------------------------------


def test_after_a_failure_no_other_item_is_begun(ways: Ways) -> None:
    begun: list[int] = []

    def second_fails(number: int) -> int:
        begun.append(number)
        if number == 1 and len(begun) < 3:
            raise ValueError("no")
        return number

    with pytest.raises(StepFailed, match="no"):
        ways.resume(mapped(second_fails, range(4), concurrency=1))
    assert begun == [0, 1]
    assert view(ways).status == "failed"
    assert ways.resume(mapped(second_fails, range(4), concurrency=1)) == [0, 1, 2, 3]
    assert begun == [0, 1, 1, 2, 3]


def test_what_is_under_way_ends_before_the_failure_is_told(ways: Ways) -> None:
    begun, failed = threading.Event(), threading.Event()
    ended: list[int] = []

    def one_fails(number: int) -> int:
        if number == 1:
            assert begun.wait(SECONDS)
            failed.set()
            raise ValueError("no")
        begun.set()
        assert failed.wait(SECONDS)
        ended.append(number)
        return number

    async def work(task: Any) -> Any:
        with pytest.raises(StepFailed):
            await task.map("m", one_fails, [0, 1], key=str, concurrency=2)
        return list(ended)

    assert ways.resume(work) == [0]
    assert paths(ways) == {"m[0]"}


def test_if_several_fail_at_once_the_next_run_tries_all_of_them_again(ways: Ways) -> None:
    meet = threading.Barrier(3)
    ran: list[int] = []

    def all_fail_once(number: int) -> int:
        ran.append(number)
        if len(ran) <= 3:
            meet.wait(SECONDS)
            raise ValueError(str(number))
        return number

    with pytest.raises(StepFailed, match="0"):  # the first in order
        ways.resume(mapped(all_fail_once, range(3)))
    assert {step.status for step in view(ways).steps} == {"retrying"}
    assert ways.resume(mapped(all_fail_once, range(3))) == [0, 1, 2]
    assert sorted(ran) == [0, 0, 1, 1, 2, 2]


def test_a_failure_that_was_caught_is_the_same_again(ways: Ways) -> None:
    ran: list[int] = []

    def fails(number: int) -> int:
        ran.append(number)
        raise ValueError("no")

    async def work(task: Any) -> Any:
        try:
            return await task.map("m", fails, [1], key=str)
        except StepFailed as error:
            return await task.step("after", str, error.type)

    assert ways.resume(work) == ways.resume(work) == "ValueError"
    assert ran == [1]


def test_an_item_in_doubt_stops_the_others_and_is_said(ways: Ways) -> None:
    def cut(number: int) -> int:
        if number == 1:
            raise ConnectionError
        return number

    pay = holdfast.step(cut, once=True)
    for _ in range(2):
        with pytest.raises(StepInDoubt):
            ways.resume(mapped(pay, range(3), concurrency=1))
    assert view(ways).in_doubt == ["m#2"]
    ways.store.resolve("t", "m#2", result=1)
    assert ways.resume(mapped(pay, range(3))) == [0, 1, 2]


def test_another_list_in_place_of_one_that_ran_one_after_the_other_is_refused(ways: Ways) -> None:
    async def one(task: Any, item: str) -> Any:
        return await task.step("m", str, item)

    assert ways.resume(lambda task: one(task, "a")) == "a"
    with pytest.raises(ReplayMismatch):
        ways.resume(mapped(str, ["b"]))


# -- cut off ---------------------------------------------------------------------------------------


def test_an_interrupt_waits_for_what_is_under_way_and_begins_nothing_new(store: Store) -> None:
    ways = Ways(store, asynchronous=False)
    interrupted, begun, main = threading.Event(), list[int](), threading.main_thread().ident
    assert main is not None

    def on_interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def work(number: int) -> int:
        begun.append(number)
        if not interrupted.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            assert interrupted.wait(SECONDS)
        return number

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            ways.resume(mapped(work, range(100), key=str, concurrency=1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(begun) < 100
    assert paths(ways) == {f"m[{number}]" for number in begun}
    assert view(ways).status == "pending"
    count = len(begun)
    assert ways.resume(mapped(work, range(100), key=str)) == list(range(100))
    assert sorted(begun[count:]) == [number for number in range(100) if number not in begun[:count]]


def test_a_cancelled_map_ends_all_its_items(url: str) -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def program(store: Any, hang: bool) -> Any:
        all_there = asyncio.Event()

        async def item(number: int) -> int:
            begun.append(number)
            if len(begun) == 3:
                all_there.set()
            try:
                if hang:
                    await asyncio.Event().wait()
            finally:
                ended.append(number)
            return number

        async def run() -> Any:
            async with store.task("t") as task:
                return await task.map("m", item, range(5), key=str, concurrency=3)

        running = asyncio.ensure_future(run())
        if hang:
            await all_there.wait()
            running.cancel()
        return await running

    with holdfast.open(url) as store:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(program(store.aio, True))
        assert sorted(begun) == sorted(ended) == [0, 1, 2]
        assert view(Ways(store, asynchronous=True)).status == "pending"
        assert asyncio.run(program(store.aio, False)) == [0, 1, 2, 3, 4]


def test_what_is_not_to_be_begun_without_its_task_is_not(ways: Ways) -> None:
    """Threads of a map are inside the task; after its block, nothing is recorded under its name."""
    kept: list[Any] = []

    async def work(task: Any) -> Any:
        kept.append(task)
        return await task.map("m", lambda _: holdfast.current_task().id, [1])

    assert ways.resume(work) == ["t"]
    with pytest.raises(NoTask):
        ways.run(kept[0].map("m", str, [2]))


# -- bind ------------------------------------------------------------------------------------------


@holdfast.step
def double(number: int) -> int:
    doubled.append(number)
    return 2 * number


doubled: list[int] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    doubled.clear()


def test_a_bound_function_knows_its_task_in_a_pool(store: Store) -> None:
    ways = Ways(store, asynchronous=False)
    for _ in range(2):
        with store.task("t"), ThreadPoolExecutor(3) as pool:
            assert list(pool.map(holdfast.bind(double), range(5))) == [0, 2, 4, 6, 8]
    assert sorted(doubled) == [0, 1, 2, 3, 4]
    assert len(paths(ways)) == 5


def test_a_bound_function_knows_its_task_in_any_thread(store: Store) -> None:
    found: list[int] = []
    with store.task("t"):
        thread = threading.Thread(target=holdfast.bind(lambda: found.append(double(4))))
        thread.start()
        thread.join()
    assert found == [8]
    assert paths(Ways(store, asynchronous=False)) == {"double"}


def test_a_bound_function_belongs_to_the_step_it_was_bound_in(store: Store) -> None:
    def outer() -> list[int]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(holdfast.bind(double), [1]))

    with store.task("t") as task:
        assert task.step("outer", outer) == [2]
    assert paths(Ways(store, asynchronous=False)) == {"outer", "outer/double"}


def test_in_an_async_task_threads_of_asyncio_know_it_and_others_are_bound(url: str) -> None:
    async def program(store: Any) -> Any:
        async with store.task("t") as task:
            loop = asyncio.get_running_loop()
            with ThreadPoolExecutor(1) as pool:
                name = await loop.run_in_executor(
                    pool, holdfast.bind(lambda: holdfast.current_task().id)
                )
                other = await loop.run_in_executor(pool, has_no_task)
            return [await asyncio.to_thread(lambda: holdfast.current_task() is task), name, other]

    with holdfast.open(url) as store:
        assert asyncio.run(program(store.aio)) == [True, "t", True]


def has_no_task() -> bool:
    try:
        holdfast.current_task()
    except NoTask:
        return True
    return False


def test_a_bound_async_function_knows_its_task_wherever_it_is_awaited(url: str) -> None:
    async def who() -> str:
        return holdfast.current_task().id

    async def program(store: Any) -> list[str]:
        async with store.task("outer"):
            bound = holdfast.bind(who)
            async with store.task("inner"):
                return [await bound(), await who()]

    with holdfast.open(url) as store:
        assert asyncio.run(program(store.aio)) == ["outer", "inner"]


def test_there_is_nothing_to_bind_to_outside_of_a_task(store: Store) -> None:
    with pytest.raises(NoTask):
        holdfast.bind(double)
    with store.task("t"):
        bound = holdfast.bind(double)
    with pytest.raises(NoTask):
        holdfast.bind(double)
    with pytest.raises(NoTask):
        bound(1)
    assert doubled == []


def test_a_question_in_a_pool_suspends_the_task(store: Store) -> None:
    def ask(number: int) -> Any:
        task: Any = holdfast.current_task()
        return task.ask(f"q{number}", "Which?")

    def run() -> Any:
        with store.task("t"), ThreadPoolExecutor(1) as pool:
            return list(pool.map(holdfast.bind(ask), [1, 2]))

    for number in (1, 2):
        with pytest.raises(Suspended):
            run()
        store.answer("t", f"q{number}", number)
    assert run() == [1, 2]


def test_a_bound_function_is_named_as_the_function(store: Store) -> None:
    with store.task("t"):
        assert holdfast.bind(has_no_task).__name__ == "has_no_task"
