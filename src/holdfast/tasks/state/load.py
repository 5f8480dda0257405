"""Load a task from its stream and the streams it was forked from, and build views of it."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from ...backends import HeadFields, HeadSummary, StreamKey
from ...backends.clock import to_datetime
from ...conversations.sources import read_message_at
from ...errors import CorruptRecord, Expired, NotFound
from ...log import operations as ops
from ...log.codec import Undecodable, decode, encode
from ...log.events import Envelope, StoredEvent
from ...log.events import Event as PublicEvent
from ...log.head_fields import is_expired
from ...log.leases import is_dead
from ...log.operations import Operation
from ...log.operations.blobs import get_blob
from ..run.traceback import build_failure
from . import events as ev
from .failure import Failure
from .fold import CHILD, AttachedFile, NoteRecord, StepRecord, TaskState
from .view import (
    ENDED,
    ArtifactInfo,
    Cancellation,
    Drift,
    ModelInput,
    Note,
    Question,
    RunningStep,
    Status,
    StepInfo,
    StepProgress,
    StepStatus,
    TaskInfo,
    TaskView,
)
from .waits import ASK, TIMER, TaskWait

MAX_NESTED_STEPS: Final = 20
"""How many steps inside each other to follow when a failure is shown."""
MISDATED_SECONDS: Final = 60.0
"""If a task that is due at once is due later than this, the clock was set back."""


def load_task(
    key: StreamKey,
    upto: int | None = None,
    into: TaskState | None = None,
    *,
    end: int | None = None,
) -> Operation[TaskState]:
    """Return the state of a task, up to a version. The state of a missing task is at version 0.

    `into` is the state to load, which may be one of an earlier version: it continues from there.
    `end` is a version that the task's stream has reached, if the caller knows one. What comes after
    it need not be read.
    """
    state = TaskState(key) if into is None else into
    page = yield from _read_page(key, state.version, upto)
    if state.version == 0:
        for part, last in (yield from _list_ancestors(key, page)):
            first = yield from _read_page(part, 0, last)
            yield from _apply_events(state, part, first, last, last)
    yield from _apply_events(state, key, page, upto, end if upto is None else upto)
    return state


def _read_page(key: StreamKey, after: int, upto: int | None) -> Operation[list[StoredEvent]]:
    """Read a page of events. Of those after the version `upto`, read at most one."""
    return ops.read(key, after=after, limit=None if upto is None else max(upto - after, 1))


def _apply_events(
    state: TaskState, part: StreamKey, page: list[StoredEvent], upto: int | None, end: int | None
) -> Operation[None]:
    """Apply the events of a stream, from its first page on, up to a version if one is given.

    Read further pages until the stream has no more, or up to the version `end`.
    """
    while page:
        for stored in page:
            if upto is not None and stored.version > upto:
                return
            name, event = yield from load_event(part, stored)
            state.apply(part, stored.version, stored.envelope.at, name, event)
        if end is not None and page[-1].version >= end:
            return
        page = yield from _read_page(part, page[-1].version, upto)


def _list_ancestors(
    key: StreamKey, page: list[StoredEvent]
) -> Operation[list[tuple[StreamKey, int]]]:
    """Return the streams that a task was forked from, oldest first, each with its last version.

    `page` is the first page of the task's own stream.
    """
    parts: list[tuple[StreamKey, int]] = []
    branched = yield from _decode_branch(key, page)
    while branched is not None:
        parent = key._replace(id=branched.parent)
        head = yield from ops.head(parent)
        if head is None or head.incarnation.hex() != branched.incarnation or len(parts) >= 1000:
            raise CorruptRecord(str(key), version=1, what="the task it was forked from is gone")
        parts.insert(0, (parent, branched.at))
        branched = yield from load_branch(parent)
    return parts


def load_branch(key: StreamKey) -> Operation[ev.Branched | None]:
    """Return the first event of a fork; None if the task is not a fork."""
    return (yield from _decode_branch(key, (yield from ops.read(key, limit=1))))


def _decode_branch(key: StreamKey, first: list[StoredEvent]) -> Operation[ev.Branched | None]:
    """Return the first event of a page if it is that of a fork."""
    if not first or first[0].envelope.type != ev.BRANCHED:
        return None
    return cast("ev.Branched", (yield from load_event(key, first[0]))[1])


def load_event(key: StreamKey, stored: StoredEvent) -> Operation[tuple[str, ev.TaskEvent]]:
    """Return the type and the decoded data of a stored event."""
    envelope = cast("Envelope", stored.envelope)
    data = (
        bytes(envelope.data) if envelope.blob is None else (yield from get_blob(key, envelope.blob))
    )
    return envelope.type, ev.decode_event(key, stored.version, envelope.type, data)


def load_result(state: TaskState, step: StepRecord) -> Operation[bytes]:
    """Return the encoded result of a completed step."""
    if step.reply is not None:
        return encode((yield from load_reply(state.key, step.reply)))
    if step.blob is not None:
        return (yield from get_blob(step.blob_owner or state.key, step.blob))
    return bytes(step.result or b"null")


def load_reply(key: StreamKey, reply: ev.Reply) -> Operation[Any]:
    """Return the message that is a step's result.

    Raises `NotFound` or `Expired` if its conversation is gone.
    """
    chat = key._replace(kind="conversation", id=reply.conversation)
    return (yield from read_message_at(chat, reply.incarnation, reply.base, reply.version))


def load_results(state: TaskState, only: Container[str] | None = None) -> Operation[dict[str, Any]]:
    """Return the results of the completed top-level steps by path, as plain JSON values.

    The steps of the plan come first, in the plan's order.
    """
    found: dict[str, Any] = {}
    for path in dict.fromkeys((*state.plan_paths, *state.steps)):
        step = state.steps.get(path)
        if step is None or step.state != "completed" or step.parsed_path.scope:
            continue
        if only is None or path in only:
            raw = yield from load_result(state, step)
            found[path] = _decode(state.key, step.version, raw)
    return found


def load_history(key: StreamKey) -> Operation[list[PublicEvent]]:
    """Return the events of a task's own stream, decoded."""
    events: list[PublicEvent] = []
    while page := (yield from load_events(key, events[-1].version if events else 0)):
        events += page
    return events


