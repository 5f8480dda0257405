"""What a task shows of itself: its history, its version, and views of now and of earlier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..backends import HeadFields
from ..log import operations as ops
from ..log.events import Event
from ..log.operations import Operation
from ..log.validation import check_int
from .state import load
from .state.view import TaskView

if TYPE_CHECKING:
    from ..conversations.tokens import Counter
    from ..memory.model import MemoryItem
    from .base import TaskBase
    from .resume_context.context import ResumeContext


def history_gen(task: TaskBase) -> Operation[list[Event]]:
    if task._session is not None:
        task._session.matching.consulted = True
    return load.load_history(task._key)


def version_gen(task: TaskBase) -> Operation[int]:
    session = task._session
    if session is not None and session.replaying is not None:
        return session.state.version
    head = yield from ops.head(task._key)
    return head.version if head else 0


def view_gen(task: TaskBase, version: int | None = None) -> Operation[TaskView]:
    session = task._session
    if session is not None:
        session.matching.consulted = True
    if version is not None:
        return (yield from load.load_view_at(task._key, check_int(version, "version")))
    if session is None or not session.is_active():
        view = yield from load.load_view(task._key)
        if view is None:
            raise load.task_not_found(task._key)
        return view
    fields = (
        HeadFields(owner=session.lease.owner)
        if session.run is not None and session.block.closed_error is None
        else HeadFields()
    )
    orphaned = None if session.was_ended else session.matching.orphaned()
    drift = None if session.was_ended else list(session.matching.drift)
    return (yield from load.build_view(session.state, fields, session.run, orphaned, drift))


def render_context(
    task: TaskBase,
    view: TaskView,
    memories: Sequence[MemoryItem],
    max_tokens: int,
    notes: Sequence[str],
    counter: Counter | None,
) -> ResumeContext:
    """Render the resume context. Record its memories, so that repeating one isn't evidence."""
    from .resume_context.context import build_resume_context

    context = build_resume_context(
        view, max_tokens, notes=notes, counter=counter, memories=memories
    )
    session = task._session
    if context.memories and session is not None and session.is_active():
        session.note_recalled(list(context.memories), list(context.memories.values()))
    return context
