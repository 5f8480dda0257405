"""A support bot that knows its customer across sessions, and nothing of other customers.

    pip install . openai          # in a clone of the repository
    OPENAI_API_KEY=… python examples/support_bot.py CUSTOMER SESSION [support.db]

It reads questions from standard input. Kill it at any time and start it again: it resumes, and
remembers each turn once. With another SESSION it starts a new chat, and knows what the customer has
said in the others. Any server that speaks OpenAI's API will do: set OPENAI_BASE_URL.
"""

import os
import sys

import openai

import holdfast
from holdfast.integrations.openai import complete
from holdfast.memory import ChatMemory, FinishedTurn

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")


def note(turn: FinishedTurn) -> list[dict[str, str]]:
    """What to remember of a turn: what customers say about themselves. A model could choose."""
    words = turn.user.lower().split()
    about_me = {"my", "me", "i", "we", "our"}.intersection(words)
    return [{"text": turn.user, "author": "customer"}] if about_me else []


def answer(client: openai.OpenAI, chat: holdfast.Conversation, memory: holdfast.Memory) -> None:
    recalled = ChatMemory(memory, max_tokens=300, trust=["customer", "person"])
    said = complete(
        client,
        chat,
        model=MODEL,
        system="You answer customers of a parcel service. Notes from memory may be outdated.",
        window=8000,
        memory=recalled,
        remember=note,
    )
    print(said.text, flush=True)


def main() -> None:
    customer, session = sys.argv[1:3]
    url = sys.argv[3] if len(sys.argv) > 3 else "support.db"
    with openai.OpenAI() as client, holdfast.open(url) as store:
        chat = store.conversation(f"support-{customer}-{session}", subject=customer)
        memory = store.memory(f"customer-{customer}")
        if chat.count():  # the process may have died before there was an answer, or a memory
            print("(resuming)", flush=True)
            answer(client, chat, memory)
        for line in sys.stdin:
            chat.append({"role": "user", "content": line.strip()})
            answer(client, chat, memory)


if __name__ == "__main__":
    main()
