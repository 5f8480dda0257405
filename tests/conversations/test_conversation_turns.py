"""Turns, followers, expiry and deletion of conversations: who may write, who is notified, and how
they end."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from helpers.chat_messages import assistant, user
from holdfast import LeaseHeld, NotFound, Store
from holdfast.backends.memory import MemoryBackend
from holdfast.conversations.fold import BRANCHED, Ancestor, ConversationBranched, ConversationFold
from holdfast.conversations.write import new_event, store_events
from holdfast.errors import CorruptRecord, Expired, LeaseLost
from holdfast.log import operations as ops
from holdfast.log.events import new_append_context
from holdfast.types import DraftPiece

# -- turns -----------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_two_turns_do_not_interleave(store: Store) -> None:
    inside = threading.Event()

    def other() -> None:
        mine = store.conversation("c")
        with mine.turn():
            inside.set()
            mine.append(user("second question"))
            mine.append(assistant("second answer"))

    chat = store.conversation("c")
    thread = threading.Thread(target=other)
    with chat.turn():
        chat.append(user("first question"))
        thread.start()
        with pytest.raises(LeaseHeld):
            with holdfast_turn(store):
                pass
        assert not inside.is_set()
        chat.append(assistant("first answer"))
    thread.join()
    assert [message["content"] for message in chat.messages()] == [
        "first question",
        "first answer",
        "second question",
        "second answer",
    ]
    assert chat.count() == 4


def holdfast_turn(store: Store) -> Any:
    """A turn asked for by somebody else: not in this thread's context."""
    from contextlib import contextmanager

    @contextmanager
    def asked() -> Any:
        def enter() -> None:
            with store.conversation("c").turn(wait=0):
                pass

        contextvars.Context().run(enter)
        yield

    return asked()


def test_a_turn_inside_a_turn_is_the_same_turn(store: Store) -> None:
    chat = store.conversation("c")
    with chat.turn():
        with store.conversation("c").turn(wait=0):
            chat.append(user("a"))
    assert chat.messages() == [user("a")]


@pytest.mark.every_engine
def test_a_turn_that_was_taken_over_writes_nothing_more(store: Store) -> None:
    chat = store.conversation("c")
    with chat.turn(lease=0.001):
        chat._log.heartbeat.stop()  # as if this process had been stopped for longer than its lease
        chat.append(user("mine"))
        contextless(lambda: take_turn_and_append(store))
        for write in (
            lambda: chat.append(user("late")),
            chat.pop,
            chat.clear,
            lambda: chat.sync([user("late")]),
            lambda: chat.draft("late", of="x"),
            lambda: chat.fork("d"),
            lambda: chat.expire(5),
            chat.delete,
            chat.repair,
        ):
            with pytest.raises(LeaseLost):
                write()  # type: ignore[no-untyped-call]
    assert chat.messages() == [user("mine"), user("theirs")]


def take_turn_and_append(store: Store) -> None:
    with store.conversation("c").turn() as other:
        other.append(user("theirs"))


def contextless(do: Any) -> None:
    contextvars.Context().run(do)


def test_a_turn_holds_in_another_context_for_the_object_it_gives(store: Store) -> None:
    chat = store.conversation("c")

    def stream() -> Any:
        with chat.turn(lease=0.001) as mine:
            yield
            chat._log.heartbeat.stop()
            contextless(lambda: take_turn_and_append(store))
            with pytest.raises(LeaseLost):
                mine.append(user("late"))
            yield

    steps = stream()
    for _ in range(
        2
    ):  # as a web framework does, which runs each step of a generator in a context of its own
        contextvars.copy_context().run(next, steps)
    steps.close()
    assert chat.messages() == [user("theirs")]


