"""Reading a task: from its stream, and from those it was forked from."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, cast

import msgspec

from ...backends import HeadFields, HeadSummary, StreamKey
from ...backends.clock import moment
from ...conversations.sources import message_at
from ...errors import CorruptRecord, Expired, NotFound
from ...log import operations as ops
from ...log.blobs import get_blob, incarnation_hex
from ...log.codec import Undecodable, decode, encode
from ...log.events import Envelope, StoredEvent
from ...log.events import Event as PublicEvent
from ...log.leases import is_dead
from ...log.operations import Operation
from . import events as ev
from .fold import CHILD, Attachment, StepRecord, TaskState
from .view import (
    ArtifactInfo,
    Drift,
    Failure,
    ModelInput,
    Note,
    Question,
    Status,
    StepInfo,
    StepProgress,
    StepStatus,
    TaskInfo,
    TaskView,
)
from .waits import ASK, TIMER, TaskWait


def load(
    key: StreamKey, upto: int | None = None, into: TaskState | None = None
) -> Operation[TaskState]:
    """The fold of a task's events, up to a version. Of a task that is not there: a state at version 0."""
    state = TaskState(key) if into is None else into
    for part, last in (yield from _lineage(key, upto)):
        after = 0
        while after != last and (page := (yield from ops.read(part, after=after))):
            for stored in page:
                if last is not None and stored.version > last:
                    break
                name, event = yield from opened(part, stored)
                state.apply(part, stored.version, stored.envelope.at, name, event)
            after = page[-1].version if last is None else min(page[-1].version, last)
    return state


def _lineage(key: StreamKey, upto: int | None) -> Operation[list[tuple[StreamKey, int | None]]]:
    """The streams whose events make up a task, the oldest first, and how far each counts."""
    parts: list[tuple[StreamKey, int | None]] = [(key, upto)]
    while (branched := (yield from branched_from(parts[0][0]))) is not None:
        parent = key._replace(id=branched.parent)
        head = yield from ops.head(parent)
        if (
            head is None
            or incarnation_hex(head.incarnation) != branched.incarnation
            or len(parts) > 1000
        ):
            raise CorruptRecord(str(key), version=1, what="the task it was forked from is gone")
        parts.insert(0, (parent, branched.at))
    return parts


def branched_from(key: StreamKey) -> Operation[ev.Branched | None]:
    """What a task was forked from, if it was."""
    first = yield from ops.read(key, limit=1)
    if not first or first[0].envelope.type != ev.BRANCHED:
        return None
    return cast("ev.Branched", (yield from opened(key, first[0]))[1])


def opened(key: StreamKey, stored: StoredEvent) -> Operation[tuple[str, ev.TaskEvent]]:
    """The type and the data of a stored event, wherever it is kept."""
    envelope = cast("Envelope", stored.envelope)
    data = (
        bytes(envelope.data) if envelope.blob is None else (yield from get_blob(key, envelope.blob))
    )
    return envelope.type, ev.opened(key, stored.version, envelope.type, data)


def result_bytes(state: TaskState, step: StepRecord) -> Operation[bytes]:
    """The encoded result of a completed step."""
    if step.reply is not None:
        return encode((yield from said(state.key, step.reply)))
    if step.blob is not None:
        return (yield from get_blob(step.blob_owner or state.key, step.blob))
    return bytes(step.result or b"null")


def said(key: StreamKey, reply: ev.Reply) -> Operation[Any]:
    """The message that is the result of a step; `NotFound` or `Expired` if its conversation is no more."""
    chat = key._replace(kind="conversation", id=reply.conversation)
    return (yield from message_at(chat, reply.incarnation, reply.base, reply.version))


def results_of(state: TaskState, only: Container[str] | None = None) -> Operation[dict[str, Any]]:
    """The results of the finished steps at the top level, by path, as plain JSON values: the plan's in its order, then others."""
    found: dict[str, Any] = {}
    for path in [
        *state.plan_paths,
        *(path for path in list(state.steps) if path not in state.plan_paths),
    ]:
        step = state.steps.get(path)
        if (
            step is not None
            and step.state == "completed"
            and not step.place.scope
            and (only is None or path in only)
        ):
            found[step.path] = _decoded(
                state.key, step.version, (yield from result_bytes(state, step))
            )
    return found


