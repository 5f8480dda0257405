"""Plans: check one that an agent gives, and merge a new plan with the work that is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..log.codec import decode, encode
from ..log.ids import check_id
from .state import events as ev
from .state.fold import plan_item_name
from .state.view import PlanItem
from .steps.paths import numbered_path


def check_plan(value: object) -> list[PlanItem]:
    """Return a plan as it is stored. Raise `TypeError` if it isn't a list of names and dicts."""
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

    Each new item gets a path by the first rule that applies:

    1. An old item whose work is kept is equal to it.
    2. Any other old item is equal to it.
    3. Exactly one old and one new item have its name.
    4. It is new work: the first number of its name that no step and no item has.

    No path is given twice. Old items whose work is kept and that are not in the new plan stay, at
    its beginning. Other old items are dropped.

    Finished work stays, open work is replaced:

    >>> old = {"search": "search", "read": "read", "write": "write"}
    >>> merge_plan(old, {"search": True}, ["compare", "write"])
    (['search', 'compare', 'write'], ['search', 'compare', 'write'])

    An item that says the same is the same step, wherever it is in the list:

    >>> merge_plan(old, {"read": True}, ["write", "read"])
    (['write', 'read'], ['write', 'read'])

    An item whose text changed keeps its step if its name is unique:

    >>> old = {"pay": {"name": "pay", "amount": 10}}
    >>> merge_plan(old, {"pay": False}, [{"name": "pay", "amount": 20}])
    ([{'name': 'pay', 'amount': 20}], ['pay'])

    Otherwise it is another step of that name:

    >>> merge_plan(old, {"pay": True}, [{"name": "pay", "amount": 20}, "pay"])[1]
    ['pay', 'pay#2', 'pay#3']
    """
    kept = {path: item for path, item in old.items() if steps.get(path)}
    paths = [""] * len(new)
    for known in (kept, old):
        for place, item in enumerate(new):
            if not paths[place]:
                equal = (path for path in known if known[path] == item and path not in paths)
                paths[place] = next(equal, "")
    names, old_names = list(map(plan_item_name, new)), list(map(plan_item_name, old.values()))
    for place, name in enumerate(names):
        if not paths[place] and names.count(name) == old_names.count(name) == 1:
            paths[place] = list(old)[old_names.index(name)]
    for place, name in enumerate(names):
        number = 1
        while not paths[place]:
            path = numbered_path("", name, number)
            number += 1
            if path not in paths and path not in steps:
                paths[place] = path
    missing = [path for path in kept if path not in paths]
    return [*(old[path] for path in missing), *new], [*missing, *paths]
