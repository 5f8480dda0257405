"""What comes to a task from outside while it waits: answers, signals, the end of a child, and the call to run it again."""

from __future__ import annotations

from typing import Any

import msgspec

from ...backends import Head, HeadFields, StreamKey
from ...errors import AlreadyAnswered, NotFound, TaskEnded
from ...log import operations as ops
from ...log.blobs import incarnation_hex
from ...log.codec import decode
from ...log.events import AppendContext
from ...log.operations import Operation
from ...log.stream_ops import append_events
from ..state import events as ev
from ..state.fold import TaskState
from ..state.load import label_of, load
from ..steps.usage import Budget
from .lifecycle import existing
from .question_schema import misfit, said


def answer(
    key: StreamKey,
    name: str,
    value: bytes,
    by: str | None,
    question: str | None,
    stamp: AppendContext,
) -> Operation[None]:
    """Answer the question that a task asks under a name."""
    head, state = yield from _living(key)
    current = state.waits.current.get(name)
    wait = state.waits.all[current] if current is not None else None
    if wait is None or (question is not None and question != current):
        if question is not None and question in state.waits.all:
            raise NotFound(
                f"{key} asks {name!r} about something else by now; look again, then answer that"
            )
        open_ = ", ".join(repr(each.event.name) for each in state.waits.open_asks()[:10]) or "none"
        raise NotFound(f"{key} does not ask {name!r}; open questions: {open_}")
    if wait.how == "timeout":
        raise NotFound(f"{key} does not ask {name!r} any more: nobody answered in time")
    if wait.how is not None:
        raise AlreadyAnswered(str(key), question=name, by=wait.by)
    if (problem := misfit(decode(value), wait.event.schema)) is not None:
        raise TypeError(f"{name!r} of {key}: {problem}; {said(wait.event.schema)}")
    answered = ev.Answered(wait.event.wait, "answered", by, value=msgspec.Raw(value))
    yield from _tell(state, head, ev.ANSWERED, answered, stamp)


def signal(
    key: StreamKey, name: str, payload: bytes, id: str | None, stamp: AppendContext
) -> Operation[bool]:
    """Tell a task that something happened; False if this `id` was told before."""
    head, state = yield from _living(key)
    schemas = [wait.event.schema for wait in state.waits.open_signals(name)]
    problems = [misfit(decode(payload), schema) for schema in schemas]
    if problems and None not in problems:
        raise TypeError(f"signal {name!r} to {key}: {problems[0]}; {said(schemas[0])}")
    told = yield from _tell(
        state, head, ev.SIGNALLED, ev.Signalled(name, msgspec.Raw(payload)), stamp, id=id
    )
    return not told


def child_ended(
    parent: StreamKey, incarnation: str, child: str, status: str, stamp: AppendContext
) -> Operation[None]:
    """Tell a parent that its child has ended on its own. A parent that is gone or has ended need not know."""
    head = yield from ops.head(parent)
    if head is None or incarnation_hex(head.incarnation) != incarnation:
        return
    state = yield from load(parent)
    if not state.ended:
        yield from _tell(state, head, ev.CHILD_ENDED, ev.ChildEnded(child, status), stamp)


def queue(
    key: StreamKey,
    head: Head,
    state: TaskState,
    at: float | None,
    budget: Budget | None,
    stamp: AppendContext,
) -> Operation[bool]:
    """Let a worker run a task, now or at a time; False if it has ended, or is being run."""
    if state.ended or head.fields.owner is not None:
        return False
    state.apply(key, state.version + 1, stamp.at, ev.QUEUED, ev.Queued(at))
    fields = HeadFields(
        "pending", label_of(state, doubt_in(state)), None, max(head.now, at or 0.0), None
    )
    events = [ev.new_event(ev.QUEUED, ev.Queued(at))]
    if budget is not None and budget != state.budget:
        events.append(ev.new_event(ev.BUDGETED, ev.Budgeted(budget)))
    yield from append_events(
        key,
        events,
        stamp,
        expected=head.version,
        fields=fields,
        incarnation=head.incarnation,
        exclusive=True,
    )
    return True


def doubt_in(state: TaskState) -> bool:
    return any(step.in_doubt(None) for step in state.steps.values())


def _living(key: StreamKey) -> Operation[tuple[Head, TaskState]]:
    head = yield from existing(key)
    state = yield from load(key)
    if state.ended:
        raise TaskEnded(str(key), status=state.status)
    return head, state


def _tell(
    state: TaskState,
    head: Head,
    name: str,
    event: Any,
    stamp: AppendContext,
    *,
    id: str | None = None,
) -> Operation[bool]:
    """Append what somebody says; if the task waits for just that, it is due now. Whether it was said before."""
    waited = state.status == "suspended"
    state.apply(state.key, state.version + 1, stamp.at, name, event)
    fields = head.fields
    if waited and state.status == "pending":
        fields = HeadFields("pending", head.fields.label, None, head.now, None)
    elif (
        state.agent is not None and fields.status in ("pending", "failed") and fields.due_at is None
    ):
        # It was left, or failed, while it waited.
        fields = msgspec.structs.replace(fields, status="pending", due_at=head.now)
    answer = yield from append_events(
        state.key,
        [ev.new_event(name, event)],
        stamp,
        id=None if id is None else f"signal/{id}",
        expected=head.version,
        fields=fields,
        incarnation=head.incarnation,
        exclusive=True,
    )
    return answer.duplicate
