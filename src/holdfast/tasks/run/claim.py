"""Open a task: check the options, create the task or claim its lease, or submit it to workers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...backends import Head, HeadFields, StreamKey, clock
from ...errors import Conflict, Expired, LeaseHeld, ReplayMismatch, TaskEnded
from ...log import operations as ops
from ...log.codec import decode, encode, encode_as
from ...log.codec.walk import STORED_AS, MarkedText
from ...log.drivers import EffectGen, Sleep
from ...log.events import AppendContext, new_append_context
from ...log.head_fields import is_expired
from ...log.ids import append_id, check_id, new_secret
from ...log.log import Log
from ...log.operations import Operation
from ...log.operations.retired_ids import free_id, get_retired_at, retired_id_key
from ...log.operations.stream_ops import append_events
from ...log.operations.subjects import register_use
from ...log.validation import check_seconds, describe_value
from ..control.inbox import queue_task
from ..control.lifecycle import cancel_task, delete_task
from ..state import events as ev
from ..state.fold import TaskState
from ..state.load import encode_label, is_due, is_leased, load_task
from ..state.view import ENDED
from ..steps.usage import Budget
from .frames import CallFunction

if TYPE_CHECKING:
    from ...redact import Redactor

JSON_TYPES: Final = (type(None), bool, int, float, str, list, dict, *STORED_AS)
FIRST_PAUSE: Final = 0.01
MAX_PAUSE: Final = 0.25

logger = logging.getLogger("holdfast")


class OpenOptions(msgspec.Struct, frozen=True):
    """The options for opening a task. None means to keep the stored value."""

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
    only_due: bool = False
    """Claim the task only if a worker should run it now."""
    timeout: float | None = None
    """The task's time limit from its first start on."""
    default_timeout: float | None = None
    """The time limit that its agent declares, for a task that has none."""

    def new_timeout(self, current: float | None) -> float | None:
        """Return the time limit to record; None if it stays the same."""
        wanted = self.timeout
        if wanted is None and current is None:
            wanted = self.default_timeout
        return None if wanted == current else wanted


def check_open_options(
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
    timeout: float | timedelta | None = None,
) -> OpenOptions:
    """Check the arguments of `store.task`, and return them as options."""
    if goal is not None and (type(goal) not in (str, MarkedText) or not goal.strip()):
        raise ValueError(f"goal must be text that is not empty, got {describe_value(goal)}")
    if agent is not None:
        check_id(agent, "agent")
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(
            "budget must be a holdfast.Budget(tokens=…, cost=…, calls=…), "
            f"got {describe_value(budget)}"
        )
    raw = None if input is None else encode_as(input, declared_type(input))
    return OpenOptions(
        None if goal is None else check_text(goal, "goal"),
        raw,
        agent,
        check_seconds(lease, "lease", 0.1),
        None if wait is None else check_seconds(wait, "wait"),
        bool(steal),
        None if ttl is None else check_seconds(ttl, "ttl"),
        bool(restart),
        budget=budget,
        subject=None if subject is None else check_id(subject, "subject"),
        timeout=None if timeout is None else check_seconds(timeout, "timeout", 0.001),
    )


def redact_options(log: Log, options: OpenOptions, declared: Any = Any) -> OpenOptions:
    """Return the options with goal and input redacted. `declared` is the type of the input."""
    if log.redactor is None:
        return options
    raw = None if options.input is None else log.redaction.redact_json(options.input, declared)
    return msgspec.structs.replace(
        options, goal=log.redaction.redact_text(options.goal), input=raw, redactor=log.redactor
    )


def check_text(text: object, what: str) -> str:
    """Return text as a plain `str`. Raise if it isn't text, or can't be stored."""
    if type(text) is not str and type(text) is not MarkedText:
        raise TypeError(f"{what} must be text, got {type(text).__name__}")
    encode(text)
    return str(text)


def declared_type(value: object) -> Any:
    """Return the type to encode a value as: its own, or `Any` for plain JSON values."""
    return Any if type(value) in JSON_TYPES else type(value)


class NotDue(Exception):
    """The task is no longer due: another worker was faster, or it was cancelled or deleted."""


class Claim(msgspec.Struct, frozen=True):
    """A task whose lease was claimed, or that has ended."""

    state: TaskState
    incarnation: bytes
    now: float
    """The database's time."""
    before: HeadFields = HeadFields()
    """The fields of the head before the claim."""
    waited: ev.TaskSuspended = ev.TaskSuspended()
    """What the task was suspended on before the claim."""
    asked_at: float = 0.0
    """A time by the monotonic clock at which `now` had not been read yet."""


