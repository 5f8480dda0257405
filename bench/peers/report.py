"""What the comparison found: a table, and a JSON file that scripts/peer_plots.py can publish."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from .._measure import Spread, ratio

OURS = "Holdfast"


@dataclass(frozen=True)
class Comparison:
    """One peer in one workload. `times` is how many times as good as the peer Holdfast is."""

    workload: str
    peer: str
    ours: float
    theirs: float
    unit: str
    times: Spread

    @property
    def verdict(self) -> str:
        if self.times.low <= 1 <= self.times.high:
            return "about equal"
        return "Holdfast" if self.times.middle > 1 else f"{self.peer} is better"


def compare(
    workload: str,
    values: Mapping[str, Sequence[float]],
    unit: str,
    better: Literal["less", "more"] = "less",
    ours: str = OURS,
) -> list[Comparison]:
    """Compare the rounds of each peer with those of Holdfast."""
    mine = values[ours]
    found = []
    for peer, theirs in values.items():
        if peer.startswith(OURS):
            continue
        times = ratio(theirs, mine) if better == "less" else ratio(mine, theirs)
        found.append(
            Comparison(
                workload, peer, Spread.of(mine).middle, Spread.of(theirs).middle, unit, times
            )
        )
    return found


def make_table(found: Sequence[Comparison]) -> Table:
    table = Table(title="Holdfast and its peers, the same work done durably")
    for name in ("workload", "peer", "Holdfast", "peer's", "unit", "times as good", "better"):
        numeric = name in ("Holdfast", "peer's", "times as good")
        table.add_column(name, justify="right" if numeric else "left")
    last = ""
    for each in found:
        spread = f"{each.times.middle:,.1f} ({each.times.low:,.1f} to {each.times.high:,.1f})"
        table.add_row(
            each.workload if each.workload != last else "",
            each.peer,
            _format(each.ours),
            _format(each.theirs),
            each.unit,
            spread,
            each.verdict,
        )
        last = each.workload
    return table


def write_json(path: Path, found: Sequence[Comparison], facts: Mapping[str, object]) -> None:
    rows = [{**asdict(each), "verdict": each.verdict} for each in found]
    path.write_text(json.dumps({**facts, "comparisons": rows}, indent=1) + "\n", encoding="utf-8")


def _format(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"
