"""A workflow of three agents on the Agent Framework, killed at every boundary it has.

Arguments: BASE_URL STORE NOTES. It is killed after each checkpoint that was saved, and while each
model call is in flight.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from agent_framework import Agent, Workflow
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework_orchestrations import SequentialBuilder

import holdfast
from holdfast.integrations.agent_framework import HoldfastCheckpointStorage

from .process_runs import REHEARSAL, ProcessRun, run_until_finished

AGENTS = ("writer", "critic", "editor")
NAME = "poem 7"


class NotedStorage(HoldfastCheckpointStorage):
    """Notes each checkpoint that was saved, and dies right after."""

    def __init__(self, store: holdfast.Store, process: ProcessRun) -> None:
        super().__init__(store)
        self.process = process

    async def save(self, checkpoint: Any) -> str:
        saved = await super().save(checkpoint)
        self.process.note("ack", iteration=checkpoint.iteration_count)
        self.process.point(f"after checkpoint {checkpoint.iteration_count}")
        return saved


def make_client(base_url: str, model: str, hook: Any = None) -> tuple[Any, Any]:
    """A chat client, and the HTTP client to close after it."""
    http = openai.DefaultAsyncHttpxClient(
        event_hooks={"request": [hook] if hook else []}, verify=False
    )
    sdk = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http)
    return OpenAIChatCompletionClient(model=model, async_client=sdk), sdk


def make_workflow(client: Any, storage: HoldfastCheckpointStorage) -> Workflow:
    agents = [Agent(client, name=name, instructions=f"You are the {name}.") for name in AGENTS]
    return SequentialBuilder(participants=agents, checkpoint_storage=storage, name=NAME).build()


async def work(process: ProcessRun, store: holdfast.Store, base_url: str, model: str) -> None:
    async def requesting(request: Any) -> None:
        system = json.loads(request.content)["messages"][0]["content"]
        if model != REHEARSAL:
            process.note("request", by=system)
            process.die_in_flight(f"the call of {system}")

    client, sdk = make_client(base_url, model, requesting)
    storage = (
        NotedStorage(store, process) if model != REHEARSAL else HoldfastCheckpointStorage(store)
    )
    workflow = make_workflow(client, storage)
    latest = await storage.get_latest(workflow_name=NAME)
    if latest is None:
        await workflow.run("Write a poem.")
    else:
        await workflow.run(checkpoint_id=latest.checkpoint_id)
    if model != REHEARSAL:
        process.note("finished")
    await sdk.close()


def main() -> None:
    base_url, place, notes = sys.argv[1:]

    def run(process: ProcessRun) -> None:
        with holdfast.open(place) as store:
            asyncio.run(work(process, store, base_url, "any"))

    def rehearse() -> None:
        with holdfast.open("memory://") as store:
            asyncio.run(work(ProcessRun(notes, base_url), store, base_url, REHEARSAL))

    run_until_finished(run, notes, base_url, rehearse)
