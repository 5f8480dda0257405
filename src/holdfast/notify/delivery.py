"""Give the notifications of one task to the hooks, and record in its queue what they received.

A worker claims the queue before its first delivery, so that several workers do not repeat each
other's. A delivery is repeated only if the worker is killed before it is recorded.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ..backends import StreamKey, clock
from ..errors import Conflict
from ..log import operations as ops
from ..log.events import new_append_context
from ..log.leases import is_dead
from ..log.log import Log
from . import queue as queues
from .find import Finding, Notification, TaskFindings
from .hooks import Hook
from .queue import Letter, QueueState, StoredQueue

LEASE_SECONDS: Final = 60.0
"""How long a worker may take for a delivery, beside the hook's timeout, before others try it."""
FIRST_RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 300.0

Change = Callable[[QueueState], QueueState]

logger = logging.getLogger("holdfast")


class HookState:
    """A hook, when it was registered, and until when it is paused after a failure."""

    def __init__(self, hook: Hook) -> None:
        self.hook, self.name = hook, hook.name
        self.since = -math.inf
        self._failures = 0
        self._paused_until = -math.inf

    @property
    def is_paused(self) -> bool:
        """Whether it has just failed.

        Its receiver is probably down, and each of many tasks would wait for the timeout.
        """
        return clock.monotonic() < self._paused_until

    def wants(self, found: Finding) -> bool:
        return found.notification.kind in self.hook.kinds and found.at >= self.since

    def send(self, notification: Notification) -> str | None:
        """Deliver a notification. Return the problem, None if there is none."""
        if not self.hook.content:
            notification = msgspec.structs.replace(notification, content=None)
        problem = self.hook.deliver(notification)
        if problem is None:
            self._failures, self._paused_until = 0, -math.inf
            return None
        self._paused_until = clock.monotonic() + choose_pause(self._failures)
        self._failures += 1
        logger.warning(
            "hook %r did not get notification %s (%s)", self.name, notification.id, problem
        )
        return problem


