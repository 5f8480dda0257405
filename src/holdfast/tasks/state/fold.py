"""A task as the fold of its events: what was planned, done, decided and left in doubt.

`apply` takes one event after the other. The events of one holder's parallel steps may be applied in another order than
they are stored in; what is told in order (notes) is sorted by version when it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...backends import StreamKey
from ...log.events import Blob
from ..steps.identity import StepPath, numbered, place_of
from ..steps.usage import Budget, Usage
from . import events as ev
from .view import ENDED, PlanItem, Status
from .waits import TaskWaits

CHILD = "child"
"""The kind of a step that is a child task; its key is the child's id."""
SPARED = 4
"""Of the deaths of a run that was busy with a child, each so many count as one."""


class StepRecord:
    """One step: how it was last started, and how it ended, if it did.

    `state` is "started", "completed", "failed" or "retrying" (failed or settled so that the next run does it again).
    """

    # Defaults of the class, not of each instance: a step is made for each that runs, and most of this is never set.
    state = "started"
    run = version = 0
    args = mode = code = message = ""
    origin, nth = "", 0
    """The arguments it was first started with, and which of the calls with them it was: its idempotency key is made from that."""
    beside = False
    """Another of its name was running, or it was asked for in another thread."""
    kind, how = "tool", "ran"
    model: str | None = None
    attempts = 1
    started_at = 0.0
    ended_at: float | None = None
    result: msgspec.Raw | None = None
    blob: Blob | None = None
    blob_owner: StreamKey | None = None
    reply: ev.Reply | None = None
    """Where its result is, if that is a message. Kept when it is run again, until there is another."""
    error: str | None = None
    causes: Sequence[str] = ()
    doubt = False
    cursor: msgspec.Raw | None = None
    done: float | None = None
    total: float | None = None
    progress_at = 0.0
    usage: Usage | None = None
    model_input: Sequence[ev.ModelInputPart] = ()
    _place: StepPath | None = None

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def place(self) -> StepPath:
        """Its path taken apart. When asked for: while a task runs, nobody does."""
        if self._place is None:
            self._place = place_of(self.path)
        return self._place

    def in_doubt(self, run: int | None) -> bool:
        """Whether nobody knows if it was done. `run` is the one that is under way, if any: what it has started, it is at."""
        if not self.mode:
            return False
        return (self.state == "started" and self.run != run) or (
            self.state == "failed" and self.doubt
        )


class NoteRecord(msgspec.Struct, frozen=True):
    """A decision or a discovery, at its place."""

    version: int
    at: float
    text: str
    why: str | None
    step: str


class Attachment(msgspec.Struct, frozen=True):
    """What is attached under a name. `owner` is the task whose life its content belongs to: a fork has its parent's."""

    version: int
    at: float
    owner: StreamKey
    name: str
    blob: Blob


