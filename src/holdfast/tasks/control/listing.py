"""What the store itself does with tasks: list them, show one, settle a step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from ...backends import StreamKey
from ...log.codec import encode_as
from ...log.ids import checked_id
from ...log.log import Log
from ...log.operations import Operation
from ...log.stream_ops import new_append_context
from ...log.validation import timestamp
from ..agents.declare import find
from ..run.claim import TASK_TTL, OpenOptions, as_wanted, declared_type, redacted, submit
from ..state.load import get_view as get_task
from ..state.load import listed as list_tasks
from ..state.view import STATUSES
from ..steps.usage import Budget
from .inbox import answer, signal
from .lifecycle import resolve

__all__ = [
    "TASK_TTL",
    "answering",
    "checked_status",
    "get_task",
    "list_tasks",
    "resolving",
    "signalling",
    "submitting",
]


def checked_status(status: str | None) -> None:
    if status is not None and status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {status!r}")


def resolving(
    log: Log, key: StreamKey, step: str, result: Any, retry: bool
) -> Callable[[], Operation[None]]:
    """What makes the operation that settles a step."""
    if (result is ...) != retry:
        raise ValueError("resolve() takes either result=… (it was done) or retry=True (it was not)")
    if type(step) is not str:  # a path may be longer than any id
        raise TypeError(f"step must be a path or a name, got {type(step).__name__}")
    raw = None if retry else _encoded(log, result)
    stamp = new_append_context()
    return lambda: resolve(key, step, raw, stamp, retry=retry)


def answering(
    log: Log, key: StreamKey, name: str, value: object, by: str | None, question: str | None
) -> Callable[[], Operation[None]]:
    """What makes the operation that answers a question."""
    checked_id(name, "the name of a question")
    if by is not None:
        checked_id(by, "by")
    raw, stamp = _encoded(log, value), new_append_context()
    return lambda: answer(key, name, raw, by, question, stamp)


def signalling(
    log: Log, key: StreamKey, name: str, payload: object, id: str | None
) -> Callable[[], Operation[bool]]:
    """What makes the operation that sends a signal."""
    checked_id(name, "the name of a signal")
    if id is not None:
        checked_id(id, "id")
    raw, stamp = _encoded(log, payload), new_append_context()
    return lambda: signal(key, name, raw, id, stamp)


def submitting(
    log: Log, key: StreamKey, wanted: OpenOptions, at: float | datetime | None
) -> Callable[[], Operation[bool]]:
    """What makes the operation that lets workers run a task."""
    when = None if at is None else timestamp(at, "at")
    stamp, opened = new_append_context(), redacted(log, wanted)
    return lambda: submit(key, opened, when, stamp)


def _encoded(log: Log, value: object) -> bytes:
    """A value from outside, as it is to be stored."""
    declared = declared_type(value)
    return log.redaction.encoded(encode_as(value, declared), declared)


def wanted_by(
    agent: str | Callable[..., Any],
    goal: str | None,
    input: object,
    ttl: Any,
    wait: float | timedelta | None,
    restart: bool,
    budget: Budget | None,
    subject: str | None,
) -> OpenOptions:
    """How a task is opened for an agent. A name need not be known here: another program may have it."""
    if isinstance(agent, str):
        return as_wanted(
            goal,
            input,
            checked_id(agent, "the name of an agent"),
            30.0,
            wait,
            False,
            ttl,
            restart,
            budget,
            subject,
        )
    found = find(agent)
    return as_wanted(
        goal, input, found.name, found.lease, wait, False, ttl, restart, budget, subject
    )
