"""How a run of a task ends, by rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.backends import HeadFields
from holdfast.errors import (
    LeaseLost,
    NeedsHuman,
    NotSerializable,
    StepInDoubt,
    Suspended,
    Unavailable,
)
from holdfast.tasks.ending import RECHECK_SECONDS, Ending, RunFacts, decide_ending

NOW, LATER = 1000.0, 2000.0
T = "task 'claims'"
OTHER = "task 'other'"
SCHEDULED = HeadFields("retrying", due_at=LATER)
STUCK = HeadFields("stuck")
WAITED = HeadFields("suspended", due_at=LATER)
OWNED = HeadFields("running", owner="dead", due_at=900.0)


def in_doubt() -> StepInDoubt:
    return StepInDoubt(T, step="pay", why="was started")


def waits(task: str) -> Suspended:
    return Suspended(task, waits=())


@pytest.mark.parametrize(
    ("error", "facts", "ending"),
    [
        pytest.param(ValueError(), {}, Ending("failed", "failed"), id="a script fails"),
        pytest.param(
            ValueError(),
            {"by_worker": True, "retry_at": LATER},
            Ending("failed", "retrying", LATER),
            id="a worker retries",
        ),
        pytest.param(
            ValueError(), {"by_worker": True}, Ending("failed", "failed"), id="no retry is left"
        ),
        pytest.param(
            SystemExit(3),
            {"by_worker": True},
            Ending("failed", "failed"),
            id="the agent of a worker exits",
        ),
        pytest.param(
            KeyboardInterrupt(),
            {"by_worker": True, "interrupted": True, "before": SCHEDULED, "has_agent": True},
            Ending("left", "pending", LATER),
            id="a signal interrupts it",
        ),
        pytest.param(
            ValueError(),
            {"before": SCHEDULED, "has_agent": True},
            Ending("failed", "retrying", LATER),
            id="scheduled for a worker",
        ),
        pytest.param(
            NeedsHuman("x"),
            {"by_worker": True, "retry_at": LATER},
            Ending("failed", "failed"),
            id="a human must act",
        ),
        pytest.param(
            NotSerializable("$", "x"),
            {"by_worker": True, "retry_at": LATER},
            Ending("failed", "failed"),
            id="a value cannot be stored",
        ),
        pytest.param(
            ValueError(),
            {"by_worker": True, "retry_at": LATER, "final": True},
            Ending("failed", "failed"),
            id="a step failed for good",
        ),
        pytest.param(
            ValueError(),
            {"before": SCHEDULED, "has_agent": True, "final": True},
            Ending("failed", "failed"),
            id="a step failed for good, scheduled for a worker",
        ),
        pytest.param(
            asyncio.CancelledError(), {}, Ending("left", "pending"), id="cancelled in a script"
        ),
        pytest.param(
            asyncio.CancelledError(),
            {"by_worker": True, "retry_at": LATER},
            Ending("failed", "retrying", LATER),
            id="cancelled in a worker",
        ),
        pytest.param(waits(T), {}, Ending("suspended", "suspended"), id="it waits"),
        pytest.param(None, {"suspended": True}, Ending("suspended", "suspended"), id="swallowed"),
        pytest.param(
            waits(T),
            {"stopping": True, "by_worker": True},
            Ending("stopped", "pending", NOW),
            id="stopped",
        ),
        pytest.param(
            waits(OTHER),
            {"by_worker": True},
            Ending("left", "pending", NOW + RECHECK_SECONDS),
            id="another task waits",
        ),
        pytest.param(waits(OTHER), {}, Ending("left", "pending"), id="another waits, in a script"),
        pytest.param(
            Unavailable("x"),
            {"by_worker": True, "retry_at": LATER},
            Ending("left", "pending", NOW + RECHECK_SECONDS),
            id="database unreachable",
        ),
        pytest.param(
            None,
            {"untouched": True, "before": WAITED},
            Ending("restored", "suspended", LATER),
            id="viewed while it waits",
        ),
        pytest.param(
            None,
            {"untouched": True, "before": STUCK, "has_agent": True},
            Ending("viewed", "stuck"),
            id="viewed while stuck",
        ),
        pytest.param(
            None,
            {"untouched": True, "before": STUCK, "has_agent": True, "ran_steps": True},
            Ending("left", "pending"),
            id="its steps were run",
        ),
        pytest.param(
            in_doubt(),
            {"untouched": True, "before": WAITED},
            Ending("left", "pending"),
            id="a step is in doubt",
        ),
        pytest.param(
            None,
            {"before": OWNED, "has_agent": True},
            Ending("left", "pending", NOW),
            id="the owner died",
        ),
        pytest.param(None, {"before": OWNED}, Ending("left", "pending"), id="died, no agent"),
        pytest.param(
            None, {"before": SCHEDULED}, Ending("left", "pending", LATER), id="due as before"
        ),
        pytest.param(
            LeaseLost(T, owner=None), {}, Ending("left", "pending"), id="the lease was lost"
        ),
    ],
)
def test_how_a_run_ends(error: BaseException | None, facts: dict[str, Any], ending: Ending) -> None:
    assert decide_ending(RunFacts(T, error, NOW, **facts)) == ending
