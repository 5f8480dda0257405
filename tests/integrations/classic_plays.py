"""Short chats of classic AutoGen of every kind, without a model: who speaks has a script, and the
script knows its place.

A play makes its agents anew each time, as a program does that is started again. `cut` breaks a chat
off like a crash.
"""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .classic_program import memory_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import autogen


class Cut(BaseException):
    """The end of a program, as far as its chat is concerned: no framework catches it."""


class Cast(NamedTuple):
    """The agents of a play, those to give to `persisted`, and how the chat is begun."""

    agents: Sequence[Any]
    persisted: Sequence[Any]
    begin: Callable[[], Any]

    def memory(self) -> Any:
        return memory_of(*self.agents)


def cut(cast: Cast, at: int) -> None:
    """Break off when somebody is to reply to the message of that number."""
    left = at

    def listen(
        agent: Any, messages: Any = None, sender: Any = None, config: Any = None
    ) -> tuple[bool, None]:
        nonlocal left
        left -= 1
        if left == 0:
            raise Cut
        return False, None

    for agent in cast.agents:
        if not hasattr(agent, "groupchat"):
            agent.register_reply([autogen.Agent, None], listen, position=0)


spoken: list[str] = []
"""Who was asked for a line, each time."""


def actor(name: str, *lines: Any, **options: Any) -> Any:
    """An agent that says its next line. Which one that is follows from what it remembers."""
    options = {
        "human_input_mode": "NEVER",
        "code_execution_config": False,
        "llm_config": False,
        **options,
    }
    agent = autogen.ConversableAgent(name, **options)

    def speak(
        agent: Any, messages: Any = None, sender: Any = None, config: Any = None
    ) -> tuple[bool, Any]:
        spoken.append(name)
        said = sum(message.get("name") == name or "tool_calls" in message for message in messages)
        line = (
            lines[said % len(lines)]
            if lines
            else f"{name}: {len(messages)} messages; {messages[-1]['content']}"
        )
        return True, json.loads(json.dumps(line(messages) if callable(line) else line))

    agent.register_reply([autogen.Agent, None], speak, position=99)
    return agent


def calls(*numbers: int) -> dict[str, Any]:
    """A line that calls the tool `tally` with each of the numbers."""
    tools = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": "tally", "arguments": json.dumps({"n": n})},
        }
        for n in numbers
    ]
    return {"content": None, "tool_calls": tools}


def with_tally(agent: Any) -> Any:
    agent.register_function({"tally": lambda n: f"tallied {n}"})
    return agent


def text() -> Cast:
    assistant, user = actor("assistant"), actor("user")
    begin = lambda: user.initiate_chat(assistant, message="Hello", max_turns=3, silent=True)  # noqa: E731
    return Cast([assistant, user], [assistant, user], begin)


def counted() -> Cast:
    """No number of turns is given: the chat ends when the user has replied by itself three
    times."""
    assistant, user = actor("assistant"), actor("user", max_consecutive_auto_reply=3)
    return Cast(
        [assistant, user],
        [user, assistant],
        lambda: user.initiate_chat(assistant, message="Hi", silent=True),
    )


def terminated() -> Cast:
    assistant = actor("assistant", "one", "two", "TERMINATE")
    user = actor("user", is_termination_msg=lambda message: message["content"] == "TERMINATE")
    return Cast(
        [assistant, user],
        [assistant, user],
        lambda: user.initiate_chat(assistant, message={"content": "Hi"}, silent=True),
    )


def silent() -> Cast:
    """Somebody has nothing to say, once."""
    assistant, user = (
        actor("assistant", lambda messages: None if len(messages) == 3 else "yes"),
        actor("user"),
    )
    begin = lambda: user.initiate_chat(assistant, message="Hello", max_turns=4, silent=True)  # noqa: E731
    return Cast([assistant, user], [assistant, user], begin)


def sent() -> Cast:
    assistant, user = actor("assistant"), actor("user")

    def begin() -> None:
        user.send("Hello", assistant, request_reply=True, silent=True)

    return Cast([assistant, user], [assistant, user], begin)


def tools() -> Cast:
    assistant, user = (
        actor("assistant", calls(1), "fine", calls(2, 3, 4), "good"),
        with_tally(actor("user")),
    )
    begin = lambda: user.initiate_chat(assistant, message="Count", max_turns=4, silent=True)  # noqa: E731
    return Cast([assistant, user], [assistant, user], begin)


