"""Read-only views of a task, as returned by `store.get_task` and `store.tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from ...backends import clock
from ...log.leases import is_dead
from ...log.reprs import ShortRepr, html_table, shorten_cell
from ..steps.usage import Budget, Usage
from .failure import Failure

if TYPE_CHECKING:
    from ...conversations.tokens import Counter
    from ..checkpoint import AgentCheckpoint
    from ..preview import Preview
    from ..resume_context.context import ResumeContext

DEFAULT_CONTEXT_TOKENS: Final = 8000
"""The default size of a resume context. A task of 10 KB fits completely, even though the estimate
of tokens is on the high side."""

_MAX_HTML_STEPS: Final = 30
"""How many steps a notebook shows."""

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

running: the lease owner is running it. interrupted: it was started, has not ended, and isn't
running. retrying: the next run repeats it. waiting: it is a child that waits, and so does the task;
it resumes automatically.
"""


class Cancellation(ShortRepr, msgspec.Struct, frozen=True):
    """Why a task was cancelled, by whom, and when.

    `running` are the steps that a process, `owner`, was still running a while after that. It is
    empty if they ended in time, and once they have ended.
    """

    reason: str | None
    by: str | None
    at: datetime
    running: list[str] = []
    owner: str | None = None

    @property
    def overdue(self) -> bool:
        """Whether a process that may be alive was still running steps, by its last report."""
        return bool(self.running) and not (self.owner is not None and is_dead(self.owner))


class StepProgress(ShortRepr, msgspec.Struct, frozen=True):
    """The last saved progress of a step."""

    cursor: Any
    done: float | None
    total: float | None
    at: datetime


class RunningStep(ShortRepr, msgspec.Struct, frozen=True):
    """The step that a task in a listing is in, as of its last heartbeat, with its progress.

    If several steps are running, it is the most overdue one, or else the newest.
    """

    path: str
    started_at: datetime
    done: float | None = None
    total: float | None = None
    expect: float | None = None

    @property
    def overdue(self) -> bool:
        """Whether it runs longer than the step declares with `expect`."""
        return self.expect is not None and _is_past(self.started_at, self.expect)


def _is_past(since: datetime, seconds: float) -> bool:
    return clock.time() > since.timestamp() + seconds


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
    """Whether the next run gets the same failure again, because the code continued after it or the
    failure is `final`."""
    result_schema: Any = None
    """The JSON Schema of the result of a `once` or `check` step, if its type has one."""
    arguments: dict[str, Any] | None = None
    """The arguments of a `once` or `check` step, to read. A value that isn't data is a type name.
    None for other steps, and if the step is declared with `store_arguments=False`."""
    cut_arguments: list[str] = []
    """The names of the arguments that are shortened, because they are long."""
    idempotency_key: str | None = None
    """The idempotency key of a `once` or `check` step."""
    check: str | None = None
    """What the last call of its check found, in words, if it did not find the result."""
    final: bool = False
    """Whether it failed permanently: the function ran, but its result cannot be stored."""
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
    expect: float | None = None
    """How many seconds it is expected to run, if it declares that."""

    @property
    def overdue(self) -> bool:
        """Whether it is running for longer than the step declares with `expect`."""
        return (
            self.status == "running"
            and self.expect is not None
            and _is_past(self.started_at, self.expect)
        )


def _describe_end(step: StepInfo) -> str:
    if step.error is not None:
        return f"{step.error.type}: {step.error.message}"
    return shorten_cell(step.result) if step.status == "completed" else ""


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
    """A file attached to a task. `size` is in bytes; `digest` is the content's SHA-256 in hex."""

    name: str
    size: int
    digest: str
    at: datetime


class Drift(msgspec.Struct, frozen=True):
    """A recorded step whose arguments, code or model have changed."""

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
    step: RunningStep | None = None
    """The step that it is in, if it runs. Up to a third of the lease old."""
    lingers_in: str | None = None
    """The process that was still running steps of this cancelled task, by its last report."""

    @property
    def overdue(self) -> bool:
        """Whether its step runs longer than expected, or it was cancelled and does not end."""
        if self.status == "cancelled":
            return self.lingers_in is not None and not is_dead(self.lingers_in)
        return self.step is not None and self.step.overdue

    @property
    def abandoned(self) -> bool:
        """Whether the lease owner is known to be dead: a killed process on this machine."""
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
    """The limits on that usage, if any."""
    artifacts: list[ArtifactInfo] = []
    """The attached files; `store.artifact` reads one."""
    subject: str | None = None
    """Whom the task is about."""
    memory_namespace: str | None = None
    """The memory namespace that the agent named for this task, once it has saved something there.
    None: the namespace of the agent's name."""
    cancellation: Cancellation | None = None
    """Why, by whom and when the task was cancelled."""
    timeout: float | None = None
    """The task's time limit in seconds, from its first start on."""
    deadline: datetime | None = None
    """When the time limit is over; None without one, and before the first start."""

    def _repr_html_(self) -> str:
        done = {step.path for step in self.steps if step.status == "completed"}
        rows: list[tuple[str, str, str]] = [
            (step.path, "in doubt" if step.in_doubt else step.status, _describe_end(step))
            for step in self.steps[-_MAX_HTML_STEPS:]
        ]
        rows += [
            (item if isinstance(item, str) else str(item["name"]), "to do", "")
            for item, path in zip(self.plan, self.plan_paths, strict=False)
            if path not in done and path not in {step.path for step in self.steps}
        ]
        more = max(len(self.steps) - _MAX_HTML_STEPS, 0)
        note = f"{self.goal or ''}{f' ({more} earlier steps)' if more else ''}"
        title = f"Task {self.id}: {self.status}, version {self.version}"
        return html_table(title, rows, ("step", "status", "result"), note)

    @property
    def overdue(self) -> list[str]:
        """The paths of the steps that run longer than expected.

        Of a cancelled task, the steps that its process still runs.
        """
        if self.cancellation is not None:
            return list(self.cancellation.running) if self.cancellation.overdue else []
        return [step.path for step in self.steps if step.overdue]

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
        """Whether the lease owner is known to be dead: a killed process on this machine.

        The next process that opens the task takes it over.
        """
        return self.owner is not None and is_dead(self.owner)

    def resume_context(
        self,
        max_tokens: int = DEFAULT_CONTEXT_TOKENS,
        *,
        notes: Sequence[str] = (),
        counter: Counter | None = None,
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
        from ..checkpoint import AgentCheckpoint, make_checkpoint

        return make_checkpoint(self, AgentCheckpoint)
