"""The events of a task, as they are stored.

Results stand last and are kept raw: folding a task does not decode them. A result over 64 KiB is a blob that the event names,
so that what a task has done can be told without loading what it has produced.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...backends import StreamKey
from ...errors import CorruptRecord, UnsupportedVersion
from ...log.blobs import FILE_EVENT
from ...log.codec.types import building
from ...log.events import Blob, NewEvent
from ..steps.identity import is_path
from ..steps.usage import Budget, Usage

KIND: Final = "task"

CREATED: Final = "task.created"
BRANCHED: Final = "task.branched"
CLAIMED: Final = "task.claimed"
RENEWED: Final = "task.renewed"
PLANNED: Final = "task.planned"
DECIDED: Final = "task.decided"
DISCOVERED: Final = "task.discovered"
RECALLED: Final = "task.recalled"
ASKED: Final = "task.asked"
ANSWERED: Final = "task.answered"
SIGNALLED: Final = "task.signalled"
SUSPENDED: Final = "task.suspended"
CHILD_ENDED: Final = "task.child_ended"
REPORTED: Final = "task.reported"
QUEUED: Final = "task.queued"
PARKED: Final = "task.parked"
BUDGETED: Final = "task.budgeted"
LEFT: Final = "task.left"
FAILED: Final = "task.failed"
CANCELLED: Final = "task.cancelled"
FINISHED: Final = "task.finished"
FORKED: Final = "task.forked"
STEP_STARTED: Final = "step.started"
STEP_PROGRESSED: Final = "step.progressed"
STEP_COMPLETED: Final = "step.completed"
STEP_FAILED: Final = "step.failed"
STEP_SETTLED: Final = "step.settled"
STEP_USED: Final = "step.used"
ATTACHED: Final = FILE_EVENT


class TaskEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of what an event holds."""


class Parent(msgspec.Struct, frozen=True):
    """Whose child a task is: the parent's id, and which life of it."""

    id: str
    incarnation: str = msgspec.field(name="life")


class Created(TaskEvent, frozen=True, omit_defaults=True):
    """The admission: durable before any work. `salt` keys the fingerprints of arguments, so that they tell nothing."""

    salt: str
    ttl: float | None
    goal: str | None = None
    agent: str | None = None
    parent: Parent | None = None
    budget: Budget | None = None
    subject: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"null")


class Branched(TaskEvent, frozen=True, omit_defaults=True):
    """The first event of a fork: it begins with the events 1 to `at` of that life of its parent."""

    parent: str
    incarnation: str = msgspec.field(name="life")
    at: int


class Forked(TaskEvent, frozen=True, omit_defaults=True):
    """A fork was taken at version `at`."""

    child: str
    at: int


class Claimed(TaskEvent, frozen=True, omit_defaults=True):
    """A run begins."""

    owner: str = msgspec.field(name="holder")
    lease: float
    stolen: bool = False


class Renewed(TaskEvent, frozen=True, omit_defaults=True):
    """The holder is alive."""

    owner: str = msgspec.field(name="holder")


class Planned(TaskEvent, frozen=True, omit_defaults=True):
    """The plan from now on. `id` tells repeated calls on resume from new ones. `paths`: the steps that the items are, if not as they are counted."""

    id: str
    items: list[Any]
    paths: list[str] = []


class Noted(TaskEvent, frozen=True, omit_defaults=True):
    """A decision or a discovery. `id` tells repeated calls on resume from new ones."""

    id: str
    text: str
    why: str | None = None
    step: str = ""


class Attached(TaskEvent, frozen=True, omit_defaults=True):
    """A file was attached: from now on it is what is under that name. Its content was stored before."""

    name: str
    blob: Blob


class Recalled(TaskEvent, frozen=True, omit_defaults=True):
    """Memories that the model was told, as far as it was told them: what it repeats of them is nothing new."""

    ids: list[str]
    texts: list[str]


class Asked(TaskEvent, frozen=True, omit_defaults=True):
    """The task waits: for the answer to a question, for a signal, or until a time. `wait` names it among all that the task waits for.

    `schema` says what an answer looks like, as JSON Schema. `until`: the time it waits for, or after which it waits no longer.
    """

    wait: str
    kind: str
    name: str = ""
    question: str = ""
    until: float | None = None
    schema: Any = None
    payload: msgspec.Raw = msgspec.Raw(b"null")


class Answered(TaskEvent, frozen=True, omit_defaults=True):
    """A wait is over. `how`: "answered", "signalled" (by the `signal`-th of that name), "passed" (the time) or "timeout".

    Or "unfit": that signal is of another type and was set aside; the wait goes on.
    """

    wait: str
    how: str = "answered"
    by: str | None = None
    signal: int = 0
    value: msgspec.Raw = msgspec.Raw(b"null")


class Signalled(TaskEvent, frozen=True, omit_defaults=True):
    """Something happened that the task may be waiting for, now or later."""

    name: str
    payload: msgspec.Raw = msgspec.Raw(b"null")


class TaskSuspended(TaskEvent, frozen=True, omit_defaults=True):
    """The holder gave the task back until one of `waits` is over, or one of `children` has ended."""

    waits: list[str] = []
    children: list[str] = []


class ChildEnded(TaskEvent, frozen=True, omit_defaults=True):
    """A child has ended on its own: the parent can go on."""

    child: str
    status: str


class Reported(TaskEvent, frozen=True, omit_defaults=True):
    """The parent knows that this task has ended."""


class Queued(TaskEvent, frozen=True, omit_defaults=True):
    """It is to be run by a worker. What had gone wrong before does not count any more."""

    at: float | None = None


class Parked(TaskEvent, frozen=True, omit_defaults=True):
    """Its process died so many times in a row that no worker tries it again by itself."""

    crashes: int


