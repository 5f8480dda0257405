"""Which feature is tested on which engine by `make test`: the table in docs/reference/backends.md,
made from the tests.

`PYTHONPATH=tests python -m helpers.feature_table` writes the table anew; `test_feature_table.py`
fails if the document has a pair that no test has, or lacks one.
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

from helpers.paths import ROOT, TESTS

DOCUMENT = ROOT / "docs" / "reference" / "backends.md"
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
    "conformance/test_conformance.py": "the contract of backends",
    "conformance/test_conformance_servers.py": "the contract of backends",
    "streams/test_store.py": "streams of events, tenants",
    "streams/test_opening.py": "streams of events, tenants",
    "log/test_pickling.py": "streams of events, tenants",
    "log/test_round_trips.py": "streams of events, tenants",
    "streams/test_following.py": "follow",
    "conversations/test_conversations.py": "conversations",
    "conversations/test_conversation_windows.py": "conversations",
    "conversations/test_history_cache.py": "conversations",
    "conversations/test_conversation_turns.py": "conversations",
    "conversations/test_turn_interrupts.py": "conversations",
    "crash/test_conversations_processes.py": "conversations of several processes",
    "state/test_state.py": "state",
    "state/test_state_writers.py": "state",
    "state/test_state_storage.py": "state",
    "tasks/test_task_opening.py": "tasks",
    "tasks/test_task_endings.py": "tasks",
    "tasks/test_task_plans.py": "tasks",
    "tasks/test_plan_functions.py": "tasks",
    "tasks/test_task_views.py": "tasks",
    "tasks/test_changed_forks.py": "tasks",
    "tasks/test_failures.py": "why a task failed",
    "tasks/test_actors.py": "who did what",
    "tasks/test_task_correlation.py": "logging and correlation ids",
    "log/test_log_records.py": "logging and correlation ids",
    "crash/test_tasks_leases.py": "leases of several processes",
    "tasks/steps/test_step_results.py": "steps",
    "tasks/steps/test_step_matching.py": "steps",
    "tasks/steps/test_renamed_steps.py": "steps",
    "tasks/steps/test_unstorable_results.py": "steps",
    "tasks/steps/test_step_failures.py": "steps",
    "tasks/steps/test_step_doubt.py": "steps",
    "tasks/steps/test_resolving.py": "steps",
    "tasks/steps/test_check_after.py": "steps",
    "tasks/steps/test_step_keys_and_progress.py": "steps",
    "tasks/steps/test_stored_arguments.py": "steps",
    "tasks/steps/test_generator_steps.py": "steps that stream",
    "tasks/steps/test_map.py": "map",
    "tasks/steps/test_model_steps.py": "model steps",
    "tasks/steps/test_model_input.py": "model steps",
    "tasks/steps/test_reply.py": "replies",
    "tasks/steps/test_reply_crashes.py": "replies",
    "tasks/test_artifacts.py": "artifacts",
    "tasks/test_artifact_faults.py": "artifacts",
    "tasks/waiting/test_questions.py": "asking, signals and timers",
    "tasks/waiting/test_signals_and_timers.py": "asking, signals and timers",
    "tasks/waiting/test_children.py": "children",
    "tasks/watching/test_following_tasks.py": "following tasks, timeouts",
    "tasks/watching/test_overdue.py": "following tasks, timeouts",
    "tasks/watching/test_timeouts.py": "following tasks, timeouts",
    "tasks/test_replay.py": "replay",
    "tasks/test_replay_divergence.py": "replay",
    "tasks/test_checkpoint.py": "checkpoints",
    "tasks/test_checkpoint_saving.py": "checkpoints",
    "tasks/test_checkpoint_context.py": "checkpoints",
    "streams/test_listings.py": "expiry and sweep",
    "conversations/test_conversation_expiry.py": "expiry and sweep",
    "admin/test_sweep.py": "expiry and sweep",
    "admin/test_sweep_limits.py": "expiry and sweep",
    "worker/test_worker.py": "workers",
    "worker/test_worker_races.py": "workers",
    "worker/test_worker_registry.py": "workers",
    "worker/test_worker_lifecycle.py": "workers",
    "worker/test_worker_clock_set_back.py": "workers",
    "notify/test_notifications.py": "notifications",
    "notify/test_delivery.py": "notifications",
    "notify/test_notify_kill.py": "notifications of workers, killed with -9",
    "web/test_web_api.py": "the web dashboard",
    "web/test_web_features.py": "the web dashboard",
    "web/test_web_hostile.py": "the web dashboard",
    "web/test_web_security.py": "the web dashboard",
    "telemetry/test_tracing.py": "traces and metrics",
    "telemetry/test_metrics.py": "traces and metrics",
    "telemetry/test_json_logs.py": "traces and metrics",
    "crash/test_workers_kill.py": "workers, killed with -9",
    "crash/test_failover.py": "failover to another machine",
    "crash/test_kill.py": "writers, killed with -9",
    "crash/test_tasks_kill.py": "tasks, killed with -9",
    "crash/test_slow_service.py": "tasks, killed with -9",
    "admin/test_copy.py": "copy to another engine and back",
    "encryption/test_encryption.py": "encryption",
    "encryption/test_rekeying.py": "a new key",
    "admin/test_erasure.py": "erasure",
    "admin/test_transcribing.py": "encrypting an unencrypted store",
    "hostile/test_hostile_servers.py": "hostile content",
    "admin/test_verify.py": "verify",
    "admin/test_verify_report.py": "verify",
    "admin/test_repair.py": "verify",
    "admin/test_anchors.py": "anchors",
    "admin/test_audit.py": "audit",
    "redaction/test_redaction.py": "redaction",
    "memory/test_memory.py": "long-term memory",
    "memory/test_memory_merging.py": "long-term memory",
    "memory/test_memory_followed.py": "long-term memory",
    "memory/test_memory_processes.py": "long-term memory",
    "memory/test_memory_trust.py": "long-term memory",
    "memory/test_memory_long_texts.py": "long-term memory",
    "memory/test_memory_over_time.py": "long-term memory",
    "memory/test_memory_scores.py": "long-term memory",
    "memory/test_memory_entities.py": "long-term memory",
    "memory/test_memory_consolidation.py": "consolidation of memories",
    "memory/test_memory_from_tasks.py": "memories of tasks",
    "memory/test_memory_of_subjects.py": "memories of tasks",
    "memory/test_memory_in_briefings.py": "memories of tasks",
    "testing/test_testing_clock.py": "fake clock",
    "testing/test_testing_crash.py": "crash() in tests",
}
"""What the tests of a file are about."""
KINDS = ("store_kind", "durable_kind")
"""Whoever uses these fixtures is about a feature: see helpers/stores.py."""


class Pair(NamedTuple):
    """A feature on an engine, plain or async."""

    feature: str
    engine: str
    way: str


def files_of_features() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("test_*.py")) if path.parent.name != "integrations"]


def collected() -> tuple[Counter[Pair], list[str]]:
    """How many tests each pair has, and files that have tests on engines and are about nothing that
    is known."""
    report = TESTS / f".features-{os.getpid()}.json"
    files = [str(path) for path in files_of_features()]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "-p",
        "helpers.feature_table",
    ]
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, REPORT: str(report), "PYTHONPATH": path, "HOLDFAST_ENGINES": ""}
    try:
        done = subprocess.run(
            [*command, "-n0", *files], cwd=TESTS.parent, env=env, capture_output=True, check=False
        )
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
        file = item.path.relative_to(TESTS).as_posix()
        for engine in engines_of(item):
            if file in FEATURES:
                pairs[Pair(FEATURES[file], engine, way_of(item))] += 1
            elif hasattr(item, "callspec") and any(kind in item.callspec.params for kind in KINDS):
                unknown.add(file)
    return pairs, sorted(unknown)


def engines_of(item: Any) -> set[str]:
    """The engines that a test runs on: by its parameters, or by the name of its class in the
    contract's suite."""
    if any(mark.name in ("skip", "xfail") for mark in item.iter_markers()):
        return set()
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {
        "memory" if value == "memory://" else value for value in params if isinstance(value, str)
    }
    found = {name.removesuffix("-encrypted") for name in named}
    if item.cls is not None and any(
        base.__name__ == "BackendConformance" for base in item.cls.__mro__
    ):
        found |= {
            engine
            for engine in ENGINES
            if re.search(f"^Test.*{engine}", item.cls.__name__, re.IGNORECASE)
        }
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


# -- the table -------------------------------------------------------------------------------------


def table(pairs: Counter[Pair]) -> str:
    """Return the table as Markdown. Each cell has the number of sync tests and of async ones."""
    lines = [
        "| tests, sync + async | " + " | ".join(ENGINES.values()) + " |",
        "| --- " * (len(ENGINES) + 1) + "|",
    ]
    for feature in dict.fromkeys(FEATURES.values()):
        cells = [
            _cell(*(pairs[Pair(feature, engine, way)] for way in ("plain", "async")))
            for engine in ENGINES
        ]
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
    return {
        (feature, engine)
        for feature in FEATURES.values()
        for engine in ENGINES
        if engine != "memory"
    } - have


if __name__ == "__main__":
    DOCUMENT.write_text(
        with_table(DOCUMENT.read_text(encoding="utf-8"), collected()[0]), encoding="utf-8"
    )
