"""Find the notifications in a task's events, which are their only source."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Literal, get_args

import msgspec

from ..backends import StreamKey
from ..backends.clock import to_datetime
from ..log import operations as ops
from ..log.operations import Operation
from ..tasks.control.shell_command import format_command
from ..tasks.state import events as ev
from ..tasks.state.fold import StepRecord, TaskState
from ..tasks.state.load import load_task
from ..tasks.state.waits import ASK

NotificationKind = Literal["question", "failed", "retrying", "doubt", "stuck", "budget"]
KINDS: Final[tuple[NotificationKind, ...]] = get_args(NotificationKind)
"""All kinds of notifications.

question: the task waits for a person's answer. failed: no worker will try the task again. retrying:
a run failed, and a worker will retry it. doubt: the outcome of a step is unknown, and a person must
resolve it. stuck: the task's process keeps dying. budget: the task has used up its budget.
"""
DEFAULT_KINDS: Final = tuple(kind for kind in KINDS if kind != "retrying")

_NOTABLE: Final = frozenset({ev.ASKED, ev.FAILED, ev.RELEASED, ev.STUCK})


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a hook receives.

    `id` stays the same when a notification is repeated. `command` shows or resolves the problem,
    with the store in HOLDFAST_URL. `content` is set only for hooks that ask for it.
    """

    id: str
    kind: NotificationKind
    tenant: str
    task: str
    agent: str | None = None
    status: str
    """The task's status when the notification was sent. It may have changed since the event."""
    step: str | None = None
    """The path of the step in doubt."""
    question: str | None = None
    """The name of the question."""
    error: str | None = None
    """The type of the error."""
    at: datetime
    command: str
    content: dict[str, Any] | None = None
    """The task's goal, and the text of the question or the message of the error."""


class Finding(msgspec.Struct, frozen=True):
    """A notification, and the event that it comes from.

    `number` counts the notifications of one event. `at` is when it was stored.
    """

    version: int
    number: int
    at: float
    notification: Notification

    @property
    def position(self) -> tuple[int, int]:
        return self.version, self.number


class TaskFindings(msgspec.Struct, frozen=True):
    """What was found in a task's events up to a version."""

    version: int
    found: list[Finding] = []


def find_notifications(key: StreamKey, incarnation: str, after: int) -> Operation[TaskFindings]:
    """Return what happened in a task after a version, with all content."""
    last, notable = after, False
    while page := (yield from ops.read(key, after=last)):
        last = page[-1].version
        notable = notable or any(stored.envelope.type in _NOTABLE for stored in page)
    if not notable:
        return TaskFindings(last)
    state = _ObservedState(key, incarnation)
    yield from load_task(key, into=state)
    status = state.status
    return TaskFindings(
        state.version,
        [
            msgspec.structs.replace(
                found, notification=msgspec.structs.replace(found.notification, status=status)
            )
            for found in state.found
            if found.version > after
        ],
    )


class _ObservedState(TaskState):
    """The state of a task that collects notifications while its events are applied."""

    def __init__(self, key: StreamKey, incarnation: str) -> None:
        super().__init__(key)
        self.found: list[Finding] = []
        self._incarnation = incarnation
        self._doubts: set[tuple[str, int]] = set()
        """The steps in doubt that were already found, with the versions of their attempts."""

    def apply(self, key: StreamKey, version: int, at: float, name: str, event: Any) -> None:
        super().apply(key, version, at, name, event)
        if name in _NOTABLE:
            notifications = list(self._find(version, at, name, event))
            if key == self.key:  # otherwise it happened in the task that this one was forked from
                self.found += [
                    Finding(version, number, at, each) for number, each in enumerate(notifications)
                ]

    def _find(self, version: int, at: float, name: str, event: Any) -> Iterator[Notification]:
        if name == ev.ASKED:
            if event.kind == ASK:
                content = {"question": event.question}
                yield self._make(version, at, "question", question=event.name, content=content)
        elif name == ev.STUCK:
            yield self._make(version, at, "stuck")
        elif name == ev.FAILED or event.why not in ("stopped", "interrupted"):
            if name == ev.FAILED:
                kind: NotificationKind = "failed" if event.retry_at is None else "retrying"
                if event.type == "BudgetExceeded":
                    kind = "budget"
                content = {"message": event.message}
                yield self._make(version, at, kind, error=event.type, content=content)
            for step in self.steps.values():
                if self._needs_resolution(step, name, event):
                    yield self._make(version, at, "doubt", step=step.path)

    def _needs_resolution(self, step: StepRecord, name: str, event: Any) -> bool:
        """Return whether a person must resolve a step, once for each attempt of it."""
        if not step.in_doubt(None) or (step.path, step.version) in self._doubts:
            return False
        # A step with a check resolves itself in the next run, unless its check failed.
        if step.mode != "once" and (name == ev.FAILED or event.why != "StepInDoubt"):
            return False
        self._doubts.add((step.path, step.version))
        return True

    def _make(
        self,
        version: int,
        at: float,
        kind: NotificationKind,
        *,
        step: str | None = None,
        question: str | None = None,
        error: str | None = None,
        content: dict[str, Any] | None = None,
    ) -> Notification:
        parts = (self.key.tenant, self.key.id, self._incarnation, str(version), kind, step or "")
        digest = sha256()
        for part in parts:
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "big") + raw)
        return Notification(
            id=f"ntf_{digest.hexdigest()[:32]}",
            kind=kind,
            tenant=self.key.tenant,
            task=self.key.id,
            agent=self.agent,
            status=self.status,
            step=step,
            question=question,
            error=error,
            at=to_datetime(at),
            command=_describe_command(self.key, kind, step, question),
            content={"goal": self.goal, **(content or {})},
        )


def _describe_command(
    key: StreamKey, kind: NotificationKind, step: str | None, question: str | None
) -> str:
    """Return the command that resolves the problem, or that shows it."""
    name, arguments, options = "task", [key.id], list[str]()
    if kind == "question" and question is not None:
        name, arguments = "answer", [key.id, question, "JSON"]
    elif kind == "doubt" and step is not None:
        name, arguments, options = "resolve", [key.id, step], ["--retry"]
    elif kind in ("failed", "stuck"):
        name = "retry"
    elif kind == "budget":
        name, options = "retry", ["--budget", "LIMIT"]
    tenant = [] if key.tenant == "default" else ["--tenant", key.tenant]
    return format_command(["holdfast", name, *tenant], arguments, options)
