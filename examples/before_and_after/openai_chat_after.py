"""A chat that survives kill -9. After: with Holdfast.

OPENAI_API_KEY=… python openai_chat_after.py [chat.db]

A question is stored before the model is asked, and answered after a restart.
"""

import os
import sys

import openai

import holdfast
from holdfast.integrations.openai import complete

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
URL = sys.argv[1] if len(sys.argv) > 1 else "chat.db"


def main() -> None:
    client = openai.OpenAI()
    with holdfast.open(URL) as store:
        chat = store.conversation("terminal")
        if chat.pending():  # a question that was not answered before the process died
            print(complete(client, chat, model=MODEL, window=8000).text, flush=True)
        for line in sys.stdin:
            chat.append({"role": "user", "content": line.strip()})
            print(complete(client, chat, model=MODEL, window=8000).text, flush=True)


if __name__ == "__main__":
    main()
