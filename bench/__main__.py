"""`python -m bench`: run the benchmark, print a table, write bench/results/latest.json and
latest.png."""

from __future__ import annotations

import argparse
import random
import secrets
import tempfile
import time
from pathlib import Path
from shutil import rmtree

from rich.console import Console

from . import (
    _report,
    appends,
    core,
    encryption,
    failover,
    imports,
    langgraph,
    memory,
    postgres,
    processes,
    reads,
    scale,
    space,
    states,
    syncs,
    tasks,
    throughput,
    turns,
    web,
    workers,
)
from ._measure import Lab, Result, machine

RESULTS = Path(__file__).resolve().parent / "results"

PARTS = {
    "core": core,
    "appends": appends,
    "throughput": throughput,
    "processes": processes,
    "reads": reads,
    "space": space,
    "syncs": syncs,
    "imports": imports,
    "turns": turns,
    "states": states,
    "tasks": tasks,
    "workers": workers,
    "postgres": postgres,
    "scale": scale,
    "failover": failover,
    "memory": memory,
    "encryption": encryption,
    "web": web,
    "langgraph": langgraph,
}
LONG = {"scale"}
"""Parts that take so long that they are run only when they are asked for."""
LETTERS = dict(zip("abcdefghijklmnopqrs", PARTS, strict=True))


def main() -> None:
    options = arguments()
    RESULTS.mkdir(exist_ok=True)
    console = Console()
    if not console.is_terminal:
        console = Console(width=190)  # a file has no width, and a table wants one
    directory = Path(tempfile.mkdtemp(prefix="tmp-", dir=RESULTS))
    lab = Lab(random.Random(options.seed), options.quick, directory)
    lab.say = lambda result: say(console, result)
    lab.remark = lambda text: console.print(f"  {text}", highlight=False)
    facts = machine(directory)
    console.print(
        f"seed {options.seed}; " + ", ".join(f"{name} {value}" for name, value in facts.items())
    )
    if facts["filesystem"] == "tmpfs":
        console.print(
            "[red]this is not a disk: syncs cost nothing here, and the ratios mean little[/]"
        )
    began = time.perf_counter()
    try:
        for name in options.only:
            lab.part = name
            console.rule(name)
            PARTS[name].run(lab)
    finally:
        rmtree(directory, ignore_errors=True)
    console.print(_report.table(lab.results))
    head = {"seed": options.seed, "quick": options.quick, "parts": options.only, "machine": facts}
    _report.write_json(RESULTS / "latest.json", lab, head)
    _report.draw(RESULTS / "latest.png", lab)
    failed = sum(result.verdict == "FAIL" for result in lab.results)
    passed = sum(result.verdict == "PASS" for result in lab.results)
    console.print(
        f"{passed} bars met, {failed} not, in {time.perf_counter() - began:.0f} s; "
        "see bench/results"
    )


def say(console: Console, result: Result) -> None:
    _, what, value, _, bar, verdict, _ = _report.line(result)
    console.print(f"  {what}: [bold]{value}[/] {bar} {verdict}", highlight=False)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer and shorter rounds: about a minute"
    )
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(1 << 32), help="of the order of the pairs"
    )
    usual = [name for name in PARTS if name not in LONG]
    known = ", ".join(f"{letter} or {name}" for letter, name in LETTERS.items())
    parser.add_argument("--only", type=parts, default=usual, metavar="PART,PART", help=known)
    return parser.parse_args()


def parts(text: str) -> list[str]:
    names = [LETTERS.get(name.strip(), name.strip()) for name in text.split(",")]
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is not a part; the parts are {', '.join(PARTS)}"
            )
    return names


if __name__ == "__main__":
    main()
