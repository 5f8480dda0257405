"""A task as it stands: what `store.get_task` shows, and what briefings, previews and checkpoints are made from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from ...log.leases import is_dead
from ...log.reprs import Readable
from ..steps.usage import Budget, Usage

if TYPE_CHECKING:
    from ...conversations.tokens import Counter
    from ..checkpoint import AgentCheckpoint
    from ..preview import Preview
    from ..resume_context.context import ResumeContext

PlanItem = str | dict[str, Any]
"""An item of a plan: a name, or a dict with a `name`."""

Status = Literal[
    "pending", "running", "suspended", "retrying", "failed", "finished", "cancelled", "stuck"
]
"""How a task stands. retrying: its last run failed, and a worker will try again. failed: nobody will by itself."""
STATUSES: tuple[Status, ...] = get_args(Status)
ENDED: frozenset[str] = frozenset({"cancelled", "finished"})
"""In these a task does no more work."""

StepStatus = Literal["running", "interrupted", "waiting", "completed", "failed", "retrying"]
"""running: by the present holder. interrupted: started, never ended, and nobody is at it. retrying: the next run does it again.

waiting: a child that had to wait, and so the task does; it goes on by itself.
"""


class Failure(Readable, msgspec.Struct, frozen=True):
    """What went wrong: the exception's type and its message."""

    type: str
    message: str


class StepProgress(Readable, msgspec.Struct, frozen=True):
    """How far a step had got when it last saved."""

    cursor: Any
    done: float | None
    total: float | None
    at: datetime


class ModelInput(msgspec.Struct, frozen=True):
    """What a model saw of a conversation: its messages from one version to another. `store.model_input` gives them back."""

    conversation: str
    versions: list[tuple[int, int]]


class StepInfo(Readable, msgspec.Struct, frozen=True, kw_only=True):
    """One step of a task. `path` names it within the task, `parent` the step that it was called from ("" for none)."""

    _shown = ("path", "status", "in_doubt", "result", "error", "model", "started_at", "ended_at")

    path: str
    name: str
    key: str | None = None
    parent: str = ""
    status: StepStatus
    in_doubt: bool = False
    mode: Literal["", "once", "check"] = ""
    kind: str = "tool"
    model: str | None = None
    attempts: int = 1
    started_at: datetime
    ended_at: datetime | None = None
    result: Any = None
    how: Literal["ran", "checked", "resolved"] = "ran"
    error: Failure | None = None
    replays: bool = False
    """Failed, and the program went on without it: the next run gets the same failure instead of a new attempt."""
    progress: StepProgress | None = None
    code: str = ""
    """A digest of the function that ran, with the Python version; to notice that it has changed."""
    version: int = 0
    usage: Usage | None = None
    """What its model calls have used, in all attempts."""
    reply: tuple[str, int] | None = None
    """Of a `task.reply`: the conversation whose message the result is, and its version there. If that is gone, `result` is None."""
    model_input: list[ModelInput] = []
    """Which messages its model saw, as far as they are a conversation's."""


class Question(Readable, msgspec.Struct, frozen=True, kw_only=True):
    """A question to people. `id` is for `store.answer(…, question=id)`; `schema` says what an answer looks like, as JSON Schema."""

    _shown = ("name", "status", "text", "payload", "answer", "by", "asked_at", "until", "id")

    id: str
    name: str
    text: str
    payload: Any
    schema: Any
    asked_at: datetime
    until: datetime | None
    status: Literal["open", "answered", "timeout"]
    answer: Any = None
    by: str | None = None
    answered_at: datetime | None = None


class Note(Readable, msgspec.Struct, frozen=True):
    """A decision (with its reason) or a discovery, and the step in which it was made."""

    text: str
    why: str | None
    at: datetime
    step: str = ""


class ArtifactInfo(msgspec.Struct, frozen=True):
    """A file that is attached to a task: its size in bytes, the SHA-256 of its content in hex, and since when."""

    name: str
    size: int
    digest: str
    at: datetime


class Drift(msgspec.Struct, frozen=True):
    """A recorded step was asked for with other arguments, runs other code now, or asks another model."""

    step: str
    what: Literal["arguments", "code", "model"]
    recorded: str
    now: str


class TaskInfo(Readable, msgspec.Struct, frozen=True, kw_only=True):
    """A task as it is listed."""

    id: str
    status: Status
    goal: str | None
    agent: str | None
    in_doubt: bool
    owner: str | None
    lease_until: datetime | None
    due_at: datetime | None = None
    """When a worker is to look at it: it was submitted, has something to go on with, or is to be tried again."""
    expires_at: datetime | None
    crashes: int = 0
    """How many runs in a row were killed without getting any further, when the newest began."""

    @property
    def abandoned(self) -> bool:
        """Whether whoever held it is surely gone: a killed process of this machine."""
        return self.owner is not None and is_dead(self.owner)


class TaskView(Readable, msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stood at one version: read-only, complete, and without a connection to the store."""

    _shown = (
        "id",
        "status",
        "goal",
        "agent",
        "plan",
        "result",
        "error",
        "in_doubt",
        "waits_for",
        "version",
    )

    id: str
    goal: str | None
    input: Any
    agent: str | None
    status: Status
    plan: list[PlanItem]
    plan_paths: list[str]
    """The step path of each item of the plan."""
    steps: list[StepInfo]
    decisions: list[Note]
    discoveries: list[Note]
    result: Any
    error: Failure | None
    created_at: datetime
    updated_at: datetime
    owner: str | None
    lease_until: datetime | None
    expires_at: datetime | None
    version: int
    runs: int
    orphaned: list[str]
    """Recorded steps that the newest run has not asked for."""
    drift: list[Drift]
    """What the newest run found changed."""
    questions: list[Question] = []
    """The questions that the task has asked, except those that it has replaced."""
    waits_for: list[str] = []
    """What a suspended task waits for, in words."""
    parent: str | None = None
    """The task whose child it is."""
    due_at: datetime | None = None
    """When a worker is to look at it."""
    crashes: int = 0
    """How many runs in a row were killed without getting any further."""
    usage: Usage = Usage()
    """What the model calls of all steps have used."""
    budget: Budget | None = None
    """How much they may use, if that is limited."""
    artifacts: list[ArtifactInfo] = []
    """The files that are attached; `store.artifact` reads one."""

    @property
    def in_doubt(self) -> list[str]:
        """The paths of the steps of which nobody knows whether they were done."""
        return [step.path for step in self.steps if step.in_doubt]

    @property
    def children(self) -> dict[str, StepStatus]:
        """The ids of its children, and how each stands as a step of this task."""
        return {
            step.key: step.status
            for step in self.steps
            if step.kind == "child" and step.key is not None
        }

    @property
    def abandoned(self) -> bool:
        """Whether whoever held it is surely gone: a killed process of this machine. Whoever enters it next takes it over."""
        return self.owner is not None and is_dead(self.owner)

    def resume_context(
        self, max_tokens: int = 2000, *, notes: Sequence[str] = (), counter: Counter | None = None
    ) -> ResumeContext:
        """`Task.resume_context`, of the task as it stood: its record alone, without memories."""
        from ..resume_context.context import brief

        return brief(self, max_tokens, notes=notes, counter=counter)

    def preview(self) -> Preview:
        """`Task.preview`, of the task as it stood."""
        from ..preview import preview
        from ..steps.declare import registered

        return preview(self, registered)

    def checkpoint(self) -> AgentCheckpoint:
        """`Task.checkpoint`, of the task as it stood."""
        from ..checkpoint import checkpoint_of

        return checkpoint_of(self)
