"""What the tests of checkpoints share: one to save, and a way to save it plainly and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import holdfast
from holdfast import AgentCheckpoint


class Both:
    """The checkpoints of a store, called in one way: plainly, or awaited."""

    def __init__(self, store: holdfast.Store, asynchronous: bool) -> None:
        self.store, self.asynchronous = store, asynchronous

    def save(self, checkpoint: AgentCheckpoint, **options: Any) -> int:
        if not self.asynchronous:
            return self.store.save_checkpoint(checkpoint, **options)
        saving = self.store.aio.save_checkpoint(checkpoint, **options)
        return asyncio.run(_awaited(saving))

    def load(self, task_id: str, **options: Any) -> Any:
        if not self.asynchronous:
            return self.store.load_checkpoint(task_id, **options)
        return asyncio.run(_awaited(self.store.aio.load_checkpoint(task_id, **options)))

    def delete(self, task_id: str, **options: Any) -> bool:
        if not self.asynchronous:
            return self.store.delete_checkpoint(task_id, **options)
        return asyncio.run(_awaited(self.store.aio.delete_checkpoint(task_id, **options)))


async def _awaited(found: Coroutine[Any, Any, Any]) -> Any:
    return await found


def small(task_id: str = "claims-42") -> AgentCheckpoint:
    return AgentCheckpoint(
        "claims", task_id, "Draft the checklist", plan=["read", {"name": "write", "pages": 2}]
    )


def saved(store: holdfast.Store, task_id: str = "claims-42") -> AgentCheckpoint:
    """What is stored, which the test knows to be there."""
    found = store.load_checkpoint(task_id)
    assert found is not None
    return found
