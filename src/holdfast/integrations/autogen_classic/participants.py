"""The agents of a classic AutoGen chat: read their message histories, and fill them from the store.

Each agent keeps a list of messages per partner (`chat_messages`). Sender and receiver keep the same
message with different roles: text is `assistant` for its sender and `user` for its receiver; tool
calls are `assistant` and their results `tool` (or `function`) for both. In a group chat every agent
talks with the manager only, which forwards each message to the others and keeps all of them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...types import MessageEntry

Message = dict[str, Any]

META_FIELDS = ("opens", "auto", "same_role", "awaited", "intro", "context")
"""The fields of `SpokenMessage` that are stored in the meta of a message, if they are set."""


class ClassicAgent(Protocol):
    """The attributes of an agent that we use: `ConversableAgent` has them in each package."""

    reply_at_receive: Any
    _consecutive_auto_reply_counter: Any

    @property
    def name(self) -> str: ...

    @property
    def chat_messages(self) -> Any:
        """A list of messages for each other agent."""


class ClassicManager(ClassicAgent, Protocol):
    """The attributes of a `GroupChatManager` that we use."""

    _last_speaker: Any
    _reply_func_list: list[dict[str, Any]]

    @property
    def groupchat(self) -> Any: ...

    def _is_termination_msg(self, message: Message) -> bool: ...


@dataclass(frozen=True)
class SpokenMessage:
    """One message of a chat, in the form that its sender keeps."""

    by: str
    to: str
    message: Message
    opens: str = ""
    """The id of the call that starts with this message."""
    auto: Sequence[int] = ()
    """How many consecutive automatic replies sender and receiver gave; empty if both gave 0."""
    same_role: bool = False
    """Whether the application set the role, so that it is the same for sender and receiver."""
    awaited: bool = False
    """Whether it was sent in an async chat."""
    intro: str = ""
    """The introductions that the manager of a group sent with it."""
    context: dict[str, Message] = field(default_factory=dict)
    """The context variables of each agent, if they changed."""

    @property
    def received(self) -> Message:
        """The message in the form that its receiver keeps."""
        return self.message if self.same_role else set_role(self.message, "user")

    @property
    def to_deliver(self) -> Message:
        """The message in the form that the framework's `receive` takes."""
        message = copy.deepcopy(self.message)
        if self.same_role:
            message["override_role"] = message["role"]
        return message

    def encode(self, *, received: bool) -> tuple[Message, Message]:
        """Return the message and the meta to store, in the receiver's or the sender's form."""
        meta: Message = {"from": self.by, "to": self.to}
        meta |= {name: value for name in META_FIELDS if (value := getattr(self, name))}
        return (self.received if received else self.message), meta

    def is_same(self, other: SpokenMessage) -> bool:
        """Whether another message has the same content, sender and receiver."""
        if (self.by, self.to) != (other.by, other.to):
            return False
        return encode_json(self.message) == encode_json(other.message)


def set_role(message: Message, role: str) -> Message:
    """Return a message with the role that the framework gives it: `role` if it is text."""
    if message.get("tool_calls") or message.get("function_call"):
        role = "assistant"
    elif message.get("role") in ("tool", "function"):
        role = message["role"]
    return {**message, "role": role}


def encode_json(value: object) -> str | None:
    """Return a value as canonical JSON, for comparisons; None if it can't be encoded."""
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        return None


def get_history(agent: ClassicAgent, other: ClassicAgent) -> list[Message]:
    """Return the list itself, not a copy, of the messages that an agent keeps for another one."""
    messages: list[Message] = agent.chat_messages.setdefault(other, [])
    return messages


class Pair:
    """Two agents. The first agent's view is stored: for an assistant, what its model sees."""

    def __init__(self, first: ClassicAgent, second: ClassicAgent) -> None:
        self.speakers: Mapping[str, ClassicAgent] = index_by_name([first, second])
        self.listeners = [first, second]
        self._first, self._second = first, second

    def partner(self, agent: ClassicAgent) -> ClassicAgent:
        return self._second if agent is self._first else self._first

    def encode(self, spoken: SpokenMessage) -> tuple[Message, Message]:
        return spoken.encode(received=spoken.by != self._first.name)

    def guess_speaker(self, entry: MessageEntry) -> str:
        """Guess the sender of a message that other code stored: by its `name` or its role."""
        name = entry.message.get("name")
        if name in self.speakers:
            return str(name)
        return self._first.name if entry.message.get("role") == "assistant" else self._second.name

    def introductions(self) -> str:
        return ""

    def clear(self) -> None:
        get_history(self._first, self._second).clear()
        get_history(self._second, self._first).clear()

    def add(self, spoken: SpokenMessage) -> None:
        speaker = self.speakers[spoken.by]
        listener = self.partner(speaker)
        drop_template_values(speaker, listener, spoken)
        get_history(speaker, listener).append(copy.deepcopy(spoken.message))
        get_history(listener, speaker).append(copy.deepcopy(spoken.received))


