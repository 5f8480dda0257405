"""Which recorded step a call is.

A step is a path: its scope, its name, and a key or a number. With a key, the key is the identity. A plan's item is the next of its
name that this run has not asked for. Any other call is the recorded step of its scope and name with the same arguments,
whatever the order (so threads are stable); failing that, the next of that name that this run has not asked for.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from ._fold import State, Step
from ._paths import keyed, numbered


class _Siblings:
    """The steps without a key of one name in one scope."""

    __slots__ = ("by_args", "count", "first", "order")

    def __init__(self) -> None:
        self.count = 0
        self.order: list[Step] = []
        self.first = 0
        self.by_args: dict[str, list[Step]] = {}


class Matching:
    """What this run has asked for, and what is left. Not thread-safe: the session's lock guards it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.asked: set[str] = set()
        self._siblings: dict[tuple[str, str], _Siblings] = {}
        self._planned: dict[str, int] = {}
        self._remember(state.steps.values())

    def _remember(self, steps: Iterable[Step]) -> None:
        found: dict[tuple[str, str], _Siblings] = {}
        for step in steps:
            if step.place.key is None:
                same = found.setdefault((step.place.scope, step.place.name), _Siblings())
                same.count = max(same.count, step.place.number)
                same.order.append(step)
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
            same = self._siblings[scope, name] = _Siblings()
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
            path = numbered(scope, name, same.count)
            if path not in self.asked:
                self.asked.add(path)
                return path, True

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
