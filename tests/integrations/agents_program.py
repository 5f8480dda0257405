"""A chat of twenty turns on the Agents SDK, killed at every boundary it has.

Arguments: BASE_URL STORE NOTES. Turns are taken with `run`, `run_sync` and `run_streamed` in turn,
each in an event loop of its own. In every fifth turn the model calls a tool twice at once. It is
killed after each append that was acknowledged, inside each tool, and while each model call is in
flight.
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

from .openai_program import TURNS, note_appends, question, turns_begun
from .process_runs import REHEARSAL, ProcessRun, run_until_finished

set_tracing_disabled(True)


class Program:
    """The work of one process."""

    def __init__(self, process: ProcessRun, store: holdfast.Store, base_url: str) -> None:
        self.process, self.base_url, self.model = process, base_url, "any"
        self.session, self.chat = HoldfastSession("chat", store), store.conversation("chat")
        self.agent = Agent(
            name="tallying", tools=[function_tool(self.tally, name_override="tally")]
        )

    async def tally(self, n: int) -> str:
        """Count something."""
        self.process.note("tool", n=n)
        self.process.point(f"in tool {n}")
        return f"tallied {n}"

    async def requesting(self, request: Any) -> None:
        """Called by the SDK before each request."""
        body = json.loads(request.content)
        if body["model"] != REHEARSAL:
            self.process.note("request")
            self.process.die_in_flight(f"the call after {len(body['input'])} items")

    def take(self, turn: int) -> str:
        """Say what the user says, and answer it, unless that was done before."""
        self.chat.append(question(turn), id=f"turn {turn}")
        if self.chat.pending() is None:
            return ""
        hooks = {"request": [self.requesting]}
        http = openai.DefaultAsyncHttpxClient(event_hooks=hooks, verify=False)
        client = openai.AsyncOpenAI(
            base_url=self.base_url, api_key="none", max_retries=0, http_client=http
        )
        self.agent.model = OpenAIResponsesModel(self.model, client)
        if turn % 3 == 0:
            return str(Runner.run_sync(self.agent, [], session=self.session).final_output)
        return asyncio.run(self.answer(http, streamed=turn % 3 == 1))

    async def answer(self, http: Any, *, streamed: bool) -> str:
        async with http:
            if not streamed:
                return str((await Runner.run(self.agent, [], session=self.session)).final_output)
            result = Runner.run_streamed(self.agent, [], session=self.session)
            async for _ in result.stream_events():
                pass
            return str(result.final_output)


def main() -> None:
    base_url, place, notes = sys.argv[1:]

    def run(process: ProcessRun) -> None:
        note_appends(process)
        with holdfast.open(place) as store:
            program = Program(process, store, base_url)
            for turn in range(max(turns_begun(program.chat.messages()), 1), TURNS + 1):
                process.note("answer", turn=turn, text=program.take(turn))

    def rehearse() -> None:
        with holdfast.open(f"{place}.rehearsal") as store:
            program = Program(ProcessRun(notes, base_url), store, base_url)
            program.model = REHEARSAL
            for turn in range(1, 3):
                program.take(turn)

    run_until_finished(run, notes, base_url, rehearse)
