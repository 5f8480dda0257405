"""A worker on another machine, as far as anybody can tell, in which every task is held until the
worker is killed.

`main` (arguments: URL TASKS) runs so many at once, and says `began` for each that has begun.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import holdfast
from holdfast import Task
from holdfast.log import leases

LEASE = 3.0
LIFETIME_SECONDS = 120


def hold() -> None:
    os.write(1, b"began\n")
    threading.Event().wait()


@holdfast.agent("holding", lease=LEASE)
def holding(task: Task) -> str:
    task.step("hold", hold)
    return "let go"


def main() -> None:
    url, tasks = sys.argv[1:]
    signal.alarm(LIFETIME_SECONDS)
    leases._host = lambda: "elsewhere"  # type: ignore[assignment]
    with holdfast.open(url) as store:
        holdfast.Worker(store, concurrency=int(tasks)).run()
