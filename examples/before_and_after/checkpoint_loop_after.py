"""The same agent as a durable task. After: with Holdfast.

BANK_URL=… OPENAI_API_KEY=… python checkpoint_loop_after.py [agents.db | dynamodb://table?region=…]

Every step is recorded. A second process cannot run the same task, and a payment in progress when
the process died is looked up before anything is paid.
"""

import os
import sys

import httpx
import openai

import holdfast

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
BANK = os.environ["BANK_URL"]
URL = sys.argv[1] if len(sys.argv) > 1 else "agents.db"
GOAL = "Settle claim 42"
PLAN = ["read the claim", "pay", "write the letter"]


def ask_model(step: str) -> str:
    context = holdfast.current_task().resume_context().messages()
    messages = [*context, {"role": "user", "content": step}]
    reply = openai.OpenAI().chat.completions.create(model=MODEL, messages=messages)
    return reply.choices[0].message.content or ""


def find_payment() -> str | None:
    return httpx.get(f"{BANK}/{holdfast.idempotency_key()}").json()


@holdfast.step(check=find_payment, check_after=0)  # this bank shows a payment as it takes it
def pay() -> str:
    url = f"{BANK}/{holdfast.idempotency_key()}"
    return httpx.post(url, json={"amount": 3000}, timeout=60).json()


def main() -> None:
    with holdfast.open(URL) as store, store.task("claim-42", goal=GOAL) as task:
        task.make_plan(PLAN)
        for step in task.remaining():
            result = task.step(step, pay) if step == "pay" else task.step(step, ask_model, step)
            print(f"{step}: {result}", flush=True)


if __name__ == "__main__":
    main()
