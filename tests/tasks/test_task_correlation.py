"""What is written later, or by the heartbeat's thread, carries the correlation id and the actor of
the block that it belongs to."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import Ways
from holdfast.testing import FakeClock


def origins(ways: Ways) -> dict[str, set[tuple[str | None, str | None]]]:
    """Correlation ids and actors of the stored events, by event and step."""
    found: dict[str, set[tuple[str | None, str | None]]] = {}
    for event in ways.store.task("t").history():
        data = event.data if isinstance(event.data, dict) else {}
        name = f"{event.type} {data.get('step', '')}".strip()
        found.setdefault(name, set()).add((event.correlation, event.by))
    return found


@pytest.mark.every_engine
def test_the_start_of_a_long_step_and_the_renewals_carry_the_correlation_id_of_their_block(
    ways: Ways, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        with holdfast.correlate("req-7", actor="ann"):
            async with ways.task(lease=30) as task:
                await task.step("long", clock.advance, 25)

    with caplog.at_level(logging.INFO, logger="holdfast"):
        ways.run(main())
    found = origins(ways)
    assert {"step.started long", "task.renewed", "step.completed long"} <= set(found)
    assert set.union(*found.values()) == {("req-7", "ann")}
    records: list[Any] = caplog.records
    assert {record.correlation for record in records} == {"req-7"}


def test_a_step_started_in_an_inner_block_carries_the_correlation_id_of_that_one(
    ways: Ways, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def long() -> None:
        step = holdfast.current_step()
        step.save("here", done=1, total=2)
        clock.advance(61)  # the progress is written, by the heartbeat

    async def main() -> None:
        async with ways.task(lease=600) as task:
            with holdfast.correlate("inner", actor="ann"):
                await task.step("long", long)
            await task.decide("go on")

    with caplog.at_level(logging.INFO, logger="holdfast"):
        ways.run(main())
    found = origins(ways)
    assert found["step.started long"] == found["step.progressed long"] == {("inner", "ann")}
    assert found["task.decided"] == {(None, None)}
    records: list[Any] = caplog.records
    assert [record.correlation for record in records if record.kind == "task"].count("inner") == 3


def test_starts_written_with_the_append_of_another_step_keep_their_own_correlation_id(
    ways: Ways,
) -> None:
    """Two steps at once, for two requests: the end of one writes the start of the other."""

    async def inner(task: Any) -> None:
        with holdfast.correlate("inner"):
            await task.step("b", str, 2)

    async def main() -> None:
        async with ways.store.aio.task("t") as task:
            with holdfast.correlate("outer", actor="ann"):
                await task.step("a", inner, task)

    asyncio.run(main())
    found = origins(ways)
    assert found["step.started a"] == found["step.completed a"] == {("outer", "ann")}
    assert found["step.completed a/b"] == {("inner", "ann")}


def test_renewals_of_a_turn_carry_the_correlation_id_of_its_block(
    store: holdfast.Store, clock: FakeClock
) -> None:
    chat = store.conversation("c")
    with holdfast.correlate("req-8", actor="ann"), chat.turn(lease=30) as turn:
        clock.advance(25)
        turn.append({"role": "user", "content": "hello"})
    audit = store.audit("c", kind="conversation")
    renewals = [entry for entry in audit if entry.event == "turn.renewed"]
    assert renewals and {(entry.by, entry.correlation) for entry in audit} == {("ann", "req-8")}
