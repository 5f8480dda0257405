"""A chat with an agent of the Microsoft Agent Framework that survives its process.

    pip install . agent-framework-core agent-framework-openai    # in a clone of the repository
    OPENAI_API_KEY=… python examples/agent_framework_chat.py support-42 [agents.db]

Kill it (kill -9), start it again with the same arguments, and the agent knows what was said.
"""

import asyncio
import os
import sys

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

import holdfast
from holdfast.integrations.agent_framework import HoldfastHistoryProvider

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")


async def main(chat: str, url: str = "agents.db") -> None:
    async with holdfast.aopen(url) as store:
        agent = Agent(
            OpenAIChatCompletionClient(model=MODEL),
            context_providers=[HoldfastHistoryProvider(store)],
        )
        session = agent.create_session(session_id=chat)
        if known := await store.conversation(chat).count():
            print(f"(resuming after {known} messages)", flush=True)
        for line in sys.stdin:
            async for update in agent.run(line.strip(), session=session, stream=True):
                print(update.text, end="", flush=True)
            print(flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: agent_framework_chat.py CHAT [STORE]")
    asyncio.run(main(*sys.argv[1:]))
