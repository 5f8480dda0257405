"""Which recorded step a call is.

A step is a path: its scope, its name, and a key or a number. With a key, the key is the identity. A plan's item is the one that is
equal, else the next of its name, that this run has not asked for. Any other call is the recorded step of its scope
and name with the same arguments, whatever the order (so threads are stable); failing that, the next of that name that
this run has not asked for, unless steps of that name ran beside each other: then it is a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..state.fold import StepRecord, TaskState
from ..state.view import PlanItem
from .identity import keyed, nth, numbered, place_of

if TYPE_CHECKING:
    from .progress import StepRun


class _Siblings:
    """The steps without a key of one name in one scope. `path` is that of the first."""

    __slots__ = ("by_args", "count", "first", "order", "parallel", "path")

    def __init__(self, scope: str, name: str) -> None:
        self.path = numbered(scope, name)
        self.count = 0
        self.order: list[StepRecord] = []
        self.first = 0
        self.by_args: dict[str, list[StepRecord]] = {}
        self.parallel = False


class _Items:
    """The items of one name in the plan; those before `first` are asked for."""

    __slots__ = ("first", "paths")

    def __init__(self) -> None:
        self.first = 0
        self.paths: list[str] = []


class Matching:
    """What this run has asked for, and what is left. Not thread-safe: the session's lock guards it."""

    def __init__(self, state: TaskState) -> None:
        self._state = state
        self.asked: set[str] = set()
        self.scopes: set[str] = set()
        """Scopes in which something was asked for."""
        self._siblings: dict[tuple[str, str], _Siblings] = {}
        self._calls: dict[
            tuple[str, str, str], int | set[int]
        ] = {}  # which are taken; n: all below n
        self._returned: dict[tuple[str, str, str], list[str]] = {}
        self.numbers: dict[str, int] = {}
        """Which of the calls with its arguments a step is that is not recorded yet."""
        self._plan: dict[str, int] = {}
        self._items: dict[str, _Items] = {}
        self._remember(state.steps.values())

    def _remember(self, steps: Iterable[StepRecord]) -> None:
        found: dict[tuple[str, str], _Siblings] = {}
        for step in steps:
            scope, name, key, number = step.place
            if key is None:
                same = found.get((scope, name))
                if same is None:
                    same = found[scope, name] = _Siblings(scope, name)
                same.count = max(same.count, number)
                same.order.append(step)
                same.parallel = same.parallel or step.beside
                self._take((scope, name, step.origin), step.nth)
        for same in found.values():
            same.order.sort(key=lambda step: step.place.number)
            for step in reversed(same.order):
                same.by_args.setdefault(step.args, []).append(step)
        self._siblings.update(found)

    def begin_again(self, scope: str, running: Mapping[str, StepRun]) -> None:
        """A step is tried again: what was asked for inside it is there to be asked for again, unless it still runs."""
        inside = scope + "/"
        self.asked = {path for path in self.asked if not path.startswith(inside)}
        known: tuple[dict[Any, Any], ...] = (self._siblings, self._calls, self._returned)
        for places in known:
            for place in [
                place for place in places if place[0] == scope or place[0].startswith(inside)
            ]:
                del places[place]
        self._remember(
            [step for path, step in self._state.steps.items() if path.startswith(inside)]
        )
        for path, run in running.items():
            if path.startswith(inside):  # asked for again, it is that step, not another beside it
                self._returned.setdefault((run.scope, run.name, run.fingerprint), []).append(path)

    def by_key(self, scope: str, name: str, key: str) -> str:
        path = keyed(scope, name, key)
        self.asked.add(path)
        self.scopes.add(scope)
        return path

    def item(self, name: str, item: PlanItem) -> str | None:
        """The path of an item of the plan; None if none of that name is left."""
        if self._state.plan_paths is not self._plan:
            self._plan, self._items = self._state.plan_paths, {}
            for path in self._plan:
                self._items.setdefault(place_of(path).name, _Items()).paths.append(path)
        items = self._items.get(name)
        if items is None:
            return None
        while items.first < len(items.paths) and items.paths[items.first] in self.asked:
            items.first += 1
        found = None
        for index in range(items.first, len(items.paths)):
            path = items.paths[index]
            if path not in self.asked:
                if self._state.plan[self._plan[path]] == item:
                    found = path
                    break
                found = found or path
        if found is not None:
            self.asked.add(found)
        return found

    def by_args(self, scope: str, name: str, args: str) -> str:
        """The path of a call."""
        path = self._known(scope, name, args) or self._new(scope, name, args)
        self.asked.add(path)
        self.scopes.add(scope)
        return path

    def _new(self, scope: str, name: str, args: str) -> str:
        """The path of a step that is not recorded."""
        same = self._siblings[scope, name]
        while True:
            same.count += 1
            path = nth(same.path, same.count)
            if path not in self.asked and path not in self._plan:
                self.numbers[path] = self._number((scope, name, args))
                return path

    def _known(self, scope: str, name: str, args: str) -> str | None:
        """The path of a recorded step that a call is, or of one that was given back."""
        returned = self._returned.get((scope, name, args))
        while returned:
            if (path := returned.pop()) not in self.asked:
                return path
        same = self._siblings.get((scope, name))
        if same is None:
            same = self._siblings[scope, name] = _Siblings(scope, name)
        recorded = same.by_args.get(args)
        while recorded:
            if (path := recorded.pop().path) not in self.asked:
                return path
        while not same.parallel and same.first < len(same.order):
            path = same.order[same.first].path
            same.first += 1
            if path not in self.asked:
                return path
        return None

    def _number(self, call: tuple[str, str, str]) -> int:
        """Which of the calls with these arguments a new step is: the first number that none has yet."""
        taken = self._calls.get(call)
        if taken is None:
            self._calls[call] = 1
            return 0
        number = (
            taken
            if isinstance(taken, int)
            else next(each for each in range(len(taken) + 1) if each not in taken)
        )
        self._take(call, number)
        return number

    def _take(self, call: tuple[str, str, str], number: int) -> None:
        taken = self._calls.get(call, 0)
        if number == taken:
            self._calls[call] = number + 1
        elif isinstance(taken, int):
            self._calls[call] = {*range(taken), number}
        else:
            taken.add(number)
            if max(taken) == len(taken) - 1:  # without a gap again
                self._calls[call] = len(taken)

    def give_back(self, scope: str, name: str, args: str, path: str) -> None:
        """A call was refused, cut off, or nobody knows what it did: the next one with these arguments is that step again."""
        step = self._state.steps.get(path)
        if step is not None and step.state == "failed" and not step.doubt:
            return  # a failure that is known: the next call is another step
        self.asked.discard(path)
        if name in self._items:
            self._items[name].first = 0
        same = self._siblings.get((scope, name))
        if same is not None:
            same.first = 0  # other arguments may mean it too: they are compared with its own
        self._returned.setdefault((scope, name, args), []).append(path)

    def orphaned(self) -> list[str]:
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
