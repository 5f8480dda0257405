"""The agent of the demo, which settles an insurance claim. Nothing in it handles the kills."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, cast

import holdfast

from .claim import BILLS, CLOSING, EXCESS, GOAL, LETTER, PLANNING
from .outside import bank, mail, model, world

URL = "HOLDFAST_DEMO_URL"
"""The environment variable for the store URL. In an argument, its password would be visible."""

LEASE_SECONDS = 2.0
"""Short, because the next run may have to wait until the lease of a killed run is over."""


def settle(task: holdfast.Task) -> Any:
    task.make_plan(make_plan)
    facts = task.step("read the claim", read_claim, LETTER)
    covered = task.step("read the receipts", read_receipts, BILLS)
    amount = task.step("compare with the policy", compare, facts, sum(covered))
    task.decide(f"pay {amount} EUR", why=facts)
    receipt = task.step("pay", pay, amount)
    letter = task.step("write the letter", write_letter, amount)
    task.step("mail the customer", send, "customer", letter)
    task.step("mail the repair shop", send, "repair shop", "Please start.")
    return task.finish(close, amount, receipt, letter)


def make_plan() -> list[str]:
    names: list[str] = json.loads(model.ask(f"{PLANNING}: {GOAL}"))
    return names


def read_claim(letter: str) -> str:
    return model.ask(f"read the claim: {letter}")


def read_receipts(bills: list[list[Any]]) -> list[int]:
    """Return the covered amounts. Each receipt costs a model call, so each is saved at once."""
    step = holdfast.current_step()
    covered: list[int] = step.cursor or []
    for number, (what, price) in list(enumerate(bills, 1))[len(covered) :]:
        reply = model.ask(
            f"read the receipts: number {number}, {what}, {price} EUR. Is it covered?"
        )
        covered.append(price if reply == "yes" else 0)
        step.save(covered, done=number, total=len(bills), flush=True)
    return covered


def compare(facts: str, covered: int) -> int:
    amounts = f"{covered} EUR are covered, the excess is {EXCESS} EUR"
    return int(model.ask(f"compare with the policy: {amounts}. {facts}"))


def find_payment(amount: int) -> str | None:
    return bank.find(key=holdfast.idempotency_key())


# check_after=0: once its client is dead, the demo's bank has made the payment, or never will.
@holdfast.step(check=find_payment, check_after=0)
def pay(amount: int) -> str:
    return bank.do("customer", amount, key=holdfast.idempotency_key())


def write_letter(amount: int) -> str:
    return model.ask(f"write the letter: we paid {amount} EUR")


def find_email(to: str, text: str) -> str | None:
    return mail.find(key=holdfast.idempotency_key())


@holdfast.step(check=find_email, check_after=0)
def send(to: str, text: str) -> str:
    return mail.do(to, text, key=holdfast.idempotency_key())


def close(amount: int, receipt: str, letter: str) -> dict[str, Any]:
    summary = model.ask(f"{CLOSING}: {amount} EUR paid")
    return {"amount": amount, "receipt": receipt, "letter": letter, "summary": summary}


class ReportingTask:
    """A task that reports each finished step to the world, which can then kill between steps."""

    def __init__(self, task: holdfast.Task) -> None:
        self._task = task

    def make_plan(self, make: Any) -> Any:
        plan = self._task.make_plan(make)
        world.call("report", step=PLANNING)
        return plan

    def step(self, name: str, fn: Any, /, *args: Any) -> Any:
        result = self._task.step(name, fn, *args)
        world.call("report", step=name)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def main(task_id: str, address: str) -> None:
    world.address = address
    with holdfast.open(os.environ[URL]) as store:
        with store.task(task_id, goal=GOAL, agent="claims", lease=LEASE_SECONDS) as task:
            if task.resumed:
                model.resume_context = task.resume_context().messages()
            kept = ([PLANNING] if task.plan else []) + task.preview().skipped
            halfway = [
                step.path
                for step in task.view().steps
                if step.progress and step.status == "interrupted"
            ]
            world.call("begin", kept=kept, halfway=halfway)
            result = settle(cast("holdfast.Task", ReportingTask(task)))
    world.call("end", result=result)


if __name__ == "__main__":
    main(*sys.argv[1:])
