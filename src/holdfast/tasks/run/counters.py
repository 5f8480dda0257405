"""Count the calls of a run, so that repeated calls get the same numbers in every run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..state.fold import TaskState


class CallCounters:
    """How often this run has done what, in each scope."""

    def __init__(self, state: TaskState, lock: threading.RLock) -> None:
        self._state, self._lock = state, lock
        self._next: dict[str, dict[object, int]] = {}
        self._released: dict[str, dict[object, list[int]]] = {}
        self._taken_signals: set[tuple[str, int]] = set()  # signals that a wait is receiving now

    def take(self, scope: str, what: object) -> int:
        """Return how often this run has done `what` in this scope so far, and count this time."""
        with self._lock:
            if free := self._released.get(scope, {}).get(what):
                return free.pop()
            numbers = self._next.setdefault(scope, {})
            number = numbers.get(what, 0)
            numbers[what] = number + 1
        return number

    def release(self, scope: str, what: object, number: int) -> None:
        """Release a number after the call failed. The next `take` returns it again."""
        with self._lock:
            self._released.setdefault(scope, {}).setdefault(what, []).append(number)

    def peek(self, scope: str, what: object) -> int:
        """Return the number that `take` would return next, without counting."""
        return self._next.get(scope, {}).get(what, 0)

    @contextmanager
    def take_signal(self, name: str) -> Iterator[int | None]:
        """Reserve the next signal with this name for a `with` block. Yield its number, or None."""
        with self._lock:
            numbers = self._state.waits.signals.get(name, ())
            free = [number for number in numbers if (name, number) not in self._taken_signals]
            taken = (name, min(free)) if free else None
            if taken is not None:
                self._taken_signals.add(taken)
        try:
            yield None if taken is None else taken[1]
        finally:
            if taken is not None:
                with self._lock:
                    self._taken_signals.discard(taken)

    def has_scope(self, path: str) -> bool:
        """Return whether code inside a step has counted anything."""
        return path in self._next

    def reset_scope(self, path: str) -> None:
        """Forget the numbers inside a step. Requires the lock."""
        for scope in [
            scope for scope in self._next if scope == path or scope.startswith(path + "/")
        ]:
            del self._next[scope]
            self._released.pop(scope, None)
