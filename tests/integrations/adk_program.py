"""Events of the Agent Development Kit, appended by processes that are killed.

Arguments: STORE NOTES. Each process appends all events that the stored session does not end with,
from the last acknowledged one on. It is killed right before and right after each write.
"""

from __future__ import annotations

import asyncio
import sys

from google.adk.events import Event, EventActions

import holdfast
from holdfast.integrations.google_adk import HoldfastSessionService

from .process_runs import MortalBackend, ProcessRun, run_until_finished

WHOSE = {"app_name": "shop", "user_id": "ann", "session_id": "s1"}
COUNT = 4


def make_event(number: int) -> Event:
    delta = {"n": number, "user:seen": number, "app:seen": number, "temp:x": 1}
    return Event(
        id=f"e{number}",
        author="clerk",
        timestamp=float(number),
        actions=EventActions(state_delta=delta),
    )


async def work(process: ProcessRun, service: HoldfastSessionService) -> None:
    session = await service.get_session(**WHOSE)
    if session is None:
        session = await service.create_session(**WHOSE)
    for number in range(max(len(session.events) - 1, 0), COUNT):
        await service.append_event(session, make_event(number))
        process.note("ack", number=number)


def main() -> None:
    place, notes = sys.argv[1:]

    def run(process: ProcessRun) -> None:
        with holdfast.open(place) as store:
            MortalBackend(process, store._log.backend)
            asyncio.run(work(process, HoldfastSessionService(store)))

    run_until_finished(run, notes, "", lambda: None)
