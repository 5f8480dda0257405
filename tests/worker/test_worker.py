"""Workers: what they run, what they leave alone, and how often they try."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from helpers.tasks.running_workers import PATIENCE_SECONDS, Watched, wait_until, working
from helpers.tasks.worker_tasks import outcomes, seen, simple
from holdfast import AsyncTask, Store, Task, testing
from holdfast.tasks.agents.declare import registered_agents
from holdfast.tasks.run.enter import MAX_CRASHES
from holdfast.worker.worker import ISOLATION_DEADLINE

# -- what is due -----------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_only_what_is_due_is_run(store: Store) -> None:
    simple()
    store.submit("simple", "now")
    store.submit("simple", "later", at=4_000_000_000)
    with store.task("left open", agent="simple"):
        pass
    assert outcomes(store) == [("now", "finished")]
    assert seen(store, "now").result == "DONE"
    assert [seen(store, name).status for name in ("later", "left open")] == ["pending", "pending"]
    assert store.run_due() == []


def test_a_worker_that_is_woken_does_not_wait_for_its_next_poll(store: Store) -> None:
    @holdfast.agent("woken")
    def woken(task: Task) -> str:
        return "done"

    with working(store, poll=3600) as beside:
        store.submit("woken", "w-1")
        beside.worker.wake()
        beside.reports.wait_for("w-1", "finished")


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
        assert store.run_due() == []
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
    assert store.run_due() == []
    clock.advance(2)
    assert outcomes(store) == [("t", "finished")]


def test_recover_runs_no_more_than_it_is_told(store: Store) -> None:
    simple()
    for number in range(5):
        store.submit("simple", f"t{number}")
    assert len(store.run_due(limit=2)) == 2
    assert len(store.run_due()) == 3


@pytest.mark.every_engine
def test_recover_can_be_awaited(store: Store) -> None:
    simple()
    store.submit("simple", "t")
    [ran] = asyncio.run(store.aio.run_due())
    assert (ran.id, ran.agent, ran.status, ran.error) == ("t", "simple", "finished", None)


# -- failures --------------------------------------------------------------------------------------


def test_what_fails_is_tried_again_ever_later_and_then_left_to_people(
    store: Store, clock: testing.FakeClock
) -> None:
    runs = []

    @holdfast.agent("failing", max_attempts=4)
    def failing(task: Task) -> None:
        runs.append(clock.now())
        raise ValueError("no")

    store.submit("failing", "t")
    pauses = []
    for _ in range(3):
        [ran] = store.run_due()
        assert (ran.status, ran.error) == ("retrying", "ValueError")
        assert [info.id for info in store.tasks(status="retrying")] == ["t"]
        assert list(store.tasks(status="failed")) == []
        assert store.run_due() == []
        due = seen(store).due_at
        assert due is not None
        pauses.append(due.timestamp() - clock.now())
        clock.advance(pauses[-1] + 0.001)
    assert outcomes(store) == [("t", "failed")]
    assert list(store.tasks(status="retrying")) == []
    assert [(info.id, info.due_at) for info in store.tasks(status="failed")] == [("t", None)]
    assert (seen(store).status, seen(store).due_at) == ("failed", None)
    clock.advance(100_000)
    assert store.run_due() == []
    assert len(runs) == 4
    assert [int(pause) in (1 * 2**n, 1 * 2**n + 1) for n, pause in enumerate(pauses)] == [
        True
    ] * 3, pauses


def test_a_failed_task_that_is_submitted_again_has_all_its_attempts_again(
    store: Store, clock: testing.FakeClock
) -> None:
    @holdfast.agent("failing", max_attempts=2)
    def failing(task: Task) -> None:
        raise ValueError("no")

    store.submit("failing", "t")
    for _ in range(2):
        for status in ("retrying", "failed"):
            assert outcomes(store) == [("t", status)]
            clock.advance(10)
        assert store.run_due() == []
        assert store.submit("failing", "t") is False


@pytest.mark.parametrize("how", ["signal", "resolve", "submit"])
def test_what_was_given_up_is_pending_again_in_the_view_and_in_lists(
    store: Store, how: str
) -> None:
    @holdfast.agent("failing", max_attempts=1)
    def failing(task: Task) -> None:
        with contextlib.suppress(holdfast.StepFailed):
            task.step("pay", int, "no")
        raise ValueError

    store.submit("failing", "t")
    assert outcomes(store) == [("t", "failed")]
    if how == "signal":
        store.signal("t", "paid")
    elif how == "resolve":
        store.resolve("t", "pay", retry=True)
    else:
        store.submit("failing", "t")
    [info] = store.tasks(status="pending")
    assert (info.status, info.due_at is not None, seen(store).status) == (
        "pending",
        True,
        "pending",
    )
    assert list(store.tasks(status="failed")) == []


def test_failures_count_only_while_a_task_gets_no_further(
    store: Store, clock: testing.FakeClock
) -> None:
    @holdfast.agent("slow", max_attempts=2)
    def slow(task: Task) -> str:
        for number in range(5):
            ran: list[int] = []
            task.step(f"step {number}", ran.append, number)
            if ran:
                raise ConnectionError  # after each step that is new
        return "done"

    store.submit("slow", "t")
    statuses: list[str] = []
    while not statuses or statuses[-1] == "retrying":
        statuses += [ran.status for ran in store.run_due()]
        clock.advance(10)
    assert statuses == ["retrying"] * 5 + ["finished"]


def test_a_step_in_doubt_is_left_to_people_however_it_got_there(
    store: Store, clock: testing.FakeClock
) -> None:
    @holdfast.step(once=True)
    def pay() -> None:
        sys.exit(3)

    @holdfast.agent("leaving", max_attempts=5)
    def leaving(task: Task) -> None:
        pay()

    store.submit("leaving", "t")
    with pytest.raises(SystemExit):
        store.run_due()
    clock.advance(100)
    assert [ran.error for ran in store.run_due(limit=3)] == ["StepInDoubt"]
    clock.advance(100)
    assert store.run_due() == []
    assert seen(store).in_doubt == ["pay"]


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
        worker.reports.wait_until(
            lambda said: {ran.id for ran in said if ran.error == "SystemExit"} == {"a", "b"}
        )
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
        store.run_due()
    assert sum(seen(store, f"t{number}").runs for number in range(3)) == 1


# -- crashes ---------------------------------------------------------------------------------------


KILLER = """
import os, sys, holdfast

