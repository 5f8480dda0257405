"""Holdfast keeps the state of LLM agents alive: kill the process at any instant, start it again, and it goes on.

store = holdfast.open("agents.db")
chat = store.conversation("support-42")
chat.append({"role": "user", "content": "Hello"})
"""

import typing as _typing

from . import errors
from ._context import correlate
from ._events import Event, EventType
from ._health import Health, Lease
from ._open import aopen, open  # noqa: A004  holdfast.open is the first thing users type
from ._retention import SparedStream, Swept, SweptStream
from ._state import AsyncState, State, StateVersion
from ._store import AsyncStore, Store
from ._streams import AsyncStream, Stream, StreamInfo
from .backends import Appended
from .conversations import (
    AsyncConversation,
    Conversation,
    ConversationInfo,
    Draft,
    Entry,
    Imported,
    Problem,
    text_counter,
)
from .errors import (
    AccessDenied,
    AlreadyAnswered,
    AlreadyExists,
    AnchorRefused,
    BudgetExceeded,
    ChildFailed,
    Closed,
    Conflict,
    CorruptFile,
    CorruptRecord,
    DataProblem,
    Erased,
    Expired,
    HasForks,
    HeadRegressed,
    Held,
    HoldfastError,
    IdReused,
    InvalidId,
    InvalidKey,
    InvalidURL,
    LeaseLost,
    MissingExtra,
    MissingKey,
    NeedsHuman,
    NoTask,
    NotDone,
    NotEncrypted,
    NotFound,
    NotSerializable,
    NotSetUp,
    OutcomeUnknown,
    ReadOnly,
    ReplayMismatch,
    Retryable,
    SchemaMismatch,
    SourceChanged,
    StepFailed,
    StepInDoubt,
    StorageFull,
    Suspended,
    TamperDetected,
    TaskEnded,
    TooLarge,
    Unavailable,
    UnknownKey,
    UnsupportedFilesystem,
    UnsupportedServer,
    UnsupportedVersion,
    WrongKey,
)
from .tasks import (
    Agent,
    Artifact,
    ArtifactInfo,
    Ask,
    AsyncArtifact,
    AsyncTask,
    Budget,
    Drift,
    Failure,
    Note,
    PlanItem,
    Progress,
    Saw,
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
    from . import keys, memory, redact
    from ._anchors import Anchor
    from ._audit import Audit, AuditEntry
    from ._backups import backup
    from ._copying import Copied, CopyProgress, copy
    from ._verify_report import StreamProblem, Verified, VerifyProgress
    from ._worker import Ran, Worker
    from .encryption._erasure import Erasure
    from .encryption._rotation import Rekeyed
    from .encryption._transcribing import Transcribed, decrypt, encrypt
    from .memory._memory import AsyncMemory, Memory
    from .memory._model import Hit, MemoryStats, Remembered
    from .tasks._briefing import ResumeContext
    from .tasks._checkpoint import AgentCheckpoint
    from .tasks._preview import Preview
    from .tasks._replay import Divergence, Replay, replay

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Agent",
    "AgentCheckpoint",
    "AlreadyAnswered",
    "AlreadyExists",
    "Anchor",
    "AnchorRefused",
    "Appended",
    "Artifact",
    "ArtifactInfo",
    "Ask",
    "AsyncArtifact",
    "AsyncConversation",
    "AsyncMemory",
    "AsyncState",
    "AsyncStore",
    "AsyncStream",
    "AsyncTask",
    "Audit",
    "AuditEntry",
    "Budget",
    "BudgetExceeded",
    "ChildFailed",
    "Closed",
    "Conflict",
    "Conversation",
    "ConversationInfo",
    "Copied",
    "CopyProgress",
    "CorruptFile",
    "CorruptRecord",
    "DataProblem",
    "Divergence",
    "Draft",
    "Drift",
    "Entry",
    "Erased",
    "Erasure",
    "Event",
    "EventType",
    "Expired",
    "Failure",
    "HasForks",
    "HeadRegressed",
    "Health",
    "Held",
    "Hit",
    "HoldfastError",
    "IdReused",
    "Imported",
    "InvalidId",
    "InvalidKey",
    "InvalidURL",
    "Lease",
    "LeaseLost",
    "Memory",
    "MemoryStats",
    "MissingExtra",
    "MissingKey",
    "NeedsHuman",
    "NoTask",
    "NotDone",
    "NotEncrypted",
    "NotFound",
    "NotSerializable",
    "NotSetUp",
    "Note",
    "OutcomeUnknown",
    "PlanItem",
    "Preview",
    "Problem",
    "Progress",
    "Ran",
    "ReadOnly",
    "Rekeyed",
    "Remembered",
    "Replay",
    "ReplayMismatch",
    "ResumeContext",
    "Retryable",
    "Saw",
    "SchemaMismatch",
    "SourceChanged",
    "SparedStream",
    "State",
    "StateVersion",
    "Step",
    "StepFailed",
    "StepInDoubt",
    "StepInfo",
    "StepRun",
    "StorageFull",
    "Store",
    "Stream",
    "StreamInfo",
    "StreamProblem",
    "Suspended",
    "Swept",
    "SweptStream",
    "TamperDetected",
    "Task",
    "TaskEnded",
    "TaskInfo",
    "TaskView",
    "TooLarge",
    "Transcribed",
    "Unavailable",
    "UnknownKey",
    "UnsupportedFilesystem",
    "UnsupportedServer",
    "UnsupportedVersion",
    "Usage",
    "Verified",
    "VerifyProgress",
    "Worker",
    "WrongKey",
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
]


_LATER = {
    "AgentCheckpoint": "tasks._checkpoint",
    "Anchor": "_anchors",
    "AsyncMemory": "memory._memory",
    "Audit": "_audit",
    "AuditEntry": "_audit",
    "Copied": "_copying",
    "CopyProgress": "_copying",
    "Divergence": "tasks._replay",
    "Erasure": "encryption._erasure",
    "Rekeyed": "encryption._rotation",
    "Transcribed": "encryption._transcribing",
    "Hit": "memory._model",
    "Memory": "memory._memory",
    "MemoryStats": "memory._model",
    "Preview": "tasks._preview",
    "Ran": "_worker",
    "Remembered": "memory._model",
    "Replay": "tasks._replay",
    "ResumeContext": "tasks._briefing",
    "StreamProblem": "_verify_report",
    "Verified": "_verify_report",
    "VerifyProgress": "_verify_report",
    "Worker": "_worker",
    "backup": "_backups",
    "copy": "_copying",
    "decrypt": "encryption._transcribing",
    "encrypt": "encryption._transcribing",
    "keys": "keys",
    "memory": "memory",
    "redact": "redact",
    "replay": "tasks._replay",
}


def __getattr__(name: str) -> _typing.Any:
    """What few programs need is imported when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = import_module(f".{_LATER[name]}", __name__)
    return found if name == _LATER[name] else getattr(found, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
