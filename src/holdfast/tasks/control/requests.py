"""Check the arguments of the store's task methods, and build the operations behind them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from ...backends import StreamKey
from ...log.codec import encode_as
from ...log.ids import check_id
from ...log.log import Log
from ...log.operations import Operation
from ...log.operations.stream_ops import new_append_context
from ...log.validation import check_timestamp
from ..agents.declare import DEFAULT_LEASE, find_agent
from ..run.claim import OpenOptions, check_open_options, declared_type, redact_options, submit_task
from ..state.view import STATUSES
from ..steps.usage import Budget
from .inbox import answer_question, send_signal
from .lifecycle import resolve_step


def check_status(status: str | None) -> None:
    if status is not None and status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {status!r}")


def prepare_resolve(
    log: Log, key: StreamKey, step: str, result: Any, retry: bool
) -> Callable[[], Operation[None]]:
    """Return a function that makes the operation of `Store.resolve`."""
    if (result is ...) != retry:
        raise ValueError("resolve() takes either result=… (it was done) or retry=True (it was not)")
    if type(step) is not str:  # a path may be longer than any id
        raise TypeError(f"step must be a path or a name, got {type(step).__name__}")
    raw = None if retry else _encode_value(log, result)
    stamp = new_append_context()
    return lambda: resolve_step(key, step, raw, stamp, retry=retry)


def prepare_answer(
    log: Log, key: StreamKey, name: str, value: object, by: str | None, question: str | None
) -> Callable[[], Operation[None]]:
    """Return a function that makes the operation of `Store.answer`."""
    check_id(name, "the name of a question")
    if by is not None:
        check_id(by, "by")
    raw, stamp = _encode_value(log, value), new_append_context()
    return lambda: answer_question(key, name, raw, by, question, stamp)


def prepare_signal(
    log: Log, key: StreamKey, name: str, payload: object, id: str | None
) -> Callable[[], Operation[bool]]:
    """Return a function that makes the operation of `Store.signal`."""
    check_id(name, "the name of a signal")
    if id is not None:
        check_id(id, "id")
    raw, stamp = _encode_value(log, payload), new_append_context()
    return lambda: send_signal(key, name, raw, id, stamp)


def prepare_submit(
    log: Log, key: StreamKey, options: OpenOptions, at: float | datetime | None
) -> Callable[[], Operation[bool]]:
    """Return a function that makes the operation of `Store.submit`."""
    when = None if at is None else check_timestamp(at, "at")
    stamp, options = new_append_context(), redact_options(log, options)
    return lambda: submit_task(key, options, when, stamp)


def _encode_value(log: Log, value: object) -> bytes:
    """Return a value from the caller as stored: encoded and redacted."""
    declared = declared_type(value)
    return log.redaction.redact_json(encode_as(value, declared), declared)


def agent_open_options(
    agent: str | Callable[..., Any],
    goal: str | None,
    input: object,
    ttl: Any,
    wait: float | timedelta | None,
    restart: bool,
    budget: Budget | None,
    subject: str | None,
) -> OpenOptions:
    """Return the options of a task for an agent. A name may be registered in another process."""
    if isinstance(agent, str):
        name, lease = check_id(agent, "the name of an agent"), DEFAULT_LEASE
    else:
        found = find_agent(agent)
        name, lease = found.name, found.lease
    return check_open_options(goal, input, name, lease, wait, False, ttl, restart, budget, subject)
