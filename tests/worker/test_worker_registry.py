"""The registry of workers: who lives, what each runs, and who is gone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import holdfast
from helpers.tasks.running_workers import PATIENCE_SECONDS, wait_until
from holdfast.types import WorkerInfo
from holdfast.worker import registry


class Gate:
    """A step that is held until the test lets it go."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def go_through(self) -> None:
        self.reached.set()
        assert self.open.wait(PATIENCE_SECONDS)


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()

    @holdfast.agent("held")
    def held(task: holdfast.Task) -> None:
        task.step("wait", found.go_through)

    yield found
    found.open.set()


@contextmanager
def working(store: holdfast.Store, **options: Any) -> Iterator[holdfast.Worker]:
    worker = holdfast.Worker(store, poll=0.01, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)


def workers(store: holdfast.Store) -> list[WorkerInfo]:
    return list(store.workers())


def only(store: holdfast.Store) -> WorkerInfo:
    [info] = workers(store)
    return info


@pytest.mark.every_engine
def test_a_worker_is_listed_while_it_works_and_gone_when_it_has_stopped(
    url: str, gate: Gate
) -> None:
    with holdfast.open(url) as store:
        store.submit("held", "t")
        with working(store, register=True, concurrency=3, code_version="shop 7.1") as worker:
            assert gate.reached.wait(PATIENCE_SECONDS)
            assert worker._registration is not None
            worker._registration.beat_soon()
            wait_until(lambda: bool(only(store).running))
            info = only(store)
            gate.open.set()
        assert workers(store) == []
    assert (info.status, info.pid, info.slots) == ("working", os.getpid(), 3)
    assert (info.agents, info.code_version) == (["held"], "shop 7.1")
    assert info.version == holdfast.__version__
    assert [(run.id, run.agent) for run in info.running] == [("t", "held")]
    assert info.started_at <= info.heartbeat_at
    assert info.host


def test_a_worker_that_does_not_register_is_not_listed(store: holdfast.Store, gate: Gate) -> None:
    store.submit("held", "t")
    with working(store):
        assert gate.reached.wait(PATIENCE_SECONDS)
        assert workers(store) == []
        gate.open.set()


def test_a_draining_worker_says_so(store: holdfast.Store, gate: Gate) -> None:
    store.submit("held", "t")
    with working(store, register=True) as worker:
        assert gate.reached.wait(PATIENCE_SECONDS)
        worker.stop()
        wait_until(lambda: only(store).status == "draining")
        gate.open.set()


def registered(store: holdfast.Store) -> registry.WorkerRegistration:
    return registry.WorkerRegistration(
        store._log,
        store.tenant,
        agents=["a"],
        slots=1,
        code_version=None,
        look=lambda: registry.Activity([], False),
    )


def test_a_worker_whose_heartbeats_stay_away_is_lost_and_disappears_after_a_day(
    store: holdfast.Store, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.WorkerRegistration, "_run", lambda _self: None)  # it is stopped
    with registered(store):
        clock.advance(40)
        assert only(store).status == "working"
        clock.advance(10)
        assert only(store).status == "lost"
        clock.advance(86_400)
        assert workers(store) == []
        entries = store._log.backend.heads(tenant=store.tenant, kind="worker")
        assert len(entries) == 1
        with registered(store):  # the next worker removes what is left of it
            entries = store._log.backend.heads(tenant=store.tenant, kind="worker")
            assert len(entries) == 1


@pytest.mark.parametrize("url", ["sqlite"])
def test_a_worker_that_was_killed_is_lost_at_once(url: str, tmp_path: Any) -> None:
    path = tmp_path / "agents.db"
    program = (
        "import holdfast, os, signal\n"
        f"store = holdfast.open({str(path)!r})\n"
        "from holdfast.worker import registry\n"
        "with registry.WorkerRegistration(store._log, 'default', agents=[], slots=1,\n"
        "        code_version=None, look=lambda: registry.Activity([], False)):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE_SECONDS)
    with holdfast.open(path) as store:
        assert only(store).status == "lost"


def test_async_code_sees_the_same(store: holdfast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.WorkerRegistration, "_run", lambda _self: None)

    async def collect() -> list[WorkerInfo]:
        return [info async for info in store.aio.workers()]

    with registered(store):
        assert asyncio.run(collect()) == [only(store)]


def test_the_history_of_a_worker_stays_short(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_BEATS", 5)
    monkeypatch.setattr(registry.WorkerRegistration, "_run", lambda _self: None)
    with registered(store) as entry:
        versions = []
        for _ in range(12):
            entry._beat()
            [head] = store._log.backend.heads(tenant=store.tenant, kind="worker")
            versions.append(store._log.backend.head(head.stream).version)  # type: ignore[union-attr]
            assert only(store).status == "working"
    assert max(versions) == 5
    assert versions.count(1) == 2


def test_a_heartbeat_is_one_small_write(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.WorkerRegistration, "_run", lambda _self: None)
    backend, calls = store._log.backend, list[str]()
    with registered(store) as entry:
        for name in ("append", "head", "read", "heads"):
            method = getattr(backend, name)

            def call(*args: Any, _name: str = name, _method: Any = method, **kwargs: Any) -> Any:
                calls.append(_name)
                return _method(*args, **kwargs)

            monkeypatch.setattr(backend, name, call)
        entry._beat()
        assert calls == ["append"]


def test_workers_are_no_part_of_the_data(tmp_path: Any) -> None:
    with holdfast.open(tmp_path / "a.db") as store, registered(store):
        store.stream("s").append(("a", {}))
        assert "worker" not in store.health().streams
        store.anchor(tmp_path / "anchor")
        store.anchor(tmp_path / "anchor2")
        holdfast.copy(str(tmp_path / "a.db"), str(tmp_path / "b.db"))
        assert store.verify().ok
        with holdfast.open(tmp_path / "b.db") as copied:
            assert workers(copied) == []
            assert copied.stream("s").version() == 1
        assert only(store).status == "working"
    with holdfast.open(tmp_path / "a.db") as store:  # the entry is gone, which is no damage
        assert store.verify(tmp_path / "anchor").ok


def test_a_worker_works_although_its_entry_cannot_be_written(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Any) -> None:
        raise holdfast.errors.Unavailable("not now")

    monkeypatch.setattr(registry.WorkerRegistration, "_beat", refuse)

    @holdfast.agent("quick")
    def quick(task: holdfast.Task) -> int:
        return 1

    store.submit("quick", "t")
    with working(store, register=True):
        assert store.wait("t", timeout=PATIENCE_SECONDS).result == 1


def test_a_wrong_code_version_is_refused(store: holdfast.Store) -> None:
    with pytest.raises(ValueError, match="code_version"):
        holdfast.Worker(store, code_version="")
