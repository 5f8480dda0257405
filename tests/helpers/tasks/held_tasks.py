"""Tasks that another part of the program holds."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from typing import Any

from holdfast import Store, Task, TaskView

LARGE = "x" * 200_000


def held(store: Store, id: str = "t", **options: Any) -> Task:
    """A task that some other part of the program has entered."""
    task = store.task(id, **options)
    contextvars.copy_context().run(task.__enter__)
    entered.append(task)
    return task


entered: list[Task] = []


@dataclass
class Claim:
    number: int
    items: list[str]


def known(seen: TaskView) -> Any:
    """What a view of a version says, but for what only a live task knows."""
    steps = [
        (step.path, step.status, step.result, step.error, step.in_doubt) for step in seen.steps
    ]
    return seen.version, seen.plan, steps, seen.decisions, seen.discoveries, seen.goal, seen.runs
