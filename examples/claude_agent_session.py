"""A chat with a Claude agent that can be killed, and resumed from any machine with the store.

    pip install . claude-agent-sdk      # in a clone of the repository
    ANTHROPIC_API_KEY=… python examples/claude_agent_session.py support-42 [agents.db]

Kill it (kill -9), start it again with the same arguments, and the agent knows what was said. The
SDK's session id of each chat is stored next to the session.
"""

import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

import holdfast
from holdfast.integrations.claude_agent import HoldfastSessionStore


async def main(chat: str, url: str = "agents.db") -> None:
    async with holdfast.aopen(url) as store:
        sessions, known = HoldfastSessionStore(store), store.state(f"claude session of {chat}")
        session_id = await known.load(None)
        if session_id is not None:
            print("(resuming)", flush=True)
        for line in sys.stdin:
            options = ClaudeAgentOptions(
                session_store=sessions,
                session_store_flush="eager",
                resume=session_id,
                setting_sources=[],
                tools=[],
            )
            async for message in query(prompt=line.strip(), options=options):
                if isinstance(message, ResultMessage):
                    if session_id is None:
                        await known.save(message.session_id)
                    session_id = message.session_id
                    print(message.result, flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: claude_agent_session.py CHAT [STORE]")
    asyncio.run(main(*sys.argv[1:]))
