"""The record of a chat between agents of classic AutoGen: stores what is said, and says again what was cut off.

What is said in one call of `initiate_chat` is a talk. Each message is stored before it arrives, and when the call
returns the talk is noted as finished. A call that opens with the message of a talk which was not finished runs
through the framework as the first one did, except that whoever has to reply is handed the reply that is stored, as long
as there is one. So the framework itself does the counting of turns and rounds, and knows when to end.
"""

from __future__ import annotations

import copy
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ... import Conflict, Conversation, State
from ...errors import NotSerializable
from .memory import (
    ClassicAgent,
    Memory,
    Message,
    SpokenMessage,
    answered,
    auto_of,
    context_of,
    kept,
    read,
    set_auto,
    set_context,
)

NEW = [0, False, False]
"""Of an agent towards its partner: replies in a row without a human, whether it replies unasked, and the partner to it."""


class Recorder:
    """One chat. The hooks tell it what happens and ask it what is stored."""

    def __init__(self, conversation: Conversation, notes: State[Any], memory: Memory) -> None:
        self._conversation, self._notes, self._memory = conversation, notes, memory
        self._talk: list[SpokenMessage] = []
        """The talk that is not finished."""
        self._replay: deque[SpokenMessage] = deque()
        """What of it is still to be said again."""
        self._calling = False
        self._opening = False
        """Inside a call, before its first message."""
        self._sender: ClassicAgent | None = None
        """Who is sending the message that will arrive next."""
        self._resumed = False
        """The manager has resumed: what is sent next takes the place of the newest message."""
        self._version = self._newest = self._count = 0
        self._context: dict[str, Message] = {}

    @property
    def unfinished(self) -> list[SpokenMessage]:
        """The talk that was cut off, if the newest was."""
        return self._talk if self._talk and self._talk[0].opens and not self._calling else []

    def restore(self) -> None:
        """Make the agents remember what is stored."""
        chat, notes = self._load(), self._notes.load({})
        self._fill(chat)
        finished = next(
            (
                n
                for n, said in enumerate(chat)
                if said.opens and said.opens == notes.get("finished")
            ),
            -1,
        )
        opening = _opening_of(chat)
        self._talk = chat[opening:] if opening > finished else []
        self._replay.clear()
        self._resumed = False
        for name, agent in self._memory.speakers.items():
            partner = self._memory.partner(agent)
            auto, answers, is_answered = notes["agents"].get(name, NEW) if finished >= 0 else NEW
            agent._consecutive_auto_reply_counter[partner] = auto
            agent.reply_at_receive[partner], partner.reply_at_receive[agent] = answers, is_answered
        for said in self._talk:
            agent = self._memory.speakers[said.by]
            set_auto(agent, self._memory.partner(agent), said)
        for said in chat:
            set_context(self._memory, said.context, self._conversation._log.redaction.redact_value)
        self._context = context_of(self._memory)

    # -- what happens ---------------------------------------------------------------------------------------------

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around each call in which something can be said. The outermost one is the talk."""
        if self._calling:
            yield
            return
        self._calling = self._opening = True
        try:
            yield
            if not self._opening:
                self._finish()
        finally:
            self._calling = self._opening = False
            if self._replay:
                self._leave_replay()

    def sending(self, agent: ClassicAgent) -> None:
        self._sender = agent

    def arriving(
        self, listener: ClassicAgent, sender: ClassicAgent, message: Any, *, awaited: bool
    ) -> Any:
        """Store a message before it arrives, or recognise it as stored. What is to arrive in its place."""
        if self._sender is not sender:
            raise ValueError(
                "inside persisted() a message is sent with send(), not handed to receive()"
            )
        self._sender = None
        said = self._said(listener, sender, message, awaited)
        if self._opening:
            said = self._open(listener, sender, said)
        if self._replay and (said.by, said.to) == (self._replay[0].by, self._replay[0].to):
            stored = self._replay.popleft()
            kept(sender, listener)[-1] = copy.deepcopy(stored.message)
            set_auto(sender, listener, stored)
            self._opening = False
            return stored.to_hand_over
        if self._replay:  # the program has changed, and goes on differently
            own = kept(sender, listener).pop()
            self._leave_replay()
            kept(sender, listener).append(own)
        try:
            self._store(said)
        except BaseException:
            kept(sender, listener).pop()  # nobody has said it
            raise
        self._talk.append(replace(said, message=copy.deepcopy(said.message)))
        self._opening = False
        return message

    def reply(self, agent: ClassicAgent, asker: object) -> tuple[bool, Message | None]:
        """Whether the reply that an agent is asked for is stored, and the reply; None if it had nothing to say."""
        partner = self._memory.partner(agent)
        if not self._replay or asker is not partner:
            return False, None
        stored = self._replay[0]
        if stored.by != agent.name:
            return True, None
        answered(agent, partner, stored)
        set_context(self._memory, stored.context, self._conversation._log.redaction.redact_value)
        self._context = context_of(self._memory)
        return True, copy.deepcopy(stored.message)

    def next_speaker(self) -> ClassicAgent | None:
        """Who spoke next in the group, as far as that is stored."""
        return self._memory.speakers[self._replay[0].by] if self._replay else None

    def clear(self) -> None:
        """Forget the chat; its log stays."""
        self._conversation.clear()
        self._talk.clear()
        self._fill(self._load())

    def resuming(self) -> None:
        """The manager resumes; after that the newest message is sent again, or another in its place."""
        self._resumed = True

    # -- how ------------------------------------------------------------------------------------------------------

    def _said(
        self, listener: ClassicAgent, sender: ClassicAgent, message: Any, awaited: bool
    ) -> SpokenMessage:
        own, context = kept(sender, listener)[-1], context_of(self._memory)
        return SpokenMessage(
            sender.name,
            listener.name,
            own,
            auto=auto_of(sender, listener),
            same_role=isinstance(message, dict) and own["role"] == message.get("override_role"),
            awaited=awaited,
            context={} if context == self._context else context,
        )

    def _open(
        self, listener: ClassicAgent, sender: ClassicAgent, said: SpokenMessage
    ) -> SpokenMessage:
        """The first message of a call: of a talk that was cut off, or of a new one."""
        if self._resumed:
            return self._open_resumed(listener, sender, said)
        if self._talk and self._as_stored(self._talk[0]).repeats(self._as_stored(said)):
            chat = self._load()
            opening = _opening_of(chat)
            self._talk = chat[opening:]
            self._replay.extend(self._talk)
            self._fill(chat[:opening])
            kept(sender, listener).append(said.message)
            return said
        self._talk = []
        intro = self._memory.introductions()
        return replace(said, opens=secrets.token_hex(8), intro=intro)

    def _open_resumed(
        self, listener: ClassicAgent, sender: ClassicAgent, said: SpokenMessage
    ) -> SpokenMessage:
        """The first message after the manager resumed: the newest one again, or another in its place."""
        self._resumed = False
        chat = self._load()
        newest = chat[-1]
        self._talk = chat[_opening_of(chat) :]
        self._fill(chat[:-1])
        kept(sender, listener).append(said.message)
        known = self._as_stored(newest).message.get("content")
        if newest.by == said.by and known in (None, self._as_stored(said).message.get("content")):
            self._replay.append(newest)
        else:
            self._conversation.pop()
            self._load()
            self._talk = []
            said = replace(said, opens=secrets.token_hex(8))
        return said

    def _as_stored(self, said: SpokenMessage) -> SpokenMessage:
        """The same without what the store is to redact: so it comes back after a restart, and so it can be recognised."""
        try:
            return replace(
                said, message=self._conversation._log.redaction.redact_value(said.message)
            )
        except NotSerializable:  # which is said when it is to be stored
            return said

    def _store(self, said: SpokenMessage) -> None:
        message, meta = self._memory.stored(said)
        while True:
            try:
                stored = self._conversation.append(message, meta=meta, if_version=self._version)
                break
            except Conflict:
                # Other things than messages have versions too: a turn that is renewed, a time to live that is set.
                self._version = self._conversation.version()
                newest = self._conversation.entries(last=1)
                if (self._conversation.count(), newest[-1].version if newest else 0) != (
                    self._count,
                    self._newest,
                ):
                    raise
        self._version = self._newest = stored.last
        self._count += 1
        self._context = said.context or self._context

    def _finish(self) -> None:
        if self._talk and self._talk[0].opens:
            agents = {}
            for name, agent in self._memory.speakers.items():
                partner = self._memory.partner(agent)
                auto = agent._consecutive_auto_reply_counter[partner]
                agents[name] = [
                    auto,
                    agent.reply_at_receive[partner],
                    partner.reply_at_receive[agent],
                ]
            self._notes.save({"finished": self._talk[0].opens, "agents": agents})
        self._talk = []

    def _leave_replay(self) -> None:
        """What was not said again was said all the same."""
        self._replay.clear()
        self._fill(self._load())

    def _load(self) -> list[SpokenMessage]:
        self._version = (
            self._conversation.version()
        )  # first: what is added in between shows as a conflict
        entries = self._conversation.entries()
        self._count, self._newest = len(entries), entries[-1].version if entries else 0
        return [read(self._memory, entry) for entry in entries]

    def _fill(self, chat: list[SpokenMessage]) -> None:
        self._memory.forget()
        for said in chat:
            self._memory.remember(said)


def _opening_of(chat: list[SpokenMessage]) -> int:
    """Where the newest talk begins; the end, if that is not known."""
    return max((n for n, said in enumerate(chat) if said.opens), default=len(chat))
