"""The report of the crash matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec


class MatrixError(Exception):
    """The matrix cannot run: for example, the agent fails or waits even without a crash."""


class Violation(msgspec.Struct, frozen=True):
    """Something that would not have happened without the crash."""

    point: str
    """Where the agent was killed."""
    what: str
    advice: str
    step: str = ""
    mode: str = ""
    """How the step is declared: "once", "check", or "" for an ordinary step."""
    effect: str = ""
    times: int = 0
    """How often the effect happened, and how often it should have."""
    expected: int = 0


class MatrixReport(msgspec.Struct, frozen=True):
    """The result of killing an agent around each of its writes. `print` it."""

    agent: str
    store: str
    points: list[str]
    """The points to kill at; each was hit, except those in `missed`."""
    violations: list[Violation]
    in_doubt: list[tuple[str, str]]
    """Each point with the `once` step that was in doubt after it and was resolved, as intended."""
    missed: list[str]
    """Points that the agent did not reach again, so they are untested."""

    @property
    def ok(self) -> bool:
        """Whether every point was tested without a violation."""
        return not self.violations and not self.missed

    @property
    def kills(self) -> int:
        return len(self.points) - len(self.missed)

    def __str__(self) -> str:
        lines = [
            f"crash matrix of {self.agent} on {self.store}: "
            f"killed at {self.kills} of {_count(len(self.points), 'point')}, "
            f"{_count(len(self.violations), 'violation')}"
        ]
        for step, count in Counter(step for _, step in self.in_doubt).items():
            points = _count(count, "point")
            lines.append(f"in doubt at {points} and resolved, as intended with once=: {step}")
        for point in self.missed:
            lines.append(f"not tested, because the agent did not reach it again: {point}")
        if self.violations:
            rows = [("killed", "step", "declared", "what happened")]
            rows += [
                (each.point, each.step or "-", _declared(each), each.what)
                for each in self.violations
            ]
            lines += ["", *_table(rows), "", "what to do:"]
            lines += [
                f"- {advice}" for advice in dict.fromkeys(each.advice for each in self.violations)
            ]
        return "\n".join(lines)


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _declared(violation: Violation) -> str:
    if not violation.step:
        return "-"
    return f"{violation.mode}=" if violation.mode else "ordinary"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
