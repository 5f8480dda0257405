"""Which feature is tested on which engine: the table in docs/reference/backends.md, made from the tests that there are.

`python tests/feature_table.py` collects the tests and writes the table anew; `test_feature_table.py` fails if the document tells of
a pair that no test has, or leaves one out.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).resolve().parent
DOCUMENT = TESTS.parent / "docs" / "reference" / "backends.md"
BEGIN, END = "<!-- from the tests: begin -->", "<!-- from the tests: end -->"
REPORT = "HOLDFAST_FEATURE_REPORT"

ENGINES = {
    "memory": "memory",
    "sqlite": "SQLite",
    "files": "files",
    "postgres": "PostgreSQL",
    "redis": "Redis",
    "dynamodb": "DynamoDB",
    "s3": "S3",
}
FEATURES = {
    "test_conformance.py": "the contract of backends",
    "test_conformance_servers.py": "the contract of backends",
    "test_store.py": "streams of events, tenants",
    "test_following.py": "follow",
    "test_conversations.py": "conversations",
    "test_conversations_processes.py": "conversations of several processes",
    "test_state.py": "state",
    "test_tasks.py": "tasks",
    "test_tasks_leases.py": "leases of several processes",
    "test_steps.py": "steps",
    "test_generator_steps.py": "steps that stream",
    "test_map.py": "map",
    "test_model_steps.py": "model steps",
    "test_reply.py": "replies",
    "test_artifacts.py": "artifacts",
    "test_waiting.py": "asking, signals and timers",
    "test_children.py": "children",
    "test_replay.py": "replay",
    "test_checkpoint.py": "checkpoints",
    "test_retention.py": "expiry and sweep",
    "test_worker.py": "workers",
    "test_workers_kill.py": "workers, killed with -9",
    "test_failover.py": "failover to another machine",
    "test_kill.py": "writers, killed with -9",
    "test_tasks_kill.py": "tasks, killed with -9",
    "test_copy.py": "copy to another engine and back",
    "test_encryption.py": "encryption",
    "test_rekeying.py": "a new key",
    "test_erasure.py": "erasure",
    "test_transcribing.py": "encrypting a store that is in clear",
    "test_hostile_servers.py": "hostile content",
    "test_verify.py": "verify",
    "test_anchors.py": "anchors",
    "test_audit.py": "audit",
    "test_redaction.py": "redaction",
    "test_memory.py": "long-term memory",
    "test_memory_merging.py": "long-term memory",
    "test_memory_followed.py": "long-term memory",
    "test_memory_processes.py": "long-term memory",
    "test_memory_tasks.py": "memories of tasks",
    "test_memory_trust.py": "long-term memory",
    "test_testing_clock.py": "fake clock",
    "test_testing_crash.py": "crash() in tests",
}
"""What the tests of a file are about."""
FIXTURES = {"url", "durable_url"}
"""Whoever uses these is about a feature."""


class Pair(NamedTuple):
    """A feature on an engine, plain or async."""

    feature: str
    engine: str
    way: str


def files_of_features() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("test_*.py")) if path.parent.name != "frameworks"]


def collected() -> tuple[Counter[Pair], list[str]]:
    """How many tests each pair has, and files that have tests on engines and are about nothing that is known."""
    report = TESTS / f".features-{os.getpid()}.json"
    files = [str(path) for path in files_of_features()]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-p", "feature_table"]
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, REPORT: str(report), "PYTHONPATH": path}
    try:
        done = subprocess.run([*command, "-n0", *files], cwd=TESTS.parent, env=env, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout.decode()[-3000:])
        found = json.loads(report.read_text())
    finally:
        report.unlink(missing_ok=True)
    return Counter({Pair(*pair): count for *pair, count in found["pairs"]}), found["unknown"]


def pytest_collection_finish(session: Any) -> None:
    """Called by pytest, in the process that only collects."""
    if REPORT not in os.environ:
        return
    pairs, unknown = counted(session.items)
    report = {"pairs": [[*pair, count] for pair, count in pairs.items()], "unknown": unknown}
    Path(os.environ[REPORT]).write_text(json.dumps(report))


def counted(items: Iterable[Any]) -> tuple[Counter[Pair], list[str]]:
    """What `collected` gives, of tests that are collected already."""
    pairs: Counter[Pair] = Counter()
    unknown: set[str] = set()
    for item in items:
        file = item.path.name
        for engine in engines_of(item):
            if file in FEATURES:
                pairs[Pair(FEATURES[file], engine, way_of(item))] += 1
            elif hasattr(item, "callspec") and engine in map(item.callspec.params.get, FIXTURES):
                unknown.add(file)
    return pairs, sorted(unknown)


def engines_of(item: Any) -> set[str]:
    """The engines that a test runs on: by its parameters, or by the name of its class in the contract's suite."""
    if any(mark.name in ("skip", "xfail") for mark in item.iter_markers()):
        return set()
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    found = {"memory" if value == "memory://" else value for value in params if isinstance(value, str)}
    if item.cls is not None and any(base.__name__ == "BackendConformance" for base in item.cls.__mro__):
        found |= {engine for engine in ENGINES if re.search(f"^Test.*{engine}", item.cls.__name__, re.IGNORECASE)}
    return found & set(ENGINES)


def way_of(item: Any) -> str:
    """Whether a test is of the async interface: its parameters say so, or it runs an event loop."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    named = item.callspec.id.split("-") if params else []
    if params.get("asynchronous") is not None:
        return "async" if params["asynchronous"] is True else "plain"
    if "async" in named or "plain" in named:
        return "async" if "async" in named else "plain"
    return "async" if _runs_loop(item.function) else "plain"


@lru_cache(None)
def _runs_loop(function: Any) -> bool:
    return "asyncio.run(" in inspect.getsource(function)


# -- the table ---------------------------------------------------------------------------------------------------------


def table(pairs: Counter[Pair]) -> str:
    """As Markdown: in each cell the number of plain tests, and of async ones."""
    lines = ["| tests, plain + async | " + " | ".join(ENGINES.values()) + " |", "| --- " * (len(ENGINES) + 1) + "|"]
    for feature in dict.fromkeys(FEATURES.values()):
        cells = [_cell(*(pairs[Pair(feature, engine, way)] for way in ("plain", "async"))) for engine in ENGINES]
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(plain: int, asynchronous: int) -> str:
    if not plain and not asynchronous:
        return "-"
    return f"{plain} + {asynchronous}" if asynchronous else str(plain)


def documented(text: str) -> Iterator[Pair]:
    """The pairs that a table tells of."""
    for line in text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]:
        feature, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for engine, cell in zip(ENGINES, cells, strict=True):
            for way, count in zip(("plain", "async"), cell.split("+"), strict=False):
                if count.strip() not in ("-", "0"):
                    yield Pair(feature, engine, way)


def with_table(text: str, pairs: Counter[Pair]) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(pairs)}\n{END}{rest.partition(END)[2]}"


def lacking(pairs: Iterable[Pair]) -> set[tuple[str, str]]:
    """Features that are not tested on an engine that keeps things."""
    have = {(pair.feature, pair.engine) for pair in pairs}
    return {(feature, engine) for feature in FEATURES.values() for engine in ENGINES if engine != "memory"} - have


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), collected()[0]), encoding="utf-8")
