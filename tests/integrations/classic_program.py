"""Chats of classic AutoGen, killed at every boundary they have; and the same chats left alone, to
compare with.

Arguments: BASE_URL STORE NOTES CHAT HOW, with CHAT one of `two`, `questions`, `group`, and HOW
`killed` or `calm`. It is killed after each message that was acknowledged, while each model call is
in flight, and inside each tool.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from typing import Any

import holdfast
from holdfast.integrations.autogen_classic import persisted

from .process_runs import REHEARSAL, ProcessRun, read_notes, run_until_finished

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what a framework says while it is imported is its own affair
    import autogen

TURNS = 20
TOOL_TURNS = (4, 9, 14)


class Calm(ProcessRun):
    """A process that is not killed."""

    def point(self, name: str) -> None:
        pass

    def die_in_flight(self, name: str, *, after: int = 0) -> bool:
        return False


def model_at(base_url: str, model: str = "gpt-4o-mini") -> dict[str, Any]:
    """What makes an agent ask that model. Without `cache_seed: None` the framework answers from a
    cache on disk."""
    return {
        "config_list": [
            {"model": model, "api_key": "none", "base_url": base_url, "max_retries": 0}
        ],
        "cache_seed": None,
    }


def question(turn: int) -> str:
    tools = (
        f': call tally {{"n": {turn}}} and call tally {{"n": {-turn}}}'
        if turn in TOOL_TURNS
        else ""
    )
    return f"turn {turn}{tools}"


def as_shown(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message of an agent's memory as its model is shown it: results of several tools are several
    messages."""
    results = message.get("tool_responses")
    if not results:
        return [message]
    return (
        [*results]
        if message["role"] == "tool"
        else [*results, {k: message[k] for k in message if k != "tool_responses"}]
    )


def memory_of(*agents: Any) -> dict[str, Any]:
    """All that these agents remember of each other."""
    found: dict[str, Any] = {}
    for agent in agents:
        for other in agents:
            if agent is not other:
                found[f"{agent.name} of {other.name}"] = [
                    agent.chat_messages.get(other, []),
                    agent._consecutive_auto_reply_counter[other],
                    agent.reply_at_receive[other],
                ]
        if hasattr(agent, "groupchat"):
            found[f"the group of {agent.name}"] = agent.groupchat.messages
    return found


class Program:
    """The work of one process."""

    def __init__(
        self, process: ProcessRun, base_url: str, store: holdfast.Store, notes: str
    ) -> None:
        self.process, self.store, self.model = process, store, model_at(base_url)
        self.assistant: Any = None
        self.asks_on = True
        self.acknowledged = sum(note["what"] == "ack" for note in read_notes(notes))
        """How many messages, with the system message."""

    def agent(self, name: str, **options: Any) -> Any:
        """An agent that notes each message which it is to reply to: by then the message has been
        acknowledged."""
        agent = autogen.ConversableAgent(
            name,
            human_input_mode="NEVER",
            code_execution_config=False,
            system_message=f"You are {name}.",
            **options,
        )
        agent.register_reply([autogen.Agent, None], self.heard, position=0)
        return agent

    def heard(
        self, agent: Any, messages: Any = None, sender: Any = None, config: Any = None
    ) -> tuple[bool, None]:
        self.acknowledge()
        self.process.point(f"{agent.name} has heard message {len(messages)}")
        if agent.llm_config:
            self.process.note("request")
            self.process.die_in_flight(f"{agent.name} asks the model about message {len(messages)}")
        return False, None

    def acknowledge(self) -> None:
        """Note what the assistant's model will have to be shown from now on."""
        if self.assistant is None:
            return
        [messages] = self.assistant.chat_messages.values()
        for message in [{"role": "system", "content": self.assistant.system_message}, *messages][
            self.acknowledged :
        ]:
            self.process.note("ack", messages=as_shown(message))
        self.acknowledged = max(self.acknowledged, 1 + len(messages))

    def tally(self, n: int) -> str:
        self.process.note("tool", n=n)
        self.process.point(f"in tool {n}")
        return f"tallied {n}"

    def couple(self) -> tuple[Any, Any]:
        assistant = self.assistant = self.agent("assistant", llm_config=self.model)
        user = self.agent("user", llm_config=False, max_consecutive_auto_reply=TURNS)
        user.register_reply([autogen.Agent, None], self.ask_on, position=99)

        def tally(n: int) -> str:
            return self.tally(n)

        autogen.register_function(
            tally, caller=assistant, executor=user, name="tally", description="Count something."
        )
        return assistant, user

    def ask_on(
        self, agent: Any, messages: Any = None, sender: Any = None, config: Any = None
    ) -> tuple[bool, str]:
        return True, question(len(messages) // 2 + 1) if self.asks_on else "and then?"

    def two(self) -> None:
        """Twenty turns in one call."""
        assistant, user = self.couple()
        with persisted(self.store, "chat", assistant, user):
            user.initiate_chat(assistant, message=question(1), max_turns=TURNS, silent=True)
        self.acknowledge()
        self.process.note("end", memory=memory_of(assistant, user))

    def questions(self) -> None:
        """Twelve turns in six calls, in async code."""
        assistant, user = self.couple()
        self.asks_on = False
        with persisted(self.store, "chat", assistant, user) as chat:
            while chat.conversation.count() < 24 or chat.pending:
                message = chat.pending or question(chat.conversation.count() // 4 + 1)
                asyncio.run(
                    user.a_initiate_chat(assistant, message=message, max_turns=2, silent=True)
                )
                self.process.point(f"after {chat.conversation.count()} messages")
        self.acknowledge()
        self.process.note("end", memory=memory_of(assistant, user))

    def group(self) -> None:
        """Twelve rounds of three agents and a user."""
        team = [self.agent(name, llm_config=self.model) for name in ("planner", "writer", "critic")]
        user = self.agent("user", llm_config=False, default_auto_reply="go on")
        chat = autogen.GroupChat(
            [user, *team],
            messages=[],
            max_round=12,
            speaker_selection_method="round_robin",
            send_introductions=True,
        )
        manager = autogen.GroupChatManager(chat, llm_config=False, silent=True)
        with persisted(self.store, "chat", manager):
            user.initiate_chat(manager, message="write a poem", silent=True)
        self.process.note("end", memory=memory_of(manager, user, *team))


def main() -> None:
    base_url, place, notes, chat, how = sys.argv[1:]

    def run(process: ProcessRun) -> None:
        with holdfast.open(place) as store:
            getattr(Program(process, base_url, store, notes), chat)()

    if how == "calm":
        run(Calm(notes, base_url))
    else:
        run_until_finished(run, notes, base_url, lambda: rehearse(base_url))


def rehearse(base_url: str) -> None:
    agent = autogen.ConversableAgent(
        "rehearsing", llm_config=model_at(base_url, REHEARSAL), human_input_mode="NEVER"
    )
    agent.generate_reply(messages=[{"role": "user", "content": "Are you there?"}])
