"""Copying a store: everything arrives as it was, whatever happens on the way, and nothing is
overwritten."""

from __future__ import annotations

import asyncio
import itertools
import logging
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
from helpers.engines.memory_space import MemorySpace
from helpers.servers import SERVERS
from helpers.stored.store_copies import (
    LARGE,
    Recorder,
    Wrapper,
    bodies,
    double,
    dump,
    key,
    many,
    on,
    populate,
)
from helpers.stores import CHOSEN, url_of
from holdfast import Store, notify
from holdfast.admin.copy import writer as writing
from holdfast.backends import (
    Append,
    AppendResult,
    Backend,
    Head,
    HeadFields,
    StreamKey,
    VersionMismatch,
    memory,
)
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.objects.backend import ObjectsBackend
from holdfast.errors import AlreadyExists, NotSetUp
from holdfast.log.ids import KINDS
from holdfast.testing import fake_clock
from holdfast.types import CopyProgress, CopyResult

OBJECTS = "objects"
"""What stands for simulated servers, which are slow: all of their code but the requests. They have
tests of their own below."""

ENGINES = (
    "memory",
    "sqlite",
    "files",
    OBJECTS,
    "postgres",
    "redis",
    *(("dynamodb", "s3") if CHOSEN == "all" else ()),
)


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
    monkeypatch.setattr(writing, "SLICE_STREAMS", 2)


@pytest.mark.parametrize("engine", ["memory", "sqlite", "files", "postgres", "redis"])
def test_a_store_is_not_copied_to_itself(tmp_path: Path, engine: str) -> None:
    url: str | Backend = MemoryBackend() if engine == "memory" else url_of(engine, tmp_path)
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", 1))
        with pytest.raises(AlreadyExists, match="same store"):
            holdfast.copy(store, url)


class Counting(Wrapper):
    """Counts how often it was asked where a stream stands."""

    asked = 0

    def head(self, stream: StreamKey) -> Head | None:
        self.asked += 1
        return super().head(stream)


def test_an_engine_that_lists_places_is_not_asked_for_each(tmp_path: Path) -> None:
    """SQLite does not list them; the other one may be far, and each answer paid for."""
    here, far, back = tmp_path / "here.db", Counting(MemoryBackend("far")), tmp_path / "back.db"
    with holdfast.open(here) as store:
        many(store, 30)
    for source, target in [(here, far), (here, far), (far, back), (far, back)]:
        far.asked = 0
        assert holdfast.copy(source, target, verify=False).skipped in (0, 31)
        assert far.asked < 10


# -- everything arrives ----------------------------------------------------------------------------


def notify_once(store: Store) -> None:
    """A task that failed, and a notification of it that was delivered."""

    @holdfast.agent("failing", max_attempts=1)
    def fail(task: Any) -> None:
        raise ValueError("no such account")

    store.submit("failing", "failed")
    store.run_due()
    assert notify.deliver_due(store, [lambda notification: None]) == 1


@pytest.mark.slow
@pytest.mark.unencrypted("the destination would have keys of its own")
@pytest.mark.parametrize("engine", ENGINES)
def test_everything_comes_back_byte_for_byte_from_any_engine(engine: str, tmp_path: Path) -> None:
    here, back = tmp_path / "here.db", tmp_path / "back.db"
    with holdfast.open(here) as store:
        populate(store)
        notify_once(store)
    place = ObjectsBackend(MemorySpace()) if engine == OBJECTS else url_of(engine, tmp_path)
    with holdfast.open(place) as there:
        copied = holdfast.copy(here, there)
        assert (
            there.stream("orders-7").append(("order.placed", {"number": 1}), id="req-1").duplicate
        )
        assert there.for_tenant("acme ä").stream("orders-7").version() == 1
        assert holdfast.copy(there, back).records == copied.records
    before, after = dump(here), dump(back)
    assert before.keys() == after.keys()
    for stream in before:
        assert before[stream] == after[stream], stream
    assert copied.verified == copied.streams == len(before)
    assert copied.records == sum(len(records) for _, records in before.values())
    assert copied.bytes == sum(
        len(record[3]) for _, records in before.values() for record in records
    )
    assert {kind for _, kind, _ in before} == set(KINDS) - {"key", "subject"}


