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

if _typing.TYPE_CHECKING:
    from . import keys, memory, redact, types
    from .admin.backup import backup
    from .admin.convert import decrypt, encrypt
    from .admin.copy.copy import copy
    from .admin.health import Health
    from .conversations import AsyncConversation, Conversation, ConversationInfo, text_counter
    from .memory.memory import AsyncMemory, Memory
    from .memory.model import MemoryHit, MemoryInfo, MemoryItem
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
    "Agent": "tasks",
    "AgentCheckpoint": "tasks.checkpoint",
    "Artifact": "tasks",
    "ArtifactInfo": "tasks",
    "AsyncArtifact": "tasks",
    "AsyncConversation": "conversations",
    "AsyncMemory": "memory.memory",
    "AsyncState": "state.state",
    "AsyncStream": "streams.stream",
    "AsyncTask": "tasks",
    "Budget": "tasks",
    "Conversation": "conversations",
    "ConversationInfo": "conversations",
    "Failure": "tasks",
    "Health": "admin.health",
    "Memory": "memory.memory",
    "MemoryHit": "memory.model",
    "MemoryInfo": "memory.model",
    "MemoryItem": "memory.model",
    "Question": "tasks",
    "ResumeContext": "tasks.resume_context.context",
    "State": "state.state",
    "StateInfo": "state.state",
    "Step": "tasks",
    "StepInfo": "tasks",
    "StepRun": "tasks",
    "Stream": "streams.stream",
    "StreamInfo": "streams.stream",
    "Task": "tasks",
    "TaskInfo": "tasks",
    "TaskView": "tasks",
    "Usage": "tasks",
    "Worker": "worker.worker",
    "agent": "tasks",
    "backup": "admin.backup",
    "bind": "tasks",
    "copy": "admin.copy.copy",
    "current_step": "tasks",
    "current_task": "tasks",
    "decrypt": "admin.convert",
    "encrypt": "admin.convert",
    "idempotency_key": "tasks",
    "keys": "keys",
    "memory": "memory",
    "redact": "redact",
    "replay": "tasks.replay.replay",
    "step": "tasks",
    "text_counter": "conversations",
    "types": "types",
}


def __getattr__(name: str) -> _typing.Any:
    """Import a name on first use, so that `import holdfast` is quick."""
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    place = _LAZY_MODULES[name]
    import_module(f".{place.partition('.')[0]}", __name__)  # waits for a thread that imports it
    module = import_module(f".{place}", __name__)
    value = module if name == place else getattr(module, name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