def load_events(
    key: StreamKey, after: int, limit: int | None = None
) -> Operation[list[PublicEvent]]:
    """Return a page of the events after a version, decoded; an empty list at the end."""
    events: list[PublicEvent] = []
    for stored in (yield from ops.read(key, after=after, limit=limit)):
        envelope = cast("Envelope", stored.envelope)
        data = (
            bytes(envelope.data)
            if envelope.blob is None
            else (yield from get_blob(key, envelope.blob))
        )
        fields = _decode(key, stored.version, data)
        if envelope.type == ev.STEP_COMPLETED and type(fields) is dict and fields.get("reply"):
            event = cast("ev.StepEvent", ev.decode_event(key, stored.version, envelope.type, data))
            try:
                fields["result"] = yield from load_reply(key, cast("ev.Reply", event.reply))
            except (NotFound, Expired):
                pass  # the event still names the place of the message
        events.append(
            PublicEvent(
                stored.version,
                envelope.id,
                envelope.type,
                fields,
                envelope.at,
                envelope.by,
                envelope.correlation,
            )
        )
    return events


def is_leased(head: HeadSummary) -> bool:
    """Whether a live owner has the lease: it isn't over, and the owner isn't known to be dead."""
    owner = head.fields.owner
    return owner is not None and (head.fields.due_at or 0) > head.now and not is_dead(owner)


def is_due(head: HeadSummary) -> bool:
    """Whether a worker should run a task now: its time has come, or its lease owner is gone."""
    fields = head.fields
    if fields.status in ENDED or is_expired(head):
        return False
    if fields.owner is not None:
        return not is_leased(head)
    return (fields.due_at is not None and fields.due_at <= head.now) or is_misdated(head)


def task_not_found(key: StreamKey) -> NotFound:
    """Return the error for a task that does not exist."""
    return NotFound(
        f"there is no {key}; check the id: store.tasks() or `holdfast tasks` lists all tasks"
    )


