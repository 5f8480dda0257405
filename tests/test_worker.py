"""Workers: what they run and what they leave alone, how often they try, how they stop, and what they ask of the engine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncTask, Store, Task, TaskView, testing
from holdfast._worker import FULL_LOOK, PAGE, PATIENCE, SKEW, _Look
from holdfast.backends.memory import MemoryBackend
from holdfast.tasks._agents import registered
from holdfast.tasks._shape import CRASHES
from workers import PATIENCE_SECONDS, Beside, Watched, working


@pytest.fixture(autouse=True)
def agents() -> Iterator[None]:
    """No agents but those that the test registers."""
    before = dict(registered)
    registered.clear()
    yield
    registered.clear()
    registered.update(before)


@pytest.fixture
def watched() -> Watched:
    return Watched(MemoryBackend())


@pytest.fixture
def watched_store(watched: Watched) -> Iterator[Store]:
    with holdfast.open(watched) as store:
        yield store


@pytest.fixture
def clock() -> Iterator[testing.FakeClock]:
    with testing.fake_clock() as clock:
        yield clock


def seen(store: Store, id: str = "t") -> TaskView:
    view = store.get_task(id)
    assert view is not None
    return view


def outcomes(store: Store) -> list[tuple[str, str]]:
    return [(ran.id, ran.status) for ran in store.recover()]


def simple(name: str = "simple") -> None:
    @holdfast.agent(name)
    def agent(task: Task) -> str:
        return task.step("work", str.upper, "done")


# -- what is due -----------------------------------------------------------------------------------------------------------


def test_only_what_is_due_is_run(store: Store) -> None:
    simple()
    store.submit("simple", "now")
    store.submit("simple", "later", at=4_000_000_000)
    with store.task("left open", agent="simple"):
        pass
    assert outcomes(store) == [("now", "finished")]
    assert seen(store, "now").result == "DONE"
    assert [seen(store, id).status for id in ("later", "left open")] == ["open", "open"]
    assert store.recover() == []


def test_tasks_of_agents_that_are_not_here_are_left_alone(store: Store) -> None:
    simple()
    store.submit("elsewhere", "theirs")
    store.submit("simple", "ours")
    before = seen(store, "theirs")
    assert outcomes(store) == [("ours", "finished")]
    assert seen(store, "theirs") == before


def test_a_task_that_is_worked_on_elsewhere_is_left_alone(store: Store) -> None:
    simple()
    with store.task("t", agent="simple"):
        assert store.recover() == []
        with working(store) as worker:
            store.submit("simple", "other")
            worker.reports.wait_for("other", "finished")
    assert [ran.id for ran in worker.reports.all] == ["other", "other"]


def test_a_time_that_has_come_is_found(store: Store, clock: testing.FakeClock) -> None:
    @holdfast.agent("sleeper")
    def sleeper(task: Task) -> str:
        task.sleep(3600)
        return "awake"

    store.submit("sleeper", "t")
    assert outcomes(store) == [("t", "suspended")]
    clock.advance(3599)
    assert store.recover() == []
    clock.advance(2)
    assert outcomes(store) == [("t", "finished")]


def test_recover_runs_no_more_than_it_is_told(store: Store) -> None:
    simple()
    for number in range(5):
        store.submit("simple", f"t{number}")
    assert len(store.recover(limit=2)) == 2
    assert len(store.recover()) == 3


def test_recover_can_be_awaited(store: Store) -> None:
    simple()
    store.submit("simple", "t")
    [ran] = asyncio.run(store.aio.recover())
    assert (ran.id, ran.agent, ran.status, ran.error) == ("t", "simple", "finished", None)


# -- failures --------------------------------------------------------------------------------------------------------------


def test_what_fails_is_tried_again_ever_later_and_then_left_to_people(store: Store, clock: testing.FakeClock) -> None:
    runs = []

    @holdfast.agent("failing", attempts=4)
    def failing(task: Task) -> None:
        runs.append(clock.now())
        raise ValueError("no")

    store.submit("failing", "t")
    pauses = []
    for _ in range(3):
        [ran] = store.recover()
        assert (ran.status, ran.error) == ("failed", "ValueError")
        assert store.recover() == []
        due = seen(store).due_at
        assert due is not None
        pauses.append(due.timestamp() - clock.now())
        clock.advance(pauses[-1] + 0.001)
    assert outcomes(store) == [("t", "failed")]
    assert seen(store).due_at is None
    clock.advance(100_000)
    assert store.recover() == []
    assert len(runs) == 4
    assert [int(pause) in (1 * 2**n, 1 * 2**n + 1) for n, pause in enumerate(pauses)] == [True] * 3, pauses


def test_a_failed_task_that_is_submitted_again_has_all_its_attempts_again(
    store: Store, clock: testing.FakeClock
) -> None:
    @holdfast.agent("failing", attempts=2)
    def failing(task: Task) -> None:
        raise ValueError("no")

    store.submit("failing", "t")
    for _ in range(2):
        for _ in range(2):
            assert outcomes(store) == [("t", "failed")]
            clock.advance(10)
        assert store.recover() == []
        assert store.submit("failing", "t") is False


def test_failures_count_only_while_a_task_gets_no_further(store: Store, clock: testing.FakeClock) -> None:
    @holdfast.agent("slow", attempts=2)
    def slow(task: Task) -> str:
        for number in range(6):
            if (
                task.step(
                    f"step {number}",
                    lambda: task.resumed,
                )
                is None
            ):
                raise AssertionError
            if len([step for step in task.view().steps if step.status == "completed"]) > task.view().runs:
                raise ConnectionError
        return "done"

    store.submit("slow", "t")
    statuses = []
    while not statuses or statuses[-1] == "failed":
        statuses += [ran.status for ran in store.recover()]
        clock.advance(10)
    assert statuses == ["failed"] * 5 + ["finished"]


def test_an_agent_that_ends_the_program_ends_its_run(store: Store) -> None:
    @holdfast.agent("leaving")
    def leaving(task: Task) -> None:
        sys.exit(3)

    @holdfast.agent("leaving too")
    async def leaving_too(task: AsyncTask) -> None:
        sys.exit(3)

    simple()
    store.submit("leaving", "a")
    store.submit("leaving too", "b")
    with working(store) as worker:
        for id in ("a", "b"):
            worker.reports.wait_until(lambda all, id=id: [r for r in all if r.id == id and r.error == "SystemExit"])
        store.submit("simple", "c")
        worker.reports.wait_for("c", "finished")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_ends_recover(store: Store, stop: type[BaseException]) -> None:
    @holdfast.agent("interrupted")
    def interrupted(task: Task) -> None:
        raise stop

    for number in range(3):
        store.submit("interrupted", f"t{number}")
    with pytest.raises(stop):
        store.recover()
    assert sum(seen(store, f"t{number}").runs for number in range(3)) == 1


# -- crashes ---------------------------------------------------------------------------------------------------------------

KILLER = """
import os, sys, holdfast

