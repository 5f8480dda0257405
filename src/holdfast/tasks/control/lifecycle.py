"""What can be done to a task from outside: cancelled, forked, deleted, and a step that is in doubt settled."""

from __future__ import annotations

from typing import Final

import msgspec

from ...backends import Head, HeadFields, StreamKey
from ...errors import AlreadyExists, Expired, HasForks, LeaseHeld, NotFound, TaskEnded
from ...log import operations as ops
from ...log.blobs import incarnation_hex, put_blob
from ...log.events import INLINE_BYTES, AppendContext
from ...log.forks import living_forks
from ...log.operations import Operation
from ...log.retired_ids import check_open, reopen
from ...log.stream_ops import append_events, delete_stream
from ...log.validation import whole_number
from ..state import events as ev
from ..state.fold import StepRecord, TaskState
from ..state.load import branched_from, is_expired, is_held, label_of, load, missing
from ..state.view import ENDED


def existing(key: StreamKey) -> Operation[Head]:
    """The head of a task that is there and has not expired."""
    head = yield from ops.head(key)
    if head is None:
        yield from check_open(key)
        raise missing(key)
    if is_expired(head):
        raise Expired(str(key), at=head.fields.expires_at or 0.0)
    return head


def cancel(
    key: StreamKey, reason: str | None, stamp: AppendContext
) -> Operation[tuple[TaskState, str]]:
    """End a task, whoever holds it: the holder's next write is refused. The task as it was, and which life of it."""
    head = yield from existing(key)
    state = yield from load(key)
    if state.status == "cancelled":
        return state, incarnation_hex(head.incarnation)
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
    return state, incarnation_hex(head.incarnation)


def reported(key: StreamKey, stamp: AppendContext) -> Operation[None]:
    """A child's parent knows that it has ended: nobody need look at it any more."""
    head = yield from ops.head(key)
    if head is not None and head.fields.status in ENDED and head.fields.due_at is not None:
        fields = msgspec.structs.replace(head.fields, due_at=None)
        event = ev.new_event(ev.REPORTED, ev.Reported())
        yield from append_events(
            key, [event], stamp, expected=head.version, fields=fields, incarnation=head.incarnation
        )


def resolve(
    key: StreamKey, step: str, result: bytes | None, stamp: AppendContext, *, retry: bool
) -> Operation[None]:
    """Settle a step that is in doubt: it was done, with this result; or it was not, and is to be run again."""
    head = yield from existing(key)
    state = yield from load(key)
    if state.ended:
        raise TaskEnded(str(key), status=state.status)
    run = state.runs if is_held(head) else None
    found = _find(state, step, run, retry=retry)
    if found.state == "started" and found.run == run:
        raise LeaseHeld(str(key), owner=head.fields.owner or "", until=head.fields.due_at or 0)
    event = ev.StepEvent(found.path, again=retry)
    if result is not None:
        if len(result) > INLINE_BYTES:
            blob = yield from put_blob(key, incarnation_hex(head.incarnation), result, stamp)
            event = msgspec.structs.replace(event, blob=blob)
        else:
            event = msgspec.structs.replace(event, result=msgspec.Raw(result))
    settled = ev.new_event(ev.STEP_SETTLED, event)
    state.apply(key, state.version + 1, stamp.at, ev.STEP_SETTLED, event)
    # What a list shows: whether others are in doubt still. At the version of the head whose lease this repeats.
    doubt = any(step.in_doubt(run) for step in state.steps.values())
    fields = msgspec.structs.replace(head.fields, label=label_of(state, doubt))
    if state.agent is not None and head.fields.owner is None and not state.is_blocked(run):
        fields = msgspec.structs.replace(
            fields, status="pending", due_at=head.now
        )  # a worker may go on
    yield from append_events(
        key,
        [settled],
        stamp,
        expected=head.version,
        fields=fields,
        incarnation=head.incarnation,
        exclusive=True,
    )


SETTLED: Final = ("completed", "resolved")


