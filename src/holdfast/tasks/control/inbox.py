"""Messages to a task from outside: answers, signals, the end of a child, and queueing a run."""

from __future__ import annotations

from typing import Any

import msgspec

from ...backends import Head, HeadFields, StreamKey
from ...errors import AlreadyAnswered, LeaseHeld, NotFound, TaskEnded
from ...log import operations as ops
from ...log.codec import decode
from ...log.events import AppendContext
from ...log.operations import Operation
from ...log.operations.stream_ops import append_events
from ..state import events as ev
from ..state.fold import TaskState
from ..state.load import encode_label, is_leased, load_task
from ..steps.usage import Budget
from .lifecycle import require_head
from .value_schema import describe_schema, find_mismatch


def answer_question(
    key: StreamKey,
    name: str,
    value: bytes,
    by: str | None,
    question: str | None,
    stamp: AppendContext,
) -> Operation[None]:
    """Answer a task's open question, given its name."""
    head, state = yield from _load_unfinished(key)
    current = state.waits.question_ids.get(name)
    wait = state.waits.all[current] if current is not None else None
    if wait is None:
        open_ = (
            ", ".join(repr(each.event.name) for each in state.waits.open_questions()[:10]) or "none"
        )
        raise NotFound(f"{key} has no open question {name!r}; open questions: {open_}")
    if question is not None and question != current:
        replaced = state.waits.all.get(question)
        if replaced is not None and replaced.event.name == name:
            raise NotFound(f"question {name!r} of {key} has changed; read it again, then answer it")
        raise NotFound(
            f"question {name!r} of {key} doesn't have the given question id; it may have been asked"
            " again since. Read it again, then answer it"
        )
    if wait.how == "timeout":
        raise NotFound(f"question {name!r} of {key} has timed out; it can't be answered any more")
    if wait.how is not None:
        raise AlreadyAnswered(str(key), question=name, by=wait.by)
    if (problem := find_mismatch(decode(value), wait.event.schema)) is not None:
        raise TypeError(f"{name!r} of {key}: {problem}; {describe_schema(wait.event.schema)}")
    answered = ev.Answered(wait.event.wait, "answered", by, value=msgspec.Raw(value))
    yield from _append_message(state, head, ev.ANSWERED, answered, stamp)


def send_signal(
    key: StreamKey, name: str, payload: bytes, id: str | None, stamp: AppendContext
) -> Operation[bool]:
    """Send a signal to a task. Return False if a signal with this `id` was sent before."""
    head, state = yield from _load_unfinished(key)
    schemas = [wait.event.schema for wait in state.waits.open_signals(name)]
    problems = [find_mismatch(decode(payload), schema) for schema in schemas]
    if problems and None not in problems:
        raise TypeError(f"signal {name!r} to {key}: {problems[0]}; {describe_schema(schemas[0])}")
    duplicate = yield from _append_message(
        state, head, ev.SIGNALLED, ev.Signalled(name, msgspec.Raw(payload)), stamp, id=id
    )
    return not duplicate


def report_child_ended(
    parent: StreamKey, incarnation: str, child: str, status: str, stamp: AppendContext
) -> Operation[None]:
    """Report the end of a child to its parent, unless the parent is deleted or has ended."""
    head = yield from ops.head(parent)
    if head is None or head.incarnation.hex() != incarnation:
        return
    state = yield from load_task(parent, end=head.version)
    if not state.ended:
        yield from _append_message(state, head, ev.CHILD_ENDED, ev.ChildEnded(child, status), stamp)


def queue_task(
    key: StreamKey,
    head: Head,
    state: TaskState,
    queued: ev.Queued,
    budget: Budget | None,
    stamp: AppendContext,
) -> Operation[bool]:
    """Schedule a task for a worker. Return False if it has ended, or is running."""
    if state.ended or head.fields.owner is not None:
        return False
    state.apply(key, state.version + 1, stamp.at, ev.QUEUED, queued)
    doubt = any(step.in_doubt(None) for step in state.steps.values())
    due_at = max(head.now, queued.at or 0.0)
    label = encode_label(state, doubt, later=due_at > head.now)
    fields = HeadFields("pending", label, None, due_at)
    events = [ev.new_event(ev.QUEUED, queued)]
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


def retry_task(
    key: StreamKey, budget: Budget | None, timeout: float | None, stamp: AppendContext
) -> Operation[None]:
    """Queue a task again. One whose process died is due already, so nothing changes."""
    head, state = yield from _load_unfinished(key)
    if state.agent is None:
        raise ValueError(
            f"{key} has no agent, so workers can't run it; resume it from the program that created"
            " it"
        )
    if is_leased(head):
        raise LeaseHeld(str(key), owner=head.fields.owner or "", until=head.fields.due_at or 0)
    yield from queue_task(key, head, state, ev.Queued(timeout=timeout), budget, stamp)


def _load_unfinished(key: StreamKey) -> Operation[tuple[Head, TaskState]]:
    head = yield from require_head(key)
    state = yield from load_task(key, end=head.version)
    if state.ended:
        raise TaskEnded(str(key), status=state.status)
    return head, state


def _append_message(
    state: TaskState,
    head: Head,
    name: str,
    event: Any,
    stamp: AppendContext,
    *,
    id: str | None = None,
) -> Operation[bool]:
    """Append a message, and make a task that waits for it due. Return True for a duplicate."""
    waited = state.status == "suspended"
    state.apply(state.key, state.version + 1, stamp.at, name, event)
    fields = head.fields
    if waited and state.status == "pending":
        fields = HeadFields("pending", head.fields.label, None, head.now, None)
    elif (
        state.agent is not None and fields.status in ("pending", "failed") and fields.due_at is None
    ):
        # The task was left, or failed, while it waited: let a worker resume it.
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
