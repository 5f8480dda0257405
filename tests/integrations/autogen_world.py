"""A model, a store, and AutoGen teams on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

import holdfast
from helpers.model_server import ModelServer
from holdfast import AsyncStore

Message = dict[str, Any]


def seen_by(name: str, thread: list[Message]) -> list[tuple[str, Any]]:
    """What the model of one agent is to see of all that was said."""
    seen: list[tuple[str, Any]] = []
    for message in thread:
        if message["type"] == "ToolCallRequestEvent":
            seen += (
                [("calls", [call["id"] for call in message["content"]])]
                if message["source"] == name
                else []
            )
        elif message["type"] == "ToolCallExecutionEvent":
            results = [("result", result["call_id"]) for result in message["content"]]
            seen += results if message["source"] == name else []
        elif message["source"] != name:
            seen.append(("user", message["content"]))
        elif message["type"] == "TextMessage":
            seen.append(("assistant", message["content"]))
    return seen


def as_seen(shown: list[Message]) -> list[tuple[str, Any]]:
    """A request's messages in the same form."""
    seen: list[tuple[str, Any]] = []
    for message in shown:
        if message.get("tool_calls"):
            seen.append(("calls", [call["id"] for call in message["tool_calls"]]))
        elif message["role"] == "tool":
            seen.append(("result", message["tool_call_id"]))
        else:
            seen.append((message["role"], message["content"]))
    return seen


MODEL = ModelInfo(
    vision=True, function_calling=True, json_output=True, family="gpt-4o", structured_output=True
)


class World:
    """A model, a store, and teams that are always made the same way, as a restarted program
    would."""

    def __init__(
        self, server: ModelServer, store: AsyncStore, client: OpenAIChatCompletionClient
    ) -> None:
        self.server, self.store, self.client = server, store, client
        self.tallied: list[int] = []
        self.work: Callable[[int], Awaitable[str]] = self._work

    async def tally(self, n: int) -> str:
        """Count something."""
        self.tallied.append(n)
        return await self.work(n)

    async def _work(self, n: int) -> str:
        return f"tallied {n}"

    def agent(self, name: str, **options: Any) -> AssistantAgent:
        options = {"tools": [self.tally], "reflect_on_tool_use": True, **options}
        return AssistantAgent(name, self.client, system_message=f"You are {name}.", **options)

    def team(self, *names: str, stop: Any = None, **options: Any) -> RoundRobinGroupChat:
        members: list[ChatAgent | Team] = [
            self.agent(name) for name in names or ("writer", "critic")
        ]
        return RoundRobinGroupChat(
            members, termination_condition=stop or MaxMessageTermination(4), **options
        )

    def said(self, at: int = -1) -> list[tuple[str, Any]]:
        """What a request showed, without the system message."""
        return as_seen(self.server.shown()[at])[1:]

    async def document(self, id: str = "team") -> Any:
        return await self.store.state(id).load()


@asynccontextmanager
async def world(*replies: str) -> AsyncIterator[World]:
    with ModelServer(*replies) as server:
        async with holdfast.aopen("memory://") as store:
            client = OpenAIChatCompletionClient(
                model="any",
                model_info=MODEL,
                base_url=server.base_url,
                api_key="none",
                max_retries=0,
            )
            try:
                yield World(server, store, client)
            finally:
                await client.close()


def run_scenario(scenario: Callable[[World], Awaitable[None]], *replies: str) -> None:
    async def run() -> None:
        async with world(*replies) as made:
            await scenario(made)

    asyncio.run(run())


def texts(result: TaskResult) -> list[str]:
    return [message.to_text() for message in result.messages]


def teams(w: World) -> dict[str, Callable[[], Any]]:
    stop = MaxMessageTermination
    return {
        "round robin": lambda: w.team(stop=stop(5)),
        "alone": lambda: w.team("writer", stop=stop(4)),
        "three": lambda: w.team("writer", "critic", "editor", stop=stop(5)),
        "selector": lambda: SelectorGroupChat(
            [w.agent("writer"), w.agent("critic")],
            w.client,
            termination_condition=stop(5),
            selector_prompt="Choose one of {participants} after {history}",
        ),
        "swarm": lambda: Swarm(
            [w.agent("writer", handoffs=["critic"]), w.agent("critic", handoffs=["writer"])],
            termination_condition=stop(5),
        ),
        "nested": lambda: RoundRobinGroupChat(
            [w.team(max_turns=2, stop=stop(9)), w.agent("editor")], max_turns=3
        ),
        "graph": lambda: _graph(w),
    }


def _graph(w: World) -> GraphFlow:
    builder = DiGraphBuilder()
    writer, critic, editor = (w.agent(name) for name in ("writer", "critic", "editor"))
    for agent in (writer, critic, editor):
        builder.add_node(agent)
    builder.add_edge(writer, critic).add_edge(critic, editor)
    return GraphFlow(
        [writer, critic, editor], builder.build(), termination_condition=MaxMessageTermination(20)
    )
