"""What users get when they read a conversation."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from ..backends.clock import moment
from ..log.reprs import Readable


class MessageEntry(Readable, msgspec.Struct, frozen=True, gc=False):
    """One message with what is known about it. Order is by `version`, never by clock.

    One exception: a message that `repair` put among older ones stands where it belongs, with the version of its repair.
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
        return moment(self._time)


class Draft(Readable, msgspec.Struct, frozen=True):
    """An answer that was begun and never finished: its pieces, joined. `at` is when the newest one was stored."""

    of: str
    text: str
    at: datetime


class MessageProblem(msgspec.Struct, frozen=True):
    """Something a provider would refuse, at the message of that version; `kind` names it, `what` explains it."""

    version: int
    kind: str
    what: str


class ImportResult(msgspec.Struct, frozen=True):
    """How many messages came out of a file, and whether that was all of it."""

    messages: int
    complete: bool


class ConversationInfo(msgspec.Struct, frozen=True):
    """A conversation in a listing, and when it expires. `Conversation.view` reads more."""

    id: str
    expires_at: datetime | None = None


class ConversationView(msgspec.Struct, frozen=True):
    """A conversation at a glance: what it holds, and since when."""

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
