"""Stores that redact, under the frameworks: what is to be taken out is not stored, and what was cut
off is found again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import openai
import pytest
from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

import holdfast
from helpers.model_server import Call, ModelServer, Reply
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import IdReused, NotSerializable
from holdfast.integrations.autogen import persisted
from holdfast.integrations.openai_agents import HoldfastSession

from .autogen_world import MODEL, World, texts
from .openai_loop import Loop, settings

pytest_plugins = ["integrations.openai_fixtures"]

set_tracing_disabled(True)

CARD, PASSWORD = "4111 1111 1111 1111", "hunter2-canary"
TEXT, STORED = f"pay with {CARD}, then stop", "pay with [redacted: card], then stop"
LOGIN = Call("login", {"user": "me", "password": PASSWORD})


class Seen(MemoryBackend):
    """Knows everything that it was ever given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def append(self, appends: Sequence[Any]) -> Any:
        self.seen += map(repr, appends)
        return super().append(appends)

    def check(self) -> None:
        everything = "\n".join(self.seen)
        assert "[redacted: " in everything
        assert [secret for secret in (CARD, "1111 1111", PASSWORD) if secret in everything] == []


@pytest.fixture
def backend() -> Seen:
    return Seen()


@pytest.fixture
def store(backend: Seen) -> Iterator[holdfast.Store]:
    with holdfast.open(backend, redact=True) as store:
        yield store


# -- AutoGen ---------------------------------------------------------------------------------------


def run_scenario(
    store: holdfast.Store, scenario: Callable[[World], Awaitable[None]], *replies: str
) -> None:
    async def run() -> None:
        with ModelServer(*replies) as server:
            client = OpenAIChatCompletionClient(
                model="any",
                model_info=MODEL,
                base_url=server.base_url,
                api_key="none",
                max_retries=0,
            )
            try:
                await scenario(World(server, store.aio, client))
            finally:
                await client.close()

    asyncio.run(run())


def test_a_run_of_autogen_that_is_cut_off_goes_on_with_the_same_task(
    backend: Seen, store: holdfast.Store
) -> None:
    async def scenario(w: World) -> None:
        async with persisted(w.store, "team", w.team()) as run:
            async for item in run.run_stream(task=TEXT):
                if isinstance(item, BaseChatMessage) and item.source == "writer":
                    break
        async with persisted(w.store, "team", w.team()) as run:
            assert [message.to_text() for message in run.pending or ()] == [STORED]
            result = await run.run(task=TEXT)
        assert texts(result)[:2] == [STORED, "one"]
        assert len(result.messages) == 4

    run_scenario(store, scenario, "one")
    backend.check()


def test_a_result_of_autogen_that_was_not_had_comes_again(
    backend: Seen, store: holdfast.Store
) -> None:
    async def scenario(w: World) -> None:
        with pytest.raises(ZeroDivisionError):
            async with persisted(w.store, "agent", w.agent("writer")) as run:
                await run.run(task=TEXT)
                raise ZeroDivisionError
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            assert texts(await run.run(task=TEXT)) == [STORED, STORED]
        assert len(w.server.requests) == 1

    run_scenario(store, scenario, TEXT)
    backend.check()


def test_a_message_to_autogen_with_an_id_is_known_by_it(store: holdfast.Store) -> None:
    async def scenario(w: World) -> None:
        for _ in range(2):
            message = TextMessage(content=TEXT, source="user", id="request-17")
            async with persisted(w.store, "team", w.team()) as run:
                await run.run(task=message)
                await run.run(task=message)
        assert len(w.server.requests) == 3
        async with persisted(w.store, "team", w.team()) as run:
            with pytest.raises(IdReused):
                await run.run(
                    task=TextMessage(content="something else", source="user", id="request-17")
                )

    run_scenario(store, scenario)


def test_a_state_of_autogen_from_before_anything_was_redacted_is_known(backend: Seen) -> None:
    message = TextMessage(content=TEXT, source="user", id="request-17")

    async def scenario(w: World) -> None:
        async with persisted(w.store, "team", w.team()) as run:
            await run.run(task=message)
        asked.append(len(w.server.requests))

    asked: list[int] = []
    path = "memory://redacting-later"
    with holdfast.open(path) as keeps:
        run_scenario(keeps, scenario)
        with holdfast.open(keeps._log.backend, redact=True) as store:
            run_scenario(store, scenario)
    assert asked == [3, 0]


# -- OpenAI ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called_with_what_is_stored_of_its_arguments(
    backend: Seen, store: holdfast.Store, api: str, streamed: bool
) -> None:
    given: list[str] = []

    def login(user: str, password: str) -> dict[str, str]:
        """Log in."""
        given.append(password)
        return {"user": user, "session_token": PASSWORD, "note": TEXT}

    with ModelServer(Reply(calls=[LOGIN]), TEXT) as server:
        loop = Loop(server, store, api, False)
        loop.chat.append(
            {
                "role": "user",
                "content": [{"type": "text" if api == "chat" else "input_text", "text": TEXT}],
            }
        )
        if streamed:
            loop.pieces(tools=[login])
        answer = loop.complete(tools=[login])
        assert answer.text == STORED
        assert given == ["[redacted: password]"]
        assert CARD not in json.dumps(server.shown()) and PASSWORD not in json.dumps(server.shown())
    backend.check()


paid: list[str] = []


@function_tool(needs_approval=True)
def pay(to: str) -> str:
    """Pay."""
    paid.append(to)
    return f"paid, with {CARD}"


@pytest.mark.parametrize("to", ["Ann", CARD])
def test_a_run_of_the_agents_sdk_waits_unless_its_call_cannot_be_stored(
    backend: Seen, store: holdfast.Store, to: str
) -> None:
    async def main(server: ModelServer) -> None:
        client = openai.AsyncOpenAI(
            **settings(server, awaited=True), default_headers={"connection": "close"}
        )
        agent: Agent[Any] = Agent(
            name="clerk", model=OpenAIResponsesModel("any", client), tools=[pay]
        )
        session = HoldfastSession("chat", store)
        result = await Runner.run(agent, TEXT, session=session)
        if to == CARD:
            with pytest.raises(
                NotSerializable, match="redaction would change a tool call"
            ) as caught:
                await session.save_run(result)
            assert CARD not in str(caught.value)
            assert await session.load_run(agent) is None
            return
        assert await session.save_run(result)
        state = await session.load_run(agent)
        assert state is not None
        state.approve(state.get_interruptions()[0])
        await Runner.run(agent, state, session=session)
        assert paid == ["Ann"]
        assert "paid, with [redacted: card]" in json.dumps(await session.get_items())

    paid.clear()
    with ModelServer(Reply(calls=[Call("pay", {"to": to})]), TEXT) as server:
        asyncio.run(main(server))
    backend.check()
