"""What `import holdfast` costs over a bare interpreter, which packages it loads, and what the
command line costs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter

import holdfast

from ._measure import Bar, Clocks, Lab, Spread, interleave, medians_of

# What the package itself depends on, and theirs (msgspec takes typing_extensions where it finds
# it); anything else that is not Python's own is optional.
REQUIRED = frozenset({"apsw", "click", "holdfast", "msgspec", "rich", "typing_extensions"})
SLOWEST = 5

MAIN = "from holdfast.cli import main; main()"
LOADED = """
import sys
before = set(sys.modules)
import holdfast, json
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def run(lab: Lab) -> None:
    python("import holdfast")  # leaves the bytecode, as an installation does
    arms = {"bare": partial(python, "pass"), "ours": partial(python, "import holdfast")}
    values = interleave_children(arms, lab)
    cost = extra(values.wall)
    note = f"bare interpreter {Spread.of(values.wall['bare']).middle * 1e3:.0f} ms; "
    note += f"{Spread.of(extra(values.cpu)).middle:.0f} ms of CPU; slowest: {slowest()}"
    lab.report("import holdfast", Spread.of(cost), unit="ms", bar=Bar(60), note=note)

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
    command_line(lab)


def command_line(lab: Lab) -> None:
    with lab.place() as place:
        path = str(place / "agents.db")
        with holdfast.open(path) as store, store.task("t") as task:
            task.step("look up", int)
        arms = {name: partial(python, MAIN, arguments=[name, path]) for name in ("tasks",)}
        arms["--help"] = partial(python, MAIN, arguments=["--help"])
        values = interleave_children(arms, lab)
    for name in arms:
        milliseconds = Spread.of([seconds * 1e3 for seconds in values.cpu[name]])
        bar = Bar(200) if name == "tasks" else None
        note = f"{Spread.of(values.wall[name]).middle * 1e3:.0f} ms passed"
        lab.report(f"holdfast {name}, CPU", milliseconds, unit="ms", bar=bar, note=note)


def interleave_children(arms: Mapping[str, Callable[[], object]], lab: Lab) -> Clocks:
    """Both times of programs that are started; that of the processor is theirs."""
    cpu: dict[str, list[float]] = {name: [] for name in arms}
    repeats = lab.choose(5, 3)

    def timed(name: str) -> float:
        start, before = perf_counter(), getrusage(RUSAGE_CHILDREN)
        arms[name]()
        after = getrusage(RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        cpu[name].append(used)
        return perf_counter() - start

    wall = interleave(
        {name: partial(timed, name) for name in arms},
        lab.rng,
        rounds=lab.choose(9, 3),
        repeats=repeats,
    )
    return Clocks(wall, medians_of(cpu, repeats))


def extra(values: Mapping[str, Sequence[float]]) -> list[float]:
    """Milliseconds over a bare interpreter."""
    return [(ours - bare) * 1e3 for ours, bare in zip(values["ours"], values["bare"], strict=True)]


def python(
    code: str, *options: str, arguments: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    command = [sys.executable, *options, "-c", code, *arguments]
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
