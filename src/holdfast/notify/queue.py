"""The stored queue of a task's notifications: what each hook has received.

The queue of a task is a stream with the task's id. Every event of it has the whole state, so only
the newest one is read, and an append at an exact version replaces it. The queue is due when a
worker should look at the task:

- A process with hooks that claims a task marks its queue before the agent's code runs. If it is
  killed, the queue becomes due, and another worker looks for what the run has left behind.
- A worker that delivers makes the queue due at the end of its lease. If it is killed, another one
  continues.
- After a failed delivery the queue is due at the next attempt.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..backends import Head, HeadFields, StreamKey
from ..errors import CorruptRecord
from ..log import operations as ops
from ..log.events import AppendContext, NewEvent
from ..log.ids import append_id
from ..log.operations import Operation
from ..log.operations.stream_ops import append_events

KIND: Final = "notification"
HOOKS_ID: Final = "all"
"""The id of the stream that has the tenant's hooks."""
QUEUE_CHANGED: Final = "notifications.changed"
HOOKS_CHANGED: Final = "hooks.changed"
WATCH_SECONDS: Final = 30.0
"""How often to look for notifications of a task whose run has not ended."""

IDLE, WATCHING, DELIVERING, RETRYING, DEAD = "idle", "watching", "delivering", "retrying", "dead"
"""The statuses of a queue. They are only for listings; the state decides."""

Position = tuple[int, int]
"""A position among the notifications of a task: the version of the event, and its number there."""


class Letter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A notification that a hook has not received: the next one, or a dead letter."""

    hook: str
    id: str
    kind: str
    version: int
    attempts: int = 0
    since: float = 0.0
    """When it was tried for the first time."""
    next_at: float = 0.0
    error: str = ""
    """The type of the last error."""


class QueueState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a queue. `incarnation` is the task's: a new task with the id has a new state."""

    incarnation: str
    cursors: dict[str, Position] = {}
    """The next position for each hook: everything before it was received, or is a dead letter."""
    failing: dict[str, Letter] = {}
    """The notification that each hook could not be given yet. Later ones wait behind it."""
    dead: list[Letter] = []
    again: list[Letter] = []
    """Dead letters that an operator wants to be delivered again."""
    owner: str = ""
    """The worker that delivers now; "" if none does."""
    watcher: str = ""
    """The process that has claimed the task since the queue was settled; "" if none has."""

    @property
    def status(self) -> str:
        if self.owner:
            return DELIVERING
        if self.dead:
            return DEAD
        if self.failing or self.again:
            return RETRYING
        return WATCHING if self.watcher else IDLE


class StoredQueue(msgspec.Struct, frozen=True):
    """A queue, and the head of its stream (None if nothing is stored yet)."""

    key: StreamKey
    head: Head | None
    state: QueueState

    @property
    def due_at(self) -> float | None:
        return None if self.head is None else self.head.fields.due_at


def queue_key(task: StreamKey) -> StreamKey:
    return task._replace(kind=KIND)


def load_queue(task: StreamKey, incarnation: str) -> Operation[StoredQueue]:
    """Return the queue of a task; an empty one if there is none, or it is of an older task."""
    key = queue_key(task)
    head = yield from ops.head(key)
    state = None if head is None else (yield from load_queue_state(key))
    if state is None or state.incarnation != incarnation:
        state = QueueState(incarnation)
    return StoredQueue(key, head, state)


def load_queue_state(key: StreamKey) -> Operation[QueueState | None]:
    """Return the state in the newest event of a queue."""
    newest = yield from ops.read(key, limit=1, reverse=True, decoded=True)
    if not newest:
        return None
    try:
        return msgspec.convert(newest[0].envelope.data, QueueState)
    except msgspec.ValidationError:
        raise CorruptRecord(
            str(key), version=newest[0].version, what="it is not the state of a queue"
        ) from None


def store_queue(
    queue: StoredQueue, state: QueueState, due_at: float | None, stamp: AppendContext
) -> Operation[StoredQueue]:
    """Replace the state of a queue. Raise `Conflict` if another process did that first."""
    fields = HeadFields(state.status, None, state.owner or state.watcher or None, due_at)
    incarnation = append_id(stamp.id) if queue.head is None else queue.head.incarnation
    answer = yield from append_events(
        queue.key,
        [NewEvent(QUEUE_CHANGED, msgspec.json.encode(state))],
        stamp,
        expected=0 if queue.head is None else queue.head.version,
        fields=fields,
        incarnation=incarnation,
    )
    # Not read from the store: another process may have changed the queue again.
    head = Head(queue.key, incarnation, fields, answer.now or stamp.at, answer.last, b"")
    return StoredQueue(queue.key, head, state)


def mark_claimed(
    task: StreamKey, incarnation: bytes, watcher: str, stamp: AppendContext
) -> Operation[None]:
    """Make the queue of a claimed task due soon, in case its process is killed.

    It always appends: a worker that settles the queue at the same time must notice the claim.
    """
    head = yield from ops.head(task)
    queue = yield from load_queue(task, incarnation.hex())
    due_at = (stamp.at if head is None else head.now) + WATCH_SECONDS
    if queue.due_at is not None:
        # A worker that delivers now keeps its lease, and looks at the task before it releases it.
        due_at = queue.due_at if queue.state.owner else min(queue.due_at, due_at)
    state = msgspec.structs.replace(queue.state, watcher=watcher)
    yield from store_queue(queue, state, due_at, stamp)


def register_hooks(
    tenant: str, names: list[str], stamp: AppendContext
) -> Operation[dict[str, float]]:
    """Return when each hook was registered. Register the new ones: they get nothing older."""
    key = StreamKey(tenant, "hook", HOOKS_ID)
    head = yield from ops.head(key)
    known: dict[str, float] = {}
    if head is not None:
        newest = yield from ops.read(key, limit=1, reverse=True, decoded=True)
        try:
            known = msgspec.convert(newest[0].envelope.data, dict[str, float])
        except (IndexError, msgspec.ValidationError):
            raise CorruptRecord(str(key), what="it does not list hooks") from None
    missing = [name for name in names if name not in known]
    if missing:
        now = stamp.at if head is None else head.now
        known = {**known, **dict.fromkeys(missing, now)}
        yield from append_events(
            key,
            [NewEvent(HOOKS_CHANGED, msgspec.json.encode(known))],
            stamp,
            expected=0 if head is None else head.version,
        )
    return known
