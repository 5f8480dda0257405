"""Operations on a task from outside its block: cancel, fork, delete, resolve a step in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import msgspec

from ...backends import Head, HeadFields, StreamKey
from ...errors import (
    AlreadyExists,
    AlreadyResolved,
    Expired,
    HasForks,
    LeaseHeld,
    NotFound,
    TaskEnded,
)
from ...log import operations as ops
from ...log.codec import decode
from ...log.events import INLINE_BYTES, AppendContext, NewEvent
from ...log.head_fields import is_expired
from ...log.operations import Operation
from ...log.operations.blobs import put_blob
from ...log.operations.forks import list_forks
from ...log.operations.retired_ids import check_not_retired, free_id
from ...log.operations.stream_ops import append_events, delete_stream, readable_head
from ...log.validation import check_int
from ..state import events as ev
from ..state.fold import StepRecord, TaskState
from ..state.load import encode_label, is_leased, load_branch, load_task, task_not_found
from ..state.view import ENDED
from .value_schema import describe_schema, find_mismatch


def require_head(key: StreamKey) -> Operation[Head]:
    """Return the head of a task. Raise if the task doesn't exist or has expired."""
    head = yield from ops.head(key)
    if head is None:
        yield from check_not_retired(key)
        raise task_not_found(key)
    if is_expired(head):
        raise Expired(str(key), at=head.fields.expires_at or 0.0)
    return head


def cancel_task(
    key: StreamKey, cancelled: ev.Cancelled, stamp: AppendContext
) -> Operation[tuple[TaskState, str]]:
    """Cancel a task: the next write of its lease owner is rejected.

    Return the task as it was before, and its incarnation.
    """
    head = yield from require_head(key)
    state = yield from load_task(key, end=head.version)
    if state.status == "cancelled":
        return state, head.incarnation.hex()
    if state.ended:
        raise TaskEnded(str(key), status=state.status)
    expires = None if state.ttl is None else head.now + state.ttl
    fields = HeadFields(
        "cancelled", head.fields.label, None, None if state.parent is None else head.now, expires
    )
    event = ev.new_event(ev.CANCELLED, cancelled)
    yield from append_events(
        key, [event], stamp, expected=state.version, fields=fields, exclusive=True
    )
    return state, head.incarnation.hex()


def mark_reported(key: StreamKey, stamp: AppendContext) -> Operation[None]:
    """Record that the parent knows of this child's end. The child is then no longer due."""
    head = yield from ops.head(key)
    if head is not None and head.fields.status in ENDED and head.fields.due_at is not None:
        fields = msgspec.structs.replace(head.fields, due_at=None)
        event = ev.new_event(ev.REPORTED, ev.Reported())
        yield from append_events(
            key, [event], stamp, expected=head.version, fields=fields, incarnation=head.incarnation
        )


def resolve_step(
    key: StreamKey,
    step: str,
    result: bytes | None,
    by: str | None,
    stamp: AppendContext,
    *,
    override: bool,
) -> Operation[None]:
    """Resolve a step in doubt: it was done, with this result, or if that is None, it runs again.

    The first resolution counts. `override` replaces it, unless the task has continued since.
    """
    head = yield from require_head(key)
    state = yield from load_task(key, end=head.version)
    if state.ended:
        raise TaskEnded(str(key), status=state.status)
    run = state.runs if is_leased(head) else None
    found = _find_resolvable(state, step, run, retry=result is None, override=override)
    if found.state == "started" and found.run == run:
        raise LeaseHeld(str(key), owner=head.fields.owner or "", until=head.fields.due_at or 0)
    replaces = found.resolution is not None and not found.resolution.used
    event = ev.StepEvent(found.path, again=result is None, by=by, override=replaces)
    if result is not None:
        event = yield from _add_result(key, head, found, event, result, stamp)
    resolved = ev.new_event(ev.STEP_RESOLVED, event)
    state.apply(key, state.version + 1, stamp.at, ev.STEP_RESOLVED, event)
    # The label shows whether other steps are still in doubt. The fields repeat the head's lease, so
    # they are only valid at the head's version.
    doubt = any(step.in_doubt(run) for step in state.steps.values())
    due_at = head.fields.due_at
    later = head.fields.status == "pending" and due_at is not None and due_at > head.now
    fields = msgspec.structs.replace(head.fields, label=encode_label(state, doubt, later=later))
    if state.agent is not None and head.fields.owner is None and not state.is_blocked(run):
        # A worker can resume it.
        fields = msgspec.structs.replace(fields, status="pending", due_at=head.now)
    yield from append_events(
        key,
        [resolved],
        stamp,
        expected=head.version,
        fields=fields,
        incarnation=head.incarnation,
        exclusive=True,
    )


