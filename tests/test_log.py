"""The log: places, conflicts, group commit, lost answers, and data that is checked before anybody sees it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import _committer
from holdfast import _operations as ops
from holdfast._committer import Committer
from holdfast._events import NewEvent, seal
from holdfast._log import Log
from holdfast._store import Store
from holdfast._streams import new_stamp
from holdfast.backends import Append, Appended, Conflict, Record, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import (
    Closed,
    CorruptRecord,
    HeadRegressed,
    IdReused,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)

KEY = StreamKey("default", "stream", "s")


class Scripted(MemoryBackend):
    """A memory backend on which the next appends do what a test says instead."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[Callable[[Sequence[Append]], Any]] = []
        self.batches: list[Sequence[Append]] = []

    def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
        if batch[0].stream.kind == "tenant":
            return super().append(batch)
        self.batches.append(list(batch))
        if self.script:
            answer: Sequence[Appended | Conflict] = self.script.pop(0)(batch)
            return answer
        return super().append(batch)

    def really_append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
        return super().append(batch)


@pytest.fixture
def backend() -> Scripted:
    return Scripted()


@pytest.fixture
def log(backend: Scripted) -> Iterator[Log]:
    log = Log(backend, settle_seconds=0.05, pause=lambda seconds: None)
    yield log
    log.close()


@pytest.fixture
def stream(log: Log) -> holdfast.Stream:
    return Store(log, "default").stream("s")


def request(number: int, **place: Any) -> ops.Append:
    stamp = new_stamp()
    return ops.Append(KEY, seal([NewEvent("n", b"%d" % number)], stamp, {}), stamp, **place)


def numbers(stream: holdfast.Stream) -> list[Any]:
    return [event.data for event in stream.read()]


def foreign_writer(backend: Scripted) -> holdfast.Stream:
    """Another process on the same store: a log of its own."""
    return Store(Log(backend), "default").stream("s")


def taken(backend: Scripted) -> Append:
    """What the other process appended: the only append of version 2 that was not ours."""
    stored = backend.read(KEY, after=1, limit=1)[0]
    return next(batch[0] for batch in backend.batches if batch[0].id == stored.append_id)


def raising(error: Exception) -> Callable[[Sequence[Append]], Any]:
    def answer(batch: Sequence[Append]) -> Any:
        raise error

    return answer


# -- where an append goes --------------------------------------------------------------------------


def test_a_plain_append_goes_wherever_the_stream_is(backend: Scripted, stream: holdfast.Stream) -> None:
    stream.append(("n", 1))
    foreign_writer(backend).append(("n", 2))
    appended = stream.append(("n", 3), ("n", 4))
    assert (appended.first, appended.last, appended.duplicate) == (3, 4, False)
    assert numbers(stream) == [1, 2, 3, 4]


def test_an_expected_version_that_is_no_longer_true_writes_nothing(backend: Scripted, stream: holdfast.Stream) -> None:
    stream.append(("n", 1))
    foreign_writer(backend).append(("n", 2))
    with pytest.raises(holdfast.Conflict) as caught:
        stream.append(("n", 3), if_version=1)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert numbers(stream) == [1, 2]


def test_an_append_that_has_seen_everything_foreign_goes_on_after_our_own(log: Log, stream: holdfast.Stream) -> None:
    log.handle(request(1))
    log.handle(request(2))
    assert log.handle(request(3, seen=0)).last == 3
    assert numbers(stream) == [1, 2, 3]


def test_an_append_that_has_not_seen_what_somebody_else_wrote_is_refused(
    backend: Scripted, log: Log, stream: holdfast.Stream
) -> None:
    log.handle(request(1))
    foreign_writer(backend).append(("n", 2))
    with pytest.raises(holdfast.Conflict):
        log.handle(request(3, seen=1))
    assert log.handle(request(4, seen=2)).last == 3
    assert numbers(stream) == [1, 2, 4]


def test_reading_alone_does_not_count_as_having_seen(backend: Scripted, log: Log, stream: holdfast.Stream) -> None:
    """A view that reads the stream in another thread must not let an operation pass that decided before it."""
    log.handle(request(1))
    foreign_writer(backend).append(("n", 2))
    assert numbers(stream) == [1, 2]
    with pytest.raises(holdfast.Conflict):
        log.handle(request(3, seen=1))


def test_a_deleted_stream_begins_a_new_life(backend: Scripted, stream: holdfast.Stream) -> None:
    stream.append(("n", 1))
    foreign_writer(backend).delete()
    assert stream.append(("n", 2)).first == 1
    assert numbers(stream) == [2]


