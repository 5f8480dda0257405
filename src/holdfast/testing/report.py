"""What the crash matrix found, to be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec


class MatrixError(Exception):
    """The matrix could not do its work: the agent does not get to its end undisturbed, waits for what nobody gives, or so."""


class Violation(msgspec.Struct, frozen=True):
    """Something that would not have happened without the crash."""

    point: str
    """Where the agent was killed."""
    what: str
    advice: str
    step: str = ""
    mode: str = ""
    """How the step is declared: "once", "check", or "" for an ordinary one."""
    effect: str = ""
    times: int = 0
    """How often the effect happened, and how often it should have."""
    expected: int = 0


class MatrixReport(msgspec.Struct, frozen=True):
    """What became of an agent that was killed at each of its writes. `print` it."""

    agent: str
    store: str
    points: list[str]
    """Where it was to be killed, one after the other; each was hit, but for those in `missed`."""
    violations: list[Violation]
    in_doubt: list[tuple[str, str]]
    """Where it was killed, and the `once` step that was in doubt then, and was settled: that is what `once` means."""
    missed: list[str]
    """Points that the agent did not come to again, so that nothing is known of them."""

    @property
    def ok(self) -> bool:
        """Whether every point was tried, and nothing was wrong at any."""
        return not self.violations and not self.missed

    @property
    def kills(self) -> int:
        return len(self.points) - len(self.missed)

    def __str__(self) -> str:
        lines = [
            f"crash matrix of {self.agent} on {self.store}: killed at {self.kills} of {len(self.points)} points, "
            f"{len(self.violations)} violations"
        ]
        for step, count in Counter(step for _, step in self.in_doubt).items():
            lines.append(f"in doubt at {count} points, and settled, as its once= says: {step}")
        for point in self.missed:
            lines.append(f"not tried, because it did not come to this again: {point}")
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
