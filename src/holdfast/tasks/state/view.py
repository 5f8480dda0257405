"""Read-only views of a task, as returned by `store.get_task` and `store.tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from ...log.leases import is_dead
from ...log.reprs import ShortRepr
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
"""The status of a task. retrying: its last run failed, and a worker will retry it. failed: it is
not retried automatically."""
STATUSES: tuple[Status, ...] = get_args(Status)
ENDED: frozenset[str] = frozenset({"cancelled", "finished"})
"""The statuses in which a task does no more work."""

StepStatus = Literal["running", "interrupted", "waiting", "completed", "failed", "retrying"]
"""The status of a step.

running: the lease owner is running it. interrupted: it was started, never ended, and does not run.
retrying: the next run does it again. waiting: it is a child that waits, and so does the task; it
resumes automatically.
"""


class Failure(ShortRepr, msgspec.Struct, frozen=True):
    """An error: the exception's type and its message."""

    type: str
    message: str


class StepProgress(ShortRepr, msgspec.Struct, frozen=True):
    """The last saved progress of a step."""

    cursor: Any
    done: float | None
    total: float | None
    at: datetime


class ModelInput(msgspec.Struct, frozen=True):
    """The versions of conversation messages that a model saw. `store.model_input` reads them."""

    conversation: str
    versions: list[tuple[int, int]]


class StepInfo(ShortRepr, msgspec.Struct, frozen=True, kw_only=True):
    """One step of a task. `parent` is the path of the step that called it ("" for none)."""

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
    """Whether it failed and the code continued: the next run gets the same failure again."""
    progress: StepProgress | None = None
    code: str = ""
    """A digest of the function that ran, with the Python version, to detect changes."""
    version: int = 0
    usage: Usage | None = None
    """The usage of its model calls, in all attempts."""
    reply: tuple[str, int] | None = None
    """For a `task.reply`: the conversation and version of the message that is the result. If the
    message is gone, `result` is None."""
    model_input: list[ModelInput] = []
    """The messages of conversations that its model saw."""


class Question(ShortRepr, msgspec.Struct, frozen=True, kw_only=True):
    """A question to people.

    `id` is for `store.answer(…, question=id)`; `schema` is the JSON Schema of an answer.
    """

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


class Note(ShortRepr, msgspec.Struct, frozen=True):
    """A decision (with its reason) or a discovery, and the step that recorded it."""

    text: str
    why: str | None
    at: datetime
    step: str = ""


class ArtifactInfo(msgspec.Struct, frozen=True):
    """A file attached to a task: its size in bytes, the SHA-256 of its content in hex, the time."""

    name: str
    size: int
    digest: str
    at: datetime


class Drift(msgspec.Struct, frozen=True):
    """A recorded step whose arguments, code or model are different now."""

    step: str
    what: Literal["arguments", "code", "model"]
    recorded: str
    now: str


class TaskInfo(ShortRepr, msgspec.Struct, frozen=True, kw_only=True):
    """A task in a listing."""

    id: str
    status: Status
    goal: str | None
    agent: str | None
    in_doubt: bool
    owner: str | None
    lease_until: datetime | None
    due_at: datetime | None = None
    """When a worker should pick it up: it was submitted, can resume, or is due for a retry."""
    expires_at: datetime | None
    crashes: int = 0
    """How many runs in a row had been killed without progress when the newest one started."""

    @property
    def abandoned(self) -> bool:
        """Whether the lease owner is certainly dead: a killed process of this machine."""
        return self.owner is not None and is_dead(self.owner)


class TaskView(ShortRepr, msgspec.Struct, frozen=True, kw_only=True):
    """A task at one version: read-only, complete, and without a connection to the store."""

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
    """Recorded steps that the newest run has not requested."""
    drift: list[Drift]
    """The changes that the newest run detected."""
    questions: list[Question] = []
    """The questions of the task, except those that it has replaced."""
    waits_for: list[str] = []
    """Descriptions of what a suspended task waits for."""
    parent: str | None = None
    """The id of the parent task."""
    due_at: datetime | None = None
    """When a worker should pick it up."""
    crashes: int = 0
    """How many runs in a row were killed without progress."""
    usage: Usage = Usage()
    """The usage of the model calls of all steps."""
    budget: Budget | None = None
    """The limits of that usage, if any."""
    artifacts: list[ArtifactInfo] = []
    """The attached files; `store.artifact` reads one."""

    @property
    def in_doubt(self) -> list[str]:
        """The paths of the steps whose outcome is unknown."""
        return [step.path for step in self.steps if step.in_doubt]

    @property
    def children(self) -> dict[str, StepStatus]:
        """The status of each child as a step of this task, by the child's id."""
        return {
            step.key: step.status
            for step in self.steps
            if step.kind == "child" and step.key is not None
        }

    @property
    def abandoned(self) -> bool:
        """Whether the lease owner is certainly dead: a killed process of this machine.

        The next process that opens the task takes it over.
        """
        return self.owner is not None and is_dead(self.owner)

    def resume_context(
        self, max_tokens: int = 2000, *, notes: Sequence[str] = (), counter: Counter | None = None
    ) -> ResumeContext:
        """Return `Task.resume_context` for this version of the task, without memories."""
        from ..resume_context.context import build_resume_context

        return build_resume_context(self, max_tokens, notes=notes, counter=counter)

    def preview(self) -> Preview:
        """Return `Task.preview` for this version of the task."""
        from ..preview import preview_resume
        from ..steps.declare import registered_steps

        return preview_resume(self, registered_steps)

    def checkpoint(self) -> AgentCheckpoint:
        """Return `Task.checkpoint` for this version of the task."""
        from ..checkpoint import make_checkpoint

        return make_checkpoint(self)
