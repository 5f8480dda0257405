"""The record that is stored beside AutoGen's state: past tasks, and the progress of the newest run.

AutoGen's state has the messages, but not the requests: it does not show whether a run had ended
when the process died, nor whether a task is new or repeated. This module decides both, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from autogen_agentchat.messages import BaseChatMessage, TextMessage

from ...errors import UnsupportedVersion
from .states import MessageDict

Task = str | BaseChatMessage | Sequence[BaseChatMessage]
Redact = Callable[[list[MessageDict]], list[MessageDict]]
"""Returns messages as the store keeps them, with secrets redacted."""


class RunRecord(msgspec.Struct, omit_defaults=True):
    """One run: the index of its first message, the size of its task, and why it stopped."""

    start: int
    task_size: int = 0
    stop_reason: str | None = None


class RunHistory(msgspec.Struct, omit_defaults=True):
    """The runs so far, oldest first, and the progress of the newest."""

    v: int = 1
    autogen: str = ""
    runs: list[RunRecord] = []
    undelivered: int = 0
    """How many of the last `messages` the agent has not received yet.

    That is its task, until the first step is done.
    """
    finished: bool = True
    result_seen: bool = True
    """Whether the caller has seen the newest result: it ran another task, or left the block."""
    condition_calls: list[int] = []
    """The number of messages in each call of the termination condition since its last reset."""
    messages: list[MessageDict] = []
    """All messages, if AutoGen's state does not keep them."""

    def find_run(
        self, task: Sequence[BaseChatMessage], messages: Sequence[MessageDict], redact: Redact
    ) -> int | None:
        """Return the index of the run that has this task; None if there is none.

        Tasks are compared by message ids. The newest task is also compared by content, if its
        result was not seen.
        """
        given = [dict(message.dump()) for message in task]
        ids = [[message["id"] for message in form] for form in (given, redact(given))]
        newest = len(self.runs) - 1
        for index in range(newest, -1, -1):
            known = self.task_of(index, messages)
            if known and [message["id"] for message in known] in ids:
                return index
        may_repeat = self.runs and not self.result_seen
        if may_repeat and are_same(self.task_of(newest, messages), given, redact, ignore=()):
            return newest
        return None

    def task_of(self, run: int, messages: Sequence[MessageDict]) -> list[MessageDict]:
        start = self.runs[run].start
        return list(messages[start : start + self.runs[run].task_size])

    def messages_of(self, run: int, messages: Sequence[MessageDict]) -> list[MessageDict]:
        """Return the messages of a run, starting with its task."""
        end = self.runs[run + 1].start if run + 1 < len(self.runs) else len(messages)
        return list(messages[self.runs[run].start : end])


def decode_history(data: Any, id: str) -> RunHistory:
    """Decode the stored record."""
    if data.get("v", 1) != 1:
        raise UnsupportedVersion(
            f"the state {id!r} was saved by a newer version of Holdfast; deploy that version"
        )
    return msgspec.convert(data, RunHistory)


def to_messages(task: Task | None) -> list[BaseChatMessage] | None:
    """Convert a task in any form that AutoGen accepts to messages."""
    if task is None:
        return None
    if isinstance(task, str):
        return [TextMessage(content=task, source="user")]
    messages: list[Any] = list(task) if isinstance(task, Sequence) else [task]
    for message in messages:
        if not isinstance(message, BaseChatMessage):
            raise TypeError(
                "task must be a string, a message like TextMessage(content=..., source='user')"
                f" or a list of such messages, got {type(message).__name__}"
            )
    if not messages:
        raise ValueError("task must be a string or at least one message, got an empty list")
    return messages


def are_same(
    messages: list[MessageDict],
    others: list[MessageDict],
    redact: Redact,
    *,
    ignore: tuple[str, ...] = ("metadata",),
) -> bool:
    """Whether messages have the same content, in the form in which they would be stored.

    By default the metadata is ignored: callers may set it differently each time.
    """
    ignored = ("id", "created_at", *ignore)  # new in each message object

    def read_contents(stored: Sequence[MessageDict]) -> list[MessageDict]:
        return [{key: m[key] for key in m if key not in ignored} for m in stored]

    return read_contents(redact(messages)) == read_contents(redact(others))
