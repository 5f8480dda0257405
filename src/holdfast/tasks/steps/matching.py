"""How a step is matched on resume: decide which recorded step a call is.

A step is identified by a path: its scope, its name, and a key or a number.

- A call with a key is the step with that key.
- A call named by the plan is an unrequested item of that name: the equal one, or else the next.
- Any other call is the recorded step of the same scope, name and arguments, in any order, so that
  threads are matched stably. If there is none, it is the next unrequested step of that name, unless
  steps of that name ran in parallel: then it is a new step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..state.fold import StepRecord, TaskState
from ..state.view import PlanItem
from .paths import keyed_path, nth_path, numbered_path, parse_path

if TYPE_CHECKING:
    from .progress import StepRun


class _Siblings:
    """The steps without a key of one name in one scope. `path` is that of the first."""

    __slots__ = ("by_args", "count", "first", "order", "parallel", "path")

    def __init__(self, scope: str, name: str) -> None:
        self.path = numbered_path(scope, name)
        self.count = 0
        self.order: list[StepRecord] = []
        self.first = 0
        self.by_args: dict[str, list[StepRecord]] = {}
        self.parallel = False


class _PlanItems:
    """The plan items of one name; those before `first` are requested."""

    __slots__ = ("first", "paths")

    def __init__(self) -> None:
        self.first = 0
        self.paths: list[str] = []


class StepMatcher:
    """The steps that this run has requested, and those that are left.

    Not thread-safe: the session's lock guards it.
    """

    def __init__(self, state: TaskState) -> None:
        self._state = state
        self.requested: set[str] = set()
        self.scopes: set[str] = set()
        """The scopes in which a step was requested."""
        self.numbers: dict[str, int] = {}
        """For each step that is not recorded yet: which call with its arguments it is."""
        self._siblings: dict[tuple[str, str], _Siblings] = {}
        self._taken: dict[tuple[str, str, str], int | set[int]] = {}
        """The numbers in use per scope, name and arguments; n stands for all below n."""
        self._released: dict[tuple[str, str, str], list[str]] = {}
        self._plan: dict[str, int] = {}
        self._items: dict[str, _PlanItems] = {}
        self._index_steps(state.steps.values())

    def _index_steps(self, steps: Iterable[StepRecord]) -> None:
        found: dict[tuple[str, str], _Siblings] = {}
        for step in steps:
            scope, name, key, number = step.parsed_path
            if key is None:
                siblings = found.get((scope, name))
                if siblings is None:
                    siblings = found[scope, name] = _Siblings(scope, name)
                siblings.count = max(siblings.count, number)
                siblings.order.append(step)
                siblings.parallel = siblings.parallel or step.parallel
                self._take_number((scope, name, step.origin), step.nth)
        for siblings in found.values():
            siblings.order.sort(key=lambda step: step.parsed_path.number)
            for step in reversed(siblings.order):
                siblings.by_args.setdefault(step.args, []).append(step)
        self._siblings.update(found)

    def reset_scope(self, scope: str, running: Mapping[str, StepRun]) -> None:
        """Make the steps inside a step available again, because it is retried."""
        inside = scope + "/"
        self.requested = {path for path in self.requested if not path.startswith(inside)}
        indexes: tuple[dict[Any, Any], ...] = (self._siblings, self._taken, self._released)
        for index in indexes:
            for key in [key for key in index if key[0] == scope or key[0].startswith(inside)]:
                del index[key]
        self._index_steps(
            [step for path, step in self._state.steps.items() if path.startswith(inside)]
        )
        for path, run in running.items():
            if path.startswith(inside):  # if it is called again, it is this step and not a new one
                self._released.setdefault((run.scope, run.name, run.fingerprint), []).append(path)

    def match_key(self, scope: str, name: str, key: str) -> str:
        """Return the path of a call with a key."""
        path = keyed_path(scope, name, key)
        self.requested.add(path)
        self.scopes.add(scope)
        return path

    def match_item(self, name: str, item: PlanItem) -> str | None:
        """Return the path of a plan item; None if none of that name is left."""
        if self._state.plan_paths is not self._plan:
            self._plan, self._items = self._state.plan_paths, {}
            for path in self._plan:
                self._items.setdefault(parse_path(path).name, _PlanItems()).paths.append(path)
        items = self._items.get(name)
        if items is None:
            return None
        while items.first < len(items.paths) and items.paths[items.first] in self.requested:
            items.first += 1
        found = None
        for index in range(items.first, len(items.paths)):
            path = items.paths[index]
            if path not in self.requested:
                if self._state.plan[self._plan[path]] == item:
                    found = path
                    break
                found = found or path
        if found is not None:
            self.requested.add(found)
        return found

    def match_args(self, scope: str, name: str, args: str) -> str:
        """Return the path of a call without a key, by the fingerprint of its arguments."""
        path = self._match_recorded(scope, name, args) or self._add_path(scope, name, args)
        self.requested.add(path)
        self.scopes.add(scope)
        return path

    def _add_path(self, scope: str, name: str, args: str) -> str:
        """Return the path of a new step."""
        siblings = self._siblings[scope, name]
        while True:
            siblings.count += 1
            path = nth_path(siblings.path, siblings.count)
            if path not in self.requested and path not in self._plan:
                self.numbers[path] = self._next_number((scope, name, args))
                return path

    def _match_recorded(self, scope: str, name: str, args: str) -> str | None:
        """Return the path of a recorded or released step that a call is; None if it is new."""
        released = self._released.get((scope, name, args))
        while released:
            if (path := released.pop()) not in self.requested:
                return path
        siblings = self._siblings.get((scope, name))
        if siblings is None:
            siblings = self._siblings[scope, name] = _Siblings(scope, name)
        recorded = siblings.by_args.get(args)
        while recorded:
            if (path := recorded.pop().path) not in self.requested:
                return path
        while not siblings.parallel and siblings.first < len(siblings.order):
            path = siblings.order[siblings.first].path
            siblings.first += 1
            if path not in self.requested:
                return path
        return None

    def _next_number(self, call: tuple[str, str, str]) -> int:
        """Take and return the first free number among the calls with these arguments."""
        taken = self._taken.get(call, 0)
        number = taken if isinstance(taken, int) else min({*range(len(taken) + 1)} - taken)
        self._take_number(call, number)
        return number

    def _take_number(self, call: tuple[str, str, str], number: int) -> None:
        taken = self._taken.get(call, 0)
        if number == taken:
            self._taken[call] = number + 1
        elif isinstance(taken, int):
            self._taken[call] = {*range(taken), number}
        else:
            taken.add(number)
            if max(taken) == len(taken) - 1:  # without a gap again
                self._taken[call] = len(taken)

    def release(self, scope: str, name: str, args: str, path: str) -> None:
        """Let the next call with these arguments be this step again.

        The call was rejected, interrupted, or its outcome is unknown.
        """
        step = self._state.steps.get(path)
        if step is not None and step.state == "failed" and not step.doubt:
            return  # the failure is known: the next call is another step
        self.requested.discard(path)
        if name in self._items:
            self._items[name].first = 0
        siblings = self._siblings.get((scope, name))
        if siblings is not None:
            siblings.first = 0  # a call with other arguments may match it too
        self._released.setdefault((scope, name, args), []).append(path)

    def orphaned(self) -> list[str]:
        """Return the recorded steps that this run has not requested.

        Steps inside a step that did not run again are left out.
        """
        requested = self.requested
        return [
            path
            for path, step in self._state.steps.items()
            if path not in requested and not self._is_inside_done(step.parsed_path.scope)
        ]

    def _is_inside_done(self, scope: str) -> bool:
        step = self._state.steps.get(scope)
        return step is not None and (step.state == "completed" or scope not in self.requested)
