"""The stored events of a task.

A result comes last in its event and stays raw: replaying a task does not decode it. A result over
64 KiB is a blob that the event references, so that a task can be shown without loading its results.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ...backends import StreamKey
from ...errors import CorruptRecord, UnsupportedVersion
from ...log.codec.types import build_lock
from ...log.events import Blob, NewEvent
from ...log.operations.blobs import FILE_EVENT
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
MEMORY_NAMED: Final = "task.memory_named"
ASKED: Final = "task.asked"
ANSWERED: Final = "task.answered"
SIGNALLED: Final = "task.signalled"
SUSPENDED: Final = "task.suspended"
CHILD_ENDED: Final = "task.child_ended"
REPORTED: Final = "task.reported"
QUEUED: Final = "task.queued"
STUCK: Final = "task.stuck"
BUDGETED: Final = "task.budgeted"
RELEASED: Final = "task.released"
FAILED: Final = "task.failed"
CANCELLED: Final = "task.cancelled"
LINGERED: Final = "task.lingered"
WRITE_REFUSED: Final = "task.write_refused"
FINISHED: Final = "task.finished"
FORKED: Final = "task.forked"
STEP_STARTED: Final = "step.started"
STEP_PROGRESSED: Final = "step.progressed"
STEP_COMPLETED: Final = "step.completed"
STEP_FAILED: Final = "step.failed"
STEP_RESOLVED: Final = "step.resolved"
STEP_ACCEPTED: Final = "step.accepted"
STEP_CHECKED: Final = "step.checked"
STEP_USED: Final = "step.used"
ATTACHED: Final = FILE_EVENT


class TaskEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of the data of all events."""


class Parent(msgspec.Struct, frozen=True):
    """The parent of a child task: its id and incarnation."""

    id: str
    incarnation: str


class TraceFrame(msgspec.Struct, frozen=True, array_like=True):
    """A line of a traceback."""

    file: str
    line: int
    function: str
    source: str = ""


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an exception was raised, outermost frame first, and what caused it.

    After the first frames, `omitted` ones are left out. `step` is set for a `StepFailed`: the event
    of that step has the cause. The cause is `implicit` if the exception was raised while the
    program handled the cause. `skipped` causes are left out before `cause`. `group` has the parts
    of an exception group. The event has the type and message of the first exception.
    """

    type: str = ""
    message: str = ""
    frames: list[TraceFrame] = []
    omitted: int = 0
    step: str = ""
    cause: Trace | None = None
    implicit: bool = False
    skipped: int = 0
    group: list[Trace] = []


class Created(TaskEvent, frozen=True, omit_defaults=True):
    """The task was created. This is durable before any work starts.

    `salt` keys the fingerprints of arguments, so that they reveal nothing.
    """

    salt: str
    ttl: float | None
    goal: str | None = None
    agent: str | None = None
    parent: Parent | None = None
    budget: Budget | None = None
    subject: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"null")


class Branched(TaskEvent, frozen=True, omit_defaults=True):
    """The first event of a fork, which starts with events 1 to `at` of its parent's incarnation.

    `input` replaces the parent's, if there is one.
    """

    parent: str
    incarnation: str
    at: int
    input: msgspec.Raw = msgspec.Raw(b"")


class Forked(TaskEvent, frozen=True, omit_defaults=True):
    """The task was forked at version `at`."""

    child: str
    at: int


class Claimed(TaskEvent, frozen=True, omit_defaults=True):
    """A run starts. `stolen` means that it took the lease from a live owner.

    `alive_at` is set if the run took over from an owner that did not release the task. That owner
    may have been at work until this time, by the database's clock. `timeout` is the task's time
    limit from now on, if it changes.
    """

    owner: str
    lease: float
    stolen: bool = False
    alive_at: float | None = None
    timeout: float | None = None


class Renewed(TaskEvent, frozen=True, omit_defaults=True):
    """A heartbeat of the lease owner."""

    owner: str


class Planned(TaskEvent, frozen=True, omit_defaults=True):
    """The plan from now on.

    `id` distinguishes new calls from calls repeated on resume. `paths` are the step paths of the
    items, if they don't follow from counting the items by name. `steps` are the steps that the
    plan's function requested; no later run calls this function.
    """

    id: str
    items: list[Any]
    paths: list[str] = []
    steps: list[str] = []


class Noted(TaskEvent, frozen=True, omit_defaults=True):
    """A decision or a discovery. `id` distinguishes new calls from calls repeated on resume."""

    id: str
    text: str
    why: str | None = None
    step: str = ""


class Attached(TaskEvent, frozen=True, omit_defaults=True):
    """A file was attached. It replaces a file with the same name. Its content is stored first."""

    name: str
    blob: Blob


class Recalled(TaskEvent, frozen=True, omit_defaults=True):
    """The memories that the model was shown, verbatim. If it repeats them, that isn't evidence."""

    ids: list[str]
    texts: list[str]


