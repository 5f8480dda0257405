"""Results of steps: recorded once, given back exactly, from every kind of callable; plain and
async."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pydantic
import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.step_functions import AT, ORDER, Order, never, paths
from holdfast import Store
from holdfast.errors import InvalidId, NoTask, SchemaMismatch

# -- results ---------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Receipt(pydantic.BaseModel):
    amount: Decimal
    colour: Colour
    lines: list[tuple[str, int]] = []


RECEIPT = Receipt(amount=Decimal("9.90"), colour=Colour.RED, lines=[("a", 1)])


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (None, Any),
        (0, int),
        ("", str),
        ([1, "a", None, {"b": 1.5}], Any),
        (ORDER, Order),
        (RECEIPT, Receipt),
        ([RECEIPT], list[Receipt]),
        (AT, datetime),
        (date(2026, 5, 1), date),
        (timedelta(seconds=1.5), timedelta),
        (Decimal("1.10"), Decimal),
        ({3, 1, 2}, set[int]),
        (frozenset({"a"}), frozenset[str]),
        (Colour.RED, Colour),
        ((1, "a"), tuple[int, str]),
        (b"\x00\xff", bytes),
        (UUID(int=7), UUID),
        ({"a": ORDER}, dict[str, Order]),
        (None, Order | None),
    ],
)
def test_a_typed_result_is_the_same_on_the_first_run_and_on_resume(
    ways: Ways, value: Any, declared: Any
) -> None:
    def annotated() -> Any:
        return value

    annotated.__annotations__["return"] = declared
    for name, fn in {
        "annotated": annotated,
        "returns": holdfast.step(lambda: value, returns=declared),
    }.items():
        first = ways.resume(lambda task, fn=fn: task.step("a", fn), name)
        again = ways.resume(lambda task, fn=fn: task.step("a", fn), name)
        assert first == again == value
        assert type(first) is type(again) is type(value)
    ways.resume(lambda task: task.finish(annotated), "finished")
    assert ways.resume(lambda task: task.finish(annotated), "finished") == value


def test_the_first_run_returns_the_value_as_stored_and_not_the_same_object(ways: Ways) -> None:
    given: list[Any] = [[1]]
    result = ways.resume(lambda task: task.step("a", lambda: given))
    assert result == given
    assert result is not given
    assert result[0] is not given[0]


def test_a_stored_result_that_no_longer_fits_its_type_is_an_error(ways: Ways) -> None:
    def number() -> int:
        return 1

    ways.resume(lambda task: task.step("a", lambda: "text"))
    with pytest.raises(SchemaMismatch):
        ways.resume(lambda task: task.step("a", number))
    assert ways.resume(lambda task: task.step("a", lambda: 1)) == "text"


@pytest.mark.every_engine
def test_large_results_are_kept(ways: Ways) -> None:
    large = ["x" * 1000] * 2000
    small = "x" * (64 * 1024 - 2)
    for name, value in {"large": large, "at the edge": small, "over it": small + "x"}.items():
        assert (
            ways.resume(lambda task, name=name, value=value: task.step(name, lambda: value))
            == value
        )
        assert ways.resume(lambda task, name=name: task.step(name, never)) == value
    assert [step.result for step in view(ways).steps] == [large, small, small + "x"]
    assert len(str(ways.store.task("t").history()[2].data)) < 1000, "the event names the blob"


def test_a_type_that_cannot_be_stored_is_refused_where_it_is_declared() -> None:
    def connect() -> threading.Lock:
        return threading.Lock()

    with pytest.raises(TypeError, match=r"cannot be stored|returns="):
        holdfast.step(connect)
    with pytest.raises(TypeError):
        holdfast.step(lambda: 1, returns=threading.Lock)


def test_a_return_type_that_is_defined_further_down_is_found(ways: Ways) -> None:
    module: dict[str, Any] = {"holdfast": holdfast, "dataclass": dataclass}
    exec(
        "from __future__ import annotations\n"
        "@holdfast.step\n"
        "def make() -> Later:\n    return Later(1)\n"
        "@dataclass\nclass Later:\n    x: int\n",
        module,
    )
    for _ in range(2):
        assert ways.resume(lambda task: task.step("make", module["make"])) == module["Later"](1)


def test_annotations_that_are_no_types_mean_plain_values(ways: Ways) -> None:
    def odd() -> Any:
        return [1]

    odd.__annotations__["return"] = "no type at all"
    assert ways.resume(lambda task: task.step("a", odd)) == [1]


# -- callables -------------------------------------------------------------------------------------


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @holdfast.step
    def sell(self, what: str) -> str:
        return f"{self.name} sells {what}"

    def count(self, n: int) -> int:
        return n + 1

    @staticmethod
    def open(hour: int) -> int:
        return hour

    @classmethod
    def named(cls, name: str) -> str:
        return name

    def __call__(self, n: int) -> tuple[int, int]:
        return n, n


@dataclass
class Adder:
    n: int

    def __call__(self, x: int) -> set[int]:
        return {self.n, x}


@functools.lru_cache
def cached(n: int) -> tuple[int]:
    return (n,)


@ON_MEMORY
@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "result"),
    [
        (lambda a, b: [a, b], (1,), {"b": 2}, [1, 2]),
        (functools.partial(lambda a, b: [a, b], 1), (2,), {}, [1, 2]),
        (functools.partial(Shop("x").count, n=4), (), {}, 5),
        (Shop("x").count, (1,), {}, 2),
        (Shop("x").sell, ("pens",), {}, "x sells pens"),
        (Shop.open, (9,), {}, 9),
        (Shop.named, ("y",), {}, "y"),
        (Shop("x"), (3,), {}, (3, 3)),
        (Adder(1), (2,), {}, {1, 2}),
        (cached, (1,), {}, (1,)),
        (len, ([1, 2],), {}, 2),
        (max, (1, 2), {}, 2),
        (sorted, ([2, 1],), {"reverse": True}, [2, 1]),
        (dict, (), {"a": 1}, {"a": 1}),
        (str.upper, ("a",), {}, "A"),
        (
            lambda *args, **kwargs: [list(args), kwargs],
            (1, 2),
            {"name": 3, "fn": 4, "args": 5},
            None,
        ),
    ],
)
def test_any_callable_is_a_step(ways: Ways, fn: Any, args: Any, kwargs: Any, result: Any) -> None:
    first = ways.resume(lambda task: task.step("a", fn, *args, **kwargs))
    assert first == (result if result is not None else [[1, 2], kwargs])
    assert ways.resume(lambda task: task.step("a", fn, *args, **kwargs)) == first
    assert [event.type for event in ways.store.task("t").history()].count("step.completed") == 1


def test_an_unhashable_callable_is_a_step(ways: Ways) -> None:
    @dataclass(eq=True)
    class Unhashable:
        n: int

        def __call__(self) -> int:
            return self.n

    assert ways.resume(lambda task: task.step("a", Unhashable(3))) == 3


@ON_MEMORY
@pytest.mark.parametrize("wrong", [7, "text", None])
def test_what_cannot_be_called_is_no_step(ways: Ways, wrong: Any) -> None:
    async def work(task: Any) -> None:
        with pytest.raises(TypeError, match="fn must be a function"):
            await task.step("a", wrong)

    ways.resume(work)


def test_arguments_that_do_not_fit_are_refused_before_anything_runs(ways: Ways) -> None:
    async def work(task: Any) -> None:
        for args, kwargs in (((), {}), ((1, 2), {}), ((1,), {"b": 2})):
            with pytest.raises(TypeError):
                await task.step("a", lambda x: x, *args, **kwargs)
        assert await task.step("a", lambda x: x, 1) == 1

    ways.resume(work)
    assert paths(ways) == ["a"]


@ON_MEMORY
@pytest.mark.parametrize(("name", "error"),
    [("", InvalidId), ("\ud800", InvalidId), ("x" * 600, InvalidId), (7, TypeError),
                                             ({}, TypeError), ({"name": 1}, TypeError),
                                             (None, TypeError)])  # fmt: skip
def test_what_is_no_name_is_refused(ways: Ways, name: Any, error: type[Exception]) -> None:
    async def work(task: Any) -> None:
        with pytest.raises(error):
            await task.step(name, never)

    ways.resume(work)
    assert paths(ways) == []


def test_a_decorated_function_is_plain_outside_of_a_task_and_a_step_inside(store: Store) -> None:
    calls: list[int] = []

    @holdfast.step
    def double(n: int) -> int:
        """Twice as much."""
        calls.append(n)
        return 2 * n

    assert (double.__name__, double.__doc__, repr(double)) == (
        "double",
        "Twice as much.",
        "<Step 'double'>",
    )
    assert [double(2), double(2)] == [4, 4]
    for _ in range(2):
        with store.task("t"):
            assert [double(3), double(3), double(n=4)] == [6, 6, 8]
    assert calls == [2, 2, 3, 3, 4]
    shop = Shop("x")
    assert shop.sell("pens") == "x sells pens"
    assert Shop.sell(shop, "pens") == "x sells pens"


def test_once_and_check_functions_refuse_to_run_outside_of_a_task() -> None:
    for fn in (holdfast.step(never, once=True), holdfast.step(never, check=never)):
        with pytest.raises(NoTask):
            fn()


def test_an_async_decorated_function_is_awaited_in_and_out_of_a_task(url: str) -> None:
    @holdfast.step
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    @holdfast.step
    def plain(n: int) -> int:
        return n

    async def main() -> None:
        assert await double(2) == 4
        assert plain(1) == 1
        async with holdfast.aopen(url) as store:
            for _ in range(2):
                async with store.task("t") as task:
                    assert await double(3) == 6
                    with pytest.raises(TypeError, match="block the event loop"):
                        plain(1)
                    assert await task.step("plain", plain, 1) == 1
                    assert await task.step("in a thread", lambda: [plain(5), plain(6)]) == [5, 6]
                    assert await task.step("hidden", lambda: double(7)) == 14
            seen = await store.get_task("t")
            assert seen is not None
            assert [step.path for step in seen.steps][:3] == ["double", "plain", "in a thread"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_attempts": 0}, ValueError),
        ({"max_attempts": 1.5}, ValueError),
        ({"max_attempts": True}, ValueError),
        ({"expect": -1}, ValueError),
        ({"drift": "ignore"}, ValueError),
        ({"kind": "agent"}, ValueError),
        ({"key": "text"}, TypeError),
        ({"check": "text"}, TypeError),
        ({"retry_on": "ValueError"}, TypeError),
        ({"retry_on": (int,)}, TypeError),
    ],
)
def test_options_that_cannot_work_are_refused_where_they_are_written(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        holdfast.step(**options)(lambda: 1)


def test_async_options_need_an_async_function() -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="async"):
        holdfast.step(lambda: 1, check=later)
    for timeout in (0, -1, "1", True):
        with pytest.raises(ValueError, match="timeout"):
            holdfast.step(later, timeout=timeout)  # type: ignore[arg-type]


def test_a_plain_function_in_an_async_task_runs_in_a_thread_with_the_context_of_its_caller(
    url: str,
) -> None:
    said: contextvars.ContextVar[str] = contextvars.ContextVar("said", default="nothing")

    def look() -> list[Any]:
        found = [
            said.get(),
            threading.current_thread() is threading.main_thread(),
            holdfast.current_step().path,
        ]
        said.set("inside")
        return found

    async def main() -> None:
        async with holdfast.aopen(url) as store, store.task("t") as task:
            said.set("hello")
            assert await task.step("a", look) == ["hello", False, "a"]
            assert said.get() == "hello"

    asyncio.run(main())
