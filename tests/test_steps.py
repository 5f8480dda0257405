"""Steps: run once and for all, matched whatever the order, failed, in doubt and settled; on every backend, plain and async."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Optional
from uuid import UUID

import pydantic
import pytest

import holdfast
from both_ways import Ways, view
from holdfast import (
    Held,
    InvalidId,
    NoTask,
    NotDone,
    NotFound,
    NotSerializable,
    ReplayMismatch,
    SchemaMismatch,
    StepFailed,
    StepInDoubt,
    Store,
    TaskEnded,
    Unavailable,
)
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.tasks import _progress, _running, _signals

ON_MEMORY = pytest.mark.parametrize("url", ["memory://"], ids=["memory"])
"""For what is far above the backends, and asked in many ways."""


@pytest.fixture(params=["plain", "async"])
def ways(request: pytest.FixtureRequest, url: str) -> Iterator[Ways]:
    with holdfast.open(url) as store:
        yield Ways(store, asynchronous=request.param == "async")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_running, "pause", lambda attempt: 0.0)


class Stop(BaseException):
    """The process is gone: what was written is there, the program did not go on."""


def never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a finished step was run again")


def fail(message: str = "no") -> Any:
    raise ValueError(message)


class Counting:
    """A function that notes its calls and does what it is told: raise, or return."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.calls = list(outcomes), list[Any]()

    def __call__(self, *args: Any) -> Any:
        self.calls.append(args[0] if len(args) == 1 else args)
        outcome = self.outcomes.pop(0) if self.outcomes else len(self.calls)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def paths(ways: Ways, id: str = "t") -> list[str]:
    return [step.path for step in view(ways, id).steps]


# -- results -----------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int
    price: Decimal
    at: datetime
    tags: set[str] = field(default_factory=set)
    inner: Optional[Order] = None  # noqa: UP045  get_type_hints on Python 3.10 and a class that names itself


class Receipt(pydantic.BaseModel):
    amount: Decimal
    colour: Colour
    lines: list[tuple[str, int]] = []


AT = datetime(2026, 5, 1, 12, 30, tzinfo=timezone.utc)
ORDER = Order(7, Decimal("1.10"), AT, {"b", "a"}, Order(8, Decimal("0"), AT))
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
def test_a_typed_result_is_the_same_on_the_first_run_and_on_resume(ways: Ways, value: Any, declared: Any) -> None:
    def annotated() -> Any:
        return value

    annotated.__annotations__["return"] = declared
    for name, fn in {"annotated": annotated, "returns": holdfast.step(lambda: value, returns=declared)}.items():
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


@ON_MEMORY
@pytest.mark.parametrize("value", [object(), {1, 2}, (1, 2), AT, {1: "a"}, float("nan"), ORDER, Colour.RED, lambda: 1])
def test_a_result_that_would_not_come_back_fails_its_step(ways: Ways, value: Any) -> None:
    with pytest.raises(StepFailed) as caught:
        ways.resume(lambda task: task.step("a", lambda: value))
    assert caught.value.type == "NotSerializable"
    assert isinstance(caught.value.__cause__, NotSerializable)
    assert ways.resume(lambda task: task.step("a", lambda: 1)) == 1


def test_a_result_of_another_type_than_declared_fails_its_step(ways: Ways) -> None:
    def wrong() -> int:
        return "text"  # type: ignore[return-value]

    with pytest.raises(StepFailed, match="NotSerializable"):
        ways.resume(lambda task: task.step("a", wrong))


def test_a_stored_result_that_no_longer_fits_its_type_is_an_error(ways: Ways) -> None:
    def number() -> int:
        return 1

    ways.resume(lambda task: task.step("a", lambda: "text"))
    with pytest.raises(SchemaMismatch):
        ways.resume(lambda task: task.step("a", number))
    assert ways.resume(lambda task: task.step("a", lambda: 1)) == "text"


def test_large_results_are_kept(ways: Ways) -> None:
    large = ["x" * 1000] * 2000
    small = "x" * (64 * 1024 - 2)
    for name, value in {"large": large, "at the edge": small, "over it": small + "x"}.items():
        assert ways.resume(lambda task, name=name, value=value: task.step(name, lambda: value)) == value
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


# -- callables ---------------------------------------------------------------------------------------


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
        (lambda *args, **kwargs: [list(args), kwargs], (1, 2), {"name": 3, "fn": 4, "args": 5}, None),
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
        with pytest.raises(TypeError, match="needs a function"):
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
@pytest.mark.parametrize(("name", "error"), [("", InvalidId), ("\ud800", InvalidId), ("x" * 600, InvalidId), (7, TypeError),
                                             ({}, TypeError), ({"name": 1}, TypeError), (None, TypeError)])  # fmt: skip
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

    assert (double.__name__, double.__doc__, repr(double)) == ("double", "Twice as much.", "<Step 'double'>")
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
                    with pytest.raises(TypeError, match="hold up the event loop"):
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
        ({"attempts": 0}, ValueError),
        ({"attempts": 1.5}, ValueError),
        ({"attempts": True}, ValueError),
        ({"timeout": 1}, TypeError),
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


def test_a_plain_function_in_an_async_task_runs_in_a_thread_with_the_context_of_its_caller(url: str) -> None:
    said: contextvars.ContextVar[str] = contextvars.ContextVar("said", default="nothing")

    def look() -> list[Any]:
        found = [said.get(), threading.current_thread() is threading.main_thread(), holdfast.current_step().path]
        said.set("inside")
        return found

    async def main() -> None:
        async with holdfast.aopen(url) as store, store.task("t") as task:
            said.set("hello")
            assert await task.step("a", look) == ["hello", False, "a"]
            assert said.get() == "hello"

    asyncio.run(main())


# -- identity ----------------------------------------------------------------------------------------


NAMES = ["a/b", "a#2", "a[b]", "a", "%", "%2F", "a%2Fb", "é日🔥", " ", "\n", "[", "]", "#", "/", "a b"]


def test_odd_names_are_kept_apart_and_come_back(ways: Ways) -> None:
    async def work(task: Any, fn: Any) -> Any:
        return [await task.step(name, fn, name) for name in [*NAMES, "a"]]

    assert ways.resume(lambda task: work(task, lambda *args, **more: args[0])) == [*NAMES, "a"]
    assert ways.resume(lambda task: work(task, never)) == [*NAMES, "a"]
    seen = view(ways).steps
    assert [step.name for step in seen] == [*NAMES, "a"]
    assert len({step.path for step in seen}) == len(seen)
    assert seen[-1].path == "a#2"


def test_odd_keys_are_kept_apart_and_come_back(ways: Ways) -> None:
    keyed = holdfast.step(lambda name: name, key=lambda name: name)

    async def work(task: Any) -> Any:
        return [await task.step("a", keyed, name) for name in NAMES]

    for _ in range(2):
        assert ways.resume(work) == NAMES
    assert [step.key for step in view(ways).steps] == NAMES
    assert {step.name for step in view(ways).steps} == {"a"}


def test_positional_and_keyword_arguments_are_the_same_arguments(ways: Ways) -> None:
    def add(a: int, b: int = 2, **more: int) -> int:
        return a + b

    ways.resume(lambda task: task.step("add", add, 1, 3, c=1, d=2))
    for call in (
        lambda task: task.step("add", add, a=1, b=3, d=2, c=1),
        lambda task: task.step("add", add, 1, b=3, c=1, d=2),
    ):
        assert ways.resume(call) == 4
    assert paths(ways) == ["add"]


def test_a_new_parameter_with_a_default_changes_nothing(ways: Ways) -> None:
    ways.resume(lambda task: task.step("a", lambda x: x, 1))
    assert ways.resume(lambda task: task.step("a", lambda x, y=2: never(), 1)) == 1


@ON_MEMORY
@pytest.mark.parametrize(
    ("recorded", "now"),
    [((1,), (2,)), ((1,), (1.5,)), ((1,), ("1",)), ((1,), (True,)), (([],), ({},)), ((None,), (0,)), (("a",), ("á",)),
     (({"a": 1},), ({"a": 2},)), ((ORDER,), (Order(1, Decimal(1), AT),)), ((Decimal("1.0"),), (Decimal("1.00"),))],
)  # fmt: skip
def test_a_finished_step_asked_for_with_other_arguments_is_refused_before_anything_runs(
    ways: Ways, recorded: Any, now: Any
) -> None:
    ways.resume(lambda task: task.step("a", lambda *args: 1, *recorded))
    with pytest.raises(ReplayMismatch) as caught:
        ways.resume(lambda task: task.step("a", never, *now))
    assert caught.value.step == "a"
    assert view(ways).status == "failed"
    assert ways.resume(lambda task: task.step("a", never, *recorded)) == 1


