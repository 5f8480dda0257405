"""A payment that somebody has to approve, in a program that is killed before, while and after it
waits for that.

Arguments: BASE_URL STORE NOTES POINTS, with POINTS a comma-separated list of where it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

import holdfast
from holdfast.integrations.openai_agents import HoldfastSession

from .openai_program import note_appends
from .process_runs import ProcessRun, run_until_finished

set_tracing_disabled(True)

QUESTION = {"role": "user", "content": 'call pay {"amount": 7}'}


class Program:
    """The work of one process."""

    def __init__(
        self, process: ProcessRun, points: list[str], store: holdfast.Store, base_url: str
    ) -> None:
        self.process, self.points, self.base_url = process, points, base_url
        self.session, self.chat = (
            HoldfastSession("payments", store),
            store.aio.conversation("payments"),
        )
        pay = function_tool(self.pay, name_override="pay", needs_approval=True)
        self.agent = Agent(name="cashier", tools=[pay])

    def point(self, name: str) -> None:
        if name in self.points:
            self.process.point(name)

    async def pay(self, amount: int) -> str:
        """Pay."""
        self.process.note("tool", amount=amount)
        return f"paid {amount}"

    async def requesting(self, request: Any) -> None:
        shown = json.loads(request.content)["input"]
        self.process.note("request")
        if "during the last call" in self.points and shown[-1].get("output"):
            self.process.die_in_flight("during the last call")

    async def live(self) -> None:
        hooks = {"request": [self.requesting]}
        async with openai.DefaultAsyncHttpxClient(event_hooks=hooks, verify=False) as http:
            client = openai.AsyncOpenAI(
                base_url=self.base_url, api_key="none", max_retries=0, http_client=http
            )
            self.agent.model = OpenAIResponsesModel("any", client)
            await self.chat.append(QUESTION, id="payment 1")
            while await self.chat.pending() is not None:
                await self.go_on()

    async def go_on(self) -> None:
        run: Any = await self.session.load_run(self.agent)
        if run is None:
            run = []
        else:
            self.process.note("approved")
            for waiting in run.get_interruptions():
                run.approve(waiting)
        result = await Runner.run(self.agent, run, session=self.session)
        if result.interruptions:
            self.point("before the run was saved")
        else:
            self.point("before the run was seen to be over")
        if await self.session.save_run(result):
            self.point("while it waited")


def main() -> None:
    base_url, place, notes, points = sys.argv[1:]

    def run(process: ProcessRun) -> None:
        note_appends(process, kill=False)
        with holdfast.open(place) as store:
            asyncio.run(Program(process, points.split(","), store, base_url).live())

    run_until_finished(run, notes, base_url, lambda: None)
