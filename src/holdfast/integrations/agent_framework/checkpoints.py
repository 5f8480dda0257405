"""Workflow checkpoints: `HoldfastCheckpointStorage`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from ... import AsyncState, AsyncStore, AsyncStream, Store
from .sessions import as_async_store
from .values import KnownTypesCodec

try:
    from agent_framework import WorkflowCheckpoint
    from agent_framework.exceptions import WorkflowCheckpointException
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.agent_framework needs the Microsoft Agent Framework 1.23 or newer: "
        "pip install -U agent-framework-core"
    ) from error

SAVED, DELETED = "checkpoint.saved", "checkpoint.deleted"


class HoldfastCheckpointStorage:
    """A `CheckpointStorage` of the Agent Framework, without pickle.

    A checkpoint is a state document, and a stream per workflow lists them in the order in which
    they were saved.
    """

    def __init__(self, store: Store | AsyncStore, *, types: Iterable[type[Any]] = ()) -> None:
        """Keep checkpoints in `store`.

        Args:
            store: An open store.
            types: Your own types that executors keep in their state or send to each other:
                dataclasses, enums, pydantic models, classes with `to_dict` and `from_dict`. Types
                of the framework and ordinary Python values need not be listed.
        """
        self._store = as_async_store(store, "HoldfastCheckpointStorage")
        self._codec = KnownTypesCodec(types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint, durably, and return its id.

        Raises `NotSerializable` if it has a value of a type that is not known.
        """
        document = self._codec.encode(checkpoint.to_dict())
        await self._document(checkpoint.checkpoint_id).save(document)
        await self._index(checkpoint.workflow_name).append((SAVED, checkpoint.checkpoint_id))
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint; raise `WorkflowCheckpointException` if there is none."""
        found = await self._find(checkpoint_id)
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return found

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, in the order in which they were saved."""
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name)
        found = [await self._find(checkpoint_id) for checkpoint_id in ids]
        return [checkpoint for checkpoint in found if checkpoint is not None]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow, in the order of saving."""
        ids: dict[str, None] = {}
        async for event in self._index(workflow_name).read():
            ids.pop(event.data, None)
            if event.type == SAVED:
                ids[event.data] = None
        return list(ids)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow that was saved last; None if it has none."""
        newest = await self._index(workflow_name).last(1)
        if newest and newest[0].type == SAVED:
            return await self._find(newest[0].data)
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name)
        return await self._find(ids[-1]) if ids else None

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint. Return False if there is none."""
        found = await self._find(checkpoint_id)
        if found is None:
            return False
        await self._index(found.workflow_name).append((DELETED, checkpoint_id))
        return await self._document(checkpoint_id).delete(reason="deleted by the Agent Framework")

    async def _find(self, checkpoint_id: str) -> WorkflowCheckpoint | None:
        document = await self._document(checkpoint_id).load(None)
        if document is None:
            return None
        return WorkflowCheckpoint.from_dict(self._codec.decode(document))

    def _document(self, checkpoint_id: str) -> AsyncState[Any]:
        return self._store.state(f"workflow checkpoint {checkpoint_id}")

    def _index(self, workflow_name: str) -> AsyncStream:
        return self._store.stream(f"workflow checkpoints of {quote(workflow_name, safe=' ')}")
