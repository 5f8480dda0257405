"""Match each step call of a run to a recorded step, or find that it is a new step.

A step is identified by a path: its scope (the step whose code calls it, "" at the top level), its
name, and a key or a number. When a run calls a step, it requests the step that these rules find:

1. A call declared with `renamed_from` may be recorded under an earlier name. Names are tried in
   order, earlier names first (for plan items, the current name first). The call gets the first name
   under which rule 2, 3 or 4 finds a step; failing that, the first under which rule 5 does; failing
   that, its current name.
2. A call with a key matches the step with its scope, name and key. Its arguments do not matter.
3. A call at the top level whose name is in the plan matches an unrequested item with that name: the
   equal one, or else the next. Its arguments do not matter.
4. Any other call matches the first unrequested step with its scope, name and arguments (see
   `identity`). So threads may request their steps in any order.
5. If there is none, the call matches the next unrequested step with its scope and name: the
   arguments have changed. If that step is finished, the call is refused, unless its `drift` option
   says otherwise. If it is in doubt, the call is refused. Otherwise the step runs with the new
   arguments. This rule is skipped for names whose steps ran in parallel.
6. If no rule finds a recorded step, the call is a new step, with the next number for its name.
7. If a new step is a `once` or `check` step, and a recorded step may be the same one under another
   name, the call is refused (see `renames`).

These rules decide which steps count as requested:

8. A call without a known outcome (refused, interrupted, in doubt, or finished with a result that
   cannot be stored) releases its step: the next equal call matches that step, instead of starting a
   second one.
9. A step that is retried releases all steps inside it.
10. These count as requested without a call: steps that a plan's function called before its plan was
    recorded, and finished plan items that `task.remaining()` skipped. Steps inside a finished step
    need not be requested.

Worked examples, at the top level:

    recorded                 the run calls                  which is
    ask(1), ask(2)           ask(2)                         ask#2, by rule 4
    ask(1), ask(1)           ask(1), ask(1), ask(1)         ask, ask#2, and ask#3, which is new
    ask(1)                   ask(7)                         ask, refused: other arguments (rule 5)
    ask(1), interrupted      ask(7)                         ask, which runs with 7
    ask(1), ask(2)           new(5), ask(2), ask(1)         new, ask#2, ask: the order is free
    map(ask, [1, 2])         map(ask, [2, 3])               ask#2, and ask#3, which is new (rule 6)
    ask[k](1)                ask.using(key="k")(7)          ask[k], which keeps its result (rule 2)
    once pay(1)              once charge(1)                 charge, refused: another name (rule 7)
    once pay(1)              charge(1) renamed from pay     pay, by rule 1
    once pay(1), in doubt    pay(1), caught; pay(1)         pay, in doubt; pay again (rule 8)
    once pay(1), in doubt    pay(1), caught; pay(2)         pay, in doubt; pay#2, which is new
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..state.fold import StepRecord, TaskState
from ..state.view import Drift, PlanItem
from .identity import find_in_scope, keyed_path, nth_path, numbered_path, parse_path
from .renames import GuardedStep

if TYPE_CHECKING:
    from .progress import StepRun


class _Siblings:
    """The steps in one scope that have the same name and no key. `path` is the first one's path."""

    __slots__ = ("by_args", "count", "first", "order", "parallel", "path")

    def __init__(self, scope: str, name: str) -> None:
        self.path = numbered_path(scope, name)
        self.count = 0
        self.order: list[StepRecord] = []
        self.first = 0
        self.by_args: dict[str, list[StepRecord]] = {}
        self.parallel = False


class _PlanItems:
    """The plan items with one name. The items before `first` are requested."""

    __slots__ = ("first", "paths")

    def __init__(self) -> None:
        self.first = 0
        self.paths: list[str] = []


