"""A task as it stands: what `store.get_task` shows, and what briefings, previews and checkpoints are made from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .._leases import is_dead

if TYPE_CHECKING:
    from ..conversations._tokens import Counter
    from ._briefing import ResumeContext
    from ._checkpoint import AgentCheckpoint
    from ._preview import Preview

PlanItem = str | dict[str, Any]
"""An item of a plan: a name, or a dict with a `name`."""

Status = Literal["running", "open", "failed", "cancelled", "finished"]
STATUSES: tuple[Status, ...] = ("running", "open", "failed", "cancelled", "finished")
ENDED: frozenset[str] = frozenset({"cancelled", "finished"})
"""In these a task does no more work."""

StepStatus = Literal["running", "interrupted", "completed", "failed", "retrying"]
"""running: by the present holder. interrupted: started, never ended, and nobody is at it. retrying: the next run does it again."""


class Failure(msgspec.Struct, frozen=True):
    """What went wrong: the exception's type and its message."""

    type: str
    message: str


class Progress(msgspec.Struct, frozen=True):
    """How far a step had got when it last saved."""

    cursor: Any
    done: float | None
    total: float | None
    at: datetime


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a task. `path` names it within the task, `parent` the step that it was called from ("" for none)."""

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
    progress: Progress | None = None
    code: str = ""
    """A digest of the function that ran, with the Python version; to notice that it has changed."""
    version: int = 0


class Note(msgspec.Struct, frozen=True):
    """A decision (with its reason) or a discovery, and the step in which it was made."""

    text: str
    why: str | None
    at: datetime
    step: str = ""


class Drift(msgspec.Struct, frozen=True):
    """A recorded step was asked for with other arguments, runs other code now, or asks another model."""

    step: str
    what: Literal["arguments", "code", "model"]
    recorded: str
    now: str


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it is listed."""

    id: str
    status: Status
    goal: str | None
    agent: str | None
    in_doubt: bool
    owner: str | None
    lease_until: datetime | None
    expires_at: datetime | None
    version: int

    @property
    def abandoned(self) -> bool:
        """Whether whoever held it is surely gone: a killed process of this machine."""
        return self.owner is not None and is_dead(self.owner)


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stood at one version: read-only, complete, and without a connection to the store."""

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
    unasked: list[str]
    """Recorded steps that the newest run has not asked for."""
    drift: list[Drift]
    """What the newest run found changed."""

    @property
    def in_doubt(self) -> list[str]:
        """The paths of the steps of which nobody knows whether they were done."""
        return [step.path for step in self.steps if step.in_doubt]

    @property
    def abandoned(self) -> bool:
        """Whether whoever held it is surely gone: a killed process of this machine. Whoever enters it next takes it over."""
        return self.owner is not None and is_dead(self.owner)

    def resume_context(
        self, max_tokens: int = 2000, *, notes: Sequence[str] = (), counter: Counter | None = None
    ) -> ResumeContext:
        """`Task.resume_context`, of the task as it stood."""
        from ._briefing import brief

        return brief(self, max_tokens, notes=notes, counter=counter)

    def preview(self) -> Preview:
        """`Task.preview`, of the task as it stood."""
        from ._preview import preview
        from ._steps import registered

        return preview(self, registered)

    def checkpoint(self) -> AgentCheckpoint:
        """`Task.checkpoint`, of the task as it stood."""
        from ._checkpoint import checkpoint_of

        return checkpoint_of(self)
