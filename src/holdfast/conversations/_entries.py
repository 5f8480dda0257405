"""What users get when they read a conversation."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from .._clock import moment
from .._quiet import Quiet


class Entry(Quiet, msgspec.Struct, frozen=True, gc=False):
    """One message with what is known about it. Order is by `version`, never by clock.

    One exception: a message that `repair` put among older ones stands where it belongs, with the version of its repair.
    """

    _content = ("message", "meta")

    version: int
    id: str
    message: dict[str, Any]
    meta: dict[str, Any]
    time: float
    by: str | None = None
    correlation: str | None = None
    pinned: bool = False

    @property
    def at(self) -> datetime:
        """When it was appended, in UTC."""
        return moment(self.time)


class Draft(Quiet, msgspec.Struct, frozen=True):
    """An answer that was begun and never finished: its pieces, joined."""

    _content = ("text",)

    of: str
    text: str
    time: float

    @property
    def at(self) -> datetime:
        """When its newest piece was stored, in UTC."""
        return moment(self.time)


class Problem(msgspec.Struct, frozen=True):
    """Something a provider would refuse, at the message of that version; `kind` names it, `what` explains it."""

    version: int
    kind: str
    what: str


class Imported(msgspec.Struct, frozen=True):
    """How many messages came out of a file, and whether that was all of it."""

    messages: int
    complete: bool


class ConversationInfo(msgspec.Struct, frozen=True):
    """A conversation at a glance."""

    id: str
    version: int
    messages: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    forked_from: str | None = None
    forked_at: int | None = None
    pins: int = 0
    summarized_upto: int = 0
