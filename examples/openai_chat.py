"""A chat in the terminal that survives kill -9: start it again and it resumes.

    pip install . openai          # in a clone of the repository
    OPENAI_API_KEY=… python examples/openai_chat.py [chat.db]

Any server that speaks OpenAI's API will do: set OPENAI_BASE_URL.
"""

import os
import random
import sys

import openai

import holdfast
from holdfast.integrations.openai import complete

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")


def roll(sides: int = 6) -> int:
    """Roll a die."""
    return random.randint(1, sides)  # noqa: S311  a game


def answer(client: openai.OpenAI, chat: holdfast.Conversation) -> None:
    """Print the model's answer as it arrives."""
    pieces = complete(
        client,
        chat,
        model=MODEL,
        system="You run a game of dice.",
        window=8000,
        tools=[roll],
        stream=True,
    )
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "chat.db"
    with openai.OpenAI() as client, holdfast.open(url) as store:
        chat = store.conversation("terminal")
        if chat.count():
            print(f"(resuming after {chat.count()} messages)", flush=True)
        if chat.pending():  # the process died before there was an answer
            answer(client, chat)
        for line in sys.stdin:
            chat.append({"role": "user", "content": line.strip()})
            answer(client, chat)


if __name__ == "__main__":
    main()
