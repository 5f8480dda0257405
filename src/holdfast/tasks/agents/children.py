"""Parents and children: report the end of a child, cancel a task with its children.

A child is a task with a link to its parent. While the parent runs the child, it sees how the child
ends. If a worker resumed the child on its own, the process that ends the child reports the end to
the parent. Until that is done the child stays due, so that a worker can finish an interrupted
report.
"""

from __future__ import annotations

import logging

from ...backends import Head, StreamKey
from ...errors import DataProblem, Expired, HoldfastError, NotFound, TaskEnded
from ...log import operations as ops
from ...log.drivers import EffectGen
from ...log.events import new_append_context
from ...log.log import Log
from ...log.operations.stream_ops import readable_head
from ..control.inbox import report_child_ended
from ..control.lifecycle import cancel_task, delete_task, mark_reported
from ..state import events as ev
from ..state.fold import CHILD, TaskState
from ..state.load import load_task

logger = logging.getLogger("holdfast")


def report_end(key: StreamKey) -> EffectGen[None]:
    """Report the end of a task to its parent, and record that the parent knows."""
    try:
        state: TaskState = yield from load_task(key)
        parent, stamp = state.parent, new_append_context()
        if parent is not None and state.ended:
            above = key._replace(id=parent.id)
            yield from ops.settle(
                lambda: report_child_ended(above, parent.incarnation, key.id, state.status, stamp)
            )
            done = new_append_context()
            yield from ops.settle(lambda: mark_reported(key, done))
    except HoldfastError as error:
        logger.warning(
            "could not report the end of %s to its parent (%s); a worker will retry",
            key,
            type(error).__name__,
        )


def cancel_with_children(log: Log, key: StreamKey, cancelled: ev.Cancelled) -> EffectGen[None]:
    """Cancel a task, and its children that have not ended."""
    stamp = new_append_context()
    before: tuple[TaskState, str] = yield from ops.settle(
        lambda: cancel_task(key, cancelled, stamp)
    )
    state, incarnation = before
    yield from _forget_unrecorded_end(log, state, incarnation)
    for step in list(state.steps.values()):
        if step.kind == CHILD and step.parsed_path.key is not None and step.state != "completed":
            yield from _cancel_child(
                log,
                key._replace(id=step.parsed_path.key),
                ev.Parent(key.id, incarnation),
                cancelled,
            )
    if state.parent is not None:
        yield from report_end(key)


def delete_and_notify(
    log: Log, key: StreamKey, reason: str, by: str | None = None
) -> EffectGen[bool]:
    """Delete a task, and report it to a parent that may wait for it."""
    head: Head | None = yield from readable_head(key)
    state = TaskState(key)
    try:
        yield from load_task(key, into=state)
    except DataProblem:
        pass  # erased, so its parent is unknown; or damaged, and what comes before it was read
    parent, stamp = state.parent, new_append_context(by)
    deleted: bool = yield from ops.settle(lambda: delete_task(key, stamp, reason))
    if deleted and head is not None and not state.ended:
        yield from _forget_unrecorded_end(log, state, head.incarnation.hex())
    if deleted and parent is not None and not state.ended:
        after = new_append_context()
        yield from ops.settle(
            lambda: report_child_ended(
                key._replace(id=parent.id), parent.incarnation, key.id, "deleted", after
            )
        )
    return deleted


def _forget_unrecorded_end(log: Log, state: TaskState, incarnation: str) -> EffectGen[None]:
    """Forget the memories that a killed run saved for an end that it never recorded."""
    if state.agent is not None:
        from .. import memory

        yield from memory.forget_unrecorded_end(log, state, incarnation)


def _cancel_child(
    log: Log, child: StreamKey, parent: ev.Parent, cancelled: ev.Cancelled
) -> EffectGen[None]:
    try:
        state: TaskState = yield from load_task(child)
        if state.parent == parent:
            yield from cancel_with_children(log, child, cancelled)
    except (NotFound, TaskEnded, Expired):
        pass  # it was never created, or has ended
