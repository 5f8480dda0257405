"""Erasure: the key is destroyed wherever it was, reads say so, writers are refused, and the chain still verifies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Erased, NotEncrypted, NotFound, Store, keys
from holdfast.backends import StreamKey
from holdfast.encryption._data_keys import name_of
from test_encryption import CANARY, KEY, Lasting, everything_in, say
from test_rekeying import Killed, Mortal

WHO = "person-7"
CHAT = StreamKey("default", "conversation", "chat")


def begun(store: Store) -> None:
    store.conversation("chat").append(say(CANARY), say(f"large {CANARY}" + "x" * 70_000))
    store.conversation("other").append(say("stays"))
    with store.task("task", goal=f"goal {CANARY}") as task:
        task.step("one", lambda: CANARY)
        task.attach("file", CANARY.encode())
    store.state("document").save({"name": CANARY})
    store.stream("events").append(("said", CANARY))
    store.memory("space").remember(f"{CANARY} likes tea")


READS: dict[str, Callable[[Store], object]] = {
    "conversation": lambda store: store.conversation("chat").messages(),
    "task": lambda store: store.get_task("task"),
    "state": lambda store: store.state("document").load(),
    "stream": lambda store: list(store.stream("events").read()),
    "memory": lambda store: store.memory("space").recall("tea"),
}
NAMES = {"conversation": "chat", "task": "task", "state": "document", "stream": "events", "memory": "space"}


@pytest.mark.parametrize("kind", NAMES)
def test_what_was_erased_says_so_and_all_else_stays(durable_url: str, kind: str) -> None:
    with holdfast.open(durable_url, key=KEY) as store:
        begun(store)
        done = store.erase(getattr(store, kind)(NAMES[kind]), reason="request 17")
        assert done.streams == [(kind, NAMES[kind])]
        with pytest.raises(Erased):
            READS[kind](store)
        assert store.verify().ok
    with holdfast.open(durable_url, key=KEY) as store:
        for other, read in READS.items():
            if other == kind:
                with pytest.raises(Erased):
                    read(store)
            else:
                assert read(store)
        assert store.verify().ok
        assert store.conversation("other").messages() == [say("stays")]


def test_the_audit_stream_says_what_was_erased_when_and_why() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=KEY) as store:
        begun(store)
        store.erase(store.conversation("chat"), reason="request 17")
        page = store._log.handle(holdfast._operations.Read(StreamKey("default", "audit", "log"), plain=True))
    [told] = [stored.envelope for stored in page if stored.envelope.type == "stream.erased"]
    assert (told.data["kind"], told.data["id"], told.data["reason"]) == ("conversation", "chat", "request 17")


def test_no_trace_of_the_key_is_left_in_the_files(local_url: str, tmp_path: Path) -> None:
    with holdfast.open(local_url, key=KEY) as store:
        begun(store)
        backend, cipher = store._log.backend, store._log.cipher
        head = backend.head(CHAT)
        assert head is not None and cipher is not None
        name = name_of(CHAT, head.incarnation)
        key = next(h.stream for h in backend.heads(tenant="default", kind="key") if h.stream.id.startswith(name))
        wrapped = backend.read(key)[0].body.split(b'"wrapped":"')[1].split(b'"')[0]
        assert any(wrapped in content for content in everything_in(tmp_path))
        store.erase(store.conversation("chat"))
        assert ("default", name) not in cipher.keys._known
        assert not any(wrapped in content or CANARY.encode() in content for content in everything_in(tmp_path))
    assert not any(wrapped in content or CANARY.encode() in content for content in everything_in(tmp_path))


def test_a_writer_elsewhere_is_refused_and_nothing_is_stored_under_a_dead_key() -> None:
    backend = Lasting()
    here, there = holdfast.open(backend, key=KEY), holdfast.open(backend, key=KEY)
    begun(here)
    chat = there.conversation("chat")
    chat.append(say("known there"))
    here.erase(here.conversation("chat"))
    before = backend.head(CHAT)
    for attempt in (
        lambda: chat.append(say("late")),
        lambda: there.conversation("chat").append(say("late")),
        chat.messages,
    ):
        with pytest.raises(Erased, match="conversation 'chat'"):
            attempt()
    after = backend.head(CHAT)
    assert before is not None and after is not None and before.version == after.version


def test_whoever_holds_a_task_notices_at_the_next_step() -> None:
    backend = Lasting()
    here, there = holdfast.open(backend, key=KEY), holdfast.open(backend, key=KEY)
    with pytest.raises(Erased), there.task("task", goal=CANARY) as task:
        task.step("one", lambda: 1)
        here.erase(here.task("task"))
        task.step("two", lambda: 2)
    assert [info.status for info in here.tasks()] == ["erased"]


def test_what_was_erased_can_be_deleted_and_its_name_used_again() -> None:
    with holdfast.open("memory://", key=KEY) as store:
        begun(store)
        for kind in NAMES:
            store.erase(getattr(store, kind)(NAMES[kind]))
            store.erase(getattr(store, kind)(NAMES[kind]))  # again: nothing more to do
            assert getattr(store, kind)(NAMES[kind]).delete()
        begun(store)
        assert store.conversation("chat").messages()[0] == say(CANARY)
        assert store.memory("space").recall("tea")[0].text == f"{CANARY} likes tea"


def test_forks_of_what_was_erased_cannot_read_it() -> None:
    with holdfast.open("memory://", key=KEY) as store:
        begun(store)
        fork = store.conversation("chat").fork("branch")
        fork.append(say("own"))
        store.erase(store.conversation("chat"))
        with pytest.raises(Erased):
            fork.messages()


# -- subjects ------------------------------------------------------------------------------------------------------------


def about_somebody(store: Store) -> None:
    store.conversation("about", subject=WHO).append(say(CANARY), say("x" * 70_000))
    store.conversation("other", subject="person-8").append(say("stays"))
    with store.task("claim", goal=CANARY, agent="claims", subject=WHO) as task:
        task.conversation().append(say(CANARY))
        task.discover(f"{CANARY} lives in Berlin")
        task.finish("done")
    space = store.memory("notes")
    space.remember(f"{CANARY} likes tea", subject=WHO)
    space.remember("Ann likes coffee", subject="person-8")
    space.remember("The kettle is broken")


def test_everything_about_a_subject_is_erased_and_nothing_else(durable_url: str) -> None:
    with holdfast.open(durable_url, key=KEY) as store:
        about_somebody(store)
        done = store.erase(subject=WHO, reason="request 18")
        assert set(done.streams) == {("conversation", "about"), ("conversation", "claim"), ("task", "claim")}
        assert set(done.memories) == {"notes", "claims"}
    with holdfast.open(durable_url, key=KEY) as store:
        for read in (
            store.conversation("about").messages,
            store.conversation("claim").messages,
            lambda: store.get_task("claim"),
        ):
            with pytest.raises(Erased):
                read()
        assert store.conversation("other").messages() == [say("stays")]
        texts = [memory.text for memory in store.memory("notes").all()]
        assert texts == ["Ann likes coffee", "The kettle is broken"]
        assert [hit for hit in store.memory("notes").recall("who likes tea?") if CANARY in hit.text] == []
        assert list(store.memory("claims").all()) == []
        assert store.verify().ok
        assert store.erase(subject=WHO) == holdfast.Erasure([], [])


def test_a_subject_that_comes_back_has_a_new_key() -> None:
    with holdfast.open("memory://", key=KEY) as store:
        about_somebody(store)
        store.erase(subject=WHO)
        store.memory("notes").remember("new about them", subject=WHO)
        store.conversation("new", subject=WHO).append(say("new"))
        assert store.conversation("new").messages() == [say("new")]
        assert "new about them" in [memory.text for memory in store.memory("notes").all()]
        assert set(store.erase(subject=WHO).streams) == {("conversation", "new")}
        assert "new about them" not in [memory.text for memory in store.memory("notes").all()]


def test_killed_at_any_write_the_same_call_finishes_it() -> None:
    number = 0
    while True:
        backend = Mortal()
        store = holdfast.open(backend, key=KEY)
        about_somebody(store)
        backend.writes, backend.dies_at = 0, number
        try:
            store.erase(subject=WHO)
        except Killed:
            backend.dies_at = -1
            with holdfast.open(backend, key=KEY) as again:
                assert again.verify().ok
                assert again.conversation("other").messages() == [say("stays")]
                again.erase(subject=WHO)
                for name in ("about", "claim"):
                    with pytest.raises(Erased):
                        again.conversation(name).messages()
                assert CANARY not in str(list(again.memory("notes").all()))
                assert again.verify().ok
            number += 1
            continue
        break
    assert number > 20


def test_a_new_key_and_an_erasure_at_the_same_time_bring_nothing_back() -> None:
    """The erasure happens at each write of the change of keys."""
    new, number = keys.generate(), 0
    while True:
        backend = Mortal()
        store = holdfast.open(backend, key=KEY)
        begun(store)
        backend.writes, backend.dies_at = 0, number
        real = backend._boundary

        def erase_there(store: Store = store, backend: Mortal = backend, real: Callable[[], None] = real) -> None:
            try:
                real()
            except Killed:
                backend.dies_at = -1
                other = holdfast.open(backend, key=[KEY, new])
                other.erase(other.conversation("chat"))

        backend._boundary = erase_there  # type: ignore[method-assign]
        store.rekey(new)
        if backend.dies_at != -1:
            break
        with holdfast.open(backend, key=new) as after:
            with pytest.raises(Erased):
                after.conversation("chat").messages()
            head = backend.head(CHAT)
            assert head is not None
            name = name_of(CHAT, head.incarnation)
            left = [h.stream.id for h in backend.heads(tenant="default", kind="key") if h.stream.id.startswith(name)]
            assert left == [name + ".erased"]
        number += 1
    assert number > 20


# -- wrong use -------------------------------------------------------------------------------------------------------------


def test_a_store_in_clear_cannot_erase() -> None:
    with holdfast.open("memory://") as store:
        store.conversation("chat").append(say("hello"))
        for attempt in (lambda: store.erase(store.conversation("chat")), lambda: store.erase(subject=WHO)):
            with pytest.raises(NotEncrypted, match="delete"):
                attempt()


def test_what_to_erase_must_be_said() -> None:
    with holdfast.open("memory://", key=KEY) as store:
        odd: Any
        for odd in ((), ("chat",), (store.conversation("chat").__class__,)):
            with pytest.raises(TypeError):
                store.erase(*odd)
        with pytest.raises(TypeError):
            store.erase(store.conversation("chat"), subject=WHO)
        with pytest.raises(TypeError):
            store.erase(store.for_tenant("globex").conversation("chat"))
        with pytest.raises(NotFound):
            store.erase(store.conversation("none"))


def test_erasing_on_every_engine(url: str) -> None:
    with holdfast.open(url, key=KEY) as store:
        chat = store.conversation("chat", subject=WHO)
        chat.append(say(CANARY), say("x" * 70_000))
        store.erase(subject=WHO)
        for attempt in (chat.messages, lambda: chat.append(say("late"))):
            with pytest.raises(Erased):
                attempt()
        assert not store._log.backend.heads(tenant="default", kind="blob")


def test_erasing_in_async_code_on_every_engine(url: str) -> None:
    async def run() -> None:
        async with holdfast.aopen(url, key=KEY) as store:
            chat = store.conversation("chat", subject=WHO)
            await chat.append(say(CANARY))
            async with store.task("task", goal=CANARY, subject=WHO) as task:
                await task.conversation("of the task").append(say(CANARY))
            await store.erase(chat)
            with pytest.raises(Erased):
                await chat.messages()
            done = await store.erase(subject=WHO)
            assert ("task", "task") in done.streams and ("conversation", "of the task") in done.streams

    asyncio.run(run())