class Delivery:
    """The delivery of what one task has for all hooks. `now` is the database's time."""

    def __init__(
        self,
        log: Log,
        owner: str,
        hooks: Sequence[HookState],
        task: StreamKey,
        queue: StoredQueue,
        now: float,
    ) -> None:
        self._log, self._owner, self._hooks, self._task = log, owner, hooks, task
        self._queue, self._offset = queue, now - clock.monotonic()
        self._state = queue.state
        """The state, with changes that are not stored yet."""

    def is_elsewhere(self) -> bool:
        """Return whether another worker delivers now."""
        owner = self._state.owner
        return (
            owner not in ("", self._owner)
            and not is_dead(owner)
            and (self._queue.due_at or 0.0) > self._clock()
        )

    def is_done(self, version: int) -> bool:
        """Return whether nothing is left to deliver up to a version, and nothing to settle."""
        state = self._state
        busy = state.owner or state.watcher or state.failing or state.again
        return not busy and self.first_version() > version

    def first_version(self) -> int:
        """Return the first version of the task that may have something for a hook."""
        state = self._state
        cursors = [state.cursors.get(hook.name, (1, 0))[0] for hook in self._hooks]
        return min([*cursors, *(letter.version for letter in state.again)])

    def deliver(self, findings: TaskFindings) -> int:
        """Deliver to each hook. Return how many notifications were delivered."""
        count = 0
        for hook in self._hooks:
            count += self._deliver_again(hook, findings) + self._deliver_new(hook, findings)
        return count

    def settle(self, *, still_runs: bool) -> None:
        """Release the queue. It is due at the next attempt, and soon while the task runs.

        Raise `Conflict` if the task was claimed again since the queue was loaded.
        """
        state = self._state
        here = {hook.name for hook in self._hooks}
        times = [
            # A hook that this worker does not have is left to others, or was removed.
            letter.next_at if letter.hook in here else self._clock() + MAX_RETRY_SECONDS
            for letter in (*state.failing.values(), *state.again)
        ]
        watcher = state.watcher if still_runs else ""
        if watcher:
            times.append(self._clock() + queues.WATCH_SECONDS)
        state = msgspec.structs.replace(state, owner="", watcher=watcher)
        self._store(state, min(times, default=None))

    # -- one hook --------------------------------------------------------------------------------

    def _deliver_again(self, hook: HookState, findings: TaskFindings) -> int:
        """Deliver dead letters that an operator wants to be delivered again."""
        count = 0
        by_id = {found.notification.id: found for found in findings.found}
        for letter in [letter for letter in self._state.again if letter.hook == hook.name]:
            found = by_id.get(letter.id)
            if found is not None and letter.next_at > self._clock():
                continue
            problem = None if found is None else self._send(hook, found)
            if problem is None:
                count += found is not None
                self._change(lambda state: _without(state, letter))  # noqa: B023  # called now
            else:
                self._note_problem(hook, letter, problem, again=True)
        return count

    def _deliver_new(self, hook: HookState, findings: TaskFindings) -> int:
        """Deliver in order what the hook has not received, up to the first failure."""
        count = 0
        for found in findings.found:
            if found.position < self._state.cursors.get(hook.name, (1, 0)) or not hook.wants(found):
                continue
            letter = self._state.failing.get(hook.name)
            if letter is not None and letter.next_at > self._clock():
                return count
            problem = self._send(hook, found)
            if problem is None:
                count += 1
            else:
                letter = letter or _new_letter(hook.name, found, self._clock())
                if not self._note_problem(hook, letter, problem):
                    return count
            self._change(_advance(hook.name, (found.version, found.number + 1)))
        # Stored when the queue is settled.
        self._state = _advance(hook.name, (findings.version + 1, 0))(self._state)
        return count

    def _send(self, hook: HookState, found: Finding) -> str | None:
        """Deliver a notification. Return the problem, "" if it was not tried."""
        if hook.is_paused:
            return ""
        until = self._clock() + hook.hook.timeout + LEASE_SECONDS
        if self._state.owner != self._owner or until - (self._queue.due_at or 0.0) > 10.0:
            self._claim(until)
        return hook.send(found.notification)

    def _note_problem(
        self, hook: HookState, letter: Letter, problem: str, *, again: bool = False
    ) -> bool:
        """Plan the next attempt. Return True if it becomes a dead letter instead."""
        now = self._clock()
        tried = msgspec.structs.replace(
            letter,
            attempts=letter.attempts + bool(problem),
            next_at=now + choose_pause(letter.attempts),
            error=problem or letter.error,
        )
        given_up = bool(problem) and now - letter.since >= hook.hook.give_up_after
        if given_up:
            logger.error(
                "gave up on notification %s for hook %r after %d attempts; it is a dead letter",
                letter.id,
                hook.name,
                tried.attempts,
            )

        def change(state: QueueState) -> QueueState:
            if given_up:
                state = _without(state, letter)
                return msgspec.structs.replace(state, dead=[*state.dead, tried])
            if again:
                rest = _without(state, letter)
                return msgspec.structs.replace(rest, again=[*rest.again, tried])
            return msgspec.structs.replace(state, failing={**state.failing, hook.name: tried})

        self._change(change)
        return given_up

    # -- the queue -------------------------------------------------------------------------------

    def _claim(self, until: float) -> None:
        """Keep other workers from delivering the same. Raise `Conflict` if one was faster."""
        self._store(msgspec.structs.replace(self._state, owner=self._owner), until)

    def _change(self, change: Change) -> None:
        """Change the state and store it, even if others have changed it in the meantime."""
        while True:
            state = change(self._state)
            try:
                self._store(state, self._queue.due_at)
                return
            except Conflict:
                queue = self._load()
                if queue.state.owner != self._queue.state.owner:
                    raise
                self._queue, self._state = queue, queue.state

    def _store(self, state: QueueState, due_at: float | None) -> None:
        """Store a state at the version of the queue that is known here."""
        if state == self._queue.state and due_at == self._queue.due_at:
            return
        stamp = new_append_context()
        self._queue = ops.run(self._log, queues.store_queue(self._queue, state, due_at, stamp))
        self._state = state

    def _load(self) -> StoredQueue:
        incarnation = self._state.incarnation
        return ops.run_until_settled(self._log, lambda: queues.load_queue(self._task, incarnation))

    def _clock(self) -> float:
        return self._offset + clock.monotonic()


def choose_pause(failures: int) -> float:
    """Return the seconds until the next attempt: twice as long after each failure, with jitter."""
    longest = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures, 30), MAX_RETRY_SECONDS)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311


def _new_letter(hook: str, found: Finding, now: float) -> Letter:
    return Letter(
        hook, found.notification.id, found.notification.kind, found.version, since=now, next_at=now
    )


def _without(state: QueueState, letter: Letter) -> QueueState:
    """Return a state in which a dead letter is not to be delivered again."""
    rest = [each for each in state.again if (each.hook, each.id) != (letter.hook, letter.id)]
    return msgspec.structs.replace(state, again=rest)


def _advance(hook: str, position: queues.Position) -> Change:
    """Return a change: a hook has received everything before a position."""

    def change(state: QueueState) -> QueueState:
        failing = {name: letter for name, letter in state.failing.items() if name != hook}
        cursors = {**state.cursors, hook: position}
        return msgspec.structs.replace(state, cursors=cursors, failing=failing)

    return change
