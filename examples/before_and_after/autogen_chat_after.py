"""Two classic AutoGen agents whose chat survives kill -9. After: with Holdfast.

OPENAI_API_KEY=… python autogen_chat_after.py [chat.db]

Each message is stored as it is sent. A question without an answer is asked again after a restart.
"""

import os
import sys

import autogen

import holdfast
from holdfast.integrations.autogen_classic import persisted

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
URL = sys.argv[1] if len(sys.argv) > 1 else "chat.db"


def main() -> None:
    model = {"model": MODEL, "api_key": os.environ["OPENAI_API_KEY"]}
    assistant = autogen.ConversableAgent(
        "assistant", llm_config={"config_list": [model], "cache_seed": None}
    )
    user = autogen.ConversableAgent(
        "user", llm_config=False, human_input_mode="NEVER", max_consecutive_auto_reply=0
    )
    with holdfast.open(URL) as store, persisted(store, "chat", user, assistant) as chat:
        if chat.pending:  # a question that was not answered before the process died
            user.initiate_chat(assistant, message=chat.pending, silent=True)
            print(user.last_message(assistant)["content"], flush=True)
        for line in sys.stdin:
            user.initiate_chat(assistant, message=line.strip(), silent=True)
            print(user.last_message(assistant)["content"], flush=True)


if __name__ == "__main__":
    main()
