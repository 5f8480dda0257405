"""One decorator makes a function a durable tool of any framework."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from agents import Agent as SdkAgent
from agents import OpenAIChatCompletionsModel, function_tool, set_tracing_disabled
from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import holdfast
from helpers.model_server import ModelServer
from holdfast.errors import NoTask, StepInDoubt
from holdfast.integrations.openai import complete
from holdfast.integrations.openai_agents import HoldfastRunner
from holdfast.integrations.pydantic_ai import HoldfastDurability
from holdfast.testing import crash

pytest_plugins = ["integrations.openai_fixtures"]

set_tracing_disabled(True)

paid: list[int] = []

TEXT = 'call pay {"amount": 7}'


@holdfast.step(once=True)
async def pay(amount: int) -> str:
    """Pay a bill.

    Args:
        amount: How much.
    """
    paid.append(amount)
    return f"paid {amount}"


async def with_agents_sdk(store: holdfast.Store, client: Any) -> str:
    agent = SdkAgent(
        name="clerk", model=OpenAIChatCompletionsModel("any", client), tools=[function_tool(pay)]
    )
    result = await HoldfastRunner(store).run(agent, TEXT, task_id="bill-7")
    return str(result.final_output)


async def with_pydantic_ai(store: holdfast.Store, client: Any) -> str:
    model = OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client))
    agent = Agent(model, name="clerk", tools=[pay], capabilities=[HoldfastDurability(store)])
    return (await agent.run(TEXT, run_id="bill-7")).output


async def with_openai_sdk(store: holdfast.Store, client: Any) -> str:
    async with store.aio.task("bill-7") as task:
        chat = task.conversation()
        await chat.append({"role": "user", "content": TEXT})
        answer = await complete(client, chat, model="any", tools=[pay])
        return str(await task.finish(answer.text))


@pytest.mark.parametrize("run", [with_agents_sdk, with_pydantic_ai, with_openai_sdk])
def test_the_same_function_is_called_once_in_every_framework(
    run: Callable[[holdfast.Store, Any], Awaitable[str]], server: ModelServer
) -> None:
    paid.clear()

    async def main() -> None:
        client = openai.AsyncOpenAI(
            base_url=server.base_url,
            api_key="none",
            max_retries=0,
            default_headers={"connection": "close"},
        )
        with holdfast.open("memory://") as store:
            with crash(during="pay"):
                await run(store, client)
            with pytest.raises(StepInDoubt):
                await run(store, client)
            view = store.get_task("bill-7")
            assert view is not None
            (doubt,) = [step.path for step in view.steps if step.in_doubt]
            assert doubt.rpartition("/")[2] == "pay"
            store.resolve("bill-7", doubt, result="paid 7, says the bank")
            assert await run(store, client) == "tool said: paid 7, says the bank"

    asyncio.run(main())
    assert paid == [7]


def test_a_tool_of_autogen_is_a_step_of_the_task_around_it() -> None:
    paid.clear()

    async def main() -> None:
        with holdfast.open("memory://") as store:
            for _ in range(2):
                async with store.aio.task("bill-7"):
                    tool = FunctionTool(pay, description="Pay a bill.")
                    assert await tool.run_json({"amount": 7}, CancellationToken()) == "paid 7"

    asyncio.run(main())
    assert paid == [7]


def test_inspect_sees_the_function() -> None:
    class Bank:
        @holdfast.step
        async def pay(self, amount: int) -> int:
            return amount

    @holdfast.step
    def look(n: int, *, deep: bool = False) -> int:
        return n

    @holdfast.step
    def pieces() -> Any:
        yield 1

    assert inspect.iscoroutinefunction(pay) and inspect.iscoroutinefunction(Bank().pay)
    assert not inspect.iscoroutinefunction(look)
    assert inspect.isgeneratorfunction(pieces)
    assert str(inspect.signature(look)) == "(n: 'int', *, deep: 'bool' = False) -> 'int'"
    assert list(inspect.signature(Bank().pay).parameters) == ["amount"]
    assert list(inspect.signature(Bank.pay).parameters) == ["self", "amount"]


def test_a_once_tool_needs_a_task() -> None:
    with pytest.raises(NoTask, match="must run inside a task"):
        asyncio.run(pay(7))  # type: ignore[arg-type]