class _CallNumbers:
    """The numbers in use among the calls with one scope, name and fingerprint of arguments."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str, str], int | set[int]] = {}  # n stands for all below n

    def take_next(self, call: tuple[str, str, str]) -> int:
        """Take and return the first free number."""
        taken = self._taken.get(call, 0)
        if isinstance(taken, int):
            self._taken[call] = taken + 1
            return taken
        number: int = min({*range(len(taken) + 1)} - taken)
        self.take(call, number)
        return number

    def take(self, call: tuple[str, str, str], number: int) -> None:
        taken = self._taken.get(call, 0)
        if number == taken:
            self._taken[call] = number + 1
        elif isinstance(taken, int):
            self._taken[call] = {*range(taken), number}
        else:
            taken.add(number)
            if max(taken) == len(taken) - 1:  # there is no gap any more
                self._taken[call] = len(taken)

    def remove_scope(self, scope: str) -> None:
        """Forget the numbers in a scope, and in the scopes inside it."""
        _remove_scope(self._taken, scope)


def _remove_scope(index: dict[Any, Any], scope: str) -> None:
    """Remove the entries of a scope, and of the scopes inside it."""
    for key in [key for key in index if key[0] == scope or key[0].startswith(scope + "/")]:
        del index[key]


class StepMatcher:
    """The steps that this run has requested, and the recorded steps that are left.

    It is not thread-safe; the session's lock guards it.
    """

    def __init__(self, state: TaskState) -> None:
        self._state = state
        self.requested: set[str] = set()
        self.scopes: set[str] = set()
        """The scopes in which a step was requested."""
        self.numbers: dict[str, int] = {}
        """For each step that is not recorded yet, its number among the calls with its arguments."""
        self._siblings: dict[tuple[str, str], _Siblings] = {}
        self._call_numbers = _CallNumbers()
        self._released: dict[tuple[str, str, str], list[str]] = {}
        self._recognized: set[str] = set()
        """Released steps whose call had the recorded arguments. A call with other arguments never
        matches them (rule 5)."""
        self._plan: dict[str, int] = {}
        self._items: dict[str, _PlanItems] = {}
        self.guarded = [step for step in state.steps.values() if step.mode]
        """The `once` and `check` steps of earlier runs."""
        self._before = frozenset(state.steps) if self.guarded else frozenset[str]()
        self.asked: set[str] = set()
        """Steps that were requested without getting a result, or whose result the program read."""
        self.consulted = False
        """Whether the program has read the record, and so may know what it need not request."""
        self.drift: list[Drift] = []
        """How requested steps have changed since they were recorded."""
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
                self._call_numbers.take((scope, name, step.origin), step.nth)
        for siblings in found.values():
            siblings.order.sort(key=lambda step: step.parsed_path.number)
            for step in reversed(siblings.order):
                siblings.by_args.setdefault(step.args, []).append(step)
        self._siblings.update(found)

    def reset_scope(self, scope: str, running: Mapping[str, StepRun]) -> None:
        """Make the steps inside a step available again, because it is retried."""
        inside = scope + "/"
        self.asked |= self.requested
        self.requested = {path for path in self.requested if not path.startswith(inside)}
        _remove_scope(self._siblings, scope)
        _remove_scope(self._released, scope)
        self._call_numbers.remove_scope(scope)
        self._index_steps(
            [step for path, step in self._state.steps.items() if path.startswith(inside)]
        )
        for path, run in running.items():
            if path.startswith(inside):  # if it is called again, it is this step and not a new one
                self._released.setdefault((run.scope, run.name, run.fingerprint), []).append(path)

    def match_step(
        self,
        scope: str,
        name: str,
        item: PlanItem,
        key: str | None,
        args: str,
        renamed_from: Sequence[str] | None,
        args_by_field: Callable[[], str | None],
    ) -> tuple[str, str, str, bool]:
        """Match a call to a step by rules 1 to 6.

        `args` is the fingerprint of the arguments. `args_by_field` returns what it was before a
        tuple or dict among them got named fields, if any.

        Returns:
            The step's path, the name and fingerprint under which it is recorded, and whether it was
            matched by its identity: by its key, or as an item of the plan.
        """
        in_plan = not scope and bool(self._state.plan_paths)
        if renamed_from:
            known = self.choose_name(scope, (*renamed_from, name), key, args, in_plan=in_plan)
            if known != name:
                name = item = known
        if key is not None:
            return self.match_key(scope, name, key), name, args, True
        if in_plan and (path := self.match_item(name, item)) is not None:
            return path, name, args, True
        if (scope, name) in self._siblings and self.has_only_others(scope, name, args):
            named = args_by_field()
            if named and not self.has_only_others(scope, name, named):
                args = named
        return self.match_args(scope, name, args), name, args, False

    def match_key(self, scope: str, name: str, key: str) -> str:
        """Return the path of a call with a key."""
        path = keyed_path(scope, name, key)
        self.requested.add(path)
        self.scopes.add(scope)
        return path

    def match_item(self, name: str, item: PlanItem) -> str | None:
        """Return the path of a plan item; None if no item with that name is left."""
        found = self._find_item(name, item)
        if found is not None:
            self.requested.add(found)
        return found

    def _find_item(self, name: str, item: PlanItem) -> str | None:
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
                    return path
                found = found or path
        return found

    def has_only_others(self, scope: str, name: str, args: str) -> bool:
        """Whether recorded steps with this name are left, but none with these arguments."""
        siblings = self._siblings.get((scope, name))
        if (
            siblings is None
            or siblings.by_args.get(args)
            or self._released.get((scope, name, args))
        ):
            return False
        return self._has_left(siblings)

    def _has_left(self, siblings: _Siblings) -> bool:
        """Whether an unrequested step is left that a call with other arguments may match."""
        order = siblings.order
        while siblings.first < len(order) and (
            order[siblings.first].path in self.requested
            or order[siblings.first].path in self._recognized
        ):
            siblings.first += 1
        return siblings.first < len(order)

    def choose_name(
        self, scope: str, names: Sequence[str], key: str | None, args: str, *, in_plan: bool
    ) -> str:
        """Return the name under which a renamed step is recorded; its current name if it is not.

        `names` are its earlier names and, last, its current name. With `in_plan`, the step may be a
        plan item.
        """
        if key is not None:
            steps = self._state.steps
            return next(
                (name for name in names if keyed_path(scope, name, key) in steps), names[-1]
            )
        if in_plan:
            for name in reversed(names):
                if self._find_item(name, name) is not None:
                    return name
        for name in names:
            if self._has_equal(scope, name, args):
                return name
        for name in names:
            siblings = self._siblings.get((scope, name))
            if siblings is not None and not siblings.parallel and self._has_left(siblings):
                return name
        return names[-1]

    def _has_equal(self, scope: str, name: str, args: str) -> bool:
        """Whether an unrequested step has this name and these arguments."""
        siblings = self._siblings.get((scope, name))
        recorded = () if siblings is None else siblings.by_args.get(args, ())
        paths = [step.path for step in recorded] + self._released.get((scope, name, args), [])
        return any(path not in self.requested for path in paths)

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
            count = siblings.count
            path = siblings.path if count == 1 else nth_path(siblings.path, count)
            if path not in self.requested and path not in self._plan:
                self.numbers[path] = self._call_numbers.take_next((scope, name, args))
                return path

    def _match_recorded(self, scope: str, name: str, args: str) -> str | None:
        """Return the path of the recorded or released step that a call matches; None if new."""
        released = self._released.get((scope, name, args))
        while released:
            if (path := released.pop()) not in self.requested:
                return path
        siblings = self._siblings.get((scope, name))
        if siblings is None:
            siblings = self._siblings[scope, name] = _Siblings(scope, name)
        if not siblings.order:
            return None
        recorded = siblings.by_args.get(args)
        while recorded:
            if (path := recorded.pop().path) not in self.requested:
                return path
        if not siblings.parallel and self._has_left(siblings):
            siblings.first += 1
            return siblings.order[siblings.first - 1].path
        return None

    def release(self, scope: str, name: str, args: str, path: str) -> None:
        """Release a step, so that the next call with these arguments matches it again.

        The call was refused or interrupted, or its outcome is unknown.
        """
        step = self._state.steps.get(path)
        if step is not None and step.state == "failed" and not (step.doubt or step.final):
            return  # the failure is the outcome: the next call is another step
        self.requested.discard(path)
        self.asked.add(path)
        if step is not None and step.args == args:
            self._recognized.add(path)
        if name in self._items:
            self._items[name].first = 0
        siblings = self._siblings.get((scope, name))
        if siblings is not None:
            siblings.first = 0  # a call with other arguments may match it too
        self._released.setdefault((scope, name, args), []).append(path)

    def skip_requested(self, paths: Iterable[str]) -> None:
        """Count steps as requested, because they belong to a call whose outcome is recorded."""
        self.requested.update(path for path in paths if path in self._state.steps)

    def find_new_ancestor(self, path: str) -> str:
        """Return the outermost step around a new step that is also new, or else the step itself."""
        found = path
        while scope := parse_path(path).scope:
            path = scope
            if path not in self._before:
                found = path
        return found

    def find_unrequested(self, top: str) -> list[GuardedStep]:
        """Return the unrequested guarded steps that were done, or may have been done.

        Only steps in the same scope as the new step `top`, or inside an unrequested step of that
        scope, are returned: the code of that scope is running, and decides about them. Items of the
        plan are left out, because the plan has their names.

        The order of a step is known if the code of its scope called it, not another thread. The
        items of a `map` have no order among each other, and after a failure some are not requested.
        So a `map` item counts as in order only if this run has requested no step with its name, and
        the new step's name has no record in its scope.
        """
        scope, name, _, _ = parse_path(top)
        asked = self.requested | self.asked
        names = {parse_path(path)[:2] for path in asked}
        is_new_name = all(parse_path(path)[:2] != (scope, name) for path in self._before)
        found = []
        for step in self.guarded:
            outer = find_in_scope(step.path, scope)
            if outer is None or outer in asked or outer in self._state.plan_paths:
                continue
            if step.state != "completed" and not step.in_doubt(None) and not step.final:
                continue
            above = self._state.steps.get(outer, step)
            in_order = not above.parallel or (
                above.mapped and is_new_name and above.parsed_path[:2] not in names
            )
            _, step_name, key, _ = step.parsed_path
            found.append(GuardedStep(step.path, step_name, key, step.args, step.function, in_order))
        return found

    def orphaned(self) -> list[str]:
        """Return the recorded steps that this run has not requested.

        Steps inside a step that did not run again are left out.
        """
        requested, steps = self.requested, self._state.steps

        def is_inside_done(scope: str) -> bool:
            around = steps.get(scope)
            return around is not None and (around.state == "completed" or scope not in requested)

        left = (step for path, step in steps.items() if path not in requested)
        return [step.path for step in left if not is_inside_done(step.parsed_path.scope)]
