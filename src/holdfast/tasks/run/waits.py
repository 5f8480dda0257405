"""Waiting, from inside: a question to a person, a signal from elsewhere, a time.

What is there already is given back. What is not, is recorded as a wait, and the run ends with `Suspended`: while it waits, a task
holds no thread, no connection and no lease.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ...errors import SchemaMismatch
from ...log.codec import Undecodable, check_declared, decode, decode_as, encode_as
from ...log.ids import checked_id
from ...log.stream_ops import new_append_context
from ...log.validation import seconds, timestamp
from ..control.question_schema import schema_of
from ..state import events as ev
from ..state.waits import ASK, SIGNAL, TIMER, TaskWait
from ..steps.identity import fingerprint, numbered
from .claim import declared_type, encode_text
from .effects import RunOperation, Script
from .frames import Branch, current_frame
from .session import Session

logger = logging.getLogger("holdfast")


class _WaitPoint:
    """Where the running code waits: in which line of work, inside which step."""

    def __init__(self, session: Session) -> None:
        inside = current_frame()
        here = inside is not None and inside.session is session
        self.branch: Branch = inside.branch if inside is not None and here else session.branch
        self.scope = inside.path if inside is not None and here else ""
        step = inside.run if inside is not None and here else None
        if inside is not None and here and inside.asking:
            raise RuntimeError("a check cannot wait: it says what is known now")
        while step is not None:
            if step.mode:
                raise RuntimeError(
                    f"step {step.path!r} must not be done twice and cannot wait in the middle: it would be in doubt; "
                    "wait before it, or after it"
                )
            step = step.outer


def ask(
    session: Session,
    name: str,
    question: str,
    payload: object,
    returns: Any,
    timeout: float | timedelta | None,
) -> Script[Any]:
    """The answer to a question; it belongs to this payload, and to no other."""
    checked_id(name, "the name of a question")
    encode_text(question, "the question")
    check_declared(returns)
    raw = encode_as(payload, declared_type(payload))
    until = _until(session, timeout)
    session.check_here()
    place = _WaitPoint(session)
    about = f"{ASK} {name} {fingerprint(session.salt, (question, decode(raw)), {})}"
    # Asked again after it was in vain, it is another question; asked again after an answer, it has that answer.
    number = session.counted(place.scope, about)
    wait = f"{about}#{number}" if number else about
    asked = ev.Asked(wait, ASK, name, question, until, schema_of(returns), msgspec.Raw(raw))
    session.ask_alone(name, wait)
    try:
        known = yield from _asked(session, asked, returns)
        return (yield from _expire_or_suspend(session, place, wait, known, returns))
    except TimeoutError:
        session.count(place.scope, about)
        raise


def _asked(session: Session, asked: ev.Asked, returns: Any) -> Script[TaskWait]:
    """A question as it is recorded, with its answer if there is one that fits. Recorded now, if it is not."""
    while True:
        known = yield from _look(session, ASK, asked.name, asked.wait)
        if known is not None and (session.opened_ended or known.how == "timeout"):
            return known
        if known is not None and known.how is not None:
            try:
                _outcome(session, asked.name, known, returns)
                return known
            except SchemaMismatch:
                logger.warning(
                    "the answer to %r of %s is of another type than declared; it is asked again",
                    asked.name,
                    session.key,
                )
        elif known is not None and session.state.waits.current[asked.name] == asked.wait:
            if known.event.schema == asked.schema:
                return known
            asked = msgspec.structs.replace(
                asked, until=known.event.until
            )  # the program expects another type by now
        session.check()
        try:
            yield from _begin(session, asked, known)
            return session.state.waits.all[asked.wait]
        except _AskedElsewhere:
            continue


def wait_for(
    session: Session, name: str, returns: Any, timeout: float | timedelta | None
) -> Script[Any]:
    """What was signalled: each signal is taken once, by the first who waits for it."""
    checked_id(name, "the name of a signal")
    check_declared(returns)
    until = _until(session, timeout)
    session.check_here()
    place = _WaitPoint(session)
    what = (SIGNAL, name)
    number = session.count(place.scope, what)
    wait = f"{SIGNAL} {numbered(place.scope, name)}#{number}"
    try:
        known = yield from _look(session, SIGNAL, name, wait)
        if known is not None and known.how is not None:
            return _outcome(session, name, known, returns)
        session.check()
        if known is None:
            yield from _begin(
                session, ev.Asked(wait, SIGNAL, name, until=until, schema=schema_of(returns)), None
            )
            known = session.state.waits.all[wait]
        while known.how is None:
            with session.taking_signal(name) as signal:
                if signal is None:
                    break
                fits = _fits(session.state.waits.signals[name][signal], returns)
                if not fits:
                    logger.warning(
                        "a signal %r of %s is of another type than waited for; it is set aside",
                        name,
                        session.key,
                    )
                yield from _end(
                    session, ev.Answered(wait, "signalled" if fits else "unfit", signal=signal)
                )
            known = session.state.waits.all[wait]
        return (yield from _expire_or_suspend(session, place, wait, known, returns))
    except (TimeoutError, SchemaMismatch):
        raise  # that is what came of it: the next time is another
    except BaseException:
        session.uncount(place.scope, what, number)
        raise


def sleep(
    session: Session, until: float | datetime | None, length: float | timedelta | None
) -> Script[None]:
    """Go on at a time; the one that was recorded first counts, however often the code runs."""
    at = None if until is None else timestamp(until, "time")
    if length is not None:
        length = seconds(length, "seconds")
    session.check_here()
    place = _WaitPoint(session)
    number = session.count(place.scope, TIMER)
    wait = f"{TIMER} {place.scope}#{number}"
    try:
        known = yield from _look(session, TIMER, "", wait)
        if known is None:
            at = session.now() + (length or 0.0) if at is None else at
            asked = ev.Asked(wait, TIMER, until=at)
            if at > session.now():
                session.check("new wait", "a sleep")
                yield from _begin(session, asked, None)
                known = session.state.waits.all[wait]
            elif not session.opened_ended:
                session.put_later(
                    wait, (ev.ASKED, asked)
                )  # it has passed, also for later runs that give another one
        if known is not None and known.how is None and not session.opened_ended:
            if (known.event.until or 0.0) > session.now():
                session.waiting[wait] = None
                session.suspend(place.branch)
            session.put_later(wait, (ev.ANSWERED, ev.Answered(wait, "passed")))
    except BaseException:
        session.uncount(place.scope, TIMER, number)
        raise


def _until(session: Session, timeout: float | timedelta | None) -> float | None:
    return None if timeout is None else session.now() + seconds(timeout, "timeout")


def _look(session: Session, kind: str, name: str, wait: str) -> Script[TaskWait | None]:
    """What is recorded of a wait. What others have said meanwhile is read first, if it is not over yet."""
    if session.replaying is not None:
        return session.replaying.wait(kind, name, wait)
    known = session.state.waits.all.get(wait)
    if (known is None or known.how is None) and not session.opened_ended:
        yield RunOperation(session.catch_up)
        known = session.state.waits.all.get(wait)
    return known


def _begin(session: Session, asked: ev.Asked, known: TaskWait | None) -> Script[None]:
    """Record a wait; unless there is another by now than the one that is known: it may have been answered already."""

    def unless() -> None:
        if session.state.waits.all.get(asked.wait) is not known:
            raise _AskedElsewhere

    yield RunOperation(
        lambda: session.put([(ev.ASKED, asked)], new_append_context(), unless=unless)
    )


class _AskedElsewhere(Exception):
    """Another line of work asks the very same."""


def _end(session: Session, answered: ev.Answered) -> Script[None]:
    yield RunOperation(lambda: session.put([(ev.ANSWERED, answered)], new_append_context()))


def _expire_or_suspend(
    session: Session, place: _WaitPoint, wait: str, known: TaskWait, returns: Any
) -> Script[Any]:
    """The outcome of a wait, if there is one by now or its time is over; else the run ends here."""
    if known.how is None:
        if session.opened_ended:
            session.check()
        if known.event.until is None or known.event.until > session.now():
            session.waiting[wait] = None
            session.suspend(place.branch)
        yield from _end(session, ev.Answered(wait, "timeout"))
        known = session.state.waits.all[wait]
    return _outcome(session, known.event.name, known, returns)


def _fits(raw: msgspec.Raw, returns: Any) -> bool:
    try:
        decode_as(bytes(raw), returns)
    except Undecodable:
        return False
    return True


def _outcome(session: Session, name: str, known: TaskWait, returns: Any) -> Any:
    if known.how == "timeout":
        raise TimeoutError(f"nothing came for {name!r} of {session.key} in time")
    try:
        return decode_as(bytes(known.value), returns)
    except Undecodable as error:
        raise SchemaMismatch(
            str(session.key), version=known.version, type=f"answer to {name}", what=str(error)
        ) from None
