"""Which recorded step a call is.

A step is a path: its scope, its name, and a key or a number. With a key, the key is the identity. A plan's item is the next of its
name that this run has not asked for. Any other call is the recorded step of its scope and name with the same arguments,
whatever the order (so threads are stable); failing that, the next of that name that this run has not asked for.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from ._fold import State, Step
from ._paths import keyed, nth, numbered


class _Siblings:
    """The steps without a key of one name in one scope. `path` is that of the first."""

    __slots__ = ("by_args", "count", "first", "order", "path")

    def __init__(self, scope: str, name: str) -> None:
        self.path = numbered(scope, name)
        self.count = 0
        self.order: list[Step] = []
        self.first = 0
        self.by_args: dict[str, list[Step]] = {}


class _Calls:
    """Which numbers the calls of one name with the same arguments have, in one scope."""

    __slots__ = ("first_free", "taken")

    def __init__(self) -> None:
        self.first_free = 0
        self.taken: set[int] = set()


class Matching:
    """What this run has asked for, and what is left. Not thread-safe: the session's lock guards it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.asked: set[str] = set()
        self._siblings: dict[tuple[str, str], _Siblings] = {}
        self._planned: dict[str, int] = {}
        self._calls: dict[tuple[str, str, str], _Calls] = {}
        self._remember(state.steps.values())

    def _remember(self, steps: Iterable[Step]) -> None:
        found: dict[tuple[str, str], _Siblings] = {}
        for step in steps:
            scope, name, key, number = step.place
            if key is None:
                same = found.get((scope, name))
                if same is None:
                    same = found[scope, name] = _Siblings(scope, name)
                same.count = max(same.count, number)
                same.order.append(step)
                self._calls.setdefault((scope, name, step.origin), _Calls()).taken.add(step.nth)
        for same in found.values():
            same.order.sort(key=lambda step: step.place.number)
            for step in reversed(same.order):
                same.by_args.setdefault(step.args, []).append(step)
        self._siblings.update(found)

    def begin_again(self, scope: str, running: Container[str]) -> None:
        """A step is tried again: what was asked for inside it is there to be asked for again, unless it still runs."""
        inside = scope + "/"
        self.asked = {path for path in self.asked if not path.startswith(inside) or path in running}
        for place in [place for place in self._siblings if place[0] == scope or place[0].startswith(inside)]:
            del self._siblings[place]
        for call in [call for call in self._calls if call[0] == scope or call[0].startswith(inside)]:
            del self._calls[call]
        self._remember([step for path, step in self._state.steps.items() if path.startswith(inside)])

    def by_key(self, scope: str, name: str, key: str) -> str:
        path = keyed(scope, name, key)
        self.asked.add(path)
        return path

    def item(self, name: str) -> str | None:
        """The path of the plan's next item of that name, None if there is none left."""
        if not self._state.plan_paths:
            return None
        path = self._next_item(name)
        if path is not None:
            self.asked.add(path)
        return path

    def _next_item(self, name: str) -> str | None:
        number = self._planned.get(name, 1)
        while (path := numbered("", name, number)) in self.asked:
            number += 1
        self._planned[name] = number
        return path if path in self._state.plan_paths else None

    def by_args(self, scope: str, name: str, args: str) -> tuple[str, bool]:
        """The path of a call, and whether it was recorded with these arguments (or is new)."""
        same = self._siblings.get((scope, name))
        if same is None:
            same = self._siblings[scope, name] = _Siblings(scope, name)
        recorded = same.by_args.get(args)
        while recorded:
            step = recorded.pop()
            if step.path not in self.asked:
                self.asked.add(step.path)
                return step.path, True
        while same.first < len(same.order):
            step = same.order[same.first]
            same.first += 1
            if step.path not in self.asked:
                self.asked.add(step.path)
                return step.path, False
        while True:
            same.count += 1
            path = nth(same.path, same.count)
            if path not in self.asked:
                self.asked.add(path)
                return path, True

    def nth(self, scope: str, name: str, args: str) -> int:
        """Which of the calls with these arguments a new step is: the first number that none has yet."""
        calls = self._calls.setdefault((scope, name, args), _Calls())
        while calls.first_free in calls.taken:
            calls.first_free += 1
        calls.taken.add(calls.first_free)
        return calls.first_free

    def unasked(self) -> list[str]:
        """Recorded steps that this run has not asked for, leaving out those inside a step that was not run again."""
        asked = self.asked
        return [
            path
            for path, step in self._state.steps.items()
            if path not in asked and not self._is_inside_done(step.place.scope)
        ]

    def _is_inside_done(self, scope: str) -> bool:
        step = self._state.steps.get(scope)
        return step is not None and (step.state == "completed" or scope not in self.asked)
