"""The arguments of `once` and `check` steps are stored for the operator who may have to resolve
them: redacted, limited in size, and only for these steps."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

import holdfast
from helpers.run_cli import run
from helpers.sync_and_async import Ways, view
from holdfast import StepFailed, StepInDoubt, StepInfo, Store
from holdfast.redact import Redactor

keys: list[str] = []


@dataclass
class Order:
    id: str
    amount: Decimal


class Bank:
    def pay(self, order: Order) -> str:
        return lose(order)


def lose(*_: object) -> str:
    keys.append(holdfast.idempotency_key())
    raise ConnectionError("did it arrive?")


def leave_in_doubt(store: Store, step: Any, *args: Any, **kwargs: Any) -> StepInfo:
    """Start a step whose outcome stays unknown, and return it as an operator sees it."""
    with pytest.raises(StepInDoubt), store.task("t") as task:
        task.step("pay", step, *args, **kwargs)
    found = store.get_task("t")
    assert found is not None
    return found.steps[-1]


@pytest.mark.every_engine
def test_an_operator_sees_the_arguments_and_the_idempotency_key(ways: Ways) -> None:
    @holdfast.step(once=True)
    def pay(order: Order, note: str = "", *, urgent: bool = False) -> str:
        return lose()

    with pytest.raises(StepInDoubt):
        ways.resume(lambda task: task.step("pay", pay, Order("7", Decimal("1.50")), urgent=True))
    step = view(ways).steps[0]
    assert step.in_doubt
    assert step.arguments == {"order": {"id": "7", "amount": "1.50"}, "urgent": True}
    assert step.cut_arguments == []
    assert step.idempotency_key == keys[-1]


def test_the_arguments_of_an_ordinary_step_are_not_stored(store: Store) -> None:
    with store.task("t") as task:
        task.step("read", lambda path: "ok", "secret.txt")
        task.finish()
    found = store.get_task("t")
    assert found is not None and found.steps[0].arguments is None
    assert found.steps[0].idempotency_key is None
    assert "secret.txt" not in str([event.data for event in store.task("t").history()])


def test_a_step_can_keep_its_arguments_to_itself(store: Store) -> None:
    step = leave_in_doubt(store, holdfast.step(lose, once=True, store_arguments=False), "s3cret")
    assert step.arguments is None
    assert step.idempotency_key == keys[-1], "what to look for is stored all the same"
    assert "s3cret" not in str([event.data for event in store.task("t").history()])
    with pytest.raises(TypeError, match="must be True or False, got str"):
        holdfast.step(lose, once=True, store_arguments="no")  # type: ignore[call-overload]


def test_objects_that_are_no_data_are_stored_as_the_names_of_their_types(store: Store) -> None:
    circle: list[Any] = []
    circle.append(circle)

    @holdfast.step(once=True)
    def pay(client: object, callback: object, circle: object, text: str) -> str:
        return lose()

    step = leave_in_doubt(store, pay, object(), print, circle, "\ud800")
    assert step.arguments == {
        "client": "<builtins.object>",
        "callback": ["<named>", "builtins", "print"],
        "circle": "<builtins.list>",
        "text": "<builtins.str>",
    }


def test_the_object_of_a_method_and_the_arguments_of_a_partial_are_shown(store: Store) -> None:
    step = leave_in_doubt(store, holdfast.step(Bank().pay, once=True), Order("7", Decimal(1)))
    assert step.arguments is not None
    assert step.arguments["order"] == {"id": "7", "amount": "1"}
    store.resolve("t", "pay", result="paid")
    partial = holdfast.step(functools.partial(lose, "ann"), once=True)
    other = leave_in_doubt(store, partial.using(key="two"), 30)
    assert other.arguments == {"bound": [["ann"], {}], "_": [30]}


def test_secrets_are_redacted_before_arguments_are_cut() -> None:
    key = "sk-proj-" + "Ab1" * 20
    with holdfast.open("memory://", redact=Redactor()) as store:

        @holdfast.step(once=True)
        def send(text: str, to: str) -> str:
            return lose()

        step = leave_in_doubt(store, send, "x" * 980 + f" {key} " + "y" * 60_000, "ann@example.com")
        stored = json.dumps([event.data for event in store.task("t").history()])
    assert step.arguments is not None
    assert key[:20] not in stored and "ann@example.com" not in stored
    assert step.cut_arguments == ["text"]
    assert step.arguments["text"].startswith("xxx")


def test_long_arguments_are_cut_the_longest_first_and_say_so(store: Store) -> None:
    @holdfast.step(once=True)
    def send(to: str, body: str, rows: list[int], film: bytes) -> str:
        return lose()

    step = leave_in_doubt(store, send, "ann", "é" * 40_000, list(range(9000)), b"\0" * 2_000_000)
    assert step.arguments is not None and step.arguments["to"] == "ann"
    assert step.cut_arguments == ["body", "rows", "film"]
    assert step.arguments["body"].endswith("… (80,002 bytes)")
    assert step.arguments["rows"].startswith("[0,1,2,")
    assert step.arguments["film"] == "(2,666,670 bytes)"
    assert len(json.dumps(step.arguments)) < 32 * 1024


def test_other_arguments_replace_the_stored_ones(store: Store) -> None:
    @holdfast.step(once=True, key=lambda amount: "one")
    def pay(amount: int) -> str:
        return lose()

    assert leave_in_doubt(store, pay, 1).arguments == {"amount": 1}
    store.resolve("t", "pay[one]", retry=True)
    assert leave_in_doubt(store, pay, 2).arguments == {"amount": 2}


def test_what_a_check_found_is_recorded_and_shown(ways: Ways) -> None:
    found: list[Any] = [TimeoutError("the bank is closed"), False]

    def find(order: str) -> Any:
        outcome = found.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @holdfast.step(check=find, check_after=0)
    def pay(order: str) -> str:
        return lose()

    seen = []
    for _ in range(3):
        with pytest.raises((StepInDoubt, StepFailed)):
            ways.resume(lambda task: task.step("pay", pay, "o-7"))
        seen.append(view(ways).steps[0].check)
    assert seen == [
        None,
        "it failed with TimeoutError: the bank is closed",
        "it returned False, which is not a result",
    ]
    found.append(None)
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("pay", pay, "o-7"))
    step = view(ways).steps[0]
    assert step.check == "it was not done" and step.in_doubt
    assert step.arguments == {"order": "o-7"}


def test_the_command_line_shows_what_to_look_for(tmp_path: Any) -> None:
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        leave_in_doubt(store, holdfast.step(Bank().pay, once=True), Order("7\x1b[31m", Decimal(1)))
    shown = run("task", path, "t").stdout
    assert "in doubt: pay" in shown
    assert f"idempotency key: {keys[-1]}" in shown
    assert '"id":"7' in shown.replace(" ", "") and "\x1b" not in shown
    facts = json.loads(run("task", path, "t", "--json").stdout)
    assert facts["steps"][0]["idempotency_key"] == keys[-1]


def test_arguments_are_encrypted_like_all_content(tmp_path: Any) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(str(path), key=holdfast.keys.generate()) as store:
        step = leave_in_doubt(store, holdfast.step(lose, once=True), "canary-4711")
    assert step.arguments == {"_": ["canary-4711"]}
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"canary" not in stored and keys[-1].encode() not in stored


@pytest.mark.parametrize("redact", [False, True])
def test_an_argument_that_is_nested_too_deep_does_no_damage(redact: bool) -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]

    @holdfast.step(once=True)
    def count(tree: list[Any]) -> int:
        return 300

    with holdfast.open("memory://", redact=redact) as store:
        for _ in range(2):
            with store.task("t") as task:
                assert task.step("count", count, deep) == 300
        assert store.task("t").view().steps[0].arguments == {"tree": "<builtins.list>"}
