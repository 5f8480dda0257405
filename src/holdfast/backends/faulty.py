"""A wrapper that injects faults into the calls of a backend, for tests.

Each call may fail in one of the ways in which servers, disks and networks fail. `seed` decides
which, so a run that found a bug can be repeated:

    backend = FaultyBackend(MemoryBackend(), seed=7, lost_answer=0.1, late=0.1)
    ...                                    # run your code on it
    assert backend.injected["late"]        # a fault that never happened proves nothing

The rates are probabilities per call; those of appends must not add up to more than 1. To get one
fault at one call, leave the rates at 0 and call `backend.next("lost_answer")` before it.

| fault               | what happens                                           | the caller gets   |
| ------------------- | ------------------------------------------------------ | ----------------- |
| unavailable         | nothing is stored                                      | `Unavailable`     |
| full                | nothing is stored                                      | `StorageFull`     |
| lost_answer         | the batch is stored                                    | `OutcomeUnknown`  |
| lost_request        | nothing is stored                                      | `OutcomeUnknown`  |
| late                | the batch arrives just before one of the next calls    | `OutcomeUnknown`  |
| late_part           | some members arrive late, some at once, some never     | `OutcomeUnknown`  |
| foreign             | another writer appends to one of the streams first     | `VersionMismatch` |
| driver_error        | nothing is stored                                      | `RuntimeError`    |
| driver_error_stored | the batch is stored                                    | `RuntimeError`    |
| read_unavailable    | a call that reads fails                                | `Unavailable`     |
| delay               | `wait(seconds)` is called first, if you passed `wait=` | the usual answer  |

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
    """Wraps any backend and injects faults into its calls; `injected` counts them by name.

    `foreign_append` builds the append of the other writer from the one that it overtakes. The
    default writes random bytes, which a store rightly reports as corrupt. With several threads,
    the order of their calls decides which call gets which fault, so only a single-threaded run
    repeats exactly.
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
        self._requested: deque[str] = deque()
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
                "rates must be from 0 to 1, and those of appends at most 1 in total, "
                f"got {self._rates} and delay={self._delay}"
            )

    def next(self, *faults: Fault) -> None:
        """Inject these faults, in this order, into the next calls to which each applies."""
        unknown = set(faults) - set(get_args(Fault))
        if unknown:
            raise ValueError(
                f"faults must be among {', '.join(get_args(Fault))}, "
                f"got {', '.join(sorted(unknown))}"
            )
        self._requested.extend(faults)

    @property
    def in_flight(self) -> int:
        """The number of late batches that have not arrived yet."""
        return len(self._in_flight)

    def deliver(self) -> None:
        """Deliver every batch that is still in flight."""
        self._deliver_late(everything=True)

    # -- the backend interface ---------------------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self._before_call()
        # A member is atomic, so a batch of one has no parts.
        fault = self._draw(
            [one for one in _APPEND_FAULTS if one != "late_part" or len(batch) > 1] if batch else ()
        )
        match fault:
            case "unavailable":
                raise Unavailable("injected: the backend is unreachable; nothing was written")
            case "full":
                raise StorageFull("injected: the storage is full; nothing was written")
            case "driver_error":
                raise RuntimeError("injected: the driver failed before the append")
            case "foreign":
                self.inner.append([self._foreign_append(self._random.choice(batch))])
            case "late":
                self._in_flight.append(list(batch))
            case "late_part":
                self._scatter(batch)
        if fault in ("late", "late_part", "lost_request"):
            raise _outcome_unknown()
        answers = self.inner.append(batch)
        if fault == "lost_answer":
            raise _outcome_unknown()
        if fault == "driver_error_stored":
            raise RuntimeError("injected: the driver failed after the append")
        return answers

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._before_call()
        fault = self._draw(_DELETE_FAULTS, counted_as="delete_")
        if fault == "unavailable":
            raise Unavailable("injected: the backend is unreachable; nothing was deleted")
        if fault == "lost_request":
            raise _outcome_unknown()
        done = self.inner.delete(stream, expected=expected)
        if fault == "lost_answer":
            raise _outcome_unknown()
        return done

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        self._before_read()
        return self.inner.find_append(stream, id)

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        self._before_read()
        return self.inner.read(stream, after=after, limit=limit, reverse=reverse)

    def head(self, stream: StreamKey) -> Head | None:
        self._before_read()
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
        self._before_read()
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
        self._before_read()
        return self.inner.due(tenant=tenant, kind=kind, before=before, after=after, limit=limit)

    def describe(self) -> Description:
        return self.inner.describe()

    def close(self) -> None:
        """Deliver late batches, since a closed client cannot recall them, and close the backend."""
        self._deliver_late(everything=True)
        self.inner.close()

    # -- faults ------------------------------------------------------------------------------------

    def _before_call(self) -> None:
        self._deliver_late()
        with self._guard():
            late = self._random.random() < self._delay
            seconds = self._random.random()
            self.injected["delay"] += late
        if late and self._wait:
            self._wait(seconds)

    def _before_read(self) -> None:
        self._before_call()
        if self._draw(_READ_FAULTS):
            raise Unavailable("injected: the backend is unreachable")

    def _draw(self, possible: Sequence[str], *, counted_as: str = "") -> str | None:
        """Choose the fault of this call: the one requested with `next`, a random one, or None."""
        with self._guard():
            chance = self._random.random()
            drawn = (
                self._requested.popleft()
                if self._requested and self._requested[0] in possible
                else None
            )
            for fault in possible:
                if drawn is None and chance < self._rates[fault]:
                    drawn = fault
                chance -= self._rates[fault]
            if drawn:
                self.injected[counted_as + drawn] += 1
            return drawn

    def _scatter(self, batch: Sequence[Append]) -> None:
        """Deliver each member now, later or never: at least one later, but not all of them."""
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

    def _deliver_late(self, *, everything: bool = False) -> None:
        """Deliver late batches in random order, each with a probability of one half."""
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
                continue  # the caller no longer waits for the answer
            stored = sum(
                isinstance(answer, AppendResult) and not answer.duplicate for answer in answers
            )
            with self._guard():
                self.injected["late_stored"] += stored

    def _random_append(self, overtaken: Append) -> Append:
        with self._guard():
            random_bytes = self._random.randbytes
            return msgspec.structs.replace(
                overtaken,
                incarnation=overtaken.incarnation if overtaken.expected else random_bytes(16),
                id=b"\0" + random_bytes(15),  # not indexed
                records=[(random_bytes(32), b"foreign " + random_bytes(8))],
                fields=None,
            )

    def _guard(self) -> threading.Lock:
        # A thread that does not exist in a forked child may have locked it in the parent.
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock


def _outcome_unknown() -> OutcomeUnknown:
    return OutcomeUnknown("injected: no answer; the batch may have been stored")
