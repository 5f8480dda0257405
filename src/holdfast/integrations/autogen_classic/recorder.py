"""Record the messages of a classic AutoGen chat, and replay an interrupted call.

A recorded call is one outermost call of `initiate_chat` (or of `send`). Each message is stored
before it is received; when the call returns, it is recorded as finished. If a call starts with the
same message as an unfinished call, it resumes that call: the framework runs as before, but each
agent that has to reply gets its stored reply, until the stored replies run out. So the framework
itself counts turns and rounds, and decides when to end.
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
from .participants import (
    ClassicAgent,
    Message,
    Participants,
    SpokenMessage,
    decode_message,
    drop_template_values,
    get_auto_replies,
    get_context,
    get_history,
    set_auto_replies,
    set_context,
)

NEW_AGENT = [0, False, False]
"""The stored values of a new agent.

They are the number of consecutive automatic replies to its partner, and `reply_at_receive` of the
agent and of its partner.
"""


class Recorder:
    """Records one chat. The hooks report new messages to it and get stored messages from it."""

    def __init__(
        self, conversation: Conversation, notes: State[Any], participants: Participants
    ) -> None:
        self._conversation, self._notes = conversation, notes
        self._participants = participants
        self._redact = conversation._log.redaction.redact_value
        self._call: list[SpokenMessage] = []
        """The messages of the unfinished call."""
        self._replay: deque[SpokenMessage] = deque()
        """The messages of the call that are still to be replayed."""
        self._in_call = False
        self._expects_first = False
        """Whether a call has started and its first message has not been sent yet."""
        self._sender: ClassicAgent | None = None
        """The agent whose message will be received next."""
        self._resumed = False
        """Whether the manager has resumed: the next message repeats or replaces the newest one."""
        self._version = self._newest = self._count = 0
        self._context: dict[str, Message] = {}

    @property
    def unfinished(self) -> list[SpokenMessage]:
        """The messages of the last call, if it was interrupted."""
        return self._call if self._call and self._call[0].opens and not self._in_call else []

    def restore(self) -> None:
        """Load the stored chat into the agents."""
        chat, notes = self._load(), self._notes.load({})
        self._fill_agents(chat)
        last = notes.get("finished")
        finished = next((n for n, spoken in enumerate(chat) if last and spoken.opens == last), -1)
        start = _find_last_call(chat)
        self._call = chat[start:] if start > finished else []
        self._replay.clear()
        self._resumed = False
        for name, agent in self._participants.speakers.items():
            partner = self._participants.partner(agent)
            auto, answers, is_answered = (
                notes["agents"].get(name, NEW_AGENT) if finished >= 0 else NEW_AGENT
            )
            agent._consecutive_auto_reply_counter[partner] = auto
            agent.reply_at_receive[partner], partner.reply_at_receive[agent] = answers, is_answered
        for spoken in self._call:
            agent = self._participants.speakers[spoken.by]
            set_auto_replies(agent, self._participants.partner(agent), spoken)
        for spoken in chat:
            set_context(self._participants, spoken.context, self._redact)
        self._context = get_context(self._participants)

    # -- reports of the hooks ------------------------------------------------------------------

    @contextmanager
    def track_call(self) -> Iterator[None]:
        """Wrap a call in which messages can be sent. The outermost call is recorded."""
        if self._in_call:
            yield
            return
        self._in_call = self._expects_first = True
        try:
            yield
            if not self._expects_first:
                self._finish()
        finally:
            self._in_call = self._expects_first = False
            if self._replay:
                self._end_replay()

    def note_sender(self, agent: ClassicAgent) -> None:
        self._sender = agent

    def record_message(
        self, listener: ClassicAgent, sender: ClassicAgent, message: Any, *, awaited: bool
    ) -> Any:
        """Store a message before it is received.

        Return it, or the stored message that it repeats.
        """
        if self._sender is not sender:
            raise ValueError(
                "a message was passed to receive(); inside persisted(), send it with send()"
            )
        self._sender = None
        spoken = self._describe(listener, sender, message, awaited)
        if self._expects_first:
            spoken = self._open_call(listener, sender, spoken)
        if self._replay and (spoken.by, spoken.to) == (self._replay[0].by, self._replay[0].to):
            stored = self._replay.popleft()
            get_history(sender, listener)[-1] = copy.deepcopy(stored.message)
            set_auto_replies(sender, listener, stored)
            self._expects_first = False
            return stored.to_deliver
        if self._replay:  # the application has changed, and continues differently
            own = get_history(sender, listener).pop()
            self._end_replay()
            get_history(sender, listener).append(own)
        try:
            self._store(spoken)
        except BaseException:
            get_history(sender, listener).pop()  # it was not sent
            raise
        self._call.append(replace(spoken, message=copy.deepcopy(spoken.message)))
        self._expects_first = False
        return message

    def replay_reply(self, agent: ClassicAgent, asker: object) -> tuple[bool, Message | None]:
        """Return whether an agent's reply is replayed, and the stored reply.

        The reply is None if the agent did not reply.
        """
        partner = self._participants.partner(agent)
        if not self._replay or asker is not partner:
            return False, None
        stored = self._replay[0]
        if stored.by != agent.name:
            return True, None
        drop_template_values(agent, partner, stored)
        set_context(self._participants, stored.context, self._redact)
        self._context = get_context(self._participants)
        return True, copy.deepcopy(stored.message)

    def replay_speaker(self) -> ClassicAgent | None:
        """Return the next speaker of the group, if the speaker is replayed."""
        return self._participants.speakers[self._replay[0].by] if self._replay else None

    def clear(self) -> None:
        """Clear the chat; its event log stays."""
        self._conversation.clear()
        self._call.clear()
        self._fill_agents(self._load())

    def note_resume(self) -> None:
        """Note that the next message repeats the newest one, or replaces it."""
        self._resumed = True

    # -- internals -----------------------------------------------------------------------------

    def _describe(
        self, listener: ClassicAgent, sender: ClassicAgent, message: Any, awaited: bool
    ) -> SpokenMessage:
        own, context = get_history(sender, listener)[-1], get_context(self._participants)
        return SpokenMessage(
            sender.name,
            listener.name,
            own,
            auto=get_auto_replies(sender, listener),
            same_role=isinstance(message, dict) and own["role"] == message.get("override_role"),
            awaited=awaited,
            context={} if context == self._context else context,
        )

    def _open_call(
        self, listener: ClassicAgent, sender: ClassicAgent, spoken: SpokenMessage
    ) -> SpokenMessage:
        """Start or resume a call with its first message, and return that message."""
        if self._resumed:
            return self._open_resumed_call(listener, sender, spoken)
        if self._call and self._redacted(self._call[0]).is_same(self._redacted(spoken)):
            chat = self._load()
            start = _find_last_call(chat)
            self._call = chat[start:]
            self._replay.extend(self._call)
            self._fill_agents(chat[:start])
            get_history(sender, listener).append(spoken.message)
            return spoken
        self._call = []
        intro = self._participants.introductions()
        return replace(spoken, opens=secrets.token_hex(8), intro=intro)

    def _open_resumed_call(
        self, listener: ClassicAgent, sender: ClassicAgent, spoken: SpokenMessage
    ) -> SpokenMessage:
        """Handle the first message after the manager resumed.

        It repeats the newest message, or replaces it.
        """
        self._resumed = False
        chat = self._load()
        newest = chat[-1]
        self._call = chat[_find_last_call(chat) :]
        self._fill_agents(chat[:-1])
        get_history(sender, listener).append(spoken.message)
        content = self._redacted(spoken).message.get("content")
        known = self._redacted(newest).message.get("content")
        if newest.by == spoken.by and known in (None, content):
            self._replay.append(newest)
        else:
            self._conversation.pop()
            self._load()
            self._call = []
            spoken = replace(spoken, opens=secrets.token_hex(8))
        return spoken

    def _redacted(self, spoken: SpokenMessage) -> SpokenMessage:
        """Return the message as it would be stored, to compare it with stored messages."""
        try:
            return replace(spoken, message=self._redact(spoken.message))
        except NotSerializable:  # storing the message will raise it
            return spoken

    def _store(self, spoken: SpokenMessage) -> None:
        message, meta = self._participants.encode(spoken)
        while True:
            try:
                stored = self._conversation.append(message, meta=meta, if_version=self._version)
                break
            except Conflict:
                # Other events have versions too, such as a renewed turn or a changed time to live.
                self._version = self._conversation.version()
                entries = self._conversation.entries(last=1)
                newest = entries[-1].version if entries else 0
                if (self._conversation.count(), newest) != (self._count, self._newest):
                    raise
        self._version = self._newest = stored.last
        self._count += 1
        self._context = spoken.context or self._context

    def _finish(self) -> None:
        if self._call and self._call[0].opens:
            agents = {}
            for name, agent in self._participants.speakers.items():
                partner = self._participants.partner(agent)
                auto = agent._consecutive_auto_reply_counter[partner]
                flags = agent.reply_at_receive[partner], partner.reply_at_receive[agent]
                agents[name] = [auto, *flags]
            self._notes.save({"finished": self._call[0].opens, "agents": agents})
        self._call = []

    def _end_replay(self) -> None:
        """Stop replaying. The messages that were not replayed stay in the chat."""
        self._replay.clear()
        self._fill_agents(self._load())

    def _load(self) -> list[SpokenMessage]:
        # Read the version first, so that a message added in between causes a conflict.
        self._version = self._conversation.version()
        entries = self._conversation.entries()
        self._count, self._newest = len(entries), entries[-1].version if entries else 0
        return [decode_message(self._participants, entry) for entry in entries]

    def _fill_agents(self, chat: list[SpokenMessage]) -> None:
        self._participants.clear()
        for spoken in chat:
            self._participants.add(spoken)


def _find_last_call(chat: list[SpokenMessage]) -> int:
    """Return the index of the last call's first message; the chat's length if there is none."""
    return max((n for n, spoken in enumerate(chat) if spoken.opens), default=len(chat))
