"""Publish what `make bench-peers` measured: the table and the pictures of the benchmark page.

python scripts/peer_plots.py                                      exit code 1 if something is stale
python scripts/peer_plots.py --write bench/results/peers.json     publish these results
python scripts/peer_plots.py --write                              draw the published ones again

Published results are in docs/pictures/peers.json. Quick runs and runs on a busy machine are
refused. Without published results, the page says so.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pictures import FOLDER, Canvas

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = FOLDER / "peers.json"
PAGE = ROOT / "docs/explanation/benchmarks.md"
BLOCK = re.compile(
    r"(?<=<!-- results: written by scripts/peer_plots.py -->\n).*?(?=<!-- end -->)", re.DOTALL
)
NONE = "\nNo results are published yet. Run `make bench-peers` on your own machine.\n\n"
MAX_LOAD = 1.0
"""Per processor, over the last minute before the run. The benchmark itself is not in it."""

LEFT, BARS, ROW, TOP = 480, 340, 26, 52


def draw_bars(results: Mapping[str, Any], *, dark: bool) -> str:
    """Return an SVG with a bar for each comparison, on a logarithmic scale."""
    rows: Sequence[Mapping[str, Any]] = results["comparisons"]
    least = min(0.5, *(each["times"]["low"] for each in rows))
    most = max(2.0, *(each["times"]["high"] for each in rows))
    scale = BARS / math.log(most / least)
    height = TOP + ROW * len(rows) + 40
    canvas = Canvas(LEFT + BARS + 90, height, "Holdfast and its peers", dark=dark)
    canvas.text(16, 26, "Times as good as the peer (logarithmic scale)", bold=True, size=16)
    one = round(LEFT + math.log(1 / least) * scale, 1)
    canvas.text(one - 6, 44, "peer is better", anchor="end", colour="soft", size=12)
    canvas.text(one + 6, 44, "Holdfast is better", colour="soft", size=12)
    for number, each in enumerate(rows):
        y = TOP + number * ROW
        low, middle, high = (
            round(LEFT + math.log(each["times"][part] / least) * scale, 1)
            for part in ("low", "middle", "high")
        )
        label = f"{each['workload']}: {each['peer']}"
        canvas.text(LEFT - 12, y + 17, label, anchor="end", size=12)
        start, end = sorted((one, middle))
        fill = "done" if each["times"]["middle"] > 1 else "bad"
        canvas.box(start, y + 4, round(max(end - start, 1), 1), ROW - 8, fill)
        canvas.line((low, y + ROW / 2), (high, y + ROW / 2), colour="text")
        canvas.text(max(high, middle, one) + 8, y + 17, format_times(each), size=12, bold=True)
    canvas.line((one, TOP), (one, TOP + ROW * len(rows)), colour="text")
    canvas.text(16, height - 14, describe_run(results), colour="soft", size=12)
    return canvas.svg()


def format_times(each: Mapping[str, Any]) -> str:
    return f"{each['times']['middle']:,.1f}x"


def describe_run(results: Mapping[str, Any]) -> str:
    """Return when and on which machine the results were measured, and with which versions."""
    facts = results["machine"]
    shown = [results["date"], f"{facts['cpus']} processors", facts["system"], facts["python"]]
    peers = [f"{name} {facts[name]}" for name in ("langgraph", "dbos", "openai-agents")]
    return ", ".join([*shown, facts["filesystem"], *peers])


def write_section(results: Mapping[str, Any]) -> str:
    """Return the part of the page with the pictures and the table."""
    rows = [
        f"| {each['workload']} | {each['peer']} | {format_value(each['ours'])} |"
        f" {format_value(each['theirs'])} | {each['unit']} |"
        f" {each['times']['middle']:,.1f} ({each['times']['low']:,.1f} to"
        f" {each['times']['high']:,.1f}) | {each['verdict']} |"
        for each in results["comparisons"]
    ]
    picture = (
        '<picture><source media="(prefers-color-scheme: dark)"'
        ' srcset="../pictures/peers-dark.svg"><img src="../pictures/peers.svg"'
        ' alt="Bars: how many times as good as each peer Holdfast is, by workload"></picture>'
    )
    head = ["workload", "peer", "Holdfast", "peer's", "unit", "times as good", "better"]
    table = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *rows]
    run = f"Measured {describe_run(results)}."
    return "\n" + "\n".join([run, "", picture, "", *table]) + "\n\n"


def format_value(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def read_results(path: Path) -> dict[str, Any]:
    """Read results to publish. Refuse those that say nothing about a quiet machine."""
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if results["quick"]:
        raise SystemExit(f"{path} is of a quick run; run: make bench-peers")
    load = results["machine"]["load"][0] / results["machine"]["cpus"]
    if load > MAX_LOAD:
        raise SystemExit(f"the load before the run must be at most {MAX_LOAD}, got {load:.2f}")
    return results


def make_files(results: Mapping[str, Any] | None) -> dict[Path, str]:
    """Return the text that each file should have."""
    page = PAGE.read_text(encoding="utf-8")
    if results is None:
        return {PAGE: BLOCK.sub(lambda _: NONE, page)}
    return {
        PUBLISHED: json.dumps(results, indent=1, ensure_ascii=False) + "\n",
        PAGE: BLOCK.sub(lambda _: write_section(results), page),
        FOLDER / "peers.svg": draw_bars(results, dark=False),
        FOLDER / "peers-dark.svg": draw_bars(results, dark=True),
    }


def main(arguments: Sequence[str]) -> int:
    names = [each for each in arguments if each != "--write"]
    if names:
        results: dict[str, Any] | None = read_results(Path(names[0]))
    else:
        results = read_results(PUBLISHED) if PUBLISHED.exists() else None
    stale = False
    for path, text in make_files(results).items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--write" in arguments:
            path.write_text(text, encoding="utf-8")
        else:
            print(f"{path.relative_to(ROOT)} is stale; run: python scripts/peer_plots.py --write")
            stale = True
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
