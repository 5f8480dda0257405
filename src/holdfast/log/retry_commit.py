"""Send appends, and send those again whose answer was lost, such as after a lost COMMIT.

A lost answer does not say whether the append was stored. The same bytes are sent again for the same
version until the outcome is certain, so nothing is stored twice.
"""

from __future__ import annotations

import copy
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from ..backends import Append, AppendResult, Backend, VersionMismatch
from ..backends.interface import StreamBlocked
from ..errors import HoldfastError, OutcomeUnknown, ReadOnly, StoreClosed, Unavailable

IMPOSSIBLE_HASH: Final = bytes(32)
"""A hash that no record has: an append that expects it is never stored."""

Answer = AppendResult | VersionMismatch | Exception

UNKNOWN_OUTCOME: Final = (
    "the outcome of an append to {} was still unknown after {:.0f} s (last error: {}); "
    "repeat the call with id=error.id"
)

logger = logging.getLogger("holdfast")


class PredecessorMissing(VersionMismatch, frozen=True):
    """A stream has not reached the version that an append in doubt expects.

    The append before it is in doubt too. Both may still arrive.
    """


class CommitSender:
    """Sends batches of appends to a backend and resolves those without an answer."""

    def __init__(
        self, backend: Backend, *, settle_seconds: float, pause: Callable[[float], None]
    ) -> None:
        self.backend = backend
        self._settle_seconds, self._pause = settle_seconds, pause

    def _send(self, appends: Sequence[Append]) -> Sequence[Answer]:
        """Send a batch in one commit.

        If it was rolled back, send the appends one by one. If its outcome is unknown, resolve each.
        """
        try:
            return self.backend.append(appends)
        except Exception as error:
            doubt = is_in_doubt(error)
            if not doubt and (
                len(appends) == 1 or isinstance(error, (Unavailable, ReadOnly, StoreClosed))
            ):
                return [copy.copy(error) for _ in appends]  # each is raised in its own thread
            logger.warning(
                "a commit of %d appends failed (%s); retrying them one by one",
                len(appends),
                describe_error(error),
            )
            # One deadline for all, because they run one after the other.
            deadline = time.monotonic() + self._settle_seconds
            return [
                self._send_alone(append, in_doubt=doubt, deadline=deadline) for append in appends
            ]

    def _send_alone(
        self, append: Append, *, in_doubt: bool, deadline: float | None = None
    ) -> Answer:
        """Send one append until its outcome is certain or the deadline has passed.

        A record that is absent may still arrive, so the same bytes are sent again for the same
        version. The append certainly failed only if that version holds another append, or if the
        backend refuses it.
        """
        deadline = time.monotonic() + self._settle_seconds if deadline is None else deadline
        pause = 0.002
        while True:
            try:
                if in_doubt and (
                    stored := self.backend.read(append.stream, after=append.expected, limit=1)
                ):
                    if (stored[0].append_id, stored[0].hash) == (append.id, append.records[0][0]):
                        return AppendResult(
                            append.expected + 1,
                            append.expected + len(append.records),
                            now=time.time(),
                        )
                    return VersionMismatch(self.backend.head(append.stream))
                answer = self.backend.append([append])[0]
                if (
                    in_doubt
                    and isinstance(answer, VersionMismatch)
                    and may_still_arrive(append, answer)
                ):
                    return PredecessorMissing(answer.head)
                return answer
            except Exception as error:
                if not in_doubt and not is_in_doubt(error):
                    return error
                in_doubt = True
                if time.monotonic() > deadline:
                    return OutcomeUnknown(
                        UNKNOWN_OUTCOME.format(
                            append.stream, self._settle_seconds, describe_error(error)
                        )
                    )
            self._pause(random.uniform(pause / 2, pause))  # noqa: S311  jitter, not a secret
            pause = min(pause * 2, 1.0)


def may_still_arrive(append: Append, answer: VersionMismatch) -> bool:
    """Return whether an append in doubt may still be stored by a request in flight.

    It may if the stream has not reached the expected version, or is locked, perhaps by this append.
    """
    if isinstance(answer, StreamBlocked):
        return True
    return append.expected_hash != IMPOSSIBLE_HASH and append.expected > (
        answer.head.version if answer.head else 0
    )


def is_in_doubt(error: Exception) -> bool:
    """Return whether an append that raised this may be stored. Any foreign error leaves it open."""
    return isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError)


def describe_error(error: Exception) -> str:
    """Return an error as text. A driver's message may contain content, so show only its type."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, HoldfastError) else name