def test_the_copy_is_a_store_that_goes_on(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        populate(store)
    holdfast.copy(tmp_path / "a.db", tmp_path / "b.db")
    with holdfast.open(tmp_path / "b.db") as store:
        assert store.conversation("support-42b").messages()[-1]["content"] == LARGE
        assert store.state("team-1").load()["round"] == 4
        assert store.artifact("claim-42", "claims.bin").read() == b"claim" * 500_000
        with pytest.raises(holdfast.errors.Expired):
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
        with pytest.raises(holdfast.LeaseHeld), on(target).task("claim-44", wait=0, steal=False):
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


def test_ids_that_look_like_those_of_the_log_are_still_known(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    names = [f"request {number}" for number in range(500)]
    with on(source) as store:
        for name in names:
            store.stream("s").append(("noted", name), id=name)
        holdfast.copy(store, target)
    assert [
        on(target).stream("s").append(("noted", name), id=name).duplicate for name in names
    ] == [True] * 500


@pytest.mark.usefixtures("small")
def test_what_is_pointed_to_arrives_before_what_points_to_it(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    populate(on(source))
    recorder = Recorder(target)
    holdfast.copy(source, recorder)
    last = {append.stream: place for place, append in enumerate(recorder.stored)}
    first = {append.stream: place for place, append in reversed(list(enumerate(recorder.stored)))}
    tenants = {stream.tenant for stream in first} - {"$system"}
    assert tenants == {"default", "acme ä"}
    for tenant in tenants:
        streams = [stream for stream in first if stream.tenant == tenant]
        assert last[StreamKey("$system", "tenant", tenant)] < min(
            first[stream] for stream in streams
        )
        blobs = [last[stream] for stream in streams if stream.kind == "blob"]
        assert max(blobs, default=-1) < min(
            first[stream] for stream in streams if stream.kind != "blob"
        )


@pytest.mark.usefixtures("small")
def test_until_it_is_whole_nobody_takes_a_task_for_one_to_be_run(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    with on(source).task("claim-45", goal="Settle it", lease=600) as task:
        for number in range(20):
            task.step(f"step-{number}", double, number)

        class Watched(Wrapper):
            seen: list[Head] = []

            def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
                head = target.head(key("claim-45", "task"))
                self.seen += [head] if head else []
                return super().append(batch)

        watched = Watched(target)
        holdfast.copy(source, watched)
    assert len(watched.seen) > 2
    assert {head.fields for head in watched.seen} == {HeadFields()}
    whole = target.head(key("claim-45", "task"))
    assert whole is not None and whole.fields.status == "running"


def test_many_small_streams_share_batches(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 300)

    class Counting(Wrapper):
        batches = 0

        def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
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

    async def run() -> CopyResult:
        async with holdfast.aopen(f"file://{tmp_path}/b") as source:
            copied = await asyncio.to_thread(holdfast.copy, source, tmp_path / "c.db")
            assert await source.stream("s").version() == 1
            return copied

    assert asyncio.run(run()).streams == 2
    assert dump(tmp_path / "a.db") == dump(tmp_path / "c.db")


@pytest.mark.parametrize("scheme", ["", "sqlite:///", "file://"])
def test_a_source_that_is_not_there_is_not_made(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(NotSetUp, match="no store"):
        holdfast.copy(f"{scheme}{tmp_path}/typo.db", tmp_path / "b.db")
    assert list(tmp_path.iterdir()) == []


def test_progress_is_told_while_it_copies_and_while_it_verifies(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 100)
    told: list[CopyProgress] = []
    copied = holdfast.copy(source, target, progress=told.append)
    assert [one.phase for one in told] == sorted(one.phase for one in told)
    assert {one.phase for one in told} == {"copying", "verifying"}
    assert (told[-1].streams, told[-1].records, told[-1].bytes) == (101, 601, copied.bytes)
    assert told[-1].of in (None, 101)


# -- again, and again ------------------------------------------------------------------------------


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


class Interrupted(BaseException):
    """Stands for the end of the process: nothing above the seam handles it."""


class Interrupting(Wrapper):
    """A destination whose process ends at the given append, before it is stored or after."""

    def __init__(self, inner: Backend, appends: int, *, before: bool) -> None:
        super().__init__(inner)
        self._left, self._before = appends, before

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self._left -= 1
        if self._left == 0 and self._before:
            raise Interrupted
        answers = self.inner.append(batch)
        if self._left == 0:
            raise Interrupted
        return answers


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_interrupted_at_any_append_the_next_copy_goes_on(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "BATCH_APPENDS", 5)
    source, expected, done = MemoryBackend(), Recorder(MemoryBackend()), 0
    populate(on(source))
    many(on(source), 5)
    holdfast.copy(source, expected)
    for appends in itertools.count(1):
        recorder = Recorder(MemoryBackend())
        try:
            holdfast.copy(source, Interrupting(recorder, appends, before=before))
        except Interrupted:
            done = appends
        holdfast.copy(source, recorder)
        assert recorder.by_stream() == expected.by_stream()
        if done < appends:
            break
    assert done > 10


@pytest.mark.slow
@pytest.mark.parametrize("engine", SERVERS)
def test_a_copy_to_a_server_goes_on_where_it_was_interrupted(engine: str, tmp_path: Path) -> None:
    with (
        holdfast.open(tmp_path / "here.db") as store,
        holdfast.open(url_of(engine, tmp_path)) as there,
    ):
        many(store, 3)
        store.conversation("ä/ö").append({"role": "user", "content": LARGE}, id="m-1")
        for appends, before in ((3, True), (1, False)):
            with pytest.raises(Interrupted):
                holdfast.copy(store, Interrupting(there._log.backend, appends, before=before))
        assert holdfast.copy(store, there).verified == 6
        assert (
            there.conversation("ä/ö").append({"role": "user", "content": LARGE}, id="m-1").duplicate
        )
        assert holdfast.copy(there, tmp_path / "back.db", verify=False).streams == 6
    assert dump(tmp_path / "here.db") == dump(tmp_path / "back.db")


KILLED = """
import os, signal, sys
import holdfast
from holdfast.admin.copy import writer
from holdfast.backends import retrying

source, target, calls, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
writer.BATCH_APPENDS = 5
inner = retrying.RetryingBackend.append

def append(self, batch):
    global calls
    calls -= 1
    if calls == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answers = inner(self, batch)
    if calls == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return answers

retrying.RetryingBackend.append = append
holdfast.copy(source, target)
"""


@pytest.mark.slow
@pytest.mark.unencrypted("which ids of appends need not be kept cannot be seen")
@pytest.mark.parametrize("engine", ["sqlite", "files"])
def test_killed_in_the_middle_the_next_copy_goes_on(engine: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here.db", url_of(engine, tmp_path)
    with holdfast.open(here) as store:
        populate(store)
        many(store, 9)
    for place in (("1", "after"), ("2", "before"), ("3", "after")):
        command = [sys.executable, "-c", KILLED, str(here), there, *place]
        killed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    holdfast.copy(here, there)
    holdfast.copy(there, tmp_path / "back.db")
    assert dump(here) == dump(tmp_path / "back.db")


def test_two_copies_at_once_make_one(source: MemoryBackend, target: MemoryBackend) -> None:
    many(on(source), 200)
    done: list[CopyResult] = []
    threads = [
        threading.Thread(target=lambda: done.append(holdfast.copy(source, target)))
        for _ in range(3)
    ]
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
    faults = dict.fromkeys(
        ("unavailable", "lost_answer", "lost_request", "late", "late_part"), 0.05
    )
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
    with fake_clock(), pytest.raises(holdfast.errors.Unavailable):
        holdfast.copy(source, FaultyBackend(target, seed=1, unavailable=1.0))


# -- what the destination already has --------------------------------------------------------------


def test_a_stream_of_the_destination_is_never_overwritten(
    source: MemoryBackend, target: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    many(on(source), 5)
    on(target).stream("s-0001").append(("mine", 1))
    on(target).stream("s-0003").append(("mine", 3))
    before = [target.read(key(name)) for name in ("s-0001", "s-0003")]
    with (
        caplog.at_level(logging.ERROR, "holdfast"),
        pytest.raises(AlreadyExists, match="stream 's-0001'"),
    ):
        holdfast.copy(source, target)
    assert [target.read(key(name)) for name in ("s-0001", "s-0003")] == before
    assert "stream 's-0003'" in caplog.text
    for name in ("s-0000", "s-0002", "s-0004"):
        assert bodies(target, name) == bodies(source, name)


def test_a_copy_that_somebody_went_on_with_is_left_alone(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 2)
    holdfast.copy(source, target)
    on(target).stream("s-0001").append(("later", None))
    with pytest.raises(AlreadyExists, match="newer version at the destination"):
        holdfast.copy(source, target)
    assert len(bodies(target, "s-0001")) == 7


@pytest.mark.parametrize("more", [0, 1, 2])
def test_another_history_of_the_same_incarnation_is_noticed(
    more: int, source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 1, 1)
    holdfast.copy(source, target)
    on(target).stream("s-0000").append(("theirs", None))
    for number in range(1 + more):
        on(source).stream("s-0000").append(("ours", number))
    before = bodies(target, "s-0000")
    with pytest.raises(AlreadyExists, match="is not a copy"):
        holdfast.copy(source, target)
    assert bodies(target, "s-0000") == before


def test_the_same_records_under_other_fields_are_not_a_copy(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    append = Append(
        key("s"),
        0,
        b"",
        b"incarnation",
        b"i" * 16,
        [(b"h" * 32, b"body")],
        fields=HeadFields(status="here"),
    )
    register(source, append)
    target.append([msgspec.structs.replace(append, fields=HeadFields(status="there"))])
    with pytest.raises(AlreadyExists, match="is not a copy"):
        holdfast.copy(source, target)


def register(backend: MemoryBackend, append: Append) -> None:
    """Store it, in a tenant that is registered."""
    on(backend).stream("first").append(("noted", None))
    [answer] = backend.append([append])
    assert isinstance(answer, AppendResult)


def test_a_registered_tenant_need_not_be_copied(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    on(target).stream("theirs").append(("noted", 1))
    many(on(source), 2)
    copied = holdfast.copy(source, target)
    assert (copied.streams, copied.skipped, copied.extra, copied.extra_names) == (
        2,
        1,
        1,
        ["stream 'theirs'"],
    )


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
        def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
            on(target).stream("theirs").append(("noted", 1))
            return target.append(batch)

    many(on(source), 2)
    assert holdfast.copy(source, Raced(target)).streams == 2


def test_what_was_deleted_at_the_destination_is_reported(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 2)
    holdfast.copy(source, target)
    head = target.head(key("s-0001"))
    assert head is not None and target.delete(head.stream, expected=head)
    with pytest.raises(AlreadyExists, match="'s-0001' was deleted at the destination"):
        holdfast.copy(source, target)
