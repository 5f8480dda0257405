"""Long-term memory (`store.memory`): remember, find duplicates, index, search and recall texts."""

import typing as _typing

from .arguments import NewMemory
from .quote import quoted
from .weights import Weights

if _typing.TYPE_CHECKING:
    from ..tasks.agents.consolidate import consolidate, propose, undo_consolidation
    from . import embedders
    from .chats import ChatMemory, FinishedTurn
    from .consolidation.proposals import ConsolidationResult, Proposal, UndoResult

__all__ = [
    "ChatMemory",
    "ConsolidationResult",
    "FinishedTurn",
    "NewMemory",
    "Proposal",
    "UndoResult",
    "Weights",
    "consolidate",
    "embedders",
    "propose",
    "quoted",
    "undo_consolidation",
]

# Most applications need few of them. Consolidation is a task, and tasks are built on memory.
_LAZY_MODULES = {
    "ChatMemory": ".chats",
    "FinishedTurn": ".chats",
    "ConsolidationResult": ".consolidation.proposals",
    "Proposal": ".consolidation.proposals",
    "UndoResult": ".consolidation.proposals",
    "consolidate": "..tasks.agents.consolidate",
    "propose": "..tasks.agents.consolidate",
    "undo_consolidation": "..tasks.agents.consolidate",
}


def __getattr__(name: str) -> _typing.Any:
    """Import a rarely needed name on first use."""
    from importlib import import_module

    if name == "embedders":
        return import_module(".embedders", __name__)
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY_MODULES[name], __name__), name)
