"""A chat whose memory is a JSON file, rewritten after each answer. Before Holdfast.

OPENAI_API_KEY=… python openai_chat_before.py [chat.json]

If it is killed, the question in progress is lost. If it is killed while it writes, so is the chat.
"""

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


def main() -> None:
    client, messages = openai.OpenAI(), load_messages()
    for line in sys.stdin:
        messages.append({"role": "user", "content": line.strip()})
        reply = client.chat.completions.create(model=MODEL, messages=messages[-KEPT_MESSAGES:])
        text = reply.choices[0].message.content
        messages.append({"role": "assistant", "content": text})
        save_messages(messages)
        print(text, flush=True)


if __name__ == "__main__":
    main()
