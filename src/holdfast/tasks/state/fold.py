"""The state of a task, derived from its events: plan, steps, notes, waits and how it ended.

`TaskState.apply` applies one event at a time. Events of parallel steps in a run may be applied in a
different order than they are stored in; notes are sorted by version when they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from ...backends import StreamKey
from ...log.events import Blob
from ..steps.identity import StepPath, numbered_path, parse_path
from ..steps.usage import Budget, Usage
from . import events as ev
from .view import ENDED, PlanItem, Status
from .waits import TaskWaits

CHILD = "child"
"""The kind of a step that is a child task; its key is the child's id."""
CHILD_CRASHES_PER_COUNT = 4
"""While a child runs, only one crash in this many counts, because the child counts its own."""


class Resolution(msgspec.Struct):
    """An operator's resolution of a step: it was done ("result"), or it must run again ("retry").

    `doubt` is whether its result could be given: it was in doubt, or could not be stored. `used` is
    whether the task continued since.
    """

    how: Literal["result", "retry"]
    by: str | None
    at: float
    doubt: bool
    used: bool = False


class RunEnd(NamedTuple):
    """When a run ended. Without `released`, its process died or was replaced at that time."""

    at: float
    released: bool


class StepRecord:
    """One step: its last start and, if it ended, its end.

    `state` is "started", "completed", "failed" or "retrying" (the next run repeats it, after a
    failure or because an operator decided so).
    """

    # Defaults are set on the class, not in each instance: an instance is created for each step that
    # runs, and most of these fields are never set.
    state = "started"
    run = version = 0
    args = mode = code = function = message = ""
    origin, nth = "", 0
    """The fingerprint of its first arguments, and its number among the calls with these arguments.
    The idempotency key is derived from both."""
    parallel = mapped = False
    """`parallel`: another step with its name was running, or another thread called it."""
    kind, how = "tool", "ran"
    model: str | None = None
    attempts = 1
    started_at = 0.0
    expect: float | None = None
    """How many seconds it is expected to run."""
    ended_at: float | None = None
    result: msgspec.Raw | None = None
    blob: Blob | None = None
    blob_owner: StreamKey | None = None
    reply: ev.Reply | None = None
    """The place of its result, if that is a message. A rerun keeps it until there is a new one."""
    error: str | None = None
    causes: Sequence[str] = ()
    trace: ev.Trace | None = None
    """Where the exception `error` was raised, if the store keeps that."""
    doubt = False
    abandoned = False
    """It failed because it ran too long, and its thread may have kept running."""
    resolution: Resolution | None = None
    schema: Any = None
    """The JSON Schema of its result, if the step must not run twice and the type has a schema."""
    arguments: msgspec.Raw | None = None
    cut: Sequence[str] = ()
    """The arguments of a step that must not run twice, and the names of those that are cut."""
    idempotency_key = check = ""
    """The idempotency key of such a step, and what its check found."""
    final = False
    """It ran, and failed because its result cannot be stored: only an operator can retry it."""
    cursor: msgspec.Raw | None = None
    done: float | None = None
    total: float | None = None
    progress_at = 0.0
    usage: Usage | None = None
    model_input: Sequence[ev.ModelInputPart] = ()
    _parsed_path: StepPath | None = None

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def parsed_path(self) -> StepPath:
        """The parsed path. Parsed on demand: a running task does not need it."""
        if self._parsed_path is None:
            self._parsed_path = parse_path(self.path)
        return self._parsed_path

    def in_doubt(self, run: int | None) -> bool:
        """Whether its outcome is unknown. `run` is the current run, if any."""
        if not self.mode:
            return False
        return (self.state == "started" and self.run != run) or (
            self.state == "failed" and self.doubt
        )


class NoteRecord(msgspec.Struct, frozen=True):
    """A decision or a discovery."""

    version: int
    at: float
    text: str
    why: str | None
    step: str


class AttachedFile(msgspec.Struct, frozen=True):
    """An attached file. `owner` is the task that stores it: a fork may use files of its parent."""

    version: int
    at: float
    owner: StreamKey
    name: str
    blob: Blob


