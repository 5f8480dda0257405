"""Agents for the tests of the crash matrix. Some are wrong on purpose: each says what a crash would
do to it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast
from holdfast import AsyncTask, Task
from holdfast.testing import effect

LEDGER = Path("ledger.jsonl")
"""Stands for a bank that remembers; each run of the matrix has a directory of its own."""


def look_up(order: int) -> dict[str, int]:
    return {"order": order, "amount": 120}


def charge(order: int) -> str:
    effect(f"charged order {order}")
    return f"receipt {order}"


def charge_with_key(order: int) -> str:
    effect(f"charged order {order}", key=holdfast.idempotency_key())
    return f"receipt {order}"


def double_charge(task: Task) -> dict[str, Any]:
    """Charges twice if it dies after the charge and before that is recorded."""
    claim = task.step("look up", look_up, 7)
    return {**claim, "receipt": task.step("pay", charge, 7)}


def single_charge(task: Task) -> dict[str, Any]:
    """The same, corrected: the bank honours the key."""
    claim = task.step("look up", look_up, 7)
    return {**claim, "receipt": task.step("pay", charge_with_key, 7)}


# -- with a check ----------------------------------------------------------------------------------


def find_charge(order: int) -> str | None:
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return f"receipt {order}" if order in map(json.loads, lines) else None


def find_nothing(order: int) -> str | None:
    return None


def find_always(order: int) -> str | None:
    return f"receipt {order}"


def charge_on_ledger(order: int) -> str:
    effect(f"charged order {order}")
    with LEDGER.open("a") as ledger:
        ledger.write(json.dumps(order) + "\n")
    return f"receipt {order}"


def checked(task: Task) -> str:
    return task.step("pay", holdfast.step(charge_on_ledger, check=find_charge), 7)


def checked_badly(task: Task) -> str:
    """Its check never finds anything."""
    return task.step("pay", holdfast.step(charge_on_ledger, check=find_nothing), 7)


def checked_gullibly(task: Task) -> str:
    """Its check finds what was never done."""
    return task.step("pay", holdfast.step(charge_on_ledger, check=find_always), 7)


# -- other ways to be right or wrong ---------------------------------------------------------------


def told_once(task: Task) -> str:
    return task.step("tell", holdfast.step(charge, once=True), 7)


def announce(order: int) -> Iterator[str]:
    effect(f"announced order {order}")
    yield "order"
    yield str(order)


def announced_once(task: Task) -> list[str]:
    return list(task.step("tell", holdfast.step(announce, once=True), 7))


def outside_of_steps(task: Task) -> str:
    """What it does between its steps is done again on every resume."""
    task.step("look up", look_up, 7)
    effect("mailed")
    return task.step("close", charge_with_key, 7)


def result_of_its_own(task: Task) -> bool:
    """What it returns depends on whether it was resumed."""
    task.step("look up", look_up, 7)
    return task.resumed


def other_arguments(task: Task) -> str:
    """Asks for a step with arguments that are others when it is resumed."""
    return task.step("pay", charge_with_key, 8 if task.resumed else 7)


def changes_its_mind(task: Task) -> None:
    """Does in its first two runs what it does not do later: where it was to be killed, it does not
    come to."""
    runs = Path(task.input)
    with runs.open("a") as file:
        file.write("x")
    if len(runs.read_text()) <= 2:
        task.step("rare", look_up, 7)


def hangs(task: Task) -> None:
    """Goes on for ever when it is resumed."""
    if task.resumed:
        threading.Event().wait()
    task.step("look up", look_up, 7)


def fails(task: Task) -> None:
    raise ValueError("as always")


def draws_lots(task: Task) -> float:
    return random.random()


def draws_lots_and_charges(task: Task) -> float:
    """Its result varies, and it charges twice if it dies after the charge."""
    task.step("pay", charge, 7)
    return task.step("draw", random.random)


def waits(task: Task) -> dict[str, Any]:
    """Waits for a person, for a signal and for tomorrow."""
    approved = task.ask("payout", "Pay it?", {"amount": 120}, returns=bool)
    paid = task.step("pay", charge_with_key, 7) if approved else None
    confirmed = task.wait_for("confirmed")
    task.sleep(24 * 3600)
    return {"paid": paid, "confirmed": confirmed}


def waits_a_while(task: Task) -> object:
    """Waits for a person, until tomorrow."""
    return task.ask("payout", "Pay it?", returns=bool, timeout=24 * 3600)


@dataclass
class Claim:
    order: int


@holdfast.agent("matrix-claims", input=Claim)
def claims(task: Task) -> str:
    claim: Claim = task.input
    return task.step("pay", charge_with_key, claim.order)


async def charge_async(order: int) -> str:
    return charge(order)


async def double_charge_async(task: AsyncTask) -> str:
    await task.step("look up", look_up, 7)
    return await task.step("pay", charge_async, 7)
