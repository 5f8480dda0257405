"""An agent that saves a checkpoint after each step, by hand. Before Holdfast.

BANK_URL=… OPENAI_API_KEY=… python checkpoint_loop_before.py [agents.db]

It plans, executes, saves after each step, and recovers with a summary for the model. The payment
has an idempotency key and is looked up first. It still works only if one process runs at a time,
and nothing stops a second one.
"""

import json
import os
import sqlite3
import sys
import uuid
from typing import Any

import httpx
import openai

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
BANK = os.environ["BANK_URL"]
PATH = sys.argv[1] if len(sys.argv) > 1 else "agents.db"
GOAL = "Settle claim 42"
PLAN = ["read the claim", "pay", "write the letter"]


def load_checkpoint(db: sqlite3.Connection) -> dict[str, Any]:
    db.execute("CREATE TABLE IF NOT EXISTS checkpoints (id TEXT PRIMARY KEY, body TEXT)")
    row = db.execute("SELECT body FROM checkpoints WHERE id = 'claim-42'").fetchone()
    if row is None:
        return {"goal": GOAL, "plan": PLAN, "done": {}, "key": str(uuid.uuid4())}
    return json.loads(row[0])


def save_checkpoint(db: sqlite3.Connection, checkpoint: dict[str, Any]) -> None:
    with db:
        db.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES ('claim-42', ?)", [json.dumps(checkpoint)]
        )


def build_context(checkpoint: dict[str, Any]) -> str:
    done = "\n".join(f"- {step}: {result}" for step, result in checkpoint["done"].items())
    left = [step for step in checkpoint["plan"] if step not in checkpoint["done"]]
    return (
        f"Goal: {checkpoint['goal']}\nDone so far (do not repeat):\n{done}\nStill to do: {left}\n"
    )


def ask_model(context: str, step: str) -> str:
    messages = [{"role": "system", "content": context}, {"role": "user", "content": step}]
    reply = openai.OpenAI().chat.completions.create(model=MODEL, messages=messages)
    return reply.choices[0].message.content or ""


def find_payment(key: str) -> str | None:
    return httpx.get(f"{BANK}/{key}").json()


def pay(key: str) -> str:
    return httpx.post(f"{BANK}/{key}", json={"amount": 3000}, timeout=60).json()


def main() -> None:
    db = sqlite3.connect(PATH)
    checkpoint = load_checkpoint(db)
    save_checkpoint(db, checkpoint)
    for step in checkpoint["plan"]:
        if step in checkpoint["done"]:
            continue
        if step == "pay":
            result = find_payment(checkpoint["key"]) or pay(checkpoint["key"])
        else:
            result = ask_model(build_context(checkpoint), step)
        checkpoint["done"][step] = result
        save_checkpoint(db, checkpoint)
        print(f"{step}: {result}", flush=True)


if __name__ == "__main__":
    main()
