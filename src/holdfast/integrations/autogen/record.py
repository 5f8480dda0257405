"""What is stored beside AutoGen's state: which tasks were given, how far the newest one got, and what was counted.

AutoGen's state knows what was said, but not what was asked for: whether a run had ended when the process did, and whether a
task that comes in is a new one or the same one again. That is decided here, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from autogen_agentchat.messages import BaseChatMessage, TextMessage

from ...errors import UnsupportedVersion
from .states import Message

Task = str | BaseChatMessage | Sequence[BaseChatMessage]
Stored = Callable[[list[Message]], list[Message]]
"""What a store makes of messages: the same, or without what it is to redact."""


class RunRecord(msgspec.Struct, omit_defaults=True):
    """One run: where in all that was said it begins, of how many messages its task is, and why it stopped."""

    begin: int
    asked: int = 0
    stop_reason: str | None = None


class RunHistory(msgspec.Struct, omit_defaults=True):
    """The runs so far, oldest first, and the state of the newest."""

    v: int = 1
    autogen: str = ""
    runs: list[RunRecord] = []
    owed: int = 0
    """How many messages at the end of `said` an agent has not had: its task, until its first step is done."""
    finished: bool = True
    seen: bool = True
    """Whether the program has had the result: it has asked for something else since, or left the block."""
    shown: list[int] = []
    """How many messages the termination condition was shown in each call since it began to count."""
    said: list[Message] = []
    """All that was said, where AutoGen's state does not keep that."""

    def find(
        self, asked: Sequence[BaseChatMessage], said: Sequence[Message], stored: Stored
    ) -> int | None:
        """Which run has this task: by the messages' ids, or, for the newest if its result was not seen, by what they say."""
        given = [dict(message.dump()) for message in asked]
        ids = [[message["id"] for message in messages] for messages in (given, stored(given))]
        for index in range(len(self.runs) - 1, -1, -1):
            task = self.task(index, said)
            if task and [message["id"] for message in task] in ids:
                return index
        newest = len(self.runs) - 1
        if self.runs and not self.seen and are_same(self.task(newest, said), given, stored, but=()):
            return newest
        return None

    def task(self, run: int, said: Sequence[Message]) -> list[Message]:
        begin = self.runs[run].begin
        return list(said[begin : begin + self.runs[run].asked])

    def said_in(self, run: int, said: Sequence[Message]) -> list[Message]:
        """What was said in a run, its task first."""
        end = self.runs[run + 1].begin if run + 1 < len(self.runs) else len(said)
        return list(said[self.runs[run].begin : end])


def record_of(data: Any, id: str) -> RunHistory:
    """The stored record."""
    if data.get("v", 1) != 1:
        raise UnsupportedVersion(f"the state {id!r} was saved by a newer Holdfast; deploy that one")
    return msgspec.convert(data, RunHistory)


def messages_of(task: Task | None) -> list[BaseChatMessage] | None:
    """A task in any form that AutoGen takes, as messages."""
    if task is None:
        return None
    if isinstance(task, str):
        return [TextMessage(content=task, source="user")]
    messages: list[Any] = list(task) if isinstance(task, Sequence) else [task]
    for message in messages:
        if not isinstance(message, BaseChatMessage):
            raise TypeError(
                "a task is a text, a message like TextMessage(content=..., source='user') or a list of such messages, "
                f"not {type(message).__name__}"
            )
    if not messages:
        raise ValueError("a task is a text or at least one message; without one, leave it out")
    return messages


def are_same(
    some: list[Message],
    others: list[Message],
    stored: Stored,
    *,
    but: tuple[str, ...] = ("metadata",),
) -> bool:
    """Whether messages say the same, as it would be stored. What a program notes beside them may be another thing each time."""
    return _contents(stored(some), but) == _contents(stored(others), but)


def _contents(messages: Sequence[Any], but: tuple[str, ...] = ()) -> list[Message]:
    """What messages say, without what is new each time they are made."""
    left_out = ("id", "created_at", *but)
    return [
        {key: value for key, value in message.items() if key not in left_out}
        for message in messages
    ]
