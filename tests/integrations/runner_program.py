"""Three durable runs of the Agents SDK, killed at every boundary they have.

Arguments: BASE_URL STORE NOTES. They are made with `run`, `run_sync` and `run_streamed`. In each,
the model calls three tools at once: a plain one, a `once` tool, and an agent that calls a tool. The
program is killed after each write of the task, in each tool before and after its effect, while each
model call is in flight, and in the middle of each stream. If a `once` tool is in doubt, an operator
looks at the effects and resolves it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from agents import Agent, OpenAIResponsesModel, function_tool, set_tracing_disabled

import holdfast
from holdfast.integrations.openai_agents import HoldfastRunner, HoldfastSession

from .process_runs import REHEARSAL
from .step_kills import MortalProgram, run_ways

set_tracing_disabled(True)

WAYS = ("run", "run_sync", "run_streamed")
TEXT = (
    'call tally {"n": 1} and call pay {"amount": 7} and '
    'call helper {"input": "please call count {\\"n\\": 2}"}'
)


class Program(MortalProgram):
    def agents(self, way: str, http: Any) -> Agent[Any]:
        client = openai.AsyncOpenAI(
            base_url=self.base_url, api_key="none", max_retries=0, http_client=http
        )
        model = OpenAIResponsesModel(self.model, client)

        @function_tool
        async def tally(n: int) -> str:
            """Count something."""
            self.act(f"{way}: tally {n}")
            return f"tallied {n}"

        @function_tool
        @holdfast.step(once=True)
        def pay(amount: int) -> str:
            """Pay."""
            self.act(f"{way}: pay {amount}")
            return f"paid {amount}"

        @function_tool
        async def count(n: int) -> str:
            """Count something else."""
            self.act(f"{way}: count {n}")
            return f"counted {n}"

        helper = Agent(name="helper", instructions=f"{way}: helper", model=model, tools=[count])
        return Agent(
            name="clerk",
            instructions=f"{way}: clerk",
            model=model,
            tools=[tally, pay, helper.as_tool("helper", "Helps.")],
        )

    async def requesting(self, request: Any) -> None:
        """Called by the SDK before each request."""
        body = json.loads(request.content)
        if body["model"] == REHEARSAL:
            return
        place = f"{body['instructions']} {1 if len(body['input']) == 1 else 2}"
        self.process.note("request", call=place)
        died_before = not self.process.die_in_flight(f"the call of {place}")
        if died_before and body.get("stream") and place.endswith("2"):
            self.process.die_in_flight(f"the stream of {place}", after=2)

    async def answer(self, way: str) -> str:
        hooks = {"request": [self.requesting]}
        async with openai.DefaultAsyncHttpxClient(event_hooks=hooks, verify=False) as http:
            agent, runner = self.agents(way, http), HoldfastRunner(self.store)
            session = HoldfastSession(f"chat {way}", self.store)
            if way != "run_streamed":
                result = await runner.run(agent, TEXT, task_id=way, session=session)
                return str(result.final_output)
            stream = runner.run_streamed(agent, TEXT, task_id=way, session=session)
            async for _ in stream.stream_events():
                pass
            return str(stream.final_output)

    def answer_sync(self, way: str) -> str:
        http = openai.DefaultAsyncHttpxClient(
            event_hooks={"request": [self.requesting]}, verify=False
        )
        result = HoldfastRunner(self.store).run_sync(
            self.agents(way, http),
            TEXT,
            task_id=way,
            session=HoldfastSession(f"chat {way}", self.store),
        )
        return str(result.final_output)

    def run(self, way: str) -> str:
        return self.answer_sync(way) if way == "run_sync" else asyncio.run(self.answer(way))


def main() -> None:
    base_url, place, notes = sys.argv[1:]
    run_ways(Program, WAYS, base_url, place, notes, rehearsed=("run", "run_streamed"))
