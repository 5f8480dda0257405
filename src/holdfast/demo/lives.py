"""The lives of the demo's agent: first one undisturbed, then as many as it takes to get to the end in spite of the kills."""

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

LIFETIME_SECONDS: Final = 120.0
"""Longer than any life should take."""

_KINDS: Final[tuple[Kind, ...]] = ("effect", "reading", "asked", "between")


class AgentFailed(Exception):
    """The agent ended by itself, before its work was done."""


def rehearse() -> World:
    """What happens if nobody is killed: what the agent does, with what result, and at which moments it can be struck."""
    with World() as world:
        _live(world, "memory://", "rehearsal")
    return world


def endure(world: World, url: str, task_id: str, ended: Callable[[AgentRun], None]) -> None:
    """Start the agent again and again, until it gets to the end. `ended` is called after each run."""
    killed = True
    with world:
        while killed:
            run = _live(world, url, task_id)
            killed = run.killed is not None
            ended(run)


def choose(moments: Sequence[KillMoment], kills: int, seed: int) -> list[KillMoment]:
    """So many of the moments, in their order: of each kind in turn, and the first effect in any case."""
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


def _live(world: World, url: str, task_id: str) -> AgentRun:
    command = [sys.executable, "-m", "holdfast.demo.agent", task_id, world.address]
    environment = {**os.environ, URL: url}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)  # noqa: S603  our own module

    run, process = world.start(start)
    try:
        code = process.wait(LIFETIME_SECONDS)
    except subprocess.TimeoutExpired:
        raise AgentFailed(f"run {run.number} did not come to an end") from None
    finally:
        process.kill()
        process.wait()
    if code and run.killed is None:
        raise AgentFailed(f"run {run.number} ended with exit code {code}; its error is above")
    return run
