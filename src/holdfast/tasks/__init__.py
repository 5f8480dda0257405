"""Tasks: an agent's work towards a goal, with recorded steps, that survives its process."""

from .agents.declare import Agent, agent
from .artifacts import Artifact, AsyncArtifact
from .run.frames import current_step, current_task, idempotency_key
from .state.failure import Failure, FailureFrame
from .state.view import (
    ArtifactInfo,
    Cancellation,
    Drift,
    ModelInput,
    Note,
    PlanItem,
    Question,
    RunningStep,
    StepInfo,
    StepProgress,
    TaskInfo,
    TaskView,
)
from .steps.declare import Step, step
from .steps.map import bind
from .steps.progress import StepRun
from .steps.usage import Budget, Usage
from .task import AsyncTask, Task

__all__ = [
    "Agent",
    "Artifact",
    "ArtifactInfo",
    "AsyncArtifact",
    "AsyncTask",
    "Budget",
    "Cancellation",
    "Drift",
    "Failure",
    "FailureFrame",
    "ModelInput",
    "Note",
    "PlanItem",
    "Question",
    "RunningStep",
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
