"""Every record of the logger `holdfast` can be formatted, and carries the correlation id of the
block that caused it."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.paths import ROOT
from helpers.programs import program

FACTS = (
    "event",
    "tenant",
    "kind",
    "stream",
    "version",
    "bytes",
    "milliseconds",
    "correlation",
    "duplicate",
)


def main() -> None:
    """Use what logs: appends, deletions, tasks, workers, failures, warnings."""
    import sys

    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("holdfast " + " ".join(f"{name}=%({name})s" for name in FACTS))
    )
    logger = logging.getLogger("holdfast")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    logger.propagate = False

    @holdfast.agent("fails", max_attempts=1)
    def fails(task: holdfast.Task) -> None:
        raise ValueError("no")

    def warn(task: holdfast.Task) -> None:
        logger.warning("from the program itself")

    with holdfast.open(sys.argv[1]) as store, holdfast.correlate("req-1", actor="ann"):
        chat = store.conversation("c")
        chat.append({"role": "user", "content": "hello"})
        chat.sync([{"role": "user", "content": "another"}])  # rewinds, which is a warning
        with store.task("t", agent="trains") as task:
            task.step("warn", warn, task)
            task.remember("likes trains")
        store.submit("fails", "t2")
        store.run_due()
        store.submit("nobody-has-it", "t3")
        store.run_due()
        store.state("s").save({"a": 1})
        store.state("s").delete()
        store.task("t").delete()
        store.sweep()


@pytest.mark.slow
def test_a_format_with_any_of_the_facts_never_fails(local_url: str, tmp_path: Path) -> None:
    run = subprocess.run(
        program("log.test_log_records", local_url),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert "Logging error" not in run.stderr
    lines = [line for line in run.stderr.splitlines() if line.startswith("holdfast ")]
    assert len(lines) > 15
    assert all("correlation=req-1" in line for line in lines)
    assert any("event=appended" in line for line in lines)
    assert any("event=deleted" in line for line in lines)
    assert any("event=None" in line for line in lines)  # a warning


def test_all_of_the_package_logs_to_the_one_logger_whose_records_have_the_facts() -> None:
    names = set()
    for file in (ROOT / "src/holdfast").rglob("*.py"):
        names |= set(re.findall(r"getLogger\((.*?)\)", file.read_text()))
    assert names == {
        '"holdfast"',
        'f"botocore.{name}"',
        "",
    }  # a filter on botocore; the root's level


def test_a_deletion_is_logged_with_the_correlation_id_of_its_block(
    store: holdfast.Store, caplog: pytest.LogCaptureFixture
) -> None:
    async def delete(name: str) -> None:
        with holdfast.correlate(name):
            await store.aio.stream(name).delete()

    for name in ("plain", "async"):
        store.stream(name).append(("n", 1))
    with caplog.at_level(logging.INFO, logger="holdfast"):
        with holdfast.correlate("plain"):
            store.stream("plain").delete()
        asyncio.run(delete("async"))
    records: list[Any] = [record for record in caplog.records if record.event == "deleted"]  # type: ignore[attr-defined]
    assert [(record.stream, record.correlation) for record in records] == [
        ("plain", "plain"),
        ("async", "async"),
    ]
    assert "deleted stream 'plain' at version 1, correlation plain" in caplog.text


def test_what_a_thread_writes_for_async_code_carries_its_correlation_id(tmp_path: Path) -> None:
    """For example an erasure, which runs in a thread as a whole."""

    async def main() -> list[tuple[str | None, str | None]]:
        key = holdfast.keys.generate()
        async with holdfast.aopen(str(tmp_path / "a.db"), key=key) as store:
            await store.conversation("c", subject="ann").append({"role": "user", "content": "hi"})
            with holdfast.correlate("req-9", actor="dpo"):
                await store.erase(subject="ann")
            entries = await store.audit("c", kind="conversation")
            return [(entry.by, entry.correlation) for entry in entries if entry.source == "audit"]

    assert asyncio.run(main()) == [("dpo", "req-9")]
