"""Start the demo's agent: once undisturbed, then repeatedly until it finishes despite the kills."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final

from .agent import URL
from .claim import KillMoment, Kind
from .world import AgentRun, World

RUN_TIMEOUT_SECONDS: Final = 120.0
"""Longer than any run should take."""

_KINDS: Final[tuple[Kind, ...]] = ("effect", "reading", "asked", "between")


class AgentFailed(Exception):
    """The agent's process ended before its work was done, and not by a kill."""


def rehearse() -> World:
    """Run the agent without kills; the world then has its result and the moments to kill it at."""
    with World() as world:
        _run_agent(world, "memory://", "rehearsal")
    return world


def run_until_finished(
    world: World, url: str, task_id: str, on_run_end: Callable[[AgentRun], None]
) -> None:
    """Start the agent again after each kill, until it finishes."""
    killed = True
    with world:
        while killed:
            run = _run_agent(world, url, task_id)
            killed = run.killed is not None
            on_run_end(run)


def choose_moments(moments: Sequence[KillMoment], kills: int, seed: int) -> list[KillMoment]:
    """Choose up to `kills` moments, taking each kind in turn, and return them in order.

    The first side effect is always among them.
    """
    chance = random.Random(seed)  # noqa: S311  chooses moments, keeps no secrets
    left = {kind: [moment for moment in moments if moment.kind == kind] for kind in _KINDS}
    chosen = [left["effect"].pop(0)]
    while len(chosen) < min(kills, len(moments)):
        kind = _KINDS[len(chosen) % len(_KINDS)]
        among = left[kind] or [moment for of_kind in left.values() for moment in of_kind]
        moment = chance.choice(among)
        left[moment.kind].remove(moment)
        chosen.append(moment)
    return sorted(chosen, key=list(moments).index)


def _run_agent(world: World, url: str, task_id: str) -> AgentRun:
    command = [sys.executable, "-m", "holdfast.demo.agent", task_id, world.address]
    run, process = world.start_run(command, {**os.environ, URL: url})
    try:
        code = process.wait(RUN_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise AgentFailed(
            f"run {run.number} did not end within {RUN_TIMEOUT_SECONDS:.0f} seconds"
        ) from None
    finally:
        process.kill()
        process.wait()
    if code and run.killed is None:
        raise AgentFailed(f"run {run.number} ended with exit code {code}; its error is above")
    return run
