"""Following a task and waiting for its end: from a cursor, without gaps, and nearly for free."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.stores import url_of
from holdfast.errors import NotFound, WaitTimeout
from holdfast.log import polling
from holdfast.testing import fake_clock

PATIENCE_SECONDS = 60.0


def work(store: holdfast.Store, id: str = "t", *, steps: int = 2) -> None:
    with store.task(id, goal="count") as task:
        for number in range(steps):
            task.step(f"step {number}", int, number)
        task.finish(steps)


def followed(ways: Any, id: str = "t", **options: Any) -> list[holdfast.Event]:
    """All events that a follower gets, plain or async."""
    if not ways.asynchronous:
        return list(ways.store.follow(id, **options))

    async def collect() -> list[holdfast.Event]:
        return [event async for event in ways.store.aio.follow(id, **options)]

    return asyncio.run(collect())


def waited(ways: Any, id: str = "t", **options: Any) -> holdfast.TaskView:
    if ways.asynchronous:
        return asyncio.run(ways.store.aio.wait(id, **options))
    view: holdfast.TaskView = ways.store.wait(id, **options)
    return view


@pytest.mark.every_engine
def test_a_follower_gets_every_event_and_ends_with_the_task(ways: Any) -> None:
    work(ways.store)
    events = followed(ways)
    assert events == ways.store.task("t").history()
    assert [event.version for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "task.finished"


@pytest.mark.every_engine
def test_a_follower_goes_on_from_its_cursor_without_gaps_or_repeats(ways: Any) -> None:
    with ways.store.task("t") as task:
        task.step("first", int, 1)
        seen = followed(ways, timeout=0)
        task.step("second", int, 2)
    with ways.store.task("t") as task:  # another run, another process
        task.finish()
    rest = followed(ways, after=seen[-1].version)
    assert seen + rest == ways.store.task("t").history()
    assert seen and rest


def test_the_method_of_a_task_follows_too(ways: Any) -> None:
    work(ways.store)
    if not ways.asynchronous:
        assert list(ways.store.task("t").follow(after=2)) == followed(ways, after=2)
        return

    async def collect() -> list[holdfast.Event]:
        return [event async for event in ways.store.aio.task("t").follow(after=2)]

    assert asyncio.run(collect()) == followed(ways, after=2)


@pytest.mark.every_engine
def test_waiting_returns_the_task_once_it_has_ended(ways: Any) -> None:
    with ways.store.task("t") as task:
        ender = threading.Timer(0.05, task.finish, (42,))
        ender.start()
        view = waited(ways, timeout=PATIENCE_SECONDS)
        ender.join()
    assert (view.status, view.result) == ("finished", 42)


def _fail(task: holdfast.Task) -> None:
    task.fail("no way")


def _cancel(task: holdfast.Task) -> None:
    task.cancel()


@pytest.mark.parametrize(("end", "status"), [(_fail, "failed"), (_cancel, "cancelled")])
def test_a_task_that_failed_or_was_cancelled_has_ended_too(
    ways: Any, end: Callable[[holdfast.Task], None], status: str
) -> None:
    with ways.store.task("t") as task:
        end(task)
    assert waited(ways, timeout=0).status == status
    assert followed(ways)[-1].type == f"task.{status}"


def test_a_task_that_waits_for_a_person_has_not_ended(ways: Any) -> None:
    with pytest.raises(holdfast.Suspended), ways.store.task("t") as task:
        task.ask("ok", "Is it?")
    with pytest.raises(WaitTimeout) as caught:
        waited(ways, timeout=0)
    assert caught.value.status == "suspended"
    assert isinstance(caught.value, TimeoutError)


def test_a_task_that_does_not_exist_cannot_be_waited_for(ways: Any) -> None:
    with pytest.raises(NotFound):
        waited(ways, "nothing")
    with pytest.raises(NotFound):
        followed(ways, "nothing")


@pytest.mark.parametrize("timeout", [-1, "soon"])
def test_a_wrong_timeout_is_refused_at_once(store: holdfast.Store, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        store.follow("t", timeout=timeout)
    with pytest.raises(ValueError, match="timeout must be"):
        store.wait("t", timeout=timeout)


def test_a_task_that_is_deleted_ends_its_followers_with_an_error(store: holdfast.Store) -> None:
    with store.task("t") as task:
        task.step("a", int)
    events = store.follow("t")
    next(events)
    store.task("t").delete()
    with pytest.raises(NotFound, match="deleted"):
        list(events)


def test_a_cursor_of_an_earlier_task_with_this_id_is_refused(store: holdfast.Store) -> None:
    work(store, steps=5)
    last = store.task("t").version()
    store.task("t").delete()
    work(store, steps=1)
    with pytest.raises(NotFound, match="after=0"):
        list(store.follow("t", after=last))


def test_a_follower_may_go_on_after_a_failure(store: holdfast.Store) -> None:
    with store.task("t") as task:
        task.fail("not yet")
    events = store.follow("t", until_end=False, timeout=PATIENCE_SECONDS)
    while next(events).type != "task.failed":
        pass
    with store.task("t") as task:
        task.finish()
    assert [event.type for event in (next(events), next(events))][-1] == "task.finished"


# -- how little it costs ---------------------------------------------------------------------------


class Counted:
    """Counts the calls of a store's backend that ask it for something."""

    def __init__(self, store: holdfast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        backend = store._log.backend
        for name in ("head", "read", "heads", "due", "append"):
            monkeypatch.setattr(backend, name, self._counting(name, getattr(backend, name)))

    def _counting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            return method(*args, **kwargs)

        return call


@pytest.fixture(params=("postgres", "redis"))
def pushing_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets no notification waits longer than a test may take."""
    for name in ("MIN_POLL_SECONDS", "MAX_POLL_SECONDS", "MAX_POLL_SECONDS_WITH_NOTIFY"):
        monkeypatch.setattr(polling, name, 1000.0)


@pytest.mark.server
@pytest.mark.usefixtures("patient")
def test_the_server_notifies_followers_and_waiters(pushing_url: str) -> None:
    """Without a notification, both would wait for a thousand seconds."""
    types: list[str] = []
    views: list[holdfast.TaskView] = []
    with holdfast.open(pushing_url) as store, holdfast.open(pushing_url) as other:
        other.submit("agent", "t")
        events = store.follow("t")
        types.append(next(events).type)
        threads = [
            threading.Thread(target=lambda: types.extend(event.type for event in events)),
            threading.Thread(target=lambda: views.append(store.wait("t"))),
        ]
        for thread in threads:
            thread.start()
        work_on = other.task("t")
        with work_on as task:
            task.step("a", int)
            task.finish(1)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        recorded = [event.type for event in other.task("t").history()]
    assert types == recorded
    assert [view.result for view in views] == [1]


@pytest.mark.server
@pytest.mark.usefixtures("patient")
def test_the_server_notifies_async_followers_and_waiters(pushing_url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(pushing_url) as store, holdfast.aopen(pushing_url) as other:
            await other.submit("agent", "t")

            async def collect() -> list[str]:
                return [event.type async for event in store.follow("t")]

            both = asyncio.gather(collect(), store.wait("t"))
            async with other.task("t") as task:
                await task.step("a", int)
                await task.finish(1)
            types, view = await asyncio.wait_for(both, PATIENCE_SECONDS)
            assert types == [event.type for event in await other.task("t").history()]
            assert view.result == 1

    asyncio.run(main())


@pytest.mark.server
def test_an_idle_follower_of_a_server_asks_once_in_five_seconds(
    pushing_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(pushing_url) as store:
        store.submit("agent", "t")
        notified = threading.Event()
        notify = polling.ChangeWaiter._notify
        monkeypatch.setattr(
            polling.ChangeWaiter, "_notify", lambda waiter: (notify(waiter), notified.set())
        )
        with fake_clock():
            events = store.follow("t", timeout=600)
            next(events)
            assert notified.wait(PATIENCE_SECONDS)  # the subscription has begun
            counted = Counted(store, monkeypatch)
            assert [event.type for event in events] == ["task.queued"]
    assert counted.calls.total() <= 600 / polling.MAX_POLL_SECONDS_WITH_NOTIFY + 20
    assert set(counted.calls) == {"head"}


def test_an_idle_follower_elsewhere_asks_for_the_head_less_and_less_often(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.submit("agent", "t")
    with fake_clock():
        events = store.follow("t", timeout=60)
        next(events), next(events)
        counted = Counted(store, monkeypatch)
        assert list(events) == []
    assert counted.calls.total() <= 60 / polling.MAX_POLL_SECONDS + 10
    assert set(counted.calls) == {"head"}


def test_a_waiter_does_not_wait_longer_than_it_may(store: holdfast.Store) -> None:
    store.submit("agent", "t")
    with fake_clock() as clock:
        before = clock.now()
        with pytest.raises(WaitTimeout):
            store.wait("t", timeout=0.03)
        assert clock.now() - before == pytest.approx(0.03)


def test_no_follower_is_left_behind(store: holdfast.Store) -> None:
    work(store)
    events: Iterator[holdfast.Event] = store.follow("t")
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert list(events) == []