def load_view(key: StreamKey, into: TaskState | None = None) -> Operation[TaskView | None]:
    """Return a view of a task; None if it is missing or expired. For `into`, see `load_task`."""
    head = yield from ops.head(key)
    if head is None or is_expired(head):
        return None
    state = yield from load_task(key, into=into, end=head.version)
    return (yield from build_view(state, head.fields, state.runs if is_leased(head) else None))


def load_view_at(
    key: StreamKey, version: int, into: TaskState | None = None
) -> Operation[TaskView]:
    """Return a view of a task at an earlier version. For `into`, see `load_task`."""
    head = yield from ops.head(key, upto=version)
    if head is None or not 1 <= version <= head.version:
        versions = f"it has versions 1 to {head.version}" if head else "it doesn't exist"
        raise NotFound(f"version {version} of {key} not found: {versions}")
    if is_expired(head):
        raise Expired(str(key), at=head.fields.expires_at or 0.0)
    state = yield from load_task(key, version, into)
    return (yield from build_view(state, HeadFields(), state.runs if state.owner else None))


def build_view(
    state: TaskState,
    fields: HeadFields,
    run: int | None,
    orphaned: list[str] | None = None,
    drift: list[Drift] | None = None,
) -> Operation[TaskView]:
    """Return a view of a state, with its results loaded. `run` is the current run, if any."""
    steps = []
    for step in list(state.steps.values()):
        result = None
        if step.state == "completed":
            try:
                result = _decode(state.key, step.version, (yield from load_result(state, step)))
            except (NotFound, Expired):
                if step.reply is None:
                    raise
        steps.append(_step_info(state, step, run, result))
    changed = (
        # An unknown kind of drift is shown as it is stored.
        [Drift(*map(str, entry)) for entry in state.drift if len(entry) == 4]  # type: ignore[arg-type]
        if drift is None
        else drift
    )
    return TaskView(
        id=state.key.id,
        goal=state.goal,
        input=_decode(state.key, 1, state.input),
        agent=state.agent,
        status=state.status,
        plan=list(state.plan),
        plan_paths=list(state.plan_paths),
        steps=steps,
        decisions=_notes(state.decisions),
        discoveries=_notes(state.discoveries),
        result=_decode(state.key, state.version, state.result),
        error=task_failure(state),
        created_at=to_datetime(state.created_at),
        updated_at=to_datetime(state.updated_at),
        owner=fields.owner,
        lease_until=None if fields.owner is None else _to_time(fields.due_at),
        expires_at=_to_time(fields.expires_at),
        version=state.version,
        runs=state.runs,
        orphaned=list(state.orphaned) if orphaned is None else orphaned,
        drift=changed,
        usage=state.usage,
        budget=state.budget,
        questions=[
            _question(state, wait)
            for wait in map(state.waits.all.__getitem__, state.waits.question_ids.values())
        ],
        waits_for=describe_waits(state) if state.status == "suspended" else [],
        parent=state.parent.id if state.parent else None,
        due_at=_to_time(fields.due_at) if fields.owner is None else None,
        crashes=state.crashes,
        artifacts=[artifact_info(attachment) for attachment in list(state.attached.values())],
        subject=state.subject,
        memory_namespace=state.memory_namespace,
        cancellation=_cancellation(state),
        timeout=state.timeout,
        deadline=_to_time(state.deadline),
    )


def _cancellation(state: TaskState) -> Cancellation | None:
    if state.cancelled is None:
        return None
    at, event = state.cancelled
    last = state.lingered or ev.Lingered("")
    return Cancellation(
        event.reason, event.by, to_datetime(at), list(last.steps), last.owner or None
    )


def task_failure(state: TaskState) -> Failure | None:
    """Return why the newest run failed. The failure of a step is the cause of its `StepFailed`."""
    if state.error is None:
        return None
    return build_failure(
        *state.error,
        state.trace,
        attempt=state.failures,
        find_step=lambda path: step_failure(state, path),
    )


