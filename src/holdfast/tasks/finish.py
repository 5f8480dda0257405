"""End a task or a run: finish it, fail it, cancel it, mark it stuck, or record that it was left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..backends import HeadFields
from ..errors import LeaseLost, NotSerializable, SchemaMismatch, TaskEnded, TaskTimeout
from ..log import operations as ops
from ..log import telemetry
from ..log.codec import Undecodable, decode_as, encode_as
from ..log.drivers import EffectGen, NewDeadline
from ..log.events import new_append_context
from .agents import children
from .agents.declare import Remember
from .control.inbox import report_child_ended
from .ending import RunFacts, decide_ending
from .run.claim import check_text, declared_type
from .run.reports import SessionLost
from .run.session import Session
from .run.sigterm import is_interrupt
from .run.traceback import capture_trace, error_text
from .state import events as ev
from .steps.declare import UNRESOLVED, to_step
from .steps.failures import find_failed_steps, is_final_failure, retry_delay

if TYPE_CHECKING:
    from .base import TaskBase

MAX_REPORTED: Final = 100
"""Maximum number of orphaned steps, and of drifts, that the end of a run records."""

logger = logging.getLogger("holdfast")


def end_run_gen(task: TaskBase, session: Session, error: BaseException | None) -> EffectGen[None]:
    """Record how the run ended, which releases the lease."""
    name, event, fields = _build_run_end(task, session, error)
    if isinstance(event, ev.Failed) and event.retry_at is None:
        yield from notify_parent_gen(task, "failed")
        if task._max_attempts:  # otherwise the caller sees why it failed
            yield from remember_failure_gen(task, event.type, event.message, author="tool")
    yield from session.put([(name, event)], new_append_context(), fields=fields)


def _build_run_end(
    task: TaskBase, session: Session, error: BaseException | None
) -> tuple[str, ev.TaskEvent, Callable[[], HeadFields]]:
    """Return the type of the event that ends the run, the event, and what makes the fields."""
    drift, failures = _drift_rows(session), session.state.failures + 1
    ending = decide_ending(
        RunFacts(
            str(task._key),
            error,
            session.now(),
            session.suspension.head_before,
            has_agent=session.state.agent is not None,
            by_worker=task._max_attempts > 0,
            interrupted=task._interrupted or is_interrupt(error),
            retry_at=session.now() + retry_delay(failures)
            if failures < task._max_attempts
            else None,
            suspended=session.suspension.branch.suspended is not None,
            stopping=bool(session.suspension.stop_reason),
            untouched=session.writer.untouched,
            ran_steps=bool(session.matching.requested),
            final=error is not None and is_final_failure(error),
        )
    )
    if ending.outcome == "suspended":
        return ev.SUSPENDED, session.suspension.event(), session.waiting_head_fields
    if ending.outcome == "restored":
        session.suspension.restore_waits()
        return ev.SUSPENDED, session.suspension.waits_before, session.waiting_head_fields
    event: ev.TaskEvent
    if ending.outcome == "failed" and error is not None:
        message = error_text(error) if isinstance(error, Exception) else ""
        event = ev.Failed(
            type(error).__name__,
            task._log.redaction.redact_error(message),
            find_failed_steps(error, str(task._key)),
            drift=drift,
            retry_at=ending.due_at,
            trace=capture_trace(task._log, error, str(task._key)),
        )
    elif ending.outcome == "stopped":
        event = ev.Released(drift=drift, why="stopped")
        return ev.RELEASED, event, lambda: session.head_fields("pending", due_at=session.now())
    elif ending.outcome == "viewed":
        event = ev.Released(unchanged=True)
    elif error is not None:
        event = ev.Released(drift=drift, why=type(error).__name__)
    else:
        event = ev.Released(session.matching.orphaned()[:MAX_REPORTED], drift)
    name = ev.FAILED if ending.outcome == "failed" else ev.RELEASED
    return name, event, lambda: session.head_fields(ending.status, due_at=ending.due_at)


def finish_gen(
    task: TaskBase,
    given: Any,
    args: Any,
    kwargs: Mapping[str, Any],
    returned: Any = UNRESOLVED,
    remember: Remember | None = None,
) -> EffectGen[Any]:
    """Finish the task. `returned` is the type of `given` if an agent returned it."""
    from . import memory

    session = task._require_session()
    memory.check_remember_option(task, remember)
    if returned is UNRESOLVED:
        declared = to_step(given).returns if callable(given) else declared_type(given)
    else:
        declared = declared_type(given) if returned is Any else returned
    if session.replaying is not None:
        is_value = returned is not UNRESOLVED or not callable(given)
        session.replaying.finish(
            task._log.redaction.redact_json(encode_as(given, declared)) if is_value else None
        )
    elif not session.was_ended:
        session.check_active(ends=True)
        value = (
            given
            if returned is not UNRESOLVED
            else (yield from task._evaluate_gen(given, args, kwargs))
        )
        raw = task._log.redaction.redact_json(_encode_result(value, declared), declared)
        yield from memory.save_ending(task, remember, result=raw)
        yield from _record_finished_gen(task, session, raw)
    elif session.state.status != "finished":
        session.check_writable()
    try:
        return decode_as(session.state.result, declared)
    except Undecodable as error:
        raise SchemaMismatch(
            str(task._key), version=session.state.version, type="the task's result", what=str(error)
        ) from None


def _record_finished_gen(task: TaskBase, session: Session, raw: bytes) -> EffectGen[None]:
    """Record that the task is finished, and report it to its parent."""
    state = session.state
    orphaned = session.matching.orphaned()[:MAX_REPORTED]
    finished = ev.Finished(orphaned, _drift_rows(session), msgspec.Raw(raw))
    expires = None if state.ttl is None else session.now() + state.ttl
    reports = state.parent is not None and not task._inline
    fields = session.head_fields(
        "finished", due_at=session.now() if reports else None, expires_at=expires
    )
    yield from session.put([(ev.FINISHED, finished)], new_append_context(), fields=lambda: fields)
    task._close_session(session, "finished")
    if reports:
        yield from children.report_end(task._key)
    undone = sum(path not in session.matching.requested for path in state.plan_paths)
    if undone:
        logger.warning(
            "%s finished, but %d items of its plan were never run with task.step(item, …)",
            task._key,
            undone,
        )


def fail_gen(task: TaskBase, reason: str) -> EffectGen[None]:
    session = task._require_session()
    session.check_active()
    reason = task._log.redaction.redact_text(check_text(reason, "reason"))
    failed = ev.Failed("fail", reason)
    if session.replaying is not None:
        session.replaying.fail(reason)
        return
    session.check_writable()
    yield from notify_parent_gen(task, "failed")
    yield from remember_failure_gen(task, "", reason, author="model")
    yield from session.put(
        [(ev.FAILED, failed)], new_append_context(), fields=lambda: session.head_fields("failed")
    )
    task._close_session(session, "failed")


def mark_stuck_gen(task: TaskBase) -> EffectGen[None]:
    """Stop automatic runs of the task, because its processes died one after the other."""
    session = task._require_session()
    stuck = ev.MarkedStuck(session.state.crashes)
    yield from notify_parent_gen(task, "stuck")
    yield from remember_failure_gen(
        task, "", f"its process died {stuck.crashes} times in a row", author="system"
    )
    yield from session.put(
        [(ev.STUCK, stuck)], new_append_context(), fields=lambda: session.head_fields("stuck")
    )
    task._close_session(session, "stuck")


def time_out_gen(task: TaskBase, session: Session) -> EffectGen[None]:
    """Fail the task, because its time limit is over, whatever its steps are doing.

    Called by the heartbeat. Later writes of its steps are rejected, as after a cancellation.
    """
    error = TaskTimeout(str(task._key), timeout=session.state.timeout or 0.0)
    failed = ev.Failed(type(error).__name__, str(error))
    yield from notify_parent_gen(task, "failed")
    session.block.timeout_error = error
    yield from session.put(
        [(ev.FAILED, failed)], new_append_context(), fields=lambda: session.head_fields("failed")
    )
    session.block.close(error)
    logger.warning("%s failed: its time limit of %g s is over", task._key, error.timeout)


def cancel_gen(task: TaskBase, reason: str | None, by: str | None) -> EffectGen[None]:
    if reason is not None:
        reason = task._log.redaction.redact_text(check_text(reason, "reason"))
    author = new_append_context(by).by
    yield from children.cancel_with_children(task._log, task._key, ev.Cancelled(reason, author))
    session = task._session
    if session is not None and session.is_active() and not session.was_ended:
        session.state.status = "cancelled"
        task._close_session(session, "cancelled")
        if telemetry.listeners:
            ended = TaskEnded(str(task._key), status="cancelled")
            telemetry.emit(SessionLost(session.state, session.incarnation, ended))


def remember_failure_gen(
    task: TaskBase, type: str, message: str, *, author: str
) -> EffectGen[None]:
    """Save a failure to memory. If that fails, only log it: recording the failure comes first.

    `author` is the source of the message. The message of an exception may quote a server's
    response, so its author is "tool".
    """
    from . import memory

    try:
        yield from memory.save_ending(task, None, failure=(type, message), author=author)
    except LeaseLost:
        raise
    except Exception as problem:
        logger.warning(
            "could not save the failure of %s to memory (%s)", task._key, problem.__class__.__name__
        )
        yield NewDeadline()


def notify_parent_gen(task: TaskBase, status: str) -> EffectGen[None]:
    """Report to a waiting parent that no worker will resume this task.

    The report is sent before the end is recorded, so that a crash in between can't lose it. A
    parent that checks too early finds the task leased, and checks again later.
    """
    session = task._require_session()
    parent, stamp = session.state.parent, new_append_context()
    if parent is not None and not task._inline:
        above = task._key._replace(id=parent.id)
        yield from ops.settle(
            lambda: report_child_ended(above, parent.incarnation, task._key.id, status, stamp)
        )


def _encode_result(value: object, declared: Any) -> bytes:
    """Encode a task's result. Raise `NotSerializable` for every result without a JSON form."""
    try:
        return encode_as(value, declared)
    except NotSerializable:
        raise
    except TypeError as error:
        raise NotSerializable("the task's result", str(error)) from None


def _drift_rows(session: Session) -> list[list[str]]:
    """Return the session's drifts in the form that events store."""
    return [
        [each.step, each.what, each.recorded, each.now]
        for each in session.matching.drift[:MAX_REPORTED]
    ]
