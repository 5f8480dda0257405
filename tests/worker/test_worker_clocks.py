"""Whose clock counts: the engine's, which all share, whatever the clock of the machine says that a
worker is on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Store, Task, testing
from holdfast.backends import Append, AppendResult, Cursor, Head, StreamKey, VersionMismatch
from holdfast.backends.memory import MemoryBackend
from holdfast.log import leases


class Skewed(MemoryBackend):
    """An engine whose clock is ahead of ours by so many seconds, or behind."""

    def __init__(self, ahead: float) -> None:
        super().__init__()
        self.ahead = ahead

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        return [
            replace(answer, now=answer.now + self.ahead)
            if isinstance(answer, AppendResult)
            else VersionMismatch(self._told(answer.head))
            for answer in super().append(batch)
        ]

    def head(self, stream: StreamKey) -> Head | None:
        return self._told(super().head(stream))

    def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
        return [replace(head, now=head.now + self.ahead) for head in super().heads(**options)]

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        found = super().due(tenant=tenant, kind=kind, before=before, after=after, limit=limit)
        return [replace(head, now=head.now + self.ahead) for head in found]

    def _told(self, head: Head | None) -> Head | None:
        return head and replace(head, now=head.now + self.ahead)


@pytest.fixture
def clock() -> Iterator[testing.FakeClock]:
    with testing.fake_clock() as clock:
        yield clock


@pytest.fixture(params=[100.0, -100.0, 0.0], ids=["ahead", "behind", "same"])
def ahead(request: pytest.FixtureRequest) -> float:
    return float(request.param)


@pytest.fixture
def store(ahead: float, clock: testing.FakeClock) -> Iterator[Store]:
    with holdfast.open(Skewed(ahead)) as store:
        yield store


def ran(store: Store) -> list[tuple[str, str]]:
    return [(each.id, each.status) for each in store.run_due()]


def found(worker: holdfast.Worker) -> list[str]:
    """What a look of a worker that is there all the time finds."""
    return [head.stream.id for head in worker._scanner.scan(4)]


def gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody on another machine has claimed the task for half a minute, and that machine is no
    more."""

    def claim() -> None:
        store.task("t", lease=30).__enter__()
        store._log.heartbeat.stop()

    monkeypatch.setattr(leases, "_host", lambda: "elsewhere")
    thread = threading.Thread(target=claim)
    thread.start()
    thread.join()
    monkeypatch.undo()


def test_what_is_submitted_is_due_at_once(store: Store) -> None:
    @holdfast.agent("simple")
    def simple(task: Task) -> str:
        return task.step("work", str)

    worker = holdfast.Worker(store)
    assert found(worker) == []  # it was there before anything else
    store.submit("simple", "t")
    assert found(worker) == ["t"]
    assert ran(store) == [("t", "finished")]


def test_a_lease_ends_by_the_clock_of_the_engine(
    store: Store, clock: testing.FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @holdfast.agent("simple", lease=30)
    def simple(task: Task) -> str:
        return task.step("work", str)

    store.submit("simple", "t")
    worker = holdfast.Worker(store)
    gone(store, monkeypatch)
    assert found(worker) == []
    clock.advance(29)
    assert found(worker) == []
    clock.advance(1.5)
    assert found(worker) == ["t"]
    assert ran(store) == [("t", "finished")]


def test_a_lease_of_a_new_task_ends_by_the_clock_of_the_engine(
    store: Store, clock: testing.FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone(store, monkeypatch)
    clock.advance(29)
    with pytest.raises(holdfast.LeaseHeld), store.task("t", wait=0):
        pass
    clock.advance(1.5)
    with store.task("t", wait=0) as task:
        assert task.resumed


def test_a_timer_goes_off_by_the_clock_of_the_engine(
    store: Store, ahead: float, clock: testing.FakeClock
) -> None:
    @holdfast.agent("sleeping")
    def sleeping(task: Task) -> str:
        task.sleep(20)
        return "awake"

    store.submit("sleeping", "t")
    worker = holdfast.Worker(store)
    assert found(worker) == ["t"]
    assert ran(store) == [("t", "suspended")]
    clock.advance(19)
    assert found(worker) == []
    clock.advance(1.5)
    assert found(worker) == ["t"]
    assert ran(store) == [("t", "finished")]


def test_what_is_submitted_for_a_time_is_due_when_the_engine_says_so(
    store: Store, ahead: float, clock: testing.FakeClock
) -> None:
    @holdfast.agent("simple")
    def simple(task: Task) -> str:
        return task.step("work", str)

    store.submit("simple", "first")
    assert ran(store) == [("first", "finished")]
    worker = holdfast.Worker(store)
    assert found(worker) == []
    store.submit("simple", "t", at=clock.now() + ahead + 20)
    assert found(worker) == []
    clock.advance(20.5)
    assert found(worker) == ["t"]


def test_a_clock_that_is_set_is_followed(clock: testing.FakeClock) -> None:
    @holdfast.agent("simple")
    def simple(task: Task) -> str:
        return task.step("work", str)

    backend = Skewed(0.0)
    with holdfast.open(backend) as store:
        store.submit("simple", "t", at=clock.now() + 500)
        worker = holdfast.Worker(store)
        assert found(worker) == []
        backend.ahead = 600.0
        clock.advance(61)  # it asks once a minute
        assert found(worker) == ["t"]


def test_the_turn_on_a_new_conversation_ends_by_the_engines_clock(ahead: float) -> None:
    backend = Skewed(ahead)
    with holdfast.open(backend) as store, store.conversation("c").turn(lease=60) as chat:
        head = backend.head(StreamKey("default", "conversation", "c"))
        assert head is not None and head.fields.due_at is not None
        assert 30 < head.fields.due_at - head.now < 65
        chat.append({"role": "user", "content": "hello"})
