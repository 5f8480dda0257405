"""A durable run of the Agents SDK: it asks before it pays, and can be killed at any time.

    pip install . openai-agents         # in a clone of the repository
    OPENAI_API_KEY=… python examples/openai_agents_runner.py bill-17 "Pay 7 to Ann" [agents.db]

Kill it (kill -9) when it asks, start it again with the same arguments, and it asks again about the
same payment, without a call of the model. If it is killed while it pays, it says so, and how to go
ahead.
"""

import asyncio
import os
import sys

from agents import Agent, function_tool

import holdfast
from holdfast.integrations.openai_agents import HoldfastRunner

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")


@function_tool(needs_approval=True)
@holdfast.step(once=True)
async def pay(amount: int, to: str) -> str:
    """Pay a person."""
    print(f"paying {amount} to {to}", flush=True)
    return "paid"


async def main(task_id: str, text: str, url: str = "agents.db") -> None:
    agent = Agent(name="cashier", instructions="You pay bills.", model=MODEL, tools=[pay])
    async with holdfast.aopen(url) as store:
        runner = HoldfastRunner(store)
        result = await runner.run(agent, text, task_id=task_id)
        while result.interruptions:
            state = result.to_state()
            for call in state.get_interruptions():
                print(f"{call.tool_name} {call.arguments}? [y/n]", flush=True)
                line = sys.stdin.readline()
                if not line:
                    sys.exit("no answer, so nothing was decided; start it again")
                if line.strip() == "y":
                    state.approve(call)
                else:
                    state.reject(call)
            result = await runner.run(agent, state, task_id=task_id)
        print(result.final_output, flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit('usage: openai_agents_runner.py TASK_ID "WHAT TO DO" [STORE]')
    asyncio.run(main(*sys.argv[1:]))
