"""Recognize a step that was done under another name, before it is done again.

A `once` or `check` step (a guarded step) is found by its path. If the program renames it or a step
around it, or adds or removes its key, a resumed run requests a step that has no record, and nothing
would stop it from running a second time. So the call is refused if a recorded step may be the same
one. `renamed_from` declares that it is, or that it isn't.

An unchanged program is never refused. It requests its steps in the same order, and the start of a
guarded step is recorded before it runs. So when it requests a guarded step that has no record, it
has already requested all recorded steps that come before, and the steps that come after have no
record yet. This does not hold for steps of different threads: see `StepMatcher.find_unrequested`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

registered_functions: set[str] = set()
"""The identity of every decorated function."""


class GuardedStep(NamedTuple):
    """A `once` or `check` step that is recorded, or that is requested and has no record."""

    path: str
    name: str
    key: str | None
    args: str
    function: str
    ordered: bool = True
    """Whether its place in the order of the program's steps is known."""


def find_renamed(
    new: GuardedStep,
    unrequested: Sequence[GuardedStep],
    *,
    consulted: bool,
    is_gone: Callable[[str], bool],
) -> GuardedStep | None:
    """Return the recorded step that `new` may be a renaming of; None if there is none.

    `unrequested` are the recorded steps that were done, or may have been done, and that this run
    has not requested. The first of these rules that finds one of them decides:

    1. It has the same arguments or the same key, and the same function.
    2. It has the same arguments or the same key, and all unrequested steps whose order is known
       have the same name. This rule is skipped if the program has `consulted` the record in this
       run, because it may then know which steps it need not request.
    3. Its function is gone from the program: the module is loaded, and no longer has it.

    Rules 1 and 2 are for steps whose order is known. If both steps have keys, the keys are
    compared; otherwise the arguments are.

    >>> paid = GuardedStep("pay", "pay", None, "120", "app:pay")
    >>> def find(new, *, gone=False, consulted=False):
    ...     found = find_renamed(new, [paid], consulted=consulted, is_gone=lambda _: gone)
    ...     return found and found.path

    The step was renamed, or its function was:

    >>> find(GuardedStep("pay Ann", "pay Ann", None, "120", "app:pay"))
    'pay'
    >>> find(GuardedStep("charge", "charge", None, "120", "app:charge"))
    'pay'

    No match: a different order is paid, or a program that has consulted the record does something
    else with the same order:

    >>> find(GuardedStep("pay Bob", "pay Bob", None, "70", "app:pay"))
    >>> find(GuardedStep("ship", "ship", None, "120", "app:ship"), consulted=True)

    The function was renamed and has other arguments:

    >>> find(GuardedStep("charge", "charge", None, "€120", "app:charge"), gone=True)
    'pay'
    """
    ordered = [step for step in unrequested if step.ordered and new.ordered]
    same = [step for step in ordered if _is_same_call(step, new)]
    for step in same:
        if _is_same_function(step, new):
            return step
    if same and not consulted and len({step.name for step in ordered}) == 1:
        return same[0]
    return next((step for step in unrequested if step.function and is_gone(step.function)), None)


def _is_same_function(step: GuardedStep, new: GuardedStep) -> bool:
    return bool(step.function) and _qualified_name(step.function) == _qualified_name(new.function)


def _is_same_call(step: GuardedStep, new: GuardedStep) -> bool:
    if step.key is not None and new.key is not None:
        return step.key == new.key
    return step.args == new.args


def _qualified_name(function: str) -> str:
    """Return the name without the module, which is `__main__` if the program is run as a script."""
    return function.partition(":")[2]


def function_identity(fn: Any) -> str:
    """Return the module and the qualified name of a function; "" if it has no name of its own."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    import inspect

    fn = inspect.unwrap(fn) if callable(fn) else fn
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, FunctionType) or fn.__name__ == "<lambda>":
        return ""
    return f"{fn.__module__}:{fn.__qualname__}"


def is_function_gone(function: str) -> bool:
    """Whether a recorded function is no longer in the program.

    False if that is unknown: for a module that is not loaded, a script, or a function that is
    defined inside another one.
    """
    module, _, name = function.partition(":")
    found: object = sys.modules.get(module)
    if found is None or module == "__main__" or "<" in name or function in registered_functions:
        return False
    from inspect import getattr_static

    for part in name.split("."):
        found = getattr_static(found, part, None)
        if found is None:
            return True
    return False
