"""The objects that a conversation returns: messages, drafts, problems, listings."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from ..backends.clock import to_datetime
from ..log.reprs import ShortRepr


class MessageEntry(ShortRepr, msgspec.Struct, frozen=True, gc=False):
    """A message with its metadata. Entries are ordered by `version`, never by time.

    The exception is a message that `repair` inserted among older ones: it has the version of its
    repair.
    """

    _shown = ("version", "message", "meta", "at", "by")

    version: int
    id: str
    message: dict[str, Any]
    meta: dict[str, Any]
    _time: float
    by: str | None = None
    correlation: str | None = None
    pinned: bool = False

    @property
    def at(self) -> datetime:
        """When it was appended, in UTC."""
        return to_datetime(self._time)


class Draft(ShortRepr, msgspec.Struct, frozen=True):
    """An answer that was started and never finished. `at` is the time of its newest piece."""

    of: str
    text: str
    at: datetime


class DraftPiece(ShortRepr, msgspec.Struct, frozen=True):
    """A piece of an answer while it is being streamed.

    Each attempt at an answer has its own `of`. Pieces with a new `of` replace the earlier ones,
    whose process has died.
    """

    version: int
    of: str
    text: str
    at: datetime


class MessageProblem(msgspec.Struct, frozen=True):
    """A problem with the message at `version`: a provider would reject it.

    `kind` names the problem, `what` explains it.
    """

    version: int
    kind: str
    what: str


class ImportResult(msgspec.Struct, frozen=True):
    """The number of messages imported from a file, and whether the whole file was readable."""

    messages: int
    complete: bool


class ConversationInfo(msgspec.Struct, frozen=True):
    """A conversation in a listing, and when it expires. `Conversation.view` returns more."""

    id: str
    expires_at: datetime | None = None


class ConversationView(msgspec.Struct, frozen=True):
    """An overview of a conversation: its size, times, and the origin of a fork."""

    id: str
    version: int
    messages: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    forked_from: str | None = None
    forked_version: int | None = None
    pins: int = 0
    summarized_upto: int = 0