def _add_result(
    key: StreamKey,
    head: Head,
    step: StepRecord,
    event: ev.StepEvent,
    result: bytes,
    stamp: AppendContext,
) -> Operation[ev.StepEvent]:
    """Return the event with the result that an operator gives, if that has the declared type."""
    problem = find_mismatch(decode(result), step.schema, "the result")
    if problem is not None:
        raise TypeError(f"step {step.path!r} of {key}: {problem}; {describe_schema(step.schema)}")
    if len(result) > INLINE_BYTES:
        blob = yield from put_blob(key, head.incarnation.hex(), result, stamp)
        return msgspec.structs.replace(event, blob=blob)
    return msgspec.structs.replace(event, result=msgspec.Raw(result))


def _find_resolvable(
    state: TaskState, name: str, run: int | None, *, retry: bool, override: bool
) -> StepRecord:
    """Return the step to resolve, by its path or its name."""
    open_, resolved = _list_resolvable(state, run, retry=retry, override=override)
    named = [step for step in (*open_, *resolved) if step.path == name][:1]
    for steps in (open_, resolved):
        named = named or [step for step in steps if step.parsed_path.name == name]
    running = state.steps.get(name)
    if running is not None and running.state == "started" and running.run == run:
        return running
    if len(named) == 1:
        if named[0] in resolved:
            _refuse_resolved(state, named[0])
        return named[0]
    what = "several steps have that name" if named else "no such step is in doubt"
    raise NotFound(f"{state.key}: {what}; steps to resolve: {_list_paths(named or open_)}")


def _list_paths(steps: Sequence[StepRecord]) -> str:
    return ", ".join(repr(step.path) for step in steps[:10]) or "none"


def _list_resolvable(
    state: TaskState, run: int | None, *, retry: bool, override: bool
) -> tuple[list[StepRecord], list[StepRecord]]:
    """Return the steps that can be resolved, and those whose resolution counts already."""
    open_, resolved = list[StepRecord](), list[StepRecord]()
    for step in state.steps.values():
        resolution = step.resolution
        if step.in_doubt(run) or step.final or (retry and step.state == "failed"):
            open_.append(step)
        elif resolution is not None and (resolution.used or not override):
            resolved.append(step)
        elif resolution is not None and (retry or resolution.doubt):
            open_.append(step)
    return open_, resolved


def _refuse_resolved(state: TaskState, step: StepRecord) -> NoReturn:
    first = step.resolution
    assert first is not None
    raise AlreadyResolved(
        str(state.key), step=step.path, how=first.how, by=first.by, at=first.at, used=first.used
    )


def release_claim(key: StreamKey, owner: str, stamp: AppendContext) -> Operation[None]:
    """Release a lease whose claim was interrupted before the response arrived."""
    head = yield from ops.head(key)
    if head is None or head.fields.owner != owner:
        return
    state = yield from load_task(key, end=head.version)
    before = state.status_before
    over = before in ("failed", "stuck")  # it stays so: no worker runs it
    left = ev.new_event(ev.RELEASED, ev.Released(why="interrupted", unchanged=over))
    due = None if over or state.agent is None else head.now
    fields = HeadFields(before if over else "pending", head.fields.label, None, due)
    yield from append_events(
        key,
        [left],
        stamp,
        expected=head.version,
        fields=fields,
        incarnation=head.incarnation,
        exclusive=True,
    )


class ForkRequest(msgspec.Struct, frozen=True):
    """A fork to create: from which version, and what it changes.

    `input` is its input, encoded; None keeps the parent's. `results` are results of completed
    steps, encoded, by the steps' paths. `by` is who forks it.
    """

    child: StreamKey
    version: int | None
    input: bytes | None
    results: dict[str, bytes]
    by: str | None


