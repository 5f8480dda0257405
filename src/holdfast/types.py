"""Types of returned objects (results, reports, parts of views), for annotations and type checks.

The types that most applications use are in `holdfast` itself.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from .admin.anchors import Anchor
    from .admin.audit import Audit, AuditEntry
    from .admin.convert import ConvertResult
    from .admin.copy.copy import CopyProgress, CopyResult
    from .admin.erasure import EraseResult
    from .admin.health import LeaseInfo
    from .admin.purge_expired import SparedStream, SweepResult, SweptStream
    from .admin.repair import RepairResult
    from .admin.verify.report import StreamProblem, VerifyProgress, VerifyResult
    from .backends import AppendResult, CacheSize
    from .conversations import (
        ConversationView,
        Draft,
        DraftPiece,
        ImportResult,
        MessageEntry,
        MessageProblem,
    )
    from .encryption.rotation import RekeyResult
    from .memory.model import EntityInfo, MemoryConflict, MemoryStats
    from .state.state import StateVersion
    from .tasks import (
        Cancellation,
        Drift,
        FailureFrame,
        ModelInput,
        Note,
        PlanItem,
        RunningStep,
        StepProgress,
    )
    from .tasks.preview import Preview
    from .tasks.replay.recording import Divergence
    from .tasks.replay.replay import ReplayResult
    from .worker.registry import WorkerInfo, WorkerTask
    from .worker.worker import RunResult

__all__ = [
    "Anchor",
    "AppendResult",
    "Audit",
    "AuditEntry",
    "CacheSize",
    "Cancellation",
    "ConversationView",
    "ConvertResult",
    "CopyProgress",
    "CopyResult",
    "Divergence",
    "Draft",
    "DraftPiece",
    "Drift",
    "EntityInfo",
    "EraseResult",
    "FailureFrame",
    "ImportResult",
    "LeaseInfo",
    "MemoryConflict",
    "MemoryStats",
    "MessageEntry",
    "MessageProblem",
    "ModelInput",
    "Note",
    "PlanItem",
    "Preview",
    "RekeyResult",
    "RepairResult",
    "ReplayResult",
    "RunResult",
    "RunningStep",
    "SparedStream",
    "StateVersion",
    "StepProgress",
    "StreamProblem",
    "SweepResult",
    "SweptStream",
    "VerifyProgress",
    "VerifyResult",
    "WorkerInfo",
    "WorkerTask",
]

_LAZY_MODULES = {
    "Anchor": "admin.anchors",
    "AppendResult": "backends",
    "Audit": "admin.audit",
    "AuditEntry": "admin.audit",
    "CacheSize": "backends",
    "Cancellation": "tasks",
    "ConversationView": "conversations",
    "ConvertResult": "admin.convert",
    "CopyProgress": "admin.copy.copy",
    "CopyResult": "admin.copy.copy",
    "Divergence": "tasks.replay.recording",
    "Draft": "conversations",
    "DraftPiece": "conversations",
    "Drift": "tasks",
    "EntityInfo": "memory.model",
    "EraseResult": "admin.erasure",
    "FailureFrame": "tasks",
    "ImportResult": "conversations",
    "LeaseInfo": "admin.health",
    "MemoryConflict": "memory.model",
    "MemoryStats": "memory.model",
    "MessageEntry": "conversations",
    "MessageProblem": "conversations",
    "ModelInput": "tasks",
    "Note": "tasks",
    "PlanItem": "tasks",
    "Preview": "tasks.preview",
    "RekeyResult": "encryption.rotation",
    "RepairResult": "admin.repair",
    "ReplayResult": "tasks.replay.replay",
    "RunResult": "worker.worker",
    "RunningStep": "tasks",
    "SparedStream": "admin.purge_expired",
    "StateVersion": "state.state",
    "StepProgress": "tasks",
    "StreamProblem": "admin.verify.report",
    "SweepResult": "admin.purge_expired",
    "SweptStream": "admin.purge_expired",
    "VerifyProgress": "admin.verify.report",
    "VerifyResult": "admin.verify.report",
    "WorkerInfo": "worker.registry",
    "WorkerTask": "worker.registry",
}


def __getattr__(name: str) -> _typing.Any:
    """Import a type on first use: some need modules that few applications use."""
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY_MODULES[name]}", __package__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
