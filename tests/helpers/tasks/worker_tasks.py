"""Tasks for the tests of workers."""

from __future__ import annotations

import holdfast
from holdfast import Store, Task, TaskView


def seen(store: Store, id: str = "t") -> TaskView:
    view = store.get_task(id)
    assert view is not None
    return view


def outcomes(store: Store) -> list[tuple[str, str]]:
    return [(ran.id, ran.status) for ran in store.run_due()]


def simple(name: str = "simple") -> None:
    @holdfast.agent(name)
    def agent(task: Task) -> str:
        return task.step("work", str.upper, "done")
