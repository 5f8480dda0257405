"""A process that sends one mail through a slow service: `mailer URL SERVICE HOW CHECK_AFTER LEASE`.

HOW is plain, async or worker.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.request import Request, urlopen

import holdfast
from holdfast.errors import LeaseLost

url, service, how, check_after, lease = sys.argv[1:]


def send(to: str) -> str:
    body = json.dumps({"to": to, "key": holdfast.idempotency_key()}).encode()
    with urlopen(Request(service, body, {"Content-Type": "application/json"})) as answer:
        return str(json.load(answer))


def find(to: str) -> str | None:
    with urlopen(f"{service}/{holdfast.idempotency_key()}") as answer:
        found: str | None = json.load(answer)
        return found


async def send_async(to: str) -> str:
    return await asyncio.to_thread(send, to)


options: dict[str, Any] = {"check": find, "check_after": float(check_after)}
send_once, send_once_async = holdfast.step(send, **options), holdfast.step(send_async, **options)


@holdfast.agent("mailer", lease=float(lease))
def mailer(task: holdfast.Task) -> str:
    return task.step("send", send_once, "ann")


@holdfast.agent("async mailer", lease=float(lease))
async def async_mailer(task: holdfast.AsyncTask) -> str:
    return await task.step("send", send_once_async, "ann")


def work(store: holdfast.Store) -> None:
    """Run the task as a worker does, until it has ended."""
    store.submit("mailer", "t")

    def report(result: Any) -> None:
        if result.status == "finished":
            worker.stop()

    worker = holdfast.Worker(store, poll=0.05, report=report)
    worker.run()


def run(store: holdfast.Store) -> None:
    if how == "worker":
        work(store)
    elif how == "async":
        asyncio.run(store.aio.run(async_mailer, "t"))
    else:
        store.run(mailer, "t")


def main() -> None:
    with holdfast.open(url) as store:
        try:
            run(store)
        except LeaseLost:
            print("LeaseLost", flush=True)
