"""A worker that runs for weeks needs no more memory than one that has run for an hour."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

import holdfast
from helpers.tasks.running_workers import working
from holdfast import Store, Task
from holdfast.backends.sqlite import backend
from holdfast.log import reader

LIMIT, ROUND = 50, 200
MAX_GROWTH_BYTES = 100
"""Per task. A cache without a limit keeps more than this of each task."""


def one() -> int:
    return 1


def count(task: Task) -> int:
    return sum(task.step(f"step {number}", one) for number in range(3))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(reader, "MAX_KNOWN_STREAMS", LIMIT)
    monkeypatch.setattr(backend, "MAX_CACHED_STREAMS", LIMIT)
    return holdfast.open(tmp_path / "agents.db")


def run_tasks(store: Store, first: int) -> None:
    for number in range(first, first + ROUND):
        store.submit("counter", f"task {number}")
    with working(store) as beside:
        beside.reports.wait_until(
            lambda said: sum(ran.status == "finished" for ran in said) >= ROUND
        )


@pytest.mark.slow
def test_what_a_worker_keeps_is_bounded(store: Store) -> None:
    holdfast.agent("counter")(count)
    tracemalloc.start()
    try:
        with store:
            for number in range(3):  # until everything is imported and every cache is full
                run_tasks(store, number * ROUND)
            # What other threads of this process need comes and goes; what a worker keeps adds up.
            growth = []
            for number in range(3, 6):
                before = traced_bytes()
                run_tasks(store, number * ROUND)
                growth.append(traced_bytes() - before)
                if growth[-1] < MAX_GROWTH_BYTES * ROUND:
                    break
            assert min(growth) < MAX_GROWTH_BYTES * ROUND
            caches = store.health().caches
            assert caches["stream positions"].used > LIMIT / 2
            for name, size in caches.items():
                assert size.used <= size.limit, name
    finally:
        tracemalloc.stop()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
