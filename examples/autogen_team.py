"""An AutoGen writer and critic that survive kill -9: start them again with the same task.

    pip install . autogen-agentchat "autogen-ext[openai]"          # in a clone of this repository
    OPENAI_API_KEY=… python examples/autogen_team.py "A limerick about kelp" [team.db]

Any server that speaks OpenAI's API will do: set OPENAI_BASE_URL.
"""

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

import holdfast
from holdfast.integrations.autogen import persisted

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini-2025-08-07")


async def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/autogen_team.py TASK [team.db]")
    task, url = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "team.db"
    model = OpenAIChatCompletionClient(model=MODEL)
    writer = AssistantAgent("writer", model, system_message="You write short texts.")
    critic = AssistantAgent(
        "critic", model, system_message="Suggest improvements. If there are none, say FINE."
    )
    stop = TextMentionTermination("FINE", sources=["critic"]) | MaxMessageTermination(7)
    team = RoundRobinGroupChat([writer, critic], termination_condition=stop)
    async with holdfast.aopen(url) as store, persisted(store, task, team) as run:
        if run.pending is not None:
            print("(resuming)", flush=True)
        async for message in run.run_stream(task=task):
            if isinstance(message, BaseChatMessage):
                print(f"{message.source}: {message.to_text()}", flush=True)
    await model.close()


if __name__ == "__main__":
    asyncio.run(main())
