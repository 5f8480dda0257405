"""Checkpoints, long-term memory and imports for LangGraph: graphs that resume after a restart.

    store = holdfast.open("agents.db")
    graph = builder.compile(checkpointer=HoldfastSaver(store), store=HoldfastStore(store))
    graph.invoke(inputs, {"configurable": {"thread_id": "user-42"}}, durability="sync")

A thread is a stream of the store, and an item of the store is one too, so encryption, tenants,
`verify`, `copy` and backups work for them as for everything else.
"""

from __future__ import annotations

from . import versions  # first: it checks what is installed
from .importer import CheckpointImport, import_checkpoints
from .node_tasks import NodeTask
from .saver import HoldfastSaver
from .store import HoldfastStore

__all__ = [
    "CheckpointImport",
    "HoldfastSaver",
    "HoldfastStore",
    "NodeTask",
    "import_checkpoints",
    "versions",
]