def test_a_task_started_in_a_turn_has_turns_of_its_own_after_it(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat, over = store.conversation("c"), asyncio.Event()

            async def later() -> None:
                await over.wait()
                async with chat.turn():
                    await chat.append(user("later"))

            async with chat.turn():
                task = asyncio.create_task(later())
            over.set()
            await task
            assert await chat.messages() == [user("later")]

    asyncio.run(main())


@pytest.mark.parametrize("pauses", range(12))
def test_a_turn_cancelled_at_any_point_is_given_back(url: str, pauses: int) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat = store.conversation("c")
            await chat.append(user("a"))

            async def turn() -> None:
                async with chat.turn(lease=60):
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)

            task = asyncio.create_task(turn())
            for _ in range(pauses):
                await asyncio.sleep(0 if pauses < 6 else 0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with chat.turn(wait=0):
                pass

    asyncio.run(main())


def test_one_failed_renewal_does_not_end_all_others() -> None:
    class Failing(MemoryBackend):
        fails = 0

        def head(self, *args: Any, **options: Any) -> Any:
            if threading.current_thread().name == "holdfast-leases" and not self.fails:
                self.fails += 1
                raise OSError("gone for a moment")
            return super().head(*args, **options)

    backend = Failing()
    with holdfast.open(backend) as store:
        chat = store.conversation("c")
        with chat.turn(lease=0.06):
            while not any(b"turn.renewed" in record.body for record in backend.read(chat._key)):
                threading.Event().wait(0.01)
        assert backend.fails == 1


def test_expiry_is_looked_at_again(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("1"))
    chat.expire(0.001)
    with pytest.raises(Expired):
        while True:
            chat.append(user("2"))
    store.conversation("c").expire(None)
    chat.append(user("3"))
    assert chat.messages()[-1] == user("3")


def test_a_fork_of_what_is_deleted_meanwhile_leaves_nothing() -> None:
    class Racing(MemoryBackend):
        meanwhile: Any = None

        def append(self, batch: Any) -> Any:
            if self.meanwhile and batch[0].stream.id == "child":
                now, self.meanwhile = self.meanwhile, None
                now()
            return super().append(batch)

    backend = Racing()
    with holdfast.open(backend) as store, holdfast.open(backend) as other:
        chat = store.conversation("c")
        chat.append(user("1"))
        backend.meanwhile = other.conversation("c").delete
        with pytest.raises(NotFound):
            chat.fork("child")
        assert [item.id for item in store.conversations()] == []


def test_health_tells_who_has_a_turn(store: Store) -> None:
    assert store.health().oldest_lease is None
    chat = store.conversation("c")
    with chat.turn():
        lease = store.health().oldest_lease
        assert lease is not None and lease.stream == "c" and str(os.getpid()) in lease.owner
    assert store.health().oldest_lease is None


def test_a_turn_is_renewed_while_it_lasts(store: Store) -> None:
    chat = store.conversation("c")
    renewed = threading.Event()
    with chat.turn(lease=0.06):
        [renewal] = chat._log.heartbeat._beats.values()
        original = renewal.call

        def renew() -> None:
            original()
            renewed.set()

        renewal.call = renew
        assert renewed.wait(30)
        chat.append(user("still mine"))
    assert chat.messages() == [user("still mine")]


# -- following -------------------------------------------------------------------------------------


def test_follow_goes_on_from_a_cursor_without_gaps(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), user("b"))
    seen = [entry.version for entry in chat.follow(timeout=0)]
    chat.append(user("c"))
    assert [entry.message for entry in chat.follow(after=seen[-1], timeout=0)] == [user("c")]


def test_follow_sees_what_is_appended_while_it_waits(store: Store) -> None:
    chat = store.conversation("c")
    follower = store.conversation("c").follow()

    def write() -> None:
        for n in range(50):
            chat.append(user(str(n)))

    thread = threading.Thread(target=write)
    thread.start()
    assert [next(follower).message["content"] for _ in range(50)] == [str(n) for n in range(50)]
    thread.join()


