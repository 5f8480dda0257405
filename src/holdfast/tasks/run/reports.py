"""What happens in a run, for `holdfast.telemetry`. Built only if there is a listener."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import HoldfastError
from ...log.telemetry import StoreEvent

if TYPE_CHECKING:
    from ..state.fold import StepRecord, TaskState


class RunEvent(StoreEvent, frozen=True):
    """Something that happened in run number `state.runs` of a task."""

    state: TaskState
    incarnation: bytes


class RunStarted(RunEvent, frozen=True):
    """This process has claimed a task."""


class TaskWritten(RunEvent, frozen=True):
    """A session has stored events of its task, which are folded into its state."""

    changes: Sequence[tuple[str, Any]]
    at: float


class StepReused(RunEvent, frozen=True):
    """A step did not run, because its result is recorded."""

    step: StepRecord


class SessionLost(RunEvent, frozen=True):
    """A session can't write any more: its lease was taken over, or its task has ended."""

    error: HoldfastError
