"""A chat with an agent of Google's Agent Development Kit that survives its process.

    pip install . google-adk            # in a clone of the repository
    GOOGLE_API_KEY=… python examples/google_adk_chat.py support-42 [agents.db]

Kill it (kill -9), start it again with the same arguments, and the agent knows what was said. With
ADK_MODEL=offline, a stand-in that counts turns answers in place of a model.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator

from google.adk.agents import BaseAgent, InvocationContext, LlmAgent
from google.adk.events import Event
from google.adk.runners import Runner
from google.genai import types

import holdfast
from holdfast.integrations.google_adk import HoldfastSessionService

MODEL = os.environ.get("ADK_MODEL", "gemini-2.5-flash")


class Counter(BaseAgent):
    """Says how many turns there were."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        turns = sum(event.author == "user" for event in ctx.session.events)
        content = types.Content(role="model", parts=[types.Part(text=f"{turns} turns so far")])
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content)


async def main(chat: str, url: str = "agents.db") -> None:
    agent = Counter(name="clerk") if MODEL == "offline" else LlmAgent(name="clerk", model=MODEL)
    async with holdfast.aopen(url) as store:
        service = HoldfastSessionService(store)
        whose = {"app_name": "terminal", "user_id": "me", "session_id": chat}
        if await service.get_session(**whose) is None:
            await service.create_session(**whose)
        else:
            print("(resuming)", flush=True)
        runner = Runner(agent=agent, app_name="terminal", session_service=service)
        for line in sys.stdin:
            message = types.Content(role="user", parts=[types.Part(text=line.strip())])
            async for event in runner.run_async(user_id="me", session_id=chat, new_message=message):
                for part in event.content.parts if event.content else []:
                    print(part.text or "", flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: google_adk_chat.py CHAT [STORE]")
    asyncio.run(main(*sys.argv[1:]))
