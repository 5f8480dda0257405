"""Traps that tasks have fallen into: each was once an effect done twice, a result of another call, or a task that hung."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pydantic
import pytest

import holdfast
from holdfast import NoTask, ReplayMismatch, SchemaMismatch, StepFailed, StepInDoubt, Store, Unavailable
from holdfast.backends import Append, Record, StreamKey
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.tasks import _running
from holdfast.tasks._fingerprint import fingerprint

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
            assert self.go_on.wait(10)
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


# -- a call that gives nothing does not use its step up ----------------------------------------------


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


# -- checks ------------------------------------------------------------------------------------------


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
    with pytest.raises(StepInDoubt, match=f"answered {answer}"), store.task("t"):
        pay()


def test_of_a_step_that_returns_nothing_a_check_may_say_yes_but_not_no(store: Store) -> None:
    sent: list[str] = []

    @holdfast.step(check=lambda: "ann" in sent)
    def mail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.task("t"):
        mail()
    with pytest.raises(StepInDoubt, match="answered False"), store.task("t"):
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
    with pytest.raises(StepInDoubt, match="cannot be the step's result"), store.task("t"):
        pay()


def test_a_check_that_cannot_take_the_steps_arguments_is_refused_when_decorating() -> None:
    for check in (lambda: None, lambda order, amount, currency: None, lambda order: None):
        with pytest.raises(TypeError, match="let it take the same ones"):
            holdfast.step(check=check)(_pay)
    for check in (lambda order, amount: None, lambda *given: None, lambda order, amount=1, more=2: None):
        holdfast.step(check=check)(_pay)


def _pay(order: str, amount: int, idempotency_key: str = "") -> str:
    return order


# -- one key, many threads ---------------------------------------------------------------------------


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
                assert all(end == "paid" or "running already" in str(end) for end in ends)
    finally:
        sys.setswitchinterval(interval)


def test_what_ran_in_parallel_may_come_in_another_order_with_more_of_it(store: Store) -> None:
    """The first to come on resume may be one that was never recorded."""
    both, ran = threading.Barrier(2), []

    def work(item: str) -> str:
        ran.append(item)
        if item in ("a", "b"):
            both.wait(10)
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


# -- functions and arguments -------------------------------------------------------------------------


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
    lambda: (b"a", "YQ==", Name("a"), "a", Name("b")),
    lambda: (deque([1]), deque([2]), range(1), range(2)),
    lambda: (Fraction(1, 2), Fraction(1, 3)),
    lambda: (Big, Box, len, max),
    lambda: (functools.partial(max, 1), functools.partial(max, 2)),
    lambda: (numpy.array([1]), numpy.array([2]), numpy.array([[1]])),
    lambda: (Big(1 << 70), Big(1 << 71)),
]


@pytest.mark.parametrize("values", DIFFERENT)
def test_arguments_that_differ_have_fingerprints_that_differ(values: Callable[[], Sequence[object]]) -> None:
    prints = [fingerprint(b"salt", (value,), {}) for value in values()]
    assert len(set(prints)) == len(prints)
    assert prints == [fingerprint(b"salt", (value,), {}) for value in values()]


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


# -- plans -------------------------------------------------------------------------------------------


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


# -- ends --------------------------------------------------------------------------------------------


def test_nothing_is_written_behind_the_end_of_a_task() -> None:
    backend = Slow(b"task.finished")
    with holdfast.open(backend) as store:
        with store.task("t") as task:
            finishing = threading.Thread(target=task.finish, args=("done",))
            finishing.start()
            assert backend.reached.wait(10)
            task._held().renewed_at -= 60  # a heartbeat is due, and waits behind it
            beating = threading.Thread(target=task._beat)
            beating.start()
            deadline = time.monotonic() + 10
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
        assert go_on.wait(10)
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
        with pytest.raises(holdfast.TaskEnded):
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
    store.resolve("t", "pay", result="seven")
    with pytest.raises(SchemaMismatch), store.task("t"):
        pay()
    store.resolve("t", "pay", result=7)
    with store.task("t"):
        assert pay() == 7


# -- what still runs when a block is left ------------------------------------------------------------


def test_a_step_that_still_runs_when_a_sibling_fails_is_ended_before_the_task_is_given_back(store: Store) -> None:
    sent: list[str] = []
    fails = [True]

    @holdfast.step(check=lambda to: "sent" if to in sent else None)
    async def mail(to: str) -> str:
        if fails[0]:
            started.set()
            await never.wait()
        sent.append(to)
        return "sent"

    async def bad() -> None:
        await started.wait()
        raise ValueError("no")

    async def run() -> str:
        async with store.aio.task("t") as task:
            others = [task.step("bad", bad)] if fails[0] else []
            await asyncio.gather(mail("ann"), *others)
            return str(await task.finish("ok"))

    async def main() -> None:
        global_events()
        with pytest.raises(StepFailed):
            await run()
        fails[0] = False
        never.set()  # whoever were still waiting would send now
        assert await run() == "ok"
        await asyncio.sleep(0)

    def global_events() -> None:
        nonlocal started, never
        started, never = asyncio.Event(), asyncio.Event()

    started = never = asyncio.Event()
    asyncio.run(main())
    assert sent == ["ann"]


def test_a_step_in_a_thread_is_waited_for_before_the_task_is_given_back(store: Store) -> None:
    started, go_on = threading.Event(), threading.Event()
    left: list[str] = []

    def work() -> str:
        started.set()
        assert go_on.wait(10)
        left.append("step")
        return "done"

    def run() -> None:
        with pytest.raises(ValueError, match="no"), store.task("t") as task:
            working = threading.Thread(target=task.step, args=("work", work))
            working.start()
            assert started.wait(10)
            raise ValueError("no")
        left.append("block")

    running = threading.Thread(target=run)
    running.start()
    assert started.wait(10)
    with pytest.raises(holdfast.Held):
        store.task("t", wait=0).__enter__()
    go_on.set()
    running.join(10)
    assert left == ["step", "block"]
    view = store.get_task("t")
    assert view is not None
    assert (view.status, view.steps[0].result) == ("failed", "done")


def test_progress_may_be_saved_in_a_thread_of_an_async_step(store: Store) -> None:
    def save() -> None:
        holdfast.current_step().save(3, flush=True)

    async def work() -> None:
        await asyncio.to_thread(save)

    async def main() -> None:
        async with store.aio.task("t") as task:
            await task.step("work", work)

    asyncio.run(main())
    assert "step.progressed" in [event.type for event in store.task("t").history()]


def test_code_that_outlives_the_block_is_refused_instead_of_run_unrecorded(store: Store) -> None:
    ran: list[int] = []
    step = holdfast.step(lambda: ran.append(1))

    async def main() -> None:
        left = asyncio.Event()

        async def later() -> None:
            await left.wait()
            with pytest.raises(NoTask, match="was left"):
                step()

        async with store.aio.task("t"):
            outliving = asyncio.ensure_future(later())
            await asyncio.sleep(0)
        left.set()
        await outliving

    asyncio.run(main())
    assert ran == []


def test_a_killed_process_that_nobody_has_asked_for_yet_is_dead(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    program = "import os, sys, holdfast; holdfast.open(sys.argv[1]).task('t').__enter__(); os.kill(os.getpid(), 9)"
    killed = subprocess.Popen([sys.executable, "-c", program, path])
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    try:
        with holdfast.open(path) as store, store.task("t", wait=0) as task:
            assert task.resumed
    finally:
        killed.wait()


def test_what_was_asked_for_in_threads_may_come_in_another_order_even_if_it_never_overlapped(store: Store) -> None:
    with store.task("t") as task:
        alone = threading.Thread(target=task.step, args=("work", str, "b"))
        alone.start()
        alone.join()
    with store.task("t") as task:
        assert [task.step("work", str, item) for item in ("a", "b")] == ["a", "b"]
        assert [step.path for step in task.view().steps] == ["work", "work#2"]


def test_a_former_holder_says_nothing_more_in_its_conversation(store: Store) -> None:
    def takeover() -> None:
        with store.task("t", wait=5) as other:
            other.conversation("c").append({"role": "user", "content": "mine"})

    with pytest.raises(holdfast.LeaseLost), store.task("t", lease=0.2) as task:
        chat = task.conversation("c")
        store._log.heartbeat.release(task._held().holder)  # as if this process had been stopped
        with ThreadPoolExecutor(1) as pool:
            pool.submit(takeover).result()
        chat.append({"role": "user", "content": "too late"})
    assert [message["content"] for message in store.conversation("c").messages()] == ["mine"]


# -- a step that is called again repeats nothing inside it -------------------------------------------


def test_what_was_finished_inside_a_step_is_not_repeated_when_it_is_called_again(store: Store) -> None:
    ran: list[str] = []

    @holdfast.step(once=True)
    def send() -> None:
        ran.append("send")

    @holdfast.step(once=True)
    def pay() -> None:
        ran.append("pay")
        raise OSError

    def outer() -> None:
        send()
        pay()

    with store.task("t") as task:
        for _ in range(3):
            with pytest.raises(StepInDoubt):
                task.step("outer", outer)
    assert ran == ["send", "pay"]


def test_what_still_runs_inside_a_step_is_ended_before_it_is_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_running, "pause", lambda attempt: 0.0)
    began, paid = [], []

    async def pay() -> str:
        began.append(holdfast.idempotency_key())
        if len(began) == 1:
            await asyncio.sleep(60)
        paid.append(began[-1])
        return "paid"

    async def boom() -> None:
        while not began:
            await asyncio.sleep(0)
        if len(began) == 1:
            raise ValueError("no")

    @holdfast.step(attempts=2)
    async def outer() -> None:
        task = holdfast.current_task()
        assert isinstance(task, holdfast.AsyncTask)
        await asyncio.gather(task.step("pay", pay), task.step("boom", boom))

    async def main() -> None:
        async with store.aio.task("t"):
            await outer()

    asyncio.run(main())
    assert len(began) == 2
    assert len(set(began)) == len(paid) == 1


def test_nothing_begins_in_a_block_that_is_being_left(store: Store) -> None:
    began, go_on, ends = threading.Event(), threading.Event(), []

    def work(number: int) -> None:
        began.set()
        assert go_on.wait(10)
        ends.append(number)

    def loop(task: holdfast.Task) -> None:
        try:
            for number in range(3):
                task.step("work", work, number)
        except NoTask:
            ends.append(-1)

    with pytest.raises(ValueError, match="no"), store.task("t") as task:
        looping = threading.Thread(target=loop, args=(task,))
        looping.start()
        assert began.wait(10)
        threading.Timer(0.1, go_on.set).start()
        raise ValueError("no")
    looping.join(10)
    assert ends == [0, -1]


def test_a_plain_step_is_waited_for_when_the_program_ends(store: Store) -> None:
    began, done = threading.Event(), []

    def work() -> str:
        began.set()
        time.sleep(0.2)  # longer than it takes to cancel everything
        done.append(store.get_task("t"))
        return "done"

    async def background() -> None:
        async with store.aio.task("t") as task:
            await task.step("work", work)

    async def main() -> None:
        running = asyncio.ensure_future(background())
        assert await asyncio.to_thread(began.wait, 10)
        assert not running.done()

    asyncio.run(main())
    assert done[0] is not None
    assert done[0].owner is not None  # still held while it ran
    view = store.get_task("t")
    assert view is not None
    assert (view.status, view.steps[0].result) == ("open", "done")


def test_a_task_cannot_be_left_inside_one_of_its_steps(store: Store) -> None:
    with store.task("t") as task:
        with pytest.raises(StepFailed, match="it would wait for itself"):
            task.step("leave", task.__exit__, None, None, None)
        assert task.step("after", len, "x") == 1


# -- replan ------------------------------------------------------------------------------------------


def test_a_new_item_with_the_name_of_a_finished_one_is_done(store: Store) -> None:
    ran: list[int] = []
    with store.task("t") as task:
        task.make_plan([{"name": "search", "q": 1}, {"name": "search", "q": 2}])
        for item in task.remaining():
            task.step(item, lambda item: ran.append(item["q"]), item)
            if len(ran) == 1:
                task.replan([{"name": "search", "q": 3}])
        assert task.plan == [{"name": "search", "q": 1}, {"name": "search", "q": 3}]
    assert ran == [1, 3]


def test_an_item_in_doubt_is_still_in_doubt_in_the_new_plan(store: Store) -> None:
    paid: list[str] = []

    @holdfast.step(once=True)
    def pay(item: dict[str, str]) -> None:
        paid.append(item["to"])
        raise OSError

    plan = [{"name": "pay", "to": "A"}, {"name": "pay", "to": "B"}]
    with store.task("t") as task:
        task.make_plan(plan)
        with pytest.raises(StepInDoubt):
            task.step(plan[1], pay, plan[1])
        assert task.replan([plan[1]]) == [plan[1]]
        for item in task.remaining():
            with pytest.raises(StepInDoubt):
                task.step(item, pay, item)
    assert paid == ["B"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("what", ["replan", "decide", "append"])
def test_what_failed_and_was_repeated_is_there_once_after_a_resume(what: str) -> None:
    backend, calls = FaultyBackend(MemoryBackend(), seed=1), []

    def once_more(task: holdfast.Task) -> None:
        def plan() -> list[str]:
            calls.append(1)
            return ["b"]

        while True:
            try:
                if what == "replan":
                    task.replan(plan)
                elif what == "decide":
                    task.decide("A")
                else:
                    task.conversation("c").append({"role": "user", "content": "A"})
                return
            except Unavailable:
                continue

    with holdfast.open(backend) as store:
        with store.task("t") as task:
            task.make_plan(["a"])
            store.conversation("c").append({"role": "user", "content": "before"})
            backend.next("unavailable")
            once_more(task)
            assert backend.injected["unavailable"] == 1
        with store.task("t") as task:
            before = len(calls)
            once_more(task)
            assert len(calls) == before
            assert len(task.view().decisions) == (what == "decide")
            assert len(store.conversation("c")) == 1 + (what == "append")


# -- doubt -------------------------------------------------------------------------------------------


def test_what_somebody_settles_while_the_check_is_asked_is_not_run(store: Store) -> None:
    ran: list[int] = []

    def check() -> None:
        store.resolve("t", "pay", result="by hand")

    @holdfast.step(check=check)
    def pay() -> str:
        ran.append(1)
        raise OSError

    with pytest.raises(StepFailed), store.task("t"):
        pay()
    with store.task("t"):
        assert pay() == "by hand"
    assert ran == [1]


def test_no_other_arguments_get_past_a_step_in_doubt(store: Store) -> None:
    paid: list[int] = []

    @holdfast.step(once=True)
    def pay(nonce: int) -> None:
        paid.append(nonce)
        raise OSError

    with pytest.raises(StepInDoubt), store.task("t"):
        pay(1)
    with store.task("t"):
        for nonce in (2, 3, 4):
            with pytest.raises(ReplayMismatch):
                pay(nonce)
    assert paid == [1]


def test_a_killed_holders_step_can_be_settled_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    program = (
        "import os, sys, holdfast\n"
        "pay = holdfast.step(lambda: os.kill(os.getpid(), 9), once=True)\n"
        "with holdfast.open(sys.argv[1]) as store, store.task('t') as task: task.step('pay', pay)\n"
    )
    subprocess.run([sys.executable, "-c", program, path], check=False)
    with holdfast.open(path) as store:
        view = store.get_task("t")
        assert view is not None
        assert view.in_doubt == ["pay"]
        store.resolve("t", "pay", result="paid")
        with store.task("t", wait=0) as task:
            assert task.results() == {"pay": "paid"}


# -- progress and starts -----------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["done", "failed"])
def test_progress_of_a_step_with_new_arguments_begins_it_anew(store: Store, before: str) -> None:
    cut_off = [True]

    @holdfast.step(drift="rerun")
    def work(number: int) -> int:
        if number == 1 and before == "failed":
            raise ValueError("one")
        if number == 2 and cut_off:
            cut_off.clear()
            holdfast.current_step().save(5, flush=True)
            raise KeyboardInterrupt
        return number

    with store.task("t") as task:
        try:
            work(1)
        except StepFailed:
            pass
        task.step("after", len, "x")
    with pytest.raises(KeyboardInterrupt), store.task("t"):
        work(2)
    with store.task("t"):
        assert work(2) == 2


@pytest.mark.usefixtures("impatient")
def test_a_step_whose_end_could_not_be_stored_has_begun_all_the_same() -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)

    def program(task: holdfast.Task) -> list[int]:
        try:
            task.step("b", abs, 1)
        except Unavailable:
            pass
        return [task.step("b", abs, 2)]

    with holdfast.open(backend) as store:
        with store.task("t") as task:
            backend.next("unavailable")
            assert program(task) == [2]
            assert backend.injected["unavailable"] == 1
        with store.task("t") as task:
            assert program(task) == [2]


@pytest.mark.parametrize("engine", ["sqlite", "files"])
def test_a_task_that_another_process_has_deleted_is_begun_anew(engine: str, tmp_path: Path) -> None:
    url = str(tmp_path / "a.db") if engine == "sqlite" else f"file://{tmp_path}/files"
    with holdfast.open(url) as store, holdfast.open(url) as other:
        with store.task("t") as task:
            task.step("a", len, "x")
        assert other.task("t").delete()
        with store.task("t") as task:
            assert task.step("a", len, "xx") == 2
        with store.task("t") as task:
            assert other.task("t").delete()
            with pytest.raises(holdfast.LeaseLost):
                task.step("b", len, "x")
        assert store.get_task("t") is None  # nor did the former holder bring it back
