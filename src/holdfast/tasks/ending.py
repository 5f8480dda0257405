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
    OutcomeUnknown,
    StepInDoubt,
    StorageFull,
    Suspended,
    Unavailable,
)

RECHECK_SECONDS: Final = 10.0
"""When to retry a run that ended because another task waits, or the database was unreachable."""

_STORAGE_ERRORS: Final = Unavailable | OutcomeUnknown | StorageFull
"""Errors of the database, which are not failures of the agent."""


class RunFacts(msgspec.Struct, frozen=True):
    """What decides how a run ends."""

    task: str
    error: BaseException | None
    """The exception that left the block."""
    now: float
    before: HeadFields = HeadFields()
    """The task's head before this run claimed it."""
    has_agent: bool = False
    by_worker: bool = False
    retry_at: float | None = None
    """When a worker retries if the run failed; None if it doesn't."""
    suspended: bool = False
    """The run has to wait, also if the agent swallowed `Suspended`."""
    stopping: bool = False
    """The run must stop at its next step, because its worker shuts down."""
    untouched: bool = False
    """The run wrote nothing except heartbeats."""
    ran_steps: bool = False
    """The run requested a step, recorded or not."""


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
    raised an error of the database, or of     left      pending, soon; outside of a worker as in
    another task that waits                              the next two rows
    took over from a lease owner that died     left      pending, due now if the task has an agent
    ended otherwise                            left      pending, due as before
    ========================================== ========= ========================================

    `NeedsHuman` and `BudgetExceeded` are failures that are never retried.
    """
    error, before = run.error, run.before
    # Under a worker every exception counts as a failure, or the run would be retried forever.
    if error is not None and is_failure(error, BaseException if run.by_worker else Exception):
        due = run.retry_at
        if due is None and not run.by_worker and before.owner is None and run.has_agent:
            due = before.due_at  # it was scheduled for a worker, and stays so
        if isinstance(error, NeedsHuman | BudgetExceeded):
            due = None
        return Ending("failed", "failed" if due is None else "retrying", due)
    # `Suspended` of another task, opened inside this one, doesn't suspend this one.
    if run.suspended or (isinstance(error, Suspended) and error.task == run.task):
        if run.stopping:
            return Ending("stopped", "pending", run.now)
        return Ending("suspended", "suspended")
    if run.untouched and before.owner is None and not isinstance(error, StepInDoubt):
        if before.status == "suspended":
            return Ending("restored", "suspended", before.due_at)
        failed = before.status in ("retrying", "failed", "stuck")
        if failed and run.has_agent and not run.ran_steps:
            return Ending("viewed", before.status or "", before.due_at)
    due = before.due_at
    if before.owner is not None:  # the previous lease owner died and would have continued
        due = run.now if run.has_agent else None
    if isinstance(error, Suspended | _STORAGE_ERRORS):
        due = run.now + RECHECK_SECONDS if run.by_worker else due
    elif isinstance(error, StepInDoubt):
        due = None
    return Ending("left", "pending", due)


def is_failure(error: BaseException, kind: type[BaseException] = Exception) -> bool:
    """Return whether an exception that leaves the block is a failure of the task.

    An exception group is one if any of its parts is.
    """
    parts: Sequence[BaseException] | None = getattr(error, "exceptions", None)
    if isinstance(parts, tuple) and parts:
        return any(is_failure(part, kind) for part in parts)
    return isinstance(error, kind) and not isinstance(
        error, LeaseLost | StepInDoubt | Suspended | _STORAGE_ERRORS
    )
