"""Parents and children: report the end of a child, cancel a task with its children.

A child is a task with a link to its parent. While the parent runs it, the parent sees how it ends.
A child that a worker resumed alone stays due after its end until its parent has the report: the
process that ends it reports it, or a worker does if that was interrupted.
"""

from __future__ import annotations

import logging

from ...backends import Head, StreamKey
from ...errors import Erased, Expired, HoldfastError, NotFound, TaskEnded
from ...log import operations as ops
from ...log.log import Log
from ...log.operations.stream_ops import new_append_context
from ..control.inbox import report_child_ended
from ..control.lifecycle import cancel_task, delete_task, mark_reported
from ..run.effects import RunOperation, TaskGen
from ..state import events as ev
from ..state.fold import CHILD, TaskState
from ..state.load import load_task

logger = logging.getLogger("holdfast")


def report_end(key: StreamKey) -> TaskGen[None]:
    """Report the end of a task to its parent, and record that the parent knows."""
    try:
        state: TaskState = yield RunOperation(lambda: load_task(key))
        parent, stamp = state.parent, new_append_context()
        if parent is not None and state.ended:
            above = key._replace(id=parent.id)
            yield RunOperation(
                lambda: report_child_ended(above, parent.incarnation, key.id, state.status, stamp)
            )
            done = new_append_context()
            yield RunOperation(lambda: mark_reported(key, done))
    except HoldfastError as error:
        logger.warning(
            "could not report the end of %s to its parent (%s); a worker will retry",
            key,
            type(error).__name__,
        )


def cancel_with_children(log: Log, key: StreamKey, reason: str | None) -> TaskGen[None]:
    """Cancel a task, and its children that have not ended."""
    stamp = new_append_context()
    cancelled: tuple[TaskState, str] = yield RunOperation(lambda: cancel_task(key, reason, stamp))
    state, incarnation = cancelled
    yield from _forget_unrecorded_end(log, state, incarnation)
    for step in list(state.steps.values()):
        if step.kind == CHILD and step.parsed_path.key is not None and step.state != "completed":
            yield from _cancel_child(
                log, key._replace(id=step.parsed_path.key), ev.Parent(key.id, incarnation), reason
            )
    if state.parent is not None:
        yield from report_end(key)


def delete_and_notify(log: Log, key: StreamKey, reason: str) -> TaskGen[bool]:
    """Delete a task, and report it to a parent that may wait for it."""
    head: Head | None = yield RunOperation(lambda: ops.head(key))
    try:
        state: TaskState = yield RunOperation(lambda: load_task(key))
    except Erased:
        state = TaskState(key)  # its parent is unknown now
    parent, stamp = state.parent, new_append_context()
    deleted: bool = yield RunOperation(lambda: delete_task(key, stamp, reason))
    if deleted and head is not None and not state.ended:
        yield from _forget_unrecorded_end(log, state, head.incarnation.hex())
    if deleted and parent is not None and not state.ended:
        after = new_append_context()
        yield RunOperation(
            lambda: report_child_ended(
                key._replace(id=parent.id), parent.incarnation, key.id, "deleted", after
            )
        )
    return deleted


def _forget_unrecorded_end(log: Log, state: TaskState, incarnation: str) -> TaskGen[None]:
    """Forget memories of an end that a killed run saved but never recorded."""
    if state.agent is not None:
        from .. import memory

        yield from memory.forget_unrecorded_end(log, state, incarnation)


def _cancel_child(
    log: Log, child: StreamKey, parent: ev.Parent, reason: str | None
) -> TaskGen[None]:
    try:
        state: TaskState = yield RunOperation(lambda: load_task(child))
        if state.parent == parent:
            yield from cancel_with_children(log, child, reason)
    except (NotFound, TaskEnded, Expired):
        pass  # it was never created, or has ended