def fork_task(key: StreamKey, request: ForkRequest, stamp: AppendContext) -> Operation[None]:
    """Create a task that starts with this one's events up to a version, without copying them.

    The fork is recorded in the parent first, so that the parent can't be deleted while it's needed.
    """
    child, version = request.child, request.version
    head = yield from require_head(key)
    there = yield from load_branch(child)
    incarnation = head.incarnation.hex()
    if (
        version is None
        and there is not None
        and (there.parent, there.incarnation) == (key.id, incarnation)
    ):
        version = there.at  # created by a call that was interrupted
    at = head.version if version is None else check_int(version, "version")
    if not 1 <= at <= head.version:
        raise NotFound(f"{key} has versions 1 to {head.version}; version {at} not found")
    branched = ev.Branched(key.id, incarnation, at)
    if request.input is not None:
        branched = msgspec.structs.replace(branched, input=msgspec.Raw(request.input))
    changes = yield from _change_results(key, at, request)
    child_head = yield from ops.head(child)
    if child_head is not None:
        if there == branched and child_head.version == 1 + len(changes):
            stored = yield from ops.read(child, after=1)
            known = [(one.envelope.type, bytes(one.envelope.data)) for one in stored]
            if known == [(change.type, change.data) for change in changes]:
                return
        raise AlreadyExists(f"{child} already exists; give the fork another id")
    yield from check_not_retired(child)
    forked = ev.new_event(ev.FORKED, ev.Forked(child.id, at))
    yield from append_events(key, [forked], stamp, incarnation=head.incarnation)
    first = [ev.new_event(ev.BRANCHED, branched), *changes]
    fields = HeadFields("pending", head.fields.label)
    later = msgspec.structs.replace(stamp, id=stamp.id + 1)
    yield from append_events(child, first, later, expected=0, fields=fields)
    now = yield from ops.head(key)
    if now is None or now.incarnation != head.incarnation:  # deleted meanwhile
        yield from delete_stream(child, stamp, "its parent was deleted during the fork")
        raise NotFound(f"{key} was deleted while it was being forked")


def _change_results(key: StreamKey, at: int, request: ForkRequest) -> Operation[list[NewEvent]]:
    """Return the events that give steps of a fork other results."""
    if not request.results:
        return []
    state = yield from load_task(key, at)
    events = []
    for path, result in request.results.items():
        step = state.steps.get(path)
        if step is None or step.state != "completed":
            raise NotFound(f"{key} has no completed step {path!r} at version {at}")
        if step.reply is not None:
            raise ValueError(
                f"the result of step {path!r} is a message of a conversation: fork the conversation"
            )
        problem = find_mismatch(decode(result), step.schema, "the result")
        if problem is not None:
            raise TypeError(f"step {path!r} of {key}: {problem}; {describe_schema(step.schema)}")
        if len(result) > INLINE_BYTES:
            raise ValueError(
                f"the result of a step in a fork must be at most {INLINE_BYTES} bytes as JSON,"
                f" got {len(result)}"
            )
        event = ev.StepEvent(path, by=request.by, result=msgspec.Raw(result))
        events.append(ev.new_event(ev.STEP_RESOLVED, event))
    return events


def delete_task(
    key: StreamKey, stamp: AppendContext, reason: str, *, seen: Head | None = None
) -> Operation[bool]:
    """Delete a task, and free its id. Raise `HasForks` if forks of it exist."""
    head = seen or (yield from readable_head(key))
    if head is not None:
        forks = yield from list_forks(head, damaged=True)
        if forks:
            raise HasForks(str(key), forks=forks)
    deleted = yield from delete_stream(key, stamp, reason, head)
    freed = yield from free_id(key, msgspec.structs.replace(stamp, id=stamp.id + 1))
    queue = key._replace(kind="notification")
    if (yield from ops.head(queue, damaged=True)) is not None:
        after = msgspec.structs.replace(stamp, id=stamp.id + 2)
        yield from delete_stream(queue, after, "its task was deleted")
    return deleted or freed
