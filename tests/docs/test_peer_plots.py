"""The benchmark page publishes what was measured, and refuses results that say little."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from helpers.doc_pages import ROOT

ROW = {
    "workload": "step on SQLite",
    "peer": "DBOS on SQLite",
    "ours": 120.4,
    "theirs": 850.0,
    "unit": "µs",
    "times": {"middle": 7.1, "low": 5.5, "high": 8.2},
    "verdict": "Holdfast",
}

WORSE = ROW | {"peer": "a faster peer", "times": {"middle": 0.5, "low": 0.4, "high": 0.6}}

MACHINE = {
    "python": "CPython 3.12.1",
    "system": "Linux x86_64",
    "cpus": 2,
    "load": [0.2, 0.1, 0.1],
    "filesystem": "ext4",
    "langgraph": "1.2.3",
    "dbos": "3.2.1",
    "openai-agents": "0.1.2",
}


def publish(tmp_path: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    """Publish results in a copy of the files that the script reads and writes."""
    for name in ("scripts/peer_plots.py", "scripts/pictures.py", "docs/explanation/benchmarks.md"):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / name).read_text())
    (tmp_path / "docs/pictures").mkdir(exist_ok=True)
    results = {"quick": False, "date": "2026-01-31", "machine": MACHINE} | changes
    (tmp_path / "peers.json").write_text(json.dumps(results | {"comparisons": [ROW, WORSE]}))
    return subprocess.run(
        [sys.executable, "scripts/peer_plots.py", "--write", "peers.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


def test_the_page_has_the_figures_the_machine_and_the_date(tmp_path: Path) -> None:
    done = publish(tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "docs/explanation/benchmarks.md").read_text()
    assert "| step on SQLite | DBOS on SQLite | 120 | 850 | µs | 7.1 (5.5 to 8.2) |" in page
    assert "Measured 2026-01-31, 2 processors, Linux x86_64, CPython 3.12.1, ext4," in page
    assert "No results are published" not in page
    for name in ("peers.svg", "peers-dark.svg"):
        text = " ".join(ElementTree.parse(tmp_path / "docs/pictures" / name).getroot().itertext())
        assert "7.1x" in text and "0.5x" in text and "2026-01-31" in text
    again = subprocess.run([sys.executable, "scripts/peer_plots.py"], cwd=tmp_path)
    assert again.returncode == 0


@pytest.mark.parametrize(
    "changes", [{"quick": True}, {"machine": MACHINE | {"load": [2.5, 1.0, 1.0]}}]
)
def test_results_of_a_quick_run_or_a_busy_machine_are_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    before = (ROOT / "docs/explanation/benchmarks.md").read_text()
    done = publish(tmp_path, **changes)
    assert done.returncode == 1
    assert "make bench-peers" in done.stderr or "load" in done.stderr
    assert (tmp_path / "docs/explanation/benchmarks.md").read_text() == before
