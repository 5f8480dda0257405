"""Chats of classic AutoGen that go on after a restart: `autogen`, `ag2` before 1.0, `autogen-agentchat` 0.2.

    with persisted(store, "chat-1", assistant, user_proxy):
        user_proxy.initiate_chat(assistant, message="…")

Run the same program again after a crash, and the chat goes on where it was cut off: the model sees all that was said, the
opening message is not sent twice, no answer is asked for twice, and no tool that has answered runs again.
"""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakSet

from ... import Store
from .chat import Recorder
from .hooks import Hooks
from .memory import ClassicAgent, ClassicManager, Group, Memory, Message, Pair

__all__ = ["PersistedChat", "persisted"]

_in_use: WeakSet[Hooks] = WeakSet()
"""The blocks that were entered and not left."""


def persisted(store: Store, id: str, *agents: ClassicAgent | ClassicManager) -> PersistedChat:
    """A block in which a chat is stored message by message; when it is entered, both sides remember what is stored.

    Give it two agents, or the manager of a group chat (and those who talk to it without being in the group). What they
    remembered of each other before is replaced. Inside the block `clear_history` is False unless you say True, and then
    the stored chat is cleared too (its log stays). If somebody else has added to the chat meanwhile, the next message
    raises `Conflict` and is not sent: leave the block and enter it again.
    """
    if not isinstance(store, Store):
        raise TypeError(
            "persisted() takes a store from holdfast.open(), the id of the chat and the agents, in this order, "
            f"and the first is of the type {type(store).__name__}"
        )
    for agent in agents:
        if not hasattr(agent, "chat_messages") or not hasattr(agent, "receive"):
            raise TypeError(
                f"{type(agent).__name__} is not an agent of classic AutoGen; "
                "for AutoGen 0.4 and later use holdfast.integrations.autogen"
            )
    managers: list[Any] = [agent for agent in agents if hasattr(agent, "groupchat")]
    if len(managers) == 1:
        guests = [agent for agent in agents if agent is not managers[0]]
        return PersistedChat(store, id, Group(managers[0], guests))
    if len(agents) != 2 or managers:
        raise ValueError("persisted() takes two agents, or the manager of one group chat")
    return PersistedChat(store, id, Pair(*agents))


class PersistedChat:
    """A chat in its block. `conversation` is where it is stored."""

    def __init__(self, store: Store, id: str, memory: Memory) -> None:
        self.conversation = store.conversation(id)
        self._recorder = Recorder(self.conversation, store.state(f"autogen-classic/{id}"), memory)
        self._hooks = Hooks(self._recorder, memory)

    @property
    def pending(self) -> Message | None:
        """The message that opened the newest call of `initiate_chat` (or of `send`), if that call was cut off.

        The same call with this message, or with the one you gave then, goes on where that one stopped.
        """
        talk = self._recorder.unfinished
        return copy.deepcopy(talk[0].heard) if talk else None

    def __enter__(self) -> PersistedChat:
        if any(other.agents == self._hooks.agents for other in list(_in_use)):
            raise RuntimeError("these agents are in such a block already; leave it first")
        self._recorder.restore()
        self._hooks.install()
        _in_use.add(self._hooks)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.remove()
        _in_use.discard(self._hooks)
