"""Traps around work that still runs, is called again or is planned anew when a task is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast import StepFailed, StepInDoubt, Store
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import NoTask, ReplayMismatch, Unavailable
from holdfast.tasks.steps import failures


@pytest.fixture
def store() -> Store:
    return holdfast.open("memory://")


# -- what still runs when a block is left ----------------------------------------------------------


def test_a_step_that_still_runs_when_a_sibling_fails_is_ended_before_the_task_is_given_back(
    store: Store,
) -> None:
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
        assert go_on.wait(60)
        left.append("step")
        return "done"

    def run() -> None:
        with pytest.raises(ValueError, match="no"), store.task("t") as task:
            working = threading.Thread(target=task.step, args=("work", work))
            working.start()
            assert started.wait(60)
            raise ValueError("no")
        left.append("block")

    running = threading.Thread(target=run)
    running.start()
    assert started.wait(60)
    with pytest.raises(holdfast.LeaseHeld):
        store.task("t", wait=0).__enter__()
    go_on.set()
    running.join(60)
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
    program = (
        "import os, sys, holdfast; holdfast.open(sys.argv[1]).task('t').__enter__(); "
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.Popen([sys.executable, "-c", program, path])
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    try:
        with holdfast.open(path) as store, store.task("t", wait=0) as task:
            assert task.resumed
    finally:
        killed.wait()


def test_what_was_asked_for_in_threads_may_come_in_another_order_even_if_it_never_overlapped(
    store: Store,
) -> None:
    with store.task("t") as task:
        alone = threading.Thread(target=task.step, args=("work", str, "b"))
        alone.start()
        alone.join()
    with store.task("t") as task:
        assert [task.step("work", str, item) for item in ("a", "b")] == ["a", "b"]
        assert [step.path for step in task.view().steps] == ["work", "work#2"]


def test_a_former_lease_owner_says_nothing_more_in_its_conversation(store: Store) -> None:
    def takeover() -> None:
        with store.task("t", wait=5) as other:
            other.conversation("c").append({"role": "user", "content": "mine"})

    with pytest.raises(holdfast.errors.LeaseLost), store.task("t", lease=0.2) as task:
        chat = task.conversation("c")
        # as if this process had been stopped
        store._log.heartbeat.remove(task._require_session().lease.owner)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(takeover).result()
        chat.append({"role": "user", "content": "too late"})
    assert [message["content"] for message in store.conversation("c").messages()] == ["mine"]


# -- a step that is called again repeats nothing inside it -----------------------------------------


def test_what_was_finished_inside_a_step_is_not_repeated_when_it_is_called_again(
    store: Store,
) -> None:
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
    monkeypatch.setattr(failures, "retry_delay", lambda attempt: 0.0)
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

    @holdfast.step(max_attempts=2)
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
        assert go_on.wait(60)
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
        assert began.wait(60)
        threading.Timer(0.1, go_on.set).start()
        raise ValueError("no")
    looping.join(60)
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
    assert (view.status, view.steps[0].result) == ("pending", "done")


def test_a_task_cannot_be_left_inside_one_of_its_steps(store: Store) -> None:
    with store.task("t") as task:
        with pytest.raises(StepFailed, match="it would deadlock"):
            task.step("leave", task.__exit__, None, None, None)
        assert task.step("after", len, "x") == 1


# -- replan ----------------------------------------------------------------------------------------


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
            assert store.conversation("c").count() == 1 + (what == "append")


# -- doubt -----------------------------------------------------------------------------------------


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


def test_a_killed_lease_owners_step_can_be_resolved_at_once(tmp_path: Path) -> None:
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


# -- progress and starts ---------------------------------------------------------------------------


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
            with pytest.raises(holdfast.errors.LeaseLost):
                task.step("b", len, "x")
        assert store.get_task("t") is None  # nor did the former lease owner bring it back
