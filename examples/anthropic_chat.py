"""A chat with Claude in the terminal that survives kill -9: start it again and it resumes.

pip install . anthropic       # in a clone of the repository
ANTHROPIC_API_KEY=… python examples/anthropic_chat.py [chat.db]
"""

import os
import random
import sys

import anthropic

import holdfast
from holdfast.integrations.anthropic import complete

MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-opus-4-5")


def roll(sides: int = 6) -> int:
    """Roll a die."""
    return random.randint(1, sides)  # noqa: S311  a game


def answer(client: anthropic.Anthropic, chat: holdfast.Conversation) -> None:
    """Print the model's answer as it arrives."""
    pieces = complete(
        client,
        chat,
        model=MODEL,
        max_tokens=1024,
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
    with anthropic.Anthropic() as client, holdfast.open(url) as store:
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
