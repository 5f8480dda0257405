"""Parents and children: how the end of one reaches the other.

A child is a task like any other, with a link to its parent. While the parent runs it, the parent sees how it ends. A child that
went on by itself (it had to wait, and a worker took it up) is left due when it ends, until its parent knows: whoever
ends it tells the parent at once, and a worker does if that was cut off.
"""

from __future__ import annotations

import logging

from ...backends import Head, StreamKey
from ...errors import Erased, Expired, HoldfastError, NotFound, TaskEnded
from ...log import operations as ops
from ...log.blobs import incarnation_hex
from ...log.log import Log
from ...log.stream_ops import new_append_context
from ..control.inbox import child_ended
from ..control.lifecycle import cancel as cancel_one
from ..control.lifecycle import delete as delete_one
from ..control.lifecycle import reported
from ..run.effects import RunOperation, Script
from ..state import events as ev
from ..state.fold import CHILD, TaskState
from ..state.load import load

logger = logging.getLogger("holdfast")


def report(key: StreamKey) -> Script[None]:
    """Tell the parent of a task that it has ended, and note that it knows."""
    try:
        state: TaskState = yield RunOperation(lambda: load(key))
        parent, stamp = state.parent, new_append_context()
        if parent is not None and state.ended:
            above = key._replace(id=parent.id)
            yield RunOperation(
                lambda: child_ended(above, parent.incarnation, key.id, state.status, stamp)
            )
            done = new_append_context()
            yield RunOperation(lambda: reported(key, done))
    except HoldfastError as error:
        logger.warning(
            "the parent of %s could not be told that it has ended (%s); a worker will",
            key,
            type(error).__name__,
        )


def cancel(log: Log, key: StreamKey, reason: str | None) -> Script[None]:
    """Cancel a task and all children of it that have not ended."""
    stamp = new_append_context()
    found: tuple[TaskState, str] = yield RunOperation(lambda: cancel_one(key, reason, stamp))
    state, incarnation = found
    yield from _forgetting_its_end(log, state, incarnation)
    for step in list(state.steps.values()):
        if step.kind == CHILD and step.place.key is not None and step.state != "completed":
            yield from _cancel_child(
                log, key._replace(id=step.place.key), ev.Parent(key.id, incarnation), reason
            )
    if state.parent is not None:
        yield from report(key)


def delete(log: Log, key: StreamKey, reason: str) -> Script[bool]:
    """Delete a task; if a parent waits for it, that need not wait any more."""
    head: Head | None = yield RunOperation(lambda: ops.head(key))
    try:
        state: TaskState = yield RunOperation(lambda: load(key))
    except Erased:
        state = TaskState(key)  # nobody knows any more whether it had a parent
    parent, stamp = state.parent, new_append_context()
    deleted: bool = yield RunOperation(lambda: delete_one(key, stamp, reason))
    if deleted and head is not None and not state.ended:
        yield from _forgetting_its_end(log, state, incarnation_hex(head.incarnation))
    if deleted and parent is not None and not state.ended:
        told = new_append_context()
        yield RunOperation(
            lambda: child_ended(
                key._replace(id=parent.id), parent.incarnation, key.id, "deleted", told
            )
        )
    return deleted


def _forgetting_its_end(log: Log, state: TaskState, incarnation: str) -> Script[None]:
    """A run may have left memories of an end that was never recorded, and will not be."""
    if state.agent is not None:
        from .. import memory

        yield from memory.leave_nothing(log, state, incarnation)


def _cancel_child(
    log: Log, child: StreamKey, parent: ev.Parent, reason: str | None
) -> Script[None]:
    try:
        state: TaskState = yield RunOperation(lambda: load(child))
        if state.parent == parent:
            yield from cancel(log, child, reason)
    except (NotFound, TaskEnded, Expired):
        pass  # it was never begun, or has ended
