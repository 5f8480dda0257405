"""A timer never goes off early, however long the database takes to answer, and whoever waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

import holdfast
from holdfast import testing
from holdfast.backends import Head, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.testing import FakeClock

T = TypeVar("T")
SECONDS = 20.0


class Slow(MemoryBackend):
    """A database whose answers take a while, from when it read its clock."""

    seconds = 0.0

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def _delayed(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        answer = call(*args, **options)
        self._clock.jump(self.seconds)
        return answer

    def append(self, *args: Any, **options: Any) -> Any:
        return self._delayed(super().append, *args, **options)

    def read(self, *args: Any, **options: Any) -> Any:
        return self._delayed(super().read, *args, **options)

    def head(self, *args: Any, **options: Any) -> Any:
        return self._delayed(super().head, *args, **options)

    def heads(self, *args: Any, **options: Any) -> Any:
        return self._delayed(super().heads, *args, **options)

    def due(self, *args: Any, **options: Any) -> Any:
        return self._delayed(super().due, *args, **options)


class Coarse(MemoryBackend):
    """A database that sends its time in whole seconds, so that a process that has just begun is
    behind by a part of one."""

    min_poll_seconds = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.behind = 0.0

    def head(self, stream: StreamKey) -> Head | None:
        found = super().head(stream)
        return found and _set_clock(found, -self.behind)

    def append(self, *args: Any, **options: Any) -> Any:
        return [_set_clock(answer, -self.behind) for answer in super().append(*args, **options)]

    def due(self, **options: Any) -> Any:
        return [_set_clock(head, -self.behind) for head in super().due(**options)]


def _set_clock(answer: Any, ahead: float) -> Any:
    from msgspec.structs import replace

    return replace(answer, now=answer.now + ahead) if hasattr(answer, "now") else answer


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with testing.fake_clock() as clock:
        yield clock


def waits(way: str, clock: FakeClock, times: list[float]) -> None:
    """Agents that note when they begin to wait, and when they resume."""

    @holdfast.agent("waits")
    def waits(task: holdfast.Task) -> None:
        if not times:
            times.append(clock.now())
        try:
            if way == "sleep":
                task.sleep(SECONDS)
            elif way == "signal":
                task.wait_for("never", timeout=SECONDS)
            else:
                task.ask("never", "Who?", timeout=SECONDS)
        except TimeoutError:
            pass
        times.append(clock.now())


def woken(store: holdfast.Store, clock: FakeClock, times: list[float]) -> float:
    """How long a task has waited, that was begun before."""
    clock.advance(SECONDS - 2)
    for _ in range(1_000):
        if len(times) > 1:
            return times[1] - times[0]
        clock.advance(0.01)
        store.run_due()
    raise AssertionError("it never woke")


@pytest.mark.parametrize("way", ["sleep", "signal", "ask"])
def test_a_wait_is_never_shorter_than_it_should_be(way: str, clock: FakeClock) -> None:
    times: list[float] = []
    waits(way, clock, times)
    backend = Slow(clock)
    with holdfast.open(backend) as store:
        store.submit("waits", "t")
        backend.seconds = 0.2
        store.run_due()
        backend.seconds = 0.0
        assert woken(store, clock, times) >= SECONDS


@pytest.mark.parametrize("way", ["sleep", "signal", "ask"])
def test_processes_that_know_the_time_of_the_server_to_a_second_do_not_wake_a_task_early(
    way: str, clock: FakeClock
) -> None:
    times: list[float] = []
    waits(way, clock, times)
    backend = Coarse()
    with holdfast.open(backend) as store:
        backend.behind = 0.9
        store.submit("waits", "t")
        store.run_due()
        backend.behind = 0.0
        assert woken(store, clock, times) >= SECONDS
