"""The agent of the demo: it settles an insurance claim. It knows nothing of the kills that await it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, cast

import holdfast

from .claim import BILLS, CLOSING, EXCESS, GOAL, LETTER, PLANNING
from .outside import bank, line, mail, model

URL = "HOLDFAST_DEMO_URL"
"""The store is named in the environment: a URL can hold a password, and everybody sees arguments."""

LEASE_SECONDS = 2.0
"""Short: where a system does not say that the former holder is dead, the next run waits for the end of its lease."""


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
    """A long step: each receipt costs a call of the model, so each is saved as soon as it is read."""
    step = holdfast.current_step()
    covered: list[int] = step.cursor or []
    for number, (what, price) in list(enumerate(bills, 1))[len(covered) :]:
        said = model.ask(f"read the receipts: number {number}, {what}, {price} EUR. Is it covered?")
        covered.append(price if said == "yes" else 0)
        step.save(covered, done=number, total=len(bills), flush=True)
    return covered


def compare(facts: str, covered: int) -> int:
    return int(
        model.ask(
            f"compare with the policy: {covered} EUR are covered, the excess is {EXCESS} EUR. {facts}"
        )
    )


def was_paid(amount: int) -> str | None:
    return bank.find(key=holdfast.idempotency_key())


@holdfast.step(check=was_paid)
def pay(amount: int) -> str:
    return bank.do("customer", amount, key=holdfast.idempotency_key())


def write_letter(amount: int) -> str:
    return model.ask(f"write the letter: we paid {amount} EUR")


def was_sent(to: str, text: str) -> str | None:
    return mail.find(key=holdfast.idempotency_key())


@holdfast.step(check=was_sent)
def send(to: str, text: str) -> str:
    return mail.do(to, text, key=holdfast.idempotency_key())


def close(amount: int, receipt: str, letter: str) -> dict[str, Any]:
    summary = model.ask(f"{CLOSING}: {amount} EUR paid")
    return {"amount": amount, "receipt": receipt, "letter": letter, "summary": summary}


class ReportingTask:
    """The task, with a word to the outside after each step: so the world can strike between steps as well."""

    def __init__(self, task: holdfast.Task) -> None:
        self._task = task

    def make_plan(self, make: Any) -> Any:
        plan = self._task.make_plan(make)
        line.call("tell", step=PLANNING)
        return plan

    def step(self, name: str, fn: Any, /, *args: Any) -> Any:
        result = self._task.step(name, fn, *args)
        line.call("tell", step=name)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def main(task_id: str, address: str) -> None:
    line.address = address
    with holdfast.open(os.environ[URL]) as store:
        with store.task(task_id, goal=GOAL, agent="claims", lease=LEASE_SECONDS) as task:
            if task.resumed:
                model.briefing = task.resume_context().messages()
            kept = ([PLANNING] if task.plan else []) + task.preview().skipped
            halfway = [
                step.path
                for step in task.view().steps
                if step.progress and step.status == "interrupted"
            ]
            line.call("begin", kept=kept, halfway=halfway)
            result = settle(cast("holdfast.Task", ReportingTask(task)))
    line.call("end", result=result)


if __name__ == "__main__":
    main(*sys.argv[1:])
