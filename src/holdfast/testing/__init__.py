"""Test helpers for applications: temporary stores, a fake clock, and deliberate crashes.

    with testing.temporary_store() as store, testing.crash(after="pay"):
        my_agent(store)                                # dies as soon as "pay" is recorded
    report = testing.crash_matrix("app.py:claims")     # kills the agent at each of its writes
    assert report.ok, report

pytest fixtures: `holdfast_store`, `holdfast_clock`, `holdfast_ids`.
"""

from __future__ import annotations

from .clocks import FakeClock, fake_clock
from .crashing import Crash, Crashed, crash
from .effects import effect
from .ids import seeded_ids
from .matrix import crash_matrix
from .report import MatrixError, MatrixReport, Violation
from .stores import temporary_store

__all__ = [
    "Crash",
    "Crashed",
    "FakeClock",
    "MatrixError",
    "MatrixReport",
    "Violation",
    "crash",
    "crash_matrix",
    "effect",
    "fake_clock",
    "seeded_ids",
    "temporary_store",
]
