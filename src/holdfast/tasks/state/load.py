"""Load a task from its stream and those it was forked from, and build views of it."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime
from typing import Any, cast

import msgspec

from ...backends import HeadFields, HeadSummary, StreamKey
from ...backends.clock import to_datetime
from ...conversations.sources import read_message_at
from ...errors import CorruptRecord, Expired, NotFound
from ...log import operations as ops
from ...log.codec import Undecodable, decode, encode
from ...log.events import Envelope, StoredEvent
from ...log.events import Event as PublicEvent
from ...log.leases import is_dead
from ...log.operations import Operation
from ...log.operations.blobs import get_blob
from . import events as ev
from .fold import CHILD, AttachedFile, NoteRecord, StepRecord, TaskState
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


def load_task(
    key: StreamKey, upto: int | None = None, into: TaskState | None = None
) -> Operation[TaskState]:
    """Return the state of a task, up to a version. The state of a missing task is at version 0."""
    state = TaskState(key) if into is None else into
    for part, last in (yield from _lineage(key, upto)):
        after = 0
        while after != last and (page := (yield from ops.read(part, after=after))):
            for stored in page:
                if last is not None and stored.version > last:
                    break
                name, event = yield from load_event(part, stored)
                state.apply(part, stored.version, stored.envelope.at, name, event)
            after = page[-1].version if last is None else min(page[-1].version, last)
    return state


def _lineage(key: StreamKey, upto: int | None) -> Operation[list[tuple[StreamKey, int | None]]]:
    """Return the streams of a task and its ancestors, oldest first, each with its last version."""
    parts: list[tuple[StreamKey, int | None]] = [(key, upto)]
    while (branched := (yield from load_branch(parts[0][0]))) is not None:
        parent = key._replace(id=branched.parent)
        head = yield from ops.head(parent)
        if head is None or head.incarnation.hex() != branched.incarnation or len(parts) > 1000:
            raise CorruptRecord(str(key), version=1, what="the task it was forked from is gone")
        parts.insert(0, (parent, branched.at))
    return parts


def load_branch(key: StreamKey) -> Operation[ev.Branched | None]:
    """Return the first event of a fork; None if the task is not a fork."""
    first = yield from ops.read(key, limit=1)
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

    The steps of the plan come first, in its order.
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
    while page := (yield from ops.read(key, after=events[-1].version if events else 0)):
        for stored in page:
            envelope = cast("Envelope", stored.envelope)
            data = (
                bytes(envelope.data)
                if envelope.blob is None
                else (yield from get_blob(key, envelope.blob))
            )
            fields = _decode(key, stored.version, data)
            if envelope.type == ev.STEP_COMPLETED and type(fields) is dict and fields.get("reply"):
                event = cast(
                    "ev.StepEvent", ev.decode_event(key, stored.version, envelope.type, data)
                )
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


def is_expired(head: HeadSummary) -> bool:
    """Whether a task has expired."""
    return head.fields.expires_at is not None and head.fields.expires_at <= head.now


def is_leased(head: HeadSummary) -> bool:
    """Whether a live owner has the lease: it is not over, and the owner is not known to be dead."""
    owner = head.fields.owner
    return owner is not None and (head.fields.due_at or 0) > head.now and not is_dead(owner)


def task_not_found(key: StreamKey) -> NotFound:
    """Return the error for a task that does not exist."""
    return NotFound(
        f"there is no {key}; check the id: store.tasks() or `holdfast tasks` lists all tasks"
    )


def load_view(key: StreamKey, upto: int | None = None) -> Operation[TaskView | None]:
    """Return a view of a task, also at an earlier version; None if it is missing or expired."""
    head = yield from ops.head(key)
    if head is None or is_expired(head):
        return None
    state = yield from load_task(key, upto)
    run = state.runs if is_leased(head) and upto is None else None
    return (yield from build_view(state, head.fields, run))


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
        error=Failure(*state.error) if state.error else None,
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
    progress = None
    if step.cursor is not None and step.state != "completed":
        cursor = _decode(state.key, step.version, bytes(step.cursor))
        progress = StepProgress(cursor, step.done, step.total, to_datetime(step.progress_at))
    return StepInfo(
        path=step.path,
        name=step.parsed_path.name,
        key=step.parsed_path.key,
        parent=step.parsed_path.scope,
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
    return found + [f"child {child!r}" for child in state.suspended_on.children]


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


class TaskLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a stream head that lets tasks be listed without reading them."""

    goal: str | None = None
    agent: str | None = None
    doubt: bool = False
    crashes: int = 0


_read_label = msgspec.json.Decoder(TaskLabel).decode


def encode_label(state: TaskState, doubt: bool, crashes: int | None = None) -> bytes:
    """Return the encoded label of a task for its stream head."""
    goal = None if state.goal is None else state.goal[:200]
    return msgspec.json.encode(
        TaskLabel(goal, state.agent, doubt, state.crashes if crashes is None else crashes)
    )


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


def task_info(head: HeadSummary) -> TaskInfo:
    """Return the listing entry of a task."""
    try:
        label = _read_label(head.fields.label or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise CorruptRecord(str(head.stream), what="its label is not a task's label") from None
    fields = head.fields
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
    )