# -- ids -------------------------------------------------------------------------------------------


def test_the_same_id_again_is_a_no_op_that_says_where_it_is(stream: holdfast.Stream) -> None:
    first = stream.append(("n", 1), ("n", 2), id="req-1")
    stream.append(("n", 3))
    again = stream.append(("n", 1), ("n", 2), id="req-1")
    assert (again.first, again.last, again.duplicate) == (first.first, first.last, True)
    assert numbers(stream) == [1, 2, 3]


def test_content_is_compared_by_value_and_not_by_its_bytes(stream: holdfast.Stream) -> None:
    stream.append(("n", {"a": 1, "b": {"c": 2, "d": 3}}), id="req-1")
    assert stream.append(("n", {"b": {"d": 3, "c": 2}, "a": 1}), id="req-1").duplicate


@pytest.mark.parametrize("actor", [5, "", "a\0b", "\ud800"])
def test_an_actor_that_could_not_be_read_back_is_refused(stream: holdfast.Stream, actor: Any) -> None:
    with pytest.raises(holdfast.InvalidId), holdfast.correlate("req-1", actor=actor):
        stream.append(("n", 1))
    assert numbers(stream) == []


@pytest.mark.parametrize("other", [[("n", 9)], [("m", 1)], [("n", 1), ("n", 2)]])
def test_other_content_under_a_known_id_is_refused(stream: holdfast.Stream, other: list[tuple[str, int]]) -> None:
    stream.append(("n", 1), id="req-1")
    with pytest.raises(IdReused, match="req-1"):
        stream.append(*other, id="req-1")
    assert numbers(stream) == [1]


def test_a_large_value_repeated_under_its_id_is_recognised(stream: holdfast.Stream) -> None:
    stream.append(("n", "x" * 100_000), id="big")
    assert stream.append(("n", "x" * 100_000), id="big").duplicate
    with pytest.raises(IdReused):
        stream.append(("n", "y" * 100_000), id="big")


def test_an_id_is_looked_at_before_the_version(backend: Scripted, stream: holdfast.Stream) -> None:
    stream.append(("n", 1), id="a", if_version=0)
    assert stream.append(("n", 1), id="a", if_version=0).duplicate
    assert foreign_writer(backend).append(("n", 1), id="a", if_version=0).duplicate
    with pytest.raises(IdReused):
        stream.append(("n", 2), id="a", if_version=0)
    with pytest.raises(holdfast.Conflict):
        stream.append(("n", 2), id="b", if_version=0)
    assert stream.append(("n", 2), id="b", if_version=1).last == 2
    assert numbers(stream) == [1, 2]


def test_a_repeat_is_recognised_although_somebody_else_has_written_since(
    backend: Scripted, log: Log, stream: holdfast.Stream
) -> None:
    log.handle(request(1, id="a", seen=0))
    foreign_writer(backend).append(("n", 2))
    assert log.handle(request(1, id="a", seen=0)).duplicate
    with pytest.raises(holdfast.Conflict):
        log.handle(request(3, id="b", seen=0))
    assert numbers(stream) == [1, 2]


def test_after_a_duplicate_the_next_append_still_finds_its_place(stream: holdfast.Stream) -> None:
    stream.append(("n", 1), id="a")
    stream.append(("n", 1), id="a")
    assert stream.append(("n", 2)).last == 2


# -- lost answers ----------------------------------------------------------------------------------


def test_an_answer_lost_after_the_commit_is_settled_as_done(backend: Scripted, stream: holdfast.Stream) -> None:
    stream.append(("n", 1))

    def store_and_lose(batch: Sequence[Append]) -> Any:
        backend.really_append(batch)
        raise OutcomeUnknown("lost")

    backend.script.append(store_and_lose)
    assert stream.append(("n", 2)).last == 2
    assert numbers(stream) == [1, 2]


