"""What `import holdfast` costs over a bare interpreter, and which packages it loads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from time import perf_counter

from ._measure import Bar, Lab, Spread, interleave

# What the package itself depends on, and theirs (msgspec takes typing_extensions where it finds
# it); anything else that is not Python's own is optional.
REQUIRED = frozenset({"apsw", "holdfast", "msgspec", "rich", "typer", "typing_extensions"})
SLOWEST = 5

LOADED = """
import sys
before = set(sys.modules)
import holdfast, json
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def run(lab: Lab) -> None:
    python("import holdfast")  # leaves the bytecode, as an installation does
    arms = {"bare": partial(seconds, "pass"), "ours": partial(seconds, "import holdfast")}
    values = interleave(arms, lab.rng, rounds=lab.choose(9, 3), repeats=lab.choose(5, 3))
    cost = [(ours - bare) * 1e3 for ours, bare in zip(values["ours"], values["bare"], strict=True)]
    note = f"bare interpreter {Spread.of(values['bare']).middle * 1e3:.0f} ms; slowest: {slowest()}"
    lab.report("import holdfast", Spread.of(cost), unit="ms", bar=Bar(80), note=note)

    loaded = json.loads(python(LOADED).stdout)
    packages = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    packages = {name for name in packages if not name.startswith("_")}
    optional = packages - REQUIRED
    names = ", ".join(sorted(packages))
    lab.report(
        "optional packages loaded by it",
        len(optional),
        bar=Bar(0, "=="),
        note=f"{len(loaded)} modules; of {names}",
    )
    lab.report("engines loaded by it (apsw)", int("apsw" in loaded))


def seconds(code: str) -> float:
    start = perf_counter()
    python(code)
    return perf_counter() - start


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment)


def slowest() -> str:
    """The modules that take longest by themselves."""
    lines = python("import holdfast", "-X", "importtime").stderr
    times = [
        (int(own), name)
        for own, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", lines)
    ]
    return ", ".join(
        f"{name} {own / 1e3:.1f}" for own, name in sorted(times, reverse=True)[:SLOWEST]
    )
