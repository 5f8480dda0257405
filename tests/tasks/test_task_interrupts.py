"""Interrupts at every instant of a task's block: of entering it, of its steps, and of leaving it.

Afterwards the process goes on as if nothing had been: no task is open, and the interrupted one can
be entered at once, here and in another process, long before its lease would end.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import random
import secrets
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from types import coroutine
from typing import Any

import apsw
import pytest

import holdfast
from helpers.example_counts import LONG, examples
from helpers.interrupts import (
    LEAVE_GENERATOR,
    Interrupts,
    Place,
    count_phases,
    list_instants,
    list_places,
)
from helpers.programs import program
from helpers.tasks.other_process import OtherProcess
from holdfast import StepInDoubt, Store, Task
from holdfast.errors import NoTask

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ignore_lost_interrupts")]

LEASE = 3600.0
PHASES = {"entering", "stepping", "leaving"}


class Payments:
    """Something that must happen once for each task."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

    def make(self, id: str) -> str:
        self.made[id] += 1
        return "paid"

    async def make_async(self, id: str) -> str:
        await asyncio.sleep(0)
        return self.make(id)


class Stores:
    """A store, and others that enter the same tasks: another process, or a second store object if
    the store ends with this process."""

    def __init__(self, url: str, store: Store, second: Store, other: OtherProcess | None) -> None:
        self.url, self.store, self._second, self._other = url, store, second, other
        self.payments, self._judged = Payments(), 0

    def work(self, id: str, at: Interrupts | None = None, *, ends: bool = False) -> None:
        """A task with an ordinary step and one that may happen only once."""
        at = at or Interrupts()
        at.phase = "entering"
        with self.store.task(id, lease=LEASE, wait=0) as task:
            at.phase = "stepping"
            task.step("count", len, id)
            task.step("pay", holdfast.step(self.payments.make, once=True), id)
            if ends:
                task.finish("done")
            at.phase = "leaving"
        at.phase = "left"

    def work_long(self, id: str, at: Interrupts | None = None, *, ends: bool = True) -> None:
        """A task that does all that a task can do in a block."""
        at = at or Interrupts()
        at.phase = "entering"
        with self.store.task(id, lease=LEASE, wait=0) as task:
            at.phase = "stepping"
            task.make_plan(["count"])
            task.step("count", len, id)
            task.step("pay", holdfast.step(self.payments.make, once=True), id)
            task.decide("go on", why="it was paid")
            for _ in task.step("stream", _count, 3):
                break
            task.map("map", len, ["a", "bb"])
            with task.conversation().turn(lease=LEASE, wait=0) as chat:
                chat.append({"role": "user", "content": "hello"})
            if ends:
                at.phase = "finishing"
                task.finish("done")
            at.phase = "leaving"
        at.phase = "left"

    async def work_async(self, id: str, at: Any = None, *, ends: bool = False) -> None:
        at = at or Interrupts()
        at.phase = "entering"
        async with self.store.aio.task(id, lease=LEASE, wait=0) as task:
            at.phase = "stepping"
            await task.step("count", len, id)
            await task.step("pay", holdfast.step(self.payments.make_async, once=True), id)
            if ends:
                await task.finish("done")
            at.phase = "leaving"
        at.phase = "left"

    def judge(self, id: str, work: Callable[..., object]) -> None:
        """See that the process goes on, and that the task can be entered and resumed at once."""
        with pytest.raises(NoTask):
            holdfast.current_task()
        assert_unlocked(self.url)
        self._judged += 1
        if self._judged % 2:  # the other times this process enters it first
            self.enter_elsewhere(id)
        view = self.store.get_task(id)
        while view is None or view.status != "finished":
            try:
                work(id, ends=True)
            except StepInDoubt as doubt:
                # What an operator does who looks at the payments.
                if self.payments.made[id]:
                    self.store.resolve(id, doubt.step, result="paid")
                else:
                    self.store.resolve(id, doubt.step, retry=True)
            view = self.store.get_task(id)
        if self._judged % 2 == 0:
            self.enter_elsewhere(id)
        assert self.payments.made[id] == 1

    def enter_elsewhere(self, id: str) -> None:
        if self._other is not None:
            self._other.enter(id)
        else:
            with self._second.task(id, wait=30):
                pass


