"""Check the arguments of the store's task methods, and build the operations behind them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ...backends import StreamKey
from ...log.codec import encode_as
from ...log.events import new_append_context
from ...log.ids import check_id
from ...log.log import Log
from ...log.operations import Operation
from ...log.validation import check_seconds, check_timestamp
from ..agents.declare import DEFAULT_LEASE, find_agent
from ..run.claim import OpenOptions, check_open_options, declared_type, redact_options, submit_task
from ..steps.usage import Budget
from .inbox import answer_question, retry_task, send_signal
from .lifecycle import resolve_step


def prepare_resolve(
    log: Log, key: StreamKey, step: str, result: Any, retry: bool, by: str | None, override: bool
) -> Callable[[], Operation[None]]:
    """Return a function that makes the operation of `Store.resolve`."""
    if (result is ...) != retry:
        raise ValueError("resolve() takes either result=… (it was done) or retry=True (it was not)")
    if type(step) is not str:  # a path may be longer than any id
        raise TypeError(f"step must be a path or a name, got {type(step).__name__}")
    raw = None if retry else encode_value(log, result)
    stamp = new_append_context(by)
    return lambda: resolve_step(key, step, raw, stamp.by, stamp, override=override)


def prepare_answer(
    log: Log, key: StreamKey, name: str, value: object, by: str | None, question: str | None
) -> Callable[[], Operation[None]]:
    """Return a function that makes the operation of `Store.answer`."""
    check_id(name, "the name of a question")
    raw, stamp = encode_value(log, value), new_append_context(by)
    return lambda: answer_question(key, name, raw, stamp.by, question, stamp)


def prepare_signal(
    log: Log, key: StreamKey, name: str, payload: object, id: str | None, by: str | None
) -> Callable[[], Operation[bool]]:
    """Return a function that makes the operation of `Store.signal`."""
    check_id(name, "the name of a signal")
    if id is not None:
        check_id(id, "id")
    raw, stamp = encode_value(log, payload), new_append_context(by)
    return lambda: send_signal(key, name, raw, id, stamp)


def prepare_submit(
    log: Log, key: StreamKey, options: OpenOptions, at: float | datetime | None, by: str | None
) -> Callable[[], Operation[bool]]:
    """Return a function that makes the operation of `Store.submit`."""
    when = None if at is None else check_timestamp(at, "at")
    stamp, options = new_append_context(by), redact_options(log, options)
    return lambda: submit_task(key, options, when, stamp)


def prepare_retry(
    key: StreamKey, budget: Budget | None, timeout: float | timedelta | None, by: str | None
) -> Callable[[], Operation[None]]:
    """Return a function that makes the operation of `Store.retry`."""
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget must be a holdfast.Budget, got {type(budget).__name__}")
    limit = None if timeout is None else check_seconds(timeout, "timeout", 0.001)
    stamp = new_append_context(by)
    return lambda: retry_task(key, budget, limit, stamp)


def encode_value(log: Log, value: object) -> bytes:
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
    timeout: float | timedelta | None = None,
) -> OpenOptions:
    """Return an agent's options for a task. If only its name is given, another process has it."""
    default: float | None = None
    if isinstance(agent, str):
        name, lease = check_id(agent, "the name of an agent"), DEFAULT_LEASE
    else:
        found = find_agent(agent)
        name, lease, default = found.name, found.lease, found.timeout
    options = check_open_options(
        goal, input, name, lease, wait, False, ttl, restart, budget, subject, timeout
    )
    return msgspec.structs.replace(options, default_timeout=default)
