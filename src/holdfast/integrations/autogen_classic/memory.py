"""What the agents of classic AutoGen remember of a chat, and how it is filled from what is stored.

Each agent keeps a list of messages per partner (`chat_messages`). Both sides of a message are the same but for the role:
text is `assistant` for the one who said it and `user` for the one who heard it; calls of tools are `assistant` and
their results `tool` (or `function`) for both. In a group chat every agent talks with the manager only, who passes on
what one says to the others, and keeps the list of it all.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...types import MessageEntry

Message = dict[str, Any]

NOTED = ("opens", "auto", "same_role", "awaited", "intro", "context")
"""What of `Said` is noted in the meta of a message, if there is something to note."""


class ClassicAgent(Protocol):
    """What is needed of an agent: `ConversableAgent` of each classic package has it."""

    reply_at_receive: Any
    _consecutive_auto_reply_counter: Any

    @property
    def name(self) -> str: ...

    @property
    def chat_messages(self) -> Any:
        """One list of messages per other agent."""


class ClassicManager(ClassicAgent, Protocol):
    """What is needed of a `GroupChatManager`."""

    _last_speaker: Any
    _reply_func_list: list[dict[str, Any]]

    @property
    def groupchat(self) -> Any: ...

    def _is_termination_msg(self, message: Message) -> bool: ...


@dataclass(frozen=True)
class SpokenMessage:
    """One message of a chat, as the one who said it keeps it."""

    by: str
    to: str
    message: Message
    opens: str = ""
    """The name of the talk that begins with it."""
    auto: Sequence[int] = ()
    """How often in a row the one who said it, and the one it was said to, had replied without a human; empty if never."""
    same_role: bool = False
    """The role was given by the program, and is the same for both."""
    awaited: bool = False
    """It was said in an async chat."""
    intro: str = ""
    """The introductions that the manager of a group sent with it."""
    context: dict[str, Message] = field(default_factory=dict)
    """The context variables of each agent, if they had changed."""

    @property
    def heard(self) -> Message:
        """The message as the one it was said to keeps it."""
        return self.message if self.same_role else in_role(self.message, "user")

    @property
    def to_hand_over(self) -> Message:
        """The message in the form in which the framework takes it."""
        message = copy.deepcopy(self.message)
        if self.same_role:
            message["override_role"] = message["role"]
        return message

    def stored(self, *, heard: bool) -> tuple[Message, Message]:
        """The message and the meta to store."""
        meta: Message = {"from": self.by, "to": self.to}
        meta |= {name: value for name in NOTED if (value := getattr(self, name))}
        return (self.heard if heard else self.message), meta

    def repeats(self, other: SpokenMessage) -> bool:
        """Whether another is the same message between the same two."""
        return (self.by, self.to) == (other.by, other.to) and as_json(self.message) == as_json(
            other.message
        )


def in_role(message: Message, role: str) -> Message:
    """A message as the framework keeps it for one side: `role` if it is text."""
    if message.get("tool_calls") or message.get("function_call"):
        role = "assistant"
    elif message.get("role") in ("tool", "function"):
        role = message["role"]
    return {**message, "role": role}


def as_json(value: object) -> str | None:
    """A text by which JSON values can be compared; None for what is not JSON, which is unlike everything stored."""
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        return None


def kept(agent: ClassicAgent, other: ClassicAgent) -> list[Message]:
    """What an agent remembers of another: the list itself."""
    found: list[Message] = agent.chat_messages.setdefault(other, [])
    return found


class Pair:
    """Two agents. What is stored is the first one's view: if it is the assistant, the history that its model sees."""

    def __init__(self, first: ClassicAgent, second: ClassicAgent) -> None:
        self.speakers: Mapping[str, ClassicAgent] = by_name([first, second])
        self.listeners = [first, second]
        self._first, self._second = first, second

    def partner(self, agent: ClassicAgent) -> ClassicAgent:
        return self._second if agent is self._first else self._first

    def stored(self, said: SpokenMessage) -> tuple[Message, Message]:
        return said.stored(heard=said.by != self._first.name)

    def speaker_of(self, entry: MessageEntry) -> str:
        """Who said a message that was stored by others."""
        name = entry.message.get("name")
        if name in self.speakers:
            return str(name)
        return self._first.name if entry.message.get("role") == "assistant" else self._second.name

    def introductions(self) -> str:
        return ""

    def forget(self) -> None:
        kept(self._first, self._second).clear()
        kept(self._second, self._first).clear()

    def remember(self, said: SpokenMessage) -> None:
        speaker = self.speakers[said.by]
        listener = self.partner(speaker)
        answered(speaker, listener, said)
        kept(speaker, listener).append(copy.deepcopy(said.message))
        kept(listener, speaker).append(copy.deepcopy(said.heard))


