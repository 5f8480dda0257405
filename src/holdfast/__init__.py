"""Holdfast keeps the state of LLM agents alive: kill the process at any instant, start it again, and it goes on.

store = holdfast.open("agents.db")
chat = store.conversation("support-42")
chat.append({"role": "user", "content": "Hello"})

What calls return beside the types here is in `holdfast.types`, and what they raise in `holdfast.errors`.
"""

import typing as _typing

from . import errors
from ._context import correlate
from ._events import Event, EventType
from ._health import Health
from ._open import aopen, open  # noqa: A004  holdfast.open is the first thing users type
from ._state import AsyncState, State, StateInfo
from ._store import AsyncStore, Store
from ._streams import AsyncStream, Stream, StreamInfo
from .conversations import AsyncConversation, Conversation, ConversationInfo, text_counter
from .errors import (
    Conflict,
    DataProblem,
    HoldfastError,
    LeaseHeld,
    NeedsHuman,
    NotDone,
    NotFound,
    OutcomeUnknown,
    Retryable,
    StepFailed,
    StepInDoubt,
    Suspended,
)
from .tasks import (
    Agent,
    Artifact,
    ArtifactInfo,
    AsyncArtifact,
    AsyncTask,
    Budget,
    Failure,
    Question,
    Step,
    StepInfo,
    StepRun,
    Task,
    TaskInfo,
    TaskView,
    Usage,
    agent,
    bind,
    current_step,
    current_task,
    idempotency_key,
    step,
)

if _typing.TYPE_CHECKING:
    from . import keys, memory, redact, types
    from ._backups import backup
    from ._copying import copy
    from ._worker import Worker
    from .encryption._transcribing import decrypt, encrypt
    from .memory._memory import AsyncMemory, Memory
    from .memory._model import MemoryHit, MemoryInfo, MemoryItem
    from .tasks._briefing import ResumeContext
    from .tasks._checkpoint import AgentCheckpoint
    from .tasks._replay import replay

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentCheckpoint",
    "Artifact",
    "ArtifactInfo",
    "AsyncArtifact",
    "AsyncConversation",
    "AsyncMemory",
    "AsyncState",
    "AsyncStore",
    "AsyncStream",
    "AsyncTask",
    "Budget",
    "Conflict",
    "Conversation",
    "ConversationInfo",
    "DataProblem",
    "Event",
    "EventType",
    "Failure",
    "Health",
    "HoldfastError",
    "LeaseHeld",
    "Memory",
    "MemoryHit",
    "MemoryInfo",
    "MemoryItem",
    "NeedsHuman",
    "NotDone",
    "NotFound",
    "OutcomeUnknown",
    "Question",
    "ResumeContext",
    "Retryable",
    "State",
    "StateInfo",
    "Step",
    "StepFailed",
    "StepInDoubt",
    "StepInfo",
    "StepRun",
    "Store",
    "Stream",
    "StreamInfo",
    "Suspended",
    "Task",
    "TaskInfo",
    "TaskView",
    "Usage",
    "Worker",
    "agent",
    "aopen",
    "backup",
    "bind",
    "copy",
    "correlate",
    "current_step",
    "current_task",
    "decrypt",
    "encrypt",
    "errors",
    "idempotency_key",
    "keys",
    "memory",
    "open",
    "redact",
    "replay",
    "step",
    "text_counter",
    "types",
]


_LATER = {
    "AgentCheckpoint": "tasks._checkpoint",
    "AsyncMemory": "memory._memory",
    "Memory": "memory._memory",
    "MemoryHit": "memory._model",
    "MemoryInfo": "memory._model",
    "MemoryItem": "memory._model",
    "ResumeContext": "tasks._briefing",
    "Worker": "_worker",
    "backup": "_backups",
    "copy": "_copying",
    "decrypt": "encryption._transcribing",
    "encrypt": "encryption._transcribing",
    "keys": "keys",
    "memory": "memory",
    "redact": "redact",
    "replay": "tasks._replay",
    "types": "types",
}


def __getattr__(name: str) -> _typing.Any:
    """Import what few programs need when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = import_module(f".{_LATER[name]}", __name__)
    return found if name == _LATER[name] else getattr(found, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
