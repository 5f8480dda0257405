"""List the notifications that hooks have not received, and deliver dead letters again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Literal, get_args

import msgspec

from ..backends import StreamKey
from ..backends.clock import to_datetime
from ..log import operations as ops
from ..log.events import AppendContext, new_append_context
from ..log.log import Log
from ..log.operations import Operation
from ..tasks.state.events import KIND as TASK_KIND
from . import queue as queues
from .queue import Letter, QueueState, StoredQueue

LetterStatus = Literal["retrying", "dead"]


class UndeliveredNotification(msgspec.Struct, frozen=True, kw_only=True):
    """A notification that a hook has not received.

    Its status is "retrying" (a worker will try again) or "dead" (it is no longer retried).
    """

    id: str
    kind: str
    task: str
    hook: str
    status: LetterStatus
    attempts: int
    error: str
    """The last problem: the type of an error, an HTTP status or an exit code."""
    since: datetime
    """When it was tried for the first time."""
    next_at: datetime | None
    """When it is tried again."""


def list_undelivered(
    tenant: str, status: str | None
) -> Callable[[str], Operation[tuple[list[UndeliveredNotification], str]]]:
    """Return a function that lists a page of undelivered notifications after the previous page."""
    if status is not None and status not in get_args(LetterStatus):
        raise ValueError(f"status must be retrying or dead, got {status!r}")

    def list_page(after: str) -> Operation[tuple[list[UndeliveredNotification], str]]:
        place, _, last = after.partition(" ")
        number = int(place or 0)
        page = yield from ops.heads(
            tenant, queues.KIND, status=_STATUSES_WITH_LETTERS[number], after=last
        )
        found: list[UndeliveredNotification] = []
        for head in page:
            state = yield from queues.load_queue_state(head.stream)
            found += _describe(head.stream.id, state) if state is not None else ()
        if page:
            following = f"{number} {page[-1].stream.id}"
        else:
            following = str(number + 1) if number + 1 < len(_STATUSES_WITH_LETTERS) else ""
        return [each for each in found if status in (None, each.status)], following

    return list_page


_STATUSES_WITH_LETTERS = (queues.DEAD, queues.RETRYING, queues.DELIVERING)


def redeliver(log: Log, tenant: str, id: str | None, task: str | None) -> int:
    """Deliver dead letters again, and retry the others now. Return how many."""
    count = 0
    for name in [task] if task is not None else ops.run(log, _list_tasks(tenant)):
        key, stamp = StreamKey(tenant, TASK_KIND, name), new_append_context()
        count += ops.run_until_settled(log, lambda: _redeliver_task(key, id, stamp))  # noqa: B023
    return count


def _list_tasks(tenant: str) -> Operation[list[str]]:
    """Return the tasks whose queues have letters."""
    tasks: dict[str, None] = {}
    for status in _STATUSES_WITH_LETTERS:
        after = ""
        while page := (yield from ops.heads(tenant, queues.KIND, status=status, after=after)):
            after = page[-1].stream.id
            tasks.update((head.stream.id, None) for head in page)
    return list(tasks)


def _describe(task: str, state: QueueState) -> Iterator[UndeliveredNotification]:
    for letter in state.dead:
        yield _describe_letter(task, letter, "dead")
    for letter in (*state.again, *state.failing.values()):
        yield _describe_letter(task, letter, "retrying")


def _describe_letter(task: str, letter: Letter, status: LetterStatus) -> UndeliveredNotification:
    return UndeliveredNotification(
        id=letter.id,
        kind=letter.kind,
        task=task,
        hook=letter.hook,
        status=status,
        attempts=letter.attempts,
        error=letter.error,
        since=to_datetime(letter.since),
        next_at=to_datetime(letter.next_at) if status == "retrying" else None,
    )


def _redeliver_task(task: StreamKey, id: str | None, stamp: AppendContext) -> Operation[int]:
    """Make the dead letters of a task due now: all of them, or the one with an id.

    Notifications that are being retried are tried at once. Return how many there are of both.
    """
    key = queues.queue_key(task)
    head = yield from ops.head(key)
    state = None if head is None else (yield from queues.load_queue_state(key))
    if head is None or state is None:
        return 0

    def is_chosen(letter: Letter) -> bool:
        return id is None or letter.id == id

    renewed = [
        msgspec.structs.replace(letter, attempts=0, since=head.now, next_at=head.now)
        for letter in state.dead
        if is_chosen(letter)
    ]
    failing = {
        name: msgspec.structs.replace(letter, next_at=head.now) if is_chosen(letter) else letter
        for name, letter in state.failing.items()
    }
    count = len(renewed) + sum(is_chosen(letter) for letter in failing.values())
    if not count:
        return 0
    changed = msgspec.structs.replace(
        state,
        dead=[letter for letter in state.dead if not is_chosen(letter)],
        again=[*state.again, *renewed],
        failing=failing,
    )
    # A worker that delivers now keeps its lease, and sees the change when it releases the queue.
    due_at = head.fields.due_at if state.owner else head.now
    yield from queues.store_queue(StoredQueue(key, head, state), changed, due_at, stamp)
    return count
