"""Tasks: runs of an agent towards a goal that survive their process."""

from ._briefing import ResumeContext
from ._checkpoint import AgentCheckpoint
from ._frames import current_step, current_task, idempotency_key
from ._preview import Preview
from ._progress import StepRun
from ._steps import Step, step
from ._task import AsyncTask, Task
from ._view import Drift, Failure, Note, PlanItem, Progress, StepInfo, TaskInfo, TaskView

__all__ = [
    "AgentCheckpoint",
    "AsyncTask",
    "Drift",
    "Failure",
    "Note",
    "PlanItem",
    "Preview",
    "Progress",
    "ResumeContext",
    "Step",
    "StepInfo",
    "StepRun",
    "Task",
    "TaskInfo",
    "TaskView",
    "current_step",
    "current_task",
    "idempotency_key",
    "step",
]
