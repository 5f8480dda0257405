"""The sweep: what has expired goes, whole; nothing else does, whatever the clock says and whenever it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import holdfast
from holdfast import AsyncStore, Conflict, Expired, HasForks, NotFound, Store, Swept, Unavailable, _retention, _share
from holdfast import _operations as ops
from holdfast._blobs import life_of
from holdfast._closed import closed_at, closed_key, reopen
from holdfast._codec import encode
from holdfast._events import NewEvent
from holdfast._log import Log
from holdfast._streams import append_events, audit_of, new_stamp, note_deletion
from holdfast.backends import Append, Appended, Backend, Cursor, Description, Fields, Head, Record, StreamKey
from holdfast.backends import Conflict as Refused
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.cli._app import app

LARGE = "x" * 100_000
HOUR, DAY = 3600.0, 86400.0


class Wrapped:
    """Any backend, with a clock that can be put wrong, and with something to do around each write."""

    def __init__(self, inner: Backend) -> None:
        self.inner, self.ahead = inner, 0.0
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def append(self, batch: Sequence[Append]) -> Sequence[Appended | Refused]:
        self.before()
        answers = self.inner.append(batch)
        self.after()
        return [
            self._shifted(answer)
            if isinstance(answer, Appended)
            else Refused(answer.head and self._shifted(answer.head))
            for answer in answers
        ]

    def delete(self, stream: StreamKey, *, expected: Head, upto: int | None = None) -> bool:
        self.before()
        done = self.inner.delete(stream, expected=expected, upto=upto)
        self.after()
        return done

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        return self.inner.read(stream, after=after, limit=limit, reverse=reverse)

    def head(self, stream: StreamKey) -> Head | None:
        head = self.inner.head(stream)
        return head and self._shifted(head)

    def heads(
        self, *, tenant: str, kind: str, status: str | None = None, after: str = "", limit: int = 500
    ) -> Sequence[Head]:
        return list(
            map(self._shifted, self.inner.heads(tenant=tenant, kind=kind, status=status, after=after, limit=limit))
        )

    def due(
        self, *, tenant: str, kind: str, before: float | None = None, after: Cursor | None = None, limit: int = 100
    ) -> Sequence[Head]:
        return list(
            map(self._shifted, self.inner.due(tenant=tenant, kind=kind, before=before, after=after, limit=limit))
        )

    def describe(self) -> Description:
        return self.inner.describe()

    def close(self) -> None:
        self.inner.close()

    def _shifted(self, seen: Any) -> Any:
        return msgspec.structs.replace(seen, now=seen.now + self.ahead)


@pytest.fixture
def wrapped(url: str) -> Iterator[tuple[Wrapped, Store]]:
    """A store on each backend in turn, with what wraps it."""
    with holdfast.open(url) as inner:
        backend = Wrapped(inner._log.backend)
        with holdfast.open(cast(Backend, backend)) as store:
            yield backend, store


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def key_of(kind: str, id: str, tenant: str = "default") -> StreamKey:
    return StreamKey(tenant, kind, id)


def plant(store: Store, kind: str, id: str, ttl: float | None, *events: tuple[str, Any], **fields: Any) -> StreamKey:
    """A stream as the engine of its kind would leave it, which expires `ttl` seconds from now."""
    key, stamp = key_of(kind, id, store.tenant), new_stamp()
    head = ops.run(store._log, ops.head(audit_of(store.tenant)))
    now = head.now if head else stamp.at
    new = [NewEvent(name, encode(data)) for name, data in events or ((f"{kind}.created", {}),)]
    times = Fields(expires_at=None if ttl is None else now + ttl, **fields)
    ops.run(store._log, append_events(key, new, stamp, fields=times))
    return key


def fill(store: Store, living: int, expired: int, kind: str = "conversation") -> None:
    for number in range(living):
        plant(store, kind, f"living {number:04}", None)
    for number in range(expired):
        plant(store, kind, f"expired {number:04}", -1)


def there(store: Store, *kinds: str) -> set[str]:
    backend = store._log.backend
    heads = [head for kind in kinds or _retention.KINDS for head in backend.heads(tenant=store.tenant, kind=kind)]
    return {head.stream.id for head in heads}


def ids(swept: Sequence[Any]) -> list[str]:
    return [stream.id for stream in swept]


def closed(store: Store, kind: str, id: str) -> float | None:
    return ops.run(store._log, closed_at(key_of(kind, id, store.tenant)))


def audited(store: Store) -> list[tuple[str, str]]:
    stored = ops.run(store._log, ops.read(audit_of(store.tenant), plain=True))
    return [(event.envelope.data["id"], event.envelope.data["reason"]) for event in stored]


# -- what goes ---------------------------------------------------------------------------------------


def test_what_has_expired_goes_with_its_large_values_and_nothing_else_does(store: Store) -> None:
    for name in ("kept", "timely", "old", "older"):
        store.conversation(name).append(user(LARGE), user(name))
    store.conversation("timely").expire(timedelta(days=9))
    store.conversation("older").expire(0)
    store.conversation("old").expire(0)
    plant(store, "task", "t", -1, ("task.created", LARGE))
    plant(store, "task", "u", None)
    assert store.health().streams == {"blob": 5, "conversation": 4, "task": 2}
    swept = store.sweep(grace=0)
    assert [(stream.kind, stream.id, stream.version) for stream in swept.deleted] == [
        ("task", "t", 1),
        ("conversation", "older", 3),
        ("conversation", "old", 3),
    ]
    assert (swept.would_delete, swept.spared, swept.held_back, swept.capped, swept.dry_run) == ([], [], 0, False, False)
    assert store.health().streams == {"audit": 1, "blob": 2, "conversation": 2, "task": 1}
    assert store.conversation("timely").messages() == [user(LARGE), user("timely")]
    assert audited(store) == [("t", "expired"), ("older", "expired"), ("old", "expired")]
    assert store.sweep(grace=0).deleted == []


def test_what_expired_within_the_grace_stays(wrapped: tuple[Wrapped, Store]) -> None:
    backend, store = wrapped
    fill(store, 3, 1)
    assert store.sweep().deleted == [] == store.sweep(grace=HOUR).deleted
    backend.ahead = DAY - 60
    assert store.sweep().deleted == []
    backend.ahead = DAY
    assert ids(store.sweep().deleted) == ["expired 0000"]


def test_an_empty_store_has_nothing_to_sweep(store: Store) -> None:
    assert store.sweep() == Swept([], [], [], 0, False, False)


def test_a_lease_that_ran_out_is_no_expiry(store: Store) -> None:
    """Both times share an index, which lists the earlier of the two."""
    for number in range(250):
        plant(store, "task", f"crashed {number}", 90 * DAY if number % 2 else None, owner="gone", due_at=5.0)
    plant(store, "task", "over", -HOUR)
    plant(store, "task", "over, within the grace", -1, owner="gone", due_at=5.0)
    assert ids(store.sweep(grace=HOUR / 2).deleted) == ["over"]


def test_a_dry_run_tells_what_a_sweep_would_do_and_does_nothing(store: Store) -> None:
    fill(store, 6, 4)
    store.conversation("parent").append(user("a"))
    store.conversation("parent").fork("fork").expire(0)
    store.conversation("parent").expire(0)
    store.conversation("one too many").append(user("a"))
    store.conversation("one too many").expire(0)
    before = there(store)
    dry = store.sweep(grace=0, dry_run=True, limit=6)
    assert there(store) == before and audited(store) == []
    assert dry.dry_run and dry.deleted == []
    done = store.sweep(grace=0, limit=6)
    assert dry.would_delete == done.deleted and {"fork", "parent"} < set(ids(done.deleted))
    assert (dry.spared, dry.held_back, dry.capped) == (done.spared, done.held_back, done.capped)


def test_a_tenant_sweeps_its_own(store: Store) -> None:
    other = store.for_tenant("other")
    for tenant in (store, other):
        fill(tenant, 2, 1)
    assert ids(other.sweep(grace=0).deleted) == ["expired 0000"]
    assert len(there(store)) == 3 and len(there(other)) == 2
    assert closed(store, "conversation", "expired 0000") is None


def test_one_kind_does_not_keep_the_other_waiting(store: Store) -> None:
    fill(store, 0, 250, "task")
    fill(store, 300, 5, "conversation")
    swept = store.sweep(grace=0, limit=150)
    assert {stream.kind for stream in swept.deleted} == {"task", "conversation"}


def test_async_code_sweeps_in_the_same_way(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            for name in ("a", "b", "c"):
                await store.conversation(name).append(user(LARGE))
            await store.conversation("b").expire(0)
            assert ids((await store.sweep(grace=0, dry_run=True)).would_delete) == ["b"]
            swept = await store.sweep(grace=0)
            assert ids(swept.deleted) == ["b"] and str(swept) == "deleted 1 expired conversation"
            assert [chat.id async for chat in store.conversations()] == ["a", "c"]
            with pytest.raises(Expired):
                await store.conversation("b").append(user("x"))
            assert await store.conversation("b").delete()
            await store.conversation("b").append(user("x"))
            assert (await store.health()).streams == {"audit": 1, "blob": 2, "conversation": 3}

    asyncio.run(main())


def test_both_twins_have_the_same_options() -> None:
    assert inspect.signature(Store.sweep).parameters.keys() == inspect.signature(AsyncStore.sweep).parameters.keys()


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"limit": 1.5}, {"grace": -1}, {"grace": "1 day"}])
def test_wrong_arguments_are_refused_before_anything_is_done(store: Store, wrong: dict[str, Any]) -> None:
    fill(store, 2, 1)
    with pytest.raises(ValueError):
        store.sweep(**{"grace": 0, **wrong})
    assert len(there(store)) == 3


# -- what stays --------------------------------------------------------------------------------------


def test_a_conversation_with_living_forks_is_spared_until_they_are_gone(store: Store) -> None:
    chat = store.conversation("parent")
    chat.append(user("a"))
    fork = chat.fork("fork")
    grandchild = fork.fork("grandchild")
    fill(store, 4, 0)
    chat.expire(0)
    fork.expire(0)
    swept = store.sweep(grace=0)
    assert swept.deleted == [] and [(item.id, item.why) for item in swept.spared] == [
        ("parent", "forked"),
        ("fork", "forked"),
    ]
    assert grandchild.messages() == [user("a")]
    grandchild.delete()
    assert ids(store.sweep(grace=0).deleted) == ["fork"], "a fork that is not yet swept can be brought back"
    assert ids(store.sweep(grace=0).deleted) == ["parent"]


def test_a_task_with_living_forks_is_spared_until_they_are_gone(store: Store) -> None:
    fill(store, 4, 0, "task")
    cut_off = ("task.forked", {"child": "never made", "at": 1})
    parent = plant(
        store, "task", "parent", -1, ("task.created", {}), cut_off, ("task.forked", {"child": "fork", "at": 1})
    )
    head = ops.run(store._log, ops.head(parent))
    assert head is not None
    branched = {"parent": "parent", "life": life_of(head.incarnation), "at": 1}
    fork = plant(store, "task", "fork", None, ("task.branched", branched))
    swept = store.sweep(grace=0)
    assert swept.deleted == [] and [(item.kind, item.id, item.why) for item in swept.spared] == [
        ("task", "parent", "forked")
    ]
    standing = ops.run(store._log, ops.head(fork))
    assert standing is not None and ops.run(store._log, ops.delete(fork, expected=standing))
    plant(store, "task", "fork", None, ("task.branched", {**branched, "life": "another"}))
    assert ids(store.sweep(grace=0).deleted) == ["parent"]


def test_a_finished_task_goes_after_its_time_and_can_be_begun_anew(store: Store) -> None:
    fill(store, 4, 0)
    for name in ("done", "parent"):
        with store.task(name, goal="once", ttl=0) as task:
            assert task.step("look", lambda: LARGE) == LARGE
            if name == "parent":
                task.fork("fork")
            task.finish("found")
    with store.task("open", goal="later", ttl=0) as task:
        task.step("look", lambda: 1)
    swept = store.sweep(grace=0)
    assert ids(swept.deleted) == ["done"] and [(item.id, item.why) for item in swept.spared] == [("parent", "forked")]
    assert len(there(store, "blob")) == 1
    assert store.get_task("done") is None
    with pytest.raises(Expired):
        store.task("done", goal="once").__enter__()
    with store.task("done", goal="again", restart=True) as task:
        assert task.step("look", lambda: "anew") == "anew"
    with store.task("done") as task:
        assert (task.goal, task.step("look", lambda: "never asked")) == ("again", "anew")
    with store.task("fork") as task:
        assert task.step("look", lambda: "never asked") == LARGE


def test_what_somebody_holds_is_spared(wrapped: tuple[Wrapped, Store]) -> None:
    backend, store = wrapped
    fill(store, 4, 0)
    chat = store.conversation("c")
    chat.append(user("a"))
    with chat.turn(lease=60):
        chat.expire(0)
        [spared] = store.sweep(grace=0).spared
        assert (spared.id, spared.why) == ("c", "held")
        backend.ahead = 61
        assert ids(store.sweep(grace=0).deleted) == ["c"]
        backend.ahead = 0


def test_what_is_damaged_is_spared_and_keeps_nobody_waiting() -> None:
    backend = MemoryBackend("outlives its stores")
    with holdfast.open(backend) as store:
        fill(store, 4, 3)
    records = backend._streams[key_of("conversation", "expired 0001")].records
    records[0] = msgspec.structs.replace(records[0], body=b"{}")
    with holdfast.open(Wrapped(backend)) as store:
        swept = store.sweep(grace=0)
        assert ids(swept.deleted) == ["expired 0000", "expired 0002"]
        assert [(item.id, item.why) for item in swept.spared] == [("expired 0001", "damaged")]


@pytest.mark.parametrize(("kind", "deleted", "spared"), [("conversation", 1, ["damaged"]), ("closed", 2, [])])
def test_a_stream_whose_records_are_gone_keeps_nobody_waiting(
    tmp_path: Path, kind: str, deleted: int, spared: list[str]
) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        fill(store, 4, 2)
        left = closed_key(key_of("conversation", "left"))  # as by a sweep that was cut off
        event = NewEvent("id.closed", encode({"at": 1.0, "kind": "conversation", "id": "left", "life": "l"}))
        ops.run(store._log, append_events(left, [event], new_stamp(), fields=Fields(due_at=1.0)))
    first = f"(SELECT min(stream) FROM streams WHERE kind = '{kind}' AND due IS NOT NULL)"
    with sqlite3.connect(path) as database:
        assert database.execute(f"DELETE FROM records WHERE stream = {first}").rowcount
    database.close()
    with holdfast.open(path) as store:
        swept = store.sweep(grace=0)
    assert (len(swept.deleted), [stream.why for stream in swept.spared]) == (deleted, spared)


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_stream_that_moved_meanwhile_is_left_alone(wrapped: tuple[Wrapped, Store], write: int) -> None:
    backend, store = wrapped
    for name in ("a", "b", "c", "d"):
        store.conversation(name).append(user(LARGE))
    for name in ("a", "b"):
        store.conversation(name).expire(0)

    def bring_back() -> None:
        backend.before = lambda: None
        store.conversation("a").expire(None)

    with holdfast.open(cast(Backend, backend)) as other:  # telling, closing, deleting: three writes each
        backend.before = Countdown(write, bring_back)
        assert ids(other.sweep(grace=0).deleted) == ["b"]
        backend.close = lambda: None  # type: ignore[method-assign]
    assert store.conversation("a").messages() == [user(LARGE)], "the record of its id means nothing while it is there"
    assert store.conversation("a").delete()
    store.conversation("a").append(user("new"))


def test_an_id_that_is_freed_while_its_large_values_go_stays_free(wrapped: tuple[Wrapped, Store]) -> None:
    backend, store = wrapped
    store.conversation("other").append(user("o"))
    chat = store.conversation("c")
    chat.append(user(LARGE))
    chat.expire(0)

    def free() -> None:
        if not there(store, "blob"):
            backend.after = lambda: None
            assert store.conversation("c").delete()

    backend.after = free
    assert ids(store.sweep(grace=0).deleted) == ["c"]
    assert chat.messages() == []
    chat.append(user("new"))


def test_a_stream_that_is_deleted_meanwhile_leaves_its_id_free(wrapped: tuple[Wrapped, Store]) -> None:
    backend, store = wrapped
    fill(store, 4, 0)
    chat = store.conversation("c")
    chat.append(user("a"))
    chat.expire(0)
    hit = False

    def delete() -> None:
        nonlocal hit
        if closed(store, "conversation", "c") is not None and not hit:
            hit = True
            with contextlib.suppress(Conflict):
                ops.run(store._log, _only_the_stream(chat._key))

    def _only_the_stream(key: StreamKey) -> Any:
        """A deletion that had looked for the record of the id before the sweep wrote it."""
        head = yield from ops.head(key)
        yield from note_deletion(head, new_stamp(), "deleted by the program")
        yield from ops.delete(key, expected=head)

    backend.before = delete
    assert store.sweep(grace=0).deleted == [] and hit
    chat.append(user("new"))
    assert chat.messages() == [user("new")]


def test_a_fork_taken_while_its_parent_is_deleted_keeps_it(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"))
    make = store.conversation("c")._deleting("test")
    deletion, log = make(), store._log
    request: Any = next(deletion)
    answer: Any = None
    while answer != []:  # until it has read everything, and found no fork
        answer = log.handle(request)
        request = deletion.send(answer)
    fork = chat.fork("fork")
    with pytest.raises(Conflict):
        while True:
            request = deletion.send(log.handle(request))
    with pytest.raises(HasForks):
        chat.delete()
    assert fork.messages() == [user("a")]


# -- how much ----------------------------------------------------------------------------------------


def test_a_call_deletes_at_most_its_limit(store: Store) -> None:
    fill(store, 10, 7)
    first = store.sweep(grace=0, limit=3)
    assert (len(first.deleted), first.held_back, first.capped) == (3, 4, False)
    assert str(first) == "deleted 3 expired conversations; left 4 for the next sweep"
    assert store.sweep(grace=0, limit=0).held_back == 4
    assert len(store.sweep(grace=0, limit=4).deleted) == 4


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


def test_a_wrong_clock_costs_at_most_half_however_often_it_is_swept(wrapped: tuple[Wrapped, Store]) -> None:
    backend, store = wrapped
    for number in range(20):
        plant(store, "task" if number % 2 else "conversation", f"s{number}", 7 * DAY)
    wrong = 3650 * DAY
    for hour in range(24):
        backend.ahead = wrong + hour * HOUR
        store.sweep()
        backend.ahead = 0.0  # between two hours the clock is right; that must not make the sweep forget
        assert store.sweep().deleted == []
        store.stream("other").append(("n", hour))
        store.stream("other").delete()
    assert len(there(store)) == 10
    backend.ahead = wrong + 25 * HOUR
    store.sweep()
    assert len(there(store)) == 5, "another day"
    backend.ahead = 0.0
    plant(store, "task", "due", -DAY)
    assert ids(store.sweep().deleted) == ["due"], "a clock that was put right is not held back for what a wrong one did"


def test_two_sweeps_at_once_take_no_more_than_one(wrapped: tuple[Wrapped, Store]) -> None:
    backend, store = wrapped
    fill(store, 0, 20)
    others: list[Swept] = []

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
    assert all(closed(store, "conversation", name) for name in ids(mine.deleted + others[0].deleted))


def test_a_store_is_counted_only_as_far_as_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_share, "PAGE", 50)
    with holdfast.open("memory://") as store:
        fill(store, 1000, 10)
        asked: list[ops.Request] = []
        handle = store._log.handle

        def watched(request: ops.Request) -> Any:
            asked.append(request)
            return handle(request)

        monkeypatch.setattr(store._log, "handle", watched)
        assert len(store.sweep(grace=0).deleted) == 10
        counted = [request for request in asked if isinstance(request, ops.ListHeads) and request.kind != "blob"]
        assert len(counted) == 1


def test_old_entries_of_the_audit_stream_are_not_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_share, "PAGE", 50)
    monkeypatch.setattr(_share, "OLD_ENOUGH", 100)
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
    monkeypatch.setattr(_retention, "COUNTED", 30)
    with holdfast.open("memory://") as store:
        fill(store, 200, 100)
        swept = store.sweep(grace=0, limit=10)
        assert (len(swept.deleted), swept.held_back) == (10, 30)
        assert str(swept).endswith("left 30 or more for the next sweep")


stream_times = st.one_of(st.none(), st.integers(-10, 10))


@settings(max_examples=300, deadline=None)
@given(
    streams=st.lists(st.tuples(st.sampled_from(_retention.KINDS), stream_times), max_size=12),
    calls=st.lists(
        st.tuples(st.integers(-30, 60), st.integers(0, 4), st.integers(0, 5), st.booleans(), st.booleans()), max_size=5
    ),
)
def test_never_what_is_not_due_and_never_more_than_the_caps(
    streams: list[tuple[str, int | None]], calls: list[tuple[int, int, int, bool, bool]]
) -> None:
    """Times in hours, on a clock that goes forwards and backwards as it likes."""
    backend = Wrapped(MemoryBackend())
    with holdfast.open(cast(Backend, backend)) as store:
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
            most = max((len(before) + recent) // 2 - recent, 0)
            if not force:
                assert len(listed) == min(len(due), limit, most), "and no less than that"
            gone.append((ahead, len(left)))
        assert all(
            closed(store, kind, f"s{number}") is not None or f"s{number}" in there(store)
            for number, (kind, _) in enumerate(streams)
        )


# -- closed ids --------------------------------------------------------------------------------------


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
            chat.info,
            chat.pop,
            chat.repair,
            chat.clear,
            chat.drafts,
            lambda chat=chat: chat.pending,
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


def test_two_ids_never_share_a_record() -> None:
    long = "a" * 600
    assert closed_key(key_of("task", "a")) != closed_key(key_of("conversation", "a"))
    name = closed_key(key_of("task", long)).id
    assert len(name) < 100
    for other in ("a" * 601, name, name[4:], name[5:]):
        assert closed_key(key_of("task", other)).id != name


def test_an_id_can_be_swept_and_freed_again_and_again(store: Store) -> None:
    for _ in range(3):
        chat = swept_chat(store)
        with pytest.raises(Expired) as caught:
            chat.append(user("b"))
        assert caught.value.at == closed(store, "conversation", "c")
        assert chat.delete()
    assert store.health().streams == {"audit": 1}
    assert there(store, "closed") == set()


def test_the_record_of_an_id_means_nothing_while_there_is_a_stream(store: Store) -> None:
    swept_chat(store)
    key = key_of("conversation", "c")
    assert ops.run(store._log, reopen(key, new_stamp())) is True
    assert ops.run(store._log, reopen(key, new_stamp())) is False
    store.conversation("c").append(user("new"))
    store.conversation("c").expire(0)
    assert ids(store.sweep(grace=0, force=True).deleted) == ["c"]


def test_whether_an_id_is_closed_is_asked_only_when_nothing_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
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


# -- cut off -----------------------------------------------------------------------------------------

EXPIRED, LIVING = ("a", "b", "c"), ("d", "e", "f", "g")


def prepare(store: Store) -> None:
    for name in (*EXPIRED, *LIVING):
        store.conversation(name).append(user(LARGE + name), user("y" * 70_000 + name) if name < "c" else user(name))
    plant(store, "task", "t", -1, ("task.created", LARGE))
    plant(store, "task", "u", None, ("task.created", LARGE))
    for name in EXPIRED:
        store.conversation(name).expire(0)


def judge(store: Store) -> None:
    """All is as after a sweep that nothing disturbed. Run it on a store that was swept again after the fault."""
    assert there(store) == {*LIVING, "u"}
    assert len(there(store, "blob")) == len(LIVING) + 1, "large values of what is gone are gone"
    for name in LIVING:
        assert store.conversation(name).messages() == [user(LARGE + name), user(name)]
    assert closed(store, "task", "t") is not None
    for name in EXPIRED:
        with pytest.raises(Expired):
            store.conversation(name).append(user("b"))
        assert store.conversation(name).delete()
        assert store.conversation(name).messages() == []
    assert set(audited(store)) >= {(name, "expired") for name in (*EXPIRED, "t")}


class CutOff(BaseException):
    """Not an error that anything could handle."""


class Countdown:
    """Does something at the n-th pass."""

    def __init__(self, passes: int, do: Callable[[], None]) -> None:
        self.left, self.do = passes, do

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.do()


class DeadFrom:
    """Lets nothing through from the n-th pass on: an append whose caller was cut off is sent again by a thread of the store."""

    def __init__(self, passes: int) -> None:
        self.left = passes

    def __call__(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise CutOff


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
    rates = dict.fromkeys(("unavailable", "lost_answer", "lost_request", "late", "driver_error_stored"), 0.08)
    faulty = FaultyBackend(inner, seed=seed, read_unavailable=0.02, **rates)
    for _ in range(100):
        with Store(Log(faulty, pause=lambda _: None), "default") as store, contextlib.suppress(holdfast.HoldfastError):
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
        ops.run(store._log, append_events(audit_of("default"), [NewEvent("n", b"%d" % number)], new_stamp()))
    assert store.conversation("c").delete()
    assert there(store, "blob") == set() == there(store, "closed")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lives(kind: str, folder: str) -> None:
    """Kill a sweep at each of its writes, each time in a new process on a new copy of the store; then judge."""
    place = {"sqlite": lambda at: f"{at}/agents.db", "files": lambda at: f"file://{at}/agents"}[kind]
    os.makedirs(f"{folder}/first")
    with holdfast.open(place(f"{folder}/first")) as store:
        prepare(store)
    for when in ("before", "after"):
        passes, died = 0, True
        while died:
            passes += 1
            copy = f"{folder}/{when} {passes}"
            shutil.copytree(f"{folder}/first", copy)
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    backend = Wrapped(holdfast.open(place(copy))._log.backend)
                    setattr(backend, when, Countdown(passes, die))
                    holdfast.open(cast(Backend, backend)).sweep(grace=0)
                    os._exit(0)
                os._exit(1)
            status = os.waitpid(child, 0)[1]
            died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert died or status == 0
            with holdfast.open(place(copy)) as store:
                swept = store.sweep(grace=0)
                assert not swept.held_back
                judge(store)
            shutil.rmtree(copy)
        print(json.dumps({"when": when, "killed": passes - 1}))


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_sweep_killed_at_any_write_is_finished_by_the_next(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, __file__, kind, str(tmp_path / "lives")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["when"] for line in told] == ["before", "after"]
    assert all(line["killed"] > 15 for line in told), "a fault that never happened proved nothing"


# -- the command line --------------------------------------------------------------------------------


def test_the_command_says_what_it_would_do_and_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        fill(store, 0, 2)
        plant(store, "task", "\x1b[2J", -1)

    def run(*arguments: str) -> list[str]:
        result = CliRunner().invoke(app, ["sweep", path, *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    assert run() == ["deleted nothing"]
    lines = run("--grace", "0", "--dry-run")
    assert lines[0].startswith("would delete  task  \\u001b[2J  (expired 20") and lines[0].endswith(" UTC)")
    assert lines[1].startswith("would delete 1 expired task; held back 2, ") and lines[1].endswith("then pass --force")
    assert json.loads(run("--grace", "0", "--force", "--limit", "1", "--json")[0])["held_back"] == 2
    assert run("--grace", "0", "--force")[-1] == "deleted 2 expired conversations"


if __name__ == "__main__":
    lives(*sys.argv[1:])


def test_following_a_swept_conversation_says_that_it_has_expired(tmp_path: Path) -> None:
    with holdfast.open(str(tmp_path / "agents.db")) as store:
        chat = store.conversation("old")
        chat.append({"role": "user", "content": "Hello"})
        chat.expire(0)
        assert len(store.sweep(grace=0, force=True).deleted) == 1
        with pytest.raises(Expired) as caught:
            next(chat.follow(timeout=5))
        assert caught.value.swept
