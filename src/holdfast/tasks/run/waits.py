"""Waits of a running task: for an answer, a signal or a time.

If the outcome is known, it is returned. Otherwise the wait is recorded, and the run ends with
`Suspended`: a waiting task needs no thread, no connection and no lease.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ...errors import SchemaMismatch
from ...log.codec import Undecodable, check_declared, decode, decode_as, encode_as
from ...log.drivers import EffectGen
from ...log.events import new_append_context
from ...log.ids import check_id
from ...log.validation import check_seconds, check_timestamp
from ..control.value_schema import schema_of
from ..state import events as ev
from ..state.waits import ASK, SIGNAL, TIMER, TaskWait
from ..steps.identity import fingerprint, numbered_path
from .claim import check_text, declared_type
from .frames import Branch, current_frame
from .session import Session

logger = logging.getLogger("holdfast")


class _WaitPoint:
    """The branch and the step in which the running code waits."""

    def __init__(self, session: Session) -> None:
        inside = current_frame()
        here = inside is not None and inside.session is session
        self.branch: Branch = (
            inside.branch if inside is not None and here else session.suspension.branch
        )
        self.scope = inside.path if inside is not None and here else ""
        step = inside.run if inside is not None and here else None
        if inside is not None and here and inside.in_check:
            raise RuntimeError("a check cannot wait: it must report what is known now")
        while step is not None:
            if step.mode:
                raise RuntimeError(
                    f"step {step.path!r} must not run twice, so it cannot wait in the middle: "
                    "its outcome would be unknown. Wait before or after the step"
                )
            step = step.outer


def ask(
    session: Session,
    name: str,
    question: str,
    payload: object,
    returns: Any,
    timeout: float | timedelta | None,
) -> EffectGen[Any]:
    """Return the answer to a question. It counts only for this question text and payload."""
    check_id(name, "the name of a question")
    question = check_text(question, "the question")
    check_declared(returns)
    raw = encode_as(payload, declared_type(payload))
    until = _until(session, timeout)
    session.check_active()
    place = _WaitPoint(session)
    about = f"{ASK} {name} {fingerprint(session.salt, (question, decode(raw)), {})}"
    # After a timeout, the next call is a new question; after an answer, it returns that answer.
    number = session.counters.peek(place.scope, about)
    wait = f"{about}#{number}" if number else about
    asked = ev.Asked(wait, ASK, name, question, until, schema_of(returns), msgspec.Raw(raw))
    session.suspension.reserve_question(name, wait)
    try:
        known = yield from _record_question(session, asked, returns)
        return (yield from _expire_or_suspend(session, place, wait, known, returns))
    except TimeoutError:
        session.counters.take(place.scope, about)
        raise


def _record_question(session: Session, asked: ev.Asked, returns: Any) -> EffectGen[TaskWait]:
    """Return the recorded question, with its answer if the answer has the right type.

    If the question isn't recorded yet, record it first.
    """
    while True:
        known = yield from _find_wait(session, ASK, asked.name, asked.wait)
        if known is not None and (session.was_ended or known.how == "timeout"):
            return known
        if known is not None and known.how is not None:
            try:
                _decode_outcome(session, asked.name, known, returns)
                return known
            except SchemaMismatch:
                logger.warning(
                    "the answer to %r of %s doesn't have the declared type; asking again",
                    asked.name,
                    session.key,
                )
        elif known is not None and session.state.waits.question_ids[asked.name] == asked.wait:
            if known.event.schema == asked.schema:
                return known
            # The code now expects another type: record the question again with its schema.
            asked = msgspec.structs.replace(asked, until=known.event.until)
        session.check_writable()
        try:
            yield from _record_wait(session, asked, known)
            return session.state.waits.all[asked.wait]
        except _AskedElsewhere:
            continue


def wait_for(
    session: Session, name: str, returns: Any, timeout: float | timedelta | None
) -> EffectGen[Any]:
    """Return the payload of the next signal. Only one wait receives a signal."""
    check_id(name, "the name of a signal")
    check_declared(returns)
    until = _until(session, timeout)
    session.check_active()
    place = _WaitPoint(session)
    what = (SIGNAL, name)
    number = session.counters.take(place.scope, what)
    wait = f"{SIGNAL} {numbered_path(place.scope, name)}#{number}"
    try:
        known = yield from _find_wait(session, SIGNAL, name, wait)
        if known is not None and known.how is not None:
            return _decode_outcome(session, name, known, returns)
        session.check_writable()
        if known is None:
            yield from _record_wait(
                session, ev.Asked(wait, SIGNAL, name, until=until, schema=schema_of(returns)), None
            )
            known = session.state.waits.all[wait]
        while known.how is None:
            with session.counters.take_signal(name) as signal:
                if signal is None:
                    break
                fits = _fits(session.state.waits.signals[name][signal], returns)
                if not fits:
                    logger.warning(
                        "a signal %r to %s doesn't have the declared type; skipping it",
                        name,
                        session.key,
                    )
                yield from _record_outcome(
                    session, ev.Answered(wait, "signalled" if fits else "unfit", signal=signal)
                )
            known = session.state.waits.all[wait]
        return (yield from _expire_or_suspend(session, place, wait, known, returns))
    except (TimeoutError, SchemaMismatch):
        raise  # this is the outcome of the wait: the next call is another wait
    except BaseException:
        session.counters.release(place.scope, what, number)
        raise


def sleep(
    session: Session, until: float | datetime | None, length: float | timedelta | None
) -> EffectGen[None]:
    """Wait until a time. Later runs use the time that the first run recorded."""
    at = None if until is None else check_timestamp(until, "time")
    if length is not None:
        length = check_seconds(length, "seconds")
    session.check_active()
    place = _WaitPoint(session)
    number = session.counters.take(place.scope, TIMER)
    wait = f"{TIMER} {place.scope}#{number}"
    try:
        known = yield from _find_wait(session, TIMER, "", wait)
        if known is None:
            at = session.lease.latest_now() + (length or 0.0) if at is None else at
            asked = ev.Asked(wait, TIMER, until=at)
            if at > session.now():
                session.check_writable("new wait", "a sleep")
                yield from _record_wait(session, asked, None)
                known = session.state.waits.all[wait]
            elif not session.was_ended:
                # The time has passed, even if later runs pass a different time.
                session.put_later(wait, (ev.ASKED, asked))
        if known is not None and known.how is None and not session.was_ended:
            if (known.event.until or 0.0) > session.now():
                session.suspension.waits[wait] = None
                session.suspension.suspend(place.branch)
            session.put_later(wait, (ev.ANSWERED, ev.Answered(wait, "passed")))
    except BaseException:
        session.counters.release(place.scope, TIMER, number)
        raise


def _until(session: Session, timeout: float | timedelta | None) -> float | None:
    return (
        None if timeout is None else session.lease.latest_now() + check_seconds(timeout, "timeout")
    )


def _find_wait(session: Session, kind: str, name: str, wait: str) -> EffectGen[TaskWait | None]:
    """Return a recorded wait, or None. Unless it is known to be over, read the stream first."""
    if session.replaying is not None:
        return session.replaying.wait(kind, name, wait)
    known = session.state.waits.all.get(wait)
    if (known is None or known.how is None) and not session.was_ended:
        yield from session.catch_up()
        known = session.state.waits.all.get(wait)
    return known


def _record_wait(session: Session, asked: ev.Asked, known: TaskWait | None) -> EffectGen[None]:
    """Record a wait. Raise `_AskedElsewhere` if the recorded wait is no longer `known`."""

    def unless() -> None:
        if session.state.waits.all.get(asked.wait) is not known:
            raise _AskedElsewhere

    yield from session.put([(ev.ASKED, asked)], new_append_context(), unless=unless)


class _AskedElsewhere(Exception):
    """Another branch recorded the same question."""


def _record_outcome(session: Session, answered: ev.Answered) -> EffectGen[None]:
    yield from session.put([(ev.ANSWERED, answered)], new_append_context())


def _expire_or_suspend(
    session: Session, place: _WaitPoint, wait: str, known: TaskWait, returns: Any
) -> EffectGen[Any]:
    """Return the outcome of a wait, record its timeout, or suspend the run."""
    if known.how is None:
        if session.was_ended:
            session.check_writable()
        if known.event.until is None or known.event.until > session.now():
            session.suspension.waits[wait] = None
            session.suspension.suspend(place.branch)
        yield from _record_outcome(session, ev.Answered(wait, "timeout"))
        known = session.state.waits.all[wait]
    return _decode_outcome(session, known.event.name, known, returns)


def _fits(raw: msgspec.Raw, returns: Any) -> bool:
    try:
        decode_as(bytes(raw), returns)
    except Undecodable:
        return False
    return True


def _decode_outcome(session: Session, name: str, known: TaskWait, returns: Any) -> Any:
    if known.how == "timeout":
        raise TimeoutError(f"the wait for {name!r} of {session.key} timed out")
    try:
        return decode_as(bytes(known.value), returns)
    except Undecodable as error:
        raise SchemaMismatch(
            str(session.key), version=known.version, type=f"answer to {name}", what=str(error)
        ) from None
