"""How much one sweep removes, what becomes of closed ids, and sweeps that are cut off."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.programs import program
from helpers.stored.expiring_streams import (
    DAY,
    HOUR,
    LARGE,
    Wrapped,
    closed,
    fill,
    ids,
    key_of,
    plant,
    there,
    user,
)
from helpers.stored.sweep_kills import EXPIRED, LIVING, judge, prepare
from holdfast import NotFound, Store
from holdfast.admin import purge_expired, purge_quota
from holdfast.backends import Backend, StreamKey
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import Expired, Unavailable
from holdfast.log import operations as ops
from holdfast.log.events import NewEvent, new_append_context
from holdfast.log.log import Log
from holdfast.log.operations.retired_ids import free_id, retired_id_key
from holdfast.log.operations.stream_ops import append_events, audit_key
from holdfast.types import SweepResult

# -- how much --------------------------------------------------------------------------------------


def test_a_call_deletes_at_most_its_limit(store: Store) -> None:
    fill(store, 10, 7)
    first = store.sweep(grace=0, limit=3)
    assert (len(first.deleted), first.held_back, first.capped) == (3, 4, False)
    assert str(first) == "deleted 3 expired conversations; left 4 for the next sweep"
    assert store.sweep(grace=0, limit=0).held_back == 4
    assert len(store.sweep(grace=0, limit=4).deleted) == 4


def test_the_only_stream_of_a_store_goes_when_it_has_expired(store: Store) -> None:
    with store.task("only", goal="g", ttl=0) as task:
        task.finish("done")
    swept = store.sweep(grace=0)
    assert (ids(swept.deleted), swept.held_back, swept.capped) == (["only"], 0, False)
    assert there(store) == set()


@pytest.mark.parametrize(("size", "goes"), [(100, 100), (150, 100), (240, 120)])
def test_a_hundred_go_in_a_day_and_of_a_large_store_half(size: int, goes: int) -> None:
    with holdfast.open("memory://") as store:
        fill(store, 0, size)
        swept = store.sweep(grace=0)
        assert (len(swept.deleted), swept.held_back) == (goes, size - goes)
        assert swept.capped is (goes < size)
        again = store.sweep(grace=0)
        assert (len(again.deleted), again.held_back) == (0, size - goes), "on the same day"


def test_a_hundred_are_deleted_without_counting_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open("memory://") as store:
        fill(store, 10, 100)
        counted: list[ops.Request] = []
        handle = store._log.handle

        def watched(request: ops.Request) -> Any:
            if isinstance(request, ops.ListHeads) and request.kind != "blob":
                counted.append(request)
            return handle(request)

        monkeypatch.setattr(store._log, "handle", watched)
        assert len(store.sweep(grace=0).deleted) == 100
        assert counted == []


@pytest.mark.usefixtures("without_minimum")
@pytest.mark.parametrize(("size", "goes"), [(1, 0), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_at_most_half_of_a_store_goes_in_a_day(store: Store, size: int, goes: int) -> None:
    fill(store, 0, size // 2, "task")
    fill(store, 0, size - size // 2)
    swept = store.sweep(grace=0)
    assert (len(swept.deleted), swept.held_back, swept.capped) == (goes, size - goes, True)
    assert "pass force=True" in str(swept)
    again = store.sweep(grace=0)
    assert (len(again.deleted), again.held_back, again.capped) == (0, size - goes, True)
    forced = store.sweep(grace=0, force=True, limit=size)
    assert len(forced.deleted) == size - goes and there(store) == set()


def test_force_does_not_lift_the_limit(store: Store) -> None:
    fill(store, 0, 4)
    assert len(store.sweep(grace=0, force=True, limit=3).deleted) == 3


@pytest.mark.usefixtures("without_minimum")
def test_a_wrong_clock_costs_at_most_half_however_often_it_is_swept(
    wrapped: tuple[Wrapped, Store],
) -> None:
    backend, store = wrapped
    for number in range(20):
        plant(store, "task" if number % 2 else "conversation", f"s{number}", 7 * DAY)
    wrong = 3650 * DAY
    for hour in range(24):
        backend.ahead = wrong + hour * HOUR
        store.sweep()
        backend.ahead = (
            0.0  # between two hours the clock is right; that must not make the sweep forget
        )
        assert store.sweep().deleted == []
        store.stream("other").append(("n", hour))
        store.stream("other").delete()
    assert len(there(store)) == 10
    backend.ahead = wrong + 25 * HOUR
    store.sweep()
    assert len(there(store)) == 5, "another day"
    backend.ahead = 0.0
    plant(store, "task", "due", -DAY)
    assert ids(store.sweep().deleted) == ["due"], (
        "a clock that was put right is not held back for what a wrong one did"
    )


@pytest.mark.usefixtures("without_minimum")
def test_two_sweeps_at_once_take_no_more_than_one(wrapped: tuple[Wrapped, Store]) -> None:
    backend, store = wrapped
    fill(store, 0, 20)
    others: list[SweepResult] = []

    def another() -> None:
        backend.before = lambda: None
        with holdfast.open(cast(Backend, backend)) as other:
            others.append(other.sweep(grace=0, limit=6))
        backend.close = lambda: None  # type: ignore[method-assign]

    calls = 0

    def at_the_tenth_write() -> None:
        nonlocal calls
        calls += 1
        if calls == 10:
            another()

    backend.close = lambda: None  # type: ignore[method-assign]
    backend.before = at_the_tenth_write
    mine = store.sweep(grace=0)
    assert len(others[0].deleted) == 6 and mine.deleted and mine.capped
    assert len(there(store)) == 10
    assert all(
        closed(store, "conversation", name) for name in ids(mine.deleted + others[0].deleted)
    )


@pytest.mark.usefixtures("without_minimum")
def test_a_store_is_counted_only_as_far_as_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_quota, "QUOTA_PAGE_ENTRIES", 50)
    with holdfast.open("memory://") as store:
        fill(store, 1000, 10)
        asked: list[ops.Request] = []
        handle = store._log.handle

        def watched(request: ops.Request) -> Any:
            asked.append(request)
            return handle(request)

        monkeypatch.setattr(store._log, "handle", watched)
        assert len(store.sweep(grace=0).deleted) == 10
        counted = [
            request
            for request in asked
            if isinstance(request, ops.ListHeads) and request.kind != "blob"
        ]
        assert len(counted) == 1


@pytest.mark.slow
def test_old_entries_of_the_audit_stream_are_not_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_quota, "QUOTA_PAGE_ENTRIES", 50)
    monkeypatch.setattr(purge_quota, "MAX_OLD_ENTRIES", 100)
    backend = Wrapped(MemoryBackend())
    with holdfast.open(cast(Backend, backend)) as store:
        fill(store, 1010, 1000)
        assert len(store.sweep(grace=0).deleted) == 1000
        backend.ahead = 30 * DAY
        plant(store, "task", "t", -1)
        read: list[ops.Request] = []
        handle = store._log.handle

        def watched(request: ops.Request) -> Any:
            if isinstance(request, ops.Read) and request.stream.kind == "audit":
                read.append(request)
            return handle(request)

        monkeypatch.setattr(store._log, "handle", watched)
        assert ids(store.sweep(grace=0).deleted) == ["t"]
        assert len(read) == 2


def test_counting_what_is_held_back_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_expired, "MAX_COUNTED", 30)
    with holdfast.open("memory://") as store:
        fill(store, 200, 100)
        swept = store.sweep(grace=0, limit=10)
        assert (len(swept.deleted), swept.held_back) == (10, 30)
        assert str(swept).endswith("left 30 or more for the next sweep")


stream_times = st.one_of(st.none(), st.integers(-10, 10))


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(
    streams=st.lists(
        st.tuples(st.sampled_from(purge_expired.SWEPT_KINDS), stream_times), max_size=12
    ),
    calls=st.lists(
        st.tuples(
            st.integers(-30, 60), st.integers(0, 4), st.integers(0, 5), st.booleans(), st.booleans()
        ),
        max_size=5,
    ),
)
def test_never_what_is_not_due_and_never_more_than_the_caps(
    streams: list[tuple[str, int | None]], calls: list[tuple[int, int, int, bool, bool]]
) -> None:
    """Times in hours, on a clock that goes forwards and backwards as it likes."""
    backend = Wrapped(MemoryBackend())
    with pytest.MonkeyPatch.context() as patched, holdfast.open(cast(Backend, backend)) as store:
        patched.setattr(purge_quota, "MIN_QUOTA", 3)
        expires: dict[str, float] = {}
        for number, (kind, hours) in enumerate(streams):
            plant(store, kind, f"s{number}", None if hours is None else hours * HOUR - 60)
            expires[f"s{number}"] = float("inf") if hours is None else hours - 1 / 60
        gone: list[tuple[float, int]] = []
        for ahead, grace, limit, force, dry_run in calls:
            backend.ahead = ahead * HOUR
            before = there(store)
            swept = store.sweep(grace=grace * HOUR, limit=limit, force=force, dry_run=dry_run)
            left = before - there(store)
            due = {name for name in before if expires[name] + grace <= ahead}
            assert left == set(ids(swept.deleted)) and set(ids(swept.would_delete)) | left <= due
            listed = swept.would_delete if dry_run else swept.deleted
            assert len(listed) <= limit
            assert len(listed) + swept.held_back == len(due), "all that was due is told of"
            recent = sum(count for at, count in gone if abs(at - ahead) < 24)
            most = max(max((len(before) + recent) // 2, 3) - recent, 0)
            if not force:
                assert len(listed) == min(len(due), limit, most), "and no less than that"
            gone.append((ahead, len(left)))
        assert all(
            closed(store, kind, f"s{number}") is not None or f"s{number}" in there(store)
            for number, (kind, _) in enumerate(streams)
        )


# -- closed ids ------------------------------------------------------------------------------------


def swept_chat(store: Store, name: str = "c") -> holdfast.Conversation:
    chat = store.conversation(name)
    chat.append(user("a"))
    chat.expire(0)
    assert ids(store.sweep(grace=0, force=True).deleted) == [name]
    return chat


@pytest.mark.parametrize("name", ["c", "ü" * 256, "/" + "a" * 511])
def test_a_swept_id_stays_closed_until_it_is_deleted(store: Store, name: str) -> None:
    old = swept_chat(store, name)
    store.conversation("other").append(user("o"))
    for chat in (old, store.conversation(name)):
        uses: list[Callable[[], Any]] = [
            chat.messages,
            chat.count,
            chat.version,
            chat.view,
            chat.pop,
            chat.repair,
            chat.clear,
            chat.drafts,
            lambda chat=chat: chat.pending(),
            lambda chat=chat: chat.window(100),
            lambda chat=chat: chat.append(user("b")),
            lambda chat=chat: chat.append(user("b"), if_version=0),
            lambda chat=chat: chat.sync([user("b")]),
            lambda chat=chat: chat.draft("b", of="x"),
            lambda chat=chat: chat.fork("fork"),
            lambda chat=chat: chat.expire(None),
            lambda chat=chat: chat.turn().__enter__(),
            lambda: store.conversation("other").fork(name),
        ]
        for use in uses:
            with pytest.raises(Expired):
                use()
    assert [item.id for item in store.conversations()] == ["other"]
    assert old.delete() is True
    assert old.delete() is False
    assert old.messages() == []
    old.append(user("new"))
    assert old.messages() == [user("new")]
    with pytest.raises(NotFound):
        store.conversation("none").expire(None)


def test_an_expired_document_is_swept_and_its_id_stays_closed_until_it_is_deleted(
    store: Store,
) -> None:
    old, kept = store.state("old"), store.state("kept")
    for document in (old, kept):
        document.save({"large": LARGE})
        document.save({"large": LARGE, "n": 1})
    kept.expire(3600)
    old.expire(0)
    assert len(there(store, "blob")) == 2, "the second version is a delta"
    swept = store.sweep(grace=0)
    assert [(stream.kind, stream.id, stream.version) for stream in swept.deleted] == [
        ("state", "old", 3)
    ]
    assert str(swept) == "deleted 1 expired state document"
    assert len(there(store, "blob")) == 1 and kept.load() == {"large": LARGE, "n": 1}
    for document in (old, store.state("old")):
        uses: list[Callable[[], Any]] = [
            document.load,
            document.history,
            document.clear,
            lambda document=document: document.load(None),
            lambda document=document: document.load(version=1),
            lambda document=document: document.save({"n": 2}),
            lambda document=document: document.save({"n": 2}, if_version=0),
            lambda document=document: document.rollback(1),
            lambda document=document: document.expire(None),
        ]
        for use in uses:
            with pytest.raises(Expired) as caught:
                use()
            assert caught.value.swept
    assert (old.delete(), old.delete()) == (True, False)
    assert old.load(None) is None and old.save({"n": 2}) == 1
    assert there(store, "closed") == set()


def test_a_sweep_of_several_kinds_reads_as_a_sentence(store: Store) -> None:
    for kind in purge_expired.SWEPT_KINDS:
        fill(store, 0, 2, kind)
    assert str(store.sweep(grace=0)) == (
        "deleted 2 expired tasks, 2 expired conversations, 2 expired state documents"
        " and 2 expired streams"
    )


def test_two_ids_never_share_a_record() -> None:
    long = "a" * 600
    assert retired_id_key(key_of("task", "a")) != retired_id_key(key_of("conversation", "a"))
    name = retired_id_key(key_of("task", long)).id
    assert len(name) < 100
    for other in ("a" * 601, name, name[4:], name[5:]):
        assert retired_id_key(key_of("task", other)).id != name


def test_an_id_can_be_swept_and_freed_again_and_again(store: Store) -> None:
    for _ in range(3):
        chat = swept_chat(store)
        with pytest.raises(Expired) as caught:
            chat.append(user("b"))
        assert caught.value.at.timestamp() == pytest.approx(
            closed(store, "conversation", "c"), abs=1e-5
        )
        assert chat.delete()
    assert store.health().streams == {"audit": 1}
    assert there(store, "closed") == set()


def test_the_record_of_an_id_means_nothing_while_there_is_a_stream(store: Store) -> None:
    swept_chat(store)
    key = key_of("conversation", "c")
    assert ops.run(store._log, free_id(key, new_append_context())) is True
    assert ops.run(store._log, free_id(key, new_append_context())) is False
    store.conversation("c").append(user("new"))
    store.conversation("c").expire(0)
    assert ids(store.sweep(grace=0, force=True).deleted) == ["c"]


def test_whether_an_id_is_closed_is_asked_only_when_nothing_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with holdfast.open("memory://") as store:
        asked: list[StreamKey] = []
        handle = store._log.handle

        def watched(request: ops.Request) -> Any:
            asked.append(getattr(request, "stream", key_of("", "")))
            return handle(request)

        monkeypatch.setattr(store._log, "handle", watched)
        store.conversation("c").append(user("a"))
        assert [key.kind for key in asked].count("closed") == 1
        asked.clear()
        store.conversation("c").append(user("b"))
        store.conversation("c").messages()
        assert "closed" not in [key.kind for key in asked]


# -- cut off ---------------------------------------------------------------------------------------


class CutOff(BaseException):
    """Not an error that anything could handle."""


class DeadFrom:
    """Lets nothing through from the n-th pass on: an append whose caller was cut off is sent again
    by a thread of the store."""

    def __init__(self, passes: int) -> None:
        self.left = passes

    def __call__(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise CutOff


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sweep_that_was_cut_off_anywhere_is_finished_by_the_next(when: str) -> None:
    passes, died = 0, True
    while died:
        passes += 1
        backend = Wrapped(MemoryBackend("outlives its stores"))
        with holdfast.open(cast(Backend, backend)) as store:
            prepare(store)
        store = holdfast.open(cast(Backend, backend.inner))
        prepared = holdfast.open(cast(Backend, backend.inner))
        setattr(backend, when, DeadFrom(passes))
        died = False
        try:
            holdfast.open(cast(Backend, backend)).sweep(grace=0)
        except CutOff:
            died = True
        for name in LIVING:
            assert prepared.conversation(name).messages() == [user(LARGE + name), user(name)]
        for name in EXPIRED:
            with pytest.raises(Expired):
                prepared.conversation(name).append(user("b"))
        again = store.sweep(grace=0)
        assert not again.held_back, "what was cut off does not count twice"
        judge(store)
    assert passes > 15


@pytest.mark.parametrize("seed", range(20))
def test_a_sweep_on_an_engine_that_fails_is_finished_by_the_next(seed: int) -> None:
    inner = MemoryBackend("outlives its stores")
    with holdfast.open(inner) as store:
        prepare(store)
    rates = dict.fromkeys(
        ("unavailable", "lost_answer", "lost_request", "late", "driver_error_stored"), 0.08
    )
    faulty = FaultyBackend(inner, seed=seed, read_unavailable=0.02, **rates)
    for _ in range(100):
        with (
            Store(Log(faulty, pause=lambda _: None), "default") as store,
            contextlib.suppress(holdfast.HoldfastError),
        ):
            store.sweep(grace=0)
            break
    else:
        raise AssertionError("it never came through")
    assert faulty.injected
    with holdfast.open(inner) as store:
        assert not store.sweep(grace=0).held_back
        judge(store)


def test_large_values_left_behind_go_when_the_id_is_freed(wrapped: tuple[Wrapped, Store]) -> None:
    backend, store = wrapped
    store.conversation("other").append(user("o"))
    store.conversation("c").append(user(LARGE))
    store.conversation("c").expire(0)

    def after() -> None:
        if not there(store, "conversation") - {"other"}:
            raise Unavailable("cut off")

    backend.after = after
    with pytest.raises(Unavailable):
        store.sweep(grace=0)
    backend.after = lambda: None
    assert there(store, "blob") and there(store) == {"other"}
    for number in range(1100):  # the audit stream has other things to tell since
        ops.run(
            store._log,
            append_events(
                audit_key("default"), [NewEvent("n", b"%d" % number)], new_append_context()
            ),
        )
    assert store.conversation("c").delete()
    assert there(store, "blob") == set() == there(store, "closed")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_sweep_killed_at_any_write_is_finished_by_the_next(kind: str, tmp_path: Path) -> None:
    command = program("helpers.stored.sweep_kills", kind, tmp_path / "kills")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["when"] for line in told] == ["before", "after"]
    assert all(line["killed"] > 15 for line in told), "a fault that never happened proved nothing"