class MemoryNamed(TaskEvent, frozen=True, omit_defaults=True):
    """The memory namespace that the agent chose for the task. Written before anything is saved."""

    namespace: str


class Asked(TaskEvent, frozen=True, omit_defaults=True):
    """The task waits for an answer, for a signal, or until a time. `wait` is the id of the wait.

    `schema` is the JSON Schema of an answer. `until` is the time, or the deadline of the wait.
    """

    wait: str
    kind: str
    name: str = ""
    question: str = ""
    until: float | None = None
    schema: Any = None
    payload: msgspec.Raw = msgspec.Raw(b"null")


class Answered(TaskEvent, frozen=True, omit_defaults=True):
    """A wait is over.

    `how` is "answered", "signalled" (by the `signal`-th signal with the name), "passed" (the time
    has come) or "timeout". "unfit" means that the signal has another type and was skipped; the
    wait continues.
    """

    wait: str
    how: str = "answered"
    by: str | None = None
    signal: int = 0
    value: msgspec.Raw = msgspec.Raw(b"null")


class Signalled(TaskEvent, frozen=True, omit_defaults=True):
    """A signal for the task, which may wait for it now or later."""

    name: str
    payload: msgspec.Raw = msgspec.Raw(b"null")


class TaskSuspended(TaskEvent, frozen=True, omit_defaults=True):
    """The run released the task until one of `waits` is over or one of `children` has ended.

    `checks` are steps in doubt whose check must not be called yet.
    """

    waits: list[str] = []
    children: list[str] = []
    checks: list[str] = []


class ChildEnded(TaskEvent, frozen=True, omit_defaults=True):
    """A child has ended on its own, so the parent can resume."""

    child: str
    status: str


class Reported(TaskEvent, frozen=True, omit_defaults=True):
    """The parent has been informed that this task has ended."""


class Queued(TaskEvent, frozen=True, omit_defaults=True):
    """The task is queued for a worker. Earlier crashes, failures and runs no longer count.

    `timeout` is the task's time limit from now on, if it changes.
    """

    at: float | None = None
    timeout: float | None = None


class MarkedStuck(TaskEvent, frozen=True, omit_defaults=True):
    """The task is stuck: its process died `crashes` times in a row, so workers leave it alone."""

    crashes: int


class Budgeted(TaskEvent, frozen=True, omit_defaults=True):
    """The task has a new budget from now on."""

    budget: Budget


class Released(TaskEvent, frozen=True, omit_defaults=True):
    """The run released the task without ending it; if `unchanged`, with the status from before."""

    orphaned: list[str] = []
    drift: list[list[str]] = []
    why: str = ""
    unchanged: bool = False


class Failed(TaskEvent, frozen=True, omit_defaults=True):
    """A run ended with an exception. The next run retries `steps`, whose failures caused it."""

    type: str
    message: str
    steps: list[str] = []
    orphaned: list[str] = []
    drift: list[list[str]] = []
    retry_at: float | None = None
    trace: Trace | None = None


class Cancelled(TaskEvent, frozen=True, omit_defaults=True):
    """The task was cancelled. `by` is the person who did it."""

    reason: str | None = None
    by: str | None = None


class Lingered(TaskEvent, frozen=True, omit_defaults=True):
    """A process still runs these steps of a cancelled task. Without steps: it has ended."""

    owner: str
    steps: list[str] = []


class WriteRefused(TaskEvent, frozen=True, omit_defaults=True):
    """A process that had lost the lease tried to write. Nothing of that write was stored.

    `steps` are those that it was running. It may have had an effect outside the store.
    """

    owner: str
    steps: list[str] = []


class Finished(TaskEvent, frozen=True, omit_defaults=True):
    orphaned: list[str] = []
    drift: list[list[str]] = []
    result: msgspec.Raw = msgspec.Raw(b"null")


class ModelInputPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a model's input: messages of a conversation, or other text.

    Messages are given as version ranges of the conversation as of version `at`, or as all of it if
    there are no ranges. Other text is given by its digest. The first part in the task with that
    digest also has the `text`, a list of messages.
    """

    conversation: str = ""
    incarnation: str = ""
    at: int = 0
    versions: list[tuple[int, int]] = []
    digest: str = ""
    text: msgspec.Raw = msgspec.Raw(b"")


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a step's result: the message at a version of a conversation's incarnation."""

    conversation: str
    incarnation: str
    version: int
    base: int = 0