def wait_for_claim(
    key: StreamKey,
    options: OpenOptions,
    owner: str,
    find_abandoned: Callable[[str], Callable[[], object] | None],
) -> EffectGen[Claim]:
    """Claim a task. If another process owns its lease, wait until it is released or ends.

    If a block of this process has abandoned it, release it: `find_abandoned(owner)` returns how.
    """
    wait = options.lease if options.wait is None else options.wait
    deadline = clock.monotonic() + wait
    pause, logged = FIRST_PAUSE, False
    stamp, released = new_append_context(), ""
    while True:
        asked_at = clock.monotonic()
        answer: Claim | LeaseHeld = yield from ops.settle(
            lambda: claim_task(key, options, owner, stamp)
        )
        if isinstance(answer, Claim):
            return msgspec.structs.replace(answer, asked_at=asked_at)
        if answer.owner != released and (release := find_abandoned(answer.owner)) is not None:
            released = answer.owner
            yield CallFunction(release, (), {})
            continue
        left = deadline - clock.monotonic()
        if left <= 0:
            raise answer
        if not logged:
            logger.info("%s is leased by %s; waiting up to %.0f s", key, answer.owner, left)
            logged = True
        yield Sleep(min(pause, left))
        pause = min(pause * 2, MAX_PAUSE)


def claim_task(
    key: StreamKey, options: OpenOptions, owner: str, stamp: AppendContext
) -> Operation[Claim | LeaseHeld]:
    """Claim a task, or create it. Return `LeaseHeld` if another process owns its lease."""
    claimed = ev.Claimed(owner, options.lease, timeout=options.new_timeout(None))
    head, is_retired = yield from _find_task(key)
    if options.only_due and (head is None or not is_due(head)):
        raise NotDue
    if head is None or is_expired(head):
        admit = partial(_admit, key, head, is_retired, options)
        return (yield from admit(ev.CLAIMED, claimed, lambda now: now + options.lease, stamp))
    if is_leased(head) and head.fields.owner != owner and not options.steal:
        return LeaseHeld(str(key), owner=head.fields.owner or "", until=head.fields.due_at or 0)
    state = yield from load_task(key, end=head.version)
    _check_same_task(state, options)
    waited = state.suspended_on
    if not state.ended:
        yield from _append_claim(state, head, options, owner, stamp)
    return Claim(state, head.incarnation, head.now, head.fields, waited)


def submit_task(
    key: StreamKey, options: OpenOptions, at: float | None, stamp: AppendContext
) -> Operation[bool]:
    """Create a task for a worker to run, or schedule an existing one. Return True if it is new."""
    head, is_retired = yield from _find_task(key)
    if head is None or is_expired(head):
        queued = ev.Queued(at, options.new_timeout(None))
        admit = partial(_admit, key, head, is_retired, options)
        yield from admit(ev.QUEUED, queued, lambda now: max(now, at or 0.0), stamp)
        return True
    state = yield from load_task(key, end=head.version)
    _check_same_task(state, options)
    queued = ev.Queued(at, options.new_timeout(state.timeout))
    yield from queue_task(key, head, state, queued, options.budget, stamp)
    return False


def _find_task(key: StreamKey) -> Operation[tuple[Head | None, bool]]:
    """Return the head of a task, and without one whether its id may be retired: one request.

    The order matters: a sweep retires the id, and then deletes the stream.
    """
    head = yield from ops.first_head(key, retired_id_key(key))
    return (head, False) if head is None or head.stream == key else (None, True)


def _admit(
    key: StreamKey,
    head: Head | None,
    is_retired: bool,
    options: OpenOptions,
    name: str,
    second: ev.TaskEvent,
    due: Callable[[float], float],
    stamp: AppendContext,
) -> Operation[Claim]:
    """Create a task that doesn't exist, or restart an expired one, which has this head.

    `is_retired`: the task doesn't exist, and its id may be retired.
    `due` takes the current time, and returns when the new task is due. Raise `Conflict` if the task
    exists.
    """
    closed = None
    if options.parent is not None:
        yield from _check_parent(key, options.parent)
    if head is not None:
        if not options.restart:
            raise Expired(str(key), at=head.fields.expires_at or 0.0)
        yield from delete_task(key, stamp, "it had expired and was restarted", seen=head)
    elif is_retired:
        closed = yield from get_retired_at(key)
        if closed is not None and not options.restart:
            raise Expired(str(key), at=closed, swept=True)
    created = yield from _create(key, options, name, second, due, stamp)
    if options.parent is not None:
        try:
            yield from _check_parent(key, options.parent)
        except TaskEnded:  # the parent was cancelled before this child was visible
            after = msgspec.structs.replace(stamp, id=stamp.id + 3)  # the first three are used
            yield from cancel_task(key, ev.Cancelled("its parent has ended"), after)
            raise
    if closed is not None:
        try:
            yield from free_id(key, stamp)
        except Conflict:
            pass  # the mark of a retired id has no effect while the task exists
    return created