def tools_in_async_code() -> Cast:
    assistant, user = (
        actor("assistant", calls(1), "fine", calls(2, 3, 4), "good"),
        with_tally(actor("user")),
    )

    def begin() -> Any:
        return asyncio.run(
            user.a_initiate_chat(assistant, message="Count", max_turns=4, silent=True)
        )

    return Cast([assistant, user], [assistant, user], begin)


def functions() -> Cast:
    """The form in which tools were called before there were tools."""
    call = {"content": None, "function_call": {"name": "tally", "arguments": '{"n": 5}'}}
    assistant, user = actor("assistant", call, "fine"), with_tally(actor("user"))
    begin = lambda: user.initiate_chat(assistant, message="Count", max_turns=3, silent=True)  # noqa: E731
    return Cast([assistant, user], [assistant, user], begin)


def interrupted_tools() -> Cast:
    """A human answers in place of the tools."""
    assistant = actor("assistant", calls(1, 2), "fine")
    user = with_tally(actor("user", human_input_mode="ALWAYS"))
    user.get_human_input = lambda *_, **__: "do not count"
    begin = lambda: user.initiate_chat(assistant, message="Count", max_turns=3, silent=True)  # noqa: E731
    return Cast([assistant, user], [assistant, user], begin)


def roles() -> Cast:
    """Messages whose role the program has chosen."""
    assistant = actor("assistant", {"content": "be brief", "override_role": "system"}, "fine")
    user = actor("user")
    message = {"content": "be kind", "override_role": "system"}
    begin = lambda: user.initiate_chat(assistant, message=message, max_turns=3, silent=True)  # noqa: E731
    return Cast([assistant, user], [assistant, user], begin)


def _group(
    *members: Any, rounds: int = 7, guests: Sequence[Any] = (), **options: Any
) -> tuple[Any, Sequence[Any]]:
    options = {"speaker_selection_method": "round_robin", **options}
    chat = autogen.GroupChat([*members], messages=[], max_round=rounds, **options)
    manager = autogen.GroupChatManager(
        chat,
        llm_config=False,
        silent=True,
        is_termination_msg=lambda message: message.get("content") == "TERMINATE",
    )
    return manager, [manager, *members, *guests]


def group() -> Cast:
    user, writer, critic = actor("user"), actor("writer"), actor("critic")
    manager, agents = _group(user, writer, critic, send_introductions=True)
    return Cast(
        agents, [manager], lambda: user.initiate_chat(manager, message="Write", silent=True)
    )


def group_with_tools() -> Cast:
    user, writer = with_tally(actor("user")), actor("writer", calls(1, 2), "fine")
    manager, agents = _group(writer, user)
    return Cast(
        agents, [manager], lambda: user.initiate_chat(manager, message="Count", silent=True)
    )


def group_in_async_code() -> Cast:
    user, writer, critic = (
        actor("user"),
        actor("writer", "one", "two"),
        actor("critic", "no", "TERMINATE"),
    )
    manager, agents = _group(user, writer, critic, rounds=20)
    return Cast(
        agents,
        [manager],
        lambda: asyncio.run(user.a_initiate_chat(manager, message="Write", silent=True)),
    )


def group_with_a_guest() -> Cast:
    guest, writer, critic = actor("guest"), actor("writer"), actor("critic", "no", "TERMINATE")
    manager, agents = _group(writer, critic, guests=[guest], rounds=20)
    return Cast(
        agents, [manager, guest], lambda: guest.initiate_chat(manager, message="Write", silent=True)
    )


PLAYS: list[Callable[[], Cast]] = [
    text,
    counted,
    terminated,
    silent,
    sent,
    tools,
    tools_in_async_code,
    functions,
    interrupted_tools,
    roles,
    group,
    group_with_tools,
    group_in_async_code,
    group_with_a_guest,
]


def without_call_ids(value: Any) -> Any:
    """A JSON value with its tool calls numbered in order: the model server numbers them by
    requests."""
    seen: dict[str, str] = {}
    number = lambda found: seen.setdefault(found[0], f"call {len(seen)}")  # noqa: E731
    return json.loads(re.sub(r"call_\d+_\d+", number, json.dumps(value)))
