"""A transcript of a few turns, mirrored to a session store by processes that are killed.

Arguments: STORE NOTES. Each process hands over the whole transcript from the last batch on that was
acknowledged, as the SDK does after an interrupted import: in batches that overlap the stored ones.
It is killed right before and right after each write of the backend.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

import holdfast
from holdfast.integrations.claude_agent import HoldfastSessionStore

from .process_runs import MortalBackend, ProcessRun, run_until_finished

KEY: Any = {"project_key": "-srv-app", "session_id": "2f3c"}
SUBAGENT: Any = {**KEY, "subpath": "subagents/agent-1"}
ENTRIES: list[Any] = [
    {"type": "user", "uuid": f"u{n}", "message": {"role": "user", "content": f"line {n}"}}
    for n in range(40)
]
BATCH = 7


async def mirror(process: ProcessRun, sessions: HoldfastSessionStore) -> None:
    for key, size in ((KEY, BATCH), (SUBAGENT, 20)):
        stored = len(await sessions.load(key) or ())
        process.note("found", stored=stored)
        for start in range(max(stored - 3, 0), len(ENTRIES), size):
            await sessions.append(key, ENTRIES[start : start + size])
            process.note("ack", upto=min(start + size, len(ENTRIES)))


def main() -> None:
    place, notes = sys.argv[1:]

    def run(process: ProcessRun) -> None:
        with holdfast.open(place) as store:
            MortalBackend(process, store._log.backend)
            asyncio.run(mirror(process, HoldfastSessionStore(store, ttl=timedelta(days=30))))

    run_until_finished(run, notes, "", lambda: None)
