"""Steps in doubt: wait until the check may be called, and call it.

An attempt may have sent a request that the external service has not finished yet. If the check were
called too early, it would not see this request, and the step would be done twice.
"""

from __future__ import annotations

import logging
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from ...errors import DataProblem
from ...log.drivers import EffectGen, Sleep
from ...log.events import new_append_context
from ...log.operations import Operation
from ..run.frames import Branch, CallFunction, Frame, current_frame
from ..run.timed_calls import still_runs
from ..run.traceback import error_text
from ..state import events as ev
from ..state.fold import RunEnd, StepRecord
from .declare import is_async

if TYPE_CHECKING:
    from ..base import TaskBase
    from ..run.session import Session
    from .progress import StepRun
    from .run import StepCall

CHECK_AFTER_SECONDS: Final = 30.0
"""How long after a takeover a request may be under way: gateways and HTTP clients commonly give up
after 30 seconds."""

NOT_DONE: Final = "it was not done"
"""What a check found that returned None."""

RECHECK_SECONDS: Final = 10.0
"""How soon to look again whether a thread that ran longer than its timeout has ended."""

logger = logging.getLogger("holdfast")


class Found:
    """The result of a step that needs no further attempt."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class RecordChanged(Exception):
    """The record of this step may have changed since it was matched: match it again.

    `caught_up`: the stream was read. `waited` is the version of the record whose check may now be
    called.
    """

    def __init__(self, caught_up: bool = False, waited: int = 0) -> None:
        self.caught_up, self.waited = caught_up, waited


def wait_for_check_gen(call: StepCall, task: TaskBase, branch: Branch) -> EffectGen[None]:
    """Wait until the check of a step in doubt may be called.

    In a worker the run is suspended, unless the step is inside another one that must not run twice.
    Otherwise wait here, then raise `RecordChanged`: an operator may have resolved the step.
    """
    session, record = call.session, call.record
    assert record is not None
    left = _seconds_left(session, record, call.declared.options.check_after)
    goes_on = still_runs(session.incarnation, call.path)
    if goes_on:
        left = max(left, RECHECK_SECONDS)
    if left <= 0:
        return
    inside = current_frame()
    waits = task._is_run_by_worker() and (inside is None or not inside.inside_guarded_step())
    if goes_on and not waits:
        raise call.in_doubt("ran longer than its timeout, and still runs in this process")
    if waits:
        session.suspension.checks[call.path] = session.now() + left
        session.suspension.suspend(branch)
    logger.warning(
        "waiting %.0f s before the check of step %r of %s: its last attempt may still be under way"
        " in the external service (check_after)",
        left,
        call.path,
        session.key,
    )
    yield Sleep(left)
    yield from session.catch_up()
    raise RecordChanged(waited=call.version)


def _seconds_left(session: Session, record: StepRecord, check_after: float | None) -> float:
    """Return how long to wait before the check.

    By default there is no wait if the attempt ended in its process: with an exception, or because
    the run was left.
    """
    if record.run == session.run:
        ended = RunEnd(session.steps.last_ended.get(record.path, 0.0), released=True)
    elif record.state == "failed":
        ended = RunEnd(record.ended_at or 0.0, released=not record.abandoned)
    else:
        ended = session.state.run_ends.get(record.run, RunEnd(record.started_at, released=False))
    if check_after is None:
        check_after = 0.0 if ended.released else CHECK_AFTER_SECONDS
    # The attempt has ended by now, whatever the clock of its machine said.
    return min(ended.at + check_after - session.now(), check_after)


def call_check_gen(call: StepCall, run: StepRun, outer: Frame) -> EffectGen[Found | None]:
    """Call the check. Record the result that it finds and return it; None if it was not done."""
    from .run import TASK_ERRORS, encode_result, record_completed

    session, check = call.session, call.declared.options.check
    assert check is not None
    awaits = run.is_awaited = is_async(check)
    frame = Frame(outer.task, session, outer.branch, call.path, run, in_check=True)
    try:
        found = yield CallFunction(check, call.args, call.kwargs, frame, awaits)
        if hasattr(found, "__await__"):
            found = yield from await_gen(session, found, frame)
    except TASK_ERRORS:
        raise
    except Exception as error:
        yield from _record_check(
            call, f"it failed with {type(error).__name__}: {error_text(error)}"
        )
        raise call.in_doubt(
            f"is in doubt, and its check failed with {type(error).__name__}"
        ) from error
    if found is None:
        return None
    if is_truth_value(found, call.returns):
        yield from _record_check(call, f"it returned {found}, which is not a result")
        raise call.in_doubt(
            f"is in doubt, and its check returned {found}; it must return the step's result,"
            " or None if the step was not done"
        )
    try:
        value = None if call.returns in (None, type(None)) else found
        raw, result = encode_result(session.log, value, call.returns)
    except DataProblem as error:
        yield from _record_check(call, f"its result can't be stored: {error}")
        raise call.in_doubt(
            f"is in doubt, and its check's result can't be stored ({error})"
        ) from None
    yield from record_completed(call, run, raw, "checked")
    return Found(result)


def _record_check(call: StepCall, found: str) -> Operation[None]:
    """Record what a check found, for the operator: the step stays in doubt."""
    checked = (ev.STEP_CHECKED, ev.StepEvent(call.path, check=found))
    yield from call.session.put([checked], new_append_context())


def is_truth_value(found: object, returns: Any) -> bool:
    """Whether a check says yes or no instead of returning the step's result.

    `return to in sent` is a common mistake; as a result, its False would mean "done". True is right
    for a step without a result.
    """
    nothing = returns in (None, type(None))
    return type(found) is bool and returns is not bool and not (found and nothing)


def await_gen(
    session: Session, value: Any, frame: Frame | None, timeout: float | None = None
) -> EffectGen[Any]:
    """Return the value of an awaitable in an async task; raise TypeError in a synchronous one."""
    if not session.block.asynchronous:
        if isinstance(value, CoroutineType):
            value.close()
        raise TypeError(
            "an async function can't run in a synchronous task; open the task with"
            " `async with store.aio.task(…)`"
        )
    return (yield CallFunction(lambda: value, (), {}, frame, True, timeout))
