"""When the machine of a worker is gone, its tasks are taken over when their leases have ended, and
not much later.

`python -m bench --only failover` measures how much later. The tests check that a lease is kept
while its owner lives, that others wait for its end, and that they wait for no other lease. They
compare times from the records.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

import holdfast
from helpers.tasks.running_workers import wait_until, working
from holdfast import Store, Task
from holdfast.worker.polling import POLL_SECONDS

from .crew import program
from .elsewhere import LEASE

pytestmark = pytest.mark.unencrypted("about processes and their leases")

TASKS = 3
DATE_SECONDS = 1.0
"""So exactly two clients know the clock of an engine that tells it in whole seconds."""


@pytest.fixture(autouse=True)
def letting_go() -> None:
    """The same agent as elsewhere; here its step ends."""

    @holdfast.agent("holding", lease=LEASE)
    def holding(task: Task) -> str:
        task.step("hold", str)
        return "let go"


@pytest.fixture
def elsewhere(durable_url: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(program("elsewhere", durable_url, TASKS), stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def types_of(store: Store, id: str) -> list[str]:
    return [event.type for event in store.task(id).history()]


@pytest.mark.every_engine
def test_the_tasks_of_a_machine_that_is_gone_are_taken_over_when_their_leases_end(
    durable_url: str, elsewhere: subprocess.Popen[bytes]
) -> None:
    names = [f"t{number}" for number in range(TASKS)]
    with holdfast.open(durable_url) as store:
        for name in names:
            store.submit("holding", name)
        assert elsewhere.stdout is not None
        assert [elsewhere.stdout.readline() for _ in names] == [b"began\n"] * TASKS
        with working(store, poll=POLL_SECONDS) as worker:
            wait_until(lambda: all("task.renewed" in types_of(store, name) for name in names))
            elsewhere.kill()
            elsewhere.wait()
            ends = {info.id: info.lease_until for info in store.tasks()}
            for name in names:
                worker.reports.wait_for(name, "finished")
        for name in names:
            first, second = (
                event for event in store.task(name).history() if event.type == "task.claimed"
            )
            assert first.data["owner"].startswith("elsewhere/")
            assert not second.data["owner"].startswith("elsewhere/")
            end = ends[name]
            assert end is not None
            assert -DATE_SECONDS <= (second.at - end).total_seconds() < LEASE
            assert [step.status for step in store.task(name).view().steps] == ["completed"]
