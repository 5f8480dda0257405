"""Plans: check a plan from an agent, and merge a new plan with the work that is already done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from copy import deepcopy
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ..log.codec import decode, encode
from ..log.drivers import EffectGen
from ..log.events import new_append_context
from ..log.ids import check_id
from .run.frames import Frame, current_frame
from .state import events as ev
from .state.fold import plan_item_name, plan_step_paths
from .state.view import PlanItem
from .steps.identity import fingerprint, numbered_path

if TYPE_CHECKING:
    from .base import TaskBase
    from .run.session import Session

FIRST_PLAN: Final = "plan"


def check_plan(value: object) -> list[PlanItem]:
    """Return a plan in its stored form. Raise `TypeError` if it isn't a list of names and dicts."""
    if not isinstance(value, list | tuple) or not all(map(ev.is_plan_item, value)):
        raise TypeError("a plan must be a list of names, or of dicts with a 'name'")
    for item in value:
        check_id(plan_item_name(item), "a plan item's name")
    items: list[PlanItem] = decode(encode(list(value)))
    return items


def merge_plan(
    old: Mapping[str, PlanItem], steps: Mapping[str, bool], new: Sequence[PlanItem]
) -> tuple[list[PlanItem], list[str]]:
    """Return the merged plan, and the path of the step that does each of its items.

    `old` is the current plan by path, in order. `steps` has the path of every recorded step, and
    whether its work must be kept because it is finished or its outcome is unknown.

    Each new item gets the first of these paths that exists:

    1. that of an equal old item whose work is kept;
    2. that of any other equal old item;
    3. that of the old item with the same name, if no other old or new item has this name;
    4. as new work, a path with the first number for its name that no step and no item has.

    No path is used twice. Old items whose work is kept, but which the new plan lacks, are put at
    its beginning. Other old items are dropped.

    Finished work is kept, and unfinished work is replaced:

    >>> old = {"search": "search", "read": "read", "write": "write"}
    >>> merge_plan(old, {"search": True}, ["compare", "write"])
    (['search', 'compare', 'write'], ['search', 'compare', 'write'])

    An equal item is the same step, wherever it is in the list:

    >>> merge_plan(old, {"read": True}, ["write", "read"])
    (['write', 'read'], ['write', 'read'])

    An item with other changes keeps its step if its name is unique:

    >>> old = {"pay": {"name": "pay", "amount": 10}}
    >>> merge_plan(old, {"pay": False}, [{"name": "pay", "amount": 20}])
    ([{'name': 'pay', 'amount': 20}], ['pay'])

    Otherwise it is another step with that name:

    >>> merge_plan(old, {"pay": True}, [{"name": "pay", "amount": 20}, "pay"])[1]
    ['pay', 'pay#2', 'pay#3']
    """
    kept = {path: item for path, item in old.items() if steps.get(path)}
    paths = [""] * len(new)
    for known in (kept, old):
        _match_equal(known, new, paths)
    names, old_names = list(map(plan_item_name, new)), list(map(plan_item_name, old.values()))
    for place, name in enumerate(names):
        if not paths[place] and names.count(name) == old_names.count(name) == 1:
            paths[place] = list(old)[old_names.index(name)]
    for place, name in enumerate(names):
        paths[place] = paths[place] or _find_free_path(name, {*paths, *steps})
    missing = [path for path in kept if path not in paths]
    return [*(old[path] for path in missing), *new], [*missing, *paths]


def _find_free_path(name: str, taken: Set[str]) -> str:
    numbered = (numbered_path("", name, number) for number in count(1))
    return next(path for path in numbered if path not in taken)


def _match_equal(old: Mapping[str, PlanItem], new: Sequence[PlanItem], paths: list[str]) -> None:
    """Give the new items that have no path yet the paths of equal old items."""
    for place, item in enumerate(new):
        if not paths[place]:
            equal = (path for path in old if old[path] == item and path not in paths)
            paths[place] = next(equal, "")


def plan_gen(
    task: TaskBase, given: Any, args: Any, kwargs: Mapping[str, Any], again: bool
) -> EffectGen[list[PlanItem]]:
    session = task._require_session()
    session.check_active()
    if session.writer.needs_catch_up:
        yield from session.catch_up()
    plan_id = FIRST_PLAN
    if again:
        arguments = (args, kwargs) if callable(given) else ((given,), {})
        digest = fingerprint(session.salt, *arguments)
        number = session.counters.take(task._scope(), ("replan", digest))
        plan_id = f"{digest}/{number}"
    with session.lock:
        session.matching.skip_requested(session.state.plan_steps.get(plan_id, ()))
    if session.replaying is not None:
        return deepcopy(session.replaying.plan(plan_id, given, check_plan))
    if plan_id in session.state.plans:
        return deepcopy(session.state.plans[plan_id])
    session.check_writable()
    inside = _plan_frame(task)
    try:
        items = check_plan(
            task._log.redaction.redact_value(
                check_plan((yield from task._evaluate_gen(given, args, kwargs, inside)))
            )
        )
        if again:
            with session.lock:
                state = session.state
                old = {path: state.plan[place] for path, place in state.plan_paths.items()}
                steps = {
                    path: step.state == "completed" or step.in_doubt(None)
                    for path, step in state.steps.items()
                }
            items, paths = merge_plan(old, steps, items)
        planned = ev.Planned(
            plan_id,
            items,
            paths if again and paths != plan_step_paths(items) else [],
            list(inside.requests or ()),
        )
        yield from session.put([(ev.PLANNED, planned)], new_append_context())
    except BaseException:
        if again:
            session.counters.release(task._scope(), ("replan", digest), number)
        raise
    return deepcopy(items)


def _plan_frame(task: TaskBase) -> Frame:
    """Return the frame for a plan's function: the current place, with requests of its own."""
    session, found = task._require_session(), current_frame()
    path, run, branch = "", None, session.suspension.branch
    if found is not None and found.session is session:
        path, run, branch = found.path, found.run, found.branch
    return Frame(task, session, branch, path, run, requests={})  # type: ignore[arg-type]  # a Task or an AsyncTask


def iterate_remaining(session: Session) -> Iterator[Any]:
    """Iterate over the items of the plan that are not finished; see `Task.remaining`."""
    state, given = session.state, set[str]()
    places: dict[str, int] = {}
    left: list[str] = []
    while True:
        with session.lock:
            if state.plan_paths is not places:  # at first, and after a replan
                places = state.plan_paths
                left = list(reversed(places))
            item = None
            while left and item is None:
                path = left.pop()
                step = state.steps.get(path)
                done = step is not None and step.state == "completed"
                if done and (
                    session.replaying is None or not session.replaying.is_unrequested(path)
                ):
                    session.matching.requested.add(path)  # the loop skips it: not orphaned
                elif path not in given:
                    given.add(path)
                    item = deepcopy(state.plan[places[path]])
        if item is None:
            return
        yield item
