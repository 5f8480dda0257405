"""The queries to memory when a task resumes: its goal, and the work that comes next."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from ...conversations.quote import value_to_text
from ..state.fold import plan_item_name
from ..state.view import ENDED, TaskView
from .select import plan_details, step_mark

MAX_STEPS: Final = 3
"""Maximum number of steps to ask about, besides the goal. Each query costs a search."""
QUERY_CHARACTERS: Final = 4000


def recall_queries(view: TaskView) -> list[str]:
    """Return the queries to memory: the goal first, if there is one, then the next steps."""
    steps = (text for text in _list_next_steps(view) if text.strip() and text != view.goal)
    goal = [view.goal] if view.goal is not None else []
    next_steps = islice(dict.fromkeys(steps), MAX_STEPS)
    return [text[:QUERY_CHARACTERS] for text in (*goal, *next_steps)]


def _list_next_steps(view: TaskView) -> Iterator[str]:
    """Yield the unfinished steps outside the plan, newest first, then the plan items to do."""
    if view.status in ENDED:
        return
    items = dict(zip(view.plan_paths, view.plan, strict=True))
    unfinished = [
        step
        for step in view.steps
        if step_mark(step) in ("running", "interrupted", "in doubt", "retry")
    ]
    for step in sorted(unfinished, key=lambda step: step.version, reverse=True):
        if step.path not in items:
            yield step.path
    by_path = {step.path: step for step in view.steps}
    for path, item in items.items():
        if step_mark(by_path.get(path)) not in ("done", "failed"):
            details = (value_to_text(value) for _, value in plan_details(item))
            yield "\n".join([plan_item_name(item), *details])
