"""The deadline of the storage call in progress: it bounds connecting, waiting and retries.

The drivers start one for each call (`holdfast.open(timeout=)`). Before it connects, waits or
retries, every layer below checks how much time is left. It is a context variable, so each thread
and each asyncio task has its own; code that passes work to another thread carries it along.

The variable refers to the deadline weakly, and the running function holds it. If an interrupt comes
between setting the variable and resetting it, the deadline still ends with that function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic as monotonic
from typing import Final, TypeVar
from weakref import ReferenceType, ref

import msgspec

from ..errors import Unavailable

DEFAULT_TIMEOUT: Final = 30.0
"""How long a storage call may take, in seconds, unless the store was opened with another value."""

T = TypeVar("T")


class Deadline(msgspec.Struct, weakref=True, eq=False):
    """When a call must end: `at`, a value of `time.monotonic`."""

    at: float


current: Final[ContextVar[ReferenceType[Deadline] | None]] = ContextVar(
    "holdfast_deadline", default=None
)
"""The deadline of the call in progress; None if there is none."""


def get_current() -> Deadline | None:
    """Return the deadline of the call in progress; None if there is none."""
    found = current.get()
    return None if found is None else found()


def start(seconds: float) -> Deadline:
    """Return the deadline of a call that starts now. A nested call has that of the outer one."""
    return get_current() or Deadline(monotonic() + seconds)


def extend(seconds: float) -> None:
    """Move the deadline of a long call that has made progress, such as reading another page."""
    deadline = get_current()
    if deadline is not None:
        deadline.at = monotonic() + seconds


def remaining(limit: float = DEFAULT_TIMEOUT) -> float:
    """Return how many seconds are left, at most `limit`. It is negative after the deadline."""
    deadline = get_current()
    return limit if deadline is None else min(limit, deadline.at - monotonic())


def require(limit: float, where: str) -> float:
    """Return `remaining(limit)`; raise `Unavailable` if no time is left."""
    left = remaining(limit)
    if left <= 0:
        raise Unavailable(f"{where} did not answer in time; this call sent nothing; retry later")
    return left


def split(limit: float, least: float = 0.1) -> float:
    """Return how long to wait for one answer: half of the time left, so that a retry has time too.

    If less than twice `least` is left, it is more than half.
    """
    left = remaining(limit)
    return max(left / 2, min(left, least), 0.01)


@contextmanager
def until(deadline: Deadline | None) -> Iterator[None]:
    """Set the deadline of the code inside the block."""
    token = current.set(None if deadline is None else ref(deadline))
    try:
        yield
    finally:
        current.reset(token)


def carry(work: Callable[..., T]) -> Callable[..., T]:
    """Return a function that runs `work` in another thread under this thread's deadline."""
    deadline = get_current()

    def run(*args: object) -> T:
        with until(deadline):
            return work(*args)

    return work if deadline is None else run
