"""`testing.fake_clock` and `testing.seeded_ids`: time and chance in the hands of a test; and
temporary stores."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from holdfast import LeaseHeld, Store, testing
from holdfast.errors import Expired, LeaseLost

HOUR = 3600.0


@pytest.fixture
def clock() -> Iterator[testing.FakeClock]:
    with testing.fake_clock() as clock:
        yield clock


def elsewhere(work: Callable[[], object]) -> None:
    """Do something in another thread, which is inside of no task."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def take(store: Store, wait: float) -> None:
    with store.task("t", wait=wait) as task:
        task.step("mine", lambda: 1)


def renewals(store: Store, id: str = "t") -> int:
    return [event.type for event in store.task(id).history()].count("task.renewed")


def test_the_clock_stands_still_until_it_is_moved(clock: testing.FakeClock) -> None:
    began = clock.now()
    with testing.temporary_store("memory") as store:
        store.stream("s").append(("a", 1))
        clock.advance(HOUR)
        store.stream("s").append(("b", 2))
        first, second = (event.at for event in store.stream("s").read())
    assert (second - first).total_seconds() == HOUR
    assert clock.now() == began + HOUR


def test_it_can_begin_at_any_time() -> None:
    with testing.fake_clock(1_000_000_000.0) as clock:
        clock.advance(timedelta(days=1))
        assert clock.now() == 1_000_086_400.0


@pytest.mark.parametrize("seconds", [-1, "soon"])
def test_time_does_not_go_back(clock: testing.FakeClock, seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds >= 0"):
        clock.advance(seconds)


@pytest.mark.every_engine
def test_a_lease_is_renewed_on_the_way_at_each_third_of_it(
    store: Store, clock: testing.FakeClock
) -> None:
    with store.task("t", lease=30):
        for minute in range(1, 4):
            clock.advance(60)
            assert renewals(store) == 6 * minute  # not one more, not one less, and not later
        view = store.get_task("t")
        assert view is not None and view.lease_until is not None
        assert view.lease_until.timestamp() == pytest.approx(clock.now() + 30)


def test_a_process_that_was_stopped_loses_its_lease(store: Store, clock: testing.FakeClock) -> None:
    with store.task("t", lease=30) as task:
        clock.jump(31)
        elsewhere(lambda: take(store, wait=0))
        with pytest.raises(LeaseLost):
            task.step("late", lambda: 1)


def test_whoever_waits_for_a_lease_moves_the_clock(store: Store, clock: testing.FakeClock) -> None:
    began = clock.now()
    with store.task("t", lease=30):
        with pytest.raises(LeaseHeld):
            elsewhere(lambda: take(store, wait=100))
    assert clock.now() == pytest.approx(began + 100)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_pauses_between_attempts_take_no_time(
    clock: testing.FakeClock, asynchronous: bool
) -> None:
    tries: list[float] = []

    @holdfast.step(max_attempts=5)
    def flaky() -> str:
        tries.append(clock.now())
        if len(tries) < 5:
            raise ConnectionError
        return "at last"

    async def program(store: holdfast.AsyncStore) -> str:
        async with store.task("t") as task:
            return await task.step("flaky", flaky)

    with testing.temporary_store("memory") as store:
        if asynchronous:
            assert asyncio.run(program(store.aio)) == "at last"
        else:
            with store.task("t") as task:
                assert task.step("flaky", flaky) == "at last"
    assert all(
        later - earlier >= 2**n for n, (earlier, later) in enumerate(itertools.pairwise(tries))
    )


def test_a_task_expires_when_its_time_to_live_is_over(
    store: Store, clock: testing.FakeClock
) -> None:
    with store.task("t", ttl=HOUR) as task:
        task.finish("done")
    clock.advance(HOUR - 1)
    assert store.get_task("t") is not None
    clock.advance(1)
    assert store.get_task("t") is None
    with pytest.raises(Expired):
        store.task("t").__enter__()


@pytest.mark.every_engine
def test_a_timer_is_due_when_its_time_has_come(store: Store, clock: testing.FakeClock) -> None:
    def agent(task: holdfast.Task) -> str:
        task.sleep(HOUR)
        return "woken"

    with pytest.raises(holdfast.Suspended):
        store.run(agent, "t")
    clock.advance(HOUR - 1)
    with pytest.raises(holdfast.Suspended):
        store.run(agent, "t")
    clock.advance(2)  # the clock of AWS has whole seconds, and no timer ends early
    assert store.run(agent, "t") == "woken"


def test_afterwards_the_real_clock_renews_leases_again() -> None:
    renewed = threading.Event()
    with testing.temporary_store("memory") as store, store.task("t", lease=0.3):
        with testing.fake_clock() as clock:
            clock.advance(0.5)  # its heartbeat waits for this clock from now on
        original = store._log._append

        def append(request: Any) -> Any:
            renewed.set()
            return original(request)

        store._log._append = append  # type: ignore[method-assign]
        assert renewed.wait(20)


# -- ids -------------------------------------------------------------------------------------------


def history(store: Store) -> list[object]:
    with store.task("t", goal="the same") as task:
        task.step("a", lambda: 1)
        task.conversation().append({"role": "user", "content": "hello"})
    events = list(store.task("t").history())
    created = events[0].data
    keys = [event.id for event in events]
    return [keys, created["salt"], [entry.id for entry in store.conversation("t").entries()]]


def told(seed: int) -> list[object]:
    with testing.seeded_ids(seed), testing.temporary_store("memory") as store:
        return history(store)


def test_seeded_ids_and_salts_are_the_same_in_every_run() -> None:
    assert told(1) == told(1)
    assert told(1) != told(2)


def test_without_a_seed_ids_are_never_the_same() -> None:
    told(1)
    with testing.temporary_store("memory") as first, testing.temporary_store("memory") as second:
        mine, yours = history(first), history(second)
        assert all(one != other for one, other in zip(mine, yours, strict=True))


def test_seeded_idempotency_keys_are_the_same_too() -> None:
    keys = []
    for _ in range(2):
        with (
            testing.seeded_ids(7),
            testing.temporary_store("memory") as store,
            store.task("t") as task,
        ):
            keys.append(task.step("pay", holdfast.idempotency_key))
    assert keys[0] == keys[1]


# -- stores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "files", "memory"])
def test_a_temporary_store_is_empty_each_time(kind: str) -> None:
    for _ in range(2):
        with testing.temporary_store(kind) as store:
            assert not list(store.streams())
            store.stream("s").append(("a", 1))
            assert [event.data for event in store.stream("s").read()] == [1]


def test_of_a_url_a_new_tenant_is_used_each_time() -> None:
    tenants = set()
    for _ in range(2):
        with testing.temporary_store("memory://shared by tests") as store:
            assert not list(store.streams())
            store.stream("s").append(("a", 1))
            tenants.add(store.tenant)
    assert len(tenants) == 2


def test_a_kind_that_is_none_is_refused_instead_of_making_a_file_of_that_name() -> None:
    with (
        pytest.raises(ValueError, match="'sqlite', 'files', 'memory' or a URL"),
        testing.temporary_store("postgres"),
    ):
        pass
