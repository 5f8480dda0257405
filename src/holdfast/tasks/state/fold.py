"""The state of a task, derived from its events: plan, steps, notes, waits and how it ended.

`TaskState.apply` takes one event after the other. Events of parallel steps of a run may be applied
in another order than they are stored in; notes are sorted by version when they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...backends import StreamKey
from ...log.events import Blob
from ..steps.paths import StepPath, numbered_path, parse_path
from ..steps.usage import Budget, Usage
from . import events as ev
from .view import ENDED, PlanItem, Status
from .waits import TaskWaits

CHILD = "child"
"""The kind of a step that is a child task; its key is the child's id."""
CHILD_CRASHES_PER_COUNT = 4
"""Crashes while a child runs count once per this many: the child counts its own."""


class StepRecord:
    """One step: its last start and, if it ended, its end.

    `state` is "started", "completed", "failed" or "retrying" (the next run does it again, after a
    failure or because an operator resolved it so).
    """

    # Defaults of the class, not of each instance: one is created per step that runs, and most of
    # these are never set.
    state = "started"
    run = version = 0
    args = mode = code = message = ""
    origin, nth = "", 0
    """The fingerprint of its first arguments, and which call with them it was. The idempotency key
    is derived from these."""
    parallel = False
    """Another step of its name was running, or another thread called it."""
    kind, how = "tool", "ran"
    model: str | None = None
    attempts = 1
    started_at = 0.0
    ended_at: float | None = None
    result: msgspec.Raw | None = None
    blob: Blob | None = None
    blob_owner: StreamKey | None = None
    reply: ev.Reply | None = None
    """The place of its result, if that is a message. A rerun keeps it until there is a new one."""
    error: str | None = None
    causes: Sequence[str] = ()
    doubt = False
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
    """An attached file. `owner` is the task that stores it: a fork may use its parent's."""

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
        self.crashes = self.failures = 0
        """How many runs in a row were killed, or failed, without progress."""
        self.ends = 0
        """How many times the task was recorded as failed or stuck; it may have resumed since."""
        self.waits = TaskWaits()
        self.suspended_on = ev.TaskSuspended()
        self.plan: list[PlanItem] = []
        self.plan_paths: dict[str, int] = {}
        self.plans: dict[str, list[PlanItem]] = {}
        self.steps: dict[str, StepRecord] = {}
        self.decisions: list[NoteRecord] = []
        self.discoveries: list[NoteRecord] = []
        self.noted: set[str] = set()
        self.attached: dict[str, AttachedFile] = {}
        self.recalled: dict[str, None] = {}
        """Texts of memories that its model was shown."""
        self.usage = Usage()
        self.budget: Budget | None = None
        self.texts: dict[str, bytes] = {}
        """Inputs of models that are not from conversations, by digest."""
        self.result: bytes = b"null"
        self.error: tuple[str, str] | None = None
        self.orphaned: list[str] = []
        self.drift: list[list[str]] = []
        self._uncounted_crashes = 0
        self._before: tuple[Status, tuple[str, str] | None] = ("pending", None)
        """Status and error before the newest run."""
        self._trailing: list[StepRecord] = []
        """Steps that failed, with no later event that shows that the code continued."""

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

    # -- the task --------------------------------------------------------------------------------

    def _created(self, _key: StreamKey, _version: int, at: float, event: ev.Created) -> None:
        self.goal, self.agent, self.salt, self.ttl = event.goal, event.agent, event.salt, event.ttl
        self.parent, self.budget, self.subject = event.parent, event.budget, event.subject
        self.input = bytes(event.input)
        self.created_at = at

    def _branched(self, _key: StreamKey, _version: int, at: float, _event: ev.Branched) -> None:
        """Keep what the parent did, and forget its lease owner and its end."""
        self.created_at = at
        self.status, self.owner, self.result, self.error = "pending", None, b"null", None
        self.parent, self.crashes, self.failures = None, 0, 0
        self.suspended_on = ev.TaskSuspended()

    def _claimed(self, _key: StreamKey, _version: int, _at: float, event: ev.Claimed) -> None:
        # Nothing shows that the code continued after these failures: they may have ended the run.
        for step in self._trailing:
            if step.state == "failed" and not step.doubt:
                step.state = "retrying"
        self._trailing.clear()
        if self.owner is not None and not event.stolen:
            counts = self.counts_as_crash(event)
            self.crashes, self._uncounted_crashes = (
                self.crashes + counts,
                0 if counts else self._uncounted_crashes + 1,
            )
        self.waits.children.clear()
        self.suspended_on = ev.TaskSuspended()
        self._before = self.status, self.error
        self.runs += 1
        self.status, self.owner = "running", event.owner
        self.error, self.orphaned, self.drift = None, [], []

    def counts_as_crash(self, claim: ev.Claimed) -> bool:
        """Whether a claim shows that a run was killed, and that crash counts.

        If the run was waiting for a child, the child counts the crash, and it may have progressed.
        So only some of these crashes count.
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
            # A fork has the notes of its parent first: versions of two streams are not comparable.
            notes.append(NoteRecord(version if own else 0, at, event.text, event.why, event.step))

    def _attached(self, key: StreamKey, version: int, at: float, event: ev.Attached) -> None:
        known = self.attached.get(event.name)
        if known is None or known.owner != key or known.version < version:
            self.attached[event.name] = AttachedFile(version, at, key, event.name, event.blob)

    def _recalled(self, _key: StreamKey, _version: int, _at: float, event: ev.Recalled) -> None:
        self.recalled.update(dict.fromkeys(event.texts))

    def _budgeted(self, _key: StreamKey, _version: int, _at: float, event: ev.Budgeted) -> None:
        self.budget = event.budget

    def _released(self, _key: StreamKey, _version: int, _at: float, event: ev.Released) -> None:
        self.status, self.owner = "pending", None
        if event.unchanged:
            self.status, self.error = self._before
        self.orphaned, self.drift = event.orphaned, event.drift
        if not event.why:  # not interrupted: the code continued after the failures
            self._trailing.clear()

    def _failed(self, _key: StreamKey, _version: int, _at: float, event: ev.Failed) -> None:
        self.status = "failed" if event.retry_at is None else "retrying"
        self.owner, self.error = None, (event.type, event.message)
        self.failures += 1
        self.ends += 1
        self.orphaned, self.drift = event.orphaned, event.drift
        self._mark_retrying(event.steps)

    def _mark_retrying(self, paths: Iterable[str]) -> None:
        """Mark failed steps for a retry: the code did not continue without them."""
        for path in paths:
            step = self.steps.get(path)
            if step is not None and step.state == "failed" and not step.doubt:
                step.state = "retrying"

    def _cancelled(self, _key: StreamKey, _version: int, _at: float, _event: ev.Cancelled) -> None:
        self.status, self.owner = "cancelled", None

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
        self, _key: StreamKey, _version: int, _at: float, event: ev.TaskSuspended
    ) -> None:
        self.status, self.owner, self.suspended_on = "suspended", None, event
        self._wake()

    def _queued(self, _key: StreamKey, _version: int, _at: float, _event: ev.Queued) -> None:
        self.crashes = self.failures = 0
        if self.owner is None:
            self.status, self.error = "pending", None

    def _stuck(self, _key: StreamKey, _version: int, _at: float, event: ev.MarkedStuck) -> None:
        why = f"its process died {event.crashes} times in a row without progress"
        self.status, self.owner, self.error = "stuck", None, ("stuck", why)
        self.ends += 1

    def _ignore(self, _key: StreamKey, _version: int, _at: float, _event: ev.TaskEvent) -> None:
        """Ignore a heartbeat, a fork, or a report to the parent."""

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
            step.args, step.mode, step.kind = event.args, event.mode, event.kind
            step.code, step.model = event.code, event.model
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

    def _used(self, step: StepRecord, usage: Usage) -> None:
        self.usage += usage
        step.usage = usage if step.usage is None else step.usage + usage

    def _is_late(self, event: ev.StepEvent) -> bool:
        """Whether the step has already ended in this run: lazy events are written after the end."""
        step = self.steps.get(event.step)
        return step is not None and step.run == self.runs and step.state in ("completed", "failed")

    def _step_started(self, _key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        # The start of a `once` or `check` step is never lazy: after an end, it is a new start.
        if not event.mode and self._is_late(event):
            return
        step = self._step(version, at, event)
        step.state, step.started_at = "started", event.since or at
        step.ended_at, step.error, step.doubt = None, None, False

    def _step_progressed(
        self, _key: StreamKey, version: int, at: float, event: ev.StepEvent
    ) -> None:
        if self._is_late(event):
            return
        step = self._step(version, at, event)
        if event.args:  # it also describes the start
            step.state, step.ended_at, step.error, step.doubt = "started", None, None, False
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
        step.result, step.blob = event.result, event.blob
        step.blob_owner = key if event.blob else None

    def _step_failed(self, _key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        if event.again and self._is_late(event):
            return
        step = self._step(version, at, event)
        step.error, step.message, step.ended_at = event.error or "", event.message, at
        if event.again:
            step.state = "started"
            self._mark_retrying(event.causes)
        else:
            step.state, step.doubt, step.causes = "failed", event.doubt, event.causes
            self._trailing.append(step)

    def _step_resolved(self, key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        step = self.steps.get(event.step)
        if step is None:
            return
        step.version, step.doubt = version, False
        if event.again:
            step.state = "retrying"
            self._mark_retrying(step.causes)  # the inner steps that caused its failure
        else:
            self._complete(step, key, at, event, "resolved")
        if self.agent is not None and self.owner is None and not self.is_blocked(None):
            self.status = "pending"

    def is_blocked(self, run: int | None) -> bool:
        """Whether a `once` step is in doubt, so that no worker may resume the task.

        A `check` step resolves itself when it runs.
        """
        return any(step.in_doubt(run) and step.mode == "once" for step in self.steps.values())

    def _step_used(self, _key: StreamKey, _version: int, _at: float, event: ev.StepEvent) -> None:
        """Count the usage of a step that was interrupted."""
        if event.usage is not None:
            step = self.steps.get(event.step)
            if step is None:  # its start was not written: it was called again
                self.usage += event.usage
            else:
                self._used(step, event.usage)


def plan_step_paths(plan: list[PlanItem]) -> list[str]:
    """Return the step path of each item of a plan.

    The n-th item of a name is the n-th step of that name at the top level.
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
    ev.FINISHED: TaskState._finished,
    ev.STEP_STARTED: TaskState._step_started,
    ev.STEP_PROGRESSED: TaskState._step_progressed,
    ev.STEP_COMPLETED: TaskState._step_completed,
    ev.STEP_FAILED: TaskState._step_failed,
    ev.STEP_RESOLVED: TaskState._step_resolved,
    ev.STEP_USED: TaskState._step_used,
}
_NEUTRAL_EVENTS = {
    ev.RENEWED,
    ev.FORKED,
    ev.BRANCHED,
    ev.RECALLED,
    ev.RELEASED,
    ev.STEP_FAILED,
    ev.STEP_RESOLVED,
    ev.ANSWERED,
    ev.SIGNALLED,
    ev.CHILD_ENDED,
    ev.QUEUED,
    ev.STEP_USED,
}
"""Events that do not show whether the code continued after a failed step."""
