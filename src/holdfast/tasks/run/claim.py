"""Opening a task: admission, and who may work on it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...backends import Head, HeadFields, StreamKey, clock
from ...errors import Conflict, Expired, LeaseHeld, ReplayMismatch, TaskEnded
from ...log import operations as ops
from ...log.codec import decode, encode, encode_as
from ...log.codec.walk import SourcedList
from ...log.events import AppendContext
from ...log.ids import append_id, checked_id, new_secret
from ...log.log import Log
from ...log.operations import Operation
from ...log.retired_ids import closed_at, reopen
from ...log.stream_ops import append_events, new_append_context
from ...log.subjects import note_subject
from ...log.validation import seconds, shown
from ..control.inbox import queue
from ..control.lifecycle import cancel, delete
from ..state import events as ev
from ..state.fold import TaskState
from ..state.load import is_expired, is_held, label_of, load
from ..state.view import ENDED
from ..steps.usage import Budget
from .effects import RunOperation, Script, Sleep

if TYPE_CHECKING:
    from ...redact import Redactor

TASK_TTL: Final = timedelta(days=7)
NATIVE: Final = (type(None), bool, int, float, str, list, dict, SourcedList)
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.25
SKEW: Final = 2.0
"""If the engine's clock is so far from ours, what was told by ours is told again by the engine's."""

logger = logging.getLogger("holdfast")


class OpenOptions(msgspec.Struct, frozen=True):
    """What a task is opened with. What is None is taken as it is stored."""

    goal: str | None
    input: bytes | None
    agent: str | None
    lease: float
    wait: float | None
    steal: bool
    ttl: float | None
    restart: bool
    parent: ev.Parent | None = None
    budget: Budget | None = None
    subject: str | None = None
    redactor: Redactor | None = None


def as_wanted(
    goal: str | None,
    input: object,
    agent: str | None,
    lease: float | timedelta,
    wait: float | timedelta | None,
    steal: bool,
    ttl: float | timedelta | None,
    restart: bool,
    budget: Budget | None = None,
    subject: str | None = None,
) -> OpenOptions:
    """The arguments of `store.task`, checked."""
    if goal is not None and (type(goal) is not str or not goal.strip()):
        raise ValueError(f"goal must be text that is not empty, got {shown(goal)}")
    if agent is not None:
        checked_id(agent, "agent")
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(
            f"budget must be a holdfast.Budget(tokens=…, cost=…, calls=…), got {shown(budget)}"
        )
    raw = None if input is None else encode_as(input, declared_type(input))
    return OpenOptions(
        None if goal is None else encode_text(goal, "goal"),
        raw,
        agent,
        seconds(lease, "lease", 0.1),
        None if wait is None else seconds(wait, "wait"),
        bool(steal),
        None if ttl is None else seconds(ttl, "ttl"),
        bool(restart),
        budget=budget,
        subject=None if subject is None else checked_id(subject, "subject"),
    )


def redacted(log: Log, wanted: OpenOptions, declared: Any = Any) -> OpenOptions:
    """What a task is opened with, as it is to be stored. `declared`: the type of its input."""
    if log.redactor is None:
        return wanted
    raw = None if wanted.input is None else log.redaction.encoded(wanted.input, declared)
    return msgspec.structs.replace(
        wanted, goal=log.redaction.text(wanted.goal), input=raw, redactor=log.redactor
    )


def encode_text(text: object, what: str) -> str:
    """A text that can be stored."""
    if type(text) is not str:
        raise TypeError(f"{what} must be text, got {type(text).__name__}")
    encode(text)
    return text


def declared_type(value: object) -> Any:
    """The type by which a value is stored: its own, unless it is a plain JSON value."""
    return Any if type(value) in NATIVE else type(value)


class Claim(msgspec.Struct, frozen=True):
    """A task that may be worked on, or that had ended."""

    state: TaskState
    incarnation: bytes
    now: float
    before: HeadFields = HeadFields()
    """How it stood before."""
    waited: ev.TaskSuspended = ev.TaskSuspended()
    """What it waited for."""


def enter(key: StreamKey, wanted: OpenOptions, owner: str) -> Script[Claim]:
    """Claim a task: at once if it is free or its holder is dead, else when the holder gives it back or its lease ends."""
    wait = wanted.lease if wanted.wait is None else wanted.wait
    deadline = clock.monotonic() + wait
    pause, told = FIRST_PAUSE, False
    stamp = new_append_context()
    while True:
        answer: Claim | LeaseHeld = yield RunOperation(lambda: claim(key, wanted, owner, stamp))
        if isinstance(answer, Claim):
            return answer
        left = deadline - clock.monotonic()
        if left <= 0:
            raise answer
        if not told:
            logger.info("%s is held by %s; waiting for it, up to %.0f s", key, answer.owner, left)
            told = True
        yield Sleep(min(pause, left))
        pause = min(pause * 2, LONGEST_PAUSE)


def claim(
    key: StreamKey, wanted: OpenOptions, owner: str, stamp: AppendContext
) -> Operation[Claim | LeaseHeld]:
    """Take a task, make it if there is none, or say who has it."""
    claimed = ev.Claimed(owner, wanted.lease)
    made = yield from _admit(
        key, wanted, ev.CLAIMED, claimed, lambda now: now + wanted.lease, stamp
    )
    if isinstance(made, Claim):
        return made
    head = made
    if is_held(head) and head.fields.owner != owner and not wanted.steal:
        return LeaseHeld(str(key), owner=head.fields.owner or "", until=head.fields.due_at or 0)
    state = yield from load(key)
    _compare(state, wanted)
    waited = state.suspended_on
    if not state.ended:
        yield from _take(state, head, wanted, owner, stamp)
    return Claim(state, head.incarnation, head.now, head.fields, waited)


def submit(
    key: StreamKey, wanted: OpenOptions, at: float | None, stamp: AppendContext
) -> Operation[bool]:
    """Make a task for a worker to run, or let one that is there be run again. Whether it is new."""
    made = yield from _admit(
        key, wanted, ev.QUEUED, ev.Queued(at), lambda now: max(now, at or 0.0), stamp
    )
    if isinstance(made, Claim):
        return True
    state = yield from load(key)
    _compare(state, wanted)
    yield from queue(key, made, state, at, wanted.budget, stamp)
    return False


def _admit(
    key: StreamKey,
    wanted: OpenOptions,
    name: str,
    second: ev.TaskEvent,
    due: Callable[[float], float],
    stamp: AppendContext,
) -> Operation[Claim | Head]:
    """Make a task if there is none, or begin an expired one anew; else the head of the one that is there.

    `due` says when it is due, by the time that it is now.
    """
    head = yield from ops.head(key)
    if head is not None and not is_expired(head):
        return head
    closed = None
    if wanted.parent is not None:
        yield from _check_parent(key, wanted.parent)
    if head is not None:
        if not wanted.restart:
            raise Expired(str(key), at=head.fields.expires_at or 0.0)
        yield from delete(key, stamp, "it had expired, and was begun anew", seen=head)
    else:
        closed = yield from closed_at(key)
        if closed is not None and not wanted.restart:
            raise Expired(str(key), at=closed, swept=True)
    made = yield from _create(key, wanted, name, second, due, stamp)
    if wanted.parent is not None:
        try:
            yield from _check_parent(key, wanted.parent)
        except TaskEnded:  # whoever cancelled the parent has looked for children, and found none
            after = msgspec.structs.replace(stamp, id=stamp.id + 3)  # the first three are taken
            yield from cancel(key, "its parent has ended", after)
            raise
    if closed is not None:
        try:
            yield from reopen(key, stamp)
        except Conflict:
            pass  # the mark counts for nothing while the task is there
    return made


def _check_parent(key: StreamKey, parent: ev.Parent) -> Operation[None]:
    """`TaskEnded` if the parent of a child has ended: cancelled while it was about to have it, say."""
    above = key._replace(id=parent.id)
    head = yield from ops.head(above)
    if head is None or head.fields.status in ENDED:
        raise TaskEnded(str(above), status=(head and head.fields.status) or "deleted")


def _create(
    key: StreamKey,
    wanted: OpenOptions,
    name: str,
    second: ev.TaskEvent,
    due: Callable[[float], float],
    stamp: AppendContext,
) -> Operation[Claim]:
    created = ev.Created(
        salt=new_secret().hex(),
        ttl=wanted.ttl,
        goal=wanted.goal,
        agent=wanted.agent,
        parent=wanted.parent,
        budget=wanted.budget,
        subject=wanted.subject,
        input=msgspec.Raw(wanted.input or b"null"),
    )
    state = TaskState(key)
    state.apply(key, 1, stamp.at, ev.CREATED, created)
    state.apply(key, 2, stamp.at, name, second)
    events = [ev.new_event(ev.CREATED, created), ev.new_event(name, second)]
    fields = HeadFields(state.status, label_of(state, doubt=False), state.owner, due(stamp.at))
    # Chosen here, because the keys of its steps are made from it.
    incarnation = append_id(stamp.id)
    if wanted.subject is not None:
        yield from note_subject(
            key, incarnation, wanted.subject, msgspec.structs.replace(stamp, id=stamp.id + 4)
        )
    answer = yield from append_events(
        key, events, stamp, expected=0, fields=fields, incarnation=incarnation, exclusive=True
    )
    now = answer.now or stamp.at
    if abs(now - stamp.at) > SKEW:  # nobody could say before what the time is there
        after = msgspec.structs.replace(stamp, id=stamp.id + 2)
        again: tuple[str, ev.TaskEvent] = (name, second)
        if isinstance(second, ev.Claimed):
            again = ev.RENEWED, ev.Renewed(second.owner)
        fields = msgspec.structs.replace(fields, due_at=due(now))
        yield from append_events(
            key,
            [ev.new_event(*again)],
            after,
            expected=2,
            fields=fields,
            incarnation=incarnation,
            exclusive=True,
        )
        state.apply(key, 3, stamp.at, *again)
    return Claim(state, incarnation, now)


def _take(
    state: TaskState, head: Head, wanted: OpenOptions, owner: str, stamp: AppendContext
) -> Operation[None]:
    claimed = ev.Claimed(owner, wanted.lease, stolen=wanted.steal and is_held(head))
    changes: list[tuple[str, ev.TaskEvent]] = [(ev.CLAIMED, claimed)]
    if wanted.budget is not None and wanted.budget != state.budget:
        changes.append((ev.BUDGETED, ev.Budgeted(wanted.budget)))
    label = label_of(state, doubt=False, crashes=state.crashes + state.counts_as_crash(claimed))
    fields = HeadFields("running", label, owner, head.now + wanted.lease)
    answer = yield from append_events(
        state.key,
        [ev.new_event(*change) for change in changes],
        stamp,
        # What the head said of its holder must still be so: somebody may have claimed it while we read its events.
        expected=state.version if wanted.steal else head.version,
        fields=fields,
        incarnation=head.incarnation,
        exclusive=True,
    )
    for version, (name, event) in enumerate(changes, answer.first):
        state.apply(state.key, version, stamp.at, name, event)


def _compare(state: TaskState, wanted: OpenOptions) -> None:
    """One id is one task: what it is opened with must be what it was begun with."""
    goal, given = state.goal, state.input
    if wanted.redactor is not None:  # it may have been begun before anything was redacted
        goal, given = (
            None if goal is None else wanted.redactor.text(goal),
            wanted.redactor.json(given),
        )
    for what, same in (
        ("goal", wanted.goal is None or wanted.goal == goal),
        ("input", wanted.input is None or _ordered(wanted.input) == _ordered(given)),
        ("agent", wanted.agent is None or wanted.agent == state.agent),
        ("parent", wanted.parent is None or wanted.parent == state.parent),
        ("subject", wanted.subject is None or wanted.subject == state.subject),
    ):
        if not same:
            hint = f"leave out {what}= to go on with the recorded one, or give the new task an id of its own"
            raise ReplayMismatch(str(state.key), step=None, what=f"another {what}", hint=hint)


def _ordered(raw: bytes) -> bytes:
    """An input to compare: the order of its keys says nothing, but 1 is not true."""
    return msgspec.json.encode(decode(raw), order="deterministic")
