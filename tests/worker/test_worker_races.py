"""Two workers that find the same task due: only the first one runs it and reports how it ended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from helpers.example_counts import examples
from helpers.tasks.worker_tasks import seen
from holdfast import AsyncTask, Store, Task
from holdfast.backends import HeadSummary
from holdfast.types import RunResult


def run_behind(store: Store, first: Callable[[], object]) -> list[RunResult]:
    """What a worker reports that finds tasks due, and is overtaken by another one."""
    reports: list[RunResult] = []
    worker = holdfast.Worker(store, report=reports.append)
    scan = worker._scanner.scan

    def scan_and_wait(free: int) -> list[HeadSummary]:
        found = scan(free)
        first()
        return found

    worker._scanner.scan = scan_and_wait  # type: ignore[method-assign]
    assert worker.run_due(None) == []
    return reports


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_a_task_that_ended_since_it_was_found_due_is_not_reported_again(
    url: str, asynchronous: bool
) -> None:
    ran: list[str] = []

    def agent(task: Task) -> str:
        ran.append(task.id)
        return "done"

    async def agent_async(task: AsyncTask) -> str:
        ran.append(task.id)
        return "done"

    holdfast.agent("agent")(agent_async if asynchronous else agent)
    with holdfast.open(url) as store:
        store.submit("agent", "t")
        first: list[RunResult] = []
        assert run_behind(store, lambda: first.extend(store.run_due())) == []
        assert [(found.id, found.status) for found in first] == [("t", "finished")]
    assert ran == ["t"]


@pytest.mark.parametrize("ending", ["failed", "retrying", "suspended", "pending", "cancelled"])
def test_a_task_that_is_no_longer_due_is_not_run(store: Store, ending: str) -> None:
    runs: list[int] = []

    @holdfast.step(once=True)
    def pay() -> None:
        raise ValueError("no answer")

    @holdfast.agent("agent", max_attempts=1 if ending == "failed" else 5)
    def agent(task: Task) -> None:
        runs.append(1)
        if ending == "suspended":
            task.ask("sure", "Are you sure?")
        if ending == "pending":
            pay()  # and an operator must act
        if ending == "cancelled":
            task.cancel()
        raise ValueError("no")

    store.submit("agent", "t")
    assert run_behind(store, store.run_due) == []
    assert (seen(store).status, len(runs)) == (ending, 1)


def test_a_task_that_was_deleted_since_is_not_created_again(store: Store) -> None:
    @holdfast.agent("agent")
    def agent(task: Task) -> None:
        raise AssertionError("it was deleted")

    store.submit("agent", "t")
    assert run_behind(store, store.task("t").delete) == []
    assert store.get_task("t") is None


def test_a_task_whose_lease_owner_has_died_since_is_run(store: Store) -> None:
    @holdfast.agent("agent")
    def agent(task: Task) -> int:
        return task.step("work", len, "four")

    store.submit("agent", "t")
    with holdfast.testing.crash(before="work"):
        store.run_due()
    assert [(ran.id, ran.status) for ran in store.run_due()] == [("t", "finished")]


@pytest.mark.slow
def test_two_busy_workers_report_each_task_once(durable_url: str) -> None:
    ran: Counter[str] = Counter()

    @holdfast.agent("agent")
    def agent(task: Task) -> int:
        ran[task.id] += 1
        return sum(task.step("step", abs, number) for number in range(3))

    tasks = {f"t{number}" for number in range(examples(150))}
    ends: list[tuple[str, str]] = []
    done = threading.Event()

    def report(result: RunResult) -> None:
        if result.status != "running":
            ends.append((result.id, result.status))
            if len(ends) >= len(tasks):
                done.set()

    with holdfast.open(durable_url) as first, holdfast.open(durable_url) as second:
        for name in sorted(tasks):
            first.submit("agent", name)
        workers = [holdfast.Worker(store, report=report, poll=0.01) for store in (first, second)]
        threads: list[Any] = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        assert done.wait(250)
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()
    assert sorted(ends) == sorted((name, "finished") for name in tasks)
    assert ran == dict.fromkeys(tasks, 1)
