"""Erasure: the key is destroyed wherever it was, reads say so, writers are refused, and the chain
still verifies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.stored.encrypted_stores import (
    CANARY,
    KEY,
    WHO,
    Killed,
    Lasting,
    Mortal,
    about_somebody,
    everything_in,
    replace_body,
    say,
)
from holdfast import Memory, NotFound, Store, keys
from holdfast.backends import Append, AppendResult, Head, StreamKey, VersionMismatch, clock
from holdfast.encryption.data_keys import data_key_name
from holdfast.errors import Erased, NotEncrypted, TamperDetected, Unavailable

pytestmark = pytest.mark.unencrypted("uses keys of its own")

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

NAMES = {
    "conversation": "chat",
    "task": "task",
    "state": "document",
    "stream": "events",
    "memory": "space",
}


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
        page = store._log.handle(
            holdfast.log.operations.Read(StreamKey("default", "audit", "log"), decoded=True)
        )
    [told] = [stored.envelope for stored in page if stored.envelope.type == "stream.erased"]
    assert (told.data["kind"], told.data["id"], told.data["reason"]) == (
        "conversation",
        "chat",
        "request 17",
    )


def test_no_trace_of_the_key_is_left_in_the_files(local_url: str, tmp_path: Path) -> None:
    with holdfast.open(local_url, key=KEY) as store:
        begun(store)
        backend, cipher = store._log.backend, store._log.cipher
        head = backend.head(CHAT)
        assert head is not None and cipher is not None
        name = data_key_name(CHAT, head.incarnation)
        key = next(
            h.stream
            for h in backend.heads(tenant="default", kind="key")
            if h.stream.id.startswith(name)
        )
        wrapped = backend.read(key)[0].body.split(b'"wrapped":"')[1].split(b'"')[0]
        assert any(wrapped in content for content in everything_in(tmp_path))
        store.erase(store.conversation("chat"))
        assert ("default", name) not in cipher.keys._known
        assert not any(
            wrapped in content or CANARY.encode() in content for content in everything_in(tmp_path)
        )
    assert not any(
        wrapped in content or CANARY.encode() in content for content in everything_in(tmp_path)
    )


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


def test_forks_of_what_is_erased_go_with_it_and_so_do_theirs() -> None:
    """Nobody could read them any more, and what was said in them since would stay."""
    with holdfast.open("memory://", key=KEY) as store:
        chat = store.conversation("chat", subject=WHO)
        chat.append(say("hello"))
        fork = chat.fork("branch")
        fork.append(say(CANARY))
        fork.fork("twig").append(say(CANARY))
        chat.fork("gone").append(say("x"))
        store.conversation("gone").delete()
        store.conversation("gone").append(say("another of this name"))
        chat.fork("before").append(say("x"))
        store.erase(store.conversation("before"))
        with store.task("task", goal=f"goal {CANARY}", subject=WHO) as task:
            task.step("one", lambda: 1)
        store.task("task").fork("again")
        done = store.erase(subject=WHO)
        forks = {("conversation", "branch"), ("conversation", "twig"), ("task", "again")}
        assert set(done.streams) == {("conversation", "chat"), ("task", "task"), *forks}
        for kind, name in done.streams:
            with pytest.raises(Erased):
                store._log.reader.read_page(StreamKey("default", kind, name))
        assert [(info.status, info.goal) for info in store.tasks()] == [("erased", None)] * 2
        assert store.conversation("gone").messages() == [say("another of this name")]
        assert store.verify().ok


def test_with_a_namespace_goes_also_what_is_about_subjects() -> None:
    """Whoever has the store's key, and reads the records by hand, reads nothing; what else is about
    the subject stays."""
    backend, space = Lasting(), StreamKey("default", "memory", "space")
    with holdfast.open(backend, key=KEY) as store:
        for name in ("space", "other"):
            store.memory(name).remember(f"{CANARY} likes tea", subject=WHO)
        store.memory("space").remember(CANARY)
        store.erase(store.memory("space"))
    with holdfast.open(backend, key=KEY) as store:
        cipher, head = store._log.cipher, backend.head(space)
        assert cipher is not None and head is not None
        *records, mark = backend.read(space)
        assert len(records) == 2 and cipher.is_erasure_record(space, mark.body)
        for record, previous in zip(records, (bytes(32), records[0].hash), strict=True):
            with pytest.raises(Erased):
                cipher.decrypt(space, head.incarnation, record, previous)
        assert [memory.text for memory in store.memory("other").all()] == [f"{CANARY} likes tea"]
        assert store.verify().ok


class Interrupted(Lasting):
    """Does something else just before it deletes a key."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if stream.kind == "key" and meanwhile is not None:
            meanwhile()
        return super().delete(stream, expected=expected)


