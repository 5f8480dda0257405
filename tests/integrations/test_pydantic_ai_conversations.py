"""PydanticAI conversations in a store: what its own store in memory does, and more than one
process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent, Conversation, UserError
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.test import TestModel

import holdfast
from holdfast.integrations.pydantic_ai import HoldfastConversationStore


@pytest.fixture(params=["ours", "theirs"])
def conversations(request: pytest.FixtureRequest) -> Iterator[ConversationStore]:
    """Our store, and the one that PydanticAI comes with: each test holds for both."""
    if request.param == "theirs":
        yield InMemoryConversationStore()
    else:
        with holdfast.open("memory://") as store:
            yield HoldfastConversationStore(store)


def question(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def answer(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def talk(id: str, *texts: str) -> Conversation:
    messages = [
        question(text) if place % 2 == 0 else answer(text) for place, text in enumerate(texts)
    ]
    return Conversation(messages=list(messages), conversation_id=id)


def texts(conversation: Conversation | None) -> list[Any]:
    assert conversation is not None
    return [message.parts[0].content for message in conversation.messages]  # type: ignore[union-attr]


def test_a_conversation_grows_by_what_is_new(conversations: ConversationStore) -> None:
    async def main() -> None:
        assert await conversations.load("a") is None
        assert len(await conversations.save(talk("a", "hello", "hi"), scope="ann")) == 2
        loaded = await conversations.load("a")
        assert texts(loaded) == ["hello", "hi"] and loaded is not None
        loaded.messages += [question("and?"), answer("fine")]
        new = await conversations.save(loaded)
        assert [entry.message for entry in new] == loaded.messages[2:]
        assert texts(await conversations.load("a")) == ["hello", "hi", "and?", "fine"]
        assert texts(await conversations.load("a", limit=3)) == ["hi", "and?", "fine"]
        assert await conversations.load("a", scope="bob") is None
        assert await conversations.save(loaded) == []
        entries = await conversations.load_entries("a")
        assert entries is not None
        assert [entry.parent_id for entry in entries] == [None, *(e.id for e in entries[:-1])]

    asyncio.run(main())


def test_the_second_of_two_writers_is_refused(conversations: ConversationStore) -> None:
    async def main() -> None:
        await conversations.save(talk("a", "hello", "hi"))
        first, second = await conversations.load("a"), await conversations.load("a")
        assert first is not None and second is not None
        first.messages.append(question("first"))
        second.messages.append(question("second"))
        await conversations.save(first)
        with pytest.raises(ConversationConflict):
            await conversations.save(second)
        with pytest.raises(ConversationConflict):
            await conversations.save(talk("a", "new"))
        assert texts(await conversations.load("a")) == ["hello", "hi", "first"]

    asyncio.run(main())


def test_of_writers_at_the_same_time_one_wins(conversations: ConversationStore) -> None:
    async def main() -> None:
        await conversations.save(talk("a", "hello", "hi"))
        writers = [await conversations.load("a") for _ in range(4)]
        for number, writer in enumerate(writers):
            assert writer is not None
            writer.messages.append(question(f"writer {number}"))
        saved = await asyncio.gather(
            *(conversations.save(writer) for writer in writers if writer), return_exceptions=True
        )
        assert sum(isinstance(result, ConversationConflict) for result in saved) == 3
        assert len(texts(await conversations.load("a"))) == 3

    asyncio.run(main())


def test_forks_and_branches_share_what_they_have_in_common(
    conversations: ConversationStore,
) -> None:
    async def main() -> None:
        await conversations.save(talk("a", "one", "two", "three", "four"))
        fork = await conversations.fork("a", at=2, new_conversation_id="b", scope="bob")
        fork.messages.append(question("other"))
        await conversations.save(fork)
        again = await conversations.fork("b", new_conversation_id="c")
        assert texts(again) == ["one", "two", "other"]
        assert texts(await conversations.load("b")) == ["one", "two", "other"]
        loaded = await conversations.load("a")
        assert loaded is not None
        branched = await conversations.branch("a", at=1, expected_revision=loaded.revision)
        branched.messages.append(answer("zwei"))
        await conversations.save(branched)
        assert texts(await conversations.load("a")) == ["one", "zwei"]
        record = await conversations.read_record("a")
        assert record is not None and len(record.branches) == 1
        back = await conversations.branch(
            "a", from_entry=record.branches[0], expected_revision=record.revision
        )
        assert texts(back) == ["one", "two", "three", "four"]
        assert texts(await conversations.load("c")) == ["one", "two", "other"]
        with pytest.raises(UserError, match="not in the store"):
            await conversations.fork("nowhere")
        with pytest.raises(ConversationConflict):
            await conversations.fork("a", new_conversation_id="b")

    asyncio.run(main())


def test_deleted_conversations_are_gone_and_their_forks_stay(
    conversations: ConversationStore,
) -> None:
    async def main() -> None:
        await conversations.save(talk("a", "one", "two"), scope="ann")
        await conversations.fork("a", new_conversation_id="b")
        await conversations.save(talk("c", "three"))
        stale = await conversations.load("a")
        await conversations.delete("a")
        assert await conversations.load("a") is None
        assert texts(await conversations.load("b")) == ["one", "two"]
        listed = await conversations.list_conversations()
        assert [record.conversation_id for record in listed] == ["c", "b"]
        assert [r.conversation_id for r in await conversations.list_conversations(scope="ann")] == [
            "b"
        ]
        assert len(await conversations.list_conversations(limit=1)) == 1
        assert stale is not None
        with pytest.raises(ConversationConflict):
            await conversations.save(stale)
        await conversations.save(talk("a", "again"))
        assert texts(await conversations.load("a")) == ["again"]

    asyncio.run(main())


def test_a_record_with_an_unknown_head_is_refused(conversations: ConversationStore) -> None:
    async def main() -> None:
        record = ConversationRecord(conversation_id="a", head_id="nowhere")
        with pytest.raises(ConversationConflict):
            await conversations.write_record(record, expected_revision=None)
        with pytest.raises(LookupError):
            await conversations.read_entry("nowhere")
        with pytest.raises(ConversationConflict):
            await conversations.delete_record("a", expected_revision="none")

    asyncio.run(main())


@pytest.mark.every_engine
def test_another_process_continues_the_conversation(url: str) -> None:
    agent = Agent(TestModel(custom_output_text="hi"), name="clerk")

    async def say(store: holdfast.Store, text: str) -> None:
        conversations = HoldfastConversationStore(store)
        loaded = await conversations.load("a") or Conversation(conversation_id="a")
        await conversations.save(await agent.run(text, conversation=loaded))

    with holdfast.open(url) as store:
        for text in ("one", "two"):
            asyncio.run(say(store, text))
        asyncio.run(HoldfastConversationStore(store).fork("a", new_conversation_id="b"))
        found = asyncio.run(HoldfastConversationStore(store).load("b"))
        assert texts(found) == ["one", "hi", "two", "hi"]
        assert found is not None and found.usage.requests == 2
        kinds = [message["kind"] for message in store.conversation("a").messages()]
        assert kinds == ["request", "response", "request", "response"]
        entry = store.conversation("a").entries()[0].meta["pydantic_ai"]["entries"][0][0]
        read = asyncio.run(HoldfastConversationStore(store).read_entry(entry))
        assert read.message.parts[0].content == "one"  # type: ignore[union-attr]
        store.conversation("other").append({"role": "user", "content": "hello"})
        with pytest.raises(ValueError, match="must be one that PydanticAI wrote"):
            asyncio.run(HoldfastConversationStore(store).save(talk("other", "one")))
    with pytest.raises(TypeError, match="store must be an open store"):
        HoldfastConversationStore("agents.db")  # type: ignore[arg-type]