def history(key: StreamKey) -> Operation[list[PublicEvent]]:
    """The events of a task's own stream, decoded."""
    events: list[PublicEvent] = []
    while page := (yield from ops.read(key, after=events[-1].version if events else 0)):
        for stored in page:
            envelope = cast("Envelope", stored.envelope)
            data = (
                bytes(envelope.data)
                if envelope.blob is None
                else (yield from get_blob(key, envelope.blob))
            )
            told = _decoded(key, stored.version, data)
            if envelope.type == ev.STEP_COMPLETED and type(told) is dict and told.get("reply"):
                event = cast("ev.StepEvent", ev.opened(key, stored.version, envelope.type, data))
                try:
                    told["result"] = yield from said(key, cast("ev.Reply", event.reply))
                except (NotFound, Expired):
                    pass  # it tells where the message was
            events.append(
                PublicEvent(
                    stored.version,
                    envelope.id,
                    envelope.type,
                    told,
                    envelope.at,
                    envelope.by,
                    envelope.correlation,
                )
            )
    return events


def is_expired(head: HeadSummary) -> bool:
    return head.fields.expires_at is not None and head.fields.expires_at <= head.now


def is_held(head: HeadSummary) -> bool:
    """Whether somebody works on it: the lease has not run out, and its holder is not a dead process of this machine."""
    owner = head.fields.owner
    return owner is not None and (head.fields.due_at or 0) > head.now and not is_dead(owner)


def missing(key: StreamKey) -> NotFound:
    return NotFound(
        f"there is no {key}; check the id: store.tasks(), or holdfast tasks, lists those that there are"
    )


def get_view(key: StreamKey, upto: int | None = None) -> Operation[TaskView | None]:
    """A task as it is in the store, or was at a version; None if there is none or it has expired."""
    head = yield from ops.head(key)
    if head is None or is_expired(head):
        return None
    state = yield from load(key, upto)
    return (
        yield from view_of(
            state, head.fields, state.runs if is_held(head) and upto is None else None
        )
    )


def view_of(
    state: TaskState,
    fields: HeadFields,
    run: int | None,
    orphaned: list[str] | None = None,
    drift: list[Drift] | None = None,
) -> Operation[TaskView]:
    """A view of a state, with its results loaded. `run` is the one under way, if any."""
    steps = []
    for step in list(state.steps.values()):
        result = None
        if step.state == "completed":
            try:
                result = _decoded(state.key, step.version, (yield from result_bytes(state, step)))
            except (NotFound, Expired):
                if step.reply is None:
                    raise
        steps.append(_info(state, step, run, result))
    changed = (
        # An unknown word in a stored drift is shown as it is.
        [Drift(*map(str, entry)) for entry in state.drift if len(entry) == 4]  # type: ignore[arg-type]
        if drift is None
        else drift
    )
    return TaskView(
        id=state.key.id,
        goal=state.goal,
        input=_decoded(state.key, 1, state.input),
        agent=state.agent,
        status=state.status,
        plan=list(state.plan),
        plan_paths=list(state.plan_paths),
        steps=steps,
        decisions=_notes(state.decisions),
        discoveries=_notes(state.discoveries),
        result=_decoded(state.key, state.version, state.result),
        error=Failure(*state.error) if state.error else None,
        created_at=moment(state.created_at),
        updated_at=moment(state.updated_at),
        owner=fields.owner,
        lease_until=None
        if fields.due_at is None or fields.owner is None
        else moment(fields.due_at),
        expires_at=None if fields.expires_at is None else moment(fields.expires_at),
        version=state.version,
        runs=state.runs,
        orphaned=list(state.orphaned) if orphaned is None else orphaned,
        drift=changed,
        usage=state.usage,
        budget=state.budget,
        questions=[
            _question(state, wait)
            for wait in map(state.waits.all.__getitem__, state.waits.current.values())
        ],
        waits_for=words_for(state) if state.status == "suspended" else [],
        parent=state.parent.id if state.parent else None,
        due_at=None if fields.due_at is None or fields.owner is not None else moment(fields.due_at),
        crashes=state.crashes,
        artifacts=[artifact_info(attachment) for attachment in list(state.attached.values())],
    )


def artifact_info(attachment: Attachment) -> ArtifactInfo:
    blob = attachment.blob
    return ArtifactInfo(attachment.name, blob.size, blob.digest, moment(attachment.at))