def test_who_writes_in_this_process_while_a_key_is_about_to_go_is_refused() -> None:
    """What is written under it would be taken for stored, and would be lost."""
    backend = Interrupted()
    store = holdfast.open(backend, key=KEY)
    chat = store.conversation("chat")
    chat.append(say("known here"))
    refused: list[Exception] = []

    def late() -> None:
        for _ in range(2):
            try:
                chat.append(say("late"))
            except Erased as error:
                refused.append(error)

    backend.meanwhile = late
    store.erase(chat)
    assert len(refused) == 2
    head = backend.head(CHAT)
    assert head is not None and (head.version, head.fields.status) == (2, "erased")


def test_who_remembers_while_the_key_of_a_subject_is_about_to_go_is_refused_each_time() -> None:
    backend = Interrupted()
    store = holdfast.open(backend, key=KEY)
    space = store.memory("space")
    space.remember("known here", subject=WHO)
    refused: list[str] = []

    def late() -> None:
        for _ in range(2):
            try:
                space.remember("late", subject=WHO)
            except Erased as error:
                refused.append(str(error))

    backend.meanwhile = late
    store.erase(subject=WHO)
    assert len(refused) == 2 and all(
        "about this subject in memory 'space'" in text for text in refused
    )
    assert list(space.all()) == []


def test_a_key_that_is_listed_as_it_was_is_deleted_as_it_is() -> None:
    """Lists may be old, and what they say of a stream need not be so any more."""
    backend = Lasting()
    store = holdfast.open(backend, key=KEY)
    store.conversation("chat").append(say(CANARY))
    real = backend.heads

    def stale(**asked: Any) -> list[Head]:
        return [msgspec.structs.replace(head, hash=bytes(32)) for head in real(**asked)]

    backend.heads = stale  # type: ignore[method-assign, assignment]
    store.erase(store.conversation("chat"))
    head = backend.head(CHAT)
    assert head is not None
    name = data_key_name(CHAT, head.incarnation)
    assert [s.id for s in backend._streams if s.id.startswith(name)] == [name + ".erased"]


def test_what_is_damaged_can_be_erased() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=KEY) as store:
        store.conversation("chat", subject=WHO).append(say(CANARY))
        store.conversation("chat").append(say(CANARY))
        space = store.memory("space")
        space.remember(CANARY, subject=WHO)
        space.remember("of others")
    for stream in (CHAT, StreamKey("default", "memory", "space")):
        replace_body(backend, stream, 2, lambda body: body[:-1] + bytes((body[-1] ^ 1,)))
    with holdfast.open(backend, key=KEY) as store:
        with pytest.raises(TamperDetected, match="memory 'space'"):
            store.erase(subject=WHO)
        with pytest.raises(Erased):
            store.conversation("chat").messages()
        left = [
            stream.id
            for stream in backend._streams
            if stream.kind == "key" and stream.id.startswith("subject-")
        ]
        assert len(left) == 1 and left[0].endswith(".erased")


# -- an index of memories that is kept on disk, in clear, because somebody wants it so -------------


WORD = "zanzibarcanary"


