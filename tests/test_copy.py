"""Copying a store: everything arrives as it was, whatever happens on the way, and nothing is overwritten."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from conftest import url_of
from copies import LARGE, Meddler, Recorder, Wrapper, double, dump, many, populate
from holdfast import AlreadyExists, Copied, CopyProgress, CorruptRecord, NotFound, TooLarge
from holdfast import _copy_writing as writing
from holdfast._kinds import KINDS
from holdfast.backends import Append, Appended, Backend, Conflict, Fields, Head, Record, StreamKey, memory
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.testing import fake_clock
from servers import SERVERS

ENGINES = ("memory", "sqlite", "files", *SERVERS)


def on(backend: Backend) -> holdfast.Store:
    return holdfast.open(backend)


def key(name: str, kind: str = "stream") -> StreamKey:
    return StreamKey("default", kind, name)


def bodies(backend: Backend, name: str) -> list[bytes]:
    return [record.body for record in backend.read(key(name))]


@pytest.fixture
def source() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def target() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages and batches, so that few streams make many of them."""
    monkeypatch.setattr(memory, "PAGE_BYTES", 700)
    monkeypatch.setattr(writing, "BATCH_APPENDS", 3)
    monkeypatch.setattr(writing, "SLICE", 2)


# -- everything arrives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_everything_comes_back_byte_for_byte_from_any_engine(engine: str, tmp_path: Path) -> None:
    here, back = tmp_path / "here.db", tmp_path / "back.db"
    with holdfast.open(here) as store:
        populate(store)
    with holdfast.open(url_of(engine, tmp_path)) as there:
        copied = holdfast.copy(here, there)
        assert there.stream("orders-7").append(("order.placed", {"number": 1}), id="req-1").duplicate
        assert there.for_tenant("acme ä").stream("orders-7").version() == 1
        assert holdfast.copy(there, back).records == copied.records
    before, after = dump(here), dump(back)
    assert before.keys() == after.keys()
    for stream in before:
        assert before[stream] == after[stream], stream
    assert copied.verified == copied.streams == len(before)
    assert copied.records == sum(len(records) for _, records, _ in before.values())
    assert copied.bytes == sum(len(record[3]) for _, records, _ in before.values() for record in records)
    assert {kind for _, kind, _ in before} == set(KINDS) - {"key", "subject", "memory"}


