"""A backend that goes wrong on purpose, to test what stands on it.

Wrap any backend; each call then may fail in one of the ways in which engines, disks and networks
really fail. What goes wrong is decided by `seed`, so a run that found something can be repeated:

    backend = FaultyBackend(MemoryBackend(), seed=7, lost_answer=0.1, late=0.1)
    ...                                    # run your program on it
    assert backend.injected["late"]        # a fault that never happened proved nothing

The rates are probabilities per call, and all those of appends together are at most 1. To get one
fault exactly where you want it, leave the rates at 0 and say `backend.next("lost_answer")` before the call.

| fault               | what happens                                                          | what the caller gets |
| ------------------- | --------------------------------------------------------------------- | -------------------- |
| unavailable         | nothing is stored                                                     | Unavailable          |
| full                | nothing is stored                                                     | StorageFull          |
| lost_answer         | the batch is stored                                                   | OutcomeUnknown       |
| lost_request        | nothing is stored                                                     | OutcomeUnknown       |
| late                | the batch arrives only before one of the next calls                   | OutcomeUnknown       |
| late_part           | some members arrive late, some at once, some never                    | OutcomeUnknown       |
| foreign             | another writer appends to one of the streams just before the call     | a true Conflict      |
| driver_error        | nothing is stored                                                     | RuntimeError         |
| driver_error_stored | the batch is stored                                                   | RuntimeError         |
| read_unavailable    | `read`, `head`, `heads` or `due` fails                                | Unavailable          |
| delay               | `wait(seconds)` is called before the call; by default it does nothing |                      |

`delete` fails with the rates of unavailable, lost_answer and lost_request, counted as `delete_…`.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import msgspec

from ..errors import HoldfastError, OutcomeUnknown, StorageFull, Unavailable
from .interface import (
    Append,
    AppendResult,
    Backend,
    Cursor,
    Description,
    Head,
    HeadSummary,
    Record,
    StreamKey,
    VersionMismatch,
)

Fault = Literal[
    "unavailable",
    "full",
    "lost_answer",
    "lost_request",
    "late",
    "late_part",
    "foreign",
    "driver_error",
    "driver_error_stored",
    "read_unavailable",
]
_APPEND_FAULTS = tuple(fault for fault in get_args(Fault) if fault != "read_unavailable")
_DELETE_FAULTS = ("unavailable", "lost_answer", "lost_request")
_READ_FAULTS = ("read_unavailable",)


class FaultyBackend:
    """Any backend, with faults injected into its calls; `injected` counts them by name.

    `foreign_append` makes the append of the other writer from the one it gets ahead of; the default writes
    random bytes, which a store above will rightly call corrupt. With several threads the order of their calls
    decides who gets which fault, so only a single-threaded run repeats exactly.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        seed: int,
        unavailable: float = 0.0,
        full: float = 0.0,
        lost_answer: float = 0.0,
        lost_request: float = 0.0,
        late: float = 0.0,
        late_part: float = 0.0,
        foreign: float = 0.0,
        driver_error: float = 0.0,
        driver_error_stored: float = 0.0,
        read_unavailable: float = 0.0,
        delay: float = 0.0,
        wait: Callable[[float], object] | None = None,
        foreign_append: Callable[[Append], Append] | None = None,
    ) -> None:
        self.inner = inner
        self.injected: Counter[str] = Counter()
        self._rates: dict[str, float] = {
            "unavailable": unavailable,
            "full": full,
            "lost_answer": lost_answer,
            "lost_request": lost_request,
            "late": late,
            "late_part": late_part,
            "foreign": foreign,
            "driver_error": driver_error,
            "driver_error_stored": driver_error_stored,
            "read_unavailable": read_unavailable,
        }
        self._delay, self._wait = delay, wait
        self._check_rates()
        self._foreign_append = foreign_append or self._random_append
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._wanted: deque[str] = deque()
        self._in_flight: list[Sequence[Append]] = []
        self._lock, self._pid = threading.Lock(), os.getpid()

    def _check_rates(self) -> None:
        rates = [*self._rates.values(), self._delay]
        if (
            min(rates) < 0
            or max(rates) > 1
            or sum(self._rates[fault] for fault in _APPEND_FAULTS) > 1
        ):
            raise ValueError(
                "rates are probabilities: each from 0 to 1, and those of appends at most 1 together"
            )

    def next(self, *faults: Fault) -> None:
        """Let the next calls that can fail so fail so, in this order, whatever the rates say."""
        unknown = set(faults) - set(get_args(Fault))
        if unknown:
            raise ValueError(
                f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(get_args(Fault))}"
            )
        self._wanted.extend(faults)

    @property
    def in_flight(self) -> int:
        """How many late batches have not arrived yet."""
        return len(self._in_flight)

    def deliver(self) -> None:
        """Let everything arrive that is still in flight."""
        self._arrive(everything=True)

    # -- the seam --------------------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self._before()
        # Members are atomic: a batch of one has no parts.
        fault = self._draw(
            [one for one in _APPEND_FAULTS if one != "late_part" or len(batch) > 1] if batch else ()
        )
        match fault:
            case "unavailable":
                raise Unavailable("injected: the engine cannot be reached; nothing was written")
            case "full":
                raise StorageFull("injected: no room; nothing was written")
            case "driver_error":
                raise RuntimeError("injected: the driver failed before the append")
            case "foreign":
                self.inner.append([self._foreign_append(self._random.choice(batch))])
            case "late":
                self._in_flight.append(list(batch))
            case "late_part":
                self._scatter(batch)
        if fault in ("late", "late_part", "lost_request"):
            raise _unknown()
        answers = self.inner.append(batch)
        if fault == "lost_answer":
            raise _unknown()
        if fault == "driver_error_stored":
            raise RuntimeError("injected: the driver failed after the append")
        return answers

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._before()
        fault = self._draw(_DELETE_FAULTS, counted_as="delete_")
        if fault == "unavailable":
            raise Unavailable("injected: the engine cannot be reached; nothing was deleted")
        if fault == "lost_request":
            raise _unknown()
        done = self.inner.delete(stream, expected=expected)
        if fault == "lost_answer":
            raise _unknown()
        return done

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        self._before_reading()
        return self.inner.read(stream, after=after, limit=limit, reverse=reverse)

    def head(self, stream: StreamKey) -> Head | None:
        self._before_reading()
        return self.inner.head(stream)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[HeadSummary]:
        self._before_reading()
        return self.inner.heads(tenant=tenant, kind=kind, status=status, after=after, limit=limit)

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[HeadSummary]:
        self._before_reading()
        return self.inner.due(tenant=tenant, kind=kind, before=before, after=after, limit=limit)

    def describe(self) -> Description:
        return self.inner.describe()

    def close(self) -> None:
        """Close the inner backend. What was in flight arrives first: a closed client does not call back its packets."""
        self._arrive(everything=True)
        self.inner.close()

    # -- what goes wrong -------------------------------------------------------------------------

    def _before(self) -> None:
        self._arrive()
        with self._guard():
            late = self._random.random() < self._delay
            seconds = self._random.random()
            self.injected["delay"] += late
        if late and self._wait:
            self._wait(seconds)

    def _before_reading(self) -> None:
        self._before()
        if self._draw(_READ_FAULTS):
            raise Unavailable("injected: the engine cannot be reached")

    def _draw(self, possible: Sequence[str], *, counted_as: str = "") -> str | None:
        """The fault of this call: the one asked for with `next`, or one by chance, or none."""
        with self._guard():
            chance = self._random.random()
            drawn = self._wanted.popleft() if self._wanted and self._wanted[0] in possible else None
            for fault in possible:
                if drawn is None and chance < self._rates[fault]:
                    drawn = fault
                chance -= self._rates[fault]
            if drawn:
                self.injected[counted_as + drawn] += 1
            return drawn

    def _scatter(self, batch: Sequence[Append]) -> None:
        """Each member arrives now, later or never; at least one later, and at least one not."""
        with self._guard():
            fates = ["later", self._random.choice(["now", "never"])]
            fates += self._random.choices(["now", "later", "never"], k=len(batch) - 2)
            self._random.shuffle(fates)
        now, later = (
            [one for one, fate in zip(batch, fates, strict=True) if fate == at]
            for at in ("now", "later")
        )
        if now:
            self.inner.append(now)
        self._in_flight.append(later)

    def _arrive(self, *, everything: bool = False) -> None:
        """Apply late batches, each with an even chance: sooner or later all of them come, in any order."""
        with self._guard():
            coming = [
                batch for batch in self._in_flight if everything or self._random.random() < 0.5
            ]
            self._in_flight = [
                batch for batch in self._in_flight if not any(batch is one for one in coming)
            ]
            self._random.shuffle(coming)
        for batch in coming:
            try:
                answers = self.inner.append(batch)
            except HoldfastError:
                continue  # nobody waits for the answer any more
            stored = sum(
                isinstance(answer, AppendResult) and not answer.duplicate for answer in answers
            )
            with self._guard():
                self.injected["late_stored"] += stored

    def _random_append(self, ahead_of: Append) -> Append:
        with self._guard():
            made = self._random.randbytes
            return msgspec.structs.replace(
                ahead_of,
                incarnation=ahead_of.incarnation if ahead_of.expected else made(16),
                id=made(16),
                records=[(made(32), b"foreign " + made(8))],
                indexed=False,
                fields=None,
            )

    def _guard(self) -> threading.Lock:
        # In a forked child the lock may be held by a thread that is not there any more.
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock


def _unknown() -> OutcomeUnknown:
    return OutcomeUnknown("injected: the engine did not say whether it stored the batch")
