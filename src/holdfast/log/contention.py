"""Contended streams: several processes append to one stream at the same time, and take turns.

An append at the end of a stream that another process has just moved must be sent again. If every
process tries as fast as it can, most requests are in vain; and on an object store, where losing
costs more requests than winning, the same process keeps winning. So an append that has lost waits,
twice as long each time. And a process that has won a few times in a row leaves the others as much
time as they took before. Processes thus take turns, and an append within a turn costs no more than
without others.
"""

from __future__ import annotations

import time
from typing import Final

from ..backends import StreamKey

APPENDS_PER_TURN: Final = 8
MAX_BACKOFF_SECONDS: Final = 0.5
"""The longest wait of an append that has lost."""
PATIENT_LOSSES: Final = 4
"""An append that has lost more often waits less each time, so that the oldest ones come first."""
MAX_YIELD_SECONDS: Final = 1.0
"""The longest pause that lets others go first."""
MAX_CONTENDED_STREAMS: Final = 1000


class _Contention:
    """What this process knows of a contended stream.

    `last` is the newest version that it stored, or found at the first conflict. `mine` counts its
    appends in this turn, and `others` the records of others before this turn. `starts_at` is when
    its next turn starts.
    """

    __slots__ = ("last", "losses", "mine", "others", "starts_at")

    def __init__(self, last: int) -> None:
        self.last, self.losses, self.mine, self.others, self.starts_at = last, 0, 0, 0, 0.0


class ContendedStreams:
    """The contended streams of a process, and whose turn it is."""

    def __init__(self) -> None:
        self.streams: dict[StreamKey, _Contention] = {}

    def note_conflict(self, stream: StreamKey, version: int, seconds: float) -> None:
        """Note that others moved the stream to this version before an append, and what that took.

        `seconds` is how long it took to send the append and to find that out.
        """
        found = self.streams.get(stream)
        if found is None:
            if len(self.streams) >= MAX_CONTENDED_STREAMS:
                del self.streams[next(iter(self.streams))]
            found = self.streams[stream] = _Contention(version)
        else:  # after the first one, it is sent again at once
            wait = min(seconds * 2**found.losses, MAX_BACKOFF_SECONDS)
            if found.losses > PATIENT_LOSSES:
                wait = max(wait / 2 ** (found.losses - PATIENT_LOSSES), seconds)
            found.starts_at = time.monotonic() + jitter(0, wait)
        found.losses = min(found.losses + 1, 16)

    def note_success(self, stream: StreamKey, first: int, last: int, seconds: float) -> None:
        """Note that an append was stored, and how long that took."""
        found = self.streams.get(stream)
        if found is None:
            return
        others = first - found.last - 1
        if others > 0:
            found.others, found.mine = others, 0
        elif not found.mine and not found.losses:
            del self.streams[stream]  # others had time, and did not use it
            return
        found.last, found.losses, found.mine = last, 0, found.mine + 1
        if found.mine >= APPENDS_PER_TURN:
            wait = jitter(0.5, 1.5) * found.others * seconds
            found.starts_at, found.mine = time.monotonic() + min(wait, MAX_YIELD_SECONDS), 0

    def seconds_to_turn(self, stream: StreamKey) -> float:
        """Return how long an append has to wait for its turn; 0.0 if it has not to wait."""
        found = self.streams.get(stream)
        if found is None or not found.starts_at:
            return 0.0
        return max(found.starts_at - time.monotonic(), 0.0)

    def start_turn(self, stream: StreamKey) -> bool:
        """Return whether the turn of this process starts now, so that it has waited before."""
        found = self.streams.get(stream)
        if found is None or not found.starts_at:
            return False
        found.starts_at = 0.0
        return True


def jitter(low: float, high: float) -> float:
    """Return a random time between two, so that processes don't keep in step."""
    import random  # few need it

    return random.uniform(low, high)  # noqa: S311  jitter, not a secret
