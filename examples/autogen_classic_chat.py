"""Two classic AutoGen agents play dice in the terminal, and resume after kill -9.

    pip install . "autogen[openai]<0.15"          # in a clone of this repository
    pip install . "ag2[openai]<1"                 # or this, or "autogen-agentchat<0.3"
    OPENAI_API_KEY=… python examples/autogen_classic_chat.py [chat.db]

Any server that speaks OpenAI's API will do: set OPENAI_BASE_URL.
"""

import os
import random
import sys
from typing import Any

import autogen

import holdfast
from holdfast.integrations.autogen_classic import persisted

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")


def roll(sides: int) -> int:
    """Roll a die."""
    return random.randint(1, sides)  # noqa: S311  a game


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "chat.db"
    model = {"model": MODEL, "api_key": os.environ["OPENAI_API_KEY"]}
    assistant = autogen.ConversableAgent(
        "assistant",
        system_message="You run a game of dice.",
        llm_config={"config_list": [model], "cache_seed": None},
        human_input_mode="NEVER",
    )
    player = autogen.ConversableAgent(
        "player",
        llm_config=False,
        human_input_mode="NEVER",
        # Continue only to run a requested roll.
        is_termination_msg=lambda message: not message.get("tool_calls"),
    )
    autogen.register_function(
        roll, caller=assistant, executor=player, name="roll", description="Roll a die."
    )

    def say(message: Any) -> None:
        result = player.initiate_chat(assistant, message=message, silent=True)
        print(result.chat_history[-1]["content"], flush=True)

    with holdfast.open(url) as store, persisted(store, "dice", assistant, player) as chat:
        if chat.conversation.count():
            print(f"(resuming after {chat.conversation.count()} messages)", flush=True)
        if chat.pending:  # the process died before there was an answer
            say(chat.pending)
        for line in sys.stdin:
            say(line.strip())


if __name__ == "__main__":
    main()
