"""Durable runs of PydanticAI: what is recorded is not done again, whatever the run consists of."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterable, Iterator
from typing import Any

import openai
import pydantic_ai.durable_exec
import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    DeferredToolRequests,
    DeferredToolResults,
    ModelHTTPError,
    ModelRetry,
    RunContext,
)
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.toolsets import FunctionToolset

import holdfast
from helpers.model_server import Call, ModelServer, Reply
from helpers.paths import TESTS
from holdfast.errors import ReplayMismatch, StepInDoubt
from holdfast.integrations.pydantic_ai import HoldfastDurability
from holdfast.testing import crash

from .openai_loop import settings

pytest_plugins = ["integrations.openai_fixtures"]

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


def connect(server: ModelServer, kind: Any = OpenAIChatModel) -> Any:
    client = openai.AsyncOpenAI(
        **settings(server, awaited=True), default_headers={"connection": "close"}
    )
    return kind("any", provider=OpenAIProvider(openai_client=client))


def add(a: int, b: int) -> int:
    """Add two numbers."""
    done.append(f"add {a} {b}")
    return a + b


@holdfast.step(once=True)
async def pay(amount: int) -> str:
    """Pay."""
    done.append(f"pay {amount}")
    return f"paid {amount}"


def clerk(store: holdfast.Store, model: Any, **options: Any) -> Agent[None, Any]:
    options = {"tools": [add, pay], **options}
    return Agent(model, name="clerk", capabilities=[HoldfastDurability(store)], **options)


TWO_TOOLS = 'call add {"a": 1, "b": 2} and call pay {"amount": 7}'


async def run_one_way(agent: Agent[None, Any], way: str, text: str, run_id: str) -> Any:
    if way == "run":
        return (await agent.run(text, run_id=run_id)).output
    if way == "run_sync":
        return (await asyncio.to_thread(in_loop_of_its_own, agent, text, run_id)).output
    if way == "iter":
        async with agent.iter(text, run_id=run_id) as run:
            async for _ in run:
                pass
        assert run.result is not None
        return run.result.output
    async with agent.run_stream(text, run_id=run_id) as result:
        return await result.get_output()


def in_loop_of_its_own(agent: Agent[None, Any], text: str, run_id: str) -> Any:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return agent.run_sync(text, run_id=run_id)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.mark.every_engine
def test_a_finished_run_returns_the_same_result_without_a_request(
    url: str, server: ModelServer
) -> None:
    async def main() -> None:
        with holdfast.open(url) as store:
            agent = clerk(store, connect(server))
            for _ in range(2):
                result = await agent.run(TWO_TOOLS, run_id="bill-7")
                assert result.output == "tool said: 3; paid 7"
                assert len(result.all_messages()) == 4
                assert result.usage.requests == 2
            view = store.get_task("bill-7")
            assert view is not None
            assert (view.status, view.result, view.goal) == (
                "finished",
                "tool said: 3; paid 7",
                TWO_TOOLS,
            )
            assert sorted(step.path for step in view.steps) == [
                "add",
                "clerk[1]",
                "clerk[2]",
                "pay",
            ]
            assert view.usage.calls == 2

    asyncio.run(main())
    assert len(server.requests) == 2
    assert sorted(done) == ["add 1 2", "pay 7"]


@pytest.mark.parametrize("way", ["run", "run_sync", "iter", "run_stream"])
def test_each_way_to_run_resumes(store: holdfast.Store, way: str, server: ModelServer) -> None:
    agent = clerk(store, connect(server))

    async def main() -> None:
        with crash(after="add"):
            await run_one_way(agent, way, 'call add {"a": 1, "b": 2}', "sum")
        assert await run_one_way(agent, way, 'call add {"a": 1, "b": 2}', "sum") == "tool said: 3"

    asyncio.run(main())
    assert len(server.requests) == 2
    assert done == ["add 1 2"]


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_a_run_that_dies_at_any_write_repeats_nothing_that_is_recorded(
    kind: Any, server: ModelServer
) -> None:
    async def main(write: int) -> bool:
        with holdfast.open("memory://") as store:
            agent = clerk(store, connect(server, kind))
            died = crash(write=write)
            try:
                with died:
                    await agent.run(TWO_TOOLS, run_id="bill-7")
            except AssertionError:  # no such write: the run was over before
                return False
            requests = len(server.requests)
            view = store.get_task("bill-7")
            assert view is not None
            recorded = {step.path for step in view.steps if step.status == "completed"}
            for step in view.steps:
                if step.in_doubt:
                    store.resolve("bill-7", step.path, result="paid 7")
            assert (await agent.run(TWO_TOOLS, run_id="bill-7")).output == "tool said: 3; paid 7"
            assert len(server.requests) - requests == len({"clerk[1]", "clerk[2]"} - recorded)
            assert done.count("pay 7") <= 1
            assert done.count("add 1 2") <= (1 if "add" in recorded else 2)
        return True

    write = 1
    while asyncio.run(main(write)):
        write, _ = write + 1, done.clear()
    assert write > 5


def test_a_once_tool_in_doubt_stops_the_run_until_it_is_resolved(
    store: holdfast.Store, server: ModelServer
) -> None:
    agent, text = clerk(store, connect(server)), 'call pay {"amount": 7}'

    async def main() -> None:
        with crash(during="pay"):
            await agent.run(text, run_id="bill-7")
        for way in ("run", "iter"):
            with pytest.raises(StepInDoubt, match="pay"):
                await run_one_way(agent, way, text, "bill-7")
        store.resolve("bill-7", "pay", result="paid 7, as the bank says")
        assert (await agent.run(text, run_id="bill-7")).output == (
            "tool said: paid 7, as the bank says"
        )

    asyncio.run(main())
    assert done == ["pay 7"]
    assert len(server.requests) == 2


@pytest.mark.parametrize("is_step", [False, True])
def test_a_tool_that_asks_the_model_to_try_again_does_so_in_a_resumed_run_too(
    store: holdfast.Store, is_step: bool, server: ModelServer
) -> None:
    def guess(n: int) -> str:
        """Guess."""
        done.append(f"guess {n}")
        if n < 2:
            raise ModelRetry("higher")
        return "right"

    server.say(
        Reply(calls=[Call("guess", {"n": 1})]), Reply(calls=[Call("guess", {"n": 2})]), "it is 2"
    )
    tool = holdfast.step(guess) if is_step else guess
    agent = clerk(store, connect(server), tools=[tool])

    async def main() -> None:
        with crash(after="clerk[2]"):
            await agent.run("Guess", run_id="game")
        result = await agent.run("Guess", run_id="game")
        assert result.output == "it is 2"
        assert "higher" in str(result.all_messages()[2])

    asyncio.run(main())
    assert done == ["guess 1", "guess 2"]
    assert len(server.requests) == 3


def test_approvals_end_a_run_and_start_the_next(store: holdfast.Store, server: ModelServer) -> None:
    def ship(ctx: RunContext[None], to: str) -> str:
        """Ship."""
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        done.append(f"ship {to}")
        return f"shipped to {to}"

    agent = clerk(store, connect(server), tools=[ship], output_type=[str, DeferredToolRequests])

    async def main() -> None:
        for _ in range(2):  # the second time from the record
            asked = await agent.run('call ship {"to": "Ann"}', run_id="letter")
            assert isinstance(asked.output, DeferredToolRequests)
            (call,) = asked.output.approvals
        answers = DeferredToolResults(approvals={call.tool_call_id: True})
        for _ in range(2):
            result = await agent.run(
                message_history=asked.all_messages(),
                deferred_tool_results=answers,
                run_id="letter, approved",
            )
            assert result.output == "tool said: shipped to Ann"

    asyncio.run(main())
    assert done == ["ship Ann"]
    assert len(server.requests) == 2


class City(BaseModel):
    name: str
    people: int


def test_a_typed_output_and_a_typed_tool_result_come_back(
    store: holdfast.Store, server: ModelServer
) -> None:
    def look_up(name: str) -> City:
        """Look up a city."""
        done.append(f"look up {name}")
        return City(name=name, people=8)

    server.say(
        Reply(calls=[Call("look_up", {"name": "Bath"})]),
        Reply(calls=[Call("final_result", {"name": "Bath", "people": 9})]),
    )
    agent = clerk(store, connect(server), tools=[look_up], output_type=City)

    async def main() -> None:
        for _ in range(2):
            result = await agent.run("Bath?", run_id="city")
            assert result.output == City(name="Bath", people=9)
            assert '"people":8' in result.all_messages_json().decode().replace("\\", "")
        view = store.get_task("city")
        assert view is not None and view.result == {"name": "Bath", "people": 9}

    asyncio.run(main())
    assert done == ["look up Bath"]
    assert len(server.requests) == 2


def test_an_agent_in_a_tool_is_resumed_too(store: holdfast.Store, server: ModelServer) -> None:
    helper = Agent(
        connect(server), name="helper", tools=[add], capabilities=[HoldfastDurability(store)]
    )

    async def ask_helper(what: str) -> str:
        """Ask the helper."""
        done.append("ask")
        return (await helper.run(what)).output

    agent = clerk(store, connect(server), tools=[ask_helper])
    server.say(
        Reply(calls=[Call("ask_helper", {"what": "sum"})]),
        Reply(calls=[Call("add", {"a": 1, "b": 2})]),
        "three",
        "it is three",
    )

    async def main() -> None:
        with crash(after="add"):
            await agent.run("Sum?", run_id="sum")
        assert (await agent.run("Sum?", run_id="sum")).output == "it is three"
        view = store.get_task("sum")
        assert view is not None
        assert [step.path for step in view.steps if step.kind == "model"] == [
            "clerk[1]",
            "ask_helper/helper[sum:ask_helper 1 1]",
            "ask_helper/helper[sum:ask_helper 1 2]",
            "clerk[2]",
        ]

    asyncio.run(main())
    assert done == ["ask", "add 1 2", "ask"]
    assert len(server.requests) == 4


def test_tools_of_an_mcp_server_are_steps(store: holdfast.Store, server: ModelServer) -> None:
    async def main() -> None:
        for _ in range(2):
            toolset = MCPToolset(
                {
                    "mcpServers": {
                        "adder": {
                            "command": sys.executable,
                            "args": [str(TESTS / "helpers" / "mcp_adder.py")],
                        }
                    }
                },
                id="adder",
            )
            agent = clerk(store, connect(server), tools=[], toolsets=[toolset])
            result = await agent.run('call add_up {"a": 1, "b": 2}', run_id="sum")
            assert "3" in result.output
        view = store.get_task("sum")
        assert view is not None
        assert "add_up" in [step.path for step in view.steps]

    asyncio.run(main())
    assert len(server.requests) == 2


def test_events_come_live_and_those_of_finished_requests_are_not_repeated(
    store: holdfast.Store, server: ModelServer
) -> None:
    heard: list[str] = []

    async def hear(ctx: RunContext[None], events: AsyncIterable[Any]) -> None:
        async for event in events:
            heard.append(event.event_kind)

    durability = HoldfastDurability[None](store, event_stream_handler=hear)
    agent = Agent(connect(server), name="clerk", tools=[add], capabilities=[durability])

    async def main() -> None:
        with crash(after="add"):
            await agent.run('call add {"a": 1, "b": 2}', run_id="sum")
        assert "part_start" in heard and "function_tool_call" in heard
        heard.clear()
        await agent.run('call add {"a": 1, "b": 2}', run_id="sum")
        assert heard.count("part_start") == 1  # of the second answer
        heard.clear()
        await agent.run('call add {"a": 1, "b": 2}', run_id="sum")
        assert heard == []

    asyncio.run(main())


def test_a_failed_request_is_made_again_when_the_run_resumes(
    store: holdfast.Store, server: ModelServer
) -> None:
    agent = clerk(store, connect(server))

    async def main() -> None:
        server.say(500)
        with pytest.raises(ModelHTTPError):
            await agent.run("Hello", run_id="hello")
        view = store.get_task("hello")
        assert view is not None and view.status == "failed"
        assert (await agent.run("Hello", run_id="hello")).output == "seen 1 messages; last: Hello"

    asyncio.run(main())
    assert len(server.requests) == 2


def test_a_resumed_run_stays_with_the_model_that_it_fell_back_to(
    store: holdfast.Store, server: ModelServer
) -> None:
    other = connect(server, OpenAIResponsesModel)
    agent = Agent(
        connect(server),
        name="clerk",
        tools=[add],
        capabilities=[HoldfastDurability(store, models={"other": other}), ModelFallback(other)],
    )
    server.say(500, Reply(calls=[Call("add", {"a": 1, "b": 2})]), "three")

    async def main() -> None:
        with crash(after="add"):
            await agent.run("Sum?", run_id="sum")
        assert (await agent.run("Sum?", run_id="sum")).output == "three"

    asyncio.run(main())
    assert done == ["add 1 2"]
    assert [request["path"] for request in server.requests[:2]] == [
        "/v1/chat/completions",
        "/v1/responses",
    ]
    assert len(server.requests) == 3


def test_runs_inside_a_task_are_part_of_it(store: holdfast.Store, server: ModelServer) -> None:
    agent = clerk(store, connect(server))

    async def main() -> None:
        for _ in range(2):
            async with store.aio.task("both") as task:
                results = await asyncio.gather(agent.run("a"), agent.run("b"))
                assert [result.output for result in results] == [
                    "seen 1 messages; last: a",
                    "seen 1 messages; last: b",
                ]
                assert [result.run_id for result in results] == ["both:1", "both:2"]
            assert task.id == "both"

    asyncio.run(main())
    assert len(server.requests) == 2
    assert [info.id for info in store.tasks()] == ["both"]


def test_a_run_without_an_id_is_not_recorded(store: holdfast.Store, server: ModelServer) -> None:
    agent = clerk(store, connect(server), tools=[add])

    async def main() -> None:
        for _ in range(2):
            await agent.run('call add {"a": 1, "b": 2}')

    asyncio.run(main())
    assert len(server.requests) == 4
    assert list(store.tasks()) == []


def test_another_prompt_and_wrong_arguments_are_refused(
    store: holdfast.Store, server: ModelServer
) -> None:
    agent = clerk(store, connect(server))

    async def main() -> None:
        await agent.run("Hello", run_id="hello")
        with pytest.raises(ReplayMismatch, match=r"another (input|goal)"):
            await agent.run("Good bye", run_id="hello")
        async with store.aio.task("extra"):
            with pytest.raises(pydantic_ai.UserError, match="Holdfast"):
                await agent.run("Hello", toolsets=[FunctionToolset([add], id="late")])

    asyncio.run(main())
    with pytest.raises(TypeError, match="store must be an open store"):
        HoldfastDurability("agents.db")  # type: ignore[arg-type]


def test_an_old_pydantic_ai_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "holdfast.integrations.pydantic_ai"
    for module in [module for module in sys.modules if module.startswith(name)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(pydantic_ai.durable_exec._exports, "JSON_CODEC")
    monkeypatch.delattr(pydantic_ai.durable_exec, "JSON_CODEC", raising=False)
    with pytest.raises(
        ImportError, match=r"needs pydantic-ai-slim 2\.66 or newer, got .*--upgrade"
    ):
        importlib.import_module(name)
