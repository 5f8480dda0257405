"""Writes that meet each other at the worst instant."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import CorruptRecord, Expired
from holdfast.tasks.run import claim


@pytest.fixture
def memory() -> Any:
    with holdfast.open("memory://") as store:
        yield store


def test_a_heartbeat_that_is_under_way_writes_nothing_after_the_end(memory: Store) -> None:
    with memory.task("t", lease=30) as task:
        task.step("read", lambda: 1)
        session = task._require_session()
        make_fields, reached, go_on = (
            session.writer.head_fields,
            threading.Event(),
            threading.Event(),
        )

        def wait_here(status: str, **options: Any) -> Any:
            fields = make_fields(status, **options)
            if status == "running":
                reached.set()
                go_on.wait(30)
            return fields

        def beat() -> None:
            try:
                session.beat()
            except holdfast.HoldfastError:
                pass  # the block was left, or the task has ended

        session.writer.head_fields = wait_here  # type: ignore[method-assign]
        session.lease.renewed_at -= 20  # a renewal is due
        heartbeat = threading.Thread(target=beat)
        heartbeat.start()
        assert reached.wait(30)
        task.finish("done")
        go_on.set()
        heartbeat.join(30)
    assert [event.type for event in memory.task("t").history()][-1] == "task.finished"
    [info] = memory.tasks()
    assert (info.status, info.owner) == ("finished", None)


def test_an_id_that_a_sweep_retires_meanwhile_is_not_used_again(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memory.task("t", agent="charge", ttl=0) as task:
        task.finish(1)
    look_up, swept = claim.get_retired_at, list[Any]()

    def sweep_then(key: Any) -> Generator[Any, Any, Any]:
        found = yield from look_up(key)
        if not swept:
            swept.append(memory.sweep(grace=0, force=True))
        return found

    monkeypatch.setattr(claim, "get_retired_at", sweep_then)
    with pytest.raises(Expired):
        memory.submit("charge", "t")
    assert memory.get_task("t") is None


def test_a_task_runs_although_a_claim_hook_fails(memory: Store) -> None:
    def fail(key: Any, incarnation: bytes) -> Generator[Any, Any, Any]:
        raise CorruptRecord(str(key), what="the queue is damaged")
        yield

    memory._log.claim_hooks.append(fail)
    for _ in range(2):
        with memory.task("t", wait=0) as task:
            task.step("read", lambda: 1)
    view = memory.get_task("t")
    assert view is not None
    assert (view.owner, view.crashes) == (None, 0)
