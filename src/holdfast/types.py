"""The types of what calls return: results, reports and parts of views, for annotations and `isinstance`.

The types that most programs use are in `holdfast` itself.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from ._anchors import Anchor
    from ._audit import Audit, AuditEntry
    from ._copying import CopyProgress, CopyResult
    from ._health import LeaseInfo
    from ._retention import SparedStream, SweepResult, SweptStream
    from ._state import StateVersion
    from ._verify_report import StreamProblem, VerifyProgress, VerifyResult
    from ._worker import RunResult
    from .backends import AppendResult
    from .conversations import ConversationView, Draft, ImportResult, MessageEntry, MessageProblem
    from .encryption._erasure import EraseResult
    from .encryption._rotation import RekeyResult
    from .encryption._transcribing import ConvertResult
    from .memory._model import MemoryStats
    from .tasks import Drift, ModelInput, Note, PlanItem, StepProgress
    from .tasks._preview import Preview
    from .tasks._replay import Divergence, ReplayResult

__all__ = [
    "Anchor",
    "AppendResult",
    "Audit",
    "AuditEntry",
    "ConversationView",
    "ConvertResult",
    "CopyProgress",
    "CopyResult",
    "Divergence",
    "Draft",
    "Drift",
    "EraseResult",
    "ImportResult",
    "LeaseInfo",
    "MemoryStats",
    "MessageEntry",
    "MessageProblem",
    "ModelInput",
    "Note",
    "PlanItem",
    "Preview",
    "RekeyResult",
    "ReplayResult",
    "RunResult",
    "SparedStream",
    "StateVersion",
    "StepProgress",
    "StreamProblem",
    "SweepResult",
    "SweptStream",
    "VerifyProgress",
    "VerifyResult",
]

_LATER = {
    "Anchor": "_anchors",
    "AppendResult": "backends",
    "Audit": "_audit",
    "AuditEntry": "_audit",
    "ConversationView": "conversations",
    "ConvertResult": "encryption._transcribing",
    "CopyProgress": "_copying",
    "CopyResult": "_copying",
    "Divergence": "tasks._replay",
    "Draft": "conversations",
    "Drift": "tasks",
    "EraseResult": "encryption._erasure",
    "ImportResult": "conversations",
    "LeaseInfo": "_health",
    "MemoryStats": "memory._model",
    "MessageEntry": "conversations",
    "MessageProblem": "conversations",
    "ModelInput": "tasks",
    "Note": "tasks",
    "PlanItem": "tasks",
    "Preview": "tasks._preview",
    "RekeyResult": "encryption._rotation",
    "ReplayResult": "tasks._replay",
    "RunResult": "_worker",
    "SparedStream": "_retention",
    "StateVersion": "_state",
    "StepProgress": "tasks",
    "StreamProblem": "_verify_report",
    "SweepResult": "_retention",
    "SweptStream": "_retention",
    "VerifyProgress": "_verify_report",
    "VerifyResult": "_verify_report",
}


def __getattr__(name: str) -> _typing.Any:
    """Import each type when it is first used: some come with modules that few programs need."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LATER[name]}", __package__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
