"""Conversations: what is appended comes back, once, in order; rewinding, syncing, files, and the
async interface."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.chat_messages import SYSTEM, assistant, call, one, result, user
from helpers.paths import GOLDEN
from holdfast import Conflict, NotFound, OutcomeUnknown, Store
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import CorruptFile, IdReused, NotSerializable, Unavailable
from holdfast.log import operations as ops
from holdfast.log.events import new_append_context

# -- appending -------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_messages_come_back_in_order_in_another_process(durable_url: str) -> None:
    with holdfast.open(durable_url) as store:
        chat = store.conversation("c")
        chat.append(SYSTEM, user("Hello"))
        chat.append(assistant("Hi"))
    with holdfast.open(durable_url) as store:
        chat = store.conversation("c")
        assert chat.messages() == [SYSTEM, user("Hello"), assistant("Hi")]
        assert [entry.version for entry in chat.entries()] == [1, 2, 3]
        assert chat.count() == 3


def test_an_unused_conversation_does_not_exist(store: Store) -> None:
    chat = store.conversation("c")
    assert (chat.messages(), chat.count(), chat.version(), chat.pending()) == ([], 0, 0, None)
    assert (chat.pop(), chat.repair(), chat.validate(), chat.drafts(), chat.delete()) == (
        None,
        [],
        [],
        [],
        False,
    )
    assert chat.window(100) == []
    assert list(store.conversations()) == []
    with pytest.raises(NotFound):
        chat.view()


@pytest.mark.every_engine
def test_the_same_append_id_is_stored_once(store: Store) -> None:
    chat = store.conversation("c")
    first = chat.append(user("Hello"), id="req-1")
    chat.append(assistant("Hi"))
    again = store.conversation("c").append(user("Hello"), id="req-1")
    assert (first.first, first.duplicate, again.first, again.duplicate) == (1, False, 1, True)
    assert chat.count() == 2
    with pytest.raises(IdReused):
        chat.append(user("Goodbye"), id="req-1")
    with pytest.raises(IdReused):
        chat.append(user("Hello"), id="req-1", meta={"other": 1})


def test_a_system_prompt_repeated_under_its_id_is_no_other_content(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM, id="begin")
    chat.append(user("Hello"))
    assert chat.append(SYSTEM, id="begin").duplicate


def test_if_version_refuses_a_stale_writer(store: Store) -> None:
    chat = store.conversation("c")
    version = chat.append(user("a"), if_version=0).last
    chat.append(user("b"), if_version=version)
    with pytest.raises(Conflict) as caught:
        chat.append(user("c"), if_version=version)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert chat.count() == 2


def test_a_renewed_turn_is_no_reason_to_refuse_a_version(store: Store) -> None:
    chat = store.conversation("c")
    with chat.turn() as turn:
        version = chat.append(user("a")).last
        held = chat._log.heartbeat._beats
        [renewal] = held.values()
        renewal.call()
        assert chat.append(user("b"), if_version=version).first > version + 1
        with pytest.raises(Conflict):
            turn.append(user("c"), if_version=version)


def test_if_version_with_an_id_repeats_what_is_stored(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), id="1", if_version=0, pin=True)
    chat.append(user("b"))
    assert chat.append(user("a"), id="1", if_version=0, pin=True).duplicate
    with pytest.raises(Conflict):
        chat.append(user("x"), id="2", if_version=0)
    with pytest.raises(Conflict):
        chat.append(user("x"), if_version=9)


def test_an_append_of_several_messages_is_all_or_nothing(store: Store) -> None:
    chat = store.conversation("c")
    with pytest.raises(NotSerializable, match=r"\$\.message\.content"):
        chat.append(user("fine"), {"role": "user", "content": object()})
    assert chat.messages() == []


@pytest.mark.parametrize("wrong", ["text", ["list"], {}, 7, None])
def test_what_is_no_message_is_refused(store: Store, wrong: object) -> None:
    with pytest.raises(TypeError):
        store.conversation("c").append(wrong)
    with pytest.raises(ValueError, match="at least one"):
        store.conversation("c").append()


@pytest.mark.parametrize("seed", range(20))
def test_a_turn_retried_after_a_lost_answer_is_never_doubled(seed: int) -> None:
    backend = FaultyBackend(
        MemoryBackend(), seed=seed, lost_answer=0.3, lost_request=0.1, unavailable=0.1
    )
    turns = [f"turn {number}" for number in range(20)]
    with holdfast.open(backend) as store:
        for turn in turns:
            while True:
                try:
                    store.conversation("c").append(user(turn), id=turn)  # as a new process would
                    break
                except (OutcomeUnknown, Unavailable):
                    continue
        assert sum(backend.injected.values()) > 0
        backend._rates = dict.fromkeys(backend._rates, 0.0)
        assert [message["content"] for message in store.conversation("c").messages()] == turns


def test_what_one_writer_knew_does_not_mislead_another(store: Store) -> None:
    one, two = store.conversation("c"), store.conversation("c")
    one.append(user("a"), user("b"), user("c"))
    two.pop()
    one.append(user("d"))
    one.append(user("e"))
    assert one.messages() == [user(text) for text in "abde"]
    assert store.conversation("c").count() == 4


def test_meta_and_origin_stay_beside_the_message(store: Store) -> None:
    chat = store.conversation("c")
    with holdfast.correlate("req-7", actor="worker-1"):
        chat.append(user("Hello"), meta={"channel": "mail"})
    [entry] = chat.entries()
    assert (entry.message, entry.meta, entry.by, entry.correlation) == (
        user("Hello"),
        {"channel": "mail"},
        "worker-1",
        "req-7",
    )
    assert chat.messages() == [user("Hello")]


@pytest.mark.every_engine
def test_large_messages_are_kept_and_counted(store: Store) -> None:
    chat = store.conversation("c")
    picture = user("x" * 300_000)
    chat.append(user("a"))
    chat.append(picture)
    chat.append(assistant("nice"))
    chat.append(picture, assistant("again"))
    other = store.conversation("c")
    assert (other.count(), other.messages(last=2)) == (5, [picture, assistant("again")])
    assert chat.delete()
    assert store.health().streams.get("blob", 0) == 0


# -- reading costs what it returns -----------------------------------------------------------------


class CountingBackend(MemoryBackend):
    records = 0

    def read(self, *args: Any, **options: Any) -> Any:
        page = super().read(*args, **options)
        self.records += len(page)
        return page


@pytest.mark.slow
def test_the_newest_50_of_100_000_messages_read_about_50_records() -> None:
    backend = CountingBackend()
    with holdfast.open(backend) as store:
        chat = store.conversation("c")
        chat.append(SYSTEM)
        for start in range(0, 100_000, 5_000):
            chat.append(*[user(str(n)) for n in range(start, start + 5_000)])
        fresh = store.conversation("c")
        backend.records = 0
        assert [m["content"] for m in fresh.messages(last=50)] == [
            str(n) for n in range(99_950, 100_000)
        ]
        assert backend.records < 60
        backend.records = 0
        assert fresh.count() == 100_001
        fresh.append(user("one more"))
        assert fresh.pending() is not None
        window = fresh.window(20, counter=one)
        assert window[0] == SYSTEM and len(window) == 20
        assert backend.records < 150


# -- rewinding -------------------------------------------------------------------------------------


def test_rewind_goes_back_and_can_be_undone(store: Store) -> None:
    chat = store.conversation("c")
    for text in "abcd":
        chat.append(user(text))
    assert chat.rewind(version=2) == 2
    assert chat.messages() == [user("a"), user("b")]
    chat.append(user("e"))
    assert chat.messages() == [user("a"), user("b"), user("e")]
    assert chat.rewind(version=4) == 0
    assert chat.messages() == [user(text) for text in "abcd"]
    chat.clear()
    assert (chat.messages(), chat.count()) == ([], 0)
    with pytest.raises(NotFound):
        chat.rewind(version=99)


def test_pop_takes_the_newest_message(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(user("a"), user("b"))
    assert [chat.pop(), chat.pop(), chat.pop()] == [user("b"), user("a"), None]
    chat.append(user("c"))
    assert chat.messages() == [user("c")]


def test_no_two_threads_pop_the_same_message(store: Store) -> None:
    chat = store.conversation("c")
    chat.append(*[user(str(n)) for n in range(40)])
    popped: list[str] = []
    lock = threading.Lock()

    def take() -> None:
        mine = store.conversation("c")
        while (message := mine.pop()) is not None:
            with lock:
                popped.append(message["content"])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(popped, key=int) == [str(n) for n in range(40)]


# -- sync ------------------------------------------------------------------------------------------


def test_sync_appends_only_what_is_new(store: Store) -> None:
    chat = store.conversation("c")
    messages = [SYSTEM, user("a")]
    assert chat.sync(messages) == 2
    messages.append(assistant("b"))
    assert (chat.sync(messages), chat.sync(messages), store.conversation("c").sync(messages)) == (
        1,
        0,
        0,
    )
    assert (chat.messages(), chat.version()) == (messages, 3)


def test_sync_rewinds_to_where_the_lists_part(store: Store) -> None:
    chat = store.conversation("c")
    chat.sync([user("a"), assistant("b"), user("c")])
    assert chat.sync([user("a"), assistant("better")]) == 1
    assert chat.messages() == [user("a"), assistant("better")]
    assert chat.sync([user("a")]) == 0
    assert chat.messages() == [user("a")]


def test_sync_of_a_trimmed_list_forgets_nothing(store: Store) -> None:
    chat = store.conversation("c")
    history = [SYSTEM, *[user(str(n)) for n in range(10)]]
    chat.sync(history)
    assert chat.sync([SYSTEM, *history[-3:], assistant("new")]) == 1
    assert chat.messages() == [*history, assistant("new")]


def test_sync_does_not_undo_what_somebody_else_stored(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    mine, theirs = store.conversation("c"), store.conversation("c")
    mine.sync([user("a")])
    theirs.sync([user("a"), assistant("b")])
    for wrong in ([user("a"), assistant("mine")], [user("a")]):
        with pytest.raises(Conflict):
            mine.sync(wrong)
    assert mine.sync([user("a"), assistant("b"), user("c")]) == 1
    with pytest.raises(ValueError, match="clear"):
        mine.sync([])
    with caplog.at_level(logging.WARNING, "holdfast"):
        mine.sync([user("a")])
    assert "2 messages" in caplog.text
    assert theirs.messages() == [user("a")]


@pytest.mark.parametrize("keep", range(5))
def test_sync_after_a_repair_keeps_just_what_the_list_has(store: Store, keep: int) -> None:
    chat = store.conversation("c")
    chat.append(user("1"), call("x"), user("2"), result("nobody"))
    chat.repair()
    chat.append(assistant("3"))
    wanted = [*chat.messages()[:keep], user("edited")]
    chat.sync(wanted)
    assert chat.messages() == wanted == store.conversation("c").messages()
    assert chat.count() == keep + 1
    assert chat.sync([*wanted, user("more")]) == 1


@pytest.mark.parametrize("system", [None, "Another prompt"])
def test_sync_of_a_window_forgets_nothing(store: Store, system: str | None) -> None:
    chat = store.conversation("c")
    for n in range(50):
        chat.append(user(f"question {n}"), assistant(f"answer {n}"))
    chat.summarize(lambda messages: "many questions", keep_last=10)
    window = chat.window(9, system=system, counter=one)
    assert chat.sync([*window, user("new")]) == 1
    assert chat.count() == 101


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.unencrypted("an export of what is encrypted must be meant")
def test_export_and_import_round_trip(store: Store, tmp_path: Path) -> None:
    chat = store.conversation("c")
    chat.append(SYSTEM, user("a"), call("1"), result("1"), assistant("b"))
    chat.export_json(tmp_path / "chat.json")
    other = store.conversation("d")
    assert other.import_json(tmp_path / "chat.json") == holdfast.types.ImportResult(5, True)
    assert other.import_json(tmp_path / "chat.json").messages == 5
    assert other.messages() == chat.messages()


def test_a_damaged_file_is_refused_untouched_or_salvaged(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    whole = (
        b'[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "us'
    )
    path.write_bytes(whole)
    chat = store.conversation("c")
    with pytest.raises(CorruptFile):
        chat.import_json(path)
    assert (chat.messages(), path.read_bytes()) == ([], whole)
    assert chat.import_json(path, salvage=True) == holdfast.types.ImportResult(2, False)
    assert chat.messages() == [user("a"), assistant("b")]


# -- async -----------------------------------------------------------------------------------------


@pytest.mark.every_engine
@pytest.mark.unencrypted("an export of what is encrypted must be meant")
def test_the_async_conversation_does_the_same(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat = store.conversation("c")
            await chat.append(SYSTEM, user("a"))
            pending = await chat.pending()
            assert pending is not None and pending.message == user("a")
            async with chat.turn():
                await chat.append(assistant("b"))
            answer = await chat.answer(2)
            assert answer is not None and answer.message == assistant("b")
            assert await chat.sync([SYSTEM, user("a"), assistant("b"), user("c")]) == 1
            assert (await chat.count(), len(await chat.entries(last=2))) == (4, 2)
            assert await chat.pop() == user("c")
            fork = await chat.fork("d", version=2)
            assert await fork.messages() == [SYSTEM, user("a")]

            async def summarise(messages: list[Any]) -> str:
                return str(len(messages))

            assert await chat.summarize(summarise, keep_last=1)
            assert await chat.summarize(lambda messages: "plain", keep_last=0)
            assert len(await chat.window(1000)) == 3
            await chat.draft("x", of="1")
            assert [draft.text for draft in await chat.drafts()] == ["x"]
            assert len(await chat.repair()) == 1 and await chat.validate() == []
            await chat.export_json(tmp_path / "c.json")
            assert (await chat.import_json(tmp_path / "c.json")).messages == 4
            followed = [entry.message async for entry in chat.follow(after=1, timeout=0)]
            assert followed[0] == user("a")
            assert await chat.rewind(version=2) > 0
            await chat.clear()
            await chat.expire(100)
            info = await chat.view()
            assert info.messages == 0 and await chat.version() == info.version
            assert [item.id async for item in store.conversations()] == ["c", "d"]
            assert await fork.delete() and await chat.delete()

    asyncio.run(main())


@pytest.mark.every_engine
def test_async_turns_do_not_interleave(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:

            async def request(name: str) -> None:
                chat = store.conversation("c")
                async with chat.turn():
                    await chat.append(user(name))
                    await asyncio.sleep(0)
                    await chat.append(assistant(name))

            await asyncio.gather(*[request(str(n)) for n in range(5)])
            messages = await store.conversation("c").messages()
            for question, answer in zip(messages[::2], messages[1::2], strict=True):
                assert question["content"] == answer["content"]

    asyncio.run(main())


def test_many_tasks_append_to_one_conversation(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            chat = store.conversation("c")
            await asyncio.gather(*[chat.append(user(str(n))) for n in range(100)])
            assert sorted(int(m["content"]) for m in await chat.messages()) == list(range(100))
            assert await chat.count() == 100

    asyncio.run(main())


def test_what_is_decided_on_another_process_s_writes_is_stored(durable_url: str) -> None:
    with holdfast.open(durable_url) as here, holdfast.open(durable_url) as there:
        mine, theirs = here.conversation("c"), there.conversation("c")
        mine.append(user("a"))
        theirs.append(user("b"), user("c"))
        assert mine.pop() == user("c")
        theirs.append(user("d"))
        assert mine.rewind(version=2) == 1
        theirs.append(call("1"))
        assert [problem.kind for problem in mine.repair()] == ["dangling call"]
        theirs.append(user("e"))
        with mine.turn():
            mine.append(user("f"))
        assert mine.sync([user("a")]) == 0
        theirs.append(user("pinned"), pin=True)
        mine.fork("d")
        assert theirs.messages() == [user("a"), user("pinned")]


def test_what_was_stored_by_the_first_version_is_read_for_ever(store: Store) -> None:
    bodies = (GOLDEN / "conversation-1.jsonl").read_bytes().splitlines()
    expected = json.loads((GOLDEN / "conversation-1.messages.json").read_text())
    chat = store.conversation("c")
    ops.run(
        store._log,
        ops.append(ops.AppendRecords(chat._key, bodies, new_append_context(), expected=0)),
    )
    assert (chat.messages(), chat.count()) == (expected["messages"], expected["count"])
    assert chat.window(7, counter=one) == expected["window"]
    assert [draft.text for draft in chat.drafts()] == expected["drafts"]
