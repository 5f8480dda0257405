"""The sweep: what has expired goes, whole, and nothing else does; as Python and as a command."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import holdfast
from helpers.run_cli import run
from helpers.stored.expiring_streams import (
    DAY,
    HOUR,
    LARGE,
    Wrapped,
    audited,
    closed,
    fill,
    ids,
    key_of,
    plant,
    there,
    user,
)
from holdfast import AsyncStore, Conflict, Store
from holdfast.backends import Backend, HeadFields, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import Expired, HasForks
from holdfast.log import operations as ops
from holdfast.log.codec import encode
from holdfast.log.events import NewEvent, new_append_context
from holdfast.log.operations.retired_ids import retired_id_key
from holdfast.log.operations.stream_ops import append_audit_event, append_events
from holdfast.types import SweepResult

# -- what goes -------------------------------------------------------------------------------------


@pytest.mark.every_engine
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
    assert (swept.would_delete, swept.spared, swept.held_back, swept.capped, swept.dry_run) == (
        [],
        [],
        0,
        False,
        False,
    )
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
    assert store.sweep() == SweepResult([], [], [], 0, False, False)


def test_a_lease_that_ran_out_is_no_expiry(store: Store) -> None:
    """Both times share an index, which lists the earlier of the two."""
    for number in range(250):
        plant(
            store,
            "task",
            f"crashed {number}",
            90 * DAY if number % 2 else None,
            owner="gone",
            due_at=5.0,
        )
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


@pytest.mark.every_engine
def test_async_code_sweeps_in_the_same_way(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            for name in ("a", "b", "c"):
                await store.conversation(name).append(user(LARGE))
            await store.conversation("b").expire(0)
            assert ids((await store.sweep(grace=0, dry_run=True)).would_delete) == ["b"]
            swept = await store.sweep(grace=0)
            assert ids(swept.deleted) == ["b"] and str(swept) == "deleted 1 expired conversation"
            assert [info.id async for info in store.conversations()] == ["a", "c"]
            with pytest.raises(Expired):
                await store.conversation("b").append(user("x"))
            assert await store.conversation("b").delete()
            await store.conversation("b").append(user("x"))
            assert (await store.health()).streams == {"audit": 1, "blob": 2, "conversation": 3}

    asyncio.run(main())


def test_both_twins_have_the_same_options() -> None:
    assert (
        inspect.signature(Store.sweep).parameters.keys()
        == inspect.signature(AsyncStore.sweep).parameters.keys()
    )


@pytest.mark.parametrize(
    "wrong", [{"limit": -1}, {"limit": 1.5}, {"grace": -1}, {"grace": "1 day"}]
)
def test_wrong_arguments_are_refused_before_anything_is_done(
    store: Store, wrong: dict[str, Any]
) -> None:
    fill(store, 2, 1)
    with pytest.raises(ValueError):
        store.sweep(**{"grace": 0, **wrong})
    assert len(there(store)) == 3


# -- what stays ------------------------------------------------------------------------------------


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
    assert ids(store.sweep(grace=0).deleted) == ["fork"], (
        "a fork that is not yet swept can be brought back"
    )
    assert ids(store.sweep(grace=0).deleted) == ["parent"]


def test_a_task_with_living_forks_is_spared_until_they_are_gone(store: Store) -> None:
    fill(store, 4, 0, "task")
    cut_off = ("task.forked", {"child": "never made", "at": 1})
    parent = plant(
        store,
        "task",
        "parent",
        -1,
        ("task.created", {}),
        cut_off,
        ("task.forked", {"child": "fork", "at": 1}),
    )
    head = ops.run(store._log, ops.head(parent))
    assert head is not None
    branched = {"parent": "parent", "incarnation": head.incarnation.hex(), "at": 1}
    fork = plant(store, "task", "fork", None, ("task.branched", branched))
    swept = store.sweep(grace=0)
    assert swept.deleted == [] and [(item.kind, item.id, item.why) for item in swept.spared] == [
        ("task", "parent", "forked")
    ]
    standing = ops.run(store._log, ops.head(fork))
    assert standing is not None and ops.run(store._log, ops.delete(fork, expected=standing))
    plant(store, "task", "fork", None, ("task.branched", {**branched, "incarnation": "another"}))
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
    assert ids(swept.deleted) == ["done"] and [(item.id, item.why) for item in swept.spared] == [
        ("parent", "forked")
    ]
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


@pytest.mark.parametrize(
    ("kind", "deleted", "spared"), [("conversation", 1, ["damaged"]), ("closed", 2, [])]
)
def test_a_stream_whose_records_are_gone_keeps_nobody_waiting(
    tmp_path: Path, kind: str, deleted: int, spared: list[str]
) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        fill(store, 4, 2)
        left = retired_id_key(key_of("conversation", "left"))  # as by a sweep that was cut off
        event = NewEvent(
            "id.retired",
            encode({"at": 1.0, "kind": "conversation", "id": "left", "incarnation": "l"}),
        )
        ops.run(
            store._log,
            append_events(left, [event], new_append_context(), fields=HeadFields(due_at=1.0)),
        )
    first = f"(SELECT min(stream) FROM streams WHERE kind = '{kind}' AND due IS NOT NULL)"
    with sqlite3.connect(path) as database:
        assert database.execute(f"DELETE FROM records WHERE stream = {first}").rowcount
    database.close()
    with holdfast.open(path) as store:
        swept = store.sweep(grace=0)
    assert (len(swept.deleted), [stream.why for stream in swept.spared]) == (deleted, spared)


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_stream_that_moved_meanwhile_is_left_alone(
    wrapped: tuple[Wrapped, Store], write: int
) -> None:
    backend, store = wrapped
    for name in ("a", "b", "c", "d"):
        store.conversation(name).append(user(LARGE))
    for name in ("a", "b"):
        store.conversation(name).expire(0)

    def bring_back() -> None:
        backend.before = lambda: None
        store.conversation("a").expire(None)

    with holdfast.open(
        cast(Backend, backend)
    ) as other:  # telling, closing, deleting: three writes each
        backend.before = Countdown(write, bring_back)
        assert ids(other.sweep(grace=0).deleted) == ["b"]
        backend.close = lambda: None  # type: ignore[method-assign]
    assert store.conversation("a").messages() == [user(LARGE)], (
        "the record of its id means nothing while it is there"
    )
    assert store.conversation("a").delete()
    store.conversation("a").append(user("new"))


def test_an_id_that_is_freed_while_its_large_values_go_stays_free(
    wrapped: tuple[Wrapped, Store],
) -> None:
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


def test_a_stream_that_is_deleted_meanwhile_leaves_its_id_free(
    wrapped: tuple[Wrapped, Store],
) -> None:
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
        yield from append_audit_event(head, new_append_context(), "deleted by the program")
        yield from ops.delete(key, expected=head)

    backend.before = delete
    assert store.sweep(grace=0).deleted == [] and hit
    chat.append(user("new"))
    assert chat.messages() == [user("new")]


def test_a_fork_taken_while_its_parent_is_deleted_keeps_it(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"))
    make = store.conversation("c")._prepare_delete("test")
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


# -- cut off ---------------------------------------------------------------------------------------


class Countdown:
    """Does something at the n-th pass."""

    def __init__(self, passes: int, do: Callable[[], None]) -> None:
        self.left, self.do = passes, do

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.do()


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("without_minimum")
def test_the_command_says_what_it_would_do_and_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        fill(store, 0, 2)
        plant(store, "task", "\x1b[2J", -1)

    def sweep(*arguments: str) -> list[str]:
        result = run("sweep", path, *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    assert sweep() == ["deleted nothing"]
    lines = sweep("--grace", "0", "--dry-run")
    assert lines[0].startswith("would delete  task  \\u001b[2J  (expired 20") and lines[0].endswith(
        " UTC)"
    )
    assert lines[1].startswith("would delete 1 expired task; held back 2, ") and lines[1].endswith(
        "then pass --force"
    )
    assert (
        json.loads(sweep("--grace", "0", "--force", "--limit", "1", "--json")[0])["held_back"] == 2
    )
    assert sweep("--grace", "0", "--force")[-1] == "deleted 2 expired conversations"


def test_following_a_swept_conversation_says_that_it_has_expired(tmp_path: Path) -> None:
    with holdfast.open(str(tmp_path / "agents.db")) as store:
        chat = store.conversation("old")
        chat.append({"role": "user", "content": "Hello"})
        chat.expire(0)
        assert len(store.sweep(grace=0, force=True).deleted) == 1
        with pytest.raises(Expired) as caught:
            next(chat.follow(timeout=5))
        assert caught.value.swept
