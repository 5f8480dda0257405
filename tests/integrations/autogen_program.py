"""Twenty turns of a team or an agent of AutoGen, killed at every boundary they have.

Arguments: BASE_URL STORE NOTES KIND. It is killed after each save that was acknowledged, after each
message that was handed over, inside each tool, while each model call is in flight, and in the
middle of each stream. Every process does the same: it gives all tasks, first to last.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

import holdfast
from helpers.example_counts import LONG
from holdfast import AsyncState
from holdfast.integrations.autogen import persisted

from .process_runs import REHEARSAL, ProcessRun, run_until_finished

MODEL = ModelInfo(
    vision=False, function_calling=True, json_output=True, family="gpt-4o", structured_output=True
)
CHOOSE = "Choose the next of {participants} after:\n{history}"
MANY = 20 if LONG else 8
TASKS = {"agent": MANY, "one task": 1, "round robin": 3, "selector": 2, "swarm": 2}
TURNS_PER_TASK = {"agent": 1, "one task": MANY, "round robin": 3, "selector": 4, "swarm": 4}


def task_of(kind: str, number: int) -> TextMessage | str:
    if kind == "one task":
        return "begin"
    text = f"task {number}"
    if kind == "swarm":
        text += f": call transfer_to_{'writer' if number % 2 else 'critic'} {{}}"
    elif number % (4 if kind == "agent" else 2) == 0:
        text += f': call tally {{"n": {number}}}'
    return TextMessage(id=f"id of task {number}", content=text, source="user")


class Program:
    """The work of one process."""

    def __init__(self, process: ProcessRun | None, base_url: str, kind: str) -> None:
        self.process, self.kind = process or Silent(), kind
        hooks = {"request": [self.requesting]} if process else {}
        self.http = openai.DefaultAsyncHttpxClient(event_hooks=hooks, verify=False)
        self.client = OpenAIChatCompletionClient(
            model="any" if process else REHEARSAL,
            model_info=MODEL,
            base_url=base_url,
            api_key="none",
            max_retries=0,
            http_client=self.http,  # type: ignore[call-arg]
        )

    async def tally(self, n: int) -> str:
        """Count something."""
        self.process.note("tool", n=n)
        self.process.point(f"in tool {n}")
        return f"tallied {n}"

    def agent(self, name: str, **options: Any) -> AssistantAgent:
        options = {"tools": [self.tally], "reflect_on_tool_use": True, **options}
        streamed = self.kind == "agent"
        return AssistantAgent(
            name,
            self.client,
            system_message=f"You are {name}.",
            model_client_stream=streamed,
            **options,
        )

    def runner(self) -> ChatAgent | Team:
        stop = MaxMessageTermination(TURNS_PER_TASK[self.kind] + 1)
        if self.kind == "agent":
            return self.agent("writer")
        if self.kind == "swarm":
            writer = self.agent("writer", handoffs=["critic"], tools=[])
            return Swarm(
                [writer, self.agent("critic", handoffs=["writer"], tools=[])],
                termination_condition=stop,
            )
        members: list[ChatAgent | Team] = [self.agent("writer"), self.agent("critic")]
        if self.kind == "selector":
            members.append(self.agent("editor"))
            return SelectorGroupChat(
                members, self.client, termination_condition=stop, selector_prompt=CHOOSE
            )
        return RoundRobinGroupChat(members, termination_condition=stop)

    async def requesting(self, request: Any) -> None:
        """Called by the SDK before each request."""
        body = json.loads(request.content)
        shown = body["messages"]
        self.process.note("request", shown=shown)
        place = f"the call after {len(shown)} messages to {shown[0]['content']}"
        assert isinstance(self.process, ProcessRun)
        if (
            not self.process.die_in_flight(place)
            and body.get("stream")
            and "call tally" not in str(shown[-1])
        ):
            self.process.die_in_flight(f"the stream of {place}", after=2)

    def saved(self, version: int, document: Any) -> None:
        state = document["state"]
        managers = [
            part for part in state.get("agent_states", {}).values() if "message_thread" in part
        ]
        thread = (
            managers[0]["message_thread"] if managers else document["holdfast"].get("messages", [])
        )
        self.process.note("saved", thread=thread)
        if not document["holdfast"].get(
            "result_seen", True
        ):  # else the program is about to end, and would have begun anew
            self.process.point(f"after version {version}")

    async def run(self, place: str) -> None:
        plain = AsyncState.save

        async def save(state: AsyncState, value: Any, **options: Any) -> int:
            version = await plain(state, value, **options)
            self.saved(version, value)
            return version

        AsyncState.save = save  # type: ignore[method-assign,assignment]
        async with (
            self.http,
            holdfast.aopen(place) as store,
            persisted(store, "team", self.runner()) as run,
        ):
            self.process.note("born", resumed=run.resumed, pending=len(run.pending or ()))
            for number in range(TASKS[self.kind]):
                async for item in run.run_stream(task=task_of(self.kind, number)):
                    if isinstance(item, TaskResult):
                        said = [message.id for message in item.messages]
                        self.process.note(
                            "result", task=number, said=said, stop_reason=item.stop_reason
                        )
                    elif isinstance(item, BaseChatMessage):
                        self.process.note("said", task=number, id=item.id, source=item.source)
                        if (
                            self.kind == "one task"
                        ):  # in the others that is right after it was saved
                            self.process.point(
                                f"{item.source} said {len(item.to_text())} characters"
                            )

    async def rehearse(self) -> None:
        async with (
            self.http,
            holdfast.aopen("memory://") as store,
            persisted(store, "team", self.runner()) as run,
        ):
            await run.run(task=task_of(self.kind, 0))


class Silent:
    """The run of a rehearsal, which notes nothing."""

    def note(self, what: str, **facts: object) -> None: ...

    def point(self, name: str) -> None: ...


def main() -> None:
    base_url, place, notes, kind = sys.argv[1:]

    def run(process: ProcessRun) -> None:
        asyncio.run(Program(process, base_url, kind).run(place))

    run_until_finished(
        run, notes, base_url, lambda: asyncio.run(Program(None, base_url, kind).rehearse())
    )
