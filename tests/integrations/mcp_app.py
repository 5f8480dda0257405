"""The agents that `holdfast mcp` serves in tests."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import holdfast

print("the application is imported")  # standard output is for the protocol


@holdfast.agent("payouts")
def payouts(task: holdfast.Task) -> dict[str, object]:
    print("a run starts", flush=True)
    quoted = task.step("quote", quote)
    return {"paid": task.ask("payout", "Pay it?", quoted, returns=bool)}


@holdfast.agent("waits")
def waits(task: holdfast.Task) -> str:
    """Waits in a step, in short pieces, until a file is there."""
    return task.step("wait", wait_for_file, task.input)


def quote() -> int:
    sys.stdout.write("a quote is made\n")
    return 41


def wait_for_file(path: str) -> str:
    Path(f"{path}.pid").write_text(f"{os.getpid()}\n")
    while not Path(path).exists():
        time.sleep(0.01)
    return "the file is there"
