"""Two durable runs of PydanticAI, killed at every boundary they have.

Arguments: BASE_URL STORE NOTES. They are made with `run` and `run_stream`. In each, the model calls
two tools at once: a plain one and a `once` tool. The program is killed after each write of the
task, in each tool before and after its effect, and while each model request is in flight. If the
`once` tool is in doubt, an operator looks at the effects and resolves it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import holdfast
from holdfast.integrations.pydantic_ai import HoldfastDurability

from .process_runs import REHEARSAL
from .step_kills import MortalProgram, run_ways

WAYS = ("run", "run_stream")
TEXT = 'call tally {"n": 1} and call pay {"amount": 7}'


class Program(MortalProgram):
    def agent(self, way: str, http: Any) -> Agent[None, str]:
        client = openai.AsyncOpenAI(
            base_url=self.base_url, api_key="none", max_retries=0, http_client=http
        )

        async def tally(n: int) -> str:
            """Count something."""
            self.act(f"{way}: tally {n}")
            return f"tallied {n}"

        @holdfast.step(once=True)
        def pay(amount: int) -> str:
            """Pay."""
            self.act(f"{way}: pay {amount}")
            return f"paid {amount}"

        return Agent(
            OpenAIChatModel(self.model, provider=OpenAIProvider(openai_client=client)),
            name="clerk",
            instructions=f"{way}: clerk",
            tools=[tally, pay],
            capabilities=[HoldfastDurability(self.store)],
        )

    async def requesting(self, request: Any) -> None:
        """Called by the SDK before each request."""
        body = json.loads(request.content)
        if body["model"] == REHEARSAL:
            return
        place = f"{body['messages'][0]['content']} {1 if len(body['messages']) == 2 else 2}"
        self.process.note("request", call=place)
        self.process.die_in_flight(f"the call of {place}")

    def run(self, way: str) -> str:
        return asyncio.run(self.answer(way))

    async def answer(self, way: str) -> str:
        hooks = {"request": [self.requesting]}
        async with openai.DefaultAsyncHttpxClient(event_hooks=hooks, verify=False) as http:
            agent = self.agent(way, http)
            if way == "run":
                return (await agent.run(TEXT, run_id=way)).output
            async with agent.run_stream(TEXT, run_id=way) as result:
                return await result.get_output()


def main() -> None:
    run_ways(Program, WAYS, *sys.argv[1:])
