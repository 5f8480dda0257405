"""Redis: whatever is changed in a key by hand is refused, or reported by a check, and what is
derived can be rebuilt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import holdfast
from helpers.servers import redis as redis_url
from helpers.servers import url_on
from holdfast.backends import HeadFields, StreamKey, SupportsCheck
from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis.keys import RedisStreamKeys, encode_due, encode_mark, encode_status
from holdfast.conformance.build import (
    StreamTracker,
    all_due,
    all_heads,
    append_id,
    ids,
    key,
    must_head,
    stored,
)

pytestmark = [pytest.mark.server, pytest.mark.unencrypted("changes what is beside the records")]

FIELDS = HeadFields("open", b"label", "me", 5.0, 9.0)
FIRST, SECOND = (encode_mark(append_id(name, indexed=True)) for name in (b"first", b"second"))


class Store:
    """A store with two streams and one that was deleted, and the way around the library."""

    def __init__(self, place: Path) -> None:
        self.backend = RedisBackend(url_on("redis", place))
        self.client: Any = redis.Redis.from_url(redis_url(), protocol=2)
        trackers = [StreamTracker(name) for name in ("a", "b", "gone")]
        for tracker in trackers:
            tracker.write(self.backend, b"1", b"2", id=b"first", indexed=True, fields=FIELDS)
            tracker.write(self.backend, b"3 is the largest")
            tracker.write(self.backend, b"4", id=b"second", indexed=True)
        gone = trackers.pop().stream
        assert self.backend.delete(gone, expected=must_head(self.backend, gone))
        self.tracker = trackers[0]
        self.keys = self.keys_of("a")

    def keys_of(self, name: str) -> RedisStreamKeys:
        return self.backend._keys.for_stream(key(name))

    def found(self) -> list[tuple[str | None, bool]]:
        return [
            (problem.stream.id if problem.stream else None, problem.derived)
            for problem in self.backend.check()
        ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.backend.close()
    store.client.close()


Change = Callable[[Any, RedisStreamKeys], object]

DERIVED: dict[str, Change] = {
    "not listed": lambda redis, keys: redis.zrem(keys.shard_index, b"aa"),
    "no status": lambda redis, keys: redis.zrem(keys.shard_index, encode_status("open") + b"a"),
    "no due": lambda redis, keys: redis.zrem(keys.shard_index, b"d" + encode_due(5.0) + b"a"),
    "another status": lambda redis, keys: redis.zadd(
        keys.shard_index, {encode_status("done") + b"a": 0}
    ),
    "another due": lambda redis, keys: redis.zadd(
        keys.shard_index, {b"d" + encode_due(1.0) + b"a": 0}
    ),
    "a score": lambda redis, keys: redis.zadd(keys.shard_index, {b"aa": 3}),
    "no index": lambda redis, keys: redis.delete(keys.shard_index),
    "due sort key": lambda redis, keys: redis.hset(keys.head, "k", encode_due(6.0)),
    "no due sort key": lambda redis, keys: redis.hdel(keys.head, "k"),
    "largest record": lambda redis, keys: redis.hset(keys.head, "m", "1"),
    "an id": lambda redis, keys: (
        redis.hdel(keys.append_ids, FIRST),
        redis.hset(keys.append_ids, encode_mark(b"\xff"), "1 2"),
    ),
    "an id gone": lambda redis, keys: redis.hdel(keys.append_ids, SECOND),
    "no ids": lambda redis, keys: redis.delete(keys.append_ids),
    "an id too many": lambda redis, keys: redis.hset(keys.append_ids, encode_mark(b"\xff"), "3 3"),
    "versions of an id": lambda redis, keys: redis.hset(keys.append_ids, FIRST, "1 3"),
    "no versions of an id": lambda redis, keys: redis.hset(keys.append_ids, FIRST, "x"),
}

DAMAGES: dict[str, Change] = {
    "a record too many": lambda redis, keys: redis.rpush(keys.records, b"x" * 100),
    "a record gone": lambda redis, keys: redis.rpop(keys.records),
    "no head": lambda redis, keys: redis.delete(keys.head),
    "no version": lambda redis, keys: redis.hdel(keys.head, "v"),
    "another version": lambda redis, keys: redis.hset(keys.head, "v", "3"),
    "another type of head": lambda redis, keys: redis.set(keys.head, "x"),
    "another type of records": lambda redis, keys: redis.set(keys.records, "x"),
    "another name of the head": lambda redis, keys: redis.rename(
        keys.head, keys.head.replace(b":h:", b":i:")
    ),
    "another shard": lambda redis, keys: redis.rename(keys.records, keys.records + b"z"),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_derived_is_reported_and_rebuilt(store: Store, name: str) -> None:
    assert isinstance(store.backend, SupportsCheck) and store.found() == []
    DERIVED[name](store.client, store.keys)
    assert ("a", True) in store.found()
    assert store.backend.rebuild() >= 1
    assert store.found() == [] and store.backend.rebuild() == 0
    assert ids(all_due(store.backend)) == ids(all_heads(store.backend)) == ["a", "b"]
    assert ids(all_heads(store.backend, status="open")) == ["a", "b"]
    for chosen, versions in ((b"first", (1, 2)), (b"second", (4, 4))):
        again = store.tracker.next(id=chosen, indexed=True)
        assert stored(store.backend.append([again])) == [(*versions, True)]


@pytest.mark.parametrize("name", DAMAGES)
def test_what_contradicts_the_records_is_reported_and_left_as_it_is(
    store: Store, name: str
) -> None:
    DAMAGES[name](store.client, store.keys)
    before = [problem for problem in store.backend.check() if not problem.derived]
    assert before
    store.backend.rebuild()
    assert [problem for problem in store.backend.check() if not problem.derived] == before


def test_entries_of_no_stream_are_removed_from_the_index(store: Store) -> None:
    index = store.keys.shard_index
    strange = [b"agone", b"ab", b"\xff", b"s", b"sxxxxxxxxa", b"a\xff", b"zzz", b"dshort"]
    store.client.zadd(index, dict.fromkeys(strange, 0))
    assert len(store.found()) == len(strange)
    assert store.backend.rebuild() == len(strange)
    assert store.found() == [] and store.client.zcard(index) == 3


def test_append_ids_of_no_stream_are_removed(store: Store) -> None:
    keys = store.keys_of("gone")
    store.client.hset(keys.append_ids, FIRST, "1 2")
    assert store.found() == [("gone", True)]
    assert store.backend.rebuild() == 1
    assert not store.client.exists(keys.append_ids)


def test_streams_are_found_by_their_keys(store: Store) -> None:
    assert store.backend.list_scopes() == [("tenant", "kind")]
    other = StreamTracker(StreamKey("ä:ö", "k/d", "x:y"))
    other.write(store.backend)
    store.client.delete(store.backend._keys.for_stream(other.stream).shard_index)
    assert store.backend.list_scopes() == [("tenant", "kind"), ("ä:ö", "k/d")]
    assert store.found() == [("x:y", True)]


def test_a_check_reports_nothing_while_others_write(store: Store) -> None:
    stopped, failed = threading.Event(), list[Exception]()

    def write() -> None:
        try:
            tracker = StreamTracker("busy")
            while not stopped.is_set():
                version = tracker.version
                fields = HeadFields(f"status {version % 3}", due_at=float(version))
                tracker.write(store.backend, indexed=True, fields=fields)
                if version > 20:
                    head = must_head(store.backend, tracker.stream)
                    assert store.backend.delete(tracker.stream, expected=head)
                    tracker = StreamTracker("busy")
        except Exception as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(100):
            assert store.found() == []
    finally:
        stopped.set()
        writer.join()
    assert not failed


def test_verify_reports_it_and_finds_tenants_by_what_is_stored(tmp_path: Path) -> None:
    url = url_on("redis", tmp_path)
    with holdfast.open(url, tenant="acme") as store, redis.Redis.from_url(redis_url()) as client:
        backend: Any = store._log.backend
        store.stream("orders").append(("placed", 1), id="req-1")
        stream = StreamKey("acme", "stream", "orders")
        client.delete(backend._keys.for_stream(stream).append_ids)
        [problem] = store.verify().problems
        assert (problem.tenant, problem.id, problem.what) == ("acme", "orders", "index")
        registration = backend._keys.for_stream(StreamKey("$system", "tenant", "acme"))
        client.delete(*registration[:2])
        client.zrem(registration.shard_index, b"aacme")
        report = store.verify(all_tenants=True)
        assert ("acme", "storage") in [(each.tenant, each.what) for each in report.problems]
        assert (report.streams, report.records) == (1, 1)
