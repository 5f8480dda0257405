"""Turns: two requests on one conversation do not interleave.

A turn is a lease on the conversation. Inside it every append is fenced: it is stored only while the turn is still held.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import msgspec

from ..backends import StreamKey
from ..errors import LeaseHeld
from ..log.events import AppendContext
from ..log.operations import Operation
from . import fold as _fold
from .fold import ConversationFold
from .read import KnownConversation, learn
from .write import new_event, put

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.25
SKEW: Final = 2.0
"""If the engine's clock is so far from ours, what was told by ours is told again by the engine's."""


class _Entered:
    """A turn that some code has entered. `over` when it has left it: tasks that it started may still run."""

    def __init__(self, key: StreamKey, log: int, owner: str) -> None:
        self.key, self.log, self.owner = key, log, owner
        self.process, self.over = os.getpid(), False


_turns: ContextVar[tuple[_Entered, ...]] = ContextVar("holdfast_turns", default=())
"""The turns of the code that runs now and of the code that started it, innermost first."""


class Turn(msgspec.Struct, frozen=True):
    """Who has the turn, and for how long unless it is renewed."""

    owner: str = msgspec.field(name="holder")
    lease: float


def enter(key: StreamKey, log: int, owner: str) -> Callable[[], None]:
    """Everything that the running code does, and the tasks it starts, happens in this turn, until what is returned is called."""
    entered = _Entered(key, log, owner)
    _turns.set((entered, *_turns.get()))

    def leave() -> None:
        entered.over = True
        _turns.set(tuple(turn for turn in _turns.get() if turn is not entered))

    return leave


def holder_of(key: StreamKey, log: int) -> str | None:
    """The turn on a conversation in which the running code is. A forked process is in none: its parent has them."""
    for turn in _turns.get():
        if (turn.key, turn.log, turn.process, turn.over) == (key, log, os.getpid(), False):
            return turn.owner
    return None


def begin(
    key: StreamKey, turn: Turn, stamp: AppendContext, gone: str | None
) -> Operation[LeaseHeld | None]:
    """Take the turn if it is free, has run out, or is held by one who is `gone`. Otherwise say who has it."""
    known = yield from learn(key)
    if known and known.fields.owner not in (None, gone) and (known.fields.due_at or 0) > known.now:
        return LeaseHeld(str(key), owner=known.fields.owner or "", until=known.fields.due_at or 0)
    after = yield from _mark(key, known, _fold.TURN_BEGAN, turn, stamp)
    if known is None and after is not None and abs(after.now - stamp.at) > SKEW:
        # Nobody could say before what the time is there, and leases end by the engine's clock.
        yield from _mark(
            key, after, _fold.TURN_RENEWED, turn, msgspec.structs.replace(stamp, id=stamp.id + 1)
        )
    return None


def _mark(
    key: StreamKey, known: KnownConversation | None, event: str, turn: Turn, stamp: AppendContext
) -> Operation[KnownConversation | None]:
    """Write a turn's beginning, renewal or end, with the lease it leaves in the head. What is known after it."""
    ending = event == _fold.TURN_ENDED
    now = known.now if known else stamp.at
    fields = msgspec.structs.replace(
        known.fields if known else _fold.NO_FIELDS,
        owner=None if ending else turn.owner,
        due_at=None if ending else now + turn.lease,
    )
    fold = known.fold if known else ConversationFold()
    marked = new_event(event, turn, fold)
    _, after = yield from put(
        key, known, [marked], stamp, expected=known.record if known else 0, fields=fields
    )
    return after


def renew(key: StreamKey, turn: Turn, stamp: AppendContext) -> Operation[bool]:
    """Hold a turn for longer. False if it is no longer held."""
    known = yield from learn(key, expired=True)
    if known is None or known.fields.owner != turn.owner:
        return False
    yield from _mark(key, known, _fold.TURN_RENEWED, turn, stamp)
    return True


def end(key: StreamKey, turn: Turn, stamp: AppendContext) -> Operation[bool]:
    """Give a turn back. False if somebody else had taken it."""
    known = yield from learn(key, expired=True)
    if known is None or known.fields.owner != turn.owner:
        return False
    yield from _mark(key, known, _fold.TURN_ENDED, turn, stamp)
    return True