class Group:
    """The manager of a group chat and everybody who talks to it. What is stored is the manager's view."""

    def __init__(self, manager: ClassicManager, guests: Iterable[ClassicAgent]) -> None:
        self.manager, self.chat = manager, manager.groupchat
        # The manager works with copies of the group chat, which share its list of messages.
        copies = [reply["config"] for reply in manager._reply_func_list]
        self.chats = [self.chat, *(chat for chat in copies if hasattr(chat, "select_speaker"))]
        self.speakers: Mapping[str, ClassicAgent] = by_name(
            [*self.chat.agents, *guests], manager.name
        )
        self.listeners: list[ClassicAgent] = [manager]

    def partner(self, agent: ClassicAgent) -> ClassicAgent:
        return self.manager

    def stored(self, said: SpokenMessage) -> tuple[Message, Message]:
        return said.stored(heard=True)

    def speaker_of(self, entry: MessageEntry) -> str:
        """Who said a message that was stored by others."""
        return str(entry.message.get("name"))

    def introductions(self) -> str:
        """What the manager tells everybody at the beginning of a talk, if it does."""
        chat = self.chats[-1]
        return str(chat.introductions_msg()) if getattr(chat, "send_introductions", False) else ""

    def forget(self) -> None:
        for agent in self.speakers.values():
            kept(agent, self.manager).clear()
            kept(self.manager, agent).clear()
        self.chat.messages.clear()

    def remember(self, said: SpokenMessage) -> None:
        speaker, manager = self.speakers[said.by], self.manager
        answered(speaker, manager, said)
        kept(speaker, manager).append(copy.deepcopy(said.message))
        heard = copy.deepcopy(said.heard)
        kept(manager, speaker).append(heard)
        if said.intro:
            self._pass_on(
                {"content": said.intro, "role": "user", "name": manager.name}, self.chat.agents
            )
        self.chat.append(heard, speaker)  # which completes the message, and the others get it so
        manager._last_speaker = speaker
        # In an async chat the manager stops at the last word without passing it on.
        if not (said.awaited and manager._is_termination_msg(heard)):
            self._pass_on(heard, [agent for agent in self.chat.agents if agent is not speaker])

    def _pass_on(self, message: Message, agents: Iterable[ClassicAgent]) -> None:
        for agent in agents:
            kept(self.manager, agent).append(in_role(copy.deepcopy(message), "assistant"))
            kept(agent, self.manager).append(in_role(copy.deepcopy(message), "user"))


Memory = Pair | Group


def answered(speaker: ClassicAgent, listener: ClassicAgent, said: SpokenMessage) -> None:
    """What answering does to the message that is answered: a model takes the values for its template out of it."""
    before = kept(speaker, listener)
    if before and not said.opens and getattr(speaker, "client", None) is not None:
        before[-1].pop("context", None)


def auto_of(speaker: ClassicAgent, listener: ClassicAgent) -> Sequence[int]:
    """What `Said.auto` is to be now."""
    auto = [
        speaker._consecutive_auto_reply_counter[listener],
        listener._consecutive_auto_reply_counter[speaker],
    ]
    return auto if any(auto) else ()


def set_auto(speaker: ClassicAgent, listener: ClassicAgent, said: SpokenMessage) -> None:
    own, other = said.auto or (0, 0)
    speaker._consecutive_auto_reply_counter[listener] = own
    listener._consecutive_auto_reply_counter[speaker] = other


def by_name(agents: Iterable[ClassicAgent], *taken: str) -> dict[str, ClassicAgent]:
    found: dict[str, ClassicAgent] = {}
    for agent in agents:
        if agent.name in taken or found.get(agent.name, agent) is not agent:
            raise ValueError(
                f"two agents of this chat are called {agent.name!r}; what is stored tells them by name"
            )
        found[agent.name] = agent
    return found


def read(memory: Memory, entry: MessageEntry) -> SpokenMessage:
    """A stored message. One that was stored by others (imported, or by a plain loop) has no meta of ours."""
    message, meta = entry.message, entry.meta
    by = meta.get("from") or memory.speaker_of(entry)
    if by not in memory.speakers:
        raise ValueError(
            f"the stored chat has a message of {by!r}, who is not one of {sorted(memory.speakers)}"
        )
    if not isinstance(message.get("role"), str):
        raise ValueError(
            f"version {entry.version} of the stored chat is not a chat message: it has no role"
        )
    if not meta.get("from"):
        same_role = message["role"] in ("system", "developer")
        said = message if same_role else in_role(message, "assistant")
        return SpokenMessage(
            by,
            memory.partner(memory.speakers[by]).name,
            {"content": None, **said},
            same_role=same_role,
        )
    said = message if meta.get("same_role") else in_role(message, "assistant")
    return SpokenMessage(
        by, meta["to"], said, **{name: meta[name] for name in NOTED if name in meta}
    )


def context_of(memory: Memory) -> dict[str, Message]:
    """The context variables of the agents (`autogen` and `ag2` have them) as far as they are JSON."""
    found: dict[str, Message] = {}
    for name, agent in memory.speakers.items():
        variables = getattr(agent, "context_variables", None)
        if variables is not None:
            texts = {key: as_json(value) for key, value in variables.items()}
            found[name] = {key: json.loads(text) for key, text in texts.items() if text is not None}
    return found


def set_context(
    memory: Memory,
    context: Mapping[str, Message],
    stored: Callable[[Message], Message] = lambda values: values,
) -> None:
    """Make the context variables what they were. Those that are not JSON stay as the program has made them.

    So do those of which a store has kept only that they were redacted: `stored` says what it would make of them.
    """
    now = context_of(memory)
    for name, values in context.items():
        variables = getattr(memory.speakers.get(name), "context_variables", None)
        if variables is not None:
            for key in now[name].keys() - values.keys():
                variables.remove(key)
            same = stored(now[name])
            variables.update(
                copy.deepcopy(
                    {
                        key: value
                        for key, value in values.items()
                        if key not in same or same[key] != value
                    }
                )
            )
