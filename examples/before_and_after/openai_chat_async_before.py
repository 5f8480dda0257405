"""A chat in async code whose memory is a JSON file. Before Holdfast.

OPENAI_API_KEY=… python openai_chat_async_before.py [chat.json]

If it is killed, the question in progress is lost. If it is killed while it writes, so is the chat.
"""

import asyncio
import json
import os
import sys
from typing import Any

import openai

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
PATH = sys.argv[1] if len(sys.argv) > 1 else "chat.json"
KEPT_MESSAGES = 20


def load_messages() -> list[Any]:
    try:
        with open(PATH) as file:
            return json.load(file)
    except FileNotFoundError:
        return []


def save_messages(messages: list[Any]) -> None:
    with open(PATH, "w") as file:
        json.dump(messages, file)


async def main() -> None:
    client, messages = openai.AsyncOpenAI(), load_messages()
    while line := await asyncio.to_thread(sys.stdin.readline):
        messages.append({"role": "user", "content": line.strip()})
        recent = messages[-KEPT_MESSAGES:]
        reply = await client.chat.completions.create(model=MODEL, messages=recent)
        text = reply.choices[0].message.content
        messages.append({"role": "assistant", "content": text})
        await asyncio.to_thread(save_messages, messages)
        print(text, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