class Client:
    """Nothing that could be encoded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_what_cannot_be_encoded_counts_by_its_type(ways: Ways) -> None:
    async def work(task: Any, *args: Any) -> Any:
        return await task.step("a", lambda *args: len(args), *args)

    assert ways.resume(lambda task: work(task, Client(), {"deep": [Client(), 1]}, 2)) == 3
    assert ways.resume(lambda task: work(task, Client(), {"deep": [Client(), 1]}, 2)) == 3
    for other in (
        (Client(), {"deep": [Client(), 2]}, 2),
        (Client(), {"deep": [threading.Lock(), 1]}, 2),
        (ways.store, {}, 2),
    ):
        with pytest.raises(ReplayMismatch):
            ways.resume(lambda task, other=other: work(task, *other))


def test_a_task_a_store_and_a_conversation_count_by_type_only(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        return await task.step("a", lambda *args: 1, ways.store, ways.store.aio, task, ways.store.conversation("c"))

    assert [ways.resume(work), ways.resume(work)] == [1, 1]


def test_steps_of_one_name_are_matched_by_arguments_whatever_the_order(ways: Ways) -> None:
    fn = Counting()

    async def work(task: Any, order: list[int]) -> Any:
        return {n: await task.step("a", fn, n) for n in order}

    first = ways.resume(lambda task: work(task, [1, 2, 3]))
    assert ways.resume(lambda task: work(task, [3, 1, 2])) == first
    assert ways.resume(lambda task: work(task, [2])) == {2: first[2]}
    assert fn.calls == [1, 2, 3]
    assert paths(ways) == ["a", "a#2", "a#3"]
    assert view(ways).unasked == ["a", "a#3"]


def test_equal_calls_are_steps_of_their_own_in_order(ways: Ways) -> None:
    fn = Counting()

    async def work(task: Any) -> Any:
        return [await task.step("a", fn, 1) for _ in range(3)]

    assert ways.resume(work) == [1, 2, 3]
    assert ways.resume(work) == [1, 2, 3]
    assert fn.calls == [1, 1, 1]


def test_a_step_that_had_not_finished_runs_with_the_new_arguments(ways: Ways) -> None:
    fn = Counting(ValueError("no"), Stop(), 3)

    async def work(task: Any, x: int) -> Any:
        return await task.step("a", fn, x)

    with pytest.raises(StepFailed):
        ways.resume(lambda task: work(task, 1))
    with pytest.raises(Stop):
        ways.resume(lambda task: work(task, 2))
    assert ways.resume(lambda task: work(task, 3)) == 3
    assert ways.resume(lambda task: work(task, 3)) == 3
    with pytest.raises(ReplayMismatch):
        ways.resume(lambda task: work(task, 1))
    assert fn.calls == [1, 2, 3]
    assert paths(ways) == ["a"]


def test_threads_may_come_in_any_order(store: Store) -> None:
    fn = Counting()
    lock = threading.Lock()

    def guarded(n: int) -> int:
        with lock:
            fn.calls.append(n)
        return n * 10

    def work(order: list[int]) -> dict[int, int]:
        with store.task("t") as task, ThreadPoolExecutor(8) as pool:
            found = {n: pool.submit(task.step, "a", guarded, n) for n in order}
            return {n: done.result() for n, done in found.items()}

    numbers = list(range(40))
    first = work(numbers)
    assert first == {n: 10 * n for n in numbers}
    assert work(numbers[::-1]) == first
    assert sorted(fn.calls) == numbers
    seen = store.get_task("t")
    assert seen is not None
    assert len({step.path for step in seen.steps}) == 40


def test_gathered_steps_may_come_in_any_order(url: str) -> None:
    calls: list[int] = []

    async def later(n: int) -> int:
        await asyncio.sleep(0.001 * (n % 3))
        calls.append(n)
        return n * 10

    async def main() -> None:
        async with holdfast.aopen(url) as store:
            for order in (list(range(30)), list(range(30))[::-1], [7, 7, 7], [7, 7, 7]):
                async with store.task("t" if len(order) == 30 else "equal") as task:
                    found = await asyncio.gather(*[task.step("a", later, n) for n in order])
                    assert found == [n * 10 for n in order]

    asyncio.run(main())
    assert sorted(calls) == sorted([*range(30), 7, 7, 7])


def test_a_key_is_the_identity_and_other_arguments_are_reported(ways: Ways) -> None:
    fn = Counting()
    pay = holdfast.step(fn, key=lambda order, amount: order)

    async def work(task: Any, amount: int) -> Any:
        return [await task.step("pay", pay, order, amount) for order in ("x", "y")]

    assert ways.resume(lambda task: work(task, 1)) == [1, 2]
    assert ways.resume(lambda task: work(task, 2)) == [1, 2]
    assert fn.calls == [("x", 1), ("y", 1)]
    assert paths(ways) == ["pay[x]", "pay[y]"]
    assert [(drift.step, drift.what) for drift in view(ways).drift] == [
        ("pay[x]", "arguments"),
        ("pay[y]", "arguments"),
    ]


def test_a_key_for_one_call(ways: Ways) -> None:
    fn = Counting()
    pay = holdfast.step(fn)

    async def work(task: Any) -> Any:
        return [await task.step("pay", pay.using(key=key), 1) for key in ("a", 7, "7", "a")]

    assert ways.resume(work) == [1, 2, 2, 1]
    assert ways.resume(work) == [1, 2, 2, 1]
    assert paths(ways) == ["pay[a]", "pay[7]"]
    for wrong in (None, 1.5, True, b"x"):
        with pytest.raises(TypeError):
            pay.using(key=wrong)
    for odd in ("", "\0", "x" * 600):
        with pytest.raises(InvalidId):
            pay.using(key=odd)


def test_two_calls_with_one_key_at_once_are_refused(store: Store) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @holdfast.step
    def wait() -> int:
        begun.set()
        assert go_on.wait(30)
        return 1

    with store.task("t") as task, ThreadPoolExecutor(1) as pool:
        first = pool.submit(task.step, "a", wait.using(key="k"))
        assert begun.wait(30)
        with pytest.raises(RuntimeError, match="running already"):
            task.step("a", wait.using(key="k"))
        go_on.set()
        assert first.result() == 1
        assert task.step("a", wait.using(key="k")) == 1


@pytest.mark.parametrize("policy", ["refuse", "keep", "rerun"])
def test_drift_is_handled_as_the_step_says(ways: Ways, policy: Any) -> None:
    fn = Counting()
    step = holdfast.step(fn, drift=policy)

    async def work(task: Any, x: int) -> Any:
        return await task.step("a", step, x)

    assert ways.resume(lambda task: work(task, 1)) == 1
    if policy == "refuse":
        with pytest.raises(ReplayMismatch):
            ways.resume(lambda task: work(task, 2))
        assert ways.resume(lambda task: work(task, 1)) == 1
    elif policy == "keep":
        assert ways.resume(lambda task: work(task, 2)) == 1
        assert [drift.what for drift in view(ways).drift] == ["arguments"]
        assert ways.resume(lambda task: work(task, 1)) == 1
    else:
        assert ways.resume(lambda task: work(task, 2)) == 2
        assert ways.resume(lambda task: work(task, 2)) == 2
        assert [drift.what for drift in view(ways).drift] == []
        assert ways.resume(lambda task: work(task, 1)) == 3
    assert paths(ways) == ["a"]
    assert len(fn.calls) == (3 if policy == "rerun" else 1)


def test_changed_code_is_reported_and_the_recorded_result_kept(ways: Ways) -> None:
    ways.resume(lambda task: task.step("a", lambda: 1))
    assert ways.resume(lambda task: task.step("a", lambda: 2 + never())) == 1
    assert [(drift.step, drift.what) for drift in view(ways).drift] == [("a", "code")]


def test_another_model_is_reported_as_such(ways: Ways) -> None:
    ask = holdfast.step(lambda text, model="small": text, kind="model", drift="keep")

    async def work(task: Any, **options: Any) -> Any:
        return await task.step("ask", ask, "hello", **options)

    ways.resume(work)
    assert (view(ways).steps[0].kind, view(ways).steps[0].model) == ("model", "small")
    assert ways.resume(lambda task: work(task, model="large")) == "hello"
    [drift] = view(ways).drift
    assert (drift.what, drift.recorded, drift.now) == ("model", "small", "large")


def test_a_plan_item_is_the_step_of_its_name_at_the_top(ways: Ways) -> None:
    fn = Counting()

    async def work(task: Any, x: int) -> Any:
        await task.make_plan(["a", {"name": "b", "n": 1}, "a"])
        return [await task.step(item, fn, x) for item in ("a", {"name": "b", "other": 2}, "a", "a")]

    assert ways.resume(lambda task: work(task, 1)) == [1, 2, 3, 4]
    assert paths(ways) == ["a", "b", "a#2", "a#3"]
    assert ways.resume(lambda task: work(task, 1)) == [1, 2, 3, 4]

    async def items_only(task: Any) -> Any:
        return [await task.step(item, fn, 2) for item in ("a", "b", "a")]

    assert ways.resume(items_only) == [1, 2, 3], "the plan is the identity, other arguments are reported"
    assert [drift.step for drift in view(ways).drift] == ["a", "b", "a#2"]


# -- nesting -----------------------------------------------------------------------------------------


def nest(fn: Callable[..., Any], depth: int) -> Callable[..., Any]:
    """Steps of one name, called inside each other, twice each."""
    if depth == 0:
        return fn
    inner = nest(fn, depth - 1)

    @holdfast.step(returns=Any)
    def work(n: int) -> Any:
        return [inner(2 * n), inner(2 * n + 1)]

    return work


def test_steps_inside_steps_are_scoped_to_them(ways: Ways) -> None:
    fn = Counting()
    leaf = holdfast.step(lambda n: fn(n), returns=Any)
    leaf.fn.__name__ = "work"

    async def work(task: Any) -> Any:
        return await task.step("work", nest(leaf, 2), 1)

    with pytest.raises(StepFailed):
        fn.outcomes = [1, 2, ValueError("no")]
        ways.resume(work)
    assert ways.resume(work) == [[1, 2], [4, 5]]
    assert fn.calls == [4, 5, 6, 6, 7], "what had finished inside was not done again"
    assert sorted(paths(ways)) == [
        "work", "work/work", "work/work#2", "work/work#2/work", "work/work#2/work#2", "work/work/work", "work/work/work#2",
    ]  # fmt: skip
    by_path = {step.path: step for step in view(ways).steps}
    assert by_path["work/work#2/work"].parent == "work/work#2"
    assert by_path["work"].parent == ""


def test_a_finished_step_does_not_run_what_is_inside_it(ways: Ways) -> None:
    fn = Counting()
    inner = holdfast.step(lambda: fn("inner"), returns=int)

    def outer() -> int:
        return int(inner()) + 1

    for _ in range(2):
        assert ways.resume(lambda task: task.step("outer", outer)) == 2
    assert fn.calls == ["inner"]
    assert view(ways).unasked == []


def test_a_step_of_another_task_inside_a_step_is_at_the_top_of_that_task(store: Store) -> None:
    @holdfast.step
    def note(what: str) -> str:
        return what

    with store.task("outer") as outer:

        def work() -> list[Any]:
            with store.task("inner"):
                found = [note("in"), holdfast.current_task().id]
            return [*found, note("out"), holdfast.current_task().id]

        assert outer.step("work", work) == ["in", "inner", "out", "outer"]
    for name, steps in {"inner": ["note"], "outer": ["work", "work/note"]}.items():
        seen = store.get_task(name)
        assert seen is not None
        assert sorted(step.path for step in seen.steps) == steps


# -- failures ----------------------------------------------------------------------------------------


def test_a_failure_is_the_same_on_the_first_run_and_on_replay(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        try:
            await task.step("a", fail, "out of paper")
        except StepFailed as error:
            await task.decide("went on")
            return error

    first, again = ways.resume(work), ways.resume(work)
    assert str(first) == str(again)
    for error in (first, again):
        assert (error.step, error.type, error.message, error.causes) == ("a", "ValueError", "out of paper", ())
    assert isinstance(first.__cause__, ValueError)
    assert again.__cause__ is None
    [step] = view(ways).steps
    assert (step.status, step.replays, step.in_doubt) == ("failed", True, False)
    assert step.error == holdfast.tasks.Failure("ValueError", "out of paper")


def test_a_failure_that_ended_the_run_is_tried_again(ways: Ways) -> None:
    fn = Counting(ValueError("no"), ValueError("no"), "done")
    for _ in range(2):
        with pytest.raises(StepFailed):
            ways.resume(lambda task: task.step("a", fn))
        assert view(ways).steps[0].status == "retrying"
    assert ways.resume(lambda task: task.step("a", fn)) == "done"
    assert view(ways).steps[0].error is None


def wrapped(how: str) -> Callable[[StepFailed], BaseException]:
    def wrap(error: StepFailed) -> BaseException:
        try:
            if how == "from it":
                raise KeyError("wrapped") from error
            if how == "from another":
                raise KeyError("wrapped") from OSError()
            if how == "from none":
                raise KeyError("wrapped") from None
            raise KeyError("wrapped")
        except KeyError as found:
            return found

    return wrap


@pytest.mark.parametrize("how", ["from it", "from another", "from none", "during"])
def test_a_failure_that_ended_the_run_in_another_exception_is_tried_again(ways: Ways, how: str) -> None:
    async def work(task: Any, fn: Any) -> Any:
        try:
            return await task.step("a", fn)
        except StepFailed as error:
            raise wrapped(how)(error)  # noqa: B904

    with pytest.raises(KeyError):
        ways.resume(lambda task: work(task, fail))
    assert ways.resume(lambda task: work(task, lambda: 1)) == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no task groups before Python 3.11")
def test_failures_in_a_group_are_tried_again(url: str) -> None:
    async def no() -> None:
        raise ValueError("no")

    async def yes() -> int:
        return 1

    async def main() -> None:
        async with holdfast.aopen(url) as store:
            with pytest.raises(__import__("builtins").ExceptionGroup):
                async with store.task("t") as task, asyncio.TaskGroup() as group:
                    group.create_task(task.step("a", no))
                    group.create_task(task.step("b", no))
            async with store.task("t") as task:
                assert [await task.step(name, yes) for name in "ab"] == [1, 1]

    asyncio.run(main())


def test_a_failure_that_was_caught_replays_though_the_run_failed_elsewhere(ways: Ways) -> None:
    fn = Counting(ValueError("no"))

    async def work(task: Any, later: Any) -> Any:
        try:
            await task.step("a", fn)
        except StepFailed:
            pass
        return await task.step("b", later)

    with pytest.raises(StepFailed):
        ways.resume(lambda task: work(task, fail))
    assert [step.status for step in view(ways).steps] == ["failed", "retrying"]
    assert ways.resume(lambda task: work(task, lambda: 1)) == 1
    assert fn.calls == [()]


def test_a_failure_does_not_replay_for_a_call_with_other_arguments(ways: Ways) -> None:
    fn = Counting(ValueError("no"))

    async def work(task: Any, x: int) -> Any:
        try:
            return await task.step("a", fn, x)
        except StepFailed:
            await task.decide("went on")

    assert ways.resume(lambda task: work(task, 1)) is None
    assert ways.resume(lambda task: work(task, 2)) == 2
    assert fn.calls == [1, 2]


def test_a_failure_after_which_the_block_was_left_in_order_replays(ways: Ways) -> None:
    fn = Counting(ValueError("no"))

    async def work(task: Any) -> None:
        with pytest.raises(StepFailed):
            await task.step("a", fn)

    ways.resume(work)
    ways.resume(work)
    assert fn.calls == [()]


def test_a_failure_after_which_nothing_was_heard_is_tried_again(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        try:
            return await task.step("a", fn)
        except StepFailed:
            raise Stop() from None

    fn = Counting(ValueError("no"), "done")
    with pytest.raises(Stop):
        ways.resume(work)
    assert ways.resume(work) == "done"


def test_the_failure_of_an_inner_step_is_that_of_the_outer_and_both_are_tried_again(ways: Ways) -> None:
    fn = Counting(ValueError("no"), "done")
    inner = holdfast.step(lambda: fn("inner"), returns=str)
    inner.fn.__name__ = "inner"

    async def work(task: Any) -> Any:
        return await task.step("outer", lambda: inner())

    with pytest.raises(StepFailed) as caught:
        ways.resume(work)
    assert (caught.value.step, caught.value.type, caught.value.causes) == ("outer", "StepFailed", ("outer/inner",))
    assert {step.status for step in view(ways).steps} == {"retrying"}
    assert ways.resume(work) == "done"


def test_an_inner_failure_that_the_outer_step_caught_is_its_own_affair(ways: Ways) -> None:
    fn = Counting(ValueError("no"))
    inner = holdfast.step(lambda: fn("inner"), returns=str)

    def outer(then: str) -> str:
        try:
            return str(inner())
        except StepFailed:
            if then == "stop":
                raise Stop() from None
            return then

    assert ways.resume(lambda task: task.step("a", outer, "went on")) == "went on"
    assert ways.resume(lambda task: task.step("a", outer, "went on")) == "went on"
    assert fn.calls == ["inner"]


def test_a_message_that_cannot_be_stored_is_stored_as_well_as_can_be(ways: Ways) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    for name, error in {"surrogate": ValueError("a\ud800b"), "mute": Mute(), "long": ValueError("x" * 100_000)}.items():
        with pytest.raises(StepFailed):
            ways.resume(lambda task, name=name, error=error: task.step(name, Counting(error)))
    messages = {step.name: step.error.message for step in view(ways).steps if step.error}
    assert messages["surrogate"] == "a?b"
    assert messages["mute"] == ""
    assert 1000 < len(messages["long"]) < 10_000


def test_a_stop_iteration_is_a_failure_like_any_other(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        with pytest.raises(StepFailed, match="StopIteration"):
            await task.step("a", lambda: next(iter([])))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await task.make_plan(lambda: next(iter([])))
        return await task.step("b", lambda: 1)

    assert ways.resume(work) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_start_that_could_not_be_written_is_written_later(asynchronous: bool) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    inner = holdfast.step(lambda: 1, returns=int)
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)

        def outer() -> None:
            backend.next("unavailable")
            with pytest.raises(Unavailable):
                inner()
            raise Stop

        with pytest.raises(Stop):
            ways.resume(lambda task: task.step("outer", outer))
        assert backend.injected["unavailable"] == 1
        assert [step.status for step in view(ways).steps if step.path == "outer"] == ["interrupted"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_storage_that_fails_is_not_the_steps_failure(asynchronous: bool) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    fn = Counting("first", "second")
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)

        def work_and_cut() -> Any:
            backend._rates["unavailable"] = 1.0
            return fn()

        with pytest.raises(Unavailable):
            ways.resume(lambda task: task.step("a", work_and_cut), lease=0.2)
        backend._rates["unavailable"] = 0.0
        assert ways.resume(lambda task: task.step("a", fn)) == "second"


# -- in doubt ----------------------------------------------------------------------------------------


ENDS = [Stop(), KeyboardInterrupt(), ValueError("no"), object()]


def doubtful(ways: Ways, end: Any, *, check: Any = None, name: str = "pay", id: str = "t") -> Counting:
    """Leave a step in doubt: cut off, failed, or with a result that cannot be stored."""
    fn = Counting(end)
    pay = holdfast.step(fn, check=check) if check is not None else holdfast.step(fn, once=True)
    cut = isinstance(end, BaseException) and not isinstance(end, Exception)

    async def work(task: Any) -> None:
        if ways.asynchronous and cut:

            async def later(*args: Any) -> Any:
                return fn(*args)

            # Not in a thread: there, nobody is interrupted.
            stepped = holdfast.step(later, check=check) if check is not None else holdfast.step(later, once=True)
            await task.step(name, stepped, 1)
        await task.step(name, pay, 1)

    with pytest.raises(type(end) if cut else StepInDoubt if check is None else StepFailed):
        ways.resume(work, id)
    return fn


@pytest.mark.parametrize("end", ENDS)
def test_a_once_step_without_an_outcome_is_never_run_again_by_itself(ways: Ways, end: Any) -> None:
    doubtful(ways, end)
    seen = view(ways)
    assert (seen.in_doubt, seen.status, seen.steps[0].in_doubt, seen.steps[0].mode) == (["pay"], "open", True, "once")
    assert not seen.steps[0].replays
    assert [info.in_doubt for info in ways.store.tasks()] == [True]
    pay = holdfast.step(never, once=True)
    for _ in range(2):
        with pytest.raises(StepInDoubt) as caught:
            ways.resume(lambda task: task.step("pay", pay, 1))
        assert caught.value.step == "pay"
        assert view(ways).status == "open"
    with pytest.raises(StepInDoubt):
        ways.resume(lambda task: task.step("pay", never, 1)), "though its code no longer says once"


def test_the_start_of_a_once_step_is_durable_before_it_runs_and_that_of_an_ordinary_one_is_not(ways: Ways) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append([(event.type, event.data.get("step")) for event in ways.store.task("t").history()][2:])

    async def work(task: Any) -> None:
        await task.step("ordinary", look)
        await task.step("once", holdfast.step(look, once=True))
        await task.step("check", holdfast.step(look, check=never))

    ways.resume(work)
    assert seen[0] == []
    assert seen[1][-1] == ("step.started", "once")
    assert seen[2][-1] == ("step.started", "check")
    types = [event.type for event in ways.store.task("t").history()]
    assert types.count("step.started") == 2, "an ordinary step costs one event"


def test_a_step_that_runs_is_not_in_doubt(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        def look() -> list[Any]:
            return [task.in_doubt, view(ways).in_doubt, view(ways).steps[0].status]

        return await task.step("pay", holdfast.step(look, once=True))

    assert ways.resume(work) == [[], [], "running"]


def test_an_ordinary_step_that_was_cut_off_is_run_again(ways: Ways) -> None:
    fn = Counting(Stop(), 2)
    with pytest.raises(Stop):
        ways.resume(lambda task: task.step("a", fn))
    assert view(ways).steps[0].status == "interrupted"
    assert view(ways).in_doubt == []
    assert ways.resume(lambda task: task.step("a", fn)) == 2


@pytest.mark.parametrize("mode", ["once", "check"])
def test_a_step_that_says_it_was_not_done_is_not_in_doubt(ways: Ways, mode: str) -> None:
    fn = Counting(NotDone("nothing was sent"), 2)
    pay = holdfast.step(fn, once=True) if mode == "once" else holdfast.step(fn, check=never)
    with pytest.raises(StepFailed) as caught:
        ways.resume(lambda task: task.step("pay", pay))
    assert caught.value.type == "NotDone"
    assert view(ways).in_doubt == []
    assert ways.resume(lambda task: task.step("pay", pay)) == 2


@pytest.mark.parametrize("result", [None, 7, {"a": [1]}, ORDER, "x" * 100_000])
@pytest.mark.parametrize("end", ENDS[1:3])
def test_a_doubt_is_resolved_with_a_result(ways: Ways, end: Any, result: Any) -> None:
    doubtful(ways, end)
    ways.store.resolve("t", "pay", result=result)
    assert [info.in_doubt for info in ways.store.tasks()] == [False]
    pay = holdfast.step(never, once=True, returns=Order if result is ORDER else Any)
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == result
    [step] = view(ways).steps
    assert (step.status, step.how, step.in_doubt, step.error) == ("completed", "resolved", False, None)


def test_a_result_of_another_type_than_the_step_has_is_noticed_when_it_is_asked_for(ways: Ways) -> None:
    doubtful(ways, Stop())
    ways.store.resolve("t", "pay", result="text")
    with pytest.raises(SchemaMismatch):
        ways.resume(lambda task: task.step("pay", holdfast.step(never, once=True, returns=int), 1))


@pytest.mark.parametrize("end", ENDS)
def test_a_doubt_is_resolved_by_running_it_again(ways: Ways, end: Any) -> None:
    doubtful(ways, end)
    ways.store.resolve("t", "pay", retry=True)
    assert view(ways).in_doubt == []
    assert view(ways).steps[0].status == "retrying"
    fn = Counting("done")
    pay = holdfast.step(fn, once=True)
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == "done"
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == "done"
    assert fn.calls == [1]


def test_a_doubt_is_found_by_path_or_by_name_if_that_is_unambiguous(ways: Ways) -> None:
    for name, task_id in (("pay", "a"), ("pay/é[#]" * 50, "b")):
        doubtful(ways, ValueError("no"), name=name, id=task_id)
        path = view(ways, task_id).in_doubt[0]
        ways.store.resolve(task_id, path, retry=True)
        doubtful(ways, ValueError("no"), name=name, id=task_id)
        ways.store.resolve(task_id, name, retry=True)
    pay = holdfast.step(fail, once=True)
    pay.fn.__name__ = "fail"

    async def work(task: Any) -> None:
        for key in ("x", "y"):
            try:
                await task.step("pay", pay.using(key=key))
            except StepInDoubt:
                pass

    ways.resume(work, "c")
    with pytest.raises(NotFound, match=r"several.*'pay\[x\]', 'pay\[y\]'"):
        ways.store.resolve("c", "pay", result=1)
    ways.store.resolve("c", "pay[y]", result=1)
    assert [info.in_doubt for info in ways.store.tasks() if info.id == "c"] == [True]
    ways.store.resolve("c", "pay", result=2)
    assert [step.result for step in view(ways, "c").steps] == [2, 1]


def test_what_cannot_be_resolved(ways: Ways) -> None:
    store = ways.store
    with pytest.raises(NotFound):
        store.resolve("t", "pay", result=1)
    ways.resume(lambda task: task.step("done", lambda: 1))
    doubtful(ways, Stop())
    for step in ("done", "none", ""):
        with pytest.raises(NotFound):
            store.resolve("t", step, result=1)
        with pytest.raises(NotFound):
            store.resolve("t", step, retry=True)
    for options in ({}, {"result": 1, "retry": True}):
        with pytest.raises(ValueError, match="either"):
            store.resolve("t", "pay", **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.resolve("t", 7, retry=True)  # type: ignore[arg-type]
    with pytest.raises(NotSerializable):
        store.resolve("t", "pay", result=object())
    store.task("t").cancel()
    with pytest.raises(TaskEnded):
        store.resolve("t", "pay", result=1)


def test_a_step_that_runs_is_not_resolved(ways: Ways) -> None:
    def resolve_myself() -> str:
        for options in ({"result": 1}, {"retry": True}):
            with pytest.raises(Held):
                ways.store.resolve("t", "pay", **options)  # type: ignore[arg-type]
        return "done"

    pay = holdfast.step(resolve_myself, once=True)
    assert ways.resume(lambda task: task.step("pay", pay)) == "done"


def test_a_doubt_is_resolved_while_the_task_is_held(ways: Ways) -> None:
    doubtful(ways, ValueError("no"))
    pay = holdfast.step(never, once=True)

    async def work(task: Any) -> Any:
        with pytest.raises(StepInDoubt):
            await task.step("pay", pay, 1)
        ways.store.resolve("t", "pay", result="by a person")
        return await task.step("other", lambda: 1)

    assert ways.resume(work) == 1
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == "by a person"


def test_resolve_is_awaited_in_an_async_store(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:
            with pytest.raises(StepInDoubt):
                async with store.task("t") as task:
                    await task.step("pay", holdfast.step(fail, once=True))
            await store.resolve("t", "pay", result=1)
            async with store.task("t") as task:
                assert await task.step("pay", never) == 1

    asyncio.run(main())


def test_a_failed_step_can_be_tried_again_and_with_it_what_failed_inside(ways: Ways) -> None:
    fn = Counting(ValueError("no"), "done")
    inner = holdfast.step(lambda: fn("inner"), returns=str)
    inner.fn.__name__ = "inner"

    async def work(task: Any) -> Any:
        try:
            return await task.step("outer", lambda: inner())
        except StepFailed:
            await task.decide("went on")

    assert [ways.resume(work), ways.resume(work)] == [None, None]
    with pytest.raises(NotFound):
        ways.store.resolve("t", "outer", result=1)
    ways.store.resolve("t", "outer", retry=True)
    assert ways.resume(work) == "done"


def test_a_step_in_doubt_inside_another_stops_the_outer_one_too(ways: Ways) -> None:
    fn = Counting(ValueError("no"))
    pay = holdfast.step(lambda: fn("pay"), once=True, returns=Any)
    pay.fn.__name__ = "pay"

    async def work(task: Any) -> Any:
        return await task.step("outer", lambda: [pay()])

    for _ in range(2):
        with pytest.raises(StepInDoubt) as caught:
            ways.resume(work)
        assert caught.value.step == "outer/pay"
    assert view(ways).in_doubt == ["outer/pay"]
    assert {step.path: step.status for step in view(ways).steps} == {"outer": "interrupted", "outer/pay": "failed"}
    ways.store.resolve("t", "pay", result="paid")
    assert ways.resume(work) == ["paid"]
    assert fn.calls == ["pay"]


def test_a_once_step_around_a_doubt_is_in_doubt_too(ways: Ways) -> None:
    pay = holdfast.step(fail, once=True)

    async def work(task: Any) -> Any:
        return await task.step("outer", holdfast.step(lambda: pay(), once=True))

    with pytest.raises(StepInDoubt):
        ways.resume(work)
    assert view(ways).in_doubt == ["outer", "outer/fail"]


@pytest.mark.parametrize("mode", ["once", "check"])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_doubt_asked_for_with_other_arguments_is_refused(ways: Ways, mode: str, key: str | None) -> None:
    fn = Counting(ValueError("no"))
    made = holdfast.step(fn, once=True) if mode == "once" else holdfast.step(fn, check=never)
    pay = made if key is None else made.using(key=key)
    with pytest.raises((StepInDoubt, StepFailed)):
        ways.resume(lambda task: task.step("pay", pay, 1))
    with pytest.raises(ReplayMismatch):
        ways.resume(lambda task: task.step("pay", pay, 2))
    assert fn.calls == [1]


def test_a_rerun_of_a_once_step_that_is_cut_off_is_in_doubt(ways: Ways) -> None:
    fn = Counting(1, Stop())
    pay = holdfast.step(fn, once=True, drift="rerun", key=lambda x: "k")

    async def work(task: Any) -> None:
        assert await task.step("pay", pay, 1) == 1
        await task.step("pay", pay, 2)

    with pytest.raises(Stop):
        ways.resume(work)
    assert view(ways).in_doubt == ["pay[k]"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mode", ["once", "check"])
def test_a_step_whose_outcome_could_not_be_stored_is_in_doubt_in_the_same_run_too(
    mode: str, asynchronous: bool
) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    effects: list[int] = []
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)

        def do(x: int) -> str:
            effects.append(x)
            backend.next("unavailable")
            return "done"

        found = Counting("found")
        made = holdfast.step(do, once=True) if mode == "once" else holdfast.step(do, check=found)

        async def work(task: Any) -> Any:
            with pytest.raises(Unavailable):
                await task.step("pay", made.using(key="k"), 1)
            assert task.in_doubt == ["pay[k]"]
            return await task.step("pay", made.using(key="k"), 1)

        if mode == "check":
            assert ways.resume(work) == "found"
        else:
            with pytest.raises(StepInDoubt):
                ways.resume(work)
            ways.store.resolve("t", "pay", result="by a person")
        assert effects == [1]
        assert backend.injected["unavailable"] == 1


# -- checks ------------------------------------------------------------------------------------------


@ON_MEMORY
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("found", ["receipt", 0, "", [], None])
def test_a_check_decides_whether_the_function_was_done(ways: Ways, end: Any, found: Any) -> None:
    check = Counting(found)
    fn = doubtful(ways, end, check=check)
    assert check.calls == []
    again = Counting("ran")
    pay = holdfast.step(again, check=check)
    expected = "ran" if found is None else found
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == expected
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == expected
    assert (check.calls, fn.calls, again.calls) == ([1], [1], [1] if found is None else [])
    assert view(ways).steps[0].how == ("ran" if found is None else "checked")


def test_a_check_is_not_called_when_nothing_is_in_doubt(ways: Ways) -> None:
    pay = holdfast.step(lambda: 1, check=never)
    assert [ways.resume(lambda task: task.step("pay", pay)) for _ in range(2)] == [1, 1]


def test_the_check_has_the_functions_arguments_and_its_key(ways: Ways) -> None:
    keys: list[Any] = []

    def note(order: str, *, amount: int) -> Any:
        keys.append((order, amount, holdfast.idempotency_key(), holdfast.current_step().path))
        if len(keys) == 1:
            raise ValueError("no")
        return {"found": order}

    pay = holdfast.step(note, check=note)
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("pay", pay, "x", amount=1))
    assert ways.resume(lambda task: task.step("pay", pay, "x", amount=1)) == {"found": "x"}
    assert keys[0] == keys[1]


def test_a_check_that_fails_leaves_it_in_doubt(ways: Ways) -> None:
    doubtful(ways, Stop(), check=never)
    pay = holdfast.step(never, check=lambda *args, **more: fail("the bank is closed"))
    for _ in range(2):
        with pytest.raises(StepInDoubt) as caught:
            ways.resume(lambda task: task.step("pay", pay, 1))
        assert isinstance(caught.value.__cause__, ValueError)
    assert view(ways).in_doubt == ["pay"]
    ways.store.resolve("t", "pay", result="settled")
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == "settled"


def test_a_check_of_a_function_that_returns_nothing_says_that_it_was_done(ways: Ways) -> None:
    check = Counting("found it")

    def send(x: int) -> None:
        raise ValueError("no")

    pay = holdfast.step(send, check=check)
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("pay", pay, 1))
    for _ in range(2):
        assert ways.resume(lambda task: task.step("pay", pay, 1)) is None
    assert check.calls == [1]


def test_a_check_may_be_async(url: str) -> None:
    checked: list[int] = []

    async def find(x: int) -> str | None:
        await asyncio.sleep(0)
        checked.append(x)
        return "found"

    async def pay(x: int) -> str:
        raise ValueError("no")

    async def main() -> None:
        async with holdfast.aopen(url) as store:
            step = holdfast.step(pay, check=find)
            with pytest.raises(StepFailed):
                async with store.task("t"):
                    await step(1)
            for _ in range(2):
                async with store.task("t"):
                    assert await step(1) == "found"

    asyncio.run(main())
    assert checked == [1]


def test_a_check_whose_answer_cannot_be_the_result_leaves_it_in_doubt(ways: Ways) -> None:
    doubtful(ways, Stop(), check=never)
    for answer, declared in (("text", int), (object(), Any), (True, Any), (False, Any)):
        pay = holdfast.step(never, check=lambda *args, answer=answer, **more: answer, returns=declared)
        with pytest.raises(StepInDoubt):
            ways.resume(lambda task, pay=pay: task.step("pay", pay, 1))
        assert view(ways).in_doubt == ["pay"]
    pay = holdfast.step(never, check=lambda *args, **more: False, returns=bool)
    assert ways.resume(lambda task: task.step("pay", pay, 1)) is False


def test_a_check_that_cannot_take_the_functions_arguments_is_refused_where_it_is_written() -> None:
    def pay(order: str, *, amount: int = 1, idempotency_key: str = "") -> None: ...

    for wrong in (lambda: None, lambda order: None, lambda order, other, amount: None):
        with pytest.raises(TypeError, match="same"):
            holdfast.step(pay, check=wrong)
    holdfast.step(pay, check=lambda order, amount=1: None)
    holdfast.step(pay, check=lambda *args, **more: None)


# -- attempts ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_pause")
def test_a_step_is_tried_as_often_as_it_says(ways: Ways) -> None:
    fn = Counting(ValueError("1"), ValueError("2"), "done")
    step = holdfast.step(fn, attempts=3)
    assert ways.resume(lambda task: task.step("a", step)) == "done"
    assert len(fn.calls) == 3
    [seen] = view(ways).steps
    assert (seen.status, seen.attempts, seen.error) == ("completed", 3, None)
    fn = Counting(*[ValueError("no")] * 9)
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("b", holdfast.step(fn, attempts=3)))
    assert len(fn.calls) == 3
    assert view(ways).steps[1].attempts == 3


@pytest.mark.usefixtures("no_pause")
def test_only_what_is_to_be_retried_is(ways: Ways) -> None:
    for retry_on, calls in ((OSError, 1), ((OSError, ValueError), 2), (ValueError, 2)):
        fn = Counting(ValueError("no"), "done")
        step = holdfast.step(fn, attempts=2, retry_on=retry_on)

        async def work(task: Any, step: Any = step) -> None:
            try:
                await task.step(str(retry_on), step)  # noqa: B023
            except StepFailed:
                pass

        ways.resume(work)
        assert len(fn.calls) == calls


@pytest.mark.usefixtures("no_pause")
def test_an_interruption_is_never_retried(ways: Ways) -> None:
    fn = Counting(Stop(), "done")
    with pytest.raises(Stop):
        ways.resume(lambda task: task.step("a", holdfast.step(fn, attempts=5)))
    assert len(fn.calls) == 1


@pytest.mark.usefixtures("no_pause")
def test_a_once_step_is_retried_only_if_it_was_surely_not_done(ways: Ways) -> None:
    fn = Counting(NotDone("busy"), "done")
    assert ways.resume(lambda task: task.step("a", holdfast.step(fn, once=True, attempts=2))) == "done"
    fn = Counting(ValueError("no"), "done")
    with pytest.raises(StepInDoubt):
        ways.resume(lambda task: task.step("b", holdfast.step(fn, once=True, attempts=2)))
    assert len(fn.calls) == 1


@pytest.mark.usefixtures("no_pause")
def test_a_retry_of_a_check_step_asks_the_check_first(ways: Ways) -> None:
    order: list[str] = []

    def pay(x: int) -> Any:
        order.append("pay")
        raise ValueError("no")

    def check(x: int) -> Any:
        order.append("check")
        return "found" if order.count("check") == 2 else None

    assert ways.resume(lambda task: task.step("a", holdfast.step(pay, check=check, attempts=5), 1)) == "found"
    assert order == ["pay", "check", "pay", "check"]
    order.clear()

    def not_done(x: int) -> Any:
        order.append("pay")
        if len(order) == 1:
            raise NotDone
        return 1

    assert ways.resume(lambda task: task.step("b", holdfast.step(not_done, check=check, attempts=5), 1)) == 1
    assert order == ["pay", "pay"]


@pytest.mark.usefixtures("no_pause")
def test_a_retry_does_not_repeat_what_had_finished_inside(ways: Ways) -> None:
    ran: list[Any] = []
    bad = Counting(ValueError("no"), ValueError("no"), "done")

    @holdfast.step(returns=Any)
    def inner(n: int) -> Any:
        ran.append((n, holdfast.idempotency_key()))
        return n

    fragile = holdfast.step(lambda: bad("bad"), returns=Any)
    fragile.fn.__name__ = "fragile"

    @holdfast.step(attempts=3, returns=Any)
    def outer() -> Any:
        return [inner(1), inner(1), inner(2), fragile(), inner(3)]

    async def work(task: Any) -> Any:
        return await task.step("outer", outer)

    assert ways.resume(work) == [1, 1, 2, "done", 3]
    assert [n for n, _ in ran] == [1, 1, 2, 3]
    assert len({key for _, key in ran}) == 4
    assert sorted(paths(ways)) == [
        "outer",
        "outer/fragile",
        "outer/inner",
        "outer/inner#2",
        "outer/inner#3",
        "outer/inner#4",
    ]
    assert ways.resume(work) == [1, 1, 2, "done", 3]


@pytest.mark.usefixtures("no_pause")
def test_a_retry_does_not_try_again_what_failed_before_it_and_was_caught(ways: Ways) -> None:
    first, second = Counting(ValueError("no")), Counting(ValueError("no"), "done")

    async def work(task: Any) -> Any:
        try:
            return await task.step("first", first)
        except StepFailed:
            return await task.step("second", holdfast.step(second, attempts=2))

    assert [ways.resume(work), ways.resume(work)] == ["done", "done"]
    assert (len(first.calls), len(second.calls)) == (1, 2)


@pytest.mark.usefixtures("no_pause")
def test_what_a_retry_says_again_is_said_once(store: Store) -> None:
    fn = Counting(ValueError("no"), "done")
    with store.task("t") as task:

        def talk() -> Any:
            task.decide("x")
            task.discover("y")
            task.conversation().append({"role": "user", "content": "z"})
            return fn()

        assert task.step("a", holdfast.step(talk, attempts=2)) == "done"
        task.decide("x")
    seen = store.get_task("t")
    assert seen is not None
    assert [note.step for note in seen.decisions] == ["a", ""]
    assert len(seen.discoveries) == 1
    assert len(store.conversation("t")) == 1


def test_pauses_grow_and_have_an_end() -> None:
    pauses = {attempt: [_running.pause(attempt) for _ in range(200)] for attempt in (1, 5, 50)}
    assert max(pauses[1]) < min(pauses[5]) < max(pauses[50]) <= 61
    assert len(set(pauses[1])) > 100, "not the same for all who wait"


def test_a_cancelled_step_is_not_tried_again(url: str, no_pause: None) -> None:
    async def main() -> None:
        begun, go_on, calls = threading.Event(), threading.Event(), list[int]()

        def slow() -> None:
            calls.append(1)
            begun.set()
            assert go_on.wait(30)
            raise ValueError("no")

        async def work(store: holdfast.AsyncStore) -> None:
            async with store.task("t") as task:
                await task.step("a", holdfast.step(slow, attempts=3))

        async with holdfast.aopen(url) as store:
            running = asyncio.ensure_future(work(store))
            await asyncio.to_thread(begun.wait, 30)
            running.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert calls == [1]
            seen = await store.get_task("t")
            assert seen is not None
            assert (seen.status, seen.owner) == ("open", None)

    asyncio.run(main())


def test_an_async_step_has_a_time_limit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_running, "pause", lambda attempt: 0.0)
    calls: list[int] = []

    async def slow() -> int:
        calls.append(1)
        if len(calls) < 3:
            await asyncio.Event().wait()
        return 1

    async def main() -> None:
        async with holdfast.aopen(url) as store:
            with pytest.raises(StepFailed) as caught:
                async with store.task("t") as task:
                    await task.step("a", holdfast.step(slow, timeout=0.01))
            assert caught.value.type == "TimeoutError"
            async with store.task("t") as task:
                assert await task.step("a", holdfast.step(slow, timeout=0.05, attempts=2)) == 1

    asyncio.run(main())
    assert len(calls) == 3


# -- keys for the outside ----------------------------------------------------------------------------


def test_an_idempotency_key_is_the_same_across_retries_and_resumes(ways: Ways, no_pause: None) -> None:
    keys: list[str] = []

    def note(x: int) -> Any:
        keys.append(holdfast.idempotency_key())
        assert holdfast.current_step().idempotency_key == keys[-1]
        if len(keys) < 4:
            raise ValueError("no")
        return 1

    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("a", holdfast.step(note, attempts=3), 1))
    assert ways.resume(lambda task: task.step("a", note, 1)) == 1
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert len(keys[0]) == 64
    assert int(keys[0], 16)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_that_come_in_another_order_on_resume_have_the_same_idempotency_keys(asynchronous: bool) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    keys: dict[int, list[str]] = {1: [], 2: []}
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)

        def note(x: int) -> None:
            keys[x].append(holdfast.idempotency_key())
            backend._rates["unavailable"] = 1.0 if len(keys[1]) == 1 and not keys[2] else 0.0

        async def work(task: Any, order: list[int]) -> None:
            for x in order:
                await task.step("a", note, x)

        with pytest.raises(Unavailable):
            ways.resume(lambda task: work(task, [1, 2]), lease=0.2)
        backend._rates["unavailable"] = 0.0
        assert paths(ways) == [], "as if the process had been killed: nothing was written"
        ways.resume(lambda task: work(task, [2, 1]))
        assert paths(ways) == ["a", "a#2"]
    assert len(keys[1]) == 2
    assert keys[1][0] == keys[1][1] != keys[2][0]


def test_idempotency_keys_differ_by_step_and_key_and_scope_and_task(ways: Ways) -> None:
    give = holdfast.step(holdfast.idempotency_key, returns=str)

    async def work(task: Any) -> Any:
        found = [
            await task.step("a", give),
            await task.step("a", give),
            await task.step("b", give),
            await task.step("a", give.using(key="x")),
            await task.step("a", give.using(key="y")),
            await task.step("a[x]", give),
            await task.step("a/idempotency_key", give),
        ]
        return [*found, *(await task.step("scope", lambda: [give(), give()]))]

    keys = [*ways.resume(work, "t"), *ways.resume(work, "u")]
    assert len(set(keys)) == len(keys) == 18
    assert ways.resume(work, "t") == keys[:9]


def test_an_id_that_was_freed_and_begun_anew_has_other_idempotency_keys(ways: Ways) -> None:
    give = holdfast.step(holdfast.idempotency_key, returns=str)

    async def work(task: Any) -> Any:
        await task.make_plan(["item"])
        return [await task.step("item", give), await task.step("a", give.using(key="k")), await task.step("a", give)]

    keys = ways.resume(work)
    ways.store.task("t").delete()
    assert set(keys).isdisjoint(ways.resume(work))


def test_a_key_asked_for_after_the_step_has_ended_is_still_its_own(ways: Ways) -> None:
    runs: list[Any] = []

    def begin() -> str:
        runs.append(holdfast.current_step())
        return holdfast.idempotency_key()

    async def work(task: Any) -> Any:
        return [await task.step(name, begin) for name in ("a", "b")]

    assert ways.resume(work) == [run.idempotency_key for run in runs]


def test_a_parameter_named_idempotency_key_is_given_the_key(ways: Ways) -> None:
    def pay(amount: int, idempotency_key: str = "") -> list[str]:
        return [idempotency_key, holdfast.idempotency_key()]

    def asked(idempotency_key: str) -> str:
        return idempotency_key

    async def work(task: Any) -> Any:
        given, own = await task.step("pay", pay, 1)
        assert given == own != ""
        assert (await task.step("mine", pay, 1, idempotency_key="mine"))[0] == "mine"
        assert (await task.step("by position", pay, 1, "mine"))[0] == "mine"
        assert await task.step("asked", asked, "mine") == "mine"
        return given

    assert ways.resume(work) == ways.resume(work)
    ways.resume(lambda task: task.step("mine", pay, 1, idempotency_key="another"))
    assert view(ways).drift == [], "it is no argument"


def test_the_task_and_the_step_are_known_inside_and_only_there(ways: Ways) -> None:
    for ask in (holdfast.current_task, holdfast.current_step, holdfast.idempotency_key):
        with pytest.raises(NoTask):
            ask()
    inner = holdfast.step(lambda: [holdfast.current_step().path, holdfast.current_task().id], returns=Any)
    inner.fn.__name__ = "inner"

    def outer() -> Any:
        run = holdfast.current_step()
        assert (run.name, run.attempt, run.cursor, repr(run)) == ("outer", 1, None, "<StepRun 'outer'>")
        return [inner(), run.path, holdfast.current_step().path]

    async def work(task: Any) -> Any:
        assert holdfast.current_task() is (task if ways.asynchronous else task.plain)
        for ask in (holdfast.current_step, holdfast.idempotency_key):
            with pytest.raises(NoTask):
                ask()
        found = await task.step("outer", outer)
        with pytest.raises(NoTask):
            holdfast.current_step()
        return found

    assert ways.resume(work) == [["outer/inner", "t"], "outer", "outer"]
    with pytest.raises(NoTask):
        holdfast.current_task()


def test_a_thread_of_its_own_is_in_no_task_unless_it_takes_the_context_with_it(store: Store) -> None:
    plain, once = holdfast.step(lambda: 1, returns=int), holdfast.step(lambda: 1, once=True)
    with store.task("t") as task, ThreadPoolExecutor(1) as pool:
        for ask in (holdfast.current_task, once):
            with pytest.raises(NoTask):
                pool.submit(ask).result()
        assert pool.submit(plain).result() == 1
        assert pool.submit(contextvars.copy_context().run, once).result() == 1
        assert pool.submit(contextvars.copy_context().run, holdfast.current_task).result() is task
    seen = store.get_task("t")
    assert seen is not None
    assert [step.mode for step in seen.steps] == ["once"]


# -- progress ----------------------------------------------------------------------------------------


def progressed(ways: Ways) -> int:
    return [event.type for event in ways.store.task("t").history()].count("step.progressed")


@pytest.mark.parametrize("end", [KeyboardInterrupt(), Stop(), ValueError("no"), StepInDoubt("t", step="x", why="is")])
def test_the_cursor_is_given_back_after_the_step_was_cut_off_or_failed(ways: Ways, end: BaseException) -> None:
    cursors: list[Any] = []

    ends: list[BaseException | None] = [end, None]

    def read() -> str:
        step = holdfast.current_step()
        cursors.append(step.cursor)
        step.save({"page": 1})
        step.save({"page": 2}, done=2, total=9)
        assert step.cursor == {"page": 2}
        strike = ends.pop(0)
        if strike is not None:
            raise strike
        return "done"

    async def read_later() -> str:  # not in a thread: there, nobody is interrupted
        return read()

    async def work(task: Any) -> Any:
        return await task.step("a", read_later if ways.asynchronous else read)

    with pytest.raises(StepFailed if isinstance(end, ValueError) else type(end)):
        ways.resume(work)
    progress = view(ways).steps[0].progress
    assert progress is not None
    assert (progress.cursor, progress.done, progress.total) == ({"page": 2}, 2, 9)
    assert progressed(ways) == 1, "stored when the block was left"
    assert ways.resume(work) == "done"
    assert cursors == [None, {"page": 2}]
    assert view(ways).steps[0].progress is None


def test_a_cursor_is_not_given_to_a_call_with_other_arguments(ways: Ways) -> None:
    def read(url: str, cut: bool) -> Any:
        found = holdfast.current_step().cursor
        holdfast.current_step().save(f"page 7 of {url}")
        if cut:
            raise Stop
        return found

    def call(url: str, cut: bool, key: str | None) -> Any:
        made = holdfast.step(lambda url: read(url, cut), returns=Any)
        return made if key is None else made.using(key=key)

    for key in (None, "k"):
        name = f"read {key}"
        with pytest.raises(Stop):
            ways.resume(lambda task, name=name, key=key: task.step(name, call("a", True, key), "a"))
        found = ways.resume(lambda task, name=name, key=key: task.step(name, call("b", False, key), "b"))
        assert found == (None if key is None else "page 7 of a"), "a key says that it is the same"


def test_a_finished_step_that_is_run_again_begins_at_its_beginning(ways: Ways) -> None:
    def read(url: str) -> Any:
        found = holdfast.current_step().cursor
        holdfast.current_step().save(f"page 7 of {url}", flush=True)
        return found

    step = holdfast.step(read, drift="rerun", key=lambda url: "k")
    for url in ("a", "b", "c"):
        assert ways.resume(lambda task, url=url: task.step("read", step, url)) is None


def test_a_retry_has_the_cursor_too(ways: Ways, no_pause: None) -> None:
    cursors: list[Any] = []

    def read() -> int:
        step = holdfast.current_step()
        cursors.append((step.cursor, step.attempt))
        step.save(step.attempt)
        if len(cursors) < 3:
            raise ValueError("no")
        return 1

    ways.resume(lambda task: task.step("a", holdfast.step(read, attempts=3)))
    assert cursors == [(None, 1), (1, 2), (2, 3)]


def test_progress_is_stored_at_once_with_flush_and_else_once_in_a_while(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> list[int]:
        step = holdfast.current_step()
        counts = []
        for page in range(5):
            step.save(page)
        counts.append(progressed(ways))
        step.save(5, done=1, total=2, flush=True)
        counts.append(progressed(ways))
        seen = view(ways).steps[0]
        assert (seen.status, seen.progress.cursor if seen.progress else None) == ("running", 5)
        step.save(6)
        counts.append(progressed(ways))
        monkeypatch.setattr(step, "_saved_at", time.monotonic() - _progress.PROGRESS_SECONDS - 1)
        step.save(7)
        counts.append(progressed(ways))
        step.save(8)
        counts.append(progressed(ways))
        return counts

    assert ways.resume(lambda task: task.step("a", read)) == [0, 1, 1, 2, 2]
    assert progressed(ways) == 2, "what was done is of no interest any more"


def test_the_heartbeat_stores_progress_that_is_old(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        mine = task if ways.asynchronous else task.plain

        def read() -> int:
            step = holdfast.current_step()
            step.save(1)
            mine._beat()
            before = progressed(ways)
            step._saved_at = time.monotonic() - 61
            mine._beat()
            mine._beat()
            return progressed(ways) - before

        return await task.step("a", read)

    assert ways.resume(work) == 1


def test_the_start_of_a_long_step_is_stored_by_the_heartbeat(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        mine = task if ways.asynchronous else task.plain

        def long() -> Any:
            mine._beat()
            before = [step.path for step in view(ways).steps]
            for path, (change, _) in list(mine._session._later.items()):
                mine._session._later[path] = (change, time.monotonic() - 2)
            mine._beat()
            [seen] = view(ways).steps
            return [before, seen.path, seen.status]

        return await task.step("a", long)

    assert ways.resume(work) == [[], "a", "running"]
    [step] = view(ways).steps
    assert step.status == "completed"
    assert [event.type for event in ways.store.task("t").history()][2:4] == ["step.started", "step.completed"]


def test_awaited_progress_is_stored(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:

            async def read() -> list[Any]:
                step = holdfast.current_step()
                await step.save(1)
                found = [(await store.get_task("t")).steps]  # type: ignore[union-attr]
                await step.save(2, flush=True)
                seen = await store.get_task("t")
                assert seen is not None and seen.steps[0].progress is not None
                return [len(found[0]), seen.steps[0].progress.cursor]

            async with store.task("t") as task:
                assert await task.step("a", read) == [0, 2]

    asyncio.run(main())


@ON_MEMORY
def test_what_is_saved_while_something_older_is_written_is_not_lost(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:

            async def read() -> None:
                step = holdfast.current_step()
                older = step.save(1, flush=True)
                step.save(2)
                await older
                raise Stop

            with pytest.raises(Stop):
                async with store.task("t") as task:
                    await task.step("a", read)
            seen = await store.get_task("t")
            assert seen is not None and seen.steps[0].progress is not None
            assert seen.steps[0].progress.cursor == 2

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [object(), {1: 2}, float("inf"), "\ud800"])
def test_a_cursor_that_cannot_be_stored_is_refused(ways: Ways, wrong: Any) -> None:
    def read() -> Any:
        holdfast.current_step().save(1)
        with pytest.raises(NotSerializable):
            holdfast.current_step().save(wrong)
        return holdfast.current_step().cursor

    assert ways.resume(lambda task: task.step("a", read)) == 1


def test_sigterm_stores_progress_and_gives_the_lease_back(durable_url: str, tmp_path: Path) -> None:
    program = (
        "import sys, time, holdfast\n"
        "def read():\n"
        "    holdfast.current_step().save(42)\n"
        "    print('here', flush=True)\n"
        "    time.sleep(60)\n"
        "with holdfast.open(sys.argv[1]) as store, store.task('t') as task:\n"
        "    task.step('a', read)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, durable_url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    with holdfast.open(durable_url) as store:
        seen = store.get_task("t")
        assert seen is not None
        assert (seen.status, seen.owner) == ("open", None)
        assert seen.steps[0].progress is not None
        assert seen.steps[0].progress.cursor == 42
        with store.task("t", wait=0) as task:
            assert task.step("a", lambda: holdfast.current_step().cursor) == 42


def test_a_handler_of_the_programs_own_is_left_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_signals, "_inside", 0)  # whatever other tests have left open
    before = signal.getsignal(signal.SIGTERM)
    heard: list[int] = []
    try:
        signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
        with store.task("t"):
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with store.task("t"):
            with store.task("u"):
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


# -- forked processes --------------------------------------------------------------------------------


def test_a_forked_child_is_in_no_task_and_cannot_write_for_its_parent(durable_url: str) -> None:
    program = (
        "import os, sys, holdfast\n"
        "once = holdfast.step(lambda: 1, once=True)\n"
        "with holdfast.open(sys.argv[1]) as store, store.task('t') as task:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        code = 0\n"
        "        for call, error in ((once, holdfast.NoTask), (holdfast.current_task, holdfast.NoTask),\n"
        "                            (lambda: task.step('a', lambda: 'child'), holdfast.LeaseLost)):\n"
        "            try:\n"
        "                call()\n"
        "                code += 1\n"
        "            except error:\n"
        "                pass\n"
        "        os._exit(code)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    assert task.step('a', lambda: 'parent') == 'parent'\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, durable_url], check=True, timeout=60)
