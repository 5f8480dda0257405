"""A worker that is killed at any instant, and what it runs.

Arguments: URL STORE WEBHOOK. Each task asks two questions, and fails at last. Whatever it asks, and
that it has failed, is the ledger of what a receiver has to be told.
"""

from __future__ import annotations

import os
import sys

import holdfast
from holdfast import Task, notify


@holdfast.agent("asking", max_attempts=1, lease=5)
def asking(task: Task) -> None:
    task.step("prepare", str, 1)
    task.ask("first", "?")
    task.step("middle", str, 2)
    task.ask("second", "?")
    raise ValueError("the end")


def main() -> None:
    url, webhook = sys.argv[1:]
    with holdfast.open(url, durability="process", key=os.environ.get("HOLDFAST_KEY")) as store:
        hook = notify.Webhook(webhook, name="hook", timeout=1000)
        holdfast.Worker(store, concurrency=4, poll=0.02, notify=[hook]).run()


if __name__ == "__main__":
    main()