def _find(state: TaskState, name: str, run: int | None, *, retry: bool) -> StepRecord:
    """The step that can be settled under a path or a name."""
    doubtful = [step for step in state.steps.values() if step.in_doubt(run)]
    if retry:
        doubtful += [
            step for step in state.steps.values() if step.state == "failed" and not step.doubt
        ]
    # What was settled may be settled again: somebody may have been wrong, or given a result of another type.
    settled = [step for step in state.steps.values() if (step.state, step.how) == SETTLED]
    named = [step for step in doubtful if step.place.name == name]
    for step in (*doubtful, *settled):
        if step.path == name:
            return step
    named = named or [step for step in settled if step.place.name == name]
    if len(named) == 1:
        return named[0]
    at_it = state.steps.get(name)
    if at_it is not None and at_it.state == "started" and at_it.run == run:
        return at_it
    there = ", ".join(repr(step.path) for step in (named or doubtful)[:10]) or "none"
    what = "several steps have that name" if named else "it has no such step in doubt"
    raise NotFound(f"{state.key}: {what}; to be settled: {there}")


def give_up(key: StreamKey, owner: str, stamp: AppendContext) -> Operation[None]:
    """Give a task back that was claimed by somebody who was cut off before hearing of it."""
    head = yield from ops.head(key)
    if head is None or head.fields.owner != owner:
        return
    left = ev.new_event(ev.LEFT, ev.Left(why="interrupted"))
    state = yield from load(key)
    fields = HeadFields(
        "pending", head.fields.label, None, None if state.agent is None else head.now
    )  # a worker may have it
    yield from append_events(
        key,
        [left],
        stamp,
        expected=head.version,
        fields=fields,
        incarnation=head.incarnation,
        exclusive=True,
    )


def fork(
    key: StreamKey, child: StreamKey, version: int | None, stamp: AppendContext
) -> Operation[None]:
    """Begin another task with this one's events up to a version. Copies nothing; the parent hears of it first."""
    head = yield from existing(key)
    there = yield from branched_from(child)
    incarnation = incarnation_hex(head.incarnation)
    if (
        version is None
        and there is not None
        and (there.parent, there.incarnation) == (key.id, incarnation)
    ):
        version = there.at  # made by a call that was cut off
    at = head.version if version is None else whole_number(version, "version")
    if not 1 <= at <= head.version:
        raise NotFound(
            f"{key} has versions 1 to {head.version}; there is no version {at} to fork at"
        )
    branched = ev.Branched(key.id, incarnation, at)
    standing = yield from ops.head(child)
    if standing is not None:
        if there == branched and standing.version == 1:
            return
        raise AlreadyExists(f"{child} exists already; give the fork an id of its own")
    yield from check_open(child)
    told = ev.new_event(ev.FORKED, ev.Forked(child.id, at))
    yield from append_events(key, [told], stamp, incarnation=head.incarnation)
    first = ev.new_event(ev.BRANCHED, branched)
    fields = HeadFields("pending", head.fields.label)
    later = msgspec.structs.replace(stamp, id=stamp.id + 1)
    yield from append_events(child, [first], later, expected=0, fields=fields)
    now = yield from ops.head(key)
    if now is None or now.incarnation != head.incarnation:  # it was deleted while it was forked
        yield from delete_stream(child, stamp, "what it was forked from was deleted meanwhile")
        raise NotFound(f"{key} was deleted while it was forked")


def delete(
    key: StreamKey, stamp: AppendContext, reason: str, *, seen: Head | None = None
) -> Operation[bool]:
    """Delete a task and free its id, unless forks still begin with it."""
    head = seen or (yield from ops.head(key))
    if head is not None:
        living = yield from living_forks(head)
        if living:
            raise HasForks(str(key), forks=living)
    deleted = yield from delete_stream(key, stamp, reason, head)
    freed = yield from reopen(key, msgspec.structs.replace(stamp, id=stamp.id + 1))
    return deleted or freed
