"""Workers: how they stop, what they report, several at once, and how often they look."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import holdfast
from helpers.example_counts import examples
from helpers.tasks.running_workers import PATIENCE_SECONDS, Reports, Watched, wait_until, working
from helpers.tasks.worker_tasks import outcomes, seen, simple
from holdfast import AsyncTask, Store, Task, testing
from holdfast.backends import Append, AppendResult, VersionMismatch
from holdfast.backends.memory import MemoryBackend
from holdfast.tasks.run.session import Session
from holdfast.worker import worker as _worker
from holdfast.worker.polling import CLOCK_SKEW_SECONDS, FULL_SCAN_SECONDS, PAGE_TASKS

# -- stopping --------------------------------------------------------------------------------------


class Gate:
    """A place inside an agent at which a test can wait for it, and hold it."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.passed = 0

    def go_through(self) -> int:
        self.passed += 1
        self.reached.set()
        assert self.open.wait(PATIENCE_SECONDS)
        return self.passed

    async def go_through_async(self) -> int:
        return await asyncio.to_thread(self.go_through)

    def wait(self) -> None:
        assert self.reached.wait(PATIENCE_SECONDS)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a run has been told to stop."""
    told, stop = threading.Event(), Session.stop

    def stop_and_tell(session: Session, why: str) -> None:
        stop(session, why)
        told.set()

    monkeypatch.setattr(Session, "stop", stop_and_tell)
    return told


def two_steps(gate: Gate, asynchronous: bool) -> list[str]:
    """An agent that is held in its first step; who ran its second one."""
    second: list[str] = []
    if asynchronous:

        @holdfast.agent("two")
        async def two_async(task: AsyncTask) -> str:
            await task.step("first", gate.go_through_async)
            await task.step("second", second.append, "ran")
            return "done"

    else:

        @holdfast.agent("two")
        def two(task: Task) -> str:
            task.step("first", gate.go_through)
            task.step("second", second.append, "ran")
            return "done"

    return second


@pytest.mark.every_engine
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_worker_that_is_stopped_ends_at_the_next_step_and_another_goes_on(
    store: Store, gate: Gate, stopped: threading.Event, asynchronous: bool
) -> None:
    second = two_steps(gate, asynchronous)
    store.submit("two", "t")
    with working(store) as first:
        gate.wait()
        first.worker.stop()
        store.submit("two", "not begun")
        assert stopped.wait(PATIENCE_SECONDS)
        gate.open.set()
        assert first.ended() == []
    view = seen(store)
    assert (view.status, view.owner, second) == ("pending", None, [])
    assert view.due_at is not None
    assert view.crashes == 0
    assert seen(store, "not begun").runs == 0
    assert first.reports.all[-1].status == "pending"
    with working(store) as other:
        other.reports.wait_for("t", "finished")
        other.reports.wait_for("not begun", "finished")
    assert gate.passed == 2, "a finished step was run again"


@pytest.mark.parametrize("mode", [{"once": True}, {"check": lambda: None}])
def test_a_step_that_must_not_be_done_twice_is_not_stopped_in_the_middle(
    store: Store, gate: Gate, stopped: threading.Event, mode: dict[str, Any]
) -> None:
    @holdfast.step(**mode)
    def pay() -> list[Any]:
        task = holdfast.current_task()
        assert isinstance(task, Task)
        return [task.step("hold", gate.go_through), task.step("book", str, "booked")]

    @holdfast.agent("paying")
    def paying(task: Task) -> Any:
        pay()
        return task.step("after", str)

    store.submit("paying", "t")
    with working(store) as worker:
        gate.wait()
        worker.worker.stop()
        assert stopped.wait(PATIENCE_SECONDS)
        gate.open.set()
        assert worker.ended() == []
    view = seen(store)
    assert (view.status, view.in_doubt) == ("pending", [])
    assert {step.path: step.status for step in view.steps}["pay"] == "completed"
    assert "after" not in [step.path for step in view.steps]


def test_children_stop_with_their_parent(
    store: Store, gate: Gate, stopped: threading.Event
) -> None:
    two_steps(gate, asynchronous=False)

    @holdfast.agent("parent")
    def parent(task: Task) -> Any:
        return task.run_child("two", "c")

    store.submit("parent", "p")
    with working(store) as worker:
        gate.wait()
        worker.worker.stop()
        assert stopped.wait(PATIENCE_SECONDS)
        gate.open.set()
        assert worker.ended() == []
    assert [(seen(store, name).status, seen(store, name).owner) for name in ("p", "c")] == [
        ("pending", None)
    ] * 2
    assert "second" not in [step.path for step in seen(store, "c").steps]
    store.run_due()
    assert [seen(store, name).status for name in ("p", "c")] == ["finished"] * 2


def test_a_step_that_is_longer_than_the_grace_is_left_with_its_progress(
    store: Store, gate: Gate
) -> None:
    def collect() -> None:
        holdfast.current_step().save({"page": 7}, done=7, total=9)
        gate.go_through()

    @holdfast.agent("long")
    def long(task: Task) -> None:
        task.step("collect", collect)

    store.submit("long", "t")
    with working(store, grace=0) as worker:
        gate.wait()
        assert worker.end() == ["t"]
        [step] = seen(store).steps
        assert step.progress is not None
        assert (step.progress.cursor, step.progress.done) == ({"page": 7}, 7)
        gate.open.set()
        worker.reports.wait_for(
            "t", "finished"
        )  # it was the last step: there is nothing left to stop
    assert outcomes(store) == []
    assert gate.passed == 1


class Refusing(Watched):
    """A backend that lets one task be submitted and not claimed, or refuses everything that is
    asked."""

    def __init__(self, refusal: holdfast.HoldfastError, *, task: str | None) -> None:
        super().__init__(MemoryBackend())
        self.refusal, self.task, self.refuses = refusal, task, False

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        if self.refuses and any(
            append.stream.id == self.task and append.expected for append in batch
        ):
            raise self.refusal
        return super().append(batch)

    def _call(self, name: str) -> None:
        super()._call(name)
        if self.refuses and self.task is None:
            self.counts["refused"] += 1
            raise self.refusal


@contextmanager
def run_beside(worker: holdfast.Worker) -> Iterator[Future[list[str]]]:
    """What `run` gives or raises; stopped at the end of the block in any case."""
    with ThreadPoolExecutor() as threads:
        running = threads.submit(worker.run)
        try:
            yield running
        finally:
            worker.stop()


REFUSALS = [
    holdfast.errors.AccessDenied("lacks INSERT"),
    holdfast.errors.ReadOnly("it is a standby"),
]


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_worker_that_may_not_claim_a_task_ends_with_the_error_when_others_have_stopped(
    gate: Gate,
    stopped: threading.Event,
    refusal: holdfast.HoldfastError,
    asynchronous: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_worker, "FAILOVER_SECONDS", -1.0)  # a standby is not waited for
    backend, reports = Refusing(refusal, task="refused"), Reports()
    second = two_steps(gate, asynchronous)
    with holdfast.open(backend) as store:
        store.submit("two", "t")
        with run_beside(holdfast.Worker(store, poll=0.01, report=reports)) as running:
            gate.wait()
            backend.refuses = True
            store.submit("two", "refused")
            assert stopped.wait(PATIENCE_SECONDS)
            assert not running.done()
            gate.open.set()
            with pytest.raises(type(refusal), match=str(refusal)):
                running.result(PATIENCE_SECONDS)
        view = seen(store)
        assert (view.status, view.owner, second) == ("pending", None, [])
        assert view.due_at is not None
    assert [(ran.id, ran.error) for ran in reports.all if ran.error] == [
        ("refused", type(refusal).__name__)
    ]


def test_a_worker_outlives_a_server_that_takes_no_writes_for_a_moment() -> None:
    backend = Refusing(holdfast.errors.ReadOnly("it is a standby"), task="refused")
    simple()
    with holdfast.open(backend) as store:
        store.submit("simple", "refused")
        backend.refuses = True
        with working(store) as worker:
            worker.reports.wait_for("refused", "pending")
            backend.refuses = False
            store.submit("simple", "t")
            worker.reports.wait_for("t", "finished")


def test_an_agent_that_may_not_do_something_elsewhere_does_not_end_the_worker(store: Store) -> None:
    @holdfast.agent("reaching", max_attempts=1)
    def reaching(task: Task) -> None:
        raise holdfast.errors.AccessDenied("to another store")

    simple()
    store.submit("reaching", "r")
    with working(store) as worker:
        worker.reports.wait_for("r", "failed")
        store.submit("simple", "t")
        worker.reports.wait_for("t", "finished")


@pytest.mark.parametrize("refusal", REFUSALS)
def test_recover_raises_what_keeps_it_from_claiming(refusal: holdfast.HoldfastError) -> None:
    backend = Refusing(refusal, task="t")
    simple()
    with holdfast.open(backend) as store:
        store.submit("simple", "t")
        backend.refuses = True
        with pytest.raises(type(refusal), match=str(refusal)):
            store.run_due()


def test_a_worker_that_is_not_let_in_any_more_ends() -> None:
    backend = Refusing(holdfast.errors.AccessDenied("another password"), task=None)
    with holdfast.open(backend) as store:
        simple()
        backend.refuses = True
        with run_beside(holdfast.Worker(store, poll=0.01)) as running:
            with pytest.raises(holdfast.errors.AccessDenied, match="another password"):
                running.result(PATIENCE_SECONDS)


def test_a_server_that_takes_no_writes_for_a_moment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Refusing(holdfast.errors.ReadOnly("it is a standby"), task=None)
    simple()
    with holdfast.open(backend) as store:
        store.submit("simple", "t")
        backend.refuses = True
        with working(store) as worker:
            wait_until(lambda: backend.counts["refused"] > 5)
            backend.refuses = False
            worker.reports.wait_for("t", "finished")
        monkeypatch.setattr(_worker, "FAILOVER_SECONDS", 0.05)
        backend.refuses = True
        with run_beside(holdfast.Worker(store, poll=0.01)) as running:
            with pytest.raises(holdfast.errors.ReadOnly, match="standby"):
                running.result(PATIENCE_SECONDS)


def test_a_worker_may_be_stopped_by_a_signal_handler(store: Store) -> None:
    """Also while the thread that runs it is inside the worker's own code: a lock there would be
    waited for for ever."""
    simple()
    before = signal.getsignal(signal.SIGALRM)
    try:
        for number in range(20):
            worker = holdfast.Worker(store, poll=0.01)
            signal.signal(signal.SIGALRM, lambda *_, worker=worker: worker.stop())
            signal.setitimer(signal.ITIMER_REAL, 0.001 + number / 1000)
            assert worker.run() == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- reports ---------------------------------------------------------------------------------------


def test_a_worker_reports_what_becomes_of_each_run(store: Store) -> None:
    @holdfast.agent("asking")
    def asking(task: Task) -> Any:
        return task.ask("payout", "May it be paid?", returns=bool)

    store.submit("asking", "t")
    with working(store) as worker:
        ran = worker.reports.wait_for("t", "suspended")
        assert (ran.agent, ran.error, ran.waits_for) == (
            "asking",
            None,
            ("the answer to 'payout'",),
        )
        store.answer("t", "payout", True)
        worker.reports.wait_for("t", "finished")
    assert [ran.status for ran in worker.reports.all] == [
        "running",
        "suspended",
        "running",
        "finished",
    ]
    assert [ran.seconds > 0 for ran in worker.reports.all] == [False, True, False, True]


def test_a_report_that_cannot_be_made_does_not_end_the_worker(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    simple()
    ended = threading.Event()

    def report(ran: holdfast.types.RunResult) -> None:
        if ran.status == "finished":
            ended.set()
        raise RuntimeError("nobody listens")

    for name in ("a", "b"):
        store.submit("simple", name)
        with working(store, report=report):
            assert ended.wait(PATIENCE_SECONDS)
        ended.clear()
        assert seen(store, name).status == "finished"
    assert "the report callback failed (RuntimeError)" in caplog.text


# -- several at once -------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_as_many_tasks_are_run_at_once_as_was_said(store: Store, asynchronous: bool) -> None:
    inside: list[str] = []
    barrier, most = threading.Barrier(3), []

    def meet(name: str) -> None:
        inside.append(name)
        most.append(len(inside))
        barrier.wait(PATIENCE_SECONDS)  # if there were fewer at once, nobody would get through
        inside.remove(name)

    if asynchronous:

        @holdfast.agent("meeting")
        async def meeting_async(task: AsyncTask) -> None:
            await asyncio.to_thread(meet, task.id)

    else:

        @holdfast.agent("meeting")
        def meeting(task: Task) -> None:
            meet(task.id)

    for number in range(6):
        store.submit("meeting", f"t{number}")
    with working(store, concurrency=3) as worker:
        for number in range(6):
            worker.reports.wait_for(f"t{number}", "finished")
    assert max(most) == 3


@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_two_workers_never_run_one_task_at_the_same_time(durable_url: str) -> None:
    inside: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    lock, wrong = threading.Lock(), []

    def work(name: str) -> None:
        with lock:
            runs[name] += 1

    @holdfast.agent("exclusive")
    def exclusive(task: Task) -> None:
        with lock:
            inside[task.id] += 1
            if inside[task.id] > 1:
                wrong.append(task.id)
        try:
            for number in range(3):
                task.step(f"step {number}", work, f"{task.id} {number}")
            task.wait_for("go")
        finally:
            with lock:
                inside[task.id] -= 1

    names = [f"t{number}" for number in range(40)]
    with holdfast.open(durable_url, durability="process") as one, holdfast.open(durable_url) as two:
        for name in names:
            one.submit("exclusive", name)
        reports = Reports()
        with (
            working(one, concurrency=8, report=reports),
            working(two, concurrency=8, report=reports),
        ):
            for name in names:
                two.signal(name, "go")  # perhaps while it runs
            for name in names:
                reports.wait_for(name, "finished")
        assert {seen(one, name).status for name in names} == {"finished"}
    assert wrong == []
    assert set(runs.values()) == {1}


# -- looking ---------------------------------------------------------------------------------------


def looked(watched: Watched, look: Callable[[], object]) -> Counter[str]:
    """What one look asks of the engine."""
    watched.counts.clear()
    look()
    return Counter(watched.counts)


def test_a_worker_goes_on_when_the_engine_comes_back(
    watched: Watched, watched_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    simple()
    watched_store.submit("simple", "t")
    watched.away = True
    with working(watched_store) as worker:
        wait_until(lambda: watched.counts["refused"] > 5)
        watched.away = False
        worker.reports.wait_for("t", "finished")
    said = [
        record
        for record in caplog.records
        if "cannot poll for due tasks (Unavailable)" in record.message
    ]
    assert len(said) == 1, "it is said once, not with each look"


def test_a_worker_of_a_closed_store_ends(watched_store: Store) -> None:
    simple()
    watched_store.close()
    with pytest.raises(holdfast.errors.StoreClosed):
        holdfast.Worker(watched_store).run()


def test_a_task_that_cannot_be_read_does_not_keep_others_from_being_run(
    watched: Watched, watched_store: Store, clock: testing.FakeClock
) -> None:
    simple()
    for name in ("damaged", "strange", "good"):
        watched_store.submit("simple", name)
    watched.damaged, watched.strange = "damaged", "strange"
    ran = {ran.id: ran.error for ran in watched_store.run_due()}
    assert ran == {"damaged": "CorruptRecord", "good": None}
    with working(watched_store) as worker:
        for number in range(3):
            watched_store.submit("simple", f"good {number}")
            worker.reports.wait_for(f"good {number}", "finished")
        assert sum(ran.id == "damaged" for ran in worker.reports.all) == 1, (
            "it is tried again and again"
        )
        watched.damaged = watched.strange = ""
        clock.advance(FULL_SCAN_SECONDS + 1)
        worker.reports.wait_for("damaged", "finished")
        worker.reports.wait_for("strange", "finished")


MANY = examples(1_000)


@pytest.mark.parametrize(("what", "many"), [("of others", MANY), ("expired", MANY // 5)])
def test_what_is_due_and_not_ours_is_not_read_with_each_look(
    watched: Watched, watched_store: Store, clock: testing.FakeClock, what: str, many: int
) -> None:
    simple()
    for number in range(many):
        if what == "of others":
            watched_store.submit("of others", f"theirs {number}")
        else:
            with watched_store.task(f"ended {number}", agent="simple", ttl=1) as task:
                task.finish(None)
    clock.advance(CLOCK_SKEW_SECONDS + 2)
    look = holdfast.Worker(watched_store)._scanner
    first = looked(watched, lambda: look.scan(4))
    pending = many if what == "of others" else 0  # listed once more, in case the clock was set back
    assert (first["listed"], first["read"]) == (many + pending, 0)
    for _ in range(5):
        again = looked(watched, lambda: look.scan(4))
        assert (again["due"], again["listed"], again["read"]) == (1, 0, 0)
        clock.advance(1)
    watched_store.submit("simple", "ours")
    found: list[Any] = []
    late = looked(watched, lambda: found.extend(look.scan(4)))
    assert [head.stream.id for head in found] == ["ours"]
    assert late["listed"] == 1
    clock.advance(FULL_SCAN_SECONDS)
    assert looked(watched, lambda: look.scan(4))["listed"] > many


def test_what_others_leave_due_does_not_starve_ours(
    watched_store: Store, clock: testing.FakeClock
) -> None:
    simple()
    for number in range(5 * PAGE_TASKS):
        watched_store.submit("of others", f"a {number}")
    watched_store.submit("simple", "z")
    assert outcomes(watched_store) == [("z", "finished")]
    clock.advance(CLOCK_SKEW_SECONDS + 1)
    worker = holdfast.Worker(watched_store)
    assert worker.run_due(None) == []
    watched_store.submit("simple", "z2")
    assert [ran.id for ran in worker.run_due(None)] == ["z2"]


def test_what_becomes_due_behind_the_place_where_a_look_begins_is_found(
    watched: Watched, watched_store: Store, clock: testing.FakeClock
) -> None:
    simple()
    long_ago = clock.now()
    watched_store.submit("simple", "late", at=long_ago + 1)
    watched_store.submit("simple", "very late", at=long_ago)
    watched_store.submit("of others", "theirs", at=long_ago + 2)
    watched.hidden = {"late", "very late"}
    look = holdfast.Worker(watched_store)._scanner
    clock.advance(CLOCK_SKEW_SECONDS + 0.5)
    assert look.scan(4) == []
    watched.hidden.remove("late")  # its append took so long
    assert [head.stream.id for head in look.scan(4)] == ["late"]
    watched.hidden.remove("very late")
    clock.advance(FULL_SCAN_SECONDS)
    assert {head.stream.id for head in look.scan(4)} == {"late", "very late"}


@pytest.mark.slow
def test_a_thousand_suspended_tasks_cost_a_worker_nothing(
    watched: Watched, watched_store: Store
) -> None:
    @holdfast.agent("asking")
    def asking(task: Task) -> Any:
        return task.ask("payout", "May it be paid?", returns=bool)

    for number in range(MANY):
        with pytest.raises(holdfast.Suspended):
            watched_store.run("asking", f"t{number}")
    threads = threading.active_count()
    simple()
    with working(watched_store) as worker:
        watched_store.submit("simple", "other")
        worker.reports.wait_for("other", "finished")
    assert {ran.id for ran in worker.reports.all} == {"other"}
    look = holdfast.Worker(watched_store)._scanner
    cost = looked(watched, lambda: look.scan(4))
    assert cost == {"head": 1, "due": 1, "heads": 2, "listed": 0}, (
        "a look asks for the time, what is due, what has died and what is pending, and lists none"
    )
    assert threading.active_count() <= threads
    assert watched_store._log.heartbeat._beats == {}
    heads = list(watched_store.tasks(status="suspended"))
    assert len(heads) == MANY
    assert {(info.owner, info.lease_until, info.due_at) for info in heads} == {(None, None, None)}


def test_a_look_tells_when_the_next_task_is_due(
    watched_store: Store, clock: testing.FakeClock
) -> None:
    simple()
    watched_store.submit("of others", "theirs", at=clock.now() + 0.1)
    watched_store.submit("simple", "late", at=clock.now() + 3.0)
    watched_store.submit("simple", "ours", at=clock.now() + 0.4)
    look = holdfast.Worker(watched_store)._scanner
    assert look.scan(4) == []
    assert look.next_in == pytest.approx(0.4)
    clock.advance(0.4)
    assert [head.stream.id for head in look.scan(4)] == ["ours"]
    assert look.next_in is None
    far = holdfast.Worker(watched_store, poll=5)._scanner
    far.scan(4)
    assert far.next_in == pytest.approx(2.6)


@pytest.mark.slow
def test_a_worker_that_looks_seldom_is_there_when_a_task_becomes_due(store: Store) -> None:
    simple()
    store.submit("simple", "t", at=time.time() + 1)
    with working(store, poll=PATIENCE_SECONDS * 2) as worker:  # it would come too late otherwise
        worker.reports.wait_for("t", "finished")