def test_the_copy_is_a_store_that_goes_on(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        populate(store)
    holdfast.copy(tmp_path / "a.db", tmp_path / "b.db")
    with holdfast.open(tmp_path / "b.db") as store:
        assert store.conversation("support-42b").messages()[-1]["content"] == LARGE
        assert store.state("team-1").load()["round"] == 4
        assert store.artifact("claim-42", "claims.bin").read() == b"claim" * 500_000
        with pytest.raises(holdfast.Expired):
            store.conversation("old-1").append({"role": "user", "content": "Still there?"})
        with store.task("claim-43") as task:
            assert task.resumed and double(5) == 10
            task.finish("done")
        chat = store.conversation("support-42")
        assert not chat.append({"role": "user", "content": "Go on"}).duplicate
        assert chat.append({"role": "user", "content": "Hello"}, id="m-1").duplicate


def test_a_lease_is_copied_as_it_is(source: MemoryBackend, target: MemoryBackend) -> None:
    with on(source).task("claim-44", goal="Settle it", lease=600):
        holdfast.copy(source, target)
        with pytest.raises(holdfast.Held), on(target).task("claim-44", wait=0, steal=False):
            pass
    assert target.head(key("claim-44", "task")) != source.head(key("claim-44", "task"))
    [head] = target.heads(tenant="default", kind="task")
    assert head.fields.owner is not None and head.fields.status == "running"


@pytest.mark.usefixtures("small")
def test_appends_arrive_as_they_were_made(target: MemoryBackend) -> None:
    source, recorder = Recorder(MemoryBackend()), Recorder(target)
    populate(on(source))
    many(on(source), 5, 9)
    on(source).stream("long").append(*[("noted", "word " * 20)] * 30, id="long")
    holdfast.copy(source, recorder)
    made, copied = source.by_stream(), recorder.by_stream()
    assert made.keys() == copied.keys()
    for stream in made:
        assert copied[stream] == made[stream], stream
    indexed = {facts[4] for appends in copied.values() for facts in appends}
    assert True in indexed and False in indexed


def test_ids_that_look_like_those_of_the_log_are_still_known(source: MemoryBackend, target: MemoryBackend) -> None:
    names = [f"request {number}" for number in range(500)]
    with on(source) as store:
        for name in names:
            store.stream("s").append(("noted", name), id=name)
        holdfast.copy(store, target)
    assert [on(target).stream("s").append(("noted", name), id=name).duplicate for name in names] == [True] * 500


@pytest.mark.usefixtures("small")
def test_what_is_pointed_to_arrives_before_what_points_to_it(source: MemoryBackend, target: MemoryBackend) -> None:
    populate(on(source))
    recorder = Recorder(target)
    holdfast.copy(source, recorder)
    last = {append.stream: place for place, append in enumerate(recorder.stored)}
    first = {append.stream: place for place, append in reversed(list(enumerate(recorder.stored)))}
    tenants = {stream.tenant for stream in first} - {"$system"}
    assert tenants == {"default", "acme ä"}
    for tenant in tenants:
        streams = [stream for stream in first if stream.tenant == tenant]
        assert last[StreamKey("$system", "tenant", tenant)] < min(first[stream] for stream in streams)
        blobs = [last[stream] for stream in streams if stream.kind == "blob"]
        assert max(blobs, default=-1) < min(first[stream] for stream in streams if stream.kind != "blob")


@pytest.mark.usefixtures("small")
def test_until_it_is_whole_nobody_takes_a_task_for_one_to_be_run(source: MemoryBackend, target: MemoryBackend) -> None:
    with on(source).task("claim-45", goal="Settle it", lease=600) as task:
        for number in range(20):
            task.step(f"step-{number}", double, number)

        class Watched(Wrapper):
            seen: list[Head] = []

            def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
                head = target.head(key("claim-45", "task"))
                self.seen += [head] if head else []
                return super().append(batch)

        watched = Watched(target)
        holdfast.copy(source, watched)
    assert len(watched.seen) > 2
    assert {head.fields for head in watched.seen} == {Fields()}
    whole = target.head(key("claim-45", "task"))
    assert whole is not None and whole.fields.status == "running"


def test_many_small_streams_share_batches(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 300)

    class Counting(Wrapper):
        batches = 0

        def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
            self.batches += 1
            return super().append(batch)

    counting = Counting(target)
    assert holdfast.copy(source, counting).streams == 301
    assert counting.batches == 2  # the tenant; all others


def test_places_are_urls_paths_stores_async_stores_and_backends(tmp_path: Path) -> None:
    backend = MemoryBackend("copy-places")
    with holdfast.open(tmp_path / "a.db") as store:
        store.stream("s").append(("noted", 1))
        assert holdfast.copy(store, backend).streams == 2
        assert store.stream("s").version() == 1  # it is still open
    assert holdfast.copy(str(tmp_path / "a.db"), f"file://{tmp_path}/b").streams == 2

    async def run() -> Copied:
        async with holdfast.aopen(f"file://{tmp_path}/b") as source:
            copied = await asyncio.to_thread(holdfast.copy, source, tmp_path / "c.db")
            assert await source.stream("s").version() == 1
            return copied

    assert asyncio.run(run()).streams == 2
    assert dump(tmp_path / "a.db") == dump(tmp_path / "c.db")


@pytest.mark.parametrize("scheme", ["", "sqlite:///", "file://"])
def test_a_source_that_is_not_there_is_not_made(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no store"):
        holdfast.copy(f"{scheme}{tmp_path}/typo.db", tmp_path / "b.db")
    assert list(tmp_path.iterdir()) == []


def test_progress_is_told_while_it_copies_and_while_it_verifies(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 100)
    told: list[CopyProgress] = []
    copied = holdfast.copy(source, target, progress=told.append)
    assert [one.phase for one in told] == sorted(one.phase for one in told)
    assert {one.phase for one in told} == {"copying", "verifying"}
    assert (told[-1].streams, told[-1].records, told[-1].bytes) == (101, 601, copied.bytes)
    assert told[-1].of in (None, 101)


# -- again, and again --------------------------------------------------------------------------------------------------


def test_a_second_copy_brings_what_is_new(source: MemoryBackend, target: MemoryBackend) -> None:
    populate(on(source))
    first = holdfast.copy(source, target)
    on(source).stream("orders-7").append(("order.returned", LARGE + "y"))
    on(source).stream("new").append(("noted", 1))
    second = holdfast.copy(source, target)
    assert (second.streams, second.records, second.skipped) == (3, 3, first.streams - 1)
    third = holdfast.copy(source, target)
    assert (third.streams, third.records, third.skipped) == (0, 0, first.streams + 2)
    assert third.verified == first.streams + 2


KILLED = """
import os, signal, sys
import holdfast
from holdfast import _copy_reading, _copy_writing

source, target, calls, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
_copy_writing.BATCH_APPENDS = 5
inner = _copy_reading.Steady.append

def append(self, batch):
    global calls
    calls -= 1
    if calls == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answers = inner(self, batch)
    if calls == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return answers

_copy_reading.Steady.append = append
holdfast.copy(source, target)
"""


def copying(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", KILLED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "memory"])
def test_killed_at_any_instant_the_next_copy_goes_on(engine: str, tmp_path: Path) -> None:
    here, back = tmp_path / "here.db", tmp_path / "back.db"
    kills = 12 if engine in ("sqlite", "files") else 4
    with holdfast.open(here) as store:
        populate(store)
        many(store, 3 * kills)
    there, chance = url_of(engine, tmp_path), random.Random(engine)
    for _ in range(kills):
        place = [str(chance.choice([1, 2, 3])), chance.choice(["before", "after"])]
        assert copying(str(here), there, *place).returncode == -signal.SIGKILL
    done = copying(str(here), there, "0", "")
    assert done.returncode == 0, done.stderr
    holdfast.copy(there, back)
    assert dump(here) == dump(back)


def test_two_copies_at_once_make_one(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 200)
    done: list[Copied] = []
    threads = [threading.Thread(target=lambda: done.append(holdfast.copy(source, target))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [copied.verified for copied in done] == [201] * 3
    assert bodies(target, "s-0199") == bodies(source, "s-0199")


@pytest.mark.usefixtures("small")
def test_lost_answers_and_refused_calls_change_nothing() -> None:
    source = Recorder(MemoryBackend())
    many(on(source), 12, 6)
    faults = dict.fromkeys(("unavailable", "lost_answer", "lost_request", "late", "late_part"), 0.05)
    injected = Counter[str]()
    for seed in range(8):
        target, recorder = MemoryBackend(), Recorder(MemoryBackend())
        reading = FaultyBackend(source, seed=seed, read_unavailable=0.15)
        faulty = FaultyBackend(target, seed=seed, read_unavailable=0.1, **faults)
        with fake_clock():
            holdfast.copy(reading, faulty)
        faulty.deliver()
        holdfast.copy(target, recorder)
        assert recorder.by_stream() == source.by_stream()
        injected += faulty.injected
    assert injected.keys() >= {*faults, "read_unavailable"}


def test_a_server_that_stays_away_is_reported(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 2)
    with fake_clock(), pytest.raises(holdfast.Unavailable):
        holdfast.copy(source, FaultyBackend(target, seed=1, unavailable=1.0))


# -- what the destination already has ----------------------------------------------------------------------------------


def test_a_stream_of_the_destination_is_never_overwritten(
    source: MemoryBackend, target: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    many(on(source), 5)
    on(target).stream("s-0001").append(("mine", 1))
    on(target).stream("s-0003").append(("mine", 3))
    before = [target.read(key(name)) for name in ("s-0001", "s-0003")]
    with caplog.at_level(logging.ERROR, "holdfast"), pytest.raises(AlreadyExists, match="stream 's-0001'"):
        holdfast.copy(source, target)
    assert [target.read(key(name)) for name in ("s-0001", "s-0003")] == before
    assert "stream 's-0003'" in caplog.text
    for name in ("s-0000", "s-0002", "s-0004"):
        assert bodies(target, name) == bodies(source, name)


def test_a_copy_that_somebody_went_on_with_is_left_alone(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 2)
    holdfast.copy(source, target)
    on(target).stream("s-0001").append(("later", None))
    with pytest.raises(AlreadyExists, match="further at the destination"):
        holdfast.copy(source, target)
    assert len(bodies(target, "s-0001")) == 7


@pytest.mark.parametrize("more", [0, 1, 2])
def test_another_history_of_the_same_life_is_noticed(more: int, source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 1, 1)
    holdfast.copy(source, target)
    on(target).stream("s-0000").append(("theirs", None))
    for number in range(1 + more):
        on(source).stream("s-0000").append(("ours", number))
    before = bodies(target, "s-0000")
    with pytest.raises(AlreadyExists, match="is not a copy"):
        holdfast.copy(source, target)
    assert bodies(target, "s-0000") == before


def test_the_same_records_under_other_fields_are_not_a_copy(source: MemoryBackend, target: MemoryBackend) -> None:
    append = Append(key("s"), 0, b"", b"life", b"i" * 16, [(b"h" * 32, b"body")], fields=Fields(status="here"))
    register(source, append)
    target.append([msgspec.structs.replace(append, fields=Fields(status="there"))])
    with pytest.raises(AlreadyExists, match="is not a copy"):
        holdfast.copy(source, target)


def register(backend: MemoryBackend, append: Append) -> None:
    """Store it, in a tenant that is registered."""
    on(backend).stream("first").append(("noted", None))
    [answer] = backend.append([append])
    assert isinstance(answer, Appended)


def test_a_registered_tenant_need_not_be_copied(source: MemoryBackend, target: MemoryBackend) -> None:
    on(target).stream("theirs").append(("noted", 1))
    many(on(source), 2)
    copied = holdfast.copy(source, target)
    assert (copied.streams, copied.skipped, copied.extra, copied.extra_names) == (2, 1, 1, ["stream 'theirs'"])


def test_half_of_an_append_is_not_a_beginning(source: MemoryBackend, target: MemoryBackend) -> None:
    recorder = Recorder(source)
    on(recorder).stream("s").append(("noted", 1), ("noted", 2), ("noted", 3), id="all")
    whole = recorder.stored[-1]
    target.append([msgspec.structs.replace(whole, records=whole.records[:1])])
    with pytest.raises(AlreadyExists, match="is not a copy"):
        holdfast.copy(source, target)
    assert len(bodies(target, "s")) == 1


def test_a_tenant_that_somebody_registers_meanwhile_is_no_conflict(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    class Raced(Wrapper):
        def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
            on(target).stream("theirs").append(("noted", 1))
            return target.append(batch)

    many(on(source), 2)
    assert holdfast.copy(source, Raced(target)).streams == 2


def test_what_was_deleted_at_the_destination_is_reported(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 2)
    holdfast.copy(source, target)
    head = target.head(key("s-0001"))
    assert head is not None and target.delete(head.stream, expected=head)
    with pytest.raises(AlreadyExists, match="'s-0001' was deleted at the destination"):
        holdfast.copy(source, target)


# -- what happens at the source meanwhile ------------------------------------------------------------------------------


def test_a_stream_begun_anew_at_the_source_replaces_its_former_copy(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    on(source).stream("s").append(("former", LARGE), ("former", 2))
    holdfast.copy(source, target)
    on(source).stream("s").delete()
    on(source).stream("s").append(("new", 1))
    holdfast.copy(source, target)
    assert bodies(target, "s") == bodies(source, "s")
    assert len(bodies(target, "s")) == 1


def test_a_lost_answer_to_a_deletion_is_no_reason_to_stop(source: MemoryBackend, target: MemoryBackend) -> None:
    on(source).stream("s").append(("former", 1))
    holdfast.copy(source, target)
    on(source).stream("s").delete()
    on(source).stream("s").append(("new", 1))

    class Mute(Wrapper):
        lost = False

        def delete(self, stream: StreamKey, *, expected: Head, upto: int | None = None) -> bool:
            done = target.delete(stream, expected=expected, upto=upto)
            if not self.lost:
                self.lost = True
                raise holdfast.OutcomeUnknown("the answer was lost")
            return done

    mute = Mute(target)
    with fake_clock():
        holdfast.copy(source, mute)
    assert mute.lost and bodies(target, "s") == bodies(source, "s")


def test_a_former_copy_that_went_on_is_not_replaced(source: MemoryBackend, target: MemoryBackend) -> None:
    on(source).stream("s").append(("former", 1))
    holdfast.copy(source, target)
    on(source).stream("s").delete()
    on(source).stream("s").append(("new", 1))
    on(target).stream("s").append(("valuable", 1))
    with pytest.raises(AlreadyExists, match="is not a copy"):
        holdfast.copy(source, target)
    assert len(bodies(target, "s")) == 2


def test_what_was_deleted_at_the_source_is_told_and_deleted_if_wanted(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    on(source).stream("gone").append(("noted", LARGE))
    on(source).stream("kept").append(("noted", LARGE))
    holdfast.copy(source, target)
    on(source).stream("gone").delete()
    on(target).stream("theirs").append(("noted", LARGE))
    copied = holdfast.copy(source, target)
    assert (copied.extra, copied.deleted) == (4, 0)
    assert "stream 'gone'" in copied.extra_names and "stream 'theirs'" in copied.extra_names
    assert bodies(target, "gone")
    copied = holdfast.copy(source, target, delete=True)
    assert (copied.extra, copied.deleted) == (2, 2)
    assert not bodies(target, "gone")
    assert bodies(target, "kept") and bodies(target, "theirs")
    assert [event.data for event in on(target).stream("kept").read()] == [LARGE]
    assert [event.data for event in on(target).stream("theirs").read()] == [LARGE]
    assert len(target.heads(tenant="default", kind="blob")) == 2


def test_what_is_begun_while_the_copy_looks_is_not_taken_for_deleted(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    class Early(Wrapper):
        """Has listed its streams just before one of them was begun."""

        def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
            return [head for head in source.heads(**options) if head.stream.id != "s-0001"]

    many(on(source), 3)
    holdfast.copy(source, target)
    assert holdfast.copy(Early(source), target, delete=True).extra == 0


def test_a_copy_that_went_on_is_not_deleted(source: MemoryBackend, target: MemoryBackend) -> None:
    on(source).stream("gone").append(("noted", 1))
    holdfast.copy(source, target)
    on(source).stream("gone").delete()
    on(target).stream("gone").append(("valuable", 1))
    copied = holdfast.copy(source, target, delete=True)
    assert (copied.extra, copied.deleted) == (1, 0)
    assert len(bodies(target, "gone")) == 2


@pytest.mark.usefixtures("small")
def test_a_stream_begun_anew_in_the_middle_is_copied_as_it_is_then(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    store = on(source)
    for number in range(30):
        store.stream("s").append(("former", number))

    def meddle() -> None:
        store.stream("s").delete()
        for number in range(20):
            store.stream("s").append(("new", number))

    meddler = Meddler(source, "s", 10, meddle)
    holdfast.copy(meddler, target)
    assert meddler.meddled
    assert [event.type for event in on(target).stream("s").read()] == ["new"] * 20


def test_what_the_source_tells_of_deletions_is_read_again_after_one(
    source: MemoryBackend, target: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = on(source)
    for name in ("a", "b"):
        store.stream(name).append(("former", 1))
    holdfast.copy(source, target)
    store.stream("a").delete()
    store.stream("a").append(("new", 1))
    store.stream("b").append(("former", "x" * 1000))
    store.stream("b").append(("former", "y" * 1000))
    monkeypatch.setattr(memory, "PAGE_BYTES", 700)

    def begin_anew() -> None:
        assert bodies(target, "a") == bodies(source, "a")
        store.stream("b").delete()
        store.stream("b").append(("new", 1))

    monkeypatch.setattr(writing, "BATCH_APPENDS", 1)
    meddler = Meddler(source, "b", 2, begin_anew)
    holdfast.copy(meddler, target)
    assert meddler.meddled
    assert bodies(target, "b") == bodies(source, "b")


@pytest.mark.usefixtures("small")
def test_of_a_stream_deleted_in_the_middle_nothing_is_left(source: MemoryBackend, target: MemoryBackend) -> None:
    store, recorder = on(source), Recorder(target)
    many(store, 3)
    for number in range(30):
        store.stream("s").append(("former", number))
    meddler = Meddler(source, "s", 10, lambda: store.stream("s").delete())
    copied = holdfast.copy(meddler, recorder)
    assert meddler.meddled and any(append.stream == key("s") for append in recorder.stored)
    assert target.head(key("s")) is None
    assert copied.extra == 0


def test_what_went_on_elsewhere_is_not_deleted_with_the_source(source: MemoryBackend, target: MemoryBackend) -> None:
    store = on(source)
    store.stream("s").append(("noted", 1))
    holdfast.copy(source, target)
    for number in range(2):
        on(target).stream("s").append(("valuable", number))
    for number in range(3):
        store.stream("s").append(("ours", number))

    def begin_anew() -> None:
        head = source.head(key("s"))
        assert head is not None and source.delete(head.stream, expected=head)  # nobody told the audit stream
        store.stream("s").append(("new", 1))

    with pytest.raises(AlreadyExists):
        holdfast.copy(Meddler(source, "s", 0, begin_anew), target)
    assert len(bodies(target, "s")) == 3


@pytest.mark.usefixtures("small")
def test_a_stream_that_grows_in_the_middle_is_copied_as_it_was(source: MemoryBackend, target: MemoryBackend) -> None:
    store = on(source)
    for number in range(30):
        store.stream("s").append(("noted", number))
    meddler = Meddler(source, "s", 10, lambda: store.stream("s").append(("late", 1), ("late", 2)))
    copied = holdfast.copy(meddler, target)
    assert meddler.meddled
    assert bodies(target, "s") == bodies(source, "s")[:30]
    assert copied.verified == copied.streams
    assert holdfast.copy(source, target).records == 2


def test_a_large_value_stored_in_the_middle_arrives_with_the_event_that_names_it(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    store = on(source)
    store.stream("a").append(("noted", LARGE))
    store.stream("b").append(("noted", 1))

    class Late(Wrapper):
        met = False

        def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
            if (options["tenant"], options["kind"]) == ("default", "stream") and not self.met:
                self.met = True
                store.stream("b").append(("noted", LARGE + "y"))
            return source.heads(**options)

    late = Late(source)
    holdfast.copy(late, target)
    assert late.met
    assert [event.data for event in on(target).stream("b").read()] == [1, LARGE + "y"]


class Hints(Wrapper):
    """Lists heads as they were, or as they are going to be."""

    def __init__(self, inner: Backend, kind: str) -> None:
        super().__init__(inner)
        self._kind = kind

    def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
        return [self._hint(head) for head in self.inner.heads(**options)]

    def _hint(self, head: Head) -> Head:
        if self._kind == "early":
            return msgspec.structs.replace(head, version=head.version + 1, hash=b"?" * 32)
        if self._kind == "other life":
            return msgspec.structs.replace(head, incarnation=b"?" * 16)
        [first] = self.inner.read(head.stream, limit=1)
        return msgspec.structs.replace(head, version=1, hash=first.hash, fields=Fields())


@pytest.mark.parametrize("kind", ["early", "other life"])
def test_listings_are_hints_and_heads_are_exact(kind: str, source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 3)
    copied = holdfast.copy(Hints(source, kind), Hints(target, kind))
    again = holdfast.copy(Hints(source, kind), Hints(target, kind))
    assert (copied.streams, again.streams, again.verified) == (4, 0, 4)
    for name in ("s-0000", "s-0001", "s-0002"):
        assert target.read(key(name)) == source.read(key(name))


def test_an_old_listing_of_the_source_is_no_reason_to_stop(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 2)
    holdfast.copy(source, target)
    on(source).stream("s-0001").append(("noted", "new"))
    copied = holdfast.copy(Hints(source, "old"), target)
    assert (copied.records, copied.verified) == (1, 3)


def test_an_old_listing_of_the_destination_is_no_reason_to_stop(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 3)
    holdfast.copy(source, target)
    on(source).stream("s-0001").append(("noted", "new"))
    copied = holdfast.copy(source, Hints(target, "old"))
    assert (copied.records, copied.verified) == (1, 4)


# -- damage ------------------------------------------------------------------------------------------------------------


def damage(backend: MemoryBackend, name: str, version: int) -> None:
    records = backend._streams[key(name)].records
    records[version - 1] = msgspec.structs.replace(records[version - 1], body=b"altered")


@pytest.mark.usefixtures("small")
def test_damage_at_the_source_is_named_and_all_else_is_copied(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 5)
    damage(source, "s-0002", 4)
    with pytest.raises(CorruptRecord, match=r"'s-0002' \(version 4\)"):
        holdfast.copy(source, target)
    for name in ("s-0000", "s-0001", "s-0003", "s-0004"):
        assert bodies(target, name) == bodies(source, name)
    assert b"altered" not in bodies(target, "s-0002")


def test_damage_that_appears_after_a_first_copy_is_not_taken_for_another_stream(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 1, 2)
    holdfast.copy(source, target)
    on(source).stream("s-0000").append(("noted", 1))
    damage(source, "s-0000", 5)
    with pytest.raises(CorruptRecord, match=r"\(version 5\)"):
        holdfast.copy(source, target)


def test_damage_at_the_destination_is_found_by_reading_it_back(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 3)
    holdfast.copy(source, target)
    damage(target, "s-0001", 2)
    assert holdfast.copy(source, target, verify=False).verified == 0
    with pytest.raises(CorruptRecord, match=r"'s-0001' \(version 2\) is damaged: at the destination"):
        holdfast.copy(source, target)


def test_a_destination_that_forgets_is_found_out(source: MemoryBackend) -> None:
    many(on(source), 3)

    class Forgetful(MemoryBackend):
        def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
            self._streams.pop(key("s-0001"), None)
            return super().heads(**options)

    with pytest.raises(CorruptRecord, match="1 of its streams of kind stream"):
        holdfast.copy(source, Forgetful(), verify=False)


def test_heads_that_are_right_do_not_hide_records_that_are_not(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 1)
    holdfast.copy(source, target)
    on(source).stream("s-0000").append(("ours", 1))
    on(target).stream("s-0000").append(("theirs", 1))

    class Deceived(Wrapper):
        def head(self, stream: StreamKey) -> Head | None:
            return source.head(stream)

        def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
            return source.heads(**options)

    assert holdfast.copy(source, Deceived(target), verify=False).skipped == 2
    with pytest.raises(CorruptRecord, match=r"'s-0000' \(version 7\) is damaged: at the destination"):
        holdfast.copy(source, Deceived(target))


def test_a_destination_that_stores_other_fields_is_found_out(source: MemoryBackend, target: MemoryBackend) -> None:
    class Careless(Wrapper):
        def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
            return target.append([msgspec.structs.replace(one, fields=Fields(status="?")) for one in batch])

    many(on(source), 1)
    with pytest.raises(CorruptRecord, match="something else than the source"):
        holdfast.copy(source, Careless(target), verify=False)


def test_a_stream_that_cannot_be_stored_does_not_keep_the_others_back(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 5)

    class Narrow(Wrapper):
        def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
            if any(one.stream.id == "s-0002" and one.expected == 2 for one in batch):
                raise TooLarge("a record of stream 's-0002' is too large here")
            return target.append(batch)

    with pytest.raises(TooLarge, match="s-0002"):
        holdfast.copy(source, Narrow(target))
    for name in ("s-0000", "s-0001", "s-0003", "s-0004"):
        assert bodies(target, name) == bodies(source, name)
    assert len(bodies(target, "s-0002")) == 2


def test_a_source_that_cannot_be_read_in_one_place_is_read_in_all_others(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 5)

    class Broken(Wrapper):
        def read(
            self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
        ) -> Sequence[Record]:
            if stream.id == "s-0003":
                raise CorruptRecord(str(stream), what="a page of the file cannot be read")
            return super().read(stream, after=after, limit=limit, reverse=reverse)

    with pytest.raises(CorruptRecord, match="s-0003"):
        holdfast.copy(Broken(source), target)
    assert [name for name in range(5) if bodies(target, f"s-000{name}")] == [0, 1, 2, 4]
