"""The store as a user meets it, on every backend: opening, streams, tenants, ids, health, sync and
async."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.log import operations as ops
from holdfast.log.events import new_append_context
from holdfast.log.operations.stream_ops import delete_stream

ODD_IDS = [
    "plain",
    "Plain",
    "../../etc/passwd",
    "..",
    ".",
    "/abs",
    "a/b",
    "a\\b",
    "a b ",
    "a b",
    " a b",
    "tab\tnew\nline",
    "quote'\"`",
    "'; DROP TABLE streams; --",
    "%2e%2e",
    "*?[x]{y}",
    "😀",
    "e\u0301",
    "\u00e9",
    "ß",
    "SS",
    "con",
    "nul.txt",
    "x" * 512,
    "x" * 511,
    "€" * 170,
    "\u200b",
    "-",
    "~",
]


def data(stream: holdfast.Stream) -> list[Any]:
    return [event.data for event in stream.read()]


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_what_is_appended_is_read_back(store: holdfast.Store) -> None:
    orders = store.stream("orders-7")
    placed = orders.append(
        ("order.placed", {"sku": "A1", "price": 12.5, "tags": ["x", None, True]})
    )
    orders.append(("order.paid", None), ("order.shipped", [1, [2, {"a": "é😀"}]]))
    assert (placed.first, placed.last) == (1, 1)
    events = list(orders.read())
    assert [(e.version, e.type, e.data) for e in events] == [
        (1, "order.placed", {"sku": "A1", "price": 12.5, "tags": ["x", None, True]}),
        (2, "order.paid", None),
        (3, "order.shipped", [1, [2, {"a": "é😀"}]]),
    ]
    assert events[0].at.tzinfo is not None and len({e.id for e in events}) == 3
    assert orders.version() == 3 and [e.version for e in orders.last(2)] == [2, 3]


def test_a_stream_that_was_never_written_is_empty(store: holdfast.Store) -> None:
    stream = store.stream("nothing")
    assert (stream.version(), list(stream.read()), stream.last(5), stream.delete()) == (
        0,
        [],
        [],
        False,
    )


@pytest.mark.every_engine
def test_large_values_come_back_whole_and_are_stored_once(store: holdfast.Store) -> None:
    stream = store.stream("big")
    value = {"text": "é" * 1_500_000, "n": 1}
    stream.append(("a", value), ("small", 1))
    stream.append(("b", value))
    assert data(stream) == [value, 1, value]
    assert store.health().streams == {"stream": 1, "blob": 1}
    stream.delete()
    assert store.health().streams == {"audit": 1}


@pytest.mark.every_engine
def test_more_than_a_page_of_events_is_read_to_the_end(store: holdfast.Store) -> None:
    stream = store.stream("long")
    text = "x" * 60_000
    for start in range(0, 200, 50):
        stream.append(*(("n", [number, text]) for number in range(start, start + 50)))
    assert [event.data[0] for event in stream.read()] == list(range(200))
    assert [event.data[0] for event in stream.last(180)] == list(range(20, 200))


def test_a_value_that_cannot_be_stored_leaves_nothing_behind(store: holdfast.Store) -> None:
    stream = store.stream("s")
    with pytest.raises(holdfast.errors.NotSerializable, match=r"\$\.when"):
        stream.append(("ok", 1), ("bad", {"when": object()}))
    with pytest.raises(holdfast.errors.TooLarge):
        stream.append(("big", "x" * 17_000_000))
    with pytest.raises(ValueError, match="at least one event"):
        stream.append()
    assert stream.version() == 0 and store.health().streams == {}


@pytest.mark.parametrize(
    "event", ["ab", {"a": 1, "b": 2}, ("a",), ("a", 1, 2), ["a", 1], None, ("", 1), (1, 1)]
)
def test_what_is_not_a_pair_of_type_and_data_is_refused(store: holdfast.Store, event: Any) -> None:
    with pytest.raises((TypeError, holdfast.errors.InvalidId)):
        store.stream("s").append(event)
    assert store.stream("s").version() == 0


def test_numbers_that_make_no_sense_are_refused(store: holdfast.Store) -> None:
    stream = store.stream("s")
    for call in (
        lambda: list(stream.read(after=-1)),
        lambda: stream.last(-1),
        lambda: stream.append(("n", 1), if_version=-1),
        lambda: stream.append(("n", 1), if_version=True),
    ):
        with pytest.raises(ValueError, match="must be an integer"):
            call()


@pytest.mark.slow
def test_streams_are_listed_in_order_and_to_the_end(store: holdfast.Store) -> None:
    names = [f"s{number:04}" for number in range(600)]

    async def write() -> None:
        await asyncio.gather(*(store.aio.stream(name).append(("n", 1), ("n", 2)) for name in names))
        assert [info.id async for info in store.aio.streams()] == names

    asyncio.run(write())
    assert list(store.streams()) == [holdfast.StreamInfo(name, 2) for name in names]
    assert list(store.for_tenant("other").streams()) == []


def test_streams_of_another_kind_are_listed_by_kind(store: holdfast.Store) -> None:
    store.stream("own").append(("n", 1))
    store.conversation("c").append({"role": "user", "content": "hi"})

    async def listed() -> list[holdfast.StreamInfo]:
        return [info async for info in store.aio.streams(kind="conversation")]

    expected = [holdfast.StreamInfo("c", 1)]
    assert list(store.streams(kind="conversation")) == asyncio.run(listed()) == expected
    with pytest.raises(ValueError, match=r"kind must be one of audit, .*, got 'tenant'"):
        store.streams(kind="tenant")


def test_only_one_of_two_writers_with_the_same_expectation_wins(store: holdfast.Store) -> None:
    store.stream("s").append(("n", 0), if_version=0)
    with pytest.raises(holdfast.Conflict):
        store.stream("s").append(("n", 1), if_version=0)
    store.stream("s").append(("n", 2), if_version=1)
    assert data(store.stream("s")) == [0, 2]


@pytest.mark.every_engine
def test_a_deleted_stream_is_gone_and_its_id_is_free(store: holdfast.Store) -> None:
    stream = store.stream("s")
    stream.append(("n", 1), id="req-1")
    assert stream.delete(reason="test") is True
    assert stream.delete() is False
    assert data(stream) == []
    assert stream.append(("n", 2), id="req-1").duplicate is False
    assert data(stream) == [2]


# -- ids -------------------------------------------------------------------------------------------


def test_odd_ids_are_all_different_streams(store: holdfast.Store) -> None:
    for number, name in enumerate(ODD_IDS):
        assert store.stream(name).append(("n", number), id=name).first == 1, name
    for number, name in enumerate(ODD_IDS):
        assert data(store.stream(name)) == [number], name


@pytest.mark.parametrize("id", ["", "a\0b", "x" * 513, "€" * 171, "\ud800", 7, None, b"x"])
def test_ids_that_no_engine_could_keep_are_refused(store: holdfast.Store, id: Any) -> None:
    with pytest.raises(holdfast.errors.InvalidId):
        store.stream(id)
    with pytest.raises(holdfast.errors.InvalidId):
        store.for_tenant(id)
    if id is not None:
        with pytest.raises(holdfast.errors.InvalidId):
            store.stream("s").append(("n", 1), id=id)


def test_nothing_lands_outside_the_store(tmp_path: Path) -> None:
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    for url in (str(inside / "a.db"), f"file://{inside}/files"):
        with holdfast.open(url, tenant="../../t") as store:
            for name in ODD_IDS:
                store.stream(name).append(("n", 1))
    assert {path.name for path in inside.iterdir()} <= {"a.db", "a.db-wal", "a.db-shm", "files"}
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["inside"]


@pytest.mark.slow
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ids=st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=8, unique=True))
def test_any_text_works_as_an_id_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str]
) -> None:
    for url in (
        "memory://",
        str(tmp_path_factory.mktemp("x") / "a.db"),
        f"file://{tmp_path_factory.mktemp('y')}",
    ):
        with holdfast.open(url) as store:
            kept = []
            for name in ids:
                try:
                    store.stream(name).append(("n", name))
                    kept.append(name)
                except holdfast.errors.InvalidId:
                    assert "\0" in name or any(0xD800 <= ord(char) < 0xE000 for char in name)
            assert [data(store.stream(name)) for name in kept] == [[name] for name in kept]


def test_a_store_can_be_shown_open_and_closed(store: holdfast.Store) -> None:
    store.close()
    assert "tenant 'default'" in repr(store) and "tenant 'default'" in repr(store.aio)


def test_a_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    holdfast.open(tmp_path / "run:1.db").close()
    assert (tmp_path / "run:1.db").exists()


def test_a_large_value_survives_a_deletion_in_the_middle_of_its_append(
    store: holdfast.Store,
) -> None:
    """The blob is stored, the stream is deleted with all its blobs, and only then comes the
    event."""
    stream, log = store.stream("s"), store._log
    stream.append(("n", 1))
    value = "x" * 100_000
    make = stream._prepare_append([("big", value)], None, None)
    first = make()
    request = next(first)
    while not (isinstance(request, ops.AppendRecords) and request.stream.kind == "stream"):
        request = first.send(log.handle(request))
    stream.delete()
    with pytest.raises(holdfast.Conflict):
        log.handle(request)
    stream.append(("n", 2))
    assert ops.run_until_settled(log, make).last == 2
    assert data(stream) == [2, value]


@pytest.mark.slow
def test_large_values_are_loaded_a_page_at_a_time(store: holdfast.Store) -> None:
    stream = store.stream("s")
    value = "x" * 3_000_000
    stream.append(*(("big", [number, value]) for number in range(6)))
    pages = []
    after = 0
    while page := ops.run(store._log, stream._page_gen(after, None)):
        pages.append(len(page))
        after = page[-1].version
    assert pages == [2, 2, 2]
    assert (
        [event.data[0] for event in stream.read()]
        == list(range(6))
        == [event.data[0] for event in stream.last(9)]
    )


def test_large_values_of_a_deletion_that_was_cut_off_go_with_the_next_one(
    store: holdfast.Store,
) -> None:
    stream, log = store.stream("s"), store._log
    stream.append(("big", "x" * 100_000))
    deletion = delete_stream(stream._key, new_append_context(), "test")
    request = next(deletion)
    while not isinstance(request, ops.Delete):
        request = deletion.send(log.handle(request))
    log.handle(request)
    deletion.close()
    assert store.health().streams == {"audit": 1, "blob": 1}
    assert stream.delete() is False
    assert store.health().streams == {"audit": 1}


# -- tenants ---------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_tenants_share_a_store_and_none_of_the_data(store: holdfast.Store) -> None:
    acme, globex = store.for_tenant("acme"), store.for_tenant("globex")
    acme.stream("s").append(("n", "acme"), id="req-1")
    globex.stream("s").append(("n", "globex"), id="req-1")
    assert data(acme.stream("s")) == ["acme"]
    assert data(globex.stream("s")) == ["globex"]
    assert data(store.stream("s")) == []
    acme.stream("s").delete()
    assert data(globex.stream("s")) == ["globex"]
    assert (acme.health().streams, globex.health().streams) == ({"audit": 1}, {"stream": 1})


def test_the_systems_own_tenant_cannot_be_taken(store: holdfast.Store) -> None:
    with pytest.raises(holdfast.errors.InvalidId, match="reserved"):
        store.for_tenant("$system")
    with pytest.raises(holdfast.errors.InvalidId):
        holdfast.open("memory://", tenant="$system")


def test_closing_a_view_leaves_the_store_open(store: holdfast.Store) -> None:
    with store.for_tenant("acme") as view:
        view.stream("s").append(("n", 1))
    asyncio.run(store.aio.close())
    store.stream("s").append(("n", 2))
    store.close()
    store.close()
    with pytest.raises(holdfast.errors.StoreClosed):
        store.stream("s").append(("n", 3))
    with pytest.raises(holdfast.errors.StoreClosed):
        store.health()


# -- async -----------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_the_async_store_does_the_same(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url, tenant="acme") as store:
            stream = store.stream("s")
            await asyncio.gather(*(stream.append(("n", number)) for number in range(10)))
            assert [event.data async for event in stream.read()] == list(range(10))
            assert [event.data async for event in stream.read(after=8)] == [8, 9]
            assert [event.data for event in await stream.last(2)] == [8, 9]
            assert await stream.version() == 10
            assert (await stream.append(("n", 0), id="x")).last == 11
            assert (await stream.append(("n", 0), id="x")).duplicate
            with pytest.raises(holdfast.errors.IdReused):
                await stream.append(("n", 1), id="x")
            with pytest.raises(holdfast.Conflict):
                await stream.append(("n", 1), if_version=3)
            value = "y" * 300_000
            await stream.append(("big", value))
            assert (await stream.last(1))[0].data == value
            assert (await store.for_tenant("other").health()).streams == {}
            assert (await store.health()).streams == {"blob": 1, "stream": 1}
            assert await stream.delete()
        with pytest.raises(holdfast.errors.StoreClosed):
            await stream.version()

    asyncio.run(main())


@pytest.mark.every_engine
def test_an_async_store_can_be_awaited_and_outlive_its_event_loop(durable_url: str) -> None:
    async def start() -> holdfast.AsyncStore:
        store = await holdfast.aopen(durable_url)
        await store.stream("s").append(("n", 1))
        return store

    async def finish(store: holdfast.AsyncStore) -> None:
        await store.stream("s").append(("n", 2))
        assert [event.data async for event in store.stream("s").read()] == [1, 2]
        await store.close()

    store = asyncio.run(start())
    asyncio.run(finish(store))


# -- processes -------------------------------------------------------------------------------------


def _append_many(url: str, writer: int, count: int) -> None:
    with holdfast.open(url, key=os.environ.get("HOLDFAST_KEY")) as store:
        for number in range(count):
            store.stream("s").append(("n", [writer, number]))


@pytest.mark.slow
@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_several_processes_write_one_stream_without_loss_or_lock_errors(durable_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_append_many, args=(durable_url, writer, 40)) for writer in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    with holdfast.open(durable_url) as store:
        found = data(store.stream("s"))
    for writer in range(4):
        assert [number for who, number in found if who == writer] == list(range(40))


@pytest.mark.slow
@pytest.mark.every_engine
def test_sixteen_processes_may_create_the_store_at_once(durable_url: str) -> None:
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_append_many, args=(durable_url, writer, 1)) for writer in range(16)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 16
    with holdfast.open(durable_url) as store:
        assert sorted(who for who, _ in data(store.stream("s"))) == list(range(16))


def in_child(work: Any) -> int:
    """Run `work` in a forked child; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.every_engine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_store_works_in_a_forked_child_and_in_its_parent(durable_url: str) -> None:
    with holdfast.open(durable_url) as store:
        asyncio.run(store.aio.stream("s").append(("n", "parent, async")))
        store.stream("s").append(("n", "parent"))

        def child() -> None:
            store.stream("s").append(("n", "child"))
            asyncio.run(store.aio.stream("s").append(("n", "child, async")))
            assert len(data(store.stream("s"))) == 4

        assert in_child(child) == 0
        store.stream("s").append(("n", "parent again"))
        assert data(store.stream("s")) == [
            "parent, async",
            "parent",
            "child",
            "child, async",
            "parent again",
        ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_goes_on_after_its_parent_closed_the_store(durable_url: str) -> None:
    """The parent's last connection must not remove the write-ahead log under the child."""
    store = holdfast.open(durable_url)
    store.stream("s").append(("n", 0))
    ready, closed = multiprocessing.Event(), multiprocessing.Event()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.stream("s").append(("n", 1))
            ready.set()
            closed.wait(60)
            store.stream("s").append(("n", 2))
            code = 0
        finally:
            os._exit(code)
    assert ready.wait(60)
    store.close()
    closed.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with holdfast.open(durable_url) as again:
        assert data(again.stream("s")) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.every_engine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forking_while_other_threads_write_is_safe(durable_url: str) -> None:
    with holdfast.open(durable_url) as store:
        stop = threading.Event()

        def busy(number: int) -> None:
            while not stop.is_set():
                store.stream(f"busy-{number}").append(("n", 1))

        threads = [threading.Thread(target=busy, args=[number]) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                assert (
                    in_child(lambda number=number: store.stream(f"child-{number}").append(("n", 1)))
                    == 0
                )
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert all(data(store.stream(f"child-{number}")) == [1] for number in range(5))


def test_a_version_read_from_another_process_is_good_for_if_version(durable_url: str) -> None:
    with holdfast.open(durable_url) as here, holdfast.open(durable_url) as there:
        mine, theirs = here.stream("s"), there.stream("s")
        mine.append(("a", 1))
        theirs.append(("b", 2))
        theirs.append(("b", 3))
        assert mine.append(("a", 4), if_version=mine.version()).last == 4
        theirs.delete()
        assert mine.append(("a", 5), if_version=0).last == 1
        with pytest.raises(holdfast.Conflict) as caught:
            theirs.append(("b", 6), if_version=3)
        assert caught.value.actual == 1
