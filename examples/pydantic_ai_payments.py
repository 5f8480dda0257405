"""A PydanticAI agent that pays bills, and can be killed at any time.

    pip install . 'pydantic-ai-slim[openai]'        # in a clone of the repository
    OPENAI_API_KEY=… python examples/pydantic_ai_payments.py bill-17 "Pay 7 to Ann" [agents.db]

Kill it (kill -9) and start it again with the same arguments: what is recorded is not done again. A
payment that was interrupted is looked up in the file `payments.txt`, a stand-in for a bank.
"""

import asyncio
import os
import sys
from pathlib import Path

from pydantic_ai import Agent

import holdfast
from holdfast.integrations.pydantic_ai import HoldfastDurability

MODEL = os.environ.get("OPENAI_MODEL", "openai-chat:gpt-5-mini")
BANK = Path("payments.txt")


def find_payment(amount: int, to: str) -> str | None:
    """Return what the bank knows of this payment; None if it was not made."""
    made = BANK.read_text().splitlines() if BANK.exists() else []
    return "paid" if holdfast.idempotency_key() in made else None


@holdfast.step(check=find_payment, check_after=0)
def pay(amount: int, to: str) -> str:
    """Pay a person."""
    print(f"paying {amount} to {to}", flush=True)
    with BANK.open("a") as bank:
        bank.write(holdfast.idempotency_key() + "\n")
    return "paid"


async def main(run_id: str, text: str, url: str = "agents.db") -> None:
    async with holdfast.aopen(url) as store:
        agent = Agent(MODEL, name="cashier", tools=[pay], capabilities=[HoldfastDurability(store)])
        result = await agent.run(text, run_id=run_id)
        print(result.output, flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit('usage: pydantic_ai_payments.py RUN_ID "WHAT TO DO" [STORE]')
    asyncio.run(main(*sys.argv[1:]))
