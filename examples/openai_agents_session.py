"""An agent that asks before it pays, and that can be killed while it waits for the answer.

    pip install holdfast openai-agents
    OPENAI_API_KEY=… python examples/openai_agents_session.py "Pay 7 to Ann" [agents.db]

Kill it (kill -9) when it asks, start it again with the same words, and it asks again, about the same payment.
"""

import asyncio
import os
import sys

from agents import Agent, Runner, RunState, function_tool

import holdfast
from holdfast.integrations.openai_agents import HoldfastSession

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")


@function_tool(needs_approval=True)
async def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    print(f"paying {amount} to {to}", flush=True)
    return "paid"


def decide(run: RunState) -> None:
    """Ask the person at the terminal about each call that waits."""
    for call in run.get_interruptions():
        print(f"{call.tool_name} {call.arguments}? [y/n]", flush=True)
        if sys.stdin.readline().strip() == "y":
            run.approve(call)
        else:
            run.reject(call)


async def main() -> None:
    words, place = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "agents.db"
    agent = Agent(name="cashier", instructions="You pay bills.", model=MODEL, tools=[pay])
    async with holdfast.aopen(place) as store:
        session, chat = HoldfastSession("bills", store), store.conversation("bills")
        await chat.append({"role": "user", "content": words}, id=words)  # once, however often this is started
        while await chat.pending:
            run = await session.load_run(agent)
            if run is not None:
                decide(run)
            result = await Runner.run(agent, run or [], session=session)
            await session.save_run(result)
        print((await chat.messages(last=1))[0]["content"][0]["text"], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