def step_failure(state: TaskState, path: str, outer: tuple[str, ...] = ()) -> Failure | None:
    """Return why a step failed. `outer` are the steps that failed because of this one."""
    step = state.steps.get(path)
    if step is None or step.error is None or path in outer or len(outer) > MAX_NESTED_STEPS:
        return None
    return build_failure(
        step.error,
        step.message,
        step.trace,
        attempt=step.attempts,
        find_step=lambda inner: step_failure(state, inner, (*outer, path)),
    )


def artifact_info(attachment: AttachedFile) -> ArtifactInfo:
    """Return the public view of an attached file."""
    blob = attachment.blob
    return ArtifactInfo(attachment.name, blob.size, blob.digest, to_datetime(attachment.at))


def _step_info(state: TaskState, step: StepRecord, run: int | None, result: Any) -> StepInfo:
    status = cast("StepStatus", step.state)
    if step.state == "started":
        waits = (
            step.kind == CHILD
            and step.parsed_path.key in state.suspended_on.children
            and not state.ended
        )
        status = "running" if step.run == run else "waiting" if waits else "interrupted"
    path = step.parsed_path
    return StepInfo(
        path=step.path,
        name=path.name,
        key=path.key,
        parent=path.scope,
        status=status,
        in_doubt=step.in_doubt(run),
        mode=step.mode,  # type: ignore[arg-type]  # a corrupt value is shown as it is
        kind=step.kind,
        model=step.model,
        attempts=step.attempts,
        started_at=to_datetime(step.started_at),
        ended_at=_to_time(step.ended_at),
        result=result,
        how=step.how,  # type: ignore[arg-type]
        code=step.code,
        version=step.version,
        **_rarer_facts(state, step),
    )


def _rarer_facts(state: TaskState, step: StepRecord) -> dict[str, Any]:
    """Return what most steps don't have: leaving it out makes long tasks faster to show."""
    facts: dict[str, Any] = {}
    if step.error is not None:
        facts["error"] = step_failure(state, step.path)
    if step.state == "failed":
        facts |= {"replays": not step.doubt, "final": step.final}
    if step.cursor is not None and step.state != "completed":
        cursor = _decode(state.key, step.version, bytes(step.cursor))
        facts["progress"] = StepProgress(
            cursor, step.done, step.total, to_datetime(step.progress_at)
        )
    if step.mode:
        facts |= _guarded_facts(state, step)
    if step.model_input:
        facts["model_input"] = [
            ModelInput(part.conversation, part.versions or [(1, part.at)])
            for part in step.model_input
            if not part.digest
        ]
    if step.usage is not None:
        facts["usage"] = step.usage
    if step.reply is not None:
        facts["reply"] = (step.reply.conversation, step.reply.version)
    if step.expect is not None:
        facts["expect"] = step.expect
    return facts


def _guarded_facts(state: TaskState, step: StepRecord) -> dict[str, Any]:
    """Return what an operator has to know of a step that must not run twice."""
    arguments = None
    if step.arguments is not None and bytes(step.arguments):
        arguments = _decode(state.key, step.version, bytes(step.arguments))
    return {
        "result_schema": step.schema,
        "arguments": arguments if isinstance(arguments, dict) else None,
        "cut_arguments": list(step.cut),
        "idempotency_key": step.idempotency_key or None,
        "check": step.check or None,
    }


def _question(state: TaskState, wait: TaskWait) -> Question:
    event = wait.event
    answered = wait.how == "answered"
    return Question(
        id=event.wait,
        name=event.name,
        text=event.question,
        payload=_decode(state.key, wait.version, bytes(event.payload)),
        schema=event.schema,
        asked_at=to_datetime(wait.at),
        until=_to_time(event.until),
        status="answered" if answered else "timeout" if wait.how else "open",
        answer=_decode(state.key, wait.version, bytes(wait.value)) if answered else None,
        by=wait.by,
        answered_at=_to_time(wait.ended_at),
    )