class StepEvent(TaskEvent, frozen=True, omit_defaults=True):
    """An event of a step. All have these fields, because an end may also have to describe a start.

    `schema` is the JSON Schema of the result of a `once` or `check` step, for the operator who may
    have to resolve the step. `by` names this operator, and `override` tells whether an earlier
    resolution was replaced. `final` means that the step ran and failed because its result cannot be
    stored, so no run repeats it. `function` is the module and name of the function of a `once` or
    `check` step. `mapped` means that the step is an item of a `map` that its scope's own code
    called, not another thread. `expect` is how many seconds the step is expected to run.
    `abandoned` means that it failed because it ran too long, and that its thread may keep running.
    `arguments` are those of a `once` or `check` step, for the operator; those named in `cut` are
    shortened. `idempotency_key` is the key of such a step. `check` is what its check found, in
    words.
    """

    step: str
    args: str = ""
    nth: int = 0
    parallel: bool = False
    mode: str = ""
    kind: str = "tool"
    code: str = ""
    function: str = ""
    mapped: bool = False
    model: str | None = None
    attempt: int = 1
    since: float | None = None
    how: str = "ran"
    error: str | None = None
    message: str = ""
    causes: list[str] = []
    trace: Trace | None = None
    doubt: bool = False
    final: bool = False
    expect: float | None = None
    abandoned: bool = False
    again: bool = False
    by: str | None = None
    override: bool = False
    schema: Any = None
    arguments: msgspec.Raw = msgspec.Raw(b"")
    cut: tuple[str, ...] = ()
    idempotency_key: str = ""
    check: str = ""
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
    MEMORY_NAMED: MemoryNamed,
    ASKED: Asked,
    ANSWERED: Answered,
    SIGNALLED: Signalled,
    SUSPENDED: TaskSuspended,
    CHILD_ENDED: ChildEnded,
    REPORTED: Reported,
    QUEUED: Queued,
    STUCK: MarkedStuck,
    BUDGETED: Budgeted,
    RELEASED: Released,
    FAILED: Failed,
    CANCELLED: Cancelled,
    LINGERED: Lingered,
    WRITE_REFUSED: WriteRefused,
    FINISHED: Finished,
    STEP_STARTED: StepEvent,
    STEP_PROGRESSED: StepEvent,
    STEP_COMPLETED: StepEvent,
    STEP_FAILED: StepEvent,
    STEP_RESOLVED: StepEvent,
    STEP_ACCEPTED: StepEvent,
    STEP_CHECKED: StepEvent,
    STEP_USED: StepEvent,
}
_decoders: dict[str, msgspec.json.Decoder[Any]] = {}  # created on demand: all at once is slow
encode_data = msgspec.json.Encoder().encode


def new_event(name: str, data: TaskEvent) -> NewEvent:
    """Return an event to append."""
    return NewEvent(name, encode_data(data))


def decode_event(key: StreamKey, version: int, name: str, data: bytes) -> TaskEvent:
    """Decode the data of an event.

    Raises `CorruptRecord` if it is not valid: anything with write access may have stored it.
    """
    decoder = _decoders.get(name)
    if decoder is None:
        if name not in _TYPES:
            raise UnsupportedVersion(
                f"{key} contains an event of an unknown type (version {version});"
                " use a newer version of Holdfast"
            )
        with build_lock:
            decoder = _decoders[name] = msgspec.json.Decoder(_TYPES[name])
    try:
        event: TaskEvent = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise CorruptRecord(str(key), version=version, what=f"it is not a {name!r} event") from None
    if (problem := _find_problem(event)) is not None:
        raise CorruptRecord(str(key), version=version, what=problem)
    return event


def _find_problem(event: TaskEvent) -> str | None:
    if isinstance(event, StepEvent):
        return None if is_path(event.step) else "its step has no valid path"
    if isinstance(event, Planned):
        if event.paths and not _are_paths(event):
            return "its plan has items without a valid step path"
        return None if all(map(is_plan_item, event.items)) else "its plan has items without a name"
    if isinstance(event, Attached) and (event.blob.size < 0 or not event.name):
        return "its artifact has no name or no valid size"
    if isinstance(event, MemoryNamed) and not event.namespace:
        return "its memory namespace has no name"
    return None


def _are_paths(plan: Planned) -> bool:
    unique = len(set(plan.paths)) == len(plan.items) == len(plan.paths)
    return unique and all(map(is_path, plan.paths))


def is_plan_item(item: object) -> bool:
    """Whether a value is a plan item: a name, or a dict with a name."""
    name = item.get("name") if isinstance(item, dict) else item
    return type(name) is str and name != ""
