"""Redis beyond the contract: restarts, key layout, clusters, watching, and lost answers."""

from __future__ import annotations

import dis
import os
import shutil
import signal
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.doc_pages import run_page
from helpers.engines.redis_server import Server, until
from holdfast import testing
from holdfast.backends import Append, AppendResult, Backend, HeadFields
from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis import backend as redis
from holdfast.backends.redis import pool as redis_pool
from holdfast.backends.redis.keys import encode_due
from holdfast.backends.redis.url import parse_redis_url
from holdfast.conformance.build import (
    KIND,
    TENANT,
    StreamTracker,
    all_due,
    all_heads,
    at,
    bodies,
    ids,
    must_head,
    read_all,
    stored,
    timeless,
    versions,
)
from holdfast.conformance.lifecycle import exit_code, fork
from holdfast.errors import (
    AccessDenied,
    CorruptRecord,
    HeadRegressed,
    NotSetUp,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)

LISTED = HeadFields(status="s", label=b"l", owner="o", due_at=1.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    yield server
    server.kill()


@pytest.fixture
def backend(server: Server) -> Iterator[RedisBackend]:
    backend = RedisBackend(server.url())
    yield backend
    backend.close()


def every_call(backend: Backend, tracker: StreamTracker) -> list[Callable[[], object]]:
    return [
        lambda: backend.append([tracker.next()]),
        lambda: backend.append([StreamTracker("new").next(), StreamTracker("other").next()]),
        lambda: backend.read(tracker.stream),
        lambda: backend.head(tracker.stream),
        lambda: backend.heads(tenant=TENANT, kind=KIND),
        lambda: backend.due(tenant=TENANT, kind=KIND),
        lambda: backend.delete(tracker.stream, expected=at(tracker)),
        lambda: backend.describe(),
    ]


# -- looking only ----------------------------------------------------------------------------------


def test_a_user_who_may_only_read_looks_at_a_store_that_is_there(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b"a")
    server(
        "ACL", "SETUSER", "viewer", "on", ">pw", "~*", "+@read", "+info", "+config|get", "+select"
    )
    url = server.url(user="viewer:pw@")
    with pytest.raises(AccessDenied):
        RedisBackend(url)
    viewing = RedisBackend(url, create=False)
    assert (
        bodies(read_all(viewing, tracker.stream)) == [b"a"]
        and viewing.describe().durability == "disk"
    )
    with pytest.raises(AccessDenied, match="may not run"):
        viewing.append([tracker.next(b"b")])
    viewing.close()


def test_one_who_only_looks_notices_that_the_store_is_gone(
    server: Server, backend: RedisBackend
) -> None:
    viewing = RedisBackend(server.url(), create=False)
    server.restart(lose=True)
    with pytest.raises(HeadRegressed):
        viewing.heads(tenant=TENANT, kind=KIND)
    assert server("DBSIZE") == 0
    viewing.close()
    with pytest.raises(NotSetUp):
        RedisBackend(server.url(), create=False)


# -- restarts --------------------------------------------------------------------------------------


def test_after_a_restart_with_its_files_everything_goes_on_by_itself(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b"a", fields=LISTED)
    server.restart()
    tracker.write(backend, b"b")
    server.restart()
    assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b"]
    server.restart()
    assert ids(all_due(backend)) == ["s"]
    server.restart()
    assert backend.delete(tracker.stream, expected=must_head(backend, tracker.stream))


@pytest.mark.parametrize("number", range(8))
def test_a_server_that_was_restarted_empty_is_not_written_to_again(
    tmp_path: Path, number: int
) -> None:
    server = Server(tmp_path / "redis", durable=False)
    backend = RedisBackend(server.url(), durability="memory")
    tracker = StreamTracker()
    tracker.write(backend, b"a")
    server.restart(lose=True)
    first = every_call(backend, tracker)[number]
    for call in [first, *every_call(backend, tracker), first]:
        with pytest.raises(HeadRegressed, match="the database lost writes"):
            call()
    assert server("DBSIZE") == 0
    backend.close()
    again = RedisBackend(server.url(), durability="memory")
    StreamTracker().write(again, b"anew")
    again.close()
    server.kill()


@pytest.mark.parametrize("number", range(8))
def test_a_server_that_was_emptied_meanwhile_is_not_written_to_again(
    server: Server, backend: RedisBackend, number: int
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b"a")
    server("FLUSHALL")
    for call in [every_call(backend, tracker)[number], *every_call(backend, tracker)]:
        with pytest.raises(HeadRegressed):
            call()
    assert server("DBSIZE") == 0


def test_a_server_that_lost_the_newest_writes_is_not_written_to_again(
    server: Server, backend: RedisBackend, tmp_path: Path
) -> None:
    tracker, same_shard = StreamTracker(), StreamTracker(_of_the_shard_of("s"))
    tracker.write(backend, b"a")
    shutil.copytree(server.place, tmp_path / "earlier")
    tracker.write(backend, b"b")
    server.restart(files=tmp_path / "earlier")
    # Not even to a stream that lost nothing: what else is gone, nobody knows.
    with pytest.raises(HeadRegressed, match="has 1 of the 2 writes that it had acknowledged"):
        backend.append([same_shard.next()])
    with pytest.raises(HeadRegressed):
        backend.head(tracker.stream)
    again = RedisBackend(server.url())
    assert bodies(read_all(again, tracker.stream)) == [b"a"]
    assert again.head(same_shard.stream) is None
    again.close()


def test_a_deletion_that_was_lost_is_noticed_too(
    server: Server, backend: RedisBackend, tmp_path: Path
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b"a", b"b")
    shutil.copytree(server.place, tmp_path / "earlier")
    assert backend.delete(tracker.stream, expected=at(tracker))
    server.restart(files=tmp_path / "earlier")
    with pytest.raises(HeadRegressed):
        backend.delete(tracker.stream, expected=at(tracker))


def test_through_the_log_a_lost_store_is_an_error_and_nothing_begins_anew(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis", durable=False)
    with holdfast.open(server.url(), durability="memory") as store:
        chat = store.conversation("a")
        chat.append({"role": "user", "content": "hello"})
        server.restart(lose=True)
        for _ in range(2):
            with pytest.raises(HeadRegressed):
                chat.append({"role": "user", "content": "are you there?"})
            with pytest.raises(HeadRegressed):
                store.conversation("new").append({"role": "user", "content": "hello"})
    server.kill()


# -- answers and connections that are lost ---------------------------------------------------------


def test_connections_that_the_server_closed_are_not_used_again(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    for _ in range(3):
        server("CLIENT", "KILL", "TYPE", "normal")
        tracker.write(backend)
        server("CLIENT", "KILL", "TYPE", "normal")
        must_head(backend, tracker.stream)


def test_a_connection_that_breaks_while_it_is_used_repeats_reads_and_leaves_appends_in_doubt(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b"a")
    append = tracker.follow(tracker.next(b"b"))

    def break_unseen() -> None:
        server("CLIENT", "KILL", "TYPE", "normal")
        for connection in backend._pool._idle:
            connection.can_read = lambda timeout: False  # it breaks right after one has looked

    for read in (
        lambda: backend.read(tracker.stream),
        lambda: backend.heads(tenant=TENANT, kind=KIND),
    ):
        break_unseen()
        assert len(read()) == 1
    break_unseen()
    with pytest.raises(OutcomeUnknown):
        backend.append([append])
    assert stored(backend.append([append])) == [(2, 2, False)]


def test_an_append_whose_answer_does_not_come_is_in_doubt_and_stored_once(server: Server) -> None:
    backend = RedisBackend(server.url("?wait_ms=1"), timeout=1)
    tracker = StreamTracker()
    tracker.write(backend, b"a")
    append = tracker.follow(tracker.next(b"b"))
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(OutcomeUnknown):
            backend.append([append])
        with pytest.raises(Unavailable):
            backend.read(tracker.stream)
    finally:
        server.process.send_signal(signal.SIGCONT)
    until(lambda: must_head(backend, tracker.stream).version == 2)
    assert stored(backend.append([append])) == [(2, 2, True)]
    assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b"]
    backend.close()


def test_a_server_that_went_away_is_unavailable_and_nothing_is_in_doubt(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b"a")
    server.kill()
    for call in every_call(backend, tracker):
        with pytest.raises(Unavailable, match="cannot connect"):
            call()
    server.start()
    tracker.write(backend, b"b")


def test_a_forked_child_has_connections_of_its_own(backend: RedisBackend) -> None:
    [mine] = backend._pool.send(("CLIENT", "ID"))

    def child() -> None:
        assert backend._pool.send(("CLIENT", "ID")) != [mine]
        backend.close()

    assert exit_code(fork(child)) == 0
    assert backend._pool.send(("CLIENT", "ID")) == [mine]


def test_scripts_that_the_server_forgot_are_sent_again(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    server("SCRIPT", "FLUSH")
    tracker.write(backend, b"a")
    server("SCRIPT", "FLUSH")
    assert bodies(backend.read(tracker.stream)) == [b"a"]
    server("SCRIPT", "FLUSH")
    assert backend.delete(tracker.stream, expected=at(tracker))


def test_any_number_of_threads_share_a_bounded_number_of_connections(
    server: Server, backend: RedisBackend
) -> None:
    def work(number: int) -> None:
        tracker = StreamTracker(f"{number}")
        for _ in range(5):
            tracker.write(backend)
            read_all(backend, tracker.stream)

    with ThreadPoolExecutor(redis_pool.MAX_CONNECTIONS + 20) as pool:
        list(pool.map(work, range(redis_pool.MAX_CONNECTIONS + 20)))
    assert len(backend._pool._all) <= redis_pool.MAX_CONNECTIONS
    assert len(all_heads(backend)) == redis_pool.MAX_CONNECTIONS + 20


def test_when_all_connections_are_in_use_one_waits_and_then_it_is_unavailable(
    server: Server,
) -> None:
    backend = RedisBackend(server.url(), timeout=1)
    for _ in range(redis_pool.MAX_CONNECTIONS):
        backend._pool._permits.get()
    with pytest.raises(Unavailable, match="are in use"):
        backend.head(StreamTracker().stream)
    backend.close()


def test_an_interrupt_at_any_instant_loses_no_place_for_a_connection() -> None:
    """Raise where a signal handler can run: after a call, at the first, the second, and so on."""

    class Connection:
        _sock: Any = types.SimpleNamespace(settimeout=lambda seconds: None)
        disconnect = staticmethod(lambda: None)
        can_read = staticmethod(lambda seconds: False)

    pool = redis_pool.RedisPool(parse_redis_url("redis://host"), Connection)
    places, interrupts, code = pool._permits.qsize(), 0, pool.connection.__wrapped__.__code__  # type: ignore[attr-defined]

    def interrupted_behind(calls: int) -> bool:
        before = 0

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal calls, before
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                calls -= dis.opname[code.co_code[before]].startswith("CALL")
                before = frame.f_lasti
                if calls == 0:
                    calls = -1
                    raise KeyboardInterrupt
            return trace

        usual = sys.gettrace()
        sys.settrace(trace)
        try:
            with pool.connection():
                pass
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(usual)
        return False

    while interrupted_behind(interrupts + 1):
        interrupts += 1
        assert pool._permits.qsize() == places
    assert interrupts > 4


# -- how it lies there -----------------------------------------------------------------------------


def test_after_a_deletion_nothing_is_left_but_the_tombstone(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b"a", b"b", indexed=True, fields=LISTED)
    assert len(server("KEYS", "*:kind*")) == 4
    assert backend.delete(tracker.stream, expected=at(tracker))
    [tombstone] = server("KEYS", "*:kind*")
    assert server("SMEMBERS", tombstone) in ([tracker.incarnation], {tracker.incarnation})


def test_the_index_holds_what_is_true_now_and_nothing_else(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    index = backend._keys.for_stream(tracker.stream).shard_index
    for fields in (
        LISTED,
        HeadFields(status="t", expires_at=2.0),
        None,
        HeadFields(status="t", due_at=-3.0),
        HeadFields(),
    ):
        tracker.write(backend, fields=fields)
        fields = must_head(backend, tracker.stream).fields
        wanted = {b"as"}
        if fields.status is not None:
            wanted.add(b"s00000001" + fields.status.encode() + b"s")
        if fields.due is not None:
            wanted.add(b"d" + encode_due(fields.due) + b"s")
        assert set(server("ZRANGE", index, 0, -1)) == wanted


def test_what_is_not_as_holdfast_wrote_it_is_reported_and_never_returned(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b"a", b"b", fields=LISTED)
    head, records, _, _, index, _ = backend._keys.for_stream(tracker.stream)
    record = server("LINDEX", records, 0)
    for bad in (b"", b"\xff\xff\xff\xff", record[:10], record[:30]):
        server("LSET", records, 0, bad)
        with pytest.raises(CorruptRecord):
            backend.read(tracker.stream)
    server("LSET", records, 0, record)
    assert bodies(backend.read(tracker.stream)) == [b"a", b"b"]
    server("ZADD", index, 0, b"a\x80")
    with pytest.raises(CorruptRecord):
        backend.heads(tenant=TENANT, kind=KIND)
    server("HSET", head, "d", "soon")
    with pytest.raises(CorruptRecord):
        backend.head(tracker.stream)
    server("HSET", head, "v", "1")
    with pytest.raises(CorruptRecord):
        backend.append([msgspec.structs.replace(tracker.next(), expected=1)])
    server("RPOP", records)
    with pytest.raises(CorruptRecord):
        server("HSET", head, "v", "2")
        backend.read(tracker.stream)


@pytest.mark.parametrize("which", range(5))
def test_a_key_of_another_type_stops_an_append_before_anything_is_written(
    server: Server, backend: RedisBackend, which: int
) -> None:
    tracker, good = StreamTracker(), StreamTracker("good")
    keys = backend._keys.for_stream(tracker.stream)
    server("SET", keys[which], "x")
    bad = tracker.next(b"a", indexed=True, fields=LISTED)
    with pytest.raises(CorruptRecord):
        backend.append([bad])
    assert set(server("KEYS", "*:kind*")) == {keys[which]}
    assert not server("EXISTS", keys[-1])
    with pytest.raises(OutcomeUnknown):  # of a batch a part may be stored, and here it is
        backend.append([good.follow(good.next(b"x")), bad])
    assert bodies(read_all(backend, good.stream)) == [b"x"]


def test_an_append_with_an_index_entry_of_another_type_leaves_the_stream_as_it_was(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b"a", fields=LISTED)
    index = backend._keys.for_stream(tracker.stream).shard_index
    server("DEL", index)
    server("SET", index, "x")
    for call in (
        lambda: backend.append([tracker.next(b"b", fields=HeadFields(status="t"))]),
        lambda: backend.delete(tracker.stream, expected=at(tracker)),
    ):
        with pytest.raises(CorruptRecord):
            call()
    assert timeless(backend.head(tracker.stream)) == at(tracker, LISTED)
    assert bodies(backend.read(tracker.stream)) == [b"a"]


def test_index_entries_without_a_stream_or_of_another_time_are_passed_over(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker("m")
    tracker.write(backend, b"a", fields=LISTED)
    index = backend._keys.for_stream(tracker.stream).shard_index
    for number in range(50):
        server("ZADD", index, 0, b"a0%02d" % number, 0, b"s00000001s0%02d" % number)
        server("ZADD", index, 0, b"d" + encode_due(number / 100) + b"m")
    server("ZADD", index, 0, b"s00000001tm")
    assert ids(backend.heads(tenant=TENANT, kind=KIND, limit=1)) == ["m"]
    assert ids(backend.heads(tenant=TENANT, kind=KIND, status="s", limit=1)) == ["m"]
    assert ids(backend.heads(tenant=TENANT, kind=KIND, status="t", limit=1)) == []
    assert ids(backend.due(tenant=TENANT, kind=KIND, limit=1)) == ["m"]
    assert ids(backend.due(tenant=TENANT, kind=KIND, before=0.9)) == []


def test_a_listing_leaves_none_out_if_most_are_in_one_shard(backend: RedisBackend) -> None:
    tags = {
        f"{number:04}": backend._keys.tag(StreamTracker(f"{number:04}").stream)
        for number in range(3000)
    }
    crowded = [name for name, tag in tags.items() if tag == tags["0000"]]
    wanted = sorted([*crowded, *(name for name in tags if name.endswith("77"))])
    assert len(crowded) > 30
    backend.append([StreamTracker(name).next(fields=LISTED) for name in wanted])
    for limit in (1, 20, 30):
        assert ids(all_heads(backend, limit=limit)) == ids(all_due(backend, limit=limit)) == wanted


def test_small_records_behind_a_large_one_are_all_read(backend: RedisBackend) -> None:
    tracker = StreamTracker()
    sizes = [10] * 150 + [5 * 1024 * 1024] + [10] * 150
    tracker.write(backend, *(bytes(size) for size in sizes))
    for reverse in (False, True):
        records = read_all(backend, tracker.stream, reverse=reverse)
        assert [len(record.body) for record in records] == sizes
        assert versions(records) == (list(range(301, 0, -1)) if reverse else list(range(1, 302)))
    assert len(backend.read(tracker.stream, limit=140)) <= 140


def test_a_page_read_while_the_stream_is_begun_anew_is_of_one_incarnation(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, tracker, asked = StreamTracker(), StreamTracker(), backend._send
    former.write(backend, b"old", b"old", b"old")

    def begin_anew_after_a_page(*commands: Any) -> list[Any]:
        answers = asked(*commands)
        if commands[0][0] == "HMGET" and not tracker.version:
            assert backend.delete(former.stream, expected=at(former))
            tracker.write(backend, b"new", b"new")
        return answers

    monkeypatch.setattr(backend._reader, "_send", begin_anew_after_a_page)
    assert bodies(backend.read(tracker.stream)) == [b"new", b"new"]


def test_thousands_of_records_in_one_append(backend: RedisBackend) -> None:
    tracker = StreamTracker()
    texts = [b"%d" % number for number in range(25_000)]
    tracker.write(backend, *texts)
    assert bodies(read_all(backend, tracker.stream)) == texts
    assert bodies(read_all(backend, tracker.stream, reverse=True)) == texts[::-1]


def test_a_batch_too_large_for_one_script_is_several_in_order(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches() -> list[list[Append]]:
        tracker, other = StreamTracker(os.urandom(4).hex()), StreamTracker(os.urandom(4).hex())
        return [[one.follow(one.next(b"x" * 10)) for _ in range(5) for one in (tracker, other)]]

    for name, value in (("CALL_APPENDS", 3), ("CALL_BYTES", 25)):
        with monkeypatch.context() as patch:
            patch.setattr(redis, name, value)
            for batch in batches():
                assert len(backend._build_calls(batch)) > 3
                assert [place[0] for place in stored(backend.append(batch))] == [
                    1,
                    1,
                    2,
                    2,
                    3,
                    3,
                    4,
                    4,
                    5,
                    5,
                ]


def test_what_is_too_large_or_no_time_is_refused_before_anything_is_sent(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "MAX_APPEND_BYTES", 100)
    with pytest.raises(TooLarge):
        backend.append([StreamTracker("good").next(), StreamTracker().next(b"x" * 60, b"x" * 60)])
    with pytest.raises(ValueError, match="NaN"):
        backend.append(
            [
                StreamTracker("good").next(),
                StreamTracker().next(fields=HeadFields(due_at=float("nan"))),
            ]
        )
    assert all_heads(backend) == []


def test_endless_times_are_times(backend: RedisBackend) -> None:
    for name, due in (
        ("a", float("inf")),
        ("b", 5.0),
        ("c", float("-inf")),
        ("d", -0.0),
        ("e", 0.0),
    ):
        StreamTracker(name).write(backend, fields=HeadFields(due_at=due))
    assert ids(all_due(backend)) == ["c", "d", "e", "b", "a"]
    assert ids(all_due(backend, before=float("inf"))) == ["c", "d", "e", "b", "a"]
    assert ids(all_due(backend, before=0.0)) == ["c", "d", "e"]


def test_the_clock_is_that_of_the_server_unless_a_test_has_its_own(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    before = _time(server)
    [answer] = backend.append([tracker.follow(tracker.next(fields=LISTED))])
    assert isinstance(answer, AppendResult)
    assert before <= answer.now <= must_head(backend, tracker.stream).now <= _time(server)
    with testing.fake_clock(start=1000.0):
        [answer] = backend.append([tracker.next()])
        listed = [*all_heads(backend), *all_due(backend), must_head(backend, tracker.stream)]
    assert isinstance(answer, AppendResult)
    assert [answer.now, *(head.now for head in listed)] == [1000.0] * 4


# -- watching --------------------------------------------------------------------------------------


def test_who_watches_a_stream_hears_of_appends_to_it_and_to_no_other(
    server: Server, backend: RedisBackend
) -> None:
    tracker, other, writer = (
        StreamTracker("a b:{c}"),
        StreamTracker("other"),
        RedisBackend(server.url()),
    )
    heard: Counter[str] = Counter()

    def hear(name: str) -> Callable[[], None]:
        return lambda: heard.update([name])

    def fail() -> None:
        raise RuntimeError

    stops = [backend.watch(tracker.stream, hear("first")), backend.watch(tracker.stream, fail)]
    until(lambda: heard["first"] == 1)  # that it is listened to, from now on
    stops.append(
        backend.watch(tracker.stream, hear("second"))
    )  # who comes later is not told of that, and is told last
    tracker.write(writer)
    until(lambda: heard["second"] == 1)
    assert heard["first"] == 2
    other.write(writer)
    tracker.write(writer)
    until(lambda: heard["second"] == 2)
    assert heard["first"] == 3
    stops[0]()
    stops.append(backend.watch(other.stream, hear("other")))
    until(lambda: heard["other"] == 1)
    other.write(writer)
    until(lambda: heard["other"] == 2)
    tracker.write(writer)
    until(lambda: heard["second"] == 3)
    assert heard == {"first": 3, "second": 3, "other": 2}
    for stop in stops:
        stop()
        stop()
    until(lambda: server("PUBSUB", "CHANNELS") == [])
    until(
        lambda: not any(thread.name == "holdfast-redis-watch" for thread in threading.enumerate())
    )
    writer.close()


def test_watching_goes_on_after_the_server_was_restarted(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    came = threading.Event()
    backend.watch(tracker.stream, came.set)
    assert came.wait(30)
    came.clear()
    server.restart()
    assert came.wait(30), "what was appended meanwhile would not be told"
    came.clear()
    tracker.write(backend)
    assert came.wait(30)
    backend.close()
    until(lambda: server("PUBSUB", "CHANNELS") == [])


def test_nothing_of_watching_is_left_in_a_forked_child(
    server: Server, backend: RedisBackend
) -> None:
    tracker = StreamTracker()
    came = threading.Event()
    backend.watch(tracker.stream, came.set)
    assert came.wait(30)  # it is listened to
    came.clear()

    def child() -> None:
        assert backend._watcher._watching == {}
        mine = threading.Event()
        backend.watch(StreamTracker("child").stream, mine.set)
        until(lambda: len(server("PUBSUB", "CHANNELS")) == 2)
        StreamTracker("child").write(backend)
        assert mine.wait(30)
        assert not came.is_set()
        backend.close()

    assert exit_code(fork(child)) == 0
    assert len(server("PUBSUB", "CHANNELS")) == 1
    tracker.write(backend)
    assert came.wait(30)


# -- the page --------------------------------------------------------------------------------------


def test_the_python_on_the_page_about_redis_runs(server: Server, tmp_path: Path) -> None:
    printed, promised = run_page("docs/explanation/redis.md", tmp_path, REDIS_URL=server.url())
    assert printed == promised


def _of_the_shard_of(id: str) -> str:
    keys = redis.RedisKeys("holdfast", 0)
    tag = keys.tag(StreamTracker(id).stream)
    return next(
        name
        for number in range(10_000)
        if keys.tag(StreamTracker(name := f"{number}").stream) == tag
    )


def _time(server: Server) -> float:
    seconds, micros = server("TIME")
    return float(seconds) + float(micros) / 1e6
