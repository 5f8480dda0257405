"""Steps that call a model: what they use, how much they may use, and what the model saw; plain and
async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from holdfast import Budget, StepFailed, Usage
from holdfast.errors import BudgetExceeded
from holdfast.tasks.steps import failures


class Stop(BaseException):
    """The process is gone: what was written is there, the program did not go on."""


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "retry_delay", lambda attempt: 0.0)


def model(fn: Any, **options: Any) -> Any:
    return holdfast.step(fn, kind="model", **options)


def tell(**used: Any) -> None:
    holdfast.current_step().use(**used)


# -- usage -----------------------------------------------------------------------------------------

ANSWERS = {
    "chat completions": {
        "usage": {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}
    },
    "responses": {"usage": {"input_tokens": 30, "output_tokens": 4}},
    "objects": SimpleNamespace(usage=SimpleNamespace(prompt_tokens=30, completion_tokens=4)),
    "anthropic": SimpleNamespace(
        usage=SimpleNamespace(input_tokens=30, output_tokens=4, cache_read_input_tokens=None)
    ),
    "langchain": SimpleNamespace(usage_metadata={"input_tokens": 30, "output_tokens": 4}),
}


@ON_MEMORY
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_an_answer_says_of_its_usage_is_recorded(ways: Ways, answer: Any) -> None:
    def plain(answer: Any) -> Any:
        return answer

    declared = model(plain, returns=None) if not isinstance(answer, dict) else model(plain)

    async def work(task: Any) -> Usage:
        if isinstance(answer, dict):
            await task.step("ask", declared, answer)
        else:
            with pytest.raises(
                StepFailed
            ):  # it is no result that can be stored; it was paid for all the same
                await task.step("ask", declared, answer)
        return task.usage  # type: ignore[no-any-return]

    assert ways.resume(work) == Usage(1, 30, 4)
    assert view(ways).usage == view(ways).steps[0].usage == Usage(1, 30, 4)


@ON_MEMORY
@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        {"usage": None},
        {"usage": {"prompt_tokens": "30"}},
        {"usage": {"prompt_tokens": -1}},
        {"usage": 7},
    ],
)
def test_an_answer_that_says_nothing_is_a_call(ways: Ways, answer: Any) -> None:
    ways.resume(lambda task: task.step("ask", model(lambda: answer)))
    assert view(ways).usage == Usage(calls=1)


@ON_MEMORY
def test_a_tool_that_returns_something_called_usage_has_used_nothing(ways: Ways) -> None:
    ways.resume(
        lambda task: task.step("a", lambda: {"usage": {"input_tokens": 3, "output_tokens": 3}})
    )
    assert (view(ways).usage, view(ways).steps[0].usage) == (Usage(), None)
    [_, _, completed, _] = ways.store.task("t").history()
    assert "usage" not in completed.data
    assert "model_input" not in completed.data


def test_what_a_function_tells_counts_instead_of_the_answer_and_adds_up(ways: Ways) -> None:
    def ask() -> dict[str, Any]:
        tell(input_tokens=100)
        tell(output_tokens=20, cost=0.5, model="m-2026-05")
        return {"usage": {"input_tokens": 1, "output_tokens": 1}}

    ways.resume(lambda task: task.step("ask", model(ask)))
    [step] = view(ways).steps
    assert (step.usage, step.model) == (Usage(1, 100, 20, 0.5), "m-2026-05")


def test_a_tool_can_tell_what_it_used_call_by_call(ways: Ways) -> None:
    def search() -> str:
        tell(input_tokens=10, output_tokens=1)
        tell(input_tokens=20, output_tokens=2)
        return "found"

    ways.resume(lambda task: task.step("search", search))
    assert view(ways).usage == Usage(2, 30, 3)


@ON_MEMORY
def test_a_price_makes_the_cost_unless_one_is_told(ways: Ways) -> None:
    answer = {"usage": {"input_tokens": 2_000_000, "output_tokens": 500_000}}

    def dear() -> dict[str, Any]:
        tell(cost=7.5)
        return answer

    async def work(task: Any) -> None:
        await task.step("a", model(lambda: answer, price=(1.25, 10)))
        await task.step("b", model(dear, price=(1.25, 10)))

    ways.resume(work)
    assert [step.usage for step in view(ways).steps] == [
        Usage(1, 2_000_000, 500_000, 7.5),
        Usage(1, 2_000_000, 500_000, 7.5),
    ]


@pytest.mark.parametrize("price", [3, (1,), (1, 2, 3), (1, -1), ("1", 2), (float("nan"), 1)])
def test_a_price_is_two_numbers(price: Any) -> None:
    with pytest.raises(ValueError, match="a million input and output tokens"):
        holdfast.step(price=price)(len)


@ON_MEMORY
@pytest.mark.parametrize(
    "wrong",
    [
        {"input_tokens": -1},
        {"output_tokens": 1.5},
        {"cost": -1},
        {"input_tokens": True},
        {"model": 3},
    ],
)
def test_what_is_no_usage_is_refused(ways: Ways, wrong: dict[str, Any]) -> None:
    def ask() -> None:
        with pytest.raises((ValueError, TypeError)):
            tell(**wrong)

    ways.resume(lambda task: task.step("ask", ask))


@pytest.mark.usefixtures("no_pause")
def test_failed_attempts_are_paid_for_too(ways: Ways) -> None:
    attempts = []

    def ask() -> dict[str, Any]:
        attempts.append(1)
        tell(input_tokens=10)
        if len(attempts) < 3:
            raise TimeoutError
        return {}

    def hopeless() -> None:
        tell(input_tokens=5)
        raise ValueError("no")

    async def work(task: Any) -> None:
        await task.step("ask", model(ask, max_attempts=3))
        with pytest.raises(StepFailed):
            await task.step("hopeless", model(hopeless))
        with pytest.raises(StepFailed):
            await task.step("silent", model(lambda: 1 / 0))

    ways.resume(work)
    assert [step.usage for step in view(ways).steps] == [Usage(3, 30), Usage(1, 5), None]
    assert view(ways).usage == Usage(4, 35)


def test_what_was_used_before_a_step_was_cut_off_is_counted(ways: Ways) -> None:
    def ask(stop: bool) -> str:
        tell(input_tokens=10)
        if stop:
            raise Stop
        return "done"

    with pytest.raises(Stop):
        ways.resume(lambda task: task.step("ask", model(ask, key=lambda stop: "k"), True))
    assert view(ways).usage == Usage(1, 10)
    ways.resume(lambda task: task.step("ask", model(ask, key=lambda stop: "k"), False))
    assert view(ways).usage == view(ways).steps[0].usage == Usage(2, 20)


@ON_MEMORY
def test_a_step_that_is_given_again_uses_nothing(ways: Ways) -> None:
    for _ in range(3):
        ways.resume(lambda task: task.step("ask", model(lambda: {"usage": {"input_tokens": 3}})))
    assert view(ways).usage == Usage(1, 3)


@ON_MEMORY
def test_the_last_chunk_may_tell_the_usage(ways: Ways) -> None:
    def plain() -> Iterator[dict[str, Any]]:
        yield {"text": "a", "usage": None}
        yield {"text": "", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}

    async def awaited() -> AsyncIterator[dict[str, Any]]:
        for chunk in plain():
            yield chunk

    async def work(task: Any) -> None:
        async for _ in task.step("ask", model(awaited if ways.asynchronous else plain)):
            pass

    ways.resume(work)
    assert view(ways).usage == Usage(1, 9, 2)


# -- budgets ---------------------------------------------------------------------------------------


def spend(n: int) -> dict[str, Any]:
    return {"n": n, "usage": {"input_tokens": 60, "output_tokens": 40}}


async def ask_five_times(task: Any) -> int:
    ask = model(spend, price=(1000, 1000))
    for n in range(5):
        await task.step("ask", ask, n)
    return 5


@pytest.mark.parametrize(
    ("budget", "unit", "used"),
    [
        (Budget(tokens=250), "tokens", 300),
        (Budget(calls=3), "calls", 3),
        (Budget(cost=0.25), "cost", 0.3),
        (Budget(tokens=10_000, calls=3), "calls", 3),
    ],
    ids=["tokens", "calls", "cost", "several"],
)
def test_a_budget_that_is_used_up_stops_the_next_call(
    ways: Ways, budget: Budget, unit: str, used: float
) -> None:
    with pytest.raises(BudgetExceeded, match=f"Budget\\({unit}=") as caught:
        ways.resume(ask_five_times, budget=budget)
    assert caught.value.needed == pytest.approx(used)
    assert (caught.value.unit, caught.value.task) == (unit, "task 't'")
    found = view(ways)
    assert (found.status, [step.status for step in found.steps]) == ("failed", ["completed"] * 3)
    assert found.error is not None
    assert found.error.type == "BudgetExceeded"
    with pytest.raises(BudgetExceeded):  # the stored one counts
        ways.resume(ask_five_times)
    assert ways.resume(ask_five_times, budget=Budget(tokens=1000)) == 5
    assert view(ways).usage.calls == 5
    kinds = [event.type for event in ways.store.task("t").history()]
    assert kinds.count("task.budgeted") == 1


@ON_MEMORY
def test_the_same_budget_again_is_not_recorded_again(ways: Ways) -> None:
    for _ in range(2):
        ways.resume(ask_five_times, budget=Budget(calls=9))
    assert "task.budgeted" not in [event.type for event in ways.store.task("t").history()]


@ON_MEMORY
def test_a_budget_stops_only_what_calls_a_model_and_not_what_is_recorded(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.step("ask", model(spend), 0)
        assert await task.step("tool", len, "four") == 4

    ways.resume(work, budget=Budget(calls=1))
    ways.resume(work, budget=Budget(tokens=1))


@ON_MEMORY
def test_a_budget_that_ends_inside_a_step_passes_through_it(ways: Ways) -> None:
    def plain(task: Any) -> int:
        for n in range(3):
            task.plain.step("ask", model(spend), n)
        return 3

    async def awaited(task: Any) -> int:
        for n in range(3):
            await task.step("ask", model(spend), n)
        return 3

    async def work(task: Any) -> Any:
        return await task.step(
            "outer", holdfast.step(awaited if ways.asynchronous else plain, max_attempts=3), task
        )

    with pytest.raises(BudgetExceeded):
        ways.resume(work, budget=Budget(calls=2))
    assert view(ways).usage.calls == 2
    assert ways.resume(work, budget=Budget(calls=3)) == 3


@ON_MEMORY
@pytest.mark.usefixtures("no_pause")
def test_a_budget_leaves_no_room_for_another_attempt(ways: Ways) -> None:
    attempts = []

    def ask() -> None:
        attempts.append(1)
        tell(input_tokens=100)
        raise TimeoutError

    with pytest.raises(StepFailed, match="TimeoutError"):
        ways.resume(
            lambda task: task.step("ask", model(ask, max_attempts=9)), budget=Budget(tokens=150)
        )
    assert len(attempts) == 2


@ON_MEMORY
def test_a_check_is_asked_even_if_the_budget_is_used_up(ways: Ways) -> None:
    def ask() -> str:
        tell(input_tokens=100)
        raise Stop

    asking = model(ask, check=lambda: "it was done")
    with pytest.raises(Stop):
        ways.resume(lambda task: task.step("ask", asking), budget=Budget(tokens=1))
    assert ways.resume(lambda task: task.step("ask", asking)) == "it was done"


@ON_MEMORY
def test_what_a_check_says_was_not_done_needs_a_budget_to_be_done(ways: Ways) -> None:
    attempts = []

    def ask() -> str:
        attempts.append(1)
        tell(input_tokens=100)
        if len(attempts) == 1:
            raise Stop
        return "done"

    asking = model(ask, check=lambda: None)
    with pytest.raises(Stop):
        ways.resume(lambda task: task.step("ask", asking), budget=Budget(tokens=1))
    with pytest.raises(BudgetExceeded):
        ways.resume(lambda task: task.step("ask", asking))
    assert len(attempts) == 1
    assert ways.resume(lambda task: task.step("ask", asking), budget=Budget(tokens=1000)) == "done"


@pytest.mark.parametrize(
    "wrong", [{}, {"tokens": 0}, {"tokens": 1.5}, {"calls": True}, {"cost": 0}, {"cost": "1"}]
)
def test_a_budget_limits_something(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must"):
        Budget(**wrong)


def test_a_budget_is_a_budget(store: holdfast.Store) -> None:
    with pytest.raises(TypeError, match="budget"):
        store.task("t", budget=3)  # type: ignore[arg-type]