def on_disk(folder: Path) -> list[str]:
    """Files that have the word in them, or the stem that an index makes of it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in files if b"zanzibarcan" in path.read_bytes().lower()]


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["a subject", "the namespace"])
@pytest.mark.parametrize("many", [0, 150])
def test_nothing_of_what_is_erased_stays_in_an_index_on_disk(
    local_url: str, tmp_path: Path, whole: bool, many: int
) -> None:
    with holdfast.open(local_url, key=KEY, index=tmp_path / "index.db") as store:
        space = store.memory("space")
        for number in range(many):
            space.remember(f"The kettle {number} is broken", tags=[f"tag{number}"])
        space.remember(f"{WORD} likes tea", subject=WHO, tags=[WORD], meta={"name": WORD})
        space.remember(f"{WORD} likes it hot", subject=WHO, ttl=0.001)
        space.recall("who likes tea?")
        space.remember("Berlin has many lakes")
        space.recall("who likes tea?")
        assert on_disk(tmp_path)
        if whole:
            store.erase(space)
        else:
            store.erase(subject=WHO)
        assert on_disk(tmp_path) == []
        if not whole:
            assert [hit.text for hit in space.recall("lakes in Berlin")] == [
                "Berlin has many lakes"
            ]
    assert on_disk(tmp_path) == []


def test_what_another_process_has_erased_is_in_no_index_of_this_one(
    local_url: str, tmp_path: Path
) -> None:
    with (
        holdfast.open(local_url, key=KEY, index=tmp_path / "here.db") as here,
        holdfast.open(local_url, key=KEY, index=tmp_path / "there.db") as there,
    ):
        here.memory("space").remember(f"{WORD} likes tea")
        assert len(there.memory("space").recall("tea")) == 1
        here.erase(here.memory("space"))
        with pytest.raises(Erased):
            there.memory("space").recall("tea")
    assert on_disk(tmp_path) == []


def test_a_parent_is_not_deleted_while_a_fork_exists_whatever_was_erased() -> None:
    with holdfast.open("memory://", key=KEY) as store:
        chat = store.conversation("chat")
        chat.append(say("hello"))
        for name in ("erased", "alive"):
            chat.fork(name).append(say(name))
        store.erase(store.conversation("erased"))
        with pytest.raises(holdfast.errors.HasForks):
            chat.delete()
        assert store.conversation("alive").messages() == [say("hello"), say("alive")]
        store.conversation("alive").delete()
        chat.delete()


# -- subjects --------------------------------------------------------------------------------------


def texts_of(store: Store) -> str:
    """All texts of the namespace, also those that only a search would find. Their reprs would not
    show them."""
    space = store.memory("notes")
    return " | ".join(memory.text for memory in [*space.all(), *space.recall(f"late {CANARY} tea")])


def test_everything_about_a_subject_is_erased_and_nothing_else(durable_url: str) -> None:
    with holdfast.open(durable_url, key=KEY) as store:
        about_somebody(store)
        done = store.erase(subject=WHO, reason="request 18")
        assert set(done.streams) == {
            ("conversation", "about"),
            ("conversation", "claim"),
            ("task", "claim"),
        }
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
        assert [
            hit for hit in store.memory("notes").recall("who likes tea?") if CANARY in hit.text
        ] == []
        assert list(store.memory("claims").all()) == []
        assert store.verify().ok
        assert store.erase(subject=WHO) == holdfast.types.EraseResult([], [])


@pytest.mark.parametrize("subject", ["of the chat", "of the task"])
def test_a_chat_that_has_only_replies_is_about_its_subject_too(subject: str) -> None:
    with holdfast.open("memory://", key=KEY) as store:
        chat = store.conversation("chat", subject=WHO if subject == "of the chat" else None)
        with store.task("answer", subject=WHO if subject == "of the task" else None) as task:
            task.reply(chat, lambda _: {"role": "assistant", "content": CANARY})
        assert ("conversation", "chat") in store.erase(subject=WHO).streams
        with pytest.raises(Erased):
            store.conversation("chat").messages()


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


@pytest.mark.slow
def test_what_comes_in_while_a_subject_is_erased_is_refused_or_goes_too() -> None:
    """Another process remembers something at each write of the erasure, and looks at it at once. It
    knows the key."""
    number, stored = 0, 0
    while True:
        backend = Mortal()
        store, other = holdfast.open(backend, key=KEY), holdfast.open(backend, key=KEY)
        about_somebody(store)
        notes = other.memory("notes")
        notes.remember("known there", subject=WHO)
        backend.writes, backend.dies_at = 0, number
        real = backend._boundary

        def meanwhile(
            backend: Mortal = backend, real: Callable[[], None] = real, notes: Memory = notes
        ) -> None:
            nonlocal stored
            try:
                real()
            except Killed:
                backend.dies_at = -1
                try:
                    notes.remember(f"late {CANARY}", subject=WHO)
                    stored += 1
                    notes.recall("late")
                except Erased:
                    pass

        backend._boundary = meanwhile  # type: ignore[method-assign]
        store.erase(subject=WHO)
        if backend.dies_at != -1:
            break
        with holdfast.open(backend, key=KEY) as third:
            store.erase(
                subject=WHO
            )  # a new incarnation of the subject may have started after the last write
            for each in (store, other, third):
                assert CANARY not in texts_of(each)
        number += 1
    assert number > 20 and 0 < stored < number


def test_namespaces_that_are_gone_or_erased_do_not_stop_the_rest() -> None:
    with holdfast.open("memory://", key=KEY) as store:
        for name in ("deleted", "erased", "there"):
            store.memory(name).remember(CANARY, subject=WHO)
        store.memory("deleted").delete()
        store.erase(store.memory("erased"))
        assert set(store.erase(subject=WHO).memories) == {"deleted", "erased", "there"}
        assert list(store.memory("there").all()) == []
        left = store._log.backend.heads(tenant="default", kind="memory")
        assert [head.stream.id for head in left] == ["erased", "there"]


@pytest.mark.slow
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
                assert CANARY not in texts_of(again)
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

        def erase_there(
            store: Store = store, backend: Mortal = backend, real: Callable[[], None] = real
        ) -> None:
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
            name = data_key_name(CHAT, head.incarnation)
            left = [
                h.stream.id
                for h in backend.heads(tenant="default", kind="key")
                if h.stream.id.startswith(name)
            ]
            assert left == [name + ".erased"]
        number += 1
    assert number > 20


class Overtaken(Lasting):
    """A subject is erased just before the first record about it is stored, when the key was looked
    at already."""

    then: Callable[[], object] | None = None

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        if self.then is not None and batch[0].stream == CHAT and not batch[0].expected:
            then, self.then = self.then, None
            then()
        return super().append(batch)


@pytest.mark.parametrize("text", ["small", "x" * 70_000])
def test_what_begins_while_its_subject_is_erased_is_not_stored_under_a_dead_key(text: str) -> None:
    backend = Overtaken()
    with holdfast.open(backend, key=KEY) as store, holdfast.open(backend, key=KEY) as other:
        other.conversation("before", subject=WHO).append(say(CANARY))
        backend.then = lambda: other.erase(subject=WHO)
        chat = store.conversation("chat", subject=WHO)
        stored = []
        for number in range(3):
            with suppress(Erased, holdfast.Conflict):
                chat.append(say(f"{number} {text}"))
                stored.append(say(f"{number} {text}"))
        assert backend.then is None
        assert other.conversation("chat").messages() == stored
        assert other.verify().ok


class Busy(Lasting):
    """An engine that cannot overwrite what was deleted while somebody else writes."""

    refuses = scrubbed = 0

    def scrub(self) -> None:
        if self.refuses:
            self.refuses -= 1
            raise Unavailable("locked")
        self.scrubbed += 1


def test_what_was_deleted_is_overwritten_as_soon_as_others_let_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(clock, "sleep", paused.append)
    backend = Busy()
    with holdfast.open(backend, key=KEY) as store:
        begun(store)
        backend.refuses = 3
        store.erase(store.conversation("chat"))
        assert (len(paused), backend.scrubbed) == (3, 1)
        backend.refuses = 3
        store.rekey(KEY)
        assert (len(paused), backend.scrubbed) == (6, 2)


# -- wrong use -------------------------------------------------------------------------------------


def test_a_store_in_clear_cannot_erase() -> None:
    with holdfast.open("memory://") as store:
        store.conversation("chat").append(say("hello"))
        for attempt in (
            lambda: store.erase(store.conversation("chat")),
            lambda: store.erase(subject=WHO),
        ):
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


@pytest.mark.every_engine
def test_erasing_on_every_engine(url: str) -> None:
    with holdfast.open(url, key=KEY) as store:
        chat = store.conversation("chat", subject=WHO)
        chat.append(say(CANARY), say("x" * 70_000))
        store.erase(subject=WHO)
        for attempt in (chat.messages, lambda: chat.append(say("late"))):
            with pytest.raises(Erased):
                attempt()
        assert not store._log.backend.heads(tenant="default", kind="blob")


@pytest.mark.every_engine
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
            assert ("task", "task") in done.streams and (
                "conversation",
                "of the task",
            ) in done.streams

    asyncio.run(run())
