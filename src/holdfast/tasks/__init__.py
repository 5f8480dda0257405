"""Tasks: runs of an agent towards a goal that survive their process."""

from ._agents import Agent, agent
from ._artifacts import Artifact, AsyncArtifact
from ._frames import current_step, current_task, idempotency_key
from ._mapping import bind
from ._progress import StepRun
from ._steps import Step, step
from ._task import AsyncTask, Task
from ._usage import Budget, Usage
from ._view import ArtifactInfo, Ask, Drift, Failure, Note, PlanItem, Progress, Saw, StepInfo, TaskInfo, TaskView

__all__ = [
    "Agent",
    "Artifact",
    "ArtifactInfo",
    "Ask",
    "AsyncArtifact",
    "AsyncTask",
    "Budget",
    "Drift",
    "Failure",
    "Note",
    "PlanItem",
    "Progress",
    "Saw",
    "Step",
    "StepInfo",
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
