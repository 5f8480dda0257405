"""A signal that ends `store.run_due()` is no failure of the task that runs, and no crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

PROGRAM = """
import asyncio, sys, time
import holdfast

def wait(seconds):
    print("waiting", flush=True)
    time.sleep(seconds)

async def wait_async(seconds):
    print("waiting", flush=True)
    await asyncio.sleep(seconds)

@holdfast.agent("plain", max_attempts=1)
def plain(task):
    task.step("wait", wait, 60)

@holdfast.agent("async", max_attempts=1)
async def asynchronous(task):
    await task.step("wait", wait_async, 60)

@holdfast.agent("exits", max_attempts=1)
def exits(task):
    sys.exit(3)

url, agent = sys.argv[1:]
with holdfast.open(url) as store:
    store.submit(agent, "t")
    store.run_due()
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("agent", ["plain", "async"])
def test_a_signal_leaves_the_task_pending_and_due(
    agent: str, sent: signal.Signals, local_url: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, local_url, agent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(sent)
        code = process.wait(60)
    assert code == {signal.SIGINT: -signal.SIGINT, signal.SIGTERM: 128 + sent}[sent]
    with holdfast.open(local_url) as store:
        view = store.get_task("t")
        assert view is not None and view.due_at is not None
        assert (view.status, view.crashes, view.error) == ("pending", 0, None)


@pytest.mark.slow
def test_an_agent_that_exits_has_failed(tmp_path: Path) -> None:
    url = str(tmp_path / "agents.db")
    done = subprocess.run([sys.executable, "-c", PROGRAM, url, "exits"], check=False)
    assert done.returncode == 3
    with holdfast.open(url) as store:
        view = store.get_task("t")
        assert view is not None and view.error is not None
        assert (view.status, view.error.type) == ("failed", "SystemExit")