class TaskState:
    """The state of a task."""

    def __init__(self, key: StreamKey) -> None:
        self.key = key
        self.version = 0
        self.goal: str | None = None
        self.agent: str | None = None
        self.input: bytes = b"null"
        self.salt = ""
        self.ttl: float | None = None
        self.created_at = self.updated_at = 0.0
        self.status: Status = "pending"
        self.owner: str | None = None
        self.parent: ev.Parent | None = None
        self.subject: str | None = None
        self.runs = 0
        self.run_starts: dict[int, float] = {}
        self.run_ends: dict[int, RunEnd] = {}
        self.crashes = self.failures = 0
        """How many runs in a row were killed, or failed, without progress."""
        self.ends = 0
        """How many times the task was recorded as failed or stuck; it may have resumed since."""
        self.waits = TaskWaits()
        self.suspended_on = ev.TaskSuspended()
        self.plan: list[PlanItem] = []
        self.plan_paths: dict[str, int] = {}
        self.plans: dict[str, list[PlanItem]] = {}
        self.plan_steps: dict[str, list[str]] = {}
        """The steps that the function of each plan requested."""
        self.steps: dict[str, StepRecord] = {}
        self.decisions: list[NoteRecord] = []
        self.discoveries: list[NoteRecord] = []
        self.noted: set[str] = set()
        self.attached: dict[str, AttachedFile] = {}
        self.recalled: dict[str, None] = {}
        """Texts of memories that its model was shown."""
        self.memory_namespace: str | None = None
        """The memory namespace that its agent chose for it; None for the agent's name."""
        self.usage = Usage()
        self.budget: Budget | None = None
        self.texts: dict[str, bytes] = {}
        """Inputs of models that are not from conversations, by digest."""
        self.result: bytes = b"null"
        self.error: tuple[str, str] | None = None
        self.trace: ev.Trace | None = None
        """Where the exception of the last `error` was raised, if the store keeps that."""
        self.cancelled: tuple[float, ev.Cancelled] | None = None
        """When the task was cancelled, why, and by whom."""
        self.lingered: ev.Lingered | None = None
        """The process that was still running steps of the cancelled task, by its last report."""
        self.timeout: float | None = None
        """The task's time limit in seconds, from `started_at` on."""
        self.started_at: float | None = None
        """When its first run began; after a retry by an operator, the first run since."""
        self.orphaned: list[str] = []
        self.drift: list[list[str]] = []
        self._uncounted_crashes = 0
        self._before: tuple[Status, tuple[str, str] | None] = ("pending", None)
        """Status and error before the newest run."""
        self._trailing: list[StepRecord] = []
        """Failed steps without a later event that shows that the code continued."""
        self._unused: list[Resolution] = []

    @property
    def status_before(self) -> Status:
        """The status before the newest run."""
        return self._before[0]

    @property
    def deadline(self) -> float | None:
        """When the time limit of the task is over; None without one, and before its first run."""
        if self.timeout is None or self.started_at is None:
            return None
        return self.started_at + self.timeout

    @property
    def ended(self) -> bool:
        """Whether the task does no more work."""
        return self.status in ENDED

    def apply(self, key: StreamKey, version: int, at: float, name: str, event: Any) -> None:
        """Apply the next event. `key` is its stream: a fork starts with events of its parent."""
        if version > self.version and key == self.key:
            self.version = version
        if at > self.updated_at:
            self.updated_at = at
        _APPLY[name](self, key, version, at, event)
        if self._trailing and name not in _NEUTRAL_EVENTS:
            self._trailing.clear()
        if self._unused and name not in _UNRELATED_TO_RESOLUTIONS:
            for resolution in self._unused:
                resolution.used = True
            self._unused.clear()

    # -- the task --------------------------------------------------------------------------------

    def _created(self, _key: StreamKey, _version: int, at: float, event: ev.Created) -> None:
        self.goal, self.agent, self.salt, self.ttl = event.goal, event.agent, event.salt, event.ttl
        self.parent, self.budget, self.subject = event.parent, event.budget, event.subject
        self.input = bytes(event.input)
        self.created_at = at

    def _branched(self, _key: StreamKey, _version: int, at: float, event: ev.Branched) -> None:
        """Keep what the parent did, and forget its lease owner and its end."""
        self.created_at = at
        self.input = bytes(event.input) or self.input
        if self.owner is not None:  # the parent's run continues
            self._end_run(at, released=False)
        self.status, self.owner, self.result, self.error = "pending", None, b"null", None
        self.cancelled = self.lingered = self.started_at = None
        self.parent, self.crashes, self.failures = None, 0, 0
        self.suspended_on = ev.TaskSuspended()

    def _claimed(self, key: StreamKey, _version: int, at: float, event: ev.Claimed) -> None:
        # Nothing shows that the code continued after these failures: they may have ended the run.
        self._mark_retrying(step.path for step in self._trailing)
        self._trailing.clear()
        if self.owner is not None:
            self._end_run(at if event.alive_at is None else event.alive_at, released=False)
        if self.owner is not None and not event.stolen:
            counts = self.counts_as_crash(event)
            self.crashes, self._uncounted_crashes = (
                self.crashes + counts,
                0 if counts else self._uncounted_crashes + 1,
            )
        self.waits.children.clear()
        self.suspended_on = ev.TaskSuspended()
        self._before = self.status, self.error
        if event.timeout is not None:
            self.timeout = event.timeout
        if self.started_at is None:
            self.started_at = at
        self.runs += 1
        if key == self.key:  # not the runs of the task that it was forked from
            self.run_starts[self.runs] = at
        self.status, self.owner = "running", event.owner
        self.error, self.orphaned, self.drift = None, [], []

    def _end_run(self, at: float, *, released: bool) -> None:
        self.run_ends[self.runs] = RunEnd(at, released)

    def counts_as_crash(self, claim: ev.Claimed) -> bool:
        """Whether a claim shows that a run was killed, and whether that crash counts.

        If the run was waiting for a child, the child counts the crash, and may have made progress.
        So only some of these crashes count here.
        """
        if self.owner is None or claim.stolen:
            return False
        in_child = any(
            s.kind == CHILD and s.state == "started" and s.run == self.runs
            for s in self.steps.values()
        )
        return not in_child or self._uncounted_crashes + 1 >= CHILD_CRASHES_PER_COUNT

    def _planned(self, _key: StreamKey, _version: int, _at: float, event: ev.Planned) -> None:
        self.plan = self.plans[event.id] = event.items
        self.plan_steps[event.id] = event.steps
        self.plan_paths = {
            path: index for index, path in enumerate(event.paths or plan_step_paths(event.items))
        }

    def _decided(self, key: StreamKey, version: int, at: float, event: ev.Noted) -> None:
        self._note(self.decisions, version, at, event, key == self.key)

    def _discovered(self, key: StreamKey, version: int, at: float, event: ev.Noted) -> None:
        self._note(self.discoveries, version, at, event, key == self.key)

    def _note(
        self, notes: list[NoteRecord], version: int, at: float, event: ev.Noted, own: bool
    ) -> None:
        if event.id not in self.noted:
            self.noted.add(event.id)
            # A fork's notes start with its parent's: versions of two streams are not comparable.
            notes.append(NoteRecord(version if own else 0, at, event.text, event.why, event.step))

    def _attached(self, key: StreamKey, version: int, at: float, event: ev.Attached) -> None:
        known = self.attached.get(event.name)
        if known is None or known.owner != key or known.version < version:
            self.attached[event.name] = AttachedFile(version, at, key, event.name, event.blob)

    def _recalled(self, _key: StreamKey, _version: int, _at: float, event: ev.Recalled) -> None:
        self.recalled.update(dict.fromkeys(event.texts))

    def _memory_named(
        self, _key: StreamKey, _version: int, _at: float, event: ev.MemoryNamed
    ) -> None:
        # Two threads may choose one at the same time. The first one counts.
        self.memory_namespace = self.memory_namespace or event.namespace

    def _budgeted(self, _key: StreamKey, _version: int, _at: float, event: ev.Budgeted) -> None:
        self.budget = event.budget

    def _released(self, _key: StreamKey, _version: int, at: float, event: ev.Released) -> None:
        self.status, self.owner = "pending", None
        self._end_run(at, released=True)
        if event.unchanged:
            self.status, self.error = self._before
        self.orphaned, self.drift = event.orphaned, event.drift
        if not event.why:  # not interrupted: the code continued after the failures
            self._trailing.clear()

    def _failed(self, _key: StreamKey, _version: int, at: float, event: ev.Failed) -> None:
        self._end_run(at, released=True)
        self.status = "failed" if event.retry_at is None else "retrying"
        self.owner, self.error, self.trace = None, (event.type, event.message), event.trace
        self.failures += 1
        self.ends += 1
        self.orphaned, self.drift = event.orphaned, event.drift
        self._mark_retrying(event.steps)

    def _mark_retrying(self, paths: Iterable[str]) -> None:
        """Mark failed steps for a retry: the code did not continue without them."""
        for path in paths:
            step = self.steps.get(path)
            if step is not None and step.state == "failed" and not (step.doubt or step.final):
                step.state = "retrying"

    def _retry_final(self, paths: Iterable[str]) -> None:
        """Let steps whose result could not be stored run again: an operator retries the task.

        Not `once` steps: `resolve` must name them. A `check` step is in doubt: its check decides.
        """
        for path in paths:
            step = self.steps.get(path)
            if step is not None and step.final and step.mode != "once":
                step.final, step.doubt = False, step.mode == "check"
                self._mark_retrying((path,))

    def _cancelled(self, _key: StreamKey, _version: int, at: float, event: ev.Cancelled) -> None:
        self.status, self.owner, self.cancelled = "cancelled", None, (at, event)

    def _lingered(self, _key: StreamKey, _version: int, _at: float, event: ev.Lingered) -> None:
        self.lingered = event if event.steps else None

    def _finished(self, _key: StreamKey, _version: int, _at: float, event: ev.Finished) -> None:
        self.status, self.owner, self.result = "finished", None, bytes(event.result)
        self.orphaned, self.drift = event.orphaned, event.drift

    # -- waits -----------------------------------------------------------------------------------

    def _asked(self, _key: StreamKey, version: int, at: float, event: ev.Asked) -> None:
        self.waits.apply_asked(version, at, event)

    def _answered(self, _key: StreamKey, _version: int, at: float, event: ev.Answered) -> None:
        self.waits.apply_answered(at, event)
        self.crashes = self.failures = 0
        self._wake()

    def _signalled(self, _key: StreamKey, _version: int, _at: float, event: ev.Signalled) -> None:
        self.waits.apply_signalled(event)
        self._wake()

    def _child_ended(
        self, _key: StreamKey, _version: int, _at: float, event: ev.ChildEnded
    ) -> None:
        self.waits.children[event.child] = event.status
        self._wake()

    def _wake(self) -> None:
        """Make the task pending if its wait is over."""
        if self.status == "suspended" and self.waits.is_ready(
            self.suspended_on.waits, self.suspended_on.children
        ):
            self.status = "pending"
        elif self.status == "failed" and self.agent is not None:
            self.status = "pending"  # a worker retries it

    def _suspended(
        self, _key: StreamKey, _version: int, at: float, event: ev.TaskSuspended
    ) -> None:
        self.status, self.owner, self.suspended_on = "suspended", None, event
        self._end_run(at, released=True)
        self._wake()

    def _queued(self, _key: StreamKey, _version: int, _at: float, event: ev.Queued) -> None:
        self.crashes = self.failures = 0
        self._retry_final(self.steps)
        if event.timeout is not None:
            self.timeout = event.timeout
        if self.owner is None:
            self.status, self.error, self.started_at = "pending", None, None

    def _stuck(self, _key: StreamKey, _version: int, at: float, event: ev.MarkedStuck) -> None:
        self._end_run(at, released=True)
        why = f"its process died {event.crashes} times in a row without progress"
        self.status, self.owner, self.error, self.trace = "stuck", None, ("stuck", why), None
        self.ends += 1

    def _ignore(self, _key: StreamKey, _version: int, _at: float, _event: ev.TaskEvent) -> None:
        """Ignore a heartbeat, a fork, a report to the parent, or the use of a resolution."""

    # -- steps -----------------------------------------------------------------------------------

    def _step(self, version: int, at: float, event: ev.StepEvent) -> StepRecord:
        """Return the step of an event, updated with the start that the event describes."""
        step = self.steps.get(event.step)
        if step is None:
            step = self.steps[event.step] = StepRecord(event.step)
            step.started_at = at if event.since is None else event.since
        elif event.since is not None:
            step.started_at = event.since
        step.version, step.run, step.attempts = version, self.runs, event.attempt
        if event.args:
            if not step.origin:
                step.origin, step.nth = event.args, event.nth
            step.parallel = step.parallel or event.parallel
            if event.mode:
                self._note_guarded(step, event)
            step.args, step.mode, step.kind = event.args, event.mode, event.kind
            step.code, step.model = event.code, event.model
            step.function, step.mapped, step.expect = event.function, event.mapped, event.expect
        elif event.model is not None and step.model is None:
            step.model = event.model
        if event.usage is not None:
            self._used(step, event.usage)
        if event.model_input:
            step.model_input = event.model_input
            self.texts.update(
                (part.digest, bytes(part.text))
                for part in event.model_input
                if part.digest and bytes(part.text)
            )
        return step

    def _note_guarded(self, step: StepRecord, event: ev.StepEvent) -> None:
        """Note what an operator needs to know of a step that must not run twice."""
        step.schema, step.check = event.schema, event.check or step.check
        if event.idempotency_key:
            step.idempotency_key = event.idempotency_key
            step.arguments, step.cut = event.arguments, event.cut
        elif event.args != step.args:  # the event doesn't repeat those of the start
            step.arguments, step.cut = None, ()

    def _used(self, step: StepRecord, usage: Usage) -> None:
        self.usage += usage
        step.usage = usage if step.usage is None else step.usage + usage

    def _is_late(self, event: ev.StepEvent) -> bool:
        """Whether the step has already ended in this run: lazy events may be written after it."""
        step = self.steps.get(event.step)
        return step is not None and step.run == self.runs and step.state in ("completed", "failed")

    def _step_started(self, _key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        # The start of a `once` or `check` step is never lazy: after an end, it is a new start.
        if not event.mode and self._is_late(event):
            return
        step = self._step(version, at, event)
        step.state, step.started_at = "started", event.since or at
        step.ended_at, step.error, step.doubt, step.final = None, None, False, False

    def _step_progressed(
        self, _key: StreamKey, version: int, at: float, event: ev.StepEvent
    ) -> None:
        if self._is_late(event):
            return
        step = self._step(version, at, event)
        if event.args:  # it also describes the start
            step.state, step.ended_at, step.error = "started", None, None
            step.doubt = step.final = False
        if step.cursor != event.cursor:
            self.crashes = self.failures = 0
        step.cursor, step.done, step.total = event.cursor, event.done, event.total
        step.progress_at = at

    def _step_completed(self, key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        step = self._step(version, at, event)
        self.crashes = self.failures = 0
        step.doubt = False
        self._complete(step, key, at, event, event.how)
        step.cursor, step.reply = None, event.reply

    def _complete(
        self, step: StepRecord, key: StreamKey, at: float, event: ev.StepEvent, how: str
    ) -> None:
        step.state, step.ended_at, step.how, step.error = "completed", at, how, None
        step.final = False
        step.result, step.blob = event.result, event.blob
        step.blob_owner = key if event.blob else None

    def _step_failed(self, _key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        if event.again and self._is_late(event):
            return
        step = self._step(version, at, event)
        step.error, step.message, step.ended_at = event.error or "", event.message, at
        step.trace = event.trace
        if event.again:
            step.state = "started"
            self._mark_retrying(event.causes)
        else:
            step.state, step.doubt, step.causes = "failed", event.doubt, event.causes
            step.final, step.abandoned = event.final, event.abandoned
            self._trailing.append(step)

    def _step_resolved(self, key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        step = self.steps.get(event.step)
        if step is None:
            return
        before = step.resolution
        doubt = step.in_doubt(None) or step.final
        if event.override and before is not None:
            doubt = before.doubt
        step.resolution = Resolution("retry" if event.again else "result", event.by, at, doubt)
        self._unused.append(step.resolution)
        step.version, step.doubt = version, False
        if event.again:
            step.state, step.final = "retrying", False
            self._retry_final(step.causes)
            self._mark_retrying(step.causes)  # the inner steps that caused its failure
        else:
            self._complete(step, key, at, event, "resolved")
        self._retry_final(path for path, outer in self.steps.items() if step.path in outer.causes)
        if self.agent is not None and self.owner is None and not self.is_blocked(None):
            self.status = "pending"

    def _step_checked(
        self, _key: StreamKey, _version: int, _at: float, event: ev.StepEvent
    ) -> None:
        step = self.steps.get(event.step)
        if step is not None:
            step.check = event.check

    def steps_in_doubt(self) -> list[str]:
        """Return the paths of the steps whose outcome is unknown, if no run is active."""
        return [step.path for step in self.steps.values() if step.in_doubt(None)]

    def is_blocked(self, run: int | None) -> bool:
        """Whether a `once` step is in doubt, so that no worker may resume the task.

        A `check` step resolves itself when it runs.
        """
        return any(step.in_doubt(run) and step.mode == "once" for step in self.steps.values())

    def _step_used(self, _key: StreamKey, _version: int, _at: float, event: ev.StepEvent) -> None:
        """Count the usage of a step that was interrupted."""
        if event.usage is not None:
            step = self.steps.get(event.step)
            if step is None:  # its start was never written
                self.usage += event.usage
            else:
                self._used(step, event.usage)


def plan_step_paths(plan: list[PlanItem]) -> list[str]:
    """Return the step path of each item of a plan.

    The n-th item with a name is the n-th step with that name at the top level.
    """
    counts: dict[str, int] = {}
    paths = []
    for item in plan:
        name = plan_item_name(item)
        counts[name] = counts.get(name, 0) + 1
        paths.append(numbered_path("", name, counts[name]))
    return paths


def plan_item_name(item: PlanItem) -> str:
    """Return the name of a plan item."""
    return item if isinstance(item, str) else str(item["name"])


_APPLY: dict[str, Any] = {
    ev.CREATED: TaskState._created,
    ev.BRANCHED: TaskState._branched,
    ev.CLAIMED: TaskState._claimed,
    ev.RENEWED: TaskState._ignore,
    ev.FORKED: TaskState._ignore,
    ev.PLANNED: TaskState._planned,
    ev.DECIDED: TaskState._decided,
    ev.DISCOVERED: TaskState._discovered,
    ev.ATTACHED: TaskState._attached,
    ev.RECALLED: TaskState._recalled,
    ev.MEMORY_NAMED: TaskState._memory_named,
    ev.ASKED: TaskState._asked,
    ev.ANSWERED: TaskState._answered,
    ev.SIGNALLED: TaskState._signalled,
    ev.SUSPENDED: TaskState._suspended,
    ev.CHILD_ENDED: TaskState._child_ended,
    ev.REPORTED: TaskState._ignore,
    ev.QUEUED: TaskState._queued,
    ev.STUCK: TaskState._stuck,
    ev.BUDGETED: TaskState._budgeted,
    ev.RELEASED: TaskState._released,
    ev.FAILED: TaskState._failed,
    ev.CANCELLED: TaskState._cancelled,
    ev.LINGERED: TaskState._lingered,
    ev.WRITE_REFUSED: TaskState._ignore,
    ev.FINISHED: TaskState._finished,
    ev.STEP_STARTED: TaskState._step_started,
    ev.STEP_PROGRESSED: TaskState._step_progressed,
    ev.STEP_COMPLETED: TaskState._step_completed,
    ev.STEP_FAILED: TaskState._step_failed,
    ev.STEP_RESOLVED: TaskState._step_resolved,
    ev.STEP_ACCEPTED: TaskState._ignore,
    ev.STEP_CHECKED: TaskState._step_checked,
    ev.STEP_USED: TaskState._step_used,
}
_NEUTRAL_EVENTS = {
    ev.RENEWED,
    ev.FORKED,
    ev.BRANCHED,
    ev.RECALLED,
    ev.MEMORY_NAMED,
    ev.RELEASED,
    ev.STEP_FAILED,
    ev.STEP_RESOLVED,
    ev.STEP_CHECKED,
    ev.ANSWERED,
    ev.SIGNALLED,
    ev.CHILD_ENDED,
    ev.QUEUED,
    ev.STEP_USED,
    ev.WRITE_REFUSED,
}
"""Events that do not show whether the code continued after a failed step."""
_UNRELATED_TO_RESOLUTIONS = {
    ev.CLAIMED,
    ev.RENEWED,
    ev.RELEASED,
    ev.FAILED,
    ev.SUSPENDED,
    ev.STUCK,
    ev.QUEUED,
    ev.BUDGETED,
    ev.BRANCHED,
    ev.RECALLED,
    ev.MEMORY_NAMED,
    ev.ANSWERED,
    ev.SIGNALLED,
    ev.CHILD_ENDED,
    ev.REPORTED,
    ev.STEP_RESOLVED,
    ev.STEP_CHECKED,
    ev.STEP_USED,
    ev.WRITE_REFUSED,
}
"""Events that do not show whether the code continued after an operator resolved a step."""
