"""Turns: leases that keep two requests on one conversation from interleaving.

Inside a turn every append is fenced: it is stored only while the process still owns the turn.
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
from .read import ConversationSnapshot, load_snapshot
from .write import new_event, store_events

FIRST_PAUSE_SECONDS: Final = 0.01
MAX_PAUSE_SECONDS: Final = 0.25
MAX_CLOCK_SKEW_SECONDS: Final = 2.0
"""If the database clock differs more than this from ours, the lease is renewed by the former."""


class _EnteredTurn:
    """A turn that the running code has entered. Tasks started in it may outlive it (`over`)."""

    def __init__(self, key: StreamKey, log: int, owner: str) -> None:
        self.key, self.log, self.owner = key, log, owner
        self.process, self.over = os.getpid(), False


_turns: ContextVar[tuple[_EnteredTurn, ...]] = ContextVar("holdfast_turns", default=())
"""The turns of the running code and of the code that started it, innermost first."""


class Turn(msgspec.Struct, frozen=True):
    """The lease owner of a turn, and the lease in seconds."""

    owner: str = msgspec.field(name="holder")
    lease: float


def enter_turn(key: StreamKey, log: int, owner: str) -> Callable[[], None]:
    """Put the running code, and the tasks it starts, in this turn. Call the result to leave it."""
    entered = _EnteredTurn(key, log, owner)
    _turns.set((entered, *_turns.get()))

    def leave() -> None:
        entered.over = True
        _turns.set(tuple(turn for turn in _turns.get() if turn is not entered))

    return leave


def find_owner(key: StreamKey, log: int) -> str | None:
    """Return the owner of the running code's turn on a conversation.

    A forked process is in no turn: its parent owns them.
    """
    for turn in _turns.get():
        if (turn.key, turn.log, turn.process, turn.over) == (key, log, os.getpid(), False):
            return turn.owner
    return None


def start_turn(
    key: StreamKey, turn: Turn, stamp: AppendContext, dead_owner: str | None
) -> Operation[LeaseHeld | None]:
    """Take the turn if it is free, expired, or owned by `dead_owner`. Else return its lease."""
    snapshot = yield from load_snapshot(key)
    if (
        snapshot
        and snapshot.fields.owner not in (None, dead_owner)
        and (snapshot.fields.due_at or 0) > snapshot.now
    ):
        return LeaseHeld(
            str(key), owner=snapshot.fields.owner or "", until=snapshot.fields.due_at or 0
        )
    after = yield from _append_turn_event(key, snapshot, _fold.TURN_BEGAN, turn, stamp)
    if (
        snapshot is None
        and after is not None
        and abs(after.now - stamp.at) > MAX_CLOCK_SKEW_SECONDS
    ):
        # Leases end by the database clock, which is known only after the first append.
        yield from _append_turn_event(
            key, after, _fold.TURN_RENEWED, turn, msgspec.structs.replace(stamp, id=stamp.id + 1)
        )
    return None


def _append_turn_event(
    key: StreamKey,
    snapshot: ConversationSnapshot | None,
    event: str,
    turn: Turn,
    stamp: AppendContext,
) -> Operation[ConversationSnapshot | None]:
    """Append the start, renewal or end of a turn, and update the lease in the stream head."""
    ending = event == _fold.TURN_ENDED
    now = snapshot.now if snapshot else stamp.at
    fields = msgspec.structs.replace(
        snapshot.fields if snapshot else _fold.EMPTY_FIELDS,
        owner=None if ending else turn.owner,
        due_at=None if ending else now + turn.lease,
    )
    fold = snapshot.fold if snapshot else ConversationFold()
    marked = new_event(event, turn, fold)
    _, after = yield from store_events(
        key, snapshot, [marked], stamp, expected=snapshot.record if snapshot else 0, fields=fields
    )
    return after


def change_turn(key: StreamKey, turn: Turn, event: str, stamp: AppendContext) -> Operation[bool]:
    """Renew or end a turn. Return False if another process has taken it over."""
    snapshot = yield from load_snapshot(key, expired=True)
    if snapshot is None or snapshot.fields.owner != turn.owner:
        return False
    yield from _append_turn_event(key, snapshot, event, turn, stamp)
    return True
