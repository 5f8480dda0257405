"""Work that a task did not repeat because it resumed instead of starting over."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from .. import TaskView
from .timeline import Timeline


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """What runs after the first did not have to do again."""

    resumes: int
    steps: int
    seconds: float
    tokens: int
    cost: float


def count_savings(view: TaskView, timeline: Timeline) -> Savings:
    """Return the work of finished steps that later runs took from the record.

    A run without the record would start over, so each later run saves all steps that were completed
    before it started. Steps inside other steps count for tokens and cost, not twice for time.
    """
    usage = {step.path: step.usage for step in view.steps if step.usage is not None}
    starts = [run.start for run in timeline.runs]
    resumes = steps = tokens = 0
    seconds = cost = 0.0
    if len(starts) < 2:
        return Savings(resumes=0, steps=0, seconds=0.0, tokens=0, cost=0.0)
    for step in timeline.steps:
        if step.status != "completed":
            continue
        later = len(starts) - max(step.run, bisect_left(starts, step.end))  # runs that keep it
        resumes = max(resumes, later)
        used = usage.get(step.path)
        if used is not None:
            tokens += later * used.tokens
            cost += later * (used.cost or 0.0)
        if "/" not in step.path:
            steps += later
            seconds += later * (step.end - step.start).total_seconds()
    return Savings(resumes=resumes, steps=steps, seconds=seconds, tokens=tokens, cost=cost)