@holdfast.agent("killer")
def killer(task):
    if sys.argv[2] == "die":
        os.kill(os.getpid(), 9)
    return "alive"

with holdfast.open(sys.argv[1], key=os.environ.get('HOLDFAST_KEY'), durability="process") as store:
    print(*(ran.status for ran in store.run_due()))
"""


def killer(url: str, what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLER, url, what],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.every_engine
@pytest.mark.long("files", "redis", "dynamodb", "s3", "sqlite-encrypted")
def test_what_keeps_killing_its_process_is_parked_until_it_is_submitted_again(
    durable_url: str,
) -> None:
    with holdfast.open(durable_url, durability="process") as store:
        store.submit("killer", "t")
        for crashes in range(MAX_CRASHES):
            assert killer(durable_url, "die").returncode == -signal.SIGKILL
            view = seen(store)
            assert (view.status, view.abandoned, view.crashes) == ("running", True, crashes)
        parked = killer(durable_url, "die")
        assert (parked.returncode, parked.stdout) == (0, "stuck\n")
        view = seen(store)
        assert (view.status, view.due_at, view.owner, view.crashes) == (
            "stuck",
            None,
            None,
            MAX_CRASHES,
        )
        assert view.error is not None
        assert f"died {MAX_CRASHES} times" in view.error.message
        assert killer(durable_url, "die").stdout == "\n"
        store.submit("killer", "t")
        view = seen(store)
        assert (view.status, view.crashes) == ("pending", 0)
        assert killer(durable_url, "live").stdout == "finished\n"


def die(store: Store, **where: Any) -> None:
    with testing.crash(**where):
        store.run_due()


def test_deaths_count_only_while_a_task_gets_no_further(store: Store) -> None:
    @holdfast.agent("steps")
    def steps(task: Task) -> str:
        for number in range(MAX_CRASHES + 2):
            task.step(f"step {number}", str)
        return "done"

    store.submit("steps", "t")
    for number in range(MAX_CRASHES + 2):
        die(store, after=f"step {number}")
    assert outcomes(store) == [("t", "finished")]


def test_progress_that_was_saved_is_getting_further(store: Store) -> None:
    def collect() -> int:
        step = holdfast.current_step()
        for page in range(step.cursor or 0, MAX_CRASHES + 2):
            step.save(page + 1, flush=True)
        return MAX_CRASHES + 2

    @holdfast.agent("pages")
    def pages(task: Task) -> int:
        return task.step("collect", collect)

    store.submit("pages", "t")
    for _ in range(MAX_CRASHES + 1):
        die(store, write=1)
    assert outcomes(store) == [("t", "finished")]


def test_progress_that_is_saved_again_is_none(store: Store) -> None:
    def collect() -> None:
        holdfast.current_step().save("at the beginning", flush=True)

    @holdfast.agent("pages")
    def pages(task: Task) -> None:
        task.step("collect", collect)

    store.submit("pages", "t")
    for _ in range(MAX_CRASHES):
        die(store, write=1)
    assert outcomes(store) == [("t", "stuck")]


def test_a_parent_is_not_given_up_while_its_child_gets_further(store: Store) -> None:
    @holdfast.agent("child")
    def child(task: Task) -> str:
        for number in range(MAX_CRASHES + 2):
            task.step(f"step {number}", str)
        return "done"

    @holdfast.agent("parent")
    def parent(task: Task) -> str:
        return str(task.run_child("child", "c"))

    store.submit("parent", "p")
    for number in range(MAX_CRASHES + 2):
        die(store, after=f"step {number}")
    assert ("p", "finished") in outcomes(store)
    assert seen(store, "p").result == "done"


def test_a_child_that_kills_is_given_up_and_so_is_its_parent(store: Store) -> None:
    @holdfast.agent("child")
    def child(task: Task) -> None:
        task.step("deadly", str)

    @holdfast.agent("parent", max_attempts=1)
    def parent(task: Task) -> Any:
        return task.run_child("child", "c")

    store.submit("parent", "p")
    for _ in range(MAX_CRASHES):
        die(store, before="deadly")
    store.run_due()
    assert seen(store, "c").status == "stuck"
    view = seen(store, "p")
    assert view.status == "failed"
    assert view.error is not None
    assert view.error.type == "ChildFailed"


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
            assert self._changed.wait_for(lambda: set(ids) <= self.inside, PATIENCE_SECONDS), (
                self.inside
            )


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


def suspects(
    store: Store, meeting: Meeting, *names: str, waits: bool = False
) -> Callable[[], None]:
    """Tasks whose runs have died twice, and live from now on; nobody runs them until what is
    returned was called."""

    @holdfast.agent("suspect")
    def suspect(task: Task) -> None:
        task.step("deadly", meeting.visit, task.id, waits)

    @holdfast.agent("busy")
    def busy(task: Task) -> None:
        task.step("work", meeting.visit, task.id)

    for name in names:
        store.submit("suspect", name)
        for _ in range(2):
            with testing.crash(before="deadly"):
                store.run("suspect", name)
    del registered_agents["suspect"]
    return lambda: registered_agents.update(suspect=suspect)


def test_a_task_that_may_kill_the_process_is_begun_when_nothing_else_runs(
    store: Store, meeting: Meeting, clock: testing.FakeClock
) -> None:
    let_go = suspects(store, meeting, "s1", "s2")
    clock.advance(31)  # the leases of the dead runs are over
    store.submit("busy", "b1")
    with working(store, concurrency=8) as worker:
        meeting.wait_for("b1")
        let_go()
        for name in ("b2", "b3"):  # looked for after that, and so were the suspects
            store.submit("busy", name)
            meeting.wait_for(name)
        meeting.may_go.set()
        for name in ("b1", "b2", "b3", "s1", "s2"):
            worker.reports.wait_for(name, "finished")
    assert meeting.met == set(map(frozenset, (("b1", "b2"), ("b1", "b3"), ("b2", "b3"))))


def test_while_a_task_runs_that_may_kill_the_process_nothing_else_is_begun(
    watched: Watched, watched_store: Store, meeting: Meeting
) -> None:
    suspects(watched_store, meeting, "s", waits=True)()
    with working(watched_store, concurrency=8) as worker:
        meeting.wait_for("s")
        watched_store.submit("busy", "b")
        looks = watched.counts["due"]
        wait_until(lambda: watched.counts["due"] > looks + 2)
        assert {ran.id for ran in worker.reports.all} == {"s"}
        meeting.may_go.set()
        worker.reports.wait_for("b", "finished")
    assert meeting.met == set()


def test_a_task_that_may_kill_the_process_does_not_wait_for_ever(
    store: Store, meeting: Meeting, clock: testing.FakeClock
) -> None:
    let_go = suspects(store, meeting, "s")
    store.submit("busy", "b")
    with working(store, concurrency=8) as worker:
        meeting.wait_for("b")
        let_go()
        clock.advance(30 + ISOLATION_DEADLINE + 1)  # counted from the end of the lease
        worker.reports.wait_for("s", "finished")
        meeting.may_go.set()
        worker.reports.wait_for("b", "finished")
    assert meeting.met == {frozenset(("b", "s"))}


@pytest.mark.slow
def test_a_worker_lists_due_tasks_seldom_and_keeps_its_threads(
    watched: Watched, watched_store: Store
) -> None:
    threads: set[int] = set()

    @holdfast.agent("counter")
    def count(task: Task) -> int:
        threads.add(threading.get_ident())
        return task.step("one", lambda: 1)

    for number in range(60):
        watched_store.submit("counter", f"task {number}")
    watched.counts.clear()
    with working(watched_store, concurrency=4, poll=60.0) as beside:
        beside.reports.wait_until(lambda said: sum(ran.status == "finished" for ran in said) == 60)
    assert watched.counts["due"] <= 15
    assert len(threads) <= 4


def test_running_what_is_due_lists_it_seldom(watched: Watched, watched_store: Store) -> None:
    @holdfast.agent("counter")
    def count(task: Task) -> int:
        return task.step("one", lambda: 1)

    for number in range(60):
        watched_store.submit("counter", f"task {number}")
    watched.counts.clear()
    assert len(watched_store.run_due()) == 60
    assert watched.counts["due"] <= 15
    assert watched.counts["head"] <= 60 + 15
