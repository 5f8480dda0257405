"""How long the dashboard takes for each page and API call, on a large SQLite store.

The store has 100,000 tasks, some of which wait for a person, a task of 5,000 events, and a long
conversation. The bar is the time by the clock for one request, p95, without a network. The
processor time is printed beside it: if the clock says much more, the machine was busy with
something else. The first paint of the task page is measured in Chromium, if one is installed: from
the start of the navigation until the page shows text. The memory of `holdfast serve` is measured
while rounds of 50 clients load the longest page at once: later rounds must not add to it.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import httpx

import holdfast
from holdfast import Store, Task
from holdfast.web import WebOptions, create_app
from holdfast.web.server import serve_in_background

from ._measure import Bar, Lab, message

TASKS, FEW = 100_000, 5_000
EVENTS = 5_000
WAITING = 200
LIMIT_MS = 300
PAINT_LIMIT_MS = 1000
CLIENTS = 50
GROWTH_LIMIT = 1.05

REQUESTS = (
    "/",
    "/tasks",
    "/tasks?status=pending&after=claim-050000",
    "/tasks?query=claim+4711",
    "/task?id=long",
    "/task?id=long&version=2500&compare=2400",
    "/task?id=long&compare=4900",
    "/conversations",
    "/conversation?id=chat",
    "/tasks?error=ValueError&within=24",
    "/memory?namespace=claims",
    "/memory?namespace=claims&query=who+signs",
    "/streams",
    "/store",
    "/api/v1/inbox",
    "/api/v1/tasks?limit=1000",
    "/api/v1/task?id=long",
    "/api/v1/task/timeline?id=long",
    "/api/v1/task/events?id=long&after=4000",
    "/api/v1/task/context?id=long&version=2500",
    "/api/v1/task/diff?id=long&before=2400&after=2500",
    "/api/v1/store",
    "/api/v1/conversations?after=room-00900",
    "/api/v1/conversation/window?id=chat",
)


class Times(NamedTuple):
    """What each call of a request took, in milliseconds: by the clock, and of the processor."""

    clock: list[float]
    cpu: list[float]


def run(lab: Lab) -> None:
    tasks, rounds = lab.choose(TASKS, FEW), lab.choose(40, 20)
    with lab.place() as place:
        with holdfast.open(str(place / "web.db"), durability="process") as store:
            fill(store, tasks)
        with holdfast.open(str(place / "web.db")) as store:  # as the server does: nothing cached
            times = asyncio.run(measure(store, rounds))
            paints = list(measure_paints(store, lab.choose(20, 5)))
            gc.unfreeze()
        sizes = measure_memory(place / "web.db", lab.choose(10, 6))
    lab.remark(f"{tasks:,} tasks, a task of {EVENTS:,} events; p95 by the clock")
    for request, spent in times.items():
        note = (
            f"p50 {median(spent.clock):.0f} ms; "
            f"CPU p50 {median(spent.cpu):.0f}, p95 {find_p95(spent.cpu):.0f} ms"
        )
        lab.report(
            f"web: {request}", find_p95(spent.clock), unit="ms", bar=Bar(LIMIT_MS), note=note
        )
    if paints:
        lab.report(
            "web: first paint of the task page", find_p95(paints), unit="ms",
            bar=Bar(PAINT_LIMIT_MS), note=f"p50 {median(paints):.0f} ms; in Chromium",
        )  # fmt: skip
    else:
        print("LEFT OUT: the first paint needs Chromium and Playwright")
    half = len(sizes) // 2
    lab.report(
        f"web: peak memory, {CLIENTS} loads at once: all rounds to the first half",
        sizes[-1] / sizes[half - 1], unit="x", bar=Bar(GROWTH_LIMIT),
        note=f"MB after each round: {', '.join(f'{size:.0f}' for size in sizes)}",
    )  # fmt: skip


def fill(store: Store, tasks: int) -> None:
    @holdfast.agent(name="asking")
    def ask(task: Task) -> bool:
        return bool(task.ask("pay", "Pay?", returns=bool))

    for number in range(WAITING):
        store.submit("asking", f"ask-{number:04}", goal="Decide")
    store.run_due()
    with ThreadPoolExecutor(64) as pool:
        list(pool.map(lambda n: submit(store, n), range(tasks)))
        list(pool.map(lambda n: talk(store, f"room-{n:05}", 1), range(1000)))
    with store.task("long", goal="Read all receipts", agent="claims") as task:
        for number in range(EVENTS - 2):
            task.step(f"receipt {number}", lambda: {"sum": 41, "text": "covered " * 10})
    talk(store, "chat", 2000)
    memory = store.memory("claims")
    for number in range(200):
        memory.remember(f"Person {number} signs the orders of shop {number}")


def submit(store: Store, number: int) -> None:
    store.submit("claims", f"claim-{number:06}", goal=f"Settle claim {number}")


def talk(store: Store, name: str, messages: int) -> None:
    chat = store.conversation(name)
    chat.append(*(message("user", 200) for _ in range(messages)))


async def measure(store: Store, rounds: int) -> dict[str, Times]:
    transport = httpx.ASGITransport(create_app(store))
    times = {request: Times([], []) for request in REQUESTS}
    gc.collect()
    gc.freeze()  # as `holdfast serve` does; it also never had what filled the store
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as web:
        for _ in range(rounds):
            for request, spent in times.items():
                began, used = perf_counter(), process_time()
                answer = await web.get(request)
                spent.clock.append((perf_counter() - began) * 1000)
                spent.cpu.append((process_time() - used) * 1000)
                if answer.status_code != 200:
                    raise RuntimeError(f"{request}: {answer.status_code}")
    return times


FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def measure_paints(store: Store, rounds: int) -> Iterator[float]:
    """Yield the milliseconds until a browser shows the task page; nothing without a browser."""
    chromium = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return
    if chromium is None:
        return
    with serve_in_background(store, WebOptions()) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(rounds):
            page = browser.new_page()
            page.goto(f"{address}task?id=long")
            yield page.wait_for_function(FIRST_PAINT).json_value()
            page.close()
        browser.close()


def measure_memory(file: Path, rounds: int) -> list[float]:
    """Return the peak memory of a server in MB after each round of loads at once."""
    server = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "serve", str(file), "--port", "0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        printed = iter(server.stdout)
        address = next(found[0] for line in printed if (found := re.search(r"http://\S+", line)))

        def load(_: int) -> None:
            httpx.get(f"{address}task?id=long", timeout=120).raise_for_status()

        sizes = []
        with ThreadPoolExecutor(CLIENTS) as pool:
            for _ in range(rounds):
                list(pool.map(load, range(CLIENTS)))
                sizes.append(read_peak_mb(server.pid))
        return sizes
    finally:
        server.terminate()
        server.wait()


def read_peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(peak) / 1000


def find_p95(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * 0.95) - 1]  # the nearest rank
