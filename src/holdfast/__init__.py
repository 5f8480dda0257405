"""Durable execution and state for LLM agents: kill the process at any time, and it resumes.

store = holdfast.open("agents.db")
chat = store.conversation("support-42")
chat.append({"role": "user", "content": "Hello"})

More types of returned objects are in `holdfast.types`, all errors in `holdfast.errors`.
"""

import typing as _typing

from . import errors
from ._open import aopen, open  # noqa: A004  holdfast.open is the first thing users type
from ._store import AsyncStore, Store
from .admin.health import Health
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
from .log.context import correlate
from .log.events import Event, EventType
from .state.state import AsyncState, State, StateInfo
from .streams.stream import AsyncStream, Stream, StreamInfo
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
    from .admin.backup import backup
    from .admin.convert import decrypt, encrypt
    from .admin.copy.copy import copy
    from .memory.memory import AsyncMemory, Memory
    from .memory.model import MemoryHit, MemoryInfo, MemoryItem
    from .tasks.checkpoint import AgentCheckpoint
    from .tasks.replay.replay import replay
    from .tasks.resume_context.context import ResumeContext
    from .worker.worker import Worker

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


_LAZY_MODULES = {
    "AgentCheckpoint": "tasks.checkpoint",
    "AsyncMemory": "memory.memory",
    "Memory": "memory.memory",
    "MemoryHit": "memory.model",
    "MemoryInfo": "memory.model",
    "MemoryItem": "memory.model",
    "ResumeContext": "tasks.resume_context.context",
    "Worker": "worker.worker",
    "backup": "admin.backup",
    "copy": "admin.copy.copy",
    "decrypt": "admin.convert",
    "encrypt": "admin.convert",
    "keys": "keys",
    "memory": "memory",
    "redact": "redact",
    "replay": "tasks.replay.replay",
    "types": "types",
}


def __getattr__(name: str) -> _typing.Any:
    """Import on first use what few applications need."""
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f".{_LAZY_MODULES[name]}", __name__)
    return module if name == _LAZY_MODULES[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
