"""`python -m bench.peers`: compare, print a table, write bench/results/peers.json."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree

from rich.console import Console

from .._measure import Lab, machine
from . import report, steps, turns

RESULTS = Path(__file__).resolve().parent.parent / "results"
PEERS = ("langgraph", "langgraph-checkpoint-sqlite", "dbos", "openai-agents")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    directory = Path(tempfile.mkdtemp(prefix="tmp-", dir=RESULTS))
    lab = Lab(random.Random(7), options.quick, directory)
    lab.remark = lambda text: console.print(f"  {text}", highlight=False)
    facts = {**machine(directory), **{name: version(name) for name in PEERS}}
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)
    began = time.perf_counter()
    try:
        found = [*turns.run(lab), *steps.run(lab)]
    finally:
        rmtree(directory, ignore_errors=True)
    console.print(report.make_table(found))
    today = datetime.now(timezone.utc).date().isoformat()
    report.write_json(
        RESULTS / "peers.json", found, {"quick": options.quick, "date": today, "machine": facts}
    )
    console.print(f"{len(found)} comparisons in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
