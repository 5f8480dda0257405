"""Traps that tasks which wait have fallen into: each was once a task that never went on, or an
answer that hit something else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Store, Suspended, Task, testing
from holdfast.backends import Append, AppendResult, StreamKey, VersionMismatch
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import TaskEnded
from holdfast.log import operations as ops
from holdfast.log.drivers import drive
from holdfast.tasks.finish import mark_stuck_gen
from holdfast.tasks.run import claim
from holdfast.tasks.run.claim import check_open_options
from holdfast.tasks.state import events as ev


@pytest.fixture
def store() -> Store:
    return holdfast.open("memory://")


def test_two_questions_of_one_name_cannot_be_open_at_once(store: Store) -> None:
    def confirm(task: Task, amount: int) -> Any:
        return task.ask("payout", "Pay?", amount, returns=bool)

    with pytest.raises(holdfast.StepFailed, match="its own name"), store.task("t") as task:
        task.map("confirm", lambda amount: confirm(task, amount), [1, 2], concurrency=1)


def test_that_another_task_waits_does_not_suspend_the_one_around_it(store: Store) -> None:
    with pytest.raises(Suspended), store.task("outer"), store.task("inner") as inner:
        inner.ask("go", "Go?")
    views = [store.get_task(name) for name in ("outer", "inner")]
    assert [view.status for view in views if view] == ["pending", "suspended"]


def test_an_answer_wakes_a_task_whose_cleanup_failed_while_it_waited(store: Store) -> None:
    @holdfast.agent("clumsy")
    def clumsy(task: Task) -> Any:
        try:
            return task.ask("go", "Go?", returns=bool)
        except Suspended:
            raise ValueError("the cleanup failed") from None

    with pytest.raises(ValueError, match="cleanup"):
        store.run("clumsy", "t")
    assert store.run_due() == []
    store.answer("t", "go", True)
    assert [ran.status for ran in store.run_due()] == ["finished"]


def test_a_parent_that_was_cancelled_has_no_new_children(store: Store) -> None:
    key = StreamKey("default", "task", "k")
    with store.task("p"):
        pass
    parent = ops.run(store._log, ops.head(StreamKey("default", "task", "p")))
    assert parent is not None
    store.task("p").cancel()
    # As if that came between the record that there will be a child, and the child.
    wanted = check_open_options(None, None, "kid", 30.0, 0.0, False, None, False)
    wanted = msgspec.structs.replace(wanted, parent=ev.Parent("p", parent.incarnation.hex()))
    with pytest.raises(TaskEnded), Task(store._log, key, wanted, None, False):
        pass
    assert store.get_task("k") is None


def test_a_time_that_had_passed_has_passed_for_later_runs_too(store: Store) -> None:
    with testing.fake_clock() as clock:
        with store.task("t") as task:
            task.sleep_until(clock.now() - 1)
            task.step("after", len, "x")
        with store.task("t") as task:
            task.sleep_until(datetime.now(timezone.utc) + timedelta(days=9))
            assert task.step("after", len, "x") == 1


def test_a_signal_of_another_type_is_refused_or_set_aside_and_the_next_one_counts(
    store: Store,
) -> None:
    @holdfast.agent("payments")
    def payments(task: Task) -> Any:
        return task.wait_for("paid", returns=dict[str, int])

    store.submit("payments", "t")
    store.signal("t", "paid", {"cents": "a lot"})  # nobody waits for it yet: nobody can tell
    assert [ran.status for ran in store.run_due()] == ["suspended"]
    with pytest.raises(TypeError, match="'paid'"):
        store.signal("t", "paid", {"cents": "more"})
    store.signal("t", "paid", {"cents": 5})
    assert [ran.status for ran in store.run_due()] == ["finished"]
    assert store.run("payments", "t") == {"cents": 5}


def test_a_child_may_use_no_more_than_what_is_left_to_its_parent(store: Store) -> None:
    @holdfast.step(kind="model")
    def call(number: int) -> dict[str, Any]:
        return {"usage": {"input_tokens": 10, "output_tokens": 0}}

    @holdfast.agent("greedy")
    def greedy(task: Task) -> None:
        for number in range(9):
            call(number)

    @holdfast.agent("parent")
    def parent(task: Task) -> None:
        call(0)
        task.run_child("greedy", "k")

    store.submit("parent", "p", budget=holdfast.Budget(calls=4))
    [ran] = store.run_due()
    assert (ran.status, ran.error) == ("failed", "BudgetExceeded")
    views = [store.get_task(name) for name in ("p", "k")]
    assert [view.usage.calls for view in views if view] == [4, 3]
    assert [view.due_at for view in views if view] == [
        None,
        None,
    ]  # no worker can do anything about it
    store.submit("parent", "p", budget=holdfast.Budget(calls=99))
    assert [ran.status for ran in store.run_due()] == ["finished"]
    assert [view.usage.calls for view in map(store.get_task, ("p", "k")) if view] == [10, 9]


@pytest.mark.parametrize("came", ["signal", "time", "child"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_task_that_somebody_has_had_a_look_at_goes_on_all_the_same(
    store: Store, came: str, when: str
) -> None:
    @holdfast.agent("kid")
    def kid(task: Task) -> Any:
        return task.wait_for("go")

    @holdfast.agent("waiter")
    def waiter(task: Task) -> Any:
        if came == "signal":
            return task.wait_for("go")
        return task.sleep(60) if came == "time" else task.run_child("kid", "k")

    with testing.fake_clock() as clock:

        def come() -> None:
            if came == "time":
                clock.advance(61)
            else:
                store.signal("k" if came == "child" else "t", "go")
            if came == "child":
                assert [ran.status for ran in store.run_due(limit=1)] == ["finished"]

        store.submit("waiter", "t")
        store.run_due()
        if when == "before":
            come()
        with store.task("t"):
            pass
        if when == "after":
            come()
        assert [(ran.id, ran.status) for ran in store.run_due()] == [("t", "finished")]


def test_a_task_whose_claim_was_cut_off_is_still_to_be_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    @holdfast.agent("simple")
    def simple(task: Task) -> str:
        return "done"

    taken = claim._append_claim

    def cut_off(*arguments: Any) -> Any:
        yield from taken(*arguments)
        raise KeyboardInterrupt

    store.submit("simple", "t")
    with monkeypatch.context() as patched:
        patched.setattr(claim, "_append_claim", cut_off)
        with pytest.raises(KeyboardInterrupt):
            store.run("simple", "t")
    assert [ran.status for ran in store.run_due()] == ["finished"]


def test_whatever_ends_the_runs_of_a_task_it_is_not_tried_for_ever(store: Store) -> None:
    class Panic(BaseException):
        pass

    @holdfast.agent("panics", max_attempts=3)
    def panics(task: Task) -> None:
        raise Panic

    store.submit("panics", "t")
    with testing.fake_clock() as clock:
        statuses = []
        for _ in range(9):
            statuses += [ran.status for ran in ran_by_worker(store)]
            clock.advance(120)
    assert statuses == ["retrying", "retrying", "failed"]


def ran_by_worker(store: Store) -> list[holdfast.types.RunResult]:
    """What a worker ran that stops after the first, if there is anything to do."""
    reports: list[holdfast.types.RunResult] = []

    def report(ran: holdfast.types.RunResult) -> None:
        if ran.status != "running":
            reports.append(ran)
            worker.stop()

    worker = holdfast.Worker(store, poll=0.01, report=report)
    if any(info.due_at for info in store.tasks()):
        patience = threading.Timer(30, worker.stop)
        patience.start()
        worker.run()
        patience.cancel()
    return reports


def test_a_child_that_was_deleted_does_not_keep_its_parent(store: Store) -> None:
    @holdfast.agent("kid")
    def kid(task: Task) -> Any:
        return task.wait_for("go")

    @holdfast.agent("parent")
    def parent(task: Task) -> Any:
        return task.run_child("kid", "k")

    store.submit("parent", "p")
    store.run_due()
    assert store.task("k").delete()
    assert [(ran.id, ran.status) for ran in store.run_due()] == [
        ("p", "suspended")
    ]  # with the child begun anew
    store.signal("k", "go", 1)
    assert [ran.id for ran in store.run_due()] == ["k", "p"]


def test_a_child_that_is_made_while_its_parent_is_cancelled_is_cancelled_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cancelling(MemoryBackend):
        """Cancels the parent at the moment at which the child is stored."""

        is_shared = False

        def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
            answers = super().append(batch)
            if any(append.stream.id == "k" and append.expected == 0 for append in batch):
                self.is_shared = True
                with holdfast.open(self) as other:
                    other.task("p").cancel()
                self.is_shared = False
            return answers

        def close(self) -> None:
            if not self.is_shared:
                super().close()

    @holdfast.agent("kid")
    def kid(task: Task) -> Any:
        raise AssertionError("it must not be run")

    with holdfast.open(Cancelling()) as store:
        with pytest.raises(TaskEnded), store.task("p") as task:
            task.run_child("kid", "k")
        views = [store.get_task(name) for name in ("p", "k")]
        assert [view.status for view in views if view] == ["cancelled", "cancelled"]


def test_a_group_of_exceptions_in_which_the_task_waits_is_no_failure(store: Store) -> None:
    class Group(BaseException):
        """As a TaskGroup raises it, from Python 3.11 on."""

        def __init__(self, *parts: BaseException) -> None:
            self.exceptions = parts

    @holdfast.agent("grouped")
    def grouped(task: Task) -> Any:
        try:
            return task.ask("go", "Go?", returns=bool)
        except Suspended as waiting:
            raise Group(waiting) from None

    store.submit("grouped", "t")
    [ran] = ran_by_worker(store)
    assert ran.status == "suspended"
    store.answer("t", "go", True)
    assert [ran.status for ran in store.run_due()] == ["finished"]


@pytest.mark.parametrize("status", ["failed", "stuck"])
def test_a_look_at_a_task_that_was_given_up_leaves_it_so(store: Store, status: str) -> None:
    @holdfast.agent("hopeless", max_attempts=1)
    def hopeless(task: Task) -> None:
        raise ValueError("no")

    store.submit("hopeless", "t")
    if status == "failed":
        store.run_due()
    else:
        with store.task("t") as task:
            drive(store._log, mark_stuck_gen(task))
    found = store.get_task("t")
    with store.task("t") as task:
        assert task.status == "running"
    again = store.get_task("t")
    assert (
        found and again and (again.status, again.error, again.due_at) == (status, found.error, None)
    )
    assert [info.id for info in store.tasks(status=status)] == ["t"]


@pytest.mark.parametrize("came", ["signal", "child"])
@pytest.mark.parametrize("how", [None, ValueError("by hand")])
def test_a_task_that_somebody_has_noted_something_in_goes_on_all_the_same(
    store: Store, came: str, how: Exception | None
) -> None:
    @holdfast.agent("kid")
    def kid(task: Task) -> Any:
        return task.wait_for("go")

    @holdfast.agent("waiter")
    def waiter(task: Task) -> Any:
        return task.wait_for("go") if came == "signal" else task.run_child("kid", "k")

    store.submit("waiter", "t")
    store.run_due()
    try:
        with store.task("t") as task:
            task.decide("wait some more")
            if how:
                raise how
    except ValueError:
        pass
    store.signal("k" if came == "child" else "t", "go")
    assert [(ran.id, ran.status) for ran in store.run_due()][-1] == ("t", "finished")


def test_a_signal_does_not_begin_what_is_to_begin_later(store: Store) -> None:
    @holdfast.agent("later")
    def later(task: Task) -> Any:
        return task.wait_for("go")

    with testing.fake_clock() as clock:
        store.submit("later", "t", at=clock.now() + 60)
        store.signal("t", "go", 1)
        assert store.run_due() == []
        clock.advance(61)
        assert [ran.status for ran in store.run_due()] == ["finished"]


def test_what_a_child_has_used_is_taken_off_its_parents_budget_once(store: Store) -> None:
    @holdfast.step(kind="model")
    def call(number: int) -> dict[str, Any]:
        return {"usage": {"input_tokens": 10}}

    @holdfast.agent("kid")
    def kid(task: Task) -> None:
        call(1), call(2)
        task.wait_for("go")
        call(3), call(4)

    @holdfast.agent("parent")
    def parent(task: Task) -> None:
        task.map(
            "do",
            lambda what: task.run_child("kid", "k") if what == "child" else task.wait_for("other"),
            ["child", "w"],
        )

    store.submit("parent", "p", budget=holdfast.Budget(calls=5))
    assert [ran.status for ran in store.run_due()] == ["suspended"]
    store.signal("p", "other")
    assert [ran.status for ran in store.run_due()] == ["suspended"]
    store.signal("k", "go")
    assert [(ran.id, ran.status) for ran in store.run_due()] == [
        ("k", "finished"),
        ("p", "finished"),
    ]
    assert [view.usage.calls for view in map(store.get_task, ("p", "k")) if view] == [4, 4]


def test_model_calls_that_were_cut_off_count_for_the_budget(store: Store) -> None:
    calls: list[int] = []

    @holdfast.step(kind="model")
    def words() -> Any:
        calls.append(1)
        holdfast.current_step().use(input_tokens=10)
        yield "a"
        yield "b"

    with (
        pytest.raises(holdfast.errors.BudgetExceeded),
        store.task("t", budget=holdfast.Budget(calls=3)),
    ):
        for _ in range(9):
            for _word in words():
                break
    view = store.get_task("t")
    assert view and (len(calls), view.usage.calls) == (3, 3)