def _check_parent(key: StreamKey, parent: ev.Parent) -> Operation[None]:
    """Raise `TaskEnded` if the parent of a child has ended, for example by a cancellation."""
    above = key._replace(id=parent.id)
    head = yield from ops.head(above)
    if head is None or head.fields.status in ENDED:
        raise TaskEnded(str(above), status=(head and head.fields.status) or "deleted")


def _create(
    key: StreamKey,
    options: OpenOptions,
    name: str,
    second: ev.TaskEvent,
    due: Callable[[float], float],
    stamp: AppendContext,
) -> Operation[Claim]:
    created = ev.Created(
        salt=new_secret().hex(),
        ttl=options.ttl,
        goal=options.goal,
        agent=options.agent,
        parent=options.parent,
        budget=options.budget,
        subject=options.subject,
        input=msgspec.Raw(options.input or b"null"),
    )
    state = TaskState(key)
    state.apply(key, 1, stamp.at, ev.CREATED, created)
    state.apply(key, 2, stamp.at, name, second)
    events = [ev.new_event(ev.CREATED, created), ev.new_event(name, second)]
    due_at = due(stamp.at)
    later = state.owner is None and due_at > stamp.at
    label = encode_label(state, doubt=False, later=later)
    fields = HeadFields(state.status, label, state.owner, due_at)
    # Chosen here, because the idempotency keys of the task's steps depend on it.
    incarnation = append_id(stamp.id)
    if options.subject is not None:
        yield from register_use(
            key, incarnation, options.subject, msgspec.structs.replace(stamp, id=stamp.id + 4)
        )
    answer = yield from append_events(
        key, events, stamp, expected=0, fields=fields, incarnation=incarnation, exclusive=True
    )
    now = answer.now or stamp.at
    if abs(now - stamp.at) > clock.MAX_SKEW_SECONDS:  # only the response shows the database's time
        after = msgspec.structs.replace(stamp, id=stamp.id + 2)
        again: tuple[str, ev.TaskEvent] = (name, second)
        if isinstance(second, ev.Claimed):
            again = ev.RENEWED, ev.Renewed(second.owner)
        later = state.owner is None and due(now) > now
        label = encode_label(state, doubt=False, later=later)
        fields = HeadFields(state.status, label, state.owner, due(now))
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


def _append_claim(
    state: TaskState, head: Head, options: OpenOptions, owner: str, stamp: AppendContext
) -> Operation[None]:
    before = head.fields
    claimed = ev.Claimed(
        owner,
        options.lease,
        stolen=options.steal and is_leased(head),
        alive_at=None
        if before.owner is None
        else min(head.now, head.now if before.due_at is None else before.due_at),
        timeout=options.new_timeout(state.timeout),
    )
    changes: list[tuple[str, ev.TaskEvent]] = [(ev.CLAIMED, claimed)]
    if options.budget is not None and options.budget != state.budget:
        changes.append((ev.BUDGETED, ev.Budgeted(options.budget)))
    label = encode_label(state, doubt=False, crashes=state.crashes + state.counts_as_crash(claimed))
    fields = HeadFields("running", label, owner, head.now + options.lease)
    answer = yield from append_events(
        state.key,
        [ev.new_event(*change) for change in changes],
        stamp,
        # The lease owner in the head must still be current: another process may have claimed the
        # task while its events were read.
        expected=state.version if options.steal else head.version,
        fields=fields,
        incarnation=head.incarnation,
        exclusive=True,
    )
    for version, (name, event) in enumerate(changes, answer.first):
        state.apply(state.key, version, stamp.at, name, event)


def _check_same_task(state: TaskState, options: OpenOptions) -> None:
    """Raise `ReplayMismatch` if the options differ from those that the task was created with."""
    goal, given = state.goal, state.input
    if options.redactor is not None:  # the task may be older than the redaction
        goal, given = (
            None if goal is None else options.redactor.text(goal),
            options.redactor.json(given),
        )
    for what, same in (
        ("goal", options.goal is None or options.goal == goal),
        (
            "input",
            options.input is None or _canonical_json(options.input) == _canonical_json(given),
        ),
        ("agent", options.agent is None or options.agent == state.agent),
        ("parent", options.parent is None or options.parent == state.parent),
        ("subject", options.subject is None or options.subject == state.subject),
    ):
        if not same:
            hint = f"omit {what}= to use the recorded one, or give the new task its own id"
            raise ReplayMismatch(str(state.key), step=None, what=f"another {what}", hint=hint)


def _canonical_json(raw: bytes) -> bytes:
    """Return JSON in a form to compare: the order of keys doesn't matter, but 1 isn't `true`."""
    return msgspec.json.encode(decode(raw), order="deterministic")
