"""Group commit: appends of many threads in one batch, and appends that are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from helpers.stored.scripted_log import Scripted, numbers
from holdfast._store import Store
from holdfast.backends import Append, AppendResult, VersionMismatch
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.log import committer
from holdfast.log.committer import Committer
from holdfast.log.log import Log

# -- group commit ----------------------------------------------------------------------------------


class Gated(Scripted):
    """The first append waits at a gate, so that others gather behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def hold(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self.entered.set()
        assert self.gate.wait(30)
        return self.really_append(batch)


def pending(log: Log) -> int:
    return len(log._committer._pending)


def test_threads_that_wait_share_the_next_commit() -> None:
    backend = Gated()
    log = Log(backend)
    store = Store(log, "default")
    for number in range(9):
        store.stream(f"s{number}").append(("n", 0))
    backend.batches.clear()
    backend.script.append(backend.hold)
    threads = [
        threading.Thread(target=store.stream(f"s{n}").append, args=[("n", 1)]) for n in range(9)
    ]
    threads[0].start()
    assert backend.entered.wait(30)
    for thread in threads[1:]:
        thread.start()
    while pending(log) < 9:
        threading.Event().wait(0.001)
    backend.gate.set()
    for thread in threads:
        thread.join(30)
    assert [len(batch) for batch in backend.batches] == [1, 8]
    log.close()


def test_one_turn_of_the_event_loop_is_one_commit(backend: Scripted, log: Log) -> None:
    async def main() -> None:
        stream = Store(log, "default").aio.stream("s")
        await stream.append(("n", 0))
        backend.batches.clear()
        await asyncio.gather(*(stream.append(("n", number)) for number in range(64)))
        assert [len(batch) for batch in backend.batches] == [64]
        assert [event.data async for event in stream.read(after=1)] == list(range(64))

    asyncio.run(main())


def test_an_interrupted_leader_leaves_the_lead_to_others() -> None:
    backend = Gated()
    log = Log(backend, pause=lambda seconds: None)
    store = Store(log, "default")
    for name in "ab":
        store.stream(name).append(("n", 0))

    def interrupt(batch: Sequence[Append]) -> Any:
        backend.entered.set()
        assert backend.gate.wait(30)
        raise KeyboardInterrupt

    backend.script.append(interrupt)
    caught: list[BaseException] = []

    def lead() -> None:
        try:
            store.stream("a").append(("n", 1))
        except KeyboardInterrupt as error:
            caught.append(error)

    leader = threading.Thread(target=lead)
    follower = threading.Thread(target=store.stream("b").append, args=[("n", 1)])
    leader.start()
    assert backend.entered.wait(30)
    follower.start()
    while pending(log) < 2:
        threading.Event().wait(0.001)
    backend.gate.set()
    leader.join(30)
    follower.join(30)
    assert not follower.is_alive() and len(caught) == 1
    # The interrupted append was in flight: it may be stored, once, and the stream goes on either
    # way.
    store.stream("a").append(("n", 2))
    assert numbers(store.stream("a")) in ([0, 1, 2], [0, 2])
    assert numbers(store.stream("b")) == [0, 1]
    log.close()


def test_a_bug_in_the_backend_is_an_error_for_its_batch_and_not_for_ever(
    backend: Scripted, log: Log
) -> None:
    stream = Store(log, "default").stream("s")
    stream.append(("n", 1))
    backend.script[:] = [lambda batch: []] * 2  # too few answers
    with pytest.raises(OutcomeUnknown):
        stream.append(("n", 2))
    with pytest.raises(OutcomeUnknown):
        asyncio.run(Store(log, "default").aio.stream("s").append(("n", 2)))
    backend.script.clear()
    stream.append(("n", 3))
    assert numbers(stream) in ([1, 3], [1, 2, 3], [1, 2, 2, 3])


def test_if_no_thread_can_be_started_the_store_goes_on(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(log, "default")
    store.stream("s").append(("n", 1))

    def cannot(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        stream = store.aio.stream("s")
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", cannot)
            with pytest.raises(Unavailable, match="no thread"):
                await stream.append(("n", 2))
            store.stream("s").append(("n", 3))
        await stream.append(("n", 4))

    asyncio.run(main())
    assert numbers(store.stream("s")) == [1, 3, 4]


@pytest.mark.parametrize("where", ["_commit_batch", "_hand_over"])
def test_an_interrupt_at_an_awkward_place_leaves_nobody_waiting(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Gated()
    log = Log(backend)
    store = Store(log, "default")
    for name in "ab":
        store.stream(name).append(("n", 0))
    original, hits = getattr(Committer, where), []

    def interrupted(self: Committer, *arguments: Any) -> None:
        if not hits and threading.current_thread().name == "leader":
            hits.append(True)
            raise KeyboardInterrupt
        original(self, *arguments)

    monkeypatch.setattr(Committer, where, interrupted)

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            store.stream("a").append(("n", 1))

    leader = threading.Thread(target=lead, name="leader")
    leader.start()
    leader.join(30)
    follower = threading.Thread(target=store.stream("b").append, args=[("n", 1)])
    follower.start()
    follower.join(30)
    assert hits and not leader.is_alive() and not follower.is_alive()
    assert numbers(store.stream("a")) in ([0], [0, 1]) and numbers(store.stream("b")) == [0, 1]
    log.close()


def test_the_lead_is_never_given_to_a_caller_who_was_already_told_his_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader is interrupted between waking a follower and noting that he did."""
    backend = Gated()
    log = Log(backend)
    store = Store(log, "default")
    for name in "abc":
        store.stream(name).append(("n", 0))
    original, hits = committer._release, []

    def interrupted(wake: threading.Lock) -> None:
        original(wake)
        if not hits and threading.current_thread().name == "leader":
            hits.append(True)
            follower.join(30)  # it is awake, and leaves
            raise KeyboardInterrupt

    monkeypatch.setattr(committer, "_release", interrupted)
    backend.script.append(backend.hold)
    blocker = threading.Thread(target=store.stream("a").append, args=[("n", 1)])
    blocker.start()
    assert backend.entered.wait(30)

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            store.stream("b").append(("n", 1))

    leader = threading.Thread(target=lead, name="leader")
    follower = threading.Thread(target=store.stream("c").append, args=[("n", 1)])
    for thread, waiting in ((leader, 2), (follower, 3)):
        thread.start()
        while pending(log) < waiting:
            threading.Event().wait(0.001)
    backend.gate.set()
    for thread in (blocker, leader, follower):
        thread.join(30)
    last = threading.Thread(target=store.stream("a").append, args=[("n", 2)], daemon=True)
    last.start()
    last.join(30)
    assert hits and not last.is_alive()
    assert numbers(store.stream("a")) == [0, 1, 2] and numbers(store.stream("c")) == [0, 1]
    log.close()


def test_threads_and_two_event_loops_work_on_one_store_at_once(log: Log) -> None:
    store = Store(log, "default")

    async def agents(name: str) -> None:
        async def agent(number: int) -> None:
            for turn in range(20):
                await store.aio.stream("s").append(("n", f"{name}{number}-{turn}"))

        await asyncio.gather(*(agent(number) for number in range(5)))

    def plain(name: str) -> None:
        for turn in range(20):
            store.stream("s").append(("n", f"{name}-{turn}"))

    threads = [threading.Thread(target=asyncio.run, args=[agents(name)]) for name in "AB"]
    threads += [threading.Thread(target=plain, args=[name]) for name in "CDE"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = numbers(store.stream("s"))
    assert len(found) == len(set(found)) == 260
    for writer in ("A0", "B4", "C", "E"):
        mine = [text for text in found if text.startswith(f"{writer}-")]
        assert mine == [f"{writer}-{turn}" for turn in range(20)]


# -- cancelling ------------------------------------------------------------------------------------


def test_a_cancelled_append_is_finished_before_the_cancellation_goes_on() -> None:
    backend = Gated()
    log = Log(backend)

    async def main() -> None:
        stream = Store(log, "default").aio.stream("s")
        await stream.append(("n", 0))
        backend.script.append(backend.hold)
        task = asyncio.ensure_future(stream.append(("n", 1)))
        await asyncio.to_thread(backend.entered.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        backend.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [event.data async for event in stream.read()] == [0, 1]
        await stream.append(("n", 2))
        assert [event.data async for event in stream.read()] == [0, 1, 2]

    asyncio.run(main())
    log.close()


def test_a_timeout_around_an_append_never_doubles_it_when_repeated_with_its_id() -> None:
    backend = Gated()
    log = Log(backend)

    async def main() -> None:
        stream = Store(log, "default").aio.stream("s")
        await stream.append(("n", 0))
        backend.script.append(backend.hold)
        task = asyncio.ensure_future(asyncio.wait_for(stream.append(("n", 1), id="turn-1"), 0))
        backend.gate.set()
        try:
            await task
        except asyncio.TimeoutError:
            pass
        await stream.append(("n", 1), id="turn-1")
        assert [event.data async for event in stream.read()] == [0, 1]

    asyncio.run(main())
    log.close()