def test_follow_of_a_deleted_conversation_ends_with_an_error(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"))
    follower = chat.follow()
    next(follower)
    chat.delete()
    with pytest.raises(NotFound):
        next(follower)


@pytest.mark.every_engine
def test_follow_with_drafts_has_the_pieces_between_the_messages_and_goes_on_from_any(
    store: Store,
) -> None:
    chat = store.conversation("c")
    chat.append(user("a"))
    with chat.turn() as turn:
        turn.draft("Hel", of="first")
        turn.draft("Hello", of="second")  # another attempt
        turn.draft(" you", of="second")
        turn.append({"role": "assistant", "content": "Hello you"})
    found = list(chat.follow_with_drafts(timeout=0))
    pieces = [item for item in found if isinstance(item, DraftPiece)]
    assert [(piece.of, piece.text) for piece in pieces] == [
        ("first", "Hel"),
        ("second", "Hello"),
        ("second", " you"),
    ]
    assert found == [found[0], *pieces, found[-1]]
    assert [found[0], found[-1]] == list(chat.follow(timeout=0))
    for number, item in enumerate(found):
        rest = list(chat.follow_with_drafts(after=item.version, timeout=0))
        assert rest == found[number + 1 :]

    async def follow() -> list[object]:
        aio = store.aio.conversation("c")
        return [item async for item in aio.follow_with_drafts(timeout=0)]

    assert asyncio.run(follow()) == found


def test_follow_with_drafts_of_a_fork_has_the_pieces_before_it(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"))
    chat.draft("Hel", of="first")
    fork = chat.fork("d")
    fork.draft("lo", of="first")
    found = list(fork.follow_with_drafts(timeout=0))
    assert [item.text for item in found if isinstance(item, DraftPiece)] == ["Hel", "lo"]


# -- expiry and deletion ---------------------------------------------------------------------------


def test_an_expired_conversation_is_invisible_and_can_be_brought_back(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"))
    chat.expire(timedelta(days=1))
    info = chat.view()
    assert info.expires_at is not None
    chat.expire(0)
    for use in (
        chat.messages,
        chat.count,
        lambda: chat.append(user("b")),
        lambda: chat.window(100),
        chat.pop,
    ):
        with pytest.raises(Expired):
            use()  # type: ignore[operator]
    assert list(store.conversations()) == []
    chat.expire(None)
    assert chat.messages() == [user("a")]
    chat.expire(0)
    assert chat.delete()
    chat.append(user("new"))
    assert chat.messages() == [user("new")]
    with pytest.raises(NotFound):
        store.conversation("none").expire(5)


def test_a_conversation_deleted_and_begun_anew_elsewhere_is_noticed(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(*[user(str(n)) for n in range(10)])
    other = store.conversation("c")
    other.delete()
    other.append(user("new start"))
    assert chat.append(user("here too")).last == 2
    assert chat.messages() == [user("new start"), user("here too")] and chat.count() == 2
    chat.sync([user("x")])
    other.delete()
    assert chat.sync([user("x")]) == 1
    assert chat.messages() == [user("x")]


def test_conversations_are_listed_by_id(store: Store) -> None:
    for name in "cab":
        store.conversation(name).append(user(name))
    assert [info.id for info in store.conversations()] == ["a", "b", "c"]
    assert [info.id for info in store.for_tenant("other").conversations()] == []


def test_a_hostile_record_is_an_error_not_a_message(store: Store) -> None:
    for n, (kind, data) in enumerate(
        [
            ("message.appended", {"message": "text"}),
            ("message.appended", ["nothing"]),
            ("conversation.rewound", {"to": 99, "left": 3}),
            ("conversation.rewound", {"to": "x"}),
            ("message.removed", {}),
            ("message.removed", {"version": 99}),
            ("message.inserted", {"after": 99, "message": {"role": "user"}, "why": "x"}),
            ("message.replaced", {"version": -1, "message": {"role": "user"}, "why": "x"}),
            ("conversation.branched", {"parent": "x", "at": 1, "ancestors": []}),
        ]
    ):
        chat = store.conversation(f"c{n}")
        chat.append(user("a"))
        stream = store.stream(f"c{n}")
        stream._key = chat._key
        stream.append((kind, data))
        with pytest.raises(CorruptRecord):
            chat.messages()


@pytest.mark.parametrize(("base", "upto"), [(6, 5), (-3, 5), (1, 5), (0, 4)])
def test_a_fork_that_lies_about_where_its_messages_are_is_an_error(
    store: Store, base: int, upto: int
) -> None:
    parent = store.conversation("p")
    parent.append(*[user(str(n)) for n in range(5)])
    head = store._log.backend.head(parent._key)
    assert head is not None
    branched = ConversationBranched("p", 5, [Ancestor("p", head.incarnation.hex(), base, upto)])
    child = store.conversation("h")
    event = new_event(BRANCHED, branched, ConversationFold(5, 5, 5))
    ops.run(store._log, store_events(child._key, None, [event], new_append_context(), expected=0))
    with pytest.raises(CorruptRecord):
        child.messages()


@pytest.mark.slow
def test_many_tasks_in_one_turn_all_get_through(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat = store.conversation("c")
            async with chat.turn():
                await asyncio.gather(*[chat.append(user(str(n))) for n in range(150)])
            popped = await asyncio.gather(*[chat.pop() for _ in range(150)])
            assert sorted(int(message["content"]) for message in popped) == list(range(150))

    asyncio.run(main())
