"""Sessions of the Agents SDK in a store: what the SDK's own sessions do, in any loop, for any
tenant; runs that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    SessionSettings,
    function_tool,
    set_tracing_disabled,
)
from agents.memory import Session

import holdfast
from helpers.model_server import Call, ModelServer, Reply
from holdfast.integrations.openai_agents import HoldfastSession

from .openai_loop import settings

pytest_plugins = ["integrations.openai_fixtures"]

set_tracing_disabled(True)

paid: list[int] = []


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    paid.append(amount)
    return f"paid {amount}"


@pytest.fixture(params=[OpenAIResponsesModel, OpenAIChatCompletionsModel])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


def agent_of(server: ModelServer, kind: Any = OpenAIResponsesModel) -> Agent[Any]:
    # Connections are not kept: they would outlive the event loop of the run, and nobody could close
    # them.
    client = openai.AsyncOpenAI(
        **settings(server, awaited=True), default_headers={"connection": "close"}
    )
    model: Model = kind("any", client)
    return Agent(name="clerk", model=model, tools=[add, pay])


def items(count: int, start: int = 0) -> list[Any]:
    return [{"role": "user", "content": f"item {number}"} for number in range(start, start + count)]


def test_it_is_a_session_to_the_sdk(store: holdfast.Store) -> None:
    assert isinstance(HoldfastSession("chat", store), Session)
    assert isinstance(HoldfastSession("chat", store.aio), Session)


def test_the_latest_items_come_in_order(store: holdfast.Store) -> None:
    async def main() -> None:
        session = HoldfastSession("chat", store)
        assert await session.get_items() == []
        await session.add_items(items(5))
        await session.add_items([])
        assert await session.get_items() == items(5)
        assert await session.get_items(limit=2) == items(2, start=3)
        assert await session.get_items(limit=9) == items(5)
        assert await session.get_items(limit=0) == await session.get_items(limit=-1) == []

    asyncio.run(main())


@pytest.mark.parametrize("given", [{"limit": 3}, SessionSettings(limit=3)])
def test_settings_hold_a_limit_that_an_explicit_one_overrides(
    given: Any, store: holdfast.Store
) -> None:
    async def main() -> None:
        session = HoldfastSession("chat", store, session_settings=given)
        assert session.session_settings == SessionSettings(limit=3)
        await session.add_items(items(5))
        assert await session.get_items() == items(3, start=2)
        assert await session.get_items(limit=1) == items(1, start=4)
        session.session_settings = {"limit": 2}  # type: ignore[assignment]  # as some programs do
        assert await session.get_items() == items(2, start=3)

    asyncio.run(main())


def test_items_with_the_same_id_are_all_kept(store: holdfast.Store) -> None:
    async def main() -> None:
        session = HoldfastSession("chat", store)
        twins: list[Any] = [
            {"id": "__fake_id__", "role": "assistant", "content": text} for text in ("a", "b", "b")
        ]
        await session.add_items(twins[:2])
        await session.add_items(twins[2:])
        assert await session.get_items() == twins

    asyncio.run(main())


def test_no_two_callers_pop_the_same_item(store: holdfast.Store) -> None:
    async def pop(count: int) -> list[Any]:
        return await asyncio.gather(
            *(HoldfastSession("chat", store).pop_item() for _ in range(count))
        )

    asyncio.run(HoldfastSession("chat", store).add_items(items(20)))
    popped: list[Any] = []
    threads = [
        threading.Thread(target=lambda: popped.extend(asyncio.run(pop(8)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert popped.count(None) == 4
    assert sorted(item["content"] for item in popped if item) == sorted(
        item["content"] for item in items(20)
    )


def test_a_cleared_session_begins_again(store: holdfast.Store) -> None:
    async def main() -> None:
        session = HoldfastSession("chat", store)
        await session.add_items(items(3))
        await session.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items(items(1))
        assert await session.get_items() == items(1)

    asyncio.run(main())


def test_one_session_serves_run_run_sync_and_run_streamed_each_in_its_own_loop(
    kind: Any, server: ModelServer, store: holdfast.Store
) -> None:
    session = HoldfastSession("chat", store)

    async def run() -> Any:
        return (await Runner.run(agent_of(server, kind), "one", session=session)).final_output

    def run_sync() -> Any:
        loop = asyncio.new_event_loop()  # `run_sync` would make one, and leave it open
        asyncio.set_event_loop(loop)
        try:
            return Runner.run_sync(agent_of(server, kind), "two", session=session).final_output
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def run_streamed() -> Any:
        result = Runner.run_streamed(
            agent_of(server, kind), 'call add {"a": 1, "b": 2}', session=session
        )
        async for _ in result.stream_events():
            pass
        return result.final_output

    answers = [asyncio.run(run())]
    answers.append(run_sync())
    answers.append(asyncio.run(run_streamed()))
    answers.append(asyncio.run(run()))
    assert answers == [
        "seen 1 messages; last: one",
        "seen 3 messages; last: two",
        "tool said: 3",
        "seen 9 messages; last: one",
    ]
    assert store.conversation("chat").count() == 10
    assert store.conversation("chat").validate() == []


def test_a_run_that_failed_goes_on_without_asking_the_user_again(
    server: ModelServer, store: holdfast.Store
) -> None:
    async def main() -> None:
        session, chat = HoldfastSession("chat", store), store.aio.conversation("chat")
        server.say(Reply(calls=[Call("add", {"a": 1, "b": 2})]), 500)
        with pytest.raises(openai.InternalServerError):
            await Runner.run(agent_of(server), "add", session=session)
        assert await chat.pending() is not None
        assert (
            await Runner.run(agent_of(server), [], session=session)
        ).final_output == "tool said: 3"
        assert await chat.pending() is None
        assert server.shown()[1] == server.shown()[2]

    asyncio.run(main())


def test_one_session_object_serves_many_tenants_by_the_context_of_the_run(
    server: ModelServer, store: holdfast.Store
) -> None:
    def tenant(wrapper: RunContextWrapper[Any]) -> str:
        return str(wrapper.context["tenant"])

    async def main() -> None:
        session = HoldfastSession("chat", store, tenant=tenant)
        for name in ("acme", "globex", "acme"):
            await Runner.run(
                agent_of(server), f"I am {name}", session=session, context={"tenant": name}
            )
        with pytest.raises(TypeError, match="for_tenant"):
            await session.get_items()

    asyncio.run(main())
    said = [
        [
            message["content"]
            for message in store.for_tenant(name).conversation("chat").messages()[::2]
        ]
        for name in ("acme", "globex")
    ]
    assert said == [["I am acme", "I am acme"], ["I am globex"]]
    assert list(store.conversations()) == []


def test_a_run_that_waits_is_approved_elsewhere(
    kind: Any, server: ModelServer, store: holdfast.Store
) -> None:
    async def ask() -> None:
        session = HoldfastSession("chat", store)
        result = await Runner.run(agent_of(server, kind), 'call pay {"amount": 7}', session=session)
        assert await session.save_run(result) is True

    async def approve() -> None:
        session = HoldfastSession("chat", store)
        run = await session.load_run(agent_of(server, kind))
        assert run is not None
        [waiting] = run.get_interruptions()
        assert (waiting.tool_name, waiting.arguments) == ("pay", '{"amount": 7}')
        run.approve(waiting)
        result = await Runner.run(agent_of(server, kind), run, session=session)
        assert result.final_output == "tool said: paid 7"
        assert await session.load_run(agent_of(server, kind)) is None
        assert await session.save_run(result) is False
        assert await session.load_run(agent_of(server, kind)) is None

    paid.clear()
    asyncio.run(ask())
    asyncio.run(approve())
    assert paid == [7]
    assert store.state("run of chat").load(None) is None
    assert store.conversation("chat").validate() == []


def test_a_decision_can_be_kept_before_it_is_acted_on(
    server: ModelServer, store: holdfast.Store
) -> None:
    async def main() -> None:
        session = HoldfastSession("chat", store)
        await session.save_run(
            await Runner.run(agent_of(server), 'call pay {"amount": 7}', session=session)
        )
        run = await session.load_run(agent_of(server))
        assert run is not None
        run.reject(run.get_interruptions()[0], rejection_message="too much")
        assert await session.save_run(run) is True
        again = await session.load_run(agent_of(server))
        assert again is not None
        result = await Runner.run(agent_of(server), again, session=session)
        assert result.final_output == "tool said: too much"

    paid.clear()
    asyncio.run(main())
    assert paid == []


def test_without_a_run_that_waits_there_is_none_to_load(
    server: ModelServer, store: holdfast.Store
) -> None:
    async def main() -> None:
        session = HoldfastSession("chat", store)
        assert await session.load_run(agent_of(server)) is None
        assert (
            await session.save_run(await Runner.run(agent_of(server), "hello", session=session))
            is False
        )
        assert await session.load_run(agent_of(server)) is None

    asyncio.run(main())
    assert list(store.states()) == []


def test_wrong_arguments_say_what_to_pass(store: holdfast.Store) -> None:
    with pytest.raises(TypeError, match="session_id must be a str, got Store"):
        HoldfastSession(store, "user-42")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"store must be an open store, like .*, got str"):
        HoldfastSession("user-42", "agents.db")  # type: ignore[arg-type]
