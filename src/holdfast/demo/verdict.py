"""The verdict of the demo: what was counted, against what was asked for and what it would have been without a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .claim import KillMoment
from .world import MODEL_CALLS


def problems(
    *,
    asked: Mapping[str, int],
    counted: Mapping[str, int],
    expected: Any,
    result: Any,
    kills: int,
    struck: int,
) -> list[str]:
    """What must not be: an effect that happened other than once, another result, a kill that did not happen."""
    found = [
        f"{what}: {counted.get(what, 0)}, not {asked.get(what, 0)}"
        for what in {**asked, **counted}
        if what != MODEL_CALLS and not counted.get(what, 0) == asked.get(what, 0) == 1
    ]
    if result != expected:
        found.append("the result is not that of the undisturbed run")
    if struck != kills:
        found.append(f"the agent was killed {struck} times, not {kills}")
    return found


def from_zero(
    undisturbed: Mapping[KillMoment, Counter[str]], total: Counter[str], kills: Sequence[KillMoment]
) -> Counter[str]:
    """What would have been counted if every run began from zero: computed, not run.

    A run that is killed at a moment has by then done everything that the undisturbed run had done by then; the last
    one does it all.
    """
    return sum((undisturbed[moment] for moment in kills), total.copy())
