"""The results as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from ._measure import Lab, Result

COLOURS = {
    "raw": "tab:gray",
    "raw group": "tab:gray",
    "raw single": "tab:olive",
    "sqlite": "tab:blue",
    "files": "tab:orange",
    "memory": "tab:purple",
    "postgres": "tab:green",
}
AXES = {"append": "records in the stream", "scale": "streams in the store"}
"""What lies along a panel that shows times, by the first word of its title."""


def line(result: Result) -> tuple[str, str, str, str, str, str, str]:
    spread = (
        ""
        if result.low is None or result.high is None
        else f"{_short(result.low)} … {_short(result.high)}"
    )
    value = f"{_short(result.value)} {result.unit}".strip()
    colour = {"PASS": "[green]PASS[/]", "FAIL": "[bold red]FAIL[/]", "": ""}[result.verdict]
    return result.part, result.what, value, spread, str(result.bar or ""), colour, result.note


def table(results: Sequence[Result]) -> Table:
    made = Table(
        title="Holdfast beside the same work by hand: medians of interleaved pairs, least … most"
    )
    for heading in ("part", "what", "value", "spread", "bar", "", "note"):
        made.add_column(
            heading, justify="right" if heading in ("value", "spread", "bar") else "left"
        )
    previous = ""
    for result in results:
        if previous and result.part != previous:
            made.add_section()
        previous = result.part
        made.add_row(*line(result))
    return made


def write_json(path: Path, lab: Lab, facts: dict[str, object]) -> None:
    results = []
    for result in lab.results:
        plain: dict[str, Any] = {**asdict(result), "bar": str(result.bar) if result.bar else None}
        results.append({**plain, "verdict": result.verdict or None})
    path.write_text(
        json.dumps({**facts, "results": results, "curves": lab.curves}, indent=1) + "\n",
        encoding="utf-8",
    )


def draw(path: Path, lab: Lab) -> None:
    """The curves, a panel each, and every bar with how much of it is used up."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    barred = [result for result in lab.results if result.bar and result.bar.limit]
    panels = list(lab.curves)
    width = len(panels) + (1.6 if barred else 0)
    ratios = [1.0] * len(panels) + ([1.6] if barred else [])
    if not ratios:
        return
    figure, row = pyplot.subplots(
        1,
        len(ratios),
        figsize=(5 * width, 5),
        squeeze=False,
        width_ratios=ratios,
        layout="constrained",
    )
    for axes, panel in zip(row[0], panels, strict=False):
        for name, points in lab.curves[panel].items():
            axes.plot(*zip(*points, strict=True), marker="o", label=name, color=COLOURS.get(name))
        axes.set(title=panel, xscale="log", yscale="log")
        axes.set(xlabel=AXES.get(panel.partition(":")[0], "writers"))
        axes.set(ylabel="µs, p50" if panel.partition(":")[0] in AXES else "appends per second")
        axes.grid(alpha=0.3)
        axes.legend()
    if barred:
        axes, names = row[0][-1], [result.what for result in barred]
        shares = [result.bar.share(result.value) if result.bar else 0.0 for result in barred]
        axes.barh(
            range(len(names)),
            shares,
            color=["tab:green" if share <= 1 else "tab:red" for share in shares],
        )
        axes.axvline(1.0, color="black", linewidth=1)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.invert_yaxis()
        axes.set(title="share of each bar (up to 1 is met)")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _short(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"