class TaskState:
    """Everything that is known of a task."""

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
        """How many runs in a row were killed, or failed, without getting any further."""
        self.ends = 0
        """How often it was recorded that it has failed, or was given up; it may have gone on since."""
        self.waits = TaskWaits()
        self.suspended_on = ev.TaskSuspended()
        self.plan: list[PlanItem] = []
        self.plan_paths: dict[str, int] = {}
        self.plans: dict[str, list[PlanItem]] = {}
        self.steps: dict[str, StepRecord] = {}
        self.decisions: list[NoteRecord] = []
        self.discoveries: list[NoteRecord] = []
        self.noted: set[str] = set()
        self.attached: dict[str, Attachment] = {}
        self.recalled: dict[str, None] = {}
        """Texts of memories that its model was told."""
        self.usage = Usage()
        self.budget: Budget | None = None
        self.texts: dict[str, bytes] = {}
        """What models saw beside conversations, by its digest."""
        self.result: bytes = b"null"
        self.error: tuple[str, str] | None = None
        self.orphaned: list[str] = []
        self.drift: list[list[str]] = []
        self._spared = 0
        self._before: tuple[Status, tuple[str, str] | None] = (
            "pending",
            None,
        )  # how it stood before the newest run
        self._trailing: list[StepRecord] = []  # steps whose failure is the last that was heard

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def apply(self, key: StreamKey, version: int, at: float, name: str, event: Any) -> None:
        """Take the next event. `key` is the stream it is from: a fork begins with events of its parent."""
        if version > self.version and key == self.key:
            self.version = version
        if at > self.updated_at:
            self.updated_at = at
        _APPLY[name](self, key, version, at, event)
        if self._trailing and name not in _SAYS_NOTHING:
            self._trailing.clear()

    # -- the task --------------------------------------------------------------------------------

    def _created(self, _key: StreamKey, _version: int, at: float, event: ev.Created) -> None:
        self.goal, self.agent, self.salt, self.ttl = event.goal, event.agent, event.salt, event.ttl
        self.parent, self.budget, self.subject = event.parent, event.budget, event.subject
        self.input = bytes(event.input)
        self.created_at = at

    def _branched(self, _key: StreamKey, _version: int, at: float, _event: ev.Branched) -> None:
        """What its parent did is done. Who held it and how it ended, is the parent's affair."""
        self.created_at = at
        self.status, self.owner, self.result, self.error = "pending", None, b"null", None
        self.parent, self.crashes, self.failures = None, 0, 0
        self.suspended_on = ev.TaskSuspended()

    def _claimed(self, _key: StreamKey, _version: int, _at: float, event: ev.Claimed) -> None:
        # The program did not go on after these failures, as far as anybody knows: they may be what ended it.
        for step in self._trailing:
            if step.state == "failed" and not step.doubt:
                step.state = "retrying"
        self._trailing.clear()
        if self.owner is not None and not event.stolen:
            counts = self.counts_as_crash(event)
            self.crashes, self._spared = self.crashes + counts, 0 if counts else self._spared + 1
        self.waits.children.clear()
        self.suspended_on = ev.TaskSuspended()
        self._before = self.status, self.error
        self.runs += 1
        self.status, self.owner = "running", event.owner
        self.error, self.orphaned, self.drift = None, [], []

    def counts_as_crash(self, claim: ev.Claimed) -> bool:
        """Whether a claim says that a run was killed, and that counts.

        If it was busy with a child, that one counts for itself and may have got further: so not every death counts.
        """
        if self.owner is None or claim.stolen:
            return False
        in_child = any(
            s.kind == CHILD and s.state == "started" and s.run == self.runs
            for s in self.steps.values()
        )
        return not in_child or self._spared + 1 >= SPARED

    def _planned(self, _key: StreamKey, _version: int, _at: float, event: ev.Planned) -> None:
        self.plan = self.plans[event.id] = event.items
        self.plan_paths = {
            path: index for index, path in enumerate(event.paths or paths_of(event.items))
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
            # What a fork has from its parent comes first; versions of two streams cannot be compared.
            notes.append(NoteRecord(version if own else 0, at, event.text, event.why, event.step))

    def _attached(self, key: StreamKey, version: int, at: float, event: ev.Attached) -> None:
        known = self.attached.get(event.name)
        if known is None or known.owner != key or known.version < version:
            self.attached[event.name] = Attachment(version, at, key, event.name, event.blob)

    def _recalled(self, _key: StreamKey, _version: int, _at: float, event: ev.Recalled) -> None:
        self.recalled.update(dict.fromkeys(event.texts))

    def _budgeted(self, _key: StreamKey, _version: int, _at: float, event: ev.Budgeted) -> None:
        self.budget = event.budget

    def _left(self, _key: StreamKey, _version: int, _at: float, event: ev.Left) -> None:
        self.status, self.owner = "pending", None
        if event.looked:
            self.status, self.error = self._before
        self.orphaned, self.drift = event.orphaned, event.drift
        if not event.why:  # not interrupted: it had gone on after whatever failed
            self._trailing.clear()

    def _failed(self, _key: StreamKey, _version: int, _at: float, event: ev.Failed) -> None:
        self.status = "failed" if event.retry_at is None else "retrying"
        self.owner, self.error = None, (event.type, event.message)
        self.failures += 1
        self.ends += 1
        self.orphaned, self.drift = event.orphaned, event.drift
        self._try_again(event.steps)

    def _try_again(self, paths: Iterable[str]) -> None:
        """These have failed, and the program did not go on without them."""
        for path in paths:
            step = self.steps.get(path)
            if step is not None and step.state == "failed" and not step.doubt:
                step.state = "retrying"

    def _cancelled(self, _key: StreamKey, _version: int, _at: float, _event: ev.Cancelled) -> None:
        self.status, self.owner = "cancelled", None

    def _finished(self, _key: StreamKey, _version: int, _at: float, event: ev.Finished) -> None:
        self.status, self.owner, self.result = "finished", None, bytes(event.result)
        self.orphaned, self.drift = event.orphaned, event.drift

    # -- waiting ---------------------------------------------------------------------------------

    def _asked(self, _key: StreamKey, version: int, at: float, event: ev.Asked) -> None:
        self.waits.asked(version, at, event)

    def _answered(self, _key: StreamKey, _version: int, at: float, event: ev.Answered) -> None:
        self.waits.answered(at, event)
        self.crashes = self.failures = 0
        self._wake()

    def _signalled(self, _key: StreamKey, _version: int, _at: float, event: ev.Signalled) -> None:
        self.waits.signalled(event)
        self._wake()

    def _child_ended(
        self, _key: StreamKey, _version: int, _at: float, event: ev.ChildEnded
    ) -> None:
        self.waits.children[event.child] = event.status
        self._wake()

    def _wake(self) -> None:
        """Whoever waited for what has just come, waits no longer."""
        if self.status == "suspended" and self.waits.is_ready(
            self.suspended_on.waits, self.suspended_on.children
        ):
            self.status = "pending"
        elif self.status == "failed" and self.agent is not None:
            self.status = "pending"  # a worker tries it again

    def _suspended(
        self, _key: StreamKey, _version: int, _at: float, event: ev.TaskSuspended
    ) -> None:
        self.status, self.owner, self.suspended_on = "suspended", None, event
        self._wake()

    def _queued(self, _key: StreamKey, _version: int, _at: float, _event: ev.Queued) -> None:
        self.crashes = self.failures = 0
        if self.owner is None:
            self.status, self.error = "pending", None

    def _parked(self, _key: StreamKey, _version: int, _at: float, event: ev.Parked) -> None:
        why = f"its process died {event.crashes} times in a row without getting any further"
        self.status, self.owner, self.error = "stuck", None, ("stuck", why)
        self.ends += 1

    def _nothing(self, _key: StreamKey, _version: int, _at: float, _event: ev.TaskEvent) -> None:
        """A heartbeat, a fork, or word to the parent."""

    # -- its steps -------------------------------------------------------------------------------

    def _step(self, version: int, at: float, event: ev.StepEvent) -> StepRecord:
        """The step of an event, with what the event tells of its start."""
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
            step.beside = step.beside or event.beside
            step.args, step.mode, step.kind, step.code = (
                event.args,
                event.mode,
                event.kind,
                event.code,
            )
            step.model = event.model
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
        """Whether a step has ended in this run already: its start was written lazily, and arrived after its end."""
        step = self.steps.get(event.step)
        return step is not None and step.run == self.runs and step.state in ("completed", "failed")

    def _step_started(self, _key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        # The start of a `once` or `check` step is never lazy: after an end, it is begun anew.
        if not event.mode and self._is_late(event):
            return
        step = self._step(version, at, event)
        step.state, step.started_at, step.ended_at, step.error, step.doubt = (
            "started",
            event.since or at,
            None,
            None,
            False,
        )

    def _step_progressed(
        self, _key: StreamKey, version: int, at: float, event: ev.StepEvent
    ) -> None:
        if self._is_late(event):
            return
        step = self._step(version, at, event)
        if event.args:  # it tells the start too
            step.state, step.ended_at, step.error, step.doubt = "started", None, None, False
        if step.cursor != event.cursor:
            self.crashes = self.failures = 0
        step.cursor, step.done, step.total, step.progress_at = (
            event.cursor,
            event.done,
            event.total,
            at,
        )

    def _step_completed(self, key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        step = self._step(version, at, event)
        self.crashes = self.failures = 0
        step.state, step.ended_at, step.how, step.error, step.doubt = (
            "completed",
            at,
            event.how,
            None,
            False,
        )
        step.result, step.blob, step.blob_owner = (
            event.result,
            event.blob,
            key if event.blob else None,
        )
        step.cursor, step.reply = None, event.reply

    def _step_failed(self, _key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        if event.again and self._is_late(event):
            return
        step = self._step(version, at, event)
        step.error, step.message, step.ended_at = event.error or "", event.message, at
        if event.again:
            step.state = "started"
            self._try_again(event.causes)
        else:
            step.state, step.doubt, step.causes = "failed", event.doubt, event.causes
            self._trailing.append(step)

    def _step_settled(self, key: StreamKey, version: int, at: float, event: ev.StepEvent) -> None:
        step = self.steps.get(event.step)
        if step is None:
            return
        step.version, step.doubt = version, False
        if event.again:
            step.state = "retrying"
            self._try_again(step.causes)  # the steps inside it whose failure it was
        else:
            step.state, step.ended_at, step.how, step.error = "completed", at, "resolved", None
            step.result, step.blob, step.blob_owner = (
                event.result,
                event.blob,
                key if event.blob else None,
            )
        if self.agent is not None and self.owner is None and not self.is_blocked(None):
            self.status = "pending"

    def is_blocked(self, run: int | None) -> bool:
        """Whether no worker may go on: a step without a check is in doubt. One with a check settles itself when it runs."""
        return any(step.in_doubt(run) and step.mode == "once" for step in self.steps.values())

    def _step_used(self, _key: StreamKey, _version: int, _at: float, event: ev.StepEvent) -> None:
        """What a step had used that was cut off."""
        if event.usage is not None:
            step = self.steps.get(event.step)
            if step is None:  # its start was not told, because it was asked for again meanwhile
                self.usage += event.usage
            else:
                self._used(step, event.usage)


def paths_of(plan: list[PlanItem]) -> list[str]:
    """The step path of each item of a plan: the n-th of a name is the n-th step of that name at the top level."""
    counts: dict[str, int] = {}
    paths = []
    for item in plan:
        name = name_of(item)
        counts[name] = counts.get(name, 0) + 1
        paths.append(numbered("", name, counts[name]))
    return paths


def name_of(item: PlanItem) -> str:
    return item if isinstance(item, str) else str(item["name"])


_APPLY: dict[str, Any] = {
    ev.CREATED: TaskState._created,
    ev.BRANCHED: TaskState._branched,
    ev.CLAIMED: TaskState._claimed,
    ev.RENEWED: TaskState._nothing,
    ev.FORKED: TaskState._nothing,
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
    ev.REPORTED: TaskState._nothing,
    ev.QUEUED: TaskState._queued,
    ev.PARKED: TaskState._parked,
    ev.BUDGETED: TaskState._budgeted,
    ev.LEFT: TaskState._left,
    ev.FAILED: TaskState._failed,
    ev.CANCELLED: TaskState._cancelled,
    ev.FINISHED: TaskState._finished,
    ev.STEP_STARTED: TaskState._step_started,
    ev.STEP_PROGRESSED: TaskState._step_progressed,
    ev.STEP_COMPLETED: TaskState._step_completed,
    ev.STEP_FAILED: TaskState._step_failed,
    ev.STEP_SETTLED: TaskState._step_settled,
    ev.STEP_USED: TaskState._step_used,
}
_SAYS_NOTHING = {
    ev.RENEWED,
    ev.FORKED,
    ev.BRANCHED,
    ev.RECALLED,
    ev.LEFT,
    ev.STEP_FAILED,
    ev.STEP_SETTLED,
    ev.ANSWERED,
    ev.SIGNALLED,
    ev.CHILD_ENDED,
    ev.QUEUED,
    ev.STEP_USED,
}
"""After these nobody can tell whether the program went on after a failed step."""
