"""Agents for the workers that are killed: they ask, wait for times, signals and children, and do
things in every mode.

The world that they act on is a file (`World`): each effect is one line with its task, its step and
its mode, added at once. `main` (arguments: URL NOTES MACHINE) is `holdfast worker` with these
agents; `person` (the same arguments) is whoever answers, signals, and settles what is in doubt,
until all tasks have ended. Both begin when their standard input is closed. MACHINE is the name of
the one that it runs on, as far as anybody can tell; "" for the one that it does run on.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast import AsyncTask, Store, Task
from holdfast.cli.app import app
from holdfast.errors import AlreadyAnswered, LeaseHeld, NotFound, TaskEnded
from holdfast.log import leases

from .agent30 import World

WORLD = "HOLDFAST_TEST_WORLD"
LEASE = 5.0
LONGEST_STEP = 0.15
LONGEST_TIMER = 0.5


def world() -> World:
    return World(Path(os.environ[WORLD]))


def act(what: str) -> str:
    """Something that the world sees. It takes its time, before and after."""
    step, outside = holdfast.current_step(), world()
    time.sleep(random.uniform(0, LONGEST_STEP))
    facts = {
        "task": holdfast.current_task().id,
        "step": step.path,
        "key": step.idempotency_key,
        "mode": step.mode,
    }
    outside.note("effect", **facts, receipt=what)
    time.sleep(random.uniform(0, LONGEST_STEP / 3))
    outside.close()
    return what


def find(what: str) -> str | None:
    outside = world()
    try:
        return outside.receipt(key=holdfast.idempotency_key())
    finally:
        outside.close()


async def act_async(what: str) -> str:
    await asyncio.sleep(random.uniform(0, LONGEST_STEP))
    return act(what)


# check_after=0: what a dead process had done to the world is visible at once.
ordinary, once, checked = (
    holdfast.step(act),
    holdfast.step(act, once=True),
    holdfast.step(act, check=find, check_after=0),
)
ordinary_async = holdfast.step(act_async)
once_async, checked_async = (
    holdfast.step(act_async, once=True),
    holdfast.step(act_async, check=find, check_after=0),
)


@holdfast.agent("order", lease=LEASE)
def order(task: Task) -> dict[str, Any]:
    number: int = task.input
    found: dict[str, Any] = {"looked": task.step("look", ordinary, "look")}
    if number % 2:
        found["allowed"] = task.ask("allow", "May it go on?", {"number": number}, returns=bool)
    found["paid"] = task.step("pay", checked, "pay")
    if number % 3 == 0:
        task.sleep(random.uniform(0, LONGEST_TIMER))
    found["mailed"] = task.step("mail", once, "mail")
    if number % 4 == 0:
        found["parts"] = [
            task.run_child(part, f"{task.id}-part-{n}", input=number + n) for n in range(2)
        ]
    if number % 5 == 0:
        found["told"] = task.wait_for("delivered")
    return found


@holdfast.agent("part", lease=LEASE)
def part(task: Task) -> dict[str, Any]:
    number: int = task.input
    found: dict[str, Any] = {"looked": task.step("look", ordinary, "look")}
    if number % 8 == 0:
        found["allowed"] = task.ask(
            "allow", "May this part go on?", {"number": number}, returns=bool
        )
    elif number % 8 == 4:
        task.sleep(random.uniform(0, LONGEST_TIMER))
    found["paid"] = task.step("pay", checked, "pay")
    return found


@holdfast.agent("order-async", lease=LEASE)
async def order_async(task: AsyncTask) -> dict[str, Any]:
    number: int = task.input
    found: dict[str, Any] = {"looked": await task.step("look", ordinary_async, "look")}
    found["allowed"] = await task.ask("allow", "May it go on?", {"number": number}, returns=bool)
    found["paid"], found["mailed"] = await asyncio.gather(
        task.step("pay", checked_async, "pay"), task.step("mail", once_async, "mail")
    )
    found["parts"] = [await task.run_child(part, f"{task.id}-part-0", input=number)]
    return found


def agent_of(number: int) -> str:
    return "order-async" if number % 5 == 3 else "order"


def expected(number: int) -> dict[str, Any]:
    """What the task of this number comes to, whatever happens on the way."""
    found: dict[str, Any] = {"looked": "look", "paid": "pay", "mailed": "mail"}
    if agent_of(number) == "order-async":
        return {**found, "allowed": True, "parts": [_expected_part(number)]}
    if number % 2:
        found["allowed"] = True
    if number % 4 == 0:
        found["parts"] = [_expected_part(number + n) for n in range(2)]
    if number % 5 == 0:
        found["told"] = number
    return found


def _expected_part(number: int) -> dict[str, Any]:
    return {"looked": "look", "paid": "pay", **({"allowed": True} if number % 8 == 0 else {})}


# -- whoever sits in front of it -------------------------------------------------------------------


def attend(store: Store, outside: World) -> int:
    """Give the tasks what they wait for, once. How many have not ended."""
    left = 0
    for info in store.tasks():
        if info.status in ("finished", "cancelled"):
            continue
        left += 1
        try:
            if info.in_doubt and info.owner is None:
                _settle(store, outside, info.id)
            elif info.status == "suspended" and info.due_at is None:
                _serve(store, info.id)
        except (NotFound, TaskEnded, AlreadyAnswered, LeaseHeld):
            pass  # it has gone on meanwhile
    return left


def _settle(store: Store, outside: World, id: str) -> None:
    view = store.get_task(id)
    for step in view.steps if view is not None else ():
        if step.in_doubt and step.mode == "once":
            receipt = outside.receipt(task=id, step=step.path)
            if receipt is None:
                store.resolve(id, step.path, retry=True)
            else:
                store.resolve(id, step.path, result=receipt)
            outside.note("settled", task=id, step=step.path, done=receipt is not None)


def _serve(store: Store, id: str) -> None:
    view = store.get_task(id)
    if view is None:
        return
    for ask in view.questions:
        if ask.status == "open":
            store.answer(id, ask.name, True, by="the person", question=ask.id)
    if any("delivered" in wait for wait in view.waits_for):
        store.signal(id, "delivered", view.input, id="delivered")


def person() -> None:
    url, notes, machine = sys.argv[1:]
    pause = 0.5 if machine else 0.1
    sys.stdin.read()
    outside = World(Path(notes))
    with holdfast.open(url, durability="process") as store:
        while attend(store, outside):
            time.sleep(pause)  # a person is told of nothing, and looks now and then


def main() -> None:
    """`holdfast worker`, with these agents."""
    url, notes, machine = sys.argv[1:]
    if machine:
        leases._host = lambda: machine  # type: ignore[assignment]
    os.environ[WORLD] = notes
    sys.argv = ["holdfast", "worker", url, __name__, *([] if machine else ["--poll", "0.1"])]
    sys.stdin.read()  # until it is let go
    app()
