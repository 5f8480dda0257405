"""The verdict of the demo: the world's counts, compared with those of the undisturbed run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .claim import KillMoment
from .world import MODEL_CALLS


def find_problems(
    *,
    undisturbed: Mapping[str, int],
    counted: Mapping[str, int],
    expected: Any,
    result: Any,
    planned_kills: int,
    actual_kills: int,
) -> list[str]:
    """List the effects that did not happen exactly once, a wrong result, and missing kills."""
    problems = [
        f"{effect}: {counted.get(effect, 0)}, not {undisturbed.get(effect, 0)}"
        for effect in {**undisturbed, **counted}
        if effect != MODEL_CALLS and not counted.get(effect, 0) == undisturbed.get(effect, 0) == 1
    ]
    if result != expected:
        problems.append("the result differs from that of the undisturbed run")
    if actual_kills != planned_kills:
        problems.append(f"the agent was killed {actual_kills} times, not {planned_kills}")
    return problems


def count_from_zero(
    undisturbed: Mapping[KillMoment, Counter[str]], total: Counter[str], kills: Sequence[KillMoment]
) -> Counter[str]:
    """Compute what the world would have counted if every run had started from zero.

    By the moment of its kill, such a run has done everything that the undisturbed run had done by
    then; the last run does it all.
    """
    return sum((undisturbed[moment] for moment in kills), total.copy())
