"""Streamed completions on the OpenAI SDK: what is heard, what is kept, and what becomes of a stream
that is cut."""

from __future__ import annotations

import asyncio

import openai
import pytest

import holdfast
from helpers.model_server import ModelServer, Reply
from holdfast.integrations.openai import NoAnswer, complete

from .openai_loop import HELLO, Loop, of_openai, settings

pytest_plugins = ["integrations.openai_fixtures"]

WORDS = " ".join(f"word{number}" for number in range(1000))


def test_pieces_come_as_they_are_said_and_the_whole_is_stored(loop: Loop) -> None:
    loop.chat.append(HELLO)
    assert loop.pieces() == ["seen ", "1 ", "messages; ", "last: ", "hello"]
    assert loop.complete().text == "seen 1 messages; last: hello"
    assert len(loop.server.requests) == 1


@of_openai
def test_what_is_streamed_is_sent_back_as_it_would_be_if_it_had_not_been(loop: Loop) -> None:
    loop.chat.append(HELLO)
    loop.pieces()
    loop.chat.rewind(version=1)
    streamed = loop.chat.entries()
    assert [entry.message for entry in streamed] == [HELLO]
    loop.pieces()
    [_, answer] = loop.chat.messages()
    if loop.api == "chat":
        assert answer == {"role": "assistant", "content": "seen 1 messages; last: hello"}
    else:
        assert answer["content"] == [
            {"type": "output_text", "text": "seen 1 messages; last: hello", "annotations": []}
        ]


def test_the_answer_is_at_hand_when_the_stream_ends(
    server: ModelServer, chat: holdfast.Conversation
) -> None:
    chat.append(HELLO)
    with openai.OpenAI(**settings(server)) as client:
        pieces = complete(client, chat, model="any", stream=True)
        assert server.requests == []
        text = next(pieces)
        with pytest.raises(RuntimeError, match="iterate to the last piece"):
            _ = pieces.answer
        text += "".join(pieces)
        assert pieces.answer.text == text
        assert list(pieces) == []


def test_the_answer_is_at_hand_when_an_async_stream_ends(server: ModelServer) -> None:
    async def main(store: holdfast.AsyncStore) -> None:
        chat = store.conversation("chat")
        await chat.append(HELLO)
        async with openai.AsyncOpenAI(**settings(server, awaited=True)) as client:
            pieces = complete(client, chat, model="any", stream=True)
            text = "".join([piece async for piece in pieces])
            assert pieces.answer.text == text

    with holdfast.open("memory://") as store:
        asyncio.run(main(store.aio))


@pytest.mark.parametrize("cleanly", [True, False])
@of_openai
def test_a_stream_that_breaks_is_an_error_its_draft_is_kept_and_the_answer_is_asked_for_again(
    cleanly: bool, loop: Loop
) -> None:
    loop.server.say(Reply("one two three", cut_after=2, cleanly=cleanly))
    loop.chat.append(HELLO)
    with pytest.raises(NoAnswer if cleanly else openai.APIConnectionError):
        loop.pieces()
    assert loop.chat.messages() == [HELLO]
    assert [draft.text for draft in loop.chat.drafts()] == ["one two "]
    assert "".join(loop.pieces()) == "seen 1 messages; last: hello"
    assert loop.chat.count() == 2
    assert loop.chat.drafts() == []


@of_openai
def test_a_long_answer_is_kept_in_drafts_on_the_way_but_not_word_by_word(loop: Loop) -> None:
    loop.server.say(Reply(WORDS, cut_after=999))
    loop.chat.append(HELLO)
    with pytest.raises(openai.APIConnectionError):
        loop.pieces()
    [draft] = loop.chat.drafts()
    assert draft.text + "word999" == WORDS
    assert len(draft.text) // 2048 <= loop.chat.version() - 1 < 50


def test_who_stops_listening_keeps_what_was_said_as_an_interrupted_answer(loop: Loop) -> None:
    loop.chat.append(HELLO)
    assert loop.pieces(take=2) == ["seen ", "1 "]
    [_, answer] = loop.chat.entries()
    assert answer.message == {"role": "assistant", "content": "seen 1 "}
    assert answer.meta["interrupted"] is True
    assert loop.complete().meta["interrupted"] is True
    assert loop.chat.drafts() == []
    loop.chat.append({"role": "user", "content": "go on"})
    assert loop.complete().text == "seen 3 messages; last: go on"


def test_a_stream_that_nobody_begins_to_hear_asks_nothing(
    server: ModelServer, chat: holdfast.Conversation
) -> None:
    chat.append(HELLO)
    with openai.OpenAI(**settings(server)) as client:
        complete(client, chat, model="any", stream=True).close()
    assert server.requests == []
    assert chat.messages() == [HELLO]


def test_an_async_stream_that_is_merely_dropped_is_closed_by_its_loop(server: ModelServer) -> None:
    async def main(store: holdfast.AsyncStore) -> None:
        chat = store.conversation("chat")
        await chat.append(HELLO)
        async with openai.AsyncOpenAI(**settings(server, awaited=True)) as client:
            async for _ in complete(client, chat, model="any", stream=True):
                break
            answers = chat.follow(after=1)
            assert (await anext(answers)).meta["interrupted"] is True
            await answers.aclose()  # type: ignore[attr-defined]

    with holdfast.open("memory://") as store:
        asyncio.run(main(store.aio))


def test_a_cancelled_stream_keeps_its_draft_and_the_answer_is_asked_for_again(
    server: ModelServer,
) -> None:
    async def main(store: holdfast.AsyncStore) -> None:
        chat = store.conversation("chat")
        await chat.append(HELLO)
        heard = asyncio.Event()

        async def listen() -> None:
            async for piece in complete(client, chat, model="any", stream=True):
                if piece == "1 ":
                    heard.set()

        hold = server.hold(after=2)
        async with openai.AsyncOpenAI(**settings(server, awaited=True)) as client:
            listening = asyncio.create_task(listen())
            await heard.wait()
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listening
            hold.release()
            assert await chat.messages() == [HELLO]
            assert [draft.text for draft in await chat.drafts()] == ["seen 1 "]
            assert (
                await complete(client, chat, model="any")
            ).text == "seen 1 messages; last: hello"

    with holdfast.open("memory://") as store:
        asyncio.run(main(store.aio))
