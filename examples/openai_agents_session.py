"""An agent that asks before it pays, and that can be killed while it waits for the answer.

    pip install . openai-agents         # in a clone of the repository
    OPENAI_API_KEY=… python examples/openai_agents_session.py bill-17 "Pay 7 to Ann" [agents.db]

Kill it (kill -9) when it asks, start it again with the same arguments, and it asks again about the
same payment. Each request has its own id and its own session: two bills with the same text are both
paid.
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
    """Pay a person."""
    print(f"paying {amount} to {to}", flush=True)
    return "paid"


def decide(run: RunState) -> None:
    """Ask the user at the terminal to approve each waiting call."""
    for call in run.get_interruptions():
        print(f"{call.tool_name} {call.arguments}? [y/n]", flush=True)
        line = sys.stdin.readline()
        if not line:
            sys.exit("no answer, so nothing was decided; start it again with the same arguments")
        if line.strip() == "y":
            run.approve(call)
        else:
            run.reject(call)


async def main(request_id: str, text: str, url: str = "agents.db") -> None:
    agent = Agent(name="cashier", instructions="You pay bills.", model=MODEL, tools=[pay])
    async with holdfast.aopen(url) as store:
        session, chat = HoldfastSession(request_id, store), store.conversation(request_id)
        # Appended once, however often the program is started.
        question = await chat.append({"role": "user", "content": text}, id=request_id)
        while (entry := await chat.answer(question.last)) is None:
            run = await session.load_run(agent)
            if run is not None:
                decide(run)
            result = await Runner.run(agent, run or [], session=session)
            await session.save_run(result)
        print(entry.message["content"][0]["text"], flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit('usage: openai_agents_session.py REQUEST_ID "WHAT TO DO" [STORE]')
    asyncio.run(main(*sys.argv[1:]))
