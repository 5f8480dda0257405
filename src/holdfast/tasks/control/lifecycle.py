"""Operations on a task from outside its block: cancel, fork, delete, resolve a step in doubt."""

from __future__ import annotations

from typing import Final

import msgspec

from ...backends import Head, HeadFields, StreamKey
from ...errors import AlreadyExists, Expired, HasForks, LeaseHeld, NotFound, TaskEnded
from ...log import operations as ops
from ...log.events import INLINE_BYTES, AppendContext
from ...log.operations import Operation
from ...log.operations.blobs import put_blob
from ...log.operations.forks import list_forks
from ...log.operations.retired_ids import check_not_retired, free_id
from ...log.operations.stream_ops import append_events, delete_stream
from ...log.validation import check_int
from ..state import events as ev
from ..state.fold import StepRecord, TaskState
from ..state.load import encode_label, is_expired, is_leased, load_branch, load_task, task_not_found
from ..state.view import ENDED


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
    key: StreamKey, reason: str | None, stamp: AppendContext
) -> Operation[tuple[TaskState, str]]:
    """Cancel a task: the next write of its lease owner is refused.

    Return the task as it was, and its incarnation.
    """
    head = yield from require_head(key)
    state = yield from load_task(key)
    if state.status == "cancelled":
        return state, head.incarnation.hex()
    if state.ended:
        raise TaskEnded(str(key), status=state.status)
    expires = None if state.ttl is None else head.now + state.ttl
    fields = HeadFields(
        "cancelled", head.fields.label, None, None if state.parent is None else head.now, expires
    )
    event = ev.new_event(ev.CANCELLED, ev.Cancelled(reason))
    yield from append_events(
        key, [event], stamp, expected=state.version, fields=fields, exclusive=True
    )
    return state, head.incarnation.hex()


def mark_reported(key: StreamKey, stamp: AppendContext) -> Operation[None]:
    """Record that the parent knows the end of this child, which is then no longer due."""
    head = yield from ops.head(key)
    if head is not None and head.fields.status in ENDED and head.fields.due_at is not None:
        fields = msgspec.structs.replace(head.fields, due_at=None)
        event = ev.new_event(ev.REPORTED, ev.Reported())
        yield from append_events(
            key, [event], stamp, expected=head.version, fields=fields, incarnation=head.incarnation
        )


def resolve_step(
    key: StreamKey, step: str, result: bytes | None, stamp: AppendContext, *, retry: bool
) -> Operation[None]:
    """Resolve a step in doubt: it was done, with this result; or with `retry` it runs again."""
    head = yield from require_head(key)
    state = yield from load_task(key)
    if state.ended:
        raise TaskEnded(str(key), status=state.status)
    run = state.runs if is_leased(head) else None
    found = _find_resolvable(state, step, run, retry=retry)
    if found.state == "started" and found.run == run:
        raise LeaseHeld(str(key), owner=head.fields.owner or "", until=head.fields.due_at or 0)
    event = ev.StepEvent(found.path, again=retry)
    if result is not None:
        if len(result) > INLINE_BYTES:
            blob = yield from put_blob(key, head.incarnation.hex(), result, stamp)
            event = msgspec.structs.replace(event, blob=blob)
        else:
            event = msgspec.structs.replace(event, result=msgspec.Raw(result))
    resolved = ev.new_event(ev.STEP_RESOLVED, event)
    state.apply(key, state.version + 1, stamp.at, ev.STEP_RESOLVED, event)
    # The label shows whether other steps are still in doubt. The fields repeat the head's lease, so
    # they are only valid at the head's version.
    doubt = any(step.in_doubt(run) for step in state.steps.values())
    fields = msgspec.structs.replace(head.fields, label=encode_label(state, doubt))
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


RESOLVED: Final = ("completed", "resolved")


def _find_resolvable(state: TaskState, name: str, run: int | None, *, retry: bool) -> StepRecord:
    """Return the step to resolve, by its path or its name."""
    doubtful = [step for step in state.steps.values() if step.in_doubt(run)]
    if retry:
        doubtful += [
            step for step in state.steps.values() if step.state == "failed" and not step.doubt
        ]
    # A resolved step can be resolved again, to correct a mistake or the type of the result.
    resolved = [step for step in state.steps.values() if (step.state, step.how) == RESOLVED]
    named = [step for step in doubtful if step.parsed_path.name == name]
    for step in (*doubtful, *resolved):
        if step.path == name:
            return step
    named = named or [step for step in resolved if step.parsed_path.name == name]
    if len(named) == 1:
        return named[0]
    running = state.steps.get(name)
    if running is not None and running.state == "started" and running.run == run:
        return running
    there = ", ".join(repr(step.path) for step in (named or doubtful)[:10]) or "none"
    what = "several steps have that name" if named else "no such step is in doubt"
    raise NotFound(f"{state.key}: {what}; steps to resolve: {there}")


def release_claim(key: StreamKey, owner: str, stamp: AppendContext) -> Operation[None]:
    """Release a lease whose claim was interrupted before its response came."""
    head = yield from ops.head(key)
    if head is None or head.fields.owner != owner:
        return
    left = ev.new_event(ev.RELEASED, ev.Released(why="interrupted"))
    state = yield from load_task(key)
    due = None if state.agent is None else head.now  # a worker can run it
    fields = HeadFields("pending", head.fields.label, None, due)
    yield from append_events(
        key,
        [left],
        stamp,
        expected=head.version,
        fields=fields,
        incarnation=head.incarnation,
        exclusive=True,
    )


def fork_task(
    key: StreamKey, child: StreamKey, version: int | None, stamp: AppendContext
) -> Operation[None]:
    """Create a task that starts with this one's events up to a version, without copying them.

    The fork is recorded in the parent first, so that the parent isn't deleted under it.
    """
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
    child_head = yield from ops.head(child)
    if child_head is not None:
        if there == branched and child_head.version == 1:
            return
        raise AlreadyExists(f"{child} already exists; give the fork another id")
    yield from check_not_retired(child)
    forked = ev.new_event(ev.FORKED, ev.Forked(child.id, at))
    yield from append_events(key, [forked], stamp, incarnation=head.incarnation)
    first = ev.new_event(ev.BRANCHED, branched)
    fields = HeadFields("pending", head.fields.label)
    later = msgspec.structs.replace(stamp, id=stamp.id + 1)
    yield from append_events(child, [first], later, expected=0, fields=fields)
    now = yield from ops.head(key)
    if now is None or now.incarnation != head.incarnation:  # it was deleted while it was forked
        yield from delete_stream(child, stamp, "its parent was deleted while it was forked")
        raise NotFound(f"{key} was deleted while it was forked")


def delete_task(
    key: StreamKey, stamp: AppendContext, reason: str, *, seen: Head | None = None
) -> Operation[bool]:
    """Delete a task, and free its id. Raise `HasForks` if forks of it exist."""
    head = seen or (yield from ops.head(key))
    if head is not None:
        forks = yield from list_forks(head)
        if forks:
            raise HasForks(str(key), forks=forks)
    deleted = yield from delete_stream(key, stamp, reason, head)
    freed = yield from free_id(key, msgspec.structs.replace(stamp, id=stamp.id + 1))
    return deleted or freed
