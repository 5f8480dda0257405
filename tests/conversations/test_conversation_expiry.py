"""A sliding expiry: a conversation expires some time after its last message, in every process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import holdfast
from helpers.stored.expiring_streams import Wrapped, ids, key_of, user
from holdfast import Store, testing
from holdfast.backends import Backend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import CorruptRecord, Expired
from holdfast.log import operations as ops

DAY = 86_400.0


class Chat:
    """A conversation whose methods are called in one way: plainly, or awaited."""

    def __init__(self, store: Store, id: str, asynchronous: bool) -> None:
        self._asynchronous = asynchronous
        self._chat: Any = (store.aio if asynchronous else store).conversation(id)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = getattr(self._chat, name)(*args, **kwargs)
            return asyncio.run(_awaited(found)) if self._asynchronous else found

        return call


async def _awaited(found: Coroutine[Any, Any, Any]) -> Any:
    return await found


@pytest.fixture(params=["plain", "async"])
def chat(request: pytest.FixtureRequest, store: Store) -> Chat:
    return Chat(store, "c", request.param == "async")


@pytest.fixture
def clock() -> Iterator[testing.FakeClock]:
    with testing.fake_clock() as clock:
        yield clock


def time_left(store: Store) -> float | None:
    head = store._log.backend.head(key_of("conversation", "c"))
    assert head is not None
    return None if head.fields.expires_at is None else head.fields.expires_at - head.now


@pytest.mark.every_engine
def test_a_sliding_expiry_counts_from_the_last_message(
    store: Store, chat: Chat, clock: testing.FakeClock
) -> None:
    chat.append(user("Hello"))
    chat.expire(timedelta(days=7), sliding=True)
    assert time_left(store) == pytest.approx(7 * DAY)
    for number in range(5):
        clock.advance(6 * DAY)
        chat.append(user(f"day {6 * number}"))
    clock.advance(7 * DAY - 1)
    assert chat.count() == 6 and ids(list(store.conversations())) == ["c"]
    clock.advance(0.08 * DAY)
    assert list(store.conversations()) == []
    with pytest.raises(Expired):
        chat.append(user("too late"))
    clock.advance(DAY)
    assert ids(store.sweep().deleted) == ["c"]


def test_it_slides_in_a_process_that_was_not_told(
    durable_url: str, clock: testing.FakeClock
) -> None:
    with holdfast.open(durable_url) as first:
        first.conversation("c").append(user("Hello"))
        first.conversation("c").expire(60, sliding=True)
    for number in range(3):
        clock.advance(50)
        with holdfast.open(durable_url) as later:
            later.conversation("c").append(user(f"message {number}"))
            assert time_left(later) == pytest.approx(60.6)


def test_every_way_to_add_to_a_conversation_moves_it(
    store: Store, clock: testing.FakeClock
) -> None:
    chat = store.conversation("c")
    chat.append(user("Hello"))
    chat.expire(60, sliding=True)

    def in_a_turn() -> None:
        with chat.turn() as turn:
            turn.append(user("in a turn"))

    ways: list[Callable[[], object]] = [
        lambda: chat.append(user("one"), user("two")),
        lambda: chat.append(user("with an id"), id="request-1"),
        lambda: chat.append(user("pinned"), pin=True),
        lambda: chat.append(user("at a version"), if_version=chat.version()),
        lambda: chat.append(*(user(f"{number}") for number in range(20))),
        lambda: chat.sync([*chat.messages(), user("synced")]),
        lambda: chat.draft("an answer that is", of="request-2"),
        in_a_turn,
        lambda: store.conversation("c").append(user("by another handle")),
    ]
    for way in ways:
        clock.advance(50)
        way()
        assert time_left(store) == pytest.approx(60.6)
    assert chat.count() > 25


def test_it_slides_only_if_it_was_told_to(store: Store, clock: testing.FakeClock) -> None:
    chat = store.conversation("c")
    chat.append(user("Hello"))
    chat.expire(60)
    clock.advance(10)
    chat.append(user("a message does not prolong it"))
    assert time_left(store) == pytest.approx(50)
    chat.expire(60, sliding=True)
    clock.advance(10)
    chat.append(user("now it does"))
    assert time_left(store) == pytest.approx(60.6)
    chat.expire(30)
    clock.advance(10)
    chat.append(user("and no more"))
    assert time_left(store) == pytest.approx(20)
    chat.expire(60, sliding=True)
    chat.expire(None)
    chat.append(user("for ever"))
    assert time_left(store) is None
    chat.expire(60, sliding=True)
    clock.advance(61)
    with pytest.raises(Expired):
        chat.append(user("too late"))
    chat.expire(30, sliding=True)
    clock.advance(10)
    chat.append(user("brought back"))
    assert time_left(store) == pytest.approx(30.3)


def test_a_sliding_expiry_needs_a_time(chat: Chat) -> None:
    chat.append(user("Hello"))
    with pytest.raises(ValueError, match="ttl must be seconds or a timedelta if sliding is True"):
        chat.expire(None, sliding=True)
    assert chat.version() == 1


def test_a_fork_does_not_expire_with_its_parent(store: Store, clock: testing.FakeClock) -> None:
    chat = store.conversation("c")
    chat.append(user("Hello"))
    chat.expire(60, sliding=True)
    fork = chat.fork("fork")
    clock.advance(100)
    fork.append(user("Still here"))
    assert ids(list(store.conversations())) == ["fork"]


def test_it_slides_in_a_copy_and_after_the_store_was_encrypted(
    tmp_path: Path, clock: testing.FakeClock
) -> None:
    plain, copied, secret = (str(tmp_path / name) for name in ("a.db", "b.db", "c.db"))
    with holdfast.open(plain) as store:
        store.conversation("c").append(user("Hello"))
        store.conversation("c").expire(60, sliding=True)
    key = holdfast.keys.generate()
    holdfast.copy(plain, copied)
    holdfast.encrypt(plain, secret, key=key)
    clock.advance(50)
    for url, key_of_it in ((copied, None), (secret, key)):
        with holdfast.open(url, key=key_of_it) as store:
            store.conversation("c").append(user("more"))
            assert time_left(store) == pytest.approx(60.6)


# -- what it costs ---------------------------------------------------------------------------------


def watched(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    requests: list[Any] = []
    handle = store._log.handle

    def watch(request: ops.Request) -> Any:
        requests.append(request)
        return handle(request)

    monkeypatch.setattr(store._log, "handle", watch)
    return requests


@pytest.mark.slow
@pytest.mark.parametrize(("sliding", "moves"), [(True, 3), (False, 0)])
def test_an_append_stays_one_request_and_rarely_moves_the_expiry(
    store: Store,
    clock: testing.FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    sliding: bool,
    moves: int,
) -> None:
    chat = store.conversation("c")
    chat.append(user("Hello"))
    chat.expire(DAY, sliding=sliding)
    chat.append(user("Hello"))
    requests = watched(store, monkeypatch)
    for number in range(1000):
        clock.advance(2)
        chat.append(user(f"message {number}"))
    assert [type(request) for request in requests] == [ops.AppendRecords] * 1000
    assert len([request for request in requests if request.fields is not None]) == moves


# -- several writers -------------------------------------------------------------------------------


def test_a_moved_expiry_does_not_take_the_turn_from_another_process(
    durable_url: str, clock: testing.FakeClock
) -> None:
    with holdfast.open(durable_url) as one, holdfast.open(durable_url) as other:
        chat = one.conversation("c")
        chat.append(user("Hello"))
        chat.expire(60, sliding=True)
        chat.append(user("known to this process from now on"))
        clock.advance(4)
        with other.conversation("c").turn(lease=30) as turn:
            chat.append(user("from outside of the turn"))
            head = one._log.backend.head(key_of("conversation", "c"))
            assert head is not None and head.fields.owner is not None
            assert time_left(one) == pytest.approx(60.6)
            turn.append(user("still in the turn"))
        assert chat.count() == 4


def test_threads_that_append_at_once_lose_nothing_and_move_it(
    store: Store, clock: testing.FakeClock
) -> None:
    store.conversation("c").append(user("Hello"))
    store.conversation("c").expire(1e-3, sliding=True)
    store.conversation("c").expire(60, sliding=True)
    clock.advance(30)
    start = threading.Barrier(8)

    def write(thread: int) -> None:
        start.wait()
        for number in range(20):
            store.conversation("c").append(user(f"{thread}/{number}"))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [message["content"] for message in store.conversation("c").messages()][1:]
    assert sorted(found) == sorted(
        f"{thread}/{number}" for thread in range(8) for number in range(20)
    )
    assert time_left(store) == pytest.approx(60.6)


# -- clocks and damage -----------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [-3650 * DAY, 3650 * DAY])
def test_it_slides_by_the_clock_of_the_engine(ahead: float) -> None:
    backend = Wrapped(MemoryBackend())
    backend.ahead = ahead
    with testing.fake_clock() as clock, holdfast.open(cast(Backend, backend)) as store:
        chat = store.conversation("c")
        chat.append(user("Hello"))
        chat.expire(60, sliding=True)
        for pause in (4, 4, 50, 3):
            clock.advance(pause)
            chat.append(user("Hello"))
            assert time_left(store) == pytest.approx(60.6)


@pytest.mark.parametrize(
    "label", [b"", b"{", b'{"ttl":"soon"}', b'{"ttl":-1}', b"\xff", b"[" * 100_000]
)
def test_a_damaged_label_is_refused(label: bytes) -> None:
    backend = MemoryBackend("outlives its stores")
    with holdfast.open(backend) as store:
        store.conversation("c").append(user("Hello"))
        store.conversation("c").expire(60, sliding=True)
        stream = backend._streams[key_of("conversation", "c")]
        stream.fields = msgspec.structs.replace(stream.fields, label=label)
        chat = store.conversation("c")
        for use in (chat.messages, lambda: chat.append(user("more"))):
            with pytest.raises(CorruptRecord, match="label"):
                use()
        assert chat.delete(), "it can still be deleted"