def assert_unlocked(url: str) -> None:
    """See that this process left no lock on the files: other processes would wait for it."""
    if url.startswith("memory:"):
        return
    database = url
    if url.startswith("file:"):
        root = Path(url.removeprefix("file://"))
        with open(root / "lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the other process may be writing
        database = str(root / "index.db")
    # With the library that has it open: another one would drop its locks by closing the file.
    connection = apsw.Connection(database, flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(30_000)
    connection.execute("BEGIN IMMEDIATE").close()
    connection.close()


def _count(number: int) -> Iterator[int]:
    yield from range(number)


@contextmanager
def opened(url: str) -> Iterator[Stores]:
    before = set(threading.enumerate())
    url = f"memory://{secrets.token_hex(8)}" if url == "memory://" else url
    with ExitStack() as stack:
        store = stack.enter_context(holdfast.open(url))
        second = stack.enter_context(holdfast.open(url))
        in_memory = url.startswith("memory:")
        other = None if in_memory else stack.enter_context(OtherProcess(url))
        yield Stores(url, store, second, other)
    for thread in set(threading.enumerate()) - before:
        if thread.ident is None:
            continue  # it never started: `Thread.start` was interrupted
        thread.join(30)
        assert not thread.is_alive(), f"{thread.name} was left behind"


@pytest.fixture(params=["memory://", "sqlite", "files"])
def stores(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Stores]:
    kind = request.param
    url = {"sqlite": str(tmp_path / "agents.db"), "files": f"file://{tmp_path}/agents"}
    with opened(url.get(kind, kind)) as found:
        yield found


@pytest.fixture
def local_stores(local_url: str) -> Iterator[Stores]:
    with opened(local_url) as found:
        yield found


def sweep(
    stores: Stores,
    work: Callable[..., object],
    run: Callable[[Any], Any] = lambda done: done,
    within: str = "",
) -> Counter[str]:
    """Interrupt the work once at each place in these modules, and judge each time."""
    run(work("warm"))
    hits: list[Place] = []
    for number, place in enumerate(list_places(lambda at: run(work("listed", at)))):
        if within not in str(place):
            continue
        at, name = Interrupts(place), f"interrupted-{number}"
        at.run(lambda at: run(work(name, at)))  # noqa: B023  it is called at once
        hits += [] if at.hit is None else [at.hit]
        try:
            stores.judge(name, lambda *args, **options: run(work(*args, **options)))
        except BaseException as error:
            raise AssertionError(f"interrupted in {at.hit}") from error
    phases = count_phases(hits)
    print(f"interrupts: {dict(phases)}")
    return phases


# -- every instant ---------------------------------------------------------------------------------


def test_a_task_interrupted_at_any_instant_can_be_resumed_at_once(stores: Stores) -> None:
    # What is above the backends is the same on files, which take longest.
    within = "backends/" if stores.url.startswith("file:") and not LONG else ""
    assert set(sweep(stores, stores.work, within=within)) >= PHASES


def test_an_async_task_interrupted_at_any_instant_can_be_resumed_at_once(stores: Stores) -> None:
    # Its backends work in threads, which no signal interrupts.
    within = "" if stores.url.startswith("memory:") or LONG else "committer"
    assert set(sweep(stores, stores.work_async, asyncio.run, within)) >= PHASES


def test_an_interrupt_of_a_context_manager_leaves_no_lock(tmp_path: Path) -> None:
    """Its traceback may keep a generator of ours, and what that holds, for long."""
    hits = 0
    with opened(f"file://{tmp_path}/agents") as stores:  # SQLite has no such context managers
        stores.work_long("warm")
        instants = list_instants(lambda at: stores.work_long("listed", at))
        for number, instant in enumerate(chain.from_iterable(instants.values())):
            if instant[0].code is not LEAVE_GENERATOR:
                continue
            at = Interrupts(*instant)
            at.run(lambda at: stores.work_long(f"interrupted-{number}", at))  # noqa: B023
            hits += at.hit is not None
            assert_unlocked(stores.url)
    assert hits > 100


@coroutine
def cancel_at(
    number: int, working: Coroutine[Any, Any, None], seen: list[int]
) -> Generator[Any, Any, None]:
    """Await something, and cancel it where it waits for the nth time."""
    resume: Callable[[Any], Any] = working.send
    value: Any = None
    while True:
        try:
            waiting = resume(value)
        except StopIteration:
            return
        seen[0] += 1
        if seen[0] == number:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
        try:
            resume, value = working.send, (yield waiting)
        except BaseException as error:
            resume, value = working.throw, error


def test_an_async_task_cancelled_where_it_waits_can_be_resumed_at_once(stores: Stores) -> None:
    asyncio.run(stores.work_async("warm"))
    number, phases = 0, list[str]()
    while True:
        number += 1
        name, at, seen = f"cancelled-{number}", Interrupts(), [0]

        async def main() -> bool:
            async def work() -> None:
                await cancel_at(number, stores.work_async(name, at), seen)  # noqa: B023

            try:
                await asyncio.ensure_future(work())
            except asyncio.CancelledError:
                return True
            return False

        cancelled = asyncio.run(main())
        if seen[0] < number:
            break
        assert cancelled
        phases.append(at.phase)
        stores.judge(
            name, lambda *args, **options: asyncio.run(stores.work_async(*args, **options))
        )
    assert set(phases) >= PHASES


# -- random instants -------------------------------------------------------------------------------


@pytest.mark.timeout(0 if LONG else 600)
def test_tasks_interrupted_at_random_instants_can_be_resumed_at_once(
    local_stores: Stores, request: pytest.FixtureRequest
) -> None:
    stores = local_stores
    seed = os.environ.get("HOLDFAST_SEED") or secrets.token_hex(4)
    choose = random.Random(f"{seed} {request.node.name}")
    stores.work_long("warm")
    instants = list_instants(lambda at: stores.work_long("listed", at))
    hits: list[Place] = []
    tries = examples(250)
    for number in range(tries):
        phase = choose.choice(["entering", "stepping", "stepping", "finishing", "leaving"])
        at, name = Interrupts(*choose.choice(instants[phase])), f"interrupted-{number}"
        at.run(lambda at: stores.work_long(name, at))  # noqa: B023  it is called at once
        hits += [] if at.hit is None else [at.hit]
        try:
            stores.judge(name, stores.work_long)
        except BaseException as error:
            raise AssertionError(f"HOLDFAST_SEED={seed}, interrupted in {at.hit}") from error
    print(f"HOLDFAST_SEED={seed}, interrupts: {dict(count_phases(hits))}")
    assert set(count_phases(hits)) >= {*PHASES, "finishing"}
    assert len(hits) > 0.9 * tries


def test_tasks_interrupted_by_real_signals_can_be_resumed_at_once(local_stores: Stores) -> None:
    """The signals come when they come, also inside of the system and of Python's own modules."""
    stores, hits, slower = local_stores, Counter[str](), 0.0
    seed = os.environ.get("HOLDFAST_SEED") or secrets.token_hex(4)
    choose = random.Random(seed)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(examples(200)):
            at, name = Interrupts(), f"interrupted-{number}"
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, choose.uniform(0.00001, 0.002 + slower))
                    stores.work_long(name, at)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                slower = 0.0
            except KeyboardInterrupt:
                hits[at.phase] += 1
                slower += 0.001  # the machine is slow: later phases must be hit, too
            except (
                RuntimeError
            ) as error:  # Python's threads turn an interrupt of their start into it
                assert "release unlocked lock" in str(error)
            stores.judge(name, stores.work_long)
    finally:
        signal.signal(signal.SIGALRM, before)
    print(f"HOLDFAST_SEED={seed}, signals: {dict(hits)}")
    assert hits["entering"] and hits["stepping"]


# -- special instants ------------------------------------------------------------------------------


def find_exit(stores: Stores) -> Place:
    """The first instruction of `__exit__`. If it is interrupted there, none of its code runs."""
    stores.work("warm")
    found = list_places(lambda at: stores.work("listed", at))
    return next(place for place in found if place[:2] == ("leaving", Task.__exit__.__code__))


def test_a_block_whose_exit_never_ran_is_left(stores: Stores) -> None:
    at = Interrupts(find_exit(stores))
    assert at.run(lambda at: stores.work("t", at))
    stores.enter_elsewhere("t")
    left, *_ = [
        event for event in stores.store.task("t").history() if event.type == "task.released"
    ]
    assert left.data["why"] == "KeyboardInterrupt"
    stores.judge("t", stores.work)


def test_a_block_whose_exit_never_ran_is_entered_at_once_while_its_traceback_is_there(
    stores: Stores,
) -> None:
    def work(at: Interrupts) -> None:
        try:
            stores.work("t", at)
        except KeyboardInterrupt:  # whose traceback refers to all that was interrupted
            with pytest.raises(NoTask):
                holdfast.current_task()
            stores.work("t", at)
            raise

    assert Interrupts(find_exit(stores)).run(work)
    stores.judge("t", stores.work)


def test_a_step_called_after_an_interrupted_exit_is_an_ordinary_call(stores: Stores) -> None:
    assert Interrupts(find_exit(stores)).run(lambda at: stores.work("t", at))
    assert holdfast.step(len)("four") == 4


def test_an_outer_task_goes_on_after_an_inner_one_was_interrupted(stores: Stores) -> None:
    place = find_exit(stores)
    with stores.store.task("outer") as outer:
        assert Interrupts(place).run(lambda at: stores.work("inner", at))
        assert holdfast.current_task() is outer
        assert outer.step("go on", len, "four") == 4
    stores.judge("inner", stores.work)


def test_sigterm_ends_the_process_if_its_handler_was_left_behind() -> None:
    ended = subprocess.run(
        program("helpers.tasks.other_process", function="end_by_sigterm"),
        capture_output=True,
        text=True,
    )
    assert (ended.stdout, ended.returncode) == ("interrupted\n", -signal.SIGTERM), ended.stderr


def test_a_task_in_an_exit_stack_is_released_when_the_stack_is_left(stores: Stores) -> None:
    with ExitStack() as stack:
        stack.enter_context(stores.store.task("t", lease=LEASE)).step("count", len, "t")
        with pytest.raises(holdfast.LeaseHeld):
            stores._second.task("t", wait=0).__enter__()
    with pytest.raises(NoTask):
        holdfast.current_task()
    stores.judge("t", stores.work)


def test_a_thread_interrupted_from_another_one_leaves_its_task(
    local_stores: Stores, ignore_lost_interrupts: None
) -> None:
    stores = local_stores
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    inside, seen = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            with stores.store.task("t", lease=LEASE) as task:
                inside.set()
                number = 0
                while True:
                    number += 1
                    task.step("count", abs, number)
        except KeyboardInterrupt as error:
            seen.append(error)

    for _ in range(examples(20)):
        inside.clear()
        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(30)
        for _ in range(6):  # CPython drops an exception that it raises in a destructor
            raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))
            thread.join(10)
            if not thread.is_alive():
                break
        assert not thread.is_alive()
        stores.enter_elsewhere("t")
    assert len(seen) == examples(20)
