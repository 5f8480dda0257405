"""Turns: two requests on one conversation do not interleave.

A turn is a lease on the conversation. Inside it every append is fenced: it is stored only while the turn is still held.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Final

import msgspec

from .._events import Stamp
from .._operations import Operation
from ..backends import StreamKey
from ..errors import Held
from . import _fold
from ._fold import Fold
from ._reading import Known, learn
from ._writing import new_event, put

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.25

logger = logging.getLogger("holdfast")

_turns: ContextVar[tuple[tuple[StreamKey, int, str], ...]] = ContextVar("holdfast_turns", default=())
"""The turns of the code that runs now, innermost first: conversation, store (by identity), holder."""


class Turn(msgspec.Struct, frozen=True):
    """Who has the turn, and for how long unless it is renewed."""

    holder: str
    lease: float


def enter(key: StreamKey, log: int, holder: str) -> None:
    """Everything that the running code does from here on happens in this turn."""
    _turns.set(((key, log, holder), *_turns.get()))


def leave(holder: str) -> None:
    _turns.set(tuple(turn for turn in _turns.get() if turn[2] != holder))


def holder_of(key: StreamKey, log: int) -> str | None:
    """The turn on a conversation in which the running code is."""
    return next((turn[2] for turn in _turns.get() if turn[:2] == (key, log)), None)


def begin(key: StreamKey, turn: Turn, stamp: Stamp, gone: str | None) -> Operation[Held | None]:
    """Take the turn if it is free, has run out, or is held by one who is `gone`. Otherwise say who has it."""
    known = yield from learn(key)
    if known and known.fields.owner not in (None, gone) and (known.fields.due_at or 0) > known.now:
        return Held(str(key), owner=known.fields.owner or "", until=known.fields.due_at or 0)
    yield from _mark(key, known, _fold.TURN_BEGAN, turn, stamp)
    return None


def _mark(key: StreamKey, known: Known | None, event: str, turn: Turn, stamp: Stamp) -> Operation[None]:
    """Write a turn's beginning, renewal or end, with the lease it leaves in the head."""
    ending = event == _fold.TURN_ENDED
    now = known.now if known else stamp.at
    fields = msgspec.structs.replace(
        known.fields if known else _fold.NO_FIELDS,
        owner=None if ending else turn.holder,
        due_at=None if ending else now + turn.lease,
    )
    fold = known.fold if known else Fold()
    marked = new_event(event, turn, fold)
    yield from put(key, known, [marked], stamp, expected=known.record if known else 0, fields=fields)


def renew(key: StreamKey, turn: Turn, stamp: Stamp) -> Operation[bool]:
    """Hold a turn for longer. False if it is no longer held."""
    known = yield from learn(key, expired=True)
    if known is None or known.fields.owner != turn.holder:
        return False
    yield from _mark(key, known, _fold.TURN_RENEWED, turn, stamp)
    return True


def end(key: StreamKey, turn: Turn, stamp: Stamp) -> Operation[bool]:
    """Give a turn back. False if somebody else had taken it."""
    known = yield from learn(key, expired=True)
    if known is None or known.fields.owner != turn.holder:
        return False
    yield from _mark(key, known, _fold.TURN_ENDED, turn, stamp)
    return True
