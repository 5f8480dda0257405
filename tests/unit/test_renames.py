"""Which recorded step a new one may be under another name, by rows."""

from __future__ import annotations

import doctest
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.tasks.steps import renames
from holdfast.tasks.steps.renames import (
    GuardedStep,
    find_renamed,
    function_identity,
    is_function_gone,
)


def step(name: str, args: str = "120", function: str = "", **facts: Any) -> GuardedStep:
    key = facts.pop("key", None)
    path = name if key is None else f"{name}[{key}]"
    return GuardedStep(path, name, key, args, function or f"app:{name}", **facts)


PAY = step("pay")


@pytest.mark.parametrize(
    ("new", "unrequested", "found"),
    [
        pytest.param(step("charge"), [], None, id="nothing is left"),
        pytest.param(step("pay Ann", function="app:pay"), [PAY], "pay", id="the step renamed"),
        pytest.param(step("charge"), [PAY], "pay", id="the function renamed"),
        pytest.param(
            step("pay Ann", function="other:pay"), [PAY], "pay", id="moved to another module"
        ),
        pytest.param(
            step("charge", "€120", "app:pay"), [PAY], None, id="other arguments: another order"
        ),
        pytest.param(step("ship", "€120"), [PAY], None, id="other arguments, another function"),
        pytest.param(
            step("charge"), [PAY, step("pay", "70")], "pay", id="all that are left have one name"
        ),
        pytest.param(
            step("charge"), [PAY, step("mail", "x")], None, id="several are left, which is it"
        ),
        pytest.param(
            step("pay Ann", function="app:pay"),
            [step("mail", "x"), PAY],
            "pay",
            id="several are left, one has the function",
        ),
        pytest.param(
            step("charge", key="7"), [step("pay", key="7")], "pay[7]", id="with the same key"
        ),
        pytest.param(
            step("charge", "€120", key="7"),
            [step("pay", key="7")],
            "pay[7]",
            id="with the same key and other arguments",
        ),
        pytest.param(step("charge", key="8"), [step("pay", key="7")], None, id="with another key"),
        pytest.param(
            step("pay", key="8"), [step("pay", key="7")], None, id="the next key of a loop"
        ),
        pytest.param(step("pay", key="7"), [PAY], "pay", id="it got a key"),
        pytest.param(step("pay"), [step("pay", key="7")], "pay[7]", id="it lost its key"),
        pytest.param(
            step("pay Ann", function="app:pay", ordered=False),
            [PAY],
            None,
            id="called by another thread",
        ),
        pytest.param(
            step("pay Ann", function="app:pay"),
            [PAY._replace(ordered=False)],
            None,
            id="was called by another thread",
        ),
        pytest.param(
            step("ship", "x", ordered=False),
            [step("pay", "120", "app:gone", ordered=False)],
            "pay",
            id="its function is gone, whatever the order",
        ),
        pytest.param(
            step("a", function=""), [step("b", "x", function="app:b")], None, id="without a name"
        ),
    ],
)
def test_the_recorded_step_that_a_new_one_may_be(
    new: GuardedStep, unrequested: list[GuardedStep], found: str | None
) -> None:
    answer = find_renamed(
        new, unrequested, consulted=False, is_gone=lambda name: name == "app:gone"
    )
    assert (answer.path if answer else None) == found


@pytest.mark.parametrize(
    ("new", "found"),
    [
        pytest.param(step("pay Ann", function="app:pay"), "pay", id="the same function"),
        pytest.param(step("ship"), None, id="another one: the program knows that it has paid"),
    ],
)
def test_a_program_that_has_looked_at_the_record_may_skip_steps(
    new: GuardedStep, found: str | None
) -> None:
    answer = find_renamed(new, [PAY], consulted=True, is_gone=lambda _: False)
    assert (answer.path if answer else None) == found


# -- functions -------------------------------------------------------------------------------------


class Bank:
    def pay(self) -> None: ...

    @staticmethod
    def static() -> None: ...


def module_function() -> None: ...


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (module_function, "module_function"),
        (functools.partial(module_function), "module_function"),
        (functools.wraps(module_function)(lambda: None), "module_function"),
        (holdfast.step(module_function), "module_function"),
        (Bank().pay, "Bank.pay"),
        (Bank.static, "Bank.static"),
        (lambda: None, ""),
        (Bank, ""),
        (len, ""),
        (Bank(), ""),
    ],
)
def test_the_identity_of_a_function(fn: Callable[..., Any], name: str) -> None:
    assert function_identity(fn) == (f"{__name__}:{name}" if name else "")


def test_a_function_is_gone_if_its_module_is_loaded_and_has_it_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("release")
    monkeypatch.setitem(sys.modules, "release", module)
    vars(module).update(pay=module_function, Bank=Bank)
    for there in ("release:pay", "release:Bank.pay", "release:Bank.static"):
        assert not is_function_gone(there)
    for gone in ("release:charge", "release:Bank.charge", "release:Till.pay"):
        assert is_function_gone(gone)
    for unknown in ("elsewhere:pay", "__main__:pay", "release:agent.<locals>.pay"):
        assert not is_function_gone(unknown)
    monkeypatch.setattr(renames, "registered_functions", {"release:charge"})
    assert not is_function_gone("release:charge"), "decorated, and kept under another name"


def test_the_examples() -> None:
    assert doctest.testmod(renames).failed == 0