@holdfast.agent("killer")
def killer(task):
    if sys.argv[2] == "die":
        os.kill(os.getpid(), 9)
    return "alive"

with holdfast.open(sys.argv[1], durability="process") as store:
    print(*(ran.status for ran in store.recover()))
"""


def killer(url: str, what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLER, url, what], capture_output=True, text=True, timeout=60, check=False
    )


def test_what_keeps_killing_its_process_is_parked_until_it_is_submitted_again(durable_url: str) -> None:
    with holdfast.open(durable_url, durability="process") as store:
        store.submit("killer", "t")
        for crashes in range(CRASHES):
            assert killer(durable_url, "die").returncode == -signal.SIGKILL
            view = seen(store)
            assert (view.status, view.abandoned, view.crashes) == ("running", True, crashes)
        parked = killer(durable_url, "die")
        assert (parked.returncode, parked.stdout) == (0, "stuck\n")
        view = seen(store)
        assert (view.status, view.due_at, view.owner, view.crashes) == ("stuck", None, None, CRASHES)
        assert view.error is not None
        assert f"died {CRASHES} times" in view.error.message
        assert killer(durable_url, "die").stdout == "\n"
        store.submit("killer", "t")
        view = seen(store)
        assert (view.status, view.crashes) == ("open", 0)
        assert killer(durable_url, "live").stdout == "finished\n"


def die(store: Store, **where: Any) -> None:
    with testing.crash(**where):
        store.recover()


def test_deaths_count_only_while_a_task_gets_no_further(store: Store) -> None:
    @holdfast.agent("steps")
    def steps(task: Task) -> str:
        for number in range(CRASHES + 2):
            task.step(f"step {number}", str)
        return "done"

    store.submit("steps", "t")
    for number in range(CRASHES + 2):
        die(store, after=f"step {number}")
    assert outcomes(store) == [("t", "finished")]


def test_progress_that_was_saved_is_getting_further(store: Store) -> None:
    def collect() -> int:
        step = holdfast.current_step()
        for page in range(step.cursor or 0, CRASHES + 2):
            step.save(page + 1, flush=True)
        return CRASHES + 2

    @holdfast.agent("pages")
    def pages(task: Task) -> int:
        return task.step("collect", collect)

    store.submit("pages", "t")
    for _ in range(CRASHES + 1):
        die(store, at=1)
    assert outcomes(store) == [("t", "finished")]


def test_progress_that_is_saved_again_is_none(store: Store) -> None:
    def collect() -> None:
        holdfast.current_step().save("at the beginning", flush=True)

    @holdfast.agent("pages")
    def pages(task: Task) -> None:
        task.step("collect", collect)

    store.submit("pages", "t")
    for _ in range(CRASHES + 1):
        die(store, at=1)
    assert outcomes(store) == [("t", "stuck")]


def test_a_parent_is_not_given_up_while_its_child_gets_further(store: Store) -> None:
    @holdfast.agent("child")
    def child(task: Task) -> str:
        for number in range(CRASHES + 2):
            task.step(f"step {number}", str)
        return "done"

    @holdfast.agent("parent")
    def parent(task: Task) -> str:
        return str(task.child("child", "c"))

    store.submit("parent", "p")
    for number in range(CRASHES + 2):
        die(store, after=f"step {number}")
    assert ("p", "finished") in outcomes(store)
    assert seen(store, "p").result == "done"


def test_a_child_that_kills_is_given_up_and_so_is_its_parent(store: Store) -> None:
    @holdfast.agent("child")
    def child(task: Task) -> None:
        task.step("deadly", str)

    @holdfast.agent("parent", attempts=1)
    def parent(task: Task) -> Any:
        return task.child("child", "c")

    store.submit("parent", "p")
    for _ in range(CRASHES):
        die(store, before="deadly")
    store.recover()
    assert seen(store, "c").status == "stuck"
    view = seen(store, "p")
    assert view.status == "failed"
    assert view.error is not None
    assert view.error.type == "ChildFailed"


def suspects(store: Store, *ids: str) -> None:
    """Tasks whose runs have died twice, and that live from now on, alone or not: `entered` and `may_end` tell."""
    for id in ids:
        store.submit("suspect", id)
        for _ in range(2):
            with testing.crash(before="deadly"):
                store.run("suspect", id)


class Meeting:
    """Who is inside an agent at the same time."""

    def __init__(self) -> None:
        self.inside: set[str] = set()
        self.met: set[frozenset[str]] = set()
        self.may_go = threading.Event()
        self._changed = threading.Condition()

    def visit(self, id: str, waits: bool = True) -> None:
        with self._changed:
            self.inside.add(id)
            self.met |= {frozenset((id, other)) for other in self.inside if other != id}
            self._changed.notify_all()
        if waits:
            assert self.may_go.wait(PATIENCE_SECONDS)
        with self._changed:
            self.inside.remove(id)

    def wait_for(self, *ids: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(ids) <= self.inside, PATIENCE_SECONDS), self.inside


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


def suspect_agents(meeting: Meeting) -> None:
    @holdfast.agent("suspect")
    def suspect(task: Task) -> None:
        task.step("deadly", meeting.visit, task.id, False)

    @holdfast.agent("busy")
    def busy(task: Task) -> None:
        task.step("work", meeting.visit, task.id)


def test_a_task_that_may_kill_the_process_is_run_alone(store: Store, meeting: Meeting) -> None:
    suspect_agents(meeting)
    suspects(store, "s1", "s2")
    store.submit("busy", "b")
    with working(store, concurrency=4) as worker:
        meeting.wait_for("b")
        store.submit("busy", "b2")
        meeting.wait_for("b", "b2")  # looked for meanwhile, and the suspects were left
        assert {ran.id for ran in worker.reports.all} <= {"b", "b2", "s1", "s2"}
        meeting.may_go.set()
        for id in ("b", "b2", "s1", "s2"):
            worker.reports.wait_for(id, "finished")
    assert meeting.met == {frozenset(("b", "b2"))}


def test_a_suspect_does_not_wait_for_ever(store: Store, meeting: Meeting, clock: testing.FakeClock) -> None:
    suspect_agents(meeting)
    store.submit("busy", "b")
    suspects(store, "s")
    clock.advance(31)  # the lease of the dead run is over: it has been due since
    with working(store, concurrency=4) as worker:
        worker.reports.wait_until(lambda all: any(ran.id in "bs" for ran in all))
        if worker.reports.all[0].id == "b":
            meeting.wait_for("b")
            assert not [ran for ran in worker.reports.all if ran.id == "s"]
        clock.advance(PATIENCE + 1)
        worker.reports.wait_for("s", "finished")
        meeting.may_go.set()
        worker.reports.wait_for("b", "finished")
