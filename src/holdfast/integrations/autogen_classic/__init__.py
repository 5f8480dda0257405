"""Classic AutoGen chats that resume after a restart: `autogen`, `ag2<1`, `autogen-agentchat` 0.2.

    with persisted(store, "chat-1", assistant, user_proxy):
        user_proxy.initiate_chat(assistant, message="…")

Run the same program again after a crash, and the chat resumes where it was interrupted: the model
sees all messages, the first message isn't sent twice, no stored answer is generated again, and no
tool with a stored result runs again.
"""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakSet

from ... import Store
from .hooks import Hooks
from .participants import ClassicAgent, ClassicManager, Group, Message, Pair, Participants
from .recorder import Recorder

__all__ = ["PersistedChat", "persisted"]

_in_use: WeakSet[Hooks] = WeakSet()
"""The hooks of all blocks that are currently entered."""


def persisted(store: Store, id: str, *agents: ClassicAgent | ClassicManager) -> PersistedChat:
    """Return a block that loads a stored chat into its agents and stores every new message.

    Pass two agents, or the manager of a group chat (and any agents that talk to it without being in
    the group). The stored chat replaces the messages that they have had with each other. Inside the
    block `clear_history` defaults to False; with True, the stored chat is cleared too (its event
    log stays). If another process has added to the chat in the meantime, the next message raises
    `Conflict` and isn't sent: leave the block and enter it again.
    """
    if not isinstance(store, Store):
        raise TypeError(
            f"store must be a store from holdfast.open(), got {type(store).__name__};"
            " the arguments are a store, the id of the chat and the agents"
        )
    for agent in agents:
        if not hasattr(agent, "chat_messages") or not hasattr(agent, "receive"):
            raise TypeError(
                f"agents must be agents of classic AutoGen, got {type(agent).__name__};"
                " for AutoGen 0.4 and later use holdfast.integrations.autogen"
            )
    managers: list[Any] = [agent for agent in agents if hasattr(agent, "groupchat")]
    if len(managers) == 1:
        guests = [agent for agent in agents if agent is not managers[0]]
        return PersistedChat(store, id, Group(managers[0], guests))
    if len(agents) != 2 or managers:
        raise ValueError(
            "agents must be two agents, or the manager of a group chat and its guests, got"
            f" {len(agents)} agents with {len(managers)} managers"
        )
    return PersistedChat(store, id, Pair(*agents))


class PersistedChat:
    """A chat in its block, stored in `conversation`."""

    def __init__(self, store: Store, id: str, participants: Participants) -> None:
        self.conversation = store.conversation(id)
        notes = store.state(f"autogen-classic/{id}")
        self._recorder = Recorder(self.conversation, notes, participants)
        self._hooks = Hooks(self._recorder, participants)

    @property
    def pending(self) -> Message | None:
        """The first message of the last `initiate_chat` (or `send`) call, if it was interrupted.

        To resume it, make the same call with this message or with the original one.
        """
        call = self._recorder.unfinished
        return copy.deepcopy(call[0].received) if call else None

    def __enter__(self) -> PersistedChat:
        if any(other.agents == self._hooks.agents for other in list(_in_use)):
            raise RuntimeError("these agents are already in a block of persisted(); leave it first")
        self._recorder.restore()
        self._hooks.install()
        _in_use.add(self._hooks)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.remove()
        _in_use.discard(self._hooks)