class Group:
    """The manager of a group chat and all agents that talk to it. The manager's view is stored."""

    def __init__(self, manager: ClassicManager, guests: Iterable[ClassicAgent]) -> None:
        self.manager, self.chat = manager, manager.groupchat
        # The manager uses copies of the group chat, which share its list of messages.
        copies = [reply["config"] for reply in manager._reply_func_list]
        self.chats = [self.chat, *(chat for chat in copies if hasattr(chat, "select_speaker"))]
        self.speakers: Mapping[str, ClassicAgent] = index_by_name(
            [*self.chat.agents, *guests], manager.name
        )
        self.listeners: list[ClassicAgent] = [manager]

    def partner(self, agent: ClassicAgent) -> ClassicAgent:
        return self.manager

    def encode(self, spoken: SpokenMessage) -> tuple[Message, Message]:
        return spoken.encode(received=True)

    def guess_speaker(self, entry: MessageEntry) -> str:
        """Guess the sender of a message that other code stored: by its `name`."""
        return str(entry.message.get("name"))

    def introductions(self) -> str:
        """Return the introductions that the manager sends when a call starts, or ""."""
        chat = self.chats[-1]
        return str(chat.introductions_msg()) if getattr(chat, "send_introductions", False) else ""

    def clear(self) -> None:
        for agent in self.speakers.values():
            get_history(agent, self.manager).clear()
            get_history(self.manager, agent).clear()
        self.chat.messages.clear()

    def add(self, spoken: SpokenMessage) -> None:
        speaker, manager = self.speakers[spoken.by], self.manager
        drop_template_values(speaker, manager, spoken)
        get_history(speaker, manager).append(copy.deepcopy(spoken.message))
        received = copy.deepcopy(spoken.received)
        get_history(manager, speaker).append(received)
        if spoken.intro:
            intro = {"content": spoken.intro, "role": "user", "name": manager.name}
            self._forward(intro, self.chat.agents)
        self.chat.append(received, speaker)  # this completes the message before it is forwarded
        manager._last_speaker = speaker
        # In an async chat the manager stops at a terminating message without forwarding it.
        if not (spoken.awaited and manager._is_termination_msg(received)):
            self._forward(received, [agent for agent in self.chat.agents if agent is not speaker])

    def _forward(self, message: Message, agents: Iterable[ClassicAgent]) -> None:
        for agent in agents:
            get_history(self.manager, agent).append(set_role(copy.deepcopy(message), "assistant"))
            get_history(agent, self.manager).append(set_role(copy.deepcopy(message), "user"))


Participants = Pair | Group


def drop_template_values(
    speaker: ClassicAgent, listener: ClassicAgent, spoken: SpokenMessage
) -> None:
    """Drop the answered message's template values, as the framework does for a model's reply."""
    before = get_history(speaker, listener)
    if before and not spoken.opens and getattr(speaker, "client", None) is not None:
        before[-1].pop("context", None)


def get_auto_replies(speaker: ClassicAgent, listener: ClassicAgent) -> Sequence[int]:
    """Return the current value for `SpokenMessage.auto`."""
    auto = [
        speaker._consecutive_auto_reply_counter[listener],
        listener._consecutive_auto_reply_counter[speaker],
    ]
    return auto if any(auto) else ()


def set_auto_replies(speaker: ClassicAgent, listener: ClassicAgent, spoken: SpokenMessage) -> None:
    own, other = spoken.auto or (0, 0)
    speaker._consecutive_auto_reply_counter[listener] = own
    listener._consecutive_auto_reply_counter[speaker] = other


def index_by_name(agents: Iterable[ClassicAgent], *taken: str) -> dict[str, ClassicAgent]:
    """Return the agents by name. Raise ValueError if a name is used twice or is in `taken`."""
    index: dict[str, ClassicAgent] = {}
    for agent in agents:
        if agent.name in taken or index.get(agent.name, agent) is not agent:
            raise ValueError(
                f"two agents of this chat are called {agent.name!r}; their names must be unique,"
                " because stored messages refer to them"
            )
        index[agent.name] = agent
    return index


def decode_message(participants: Participants, entry: MessageEntry) -> SpokenMessage:
    """Decode a stored message, even without our meta: an import or other code may have added it."""
    message, meta = entry.message, entry.meta
    by = meta.get("from") or participants.guess_speaker(entry)
    if by not in participants.speakers:
        raise ValueError(
            f"the stored chat has a message from {by!r}, who is not one of"
            f" {sorted(participants.speakers)}; pass the agents that the chat was stored with"
        )
    if not isinstance(message.get("role"), str):
        raise ValueError(
            f"the message at version {entry.version} of the stored chat has no role;"
            " store the chat under another id"
        )
    if not meta.get("from"):
        same_role = message["role"] in ("system", "developer")
        own = message if same_role else set_role(message, "assistant")
        to = participants.partner(participants.speakers[by]).name
        return SpokenMessage(by, to, {"content": None, **own}, same_role=same_role)
    own = message if meta.get("same_role") else set_role(message, "assistant")
    fields = {name: meta[name] for name in META_FIELDS if name in meta}
    return SpokenMessage(by, meta["to"], own, **fields)


def get_context(participants: Participants) -> dict[str, Message]:
    """Return the agents' context variables (in `autogen` and `ag2`) that are JSON values."""
    context: dict[str, Message] = {}
    for name, agent in participants.speakers.items():
        variables = getattr(agent, "context_variables", None)
        if variables is not None:
            texts = {key: encode_json(value) for key, value in variables.items()}
            context[name] = {
                key: json.loads(text) for key, text in texts.items() if text is not None
            }
    return context


def set_context(
    participants: Participants, context: Mapping[str, Message], redact: Callable[[Message], Message]
) -> None:
    """Restore the agents' context variables.

    Variables that are not JSON keep the value that the application has set. So do variables whose
    stored value is the redacted form of the current one.
    """
    now = get_context(participants)
    for name, values in context.items():
        variables = getattr(participants.speakers.get(name), "context_variables", None)
        if variables is not None:
            for key in now[name].keys() - values.keys():
                variables.remove(key)
            current = redact(now[name])
            for key, value in values.items():
                if key not in current or current[key] != value:
                    variables.update({key: copy.deepcopy(value)})
