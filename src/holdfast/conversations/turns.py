"""Turns: leases that keep two requests on one conversation from interleaving.

Inside a turn every append is fenced: it is stored only while the process still owns the turn.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from ..backends import StreamKey, clock
from ..errors import HoldfastError, LeaseHeld
from ..log import operations as ops
from ..log.events import AppendContext, new_append_context
from ..log.leases import (
    RENEWALS_PER_LEASE,
    SETTLE_PAUSE,
    LeaseBlock,
    WithStatement,
    guard_aexit,
    guard_exit,
    is_dead,
    new_owner,
)
from ..log.operations import Operation
from ..log.validation import check_seconds
from . import fold as _fold
from .fold import ConversationFold
from .read import ConversationSnapshot, load_snapshot
from .write import new_event, store_events

if TYPE_CHECKING:
    from .base import ConversationBase
    from .conversation import AsyncConversation, Conversation

logger = logging.getLogger("holdfast")

FIRST_PAUSE_SECONDS: Final = 0.01
MAX_PAUSE_SECONDS: Final = 0.25


class Turn(msgspec.Struct, frozen=True):
    """The lease owner of a turn, and the lease in seconds."""

    owner: str
    lease: float


class EnteredTurn:
    """A turn that a block has entered, or is about to take. Code started in it may outlive it."""

    def __init__(self, key: StreamKey, log: int, turn: Turn, statement: WithStatement) -> None:
        self.key, self.log, self.turn, self.statement = key, log, turn, statement
        self.process = os.getpid()

    @property
    def is_over(self) -> bool:
        """Whether its block was left, even by an interrupt that kept it from cleaning up."""
        return self.statement.guard() is None


_turns: ContextVar[tuple[EnteredTurn, ...]] = ContextVar("holdfast_turns", default=())
"""The turns of the running code and of the code that started it, innermost first."""


get_entered: Callable[[], tuple[EnteredTurn, ...]] = _turns.get
"""Return the turns of the running code, innermost first; some may be over."""


def enter_turn(entered: EnteredTurn) -> None:
    """Put the running code, and the tasks it starts, in this turn."""
    _turns.set((entered, *(turn for turn in _turns.get() if not turn.is_over)))


def leave_turn(entered: EnteredTurn) -> None:
    """Take the running code out of a turn."""
    _turns.set(tuple(turn for turn in _turns.get() if turn is not entered))


def find_owner(key: StreamKey, log: int) -> str | None:
    """Return the lease owner of the running code's turn on a conversation.

    A forked process is not in a turn: its parent is.
    """
    for entered in _turns.get():
        here = (entered.key, entered.log, entered.process) == (key, log, os.getpid())
        if here and not entered.is_over:
            return entered.turn.owner
    return None


def start_turn(
    key: StreamKey, turn: Turn, stamp: AppendContext, dead_owner: str | None
) -> Operation[LeaseHeld | None]:
    """Take the turn if it is free, expired, or owned by `dead_owner`; else return `LeaseHeld`."""
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
        and abs(after.now - stamp.at) > clock.MAX_SKEW_SECONDS
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


# -- blocks ----------------------------------------------------------------------------------------


class TurnBlockBase(LeaseBlock):
    """A conversation, the lease and wait of its turns, and the turns that were entered with it."""

    def __init__(
        self, chat: ConversationBase, lease: float | timedelta, wait: float | timedelta | None
    ) -> None:
        self._log, self._key = chat._log, chat._key
        self._lease = check_seconds(lease, "lease", 0.001)
        self._wait = None if wait is None else check_seconds(wait, "wait")
        self._entered: list[EnteredTurn | None] = []

    def _announce_turn(self) -> EnteredTurn:
        """Return a new turn, which the heartbeat releases if taking it is interrupted."""
        turn = Turn(new_owner(), self._lease)
        statement = self._new_statement(turn.owner)
        entered = EnteredTurn(self._key, id(self._log), turn, statement)
        self._log.heartbeat.register(
            turn.owner, turn.lease / RENEWALS_PER_LEASE, partial(self._beat, entered), statement
        )
        return entered

    def _get_statement(self) -> WithStatement | None:
        entered = self._entered[-1] if self._entered else None
        return None if entered is None else entered.statement

    def _begin_turn(self, entered: EnteredTurn) -> None:
        """Put the calling code in the turn, and renew the turn until the end of the block."""
        self._log.heartbeat.start(entered.turn.owner)
        enter_turn(entered)
        self._entered.append(entered)

    def _owns_lease(self, entered: EnteredTurn) -> bool:
        """Return whether the lease may still have to be released."""
        return self._log.heartbeat.is_registered(entered.turn.owner)

    def _close_turn(self, entered: EnteredTurn) -> None:
        """Stop renewing the turn, and take the calling code out of it."""
        self._log.heartbeat.remove(entered.turn.owner)
        entered.statement.close()
        leave_turn(entered)
        self._own_guard = None

    def _make_pauses(self) -> Callable[[LeaseHeld], float]:
        """Return a function that returns the pause before the next attempt to take the turn.

        The function raises the given `LeaseHeld` when the wait is over.
        """
        deadline = None if self._wait is None else clock.monotonic() + self._wait
        pause = FIRST_PAUSE_SECONDS / 2

        def next_pause(held: LeaseHeld) -> float:
            nonlocal pause
            if pause < FIRST_PAUSE_SECONDS:
                logger.info("waiting for the turn on %s", self._key)
            if deadline is not None and clock.monotonic() >= deadline:
                raise held
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
            return pause if deadline is None else min(pause, max(deadline - clock.monotonic(), 0))

        return next_pause

    def _beat(self, entered: EnteredTurn) -> None:
        """Renew the turn, or end it if its block was left without ending it."""
        turn = entered.turn
        event = _fold.TURN_ENDED if entered.is_over else _fold.TURN_RENEWED
        try:
            if self._log.is_settling(self._key) and entered.is_over:
                return  # its start may be on its way
            mine = ops.run_until_settled(
                self._log, lambda: change_turn(self._key, turn, event, new_append_context())
            )
            if not mine or event == _fold.TURN_ENDED:
                self._log.heartbeat.remove(turn.owner)
        except HoldfastError as error:
            logger.warning("cannot renew the turn on %s (%s)", self._key, type(error).__name__)

    def _log_release_failure(self, error: Exception) -> None:
        """Log the error, don't raise it: the turn's messages are stored, and its lease expires."""
        logger.warning("cannot release the turn on %s (%s)", self._key, type(error).__name__)


class TurnBlock(TurnBlockBase):
    """The block of a `with` statement that takes a turn."""

    def __init__(
        self, chat: Conversation, lease: float | timedelta, wait: float | timedelta | None
    ) -> None:
        super().__init__(chat, lease, wait)
        self._chat = chat

    def __enter__(self) -> Conversation:
        if self._chat._needs_no_turn():
            self._entered.append(None)
            return self._chat
        entered = self._announce_turn()
        try:
            self._take_turn(entered.turn)
            self._begin_turn(entered)
            return self._chat._with_owner(entered.turn.owner)
        except BaseException:
            self._cut_short(entered)
            raise

    @guard_exit
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        entered = self._entered.pop()
        if entered is None:
            return
        try:
            self._release_turn(entered)
        except BaseException:
            self._cut_short(entered)
            raise

    def _take_turn(self, turn: Turn) -> None:
        chat, next_pause, dead_owner, released = self._chat, self._make_pauses(), None, ""
        while (held := chat._settle(chat._prepare_turn_start(turn, dead_owner))) is not None:
            release = self._log.heartbeat.find_abandoned(held.owner)
            if release is not None and held.owner != released:
                released = held.owner
                release()
                continue
            dead_owner = held.owner if is_dead(held.owner) else None
            if dead_owner is None:
                clock.sleep(next_pause(held))

    def _release_turn(self, entered: EnteredTurn) -> None:
        try:
            self._chat._settle(self._chat._prepare_turn_end(entered.turn))
        except HoldfastError as error:
            self._log_release_failure(error)
        self._close_turn(entered)

    def _cut_short(self, entered: EnteredTurn) -> None:
        """Undo what an interrupted `__enter__` has done, or finish an interrupted `__exit__`."""
        if self._owns_lease(entered):
            while self._log.is_settling(self._key):  # its start may be on its way
                clock.sleep(SETTLE_PAUSE)
            self._release_turn(entered)


class AsyncTurnBlock(TurnBlockBase):
    """The block of an `async with` statement that takes a turn."""

    def __init__(
        self, chat: AsyncConversation, lease: float | timedelta, wait: float | timedelta | None
    ) -> None:
        super().__init__(chat, lease, wait)
        self._chat = chat

    async def __aenter__(self) -> AsyncConversation:
        if self._chat._needs_no_turn():
            self._entered.append(None)
            return self._chat
        entered = self._announce_turn()
        try:
            await self._take_turn(entered.turn)
            self._begin_turn(entered)
            return self._chat._with_owner(entered.turn.owner)
        except BaseException:
            await self._finish_release(entered)
            raise

    @guard_aexit
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        entered = self._entered.pop()
        if entered is not None:
            await self._finish_release(entered)

    async def _take_turn(self, turn: Turn) -> None:
        chat, next_pause, dead_owner, released = self._chat, self._make_pauses(), None, ""
        while (held := await chat._settle(chat._prepare_turn_start(turn, dead_owner))) is not None:
            release = self._log.heartbeat.find_abandoned(held.owner)
            if release is not None and held.owner != released:
                released = held.owner
                await self._log.run_in_thread(release)
                continue
            dead_owner = held.owner if is_dead(held.owner) else None
            if dead_owner is None:
                await clock.sleep_async(next_pause(held))

    async def _finish_release(self, entered: EnteredTurn) -> None:
        """Release the turn. Wait for the end of the release, even if cancelled repeatedly."""
        import asyncio

        release, cancelled = asyncio.ensure_future(self._release_turn(entered)), False
        while not release.done():
            try:
                await asyncio.shield(release)
            except asyncio.CancelledError:
                cancelled = True
        leave_turn(entered)  # done here, because the release ran in a context of its own
        if cancelled:
            raise asyncio.CancelledError

    async def _release_turn(self, entered: EnteredTurn) -> None:
        while self._log.is_settling(self._key):  # its start may be on its way
            await clock.sleep_async(SETTLE_PAUSE)
        try:
            await self._chat._settle(self._chat._prepare_turn_end(entered.turn))
        except HoldfastError as error:
            self._log_release_failure(error)
        self._close_turn(entered)
