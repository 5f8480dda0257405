"""Tasks: runs of an agent towards a goal that survive their process."""

from ._agents import Agent, agent
from ._artifacts import Artifact, AsyncArtifact
from ._frames import current_step, current_task, idempotency_key
from ._mapping import bind
from ._progress import StepRun
from ._steps import Step, step
from ._task import AsyncTask, Task
from ._usage import Budget, Usage
from ._view import (
    ArtifactInfo,
    Drift,
    Failure,
    ModelInput,
    Note,
    PlanItem,
    Question,
    StepInfo,
    StepProgress,
    TaskInfo,
    TaskView,
)

__all__ = [
    "Agent",
    "Artifact",
    "ArtifactInfo",
    "AsyncArtifact",
    "AsyncTask",
    "Budget",
    "Drift",
    "Failure",
    "ModelInput",
    "Note",
    "PlanItem",
    "Question",
    "Step",
    "StepInfo",
    "StepProgress",
    "StepRun",
    "Task",
    "TaskInfo",
    "TaskView",
    "Usage",
    "agent",
    "bind",
    "current_step",
    "current_task",
    "idempotency_key",
    "step",
]
