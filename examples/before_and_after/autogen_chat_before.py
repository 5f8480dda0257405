"""Two classic AutoGen agents whose chat is saved to a JSON file. Before Holdfast.

OPENAI_API_KEY=… python autogen_chat_before.py [chat.json]

If it is killed, the question in progress is lost, with every tool result since the last save.
"""

import json
import os
import sys
from typing import Any

import autogen

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
PATH = sys.argv[1] if len(sys.argv) > 1 else "chat.json"
OTHER_ROLE = {"user": "assistant", "assistant": "user"}


def load_chat(user: Any, assistant: Any) -> None:
    try:
        with open(PATH) as file:
            messages = json.load(file)
    except FileNotFoundError:
        return
    # Each agent has its own copy, in which it is the assistant and the other one is the user.
    user._oai_messages[assistant] = messages
    assistant._oai_messages[user] = [
        {**message, "role": OTHER_ROLE.get(message["role"], message["role"])}
        for message in messages
    ]


def save_chat(user: Any, assistant: Any) -> None:
    with open(PATH, "w") as file:
        json.dump(user.chat_messages[assistant], file)


def main() -> None:
    model = {"model": MODEL, "api_key": os.environ["OPENAI_API_KEY"]}
    assistant = autogen.ConversableAgent(
        "assistant", llm_config={"config_list": [model], "cache_seed": None}
    )
    user = autogen.ConversableAgent(
        "user", llm_config=False, human_input_mode="NEVER", max_consecutive_auto_reply=0
    )
    load_chat(user, assistant)
    for line in sys.stdin:
        user.initiate_chat(assistant, message=line.strip(), clear_history=False, silent=True)
        save_chat(user, assistant)
        print(user.last_message(assistant)["content"], flush=True)


if __name__ == "__main__":
    main()