def _info(state: TaskState, step: StepRecord, run: int | None, result: Any) -> StepInfo:
    status = cast("StepStatus", step.state)
    if step.state == "started":
        waits = (
            step.kind == CHILD and step.place.key in state.suspended_on.children and not state.ended
        )
        status = "running" if step.run == run else "waiting" if waits else "interrupted"
    progress = None
    if step.cursor is not None and step.state != "completed":
        cursor = _decoded(state.key, step.version, bytes(step.cursor))
        progress = StepProgress(cursor, step.done, step.total, moment(step.progress_at))
    return StepInfo(
        path=step.path,
        name=step.place.name,
        key=step.place.key,
        parent=step.place.scope,
        status=status,
        in_doubt=step.in_doubt(run),
        mode=step.mode,  # type: ignore[arg-type]  # what else a hostile store says is shown as it is
        kind=step.kind,
        model=step.model,
        attempts=step.attempts,
        started_at=moment(step.started_at),
        ended_at=None if step.ended_at is None else moment(step.ended_at),
        result=result,
        how=step.how,  # type: ignore[arg-type]
        error=None if step.error is None else Failure(step.error, step.message),
        replays=step.state == "failed" and not step.doubt,
        progress=progress,
        code=step.code,
        version=step.version,
        usage=step.usage,
        reply=None if step.reply is None else (step.reply.conversation, step.reply.version),
        model_input=[
            ModelInput(part.conversation, part.versions or [(1, part.at)])
            for part in step.model_input
            if not part.digest
        ],
    )


def _question(state: TaskState, wait: TaskWait) -> Question:
    event = wait.event
    over = wait.how == "answered"
    return Question(
        id=event.wait,
        name=event.name,
        text=event.question,
        payload=_decoded(state.key, wait.version, bytes(event.payload)),
        schema=event.schema,
        asked_at=moment(wait.at),
        until=None if event.until is None else moment(event.until),
        status="answered" if over else "timeout" if wait.how else "open",
        answer=_decoded(state.key, wait.version, bytes(wait.value)) if over else None,
        by=wait.by,
        answered_at=None if wait.ended_at is None else moment(wait.ended_at),
    )


def words_for(state: TaskState) -> list[str]:
    """What a task waits for, in words."""
    found = []
    for event in (
        state.waits.all[each].event for each in state.suspended_on.waits if each in state.waits.all
    ):
        if event.kind == TIMER:
            found.append(moment(event.until or 0.0).strftime("%Y-%m-%d %H:%M:%S UTC"))
        else:
            found.append(f"{'the answer to' if event.kind == ASK else 'signal'} {event.name!r}")
    return found + [f"child {child!r}" for child in state.suspended_on.children]


def _notes(noted: list[Any]) -> list[Note]:
    ordered = sorted(noted, key=lambda note: cast("int", note.version))
    return [Note(note.text, note.why, moment(note.at), note.step) for note in ordered]


def _decoded(key: StreamKey, version: int, raw: bytes) -> Any:
    try:
        return decode(raw)
    except Undecodable as error:
        raise CorruptRecord(str(key), version=version, what=str(error)) from None


class TaskLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a list of tasks shows without reading them."""

    goal: str | None = None
    agent: str | None = None
    doubt: bool = False
    crashes: int = 0


_read_label = msgspec.json.Decoder(TaskLabel).decode


def label_of(state: TaskState, doubt: bool, crashes: int | None = None) -> bytes:
    goal = None if state.goal is None else state.goal[:200]
    return msgspec.json.encode(
        TaskLabel(goal, state.agent, doubt, state.crashes if crashes is None else crashes)
    )


def listed(tenant: str, status: str | None, after: str) -> Operation[tuple[list[TaskInfo], str]]:
    """One page of the tasks that have not expired, and where the next one begins."""
    page = yield from ops.heads(tenant, ev.KIND, status=status, after=after)
    found = [
        info_of(head)
        for head in page
        if not is_expired(head)
        and head.fields.status is not None
        and status in (None, head.fields.status)
    ]
    return found, page[-1].stream.id if page else ""


def info_of(head: HeadSummary) -> TaskInfo:
    try:
        label = _read_label(head.fields.label or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise CorruptRecord(str(head.stream), what="its label is not one of a task") from None
    fields = head.fields
    return TaskInfo(
        id=head.stream.id,
        status=cast("Status", fields.status),
        goal=label.goal,
        agent=label.agent,
        in_doubt=label.doubt,
        owner=fields.owner,
        lease_until=None
        if fields.due_at is None or fields.owner is None
        else moment(fields.due_at),
        due_at=None if fields.due_at is None or fields.owner is not None else moment(fields.due_at),
        expires_at=None if fields.expires_at is None else moment(fields.expires_at),
        crashes=label.crashes,
    )