def describe_waits(state: TaskState) -> list[str]:
    """Return what a task waits for, in words."""
    found = []
    for wait in state.suspended_on.waits:
        if wait not in state.waits.all:
            continue
        event = state.waits.all[wait].event
        if event.kind == TIMER:
            found.append(to_datetime(event.until or 0.0).strftime("%Y-%m-%d %H:%M:%S UTC"))
        else:
            found.append(f"{'the answer to' if event.kind == ASK else 'signal'} {event.name!r}")
    found += [f"child {child!r}" for child in state.suspended_on.children]
    return found + [f"the check of step {path!r}" for path in state.suspended_on.checks]


def _notes(notes: list[NoteRecord]) -> list[Note]:
    ordered = sorted(notes, key=lambda note: note.version)
    return [Note(note.text, note.why, to_datetime(note.at), note.step) for note in ordered]


def _to_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else to_datetime(seconds)


def _decode(key: StreamKey, version: int, raw: bytes) -> Any:
    try:
        return decode(raw)
    except Undecodable as error:
        raise CorruptRecord(str(key), version=version, what=str(error)) from None


class StepLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The step that a task is in, in its label."""

    path: str
    since: float
    done: float | None = None
    total: float | None = None
    expect: float | None = None


class TaskLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a stream head that lets tasks be listed without reading them."""

    goal: str | None = None
    agent: str | None = None
    doubt: bool = False
    crashes: int = 0
    later: bool = False
    """A pending task is due at a time that was in the future when it was written."""
    step: StepLabel | None = None
    lingers: str | None = None
    """The process that still runs steps of a cancelled task."""


_read_label = msgspec.json.Decoder(TaskLabel).decode


def encode_label(
    state: TaskState,
    doubt: bool,
    crashes: int | None = None,
    *,
    later: bool = False,
    step: StepLabel | None = None,
) -> bytes:
    """Return the encoded label of a task for its stream head."""
    goal = None if state.goal is None else state.goal[:200]
    crashes = state.crashes if crashes is None else crashes
    return msgspec.json.encode(TaskLabel(goal, state.agent, doubt, crashes, later, step))


def encode_lingering(head: HeadSummary, owner: str | None) -> bytes:
    """Return the label of a cancelled task with the process that still runs its steps."""
    return msgspec.json.encode(msgspec.structs.replace(_decode_label(head), lingers=owner))


def list_tasks(
    tenant: str, status: str | None, after: str
) -> Operation[tuple[list[TaskInfo], str]]:
    """Return a page of the tasks that have not expired, and the id to continue after."""
    page = yield from ops.heads(tenant, ev.KIND, status=status, after=after)
    found = [
        task_info(head)
        for head in page
        if not is_expired(head)
        and head.fields.status is not None
        and status in (None, head.fields.status)
    ]
    return found, page[-1].stream.id if page else ""


def is_misdated(head: HeadSummary) -> bool:
    """Whether a task was due at once when it was written, and is due in the future now.

    The clock was set back since. If only by a little, it soon catches up.
    """
    fields = head.fields
    return (
        fields.status == "pending"
        and fields.due_at is not None
        and fields.due_at > head.now + MISDATED_SECONDS
        and not _decode_label(head).later
    )


def _decode_label(head: HeadSummary) -> TaskLabel:
    try:
        return _read_label(head.fields.label or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise CorruptRecord(str(head.stream), what="its label is not a task's label") from None


def task_info(head: HeadSummary) -> TaskInfo:
    """Return the listing entry of a task."""
    label, fields = _decode_label(head), head.fields
    return TaskInfo(
        id=head.stream.id,
        status=cast("Status", fields.status),
        goal=label.goal,
        agent=label.agent,
        in_doubt=label.doubt,
        owner=fields.owner,
        lease_until=None if fields.owner is None else _to_time(fields.due_at),
        due_at=_to_time(fields.due_at) if fields.owner is None else None,
        expires_at=_to_time(fields.expires_at),
        crashes=label.crashes,
        step=_running_step(label.step) if fields.status == "running" else None,
        lingers_in=label.lingers if fields.status == "cancelled" else None,
    )


def _running_step(label: StepLabel | None) -> RunningStep | None:
    if label is None:
        return None
    since = to_datetime(label.since)
    return RunningStep(label.path, since, label.done, label.total, label.expect)