class Budgeted(TaskEvent, frozen=True, omit_defaults=True):
    """Somebody opened the task with another budget, which counts from now on."""

    budget: Budget


class Left(TaskEvent, frozen=True, omit_defaults=True, rename={"orphaned": "unasked"}):
    """The holder gave the task back without ending it. `looked`: and as it was before."""

    orphaned: list[str] = []
    drift: list[list[str]] = []
    why: str = ""
    looked: bool = False


class Failed(TaskEvent, frozen=True, omit_defaults=True, rename={"orphaned": "unasked"}):
    """A run ended with an exception. `steps` are those whose failure it was: the next run tries them again."""

    type: str
    message: str
    steps: list[str] = []
    orphaned: list[str] = []
    drift: list[list[str]] = []
    retry_at: float | None = None


class Cancelled(TaskEvent, frozen=True, omit_defaults=True):
    reason: str | None = None


class Finished(TaskEvent, frozen=True, omit_defaults=True, rename={"orphaned": "unasked"}):
    orphaned: list[str] = []
    drift: list[list[str]] = []
    result: msgspec.Raw = msgspec.Raw(b"null")


class ModelInputPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of what a model saw: messages of a conversation when it stood at version `at`, from one version to another; none: all.

    Or what was beside them, by its digest; the first in the task to have it holds the `text` too, a list of messages.
    """

    conversation: str = ""
    incarnation: str = msgspec.field(default="", name="life")
    at: int = 0
    versions: list[tuple[int, int]] = []
    digest: str = ""
    text: msgspec.Raw = msgspec.Raw(b"")


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the result of a step is: in that life of a conversation, the message at a version of it. `base` as in its fold."""

    conversation: str
    incarnation: str = msgspec.field(name="life")
    version: int
    base: int = 0


class StepEvent(TaskEvent, frozen=True, omit_defaults=True, rename={"model_input": "saw"}):
    """What happened to a step. One shape for all: an end that comes before its start was written tells the start too."""

    step: str
    args: str = ""
    nth: int = 0
    beside: bool = False
    mode: str = ""
    kind: str = "tool"
    code: str = ""
    model: str | None = None
    attempt: int = 1
    since: float | None = None
    how: str = "ran"
    error: str | None = None
    message: str = ""
    causes: list[str] = []
    doubt: bool = False
    again: bool = False
    done: float | None = None
    total: float | None = None
    cursor: msgspec.Raw = msgspec.Raw(b"null")
    usage: Usage | None = None
    model_input: tuple[ModelInputPart, ...] = ()
    reply: Reply | None = None
    blob: Blob | None = None
    result: msgspec.Raw = msgspec.Raw(b"")


_TYPES: dict[str, type[TaskEvent]] = {
    CREATED: Created,
    BRANCHED: Branched,
    FORKED: Forked,
    CLAIMED: Claimed,
    RENEWED: Renewed,
    PLANNED: Planned,
    DECIDED: Noted,
    DISCOVERED: Noted,
    ATTACHED: Attached,
    RECALLED: Recalled,
    ASKED: Asked,
    ANSWERED: Answered,
    SIGNALLED: Signalled,
    SUSPENDED: TaskSuspended,
    CHILD_ENDED: ChildEnded,
    REPORTED: Reported,
    QUEUED: Queued,
    PARKED: Parked,
    BUDGETED: Budgeted,
    LEFT: Left,
    FAILED: Failed,
    CANCELLED: Cancelled,
    FINISHED: Finished,
    STEP_STARTED: StepEvent,
    STEP_PROGRESSED: StepEvent,
    STEP_COMPLETED: StepEvent,
    STEP_FAILED: StepEvent,
    STEP_SETTLED: StepEvent,
    STEP_USED: StepEvent,
}
_decoders: dict[
    str, msgspec.json.Decoder[Any]
] = {}  # made when they are first needed: all at once would be felt
encoded = msgspec.json.Encoder().encode


def new_event(name: str, data: TaskEvent) -> NewEvent:
    return NewEvent(name, encoded(data))


def opened(key: StreamKey, version: int, name: str, data: bytes) -> TaskEvent:
    """What an event holds, or `CorruptRecord`: whoever can write to the store can write anything."""
    decoder = _decoders.get(name)
    if decoder is None:
        if name not in _TYPES:
            raise UnsupportedVersion(
                f"{key} holds an event that this Holdfast does not know (version {version}); use a newer one"
            )
        with building:
            decoder = _decoders[name] = msgspec.json.Decoder(_TYPES[name])
    try:
        event: TaskEvent = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise CorruptRecord(str(key), version=version, what=f"it is not a {name!r} event") from None
    if isinstance(event, Planned) and event.paths and not _are_paths(event):
        raise CorruptRecord(
            str(key), version=version, what="it holds a plan whose items are no steps"
        )
    if isinstance(event, Planned) and not all(map(is_plan_item, event.items)):
        raise CorruptRecord(
            str(key), version=version, what="it holds a plan whose items have no names"
        )
    if isinstance(event, Attached) and (event.blob.size < 0 or not event.name):
        raise CorruptRecord(
            str(key), version=version, what="it holds an artifact without a name or a size"
        )
    if isinstance(event, StepEvent) and not is_path(event.step):
        raise CorruptRecord(str(key), version=version, what="it is of a step without a proper path")
    return event


def _are_paths(plan: Planned) -> bool:
    return len(set(plan.paths)) == len(plan.items) == len(plan.paths) and all(
        map(is_path, plan.paths)
    )


def is_plan_item(item: object) -> bool:
    name = item.get("name") if type(item) is dict else item
    return type(name) is str and name != ""
