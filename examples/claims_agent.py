"""An agent that settles a claim, pays once, and survives kill -9: start it again and it resumes.

    pip install .                 # in a clone of the repository
    python examples/claims_agent.py [folder]

No model is called here: each step only takes a second, so that there is time to kill it.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import holdfast

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
LEDGER = FOLDER / "payments.jsonl"
"""A stand-in for the bank: a payment in this file was made, even if this process died since."""


def generate_plan(goal: str) -> list[str]:
    return ["read the claim", "look up the policy", "pay", "write the letter"]


def find_payment(amount: int) -> dict[str, Any] | None:
    """Return the payment with this key. Called only if the agent died while it was paying."""
    for line in LEDGER.read_text().splitlines() if LEDGER.exists() else ():
        payment: dict[str, Any] = json.loads(line)
        if payment["key"] == holdfast.idempotency_key():
            return payment
    return None


# check_after=0: a line in the file is visible at once. A real bank needs more time.
@holdfast.step(check=find_payment, check_after=0)
def pay(amount: int) -> dict[str, Any]:
    payment = {"amount": amount, "key": holdfast.idempotency_key()}
    with LEDGER.open("a") as ledger:
        ledger.write(json.dumps(payment) + "\n")
    print(f"paid {amount}", flush=True)
    time.sleep(1)
    return payment


def work(item: object) -> str:
    print(item, flush=True)
    time.sleep(1)
    return f"{item}: done"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with holdfast.open(FOLDER / "agents.db") as store:
        with store.task(
            "claim-7", goal="Settle claim 7", agent="claims", input={"amount": 120}
        ) as task:
            if task.resumed:
                print("(resuming)", flush=True)
            task.make_plan(generate_plan, task.goal)
            for item in task.remaining():
                if item == "pay":
                    task.step(item, pay, task.input["amount"])
                else:
                    task.step(item, work, item)
            report = task.finish(lambda: f"{len(task.checkpoint().completed)} steps")
        print(f"finished: {report}", flush=True)


if __name__ == "__main__":
    main()