def test_an_append_that_is_absent_is_sent_again_with_the_same_bytes_for_the_same_version(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    backend.script.append(raising(OutcomeUnknown("lost")))
    stream.append(("n", 2))
    first, again = backend.batches[-2:]
    assert first == again
    assert numbers(stream) == [1, 2]


def test_an_error_that_is_not_ours_is_taken_for_doubt(backend: Scripted, stream: holdfast.Stream) -> None:
    def store_and_crash(batch: Sequence[Append]) -> Any:
        backend.really_append(batch)
        raise RuntimeError("a bug in the driver")

    backend.script.append(store_and_crash)
    stream.append(("n", 1))
    assert numbers(stream) == [1]


def test_if_somebody_else_took_the_version_the_append_moves_on_under_its_id(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    other = foreign_writer(backend)

    def lose_to_another(batch: Sequence[Append]) -> Any:
        backend.script.clear()
        other.append(("n", 2))
        raise OutcomeUnknown("lost")

    backend.script.append(lose_to_another)
    assert stream.append(("n", 3)).last == 3
    lost, moved = (batch[0] for batch in backend.batches if batch[0].expected >= 1 and batch[0] is not taken(backend))
    assert lost.id == moved.id and (lost.expected, moved.expected) == (1, 2)
    assert numbers(stream) == [1, 2, 3]


def test_past_the_deadline_the_outcome_is_unknown_and_a_repeat_settles_it(
    backend: Scripted, log: Log, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    held: list[Sequence[Append]] = []

    def swallow(batch: Sequence[Append]) -> Any:
        held.append(batch)
        raise OutcomeUnknown("lost")

    backend.script[:] = [swallow] * 100_000
    with pytest.raises(OutcomeUnknown) as caught:
        stream.append(("n", 2))
    backend.script.clear()
    assert caught.value.id is not None
    # The packet arrives after all, late: the repeat must find it and not store it twice.
    backend.really_append(held[0])
    assert stream.append(("n", 2), id=caught.value.id).duplicate
    assert numbers(stream) == [1, 2]


def test_a_repeat_of_an_append_that_never_arrived_stores_it(backend: Scripted, stream: holdfast.Stream) -> None:
    backend.script[:] = [raising(OutcomeUnknown("lost"))] * 100_000
    with pytest.raises(OutcomeUnknown) as caught:
        stream.append(("n", 1), id="req-1")
    backend.script.clear()
    assert caught.value.id == "req-1"
    stream.append(("n", 1), id="req-1")
    assert stream.append(("n", 1), id="req-1").duplicate
    assert numbers(stream) == [1]


def test_a_repeat_with_other_content_is_refused_even_after_doubt(backend: Scripted, stream: holdfast.Stream) -> None:
    backend.script[:] = [raising(OutcomeUnknown("lost"))] * 100_000
    with pytest.raises(OutcomeUnknown):
        stream.append(("n", 1), id="req-1")
    backend.script.clear()
    with pytest.raises(IdReused):
        stream.append(("n", 2), id="req-1")


def test_a_certain_error_means_not_stored_and_the_store_goes_on(backend: Scripted, stream: holdfast.Stream) -> None:
    stream.append(("n", 1))
    for error in (Unavailable("down"), StorageFull("full")):
        backend.script.append(raising(error))
        with pytest.raises(type(error)):
            stream.append(("n", 2))
    assert stream.append(("n", 3)).last == 2
    assert numbers(stream) == [1, 3]


def test_one_member_that_cannot_be_stored_does_not_fail_the_others(backend: Scripted, log: Log) -> None:
    async def main() -> list[Any]:
        store = Store(log, "default").aio
        await store.stream("warm-up").append(("n", 0))
        for name in "abc":
            await store.stream(name).append(("n", 0))

        def full(batch: Sequence[Append]) -> Any:
            if any(append.stream.id == "b" for append in batch):
                raise StorageFull("no room")
            return backend.really_append(batch)

        backend.script[:] = [full] * 4
        appends = [store.stream(name).append(("n", 1)) for name in "abc"]
        return await asyncio.gather(*appends, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert isinstance(second, StorageFull)
    assert (first.last, third.last) == (2, 2)


# -- an engine that went back in time --------------------------------------------------------------


def test_an_engine_that_lost_acknowledged_writes_is_noticed(backend: Scripted, stream: holdfast.Stream) -> None:
    for number in range(3):
        stream.append(("n", number))
    kept = backend._streams[KEY]
    kept.records, kept.version, kept.hash = kept.records[:1], 1, kept.records[0].hash
    with pytest.raises(HeadRegressed) as caught:
        stream.append(("n", 9))
    assert (caught.value.acknowledged, caught.value.actual) == (3, 1)
    with pytest.raises(HeadRegressed):
        stream.append(("n", 9))
    assert len(backend._streams[KEY].records) == 1


def test_another_history_of_the_same_length_is_noticed(backend: Scripted, stream: holdfast.Stream) -> None:
    stream.append(("n", 1))
    kept = backend._streams[KEY]
    kept.records[0] = msgspec.structs.replace(kept.records[0], hash=b"?" * 32)
    kept.hash = b"?" * 32
    with pytest.raises(HeadRegressed):
        stream.append(("n", 2))


# -- what is read ----------------------------------------------------------------------------------


def tampered(backend: Scripted, change: Callable[[list[Record]], None]) -> holdfast.Stream:
    """The stream of five records after `change`, seen by a process that knows nothing of it."""
    writer = foreign_writer(backend)
    for number in range(5):
        writer.append(("n", number))
    change(backend._streams[KEY].records)
    return foreign_writer(backend)


def edit(records: list[Record]) -> None:
    records[2] = msgspec.structs.replace(records[2], body=records[2].body.replace(b'"data":2', b'"data":7'))


def swap(records: list[Record]) -> None:
    one, two = records[1], records[2]
    records[1] = msgspec.structs.replace(two, version=2)
    records[2] = msgspec.structs.replace(one, version=3)


def cut_the_middle(records: list[Record]) -> None:
    del records[2]


def cut_the_tail(records: list[Record]) -> None:
    del records[3:]


def cut_the_front(records: list[Record]) -> None:
    del records[:2]


@pytest.mark.parametrize("change", [edit, swap, cut_the_middle, cut_the_tail, cut_the_front])
def test_tampering_is_reported_and_never_returned(backend: Scripted, change: Callable[[list[Record]], None]) -> None:
    stream = tampered(backend, change)
    seen: list[Any] = []
    with pytest.raises(CorruptRecord) as caught:
        for event in stream.read():
            seen.append(event.data)
    assert seen == list(range(len(seen)))
    assert caught.value.version is not None and caught.value.stream == str(KEY)
    with pytest.raises(CorruptRecord):
        foreign_writer(backend).last(4)


def test_reading_from_the_middle_and_from_the_end_is_checked_too(backend: Scripted) -> None:
    stream = tampered(backend, edit)
    with pytest.raises(CorruptRecord):
        list(stream.read(after=2))
    assert [event.data for event in stream.read(after=3)] == [3, 4]
    assert [event.data for event in stream.last(2)] == [3, 4]
    with pytest.raises(CorruptRecord):
        stream.last(3)


def test_the_record_before_a_page_anchors_it_but_is_not_returned(stream: holdfast.Stream) -> None:
    for number in range(6):
        stream.append(("n", number))
    for after in range(7):
        assert [event.version for event in stream.read(after=after)] == list(range(after + 1, 7))
    for count in range(9):
        assert [event.version for event in stream.last(count)] == list(range(max(7 - count, 1), 7))
    assert list(stream.read(after=10)) == []


def test_a_record_taken_from_another_stream_is_refused(backend: Scripted) -> None:
    for name in ("s", "t"):
        Store(Log(backend), "default").stream(name).append(("n", name))
    backend._streams[KEY].records[0] = backend._streams[StreamKey("default", "stream", "t")].records[0]
    with pytest.raises(CorruptRecord):
        list(foreign_writer(backend).read())


def test_a_stream_that_began_a_new_life_is_read_as_it_is_now(backend: Scripted, stream: holdfast.Stream) -> None:
    for number in range(3):
        stream.append(("n", number))
    other = foreign_writer(backend)
    other.delete()
    other.append(("n", "new"))
    assert numbers(stream) == ["new"]


# -- group commit ----------------------------------------------------------------------------------


class Gated(Scripted):
    """The first append waits at a gate, so that others gather behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def hold(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
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
    threads = [threading.Thread(target=store.stream(f"s{n}").append, args=[("n", 1)]) for n in range(9)]
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
    # The interrupted append was in flight: it may be stored, once, and the stream goes on either way.
    store.stream("a").append(("n", 2))
    assert numbers(store.stream("a")) in ([0, 1, 2], [0, 2])
    assert numbers(store.stream("b")) == [0, 1]
    log.close()


def test_a_bug_in_the_backend_is_an_error_for_its_batch_and_not_for_ever(backend: Scripted, log: Log) -> None:
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


def test_if_no_thread_can_be_started_the_store_goes_on(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_interrupt_at_an_awkward_place_leaves_nobody_waiting(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_lead_is_never_given_to_a_caller_who_was_already_told_his_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader is interrupted between waking a follower and noting that he did."""
    backend = Gated()
    log = Log(backend)
    store = Store(log, "default")
    for name in "abc":
        store.stream(name).append(("n", 0))
    original, hits = _committer._release, []

    def interrupted(wake: threading.Lock) -> None:
        original(wake)
        if not hits and threading.current_thread().name == "leader":
            hits.append(True)
            follower.join(30)  # it is awake, and leaves
            raise KeyboardInterrupt

    monkeypatch.setattr(_committer, "_release", interrupted)
    backend.script.append(backend.hold)
    holder = threading.Thread(target=store.stream("a").append, args=[("n", 1)])
    holder.start()
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
    for thread in (holder, leader, follower):
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


# -- closing, logging ------------------------------------------------------------------------------


def test_a_closed_store_says_so(log: Log, stream: holdfast.Stream) -> None:
    stream.append(("n", 1))
    log.close()
    for call in (lambda: stream.append(("n", 2)), stream.version, lambda: list(stream.read()), stream.delete):
        with pytest.raises(Closed):
            call()
    with pytest.raises(Closed):
        asyncio.run(Store(log, "default").aio.stream("s").append(("n", 3)))


def test_every_append_is_logged_with_its_correlation_id_and_without_content(
    stream: holdfast.Stream, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="holdfast"), holdfast.correlate("req-17", actor="alice"):
        stream.append(("n", "CANARY-content"), ("n", 2))
    record: Any = caplog.records[-1]
    assert record.correlation == "req-17"
    assert (record.stream, record.version, record.event, record.tenant) == ("s", 2, "appended", "default")
    assert record.bytes > 0 and record.milliseconds >= 0
    assert "CANARY" not in caplog.text
    assert [(event.correlation, event.by) for event in stream.read()] == [("req-17", "alice")] * 2


def test_appends_are_events_on_the_current_span_of_a_program_that_traces(stream: holdfast.Stream) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("turn"), holdfast.correlate("req-17"):
        stream.append(("n", "CANARY-content"), ("n", 2))
    [span] = exporter.get_finished_spans()
    event = span.events[-1]
    assert event.name == "holdfast.appended" and event.attributes is not None
    assert event.attributes["holdfast.correlation"] == "req-17"
    assert (event.attributes["holdfast.stream"], event.attributes["holdfast.version"]) == ("s", 2)
    assert "CANARY" not in span.to_json()


def test_an_append_is_reported_in_the_callers_context(stream: holdfast.Stream) -> None:
    """So that filters which add a request id to log records find it, in threads and in async code alike."""
    request_id: ContextVar[str] = ContextVar("request_id", default="none")
    seen = []

    class Filter(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            seen.append(request_id.get())
            return False

    logger, filter_ = logging.getLogger("holdfast"), Filter()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(filter_)
    try:
        request_id.set("sync")
        stream.append(("n", 1))

        async def main() -> None:
            request_id.set("async")
            await Store(stream._log, "default").aio.stream("s").append(("n", 2))

        asyncio.run(main())
    finally:
        logger.removeFilter(filter_)
        logger.setLevel(before)
    assert {"sync", "async"} <= set(seen)


def test_a_logging_filter_that_fails_does_not_make_a_stored_append_look_failed(stream: holdfast.Stream) -> None:
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError("broken filter")

    logger, broken = logging.getLogger("holdfast"), Broken()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(broken)
    try:
        with pytest.warns(RuntimeWarning, match="could not be reported"):
            assert stream.append(("n", 1)).last == 1
    finally:
        logger.removeFilter(broken)
        logger.setLevel(before)
    assert numbers(stream) == [1]


def test_a_logging_handler_may_append_to_the_same_store(log: Log, stream: holdfast.Stream) -> None:
    audit = Store(log, "default").stream("audit")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "stream", "") == "s":
                audit.append(("logged", record.getMessage()))

    logger, handler = logging.getLogger("holdfast"), Handler()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        stream.append(("n", 1))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert audit.version() == 1


def test_an_append_from_inside_a_commit_is_refused_rather_than_left_waiting_for_itself(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    errors = []

    def reenter(batch: Sequence[Append]) -> Any:
        try:
            stream.append(("n", 9))
        except RuntimeError as error:
            errors.append(error)
        return backend.really_append(batch)

    backend.script.append(reenter)
    stream.append(("n", 2))
    assert len(errors) == 1 and numbers(stream) == [1, 2]


def test_correlation_ids_nest_and_end_with_their_block(stream: holdfast.Stream) -> None:
    with holdfast.correlate("outer", actor="alice"):
        with holdfast.correlate("inner"):
            stream.append(("n", 1))
        stream.append(("n", 2))
    stream.append(("n", 3))
    assert [(event.correlation, event.by) for event in stream.read()] == [
        ("inner", "alice"),
        ("outer", "alice"),
        (None, None),
    ]


def test_tenants_are_registered_before_their_first_stream(backend: Scripted, log: Log) -> None:
    for tenant in ("acme", "globex"):
        Store(log, tenant).stream("s").append(("n", tenant))
    Store(log, "nobody").stream("s").version()
    registered = backend.heads(tenant="$system", kind="tenant")
    assert [head.stream.id for head in registered] == ["acme", "globex"]
