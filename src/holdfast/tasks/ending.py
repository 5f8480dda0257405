"""Decide how a run of a task ends when its block is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from ..backends import HeadFields
from ..errors import (
    BudgetExceeded,
    LeaseLost,
    NeedsHuman,
    NotSerializable,
    OutcomeUnknown,
    StepInDoubt,
    StorageFull,
    Suspended,
    Unavailable,
)

RECHECK_SECONDS: Final = 10.0
"""How soon to retry a run that ended because another task waits, or the database didn't answer."""

_STORAGE_ERRORS: Final = Unavailable | OutcomeUnknown | StorageFull
"""Errors of the database, which are not failures of the agent."""


class RunFacts(msgspec.Struct, frozen=True):
    """The facts that decide how a run ends."""

    task: str
    error: BaseException | None
    """The exception that left the block."""
    now: float
    before: HeadFields = HeadFields()
    """The task's head before this run claimed it."""
    has_agent: bool = False
    by_worker: bool = False
    interrupted: bool = False
    """A signal ended the run: Ctrl-C or SIGTERM."""
    retry_at: float | None = None
    """When a worker retries a failed run; None if it doesn't."""
    suspended: bool = False
    """The run has to wait, even if the agent swallowed `Suspended`."""
    stopping: bool = False
    """The run must stop at its next step, because its worker is shutting down."""
    untouched: bool = False
    """The run wrote nothing except heartbeats."""
    ran_steps: bool = False
    """The run requested a step, recorded or not."""
    final: bool = False
    """The error comes from a step that ran and whose result cannot be stored."""


class Ending(NamedTuple):
    """How a run ends, and the task's status and due time from then on."""

    outcome: Literal["failed", "stopped", "suspended", "restored", "viewed", "left"]
    status: str
    due_at: float | None = None


def decide_ending(run: RunFacts) -> Ending:
    """Return how a run ends, by the first row that applies.

    ========================================== ========= ========================================
    The run                                    outcome   status and due time
    ========================================== ========= ========================================
    raised a failure, a retry is left          failed    retrying, at `retry_at`
    raised a failure outside of a worker       failed    retrying, if a worker was to run it;
                                                         else failed
    raised a failure otherwise                 failed    failed
    was stopped                                stopped   pending, due now
    has to wait                                suspended suspended, due when a wait ends
    wrote nothing, the task waited before      restored  suspended, as before
    wrote nothing, the task had failed before  viewed    as before
    raised `StepInDoubt`                       left      pending, not due: an operator must act
    raised an error of the database, or of     left      pending, due soon; if not in a worker, see
    another task that waits                              the next two rows
    took over from a lease owner that died     left      pending, due now if the task has an agent
    ended otherwise                            left      pending, due as before
    ========================================== ========= ========================================

    `NeedsHuman`, `BudgetExceeded`, a value that cannot be stored, and the failure of a step that
    does not run again are failures that are never retried.
    """
    # In a worker every exception of the agent counts as a failure. Otherwise it would retry the
    # run forever.
    failures = BaseException if run.by_worker and not run.interrupted else Exception
    if run.error is not None and is_failure(run.error, failures):
        return _decide_failure(run, run.error)
    # If another task that was opened inside this one is suspended, this one isn't.
    if run.suspended or (isinstance(run.error, Suspended) and run.error.task == run.task):
        if run.stopping:
            return Ending("stopped", "pending", run.now)
        return Ending("suspended", "suspended")
    return _decide_unchanged(run) or Ending("left", "pending", _find_due(run))


def _decide_failure(run: RunFacts, error: BaseException) -> Ending:
    """Return how a run ends that raised a failure."""
    before, due = run.before, run.retry_at
    if due is None and not run.by_worker and before.owner is None and run.has_agent:
        due = before.due_at  # it stays scheduled for a worker
    if run.final or isinstance(error, NeedsHuman | BudgetExceeded | NotSerializable):
        due = None
    return Ending("failed", "failed" if due is None else "retrying", due)


def _decide_unchanged(run: RunFacts) -> Ending | None:
    """Return how a run ends that wrote nothing, if the task stays as it was before; else None."""
    before = run.before
    if not run.untouched or before.owner is not None or isinstance(run.error, StepInDoubt):
        return None
    if before.status == "suspended":
        return Ending("restored", "suspended", before.due_at)
    failed = before.status in ("retrying", "failed", "stuck")
    if failed and run.has_agent and not run.ran_steps:
        return Ending("viewed", before.status or "", before.due_at)
    return None


def _find_due(run: RunFacts) -> float | None:
    """Return when a worker should resume a task that was left."""
    if isinstance(run.error, StepInDoubt):
        return None
    if isinstance(run.error, Suspended | _STORAGE_ERRORS) and run.by_worker:
        return run.now + RECHECK_SECONDS
    if run.before.owner is not None:  # the previous lease owner died and would have continued
        return run.now if run.has_agent else None
    return run.before.due_at


def is_failure(error: BaseException, kind: type[BaseException] = Exception) -> bool:
    """Return True if an exception that leaves the block is a failure of the task.

    An exception group is a failure if any of its parts is.
    """
    parts: Sequence[BaseException] | None = getattr(error, "exceptions", None)
    if isinstance(parts, tuple) and parts:
        return any(is_failure(part, kind) for part in parts)
    return isinstance(error, kind) and not isinstance(
        error, LeaseLost | StepInDoubt | Suspended | _STORAGE_ERRORS
    )
