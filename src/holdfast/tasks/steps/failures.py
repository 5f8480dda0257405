"""What happens after an attempt of a step fails: another attempt, or a recorded failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from ...errors import BudgetExceeded, NotDone, StepFailed, TaskTimeout
from ...log.drivers import EffectGen, Sleep
from ...log.events import new_append_context
from ..run.frames import Frame
from ..run.session import WaitForSteps
from ..run.traceback import capture_trace, error_text
from ..run.writer import Change
from ..state import events as ev
from .declare import StepOptions
from .doubt import Found, call_check_gen

if TYPE_CHECKING:
    from .progress import StepRun
    from .run import StepCall


def retry_gen(
    call: StepCall, run: StepRun, frame: Frame, error: Exception
) -> EffectGen[Found | None]:
    """Prepare another attempt, or record the failure and raise it.

    Returns the result if the check finds that the step was done after all.
    """
    session, options = call.session, call.declared.options
    if isinstance(error, BudgetExceeded) and error.task is not None:  # about the task
        raise error
    if isinstance(error, TaskTimeout) and error.task == str(session.key):  # the same
        raise error
    session.check_deadline()
    # Inner steps that still run must not overlap with the next attempt or with the caller.
    yield WaitForSteps(session, call.path)
    over_budget = call.declared.is_model and find_exceeded(call, run) is not None
    # An abandoned thread may still do what must not be done twice.
    over = over_budget or (run.abandoned and bool(options.mode))
    if not can_retry(error, options, run.attempt, over_budget=over):
        yield from fail_gen(call, run, error)
    causes = _find_causes(call, error)
    failed = run.event(
        error=type(error).__name__,
        message=_redact_message(call, error),
        causes=causes,
        trace=_capture_trace(call, error),
        again=True,
    )
    if causes:  # inner steps that are retried too: other processes must know
        yield from session.put([(ev.STEP_FAILED, failed)], new_append_context())
    else:
        session.put_later(call.path, (ev.STEP_FAILED, failed))
    checks = options.check is not None and not isinstance(error, NotDone)
    check_after = options.check_after or 0.0
    yield Sleep(max(retry_delay(run.attempt), check_after if checks else 0.0))
    run.attempt += 1
    run.abandoned = False
    session.reset_scope(call.path)
    found = None
    if checks:
        found = yield from call_check_gen(call, run, frame)
    run.is_awaited = call.declared.is_async
    return found


def can_retry(
    error: BaseException, options: StepOptions, attempt: int, *, over_budget: bool
) -> bool:
    """Return whether to start another attempt after this error.

    | the attempt                                      | another one |
    |--------------------------------------------------|-------------|
    | was the last, or the model's budget is used up   | no          |
    | failed because of a final failure                | no          |
    | raised `NotDone`                                 | yes         |
    | is of a `once` step                              | no          |
    | raised one of `retry_on`                         | yes         |
    """
    if attempt >= options.max_attempts or over_budget or is_final_failure(error):
        return False
    if isinstance(error, NotDone):
        return True
    return options.mode != "once" and isinstance(error, options.retry_on)


def fail_gen(
    call: StepCall, run: StepRun, error: Exception, *, unstorable: bool = False
) -> EffectGen[NoReturn]:
    """Record that the step has failed, and raise the failure.

    `unstorable` means that the function has run, and `error` tells why its result cannot be stored.
    """
    session, options = call.session, call.declared.options
    doubt = bool(options.mode) and not (unstorable or isinstance(error, NotDone))
    causes = _find_causes(call, error)
    message = _redact_message(call, error)
    steps = session.state.steps
    failed = run.event(
        error=type(error).__name__,
        message=f"it ran, but its result can't be stored: {message}" if unstorable else message,
        causes=causes,
        trace=_capture_trace(call, error),
        doubt=doubt,
        abandoned=run.abandoned,
        final=unstorable
        or (not options.mode and any(path in steps and steps[path].final for path in causes)),
    )
    changes: list[Change] = [(ev.STEP_FAILED, run.end_event(failed))]
    unsaved = run.unsaved_change(after=0.0)
    if unsaved is not None:
        changes.insert(0, unsaved)
    yield from session.put(changes, new_append_context())
    run.unsaved = None
    if doubt and options.check is None:
        raise call.in_doubt(
            f"ended with {failed.error}, which does not show whether it was done"
        ) from error
    raise call.failure(failed) from error


def find_exceeded(call: StepCall, run: StepRun) -> BudgetExceeded | None:
    """Return the error if the task's budget is used up, else None."""
    session, state = call.session, call.session.state
    if state.budget is None:
        return None
    used = state.usage + session.writer.pending.usage() + run.unwritten_usage()
    return state.budget.exceeded(str(state.key), used)


def check_budget(call: StepCall, run: StepRun) -> None:
    """Raise `BudgetExceeded` if the task's budget is used up."""
    if (exceeded := find_exceeded(call, run)) is not None:
        raise exceeded


def _redact_message(call: StepCall, error: Exception) -> str:
    return call.session.log.redaction.redact_error(error_text(error))


def _capture_trace(call: StepCall, error: Exception) -> ev.Trace | None:
    return capture_trace(call.session.log, error, str(call.session.key))


def _find_causes(call: StepCall, error: Exception) -> list[str]:
    """Return the inner steps whose failures caused this error."""
    inside = call.path + "/"
    return [
        path for path in find_failed_steps(error, str(call.session.key)) if path.startswith(inside)
    ]


def find_failed_steps(error: BaseException, task: str) -> list[str]:
    """Return the steps whose failures led to an exception, however it was wrapped.

    With parallel steps there may be several.
    """
    paths: dict[str, None] = {}
    for found in _step_failures(error):
        if found.task == task:
            paths.update(dict.fromkeys((found.step, *found.causes)))
    return list(paths)


def is_final_failure(error: BaseException) -> bool:
    """Whether an exception is, or was caused by, a failure that would only repeat itself.

    The failed step may belong to a child task.
    """
    return any(found.final for found in _step_failures(error))


def _step_failures(error: BaseException) -> Iterator[StepFailed]:
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        found = left.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, StepFailed):
            yield found
        # Also causes that `from None` hides.
        left += [found.__context__, found.__cause__, *getattr(found, "exceptions", ())]


def retry_delay(attempt: int) -> float:
    """Return the seconds until the next attempt: about 1, 2, 4, … up to 60, with jitter."""
    import random

    return min(2.0 ** min(attempt - 1, 6) + random.random(), 60.0)  # noqa: S311  jitter, not a secret
