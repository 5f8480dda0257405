"""How a step is matched with its record when a task is resumed, also inside of others; plain and
async."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.step_functions import AT, ORDER, Counting, Order, Stop, never, paths
from holdfast import StepFailed, Store
from holdfast.errors import InvalidId, ReplayMismatch

# -- identity --------------------------------------------------------------------------------------


NAMES = [
    "a/b",
    "a#2",
    "a[b]",
    "a",
    "%",
    "%2F",
    "a%2Fb",
    "é日🔥",
    " ",
    "\n",
    "[",
    "]",
    "#",
    "/",
    "a b",
]


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
    [((1,), (2,)), ((1,), (1.5,)), ((1,), ("1",)), ((1,), (True,)), (([],), ({},)), ((None,), (0,)),
    (("a",), ("á",)),
     (({"a": 1},), ({"a": 2},)), ((ORDER,), (Order(1, Decimal(1), AT),)),
     ((Decimal("1.0"),), (Decimal("1.00"),))],
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


@dataclass
class ClaimDataclass:
    q: str
    n: int


class ClaimStruct(msgspec.Struct):
    n: int
    q: str


class ClaimModel(pydantic.BaseModel):
    n: float
    q: str


class ClaimTuple(NamedTuple):
    q: str
    n: int


class Unit(Enum):
    EURO = "euro"


@ON_MEMORY
@pytest.mark.parametrize("carrier", [dict, ClaimDataclass, ClaimStruct, ClaimModel, ClaimTuple])
@pytest.mark.parametrize("parallel", [False, True])
def test_code_may_be_typed_while_its_tasks_run(ways: Ways, carrier: Any, parallel: bool) -> None:
    async def work(task: Any, make: Any, unit: Any, fn: Any) -> Any:
        claims = [make(q="a", n=3), make(q="b", n=4)]
        if parallel:
            return await task.map("score", lambda claim: fn(claim), claims)
        return [
            await task.step("score", lambda claim, unit: fn(claim), claims[0], unit),
            await task.step("scores", lambda *, each: fn(each), each={"claims": claims}),
        ]

    first = ways.resume(lambda task: work(task, dict, "euro", Counting()))
    assert ways.resume(lambda task: work(task, carrier, Unit.EURO, never)) == first


def test_a_tuple_may_be_named_while_its_tasks_run(ways: Ways) -> None:
    ways.resume(lambda task: task.step("a", lambda claim: 1, ("a", 3)))
    for claim in (ClaimTuple("a", 3), ["a", 3]):
        assert ways.resume(lambda task, claim=claim: task.step("a", lambda claim: 2, claim)) == 1
    with pytest.raises(ReplayMismatch):
        ways.resume(lambda task: task.step("a", lambda claim: 2, ClaimTuple("a", 4)))


# -- the resume context as an argument -------------------------------------------------------------


@pytest.mark.parametrize(
    "rendered",
    [
        lambda context: context,
        lambda context: str(context),
        lambda context: context.text,
        lambda context: context.messages(),
        lambda context: [{"role": "system", "content": "Be brief."}, *context.messages()],
        lambda context: {"messages": [{**context.messages()[0], "name": "holdfast"}]},
        lambda context: copy.deepcopy(context.messages()),
    ],
    ids=["itself", "str", "text", "messages", "among messages", "deep", "copied"],
)
def test_a_resume_context_among_the_arguments_is_the_same_after_every_resume(
    ways: Ways, rendered: Any
) -> None:
    ask, runs = Counting(), list[Any]()

    async def work(task: Any, question: str = "?") -> Any:
        context = rendered(await task.resume_context())
        runs.append(str(context))
        answer = await task.step("ask", lambda context, question: ask(question), context, question)
        await task.step(f"step {len(runs)}", lambda: len(runs))  # the next one tells more
        return answer

    for _ in range(3):
        assert ways.resume(work) == 1
    assert ask.calls == ["?"]
    with pytest.raises(ReplayMismatch):
        ways.resume(lambda task: work(task, "another question"))


def test_the_resume_context_of_another_task_is_another_argument(ways: Ways) -> None:
    for name in ("a", "b"):
        ways.resume(lambda task: task.step("x", lambda: 1), name)
    contexts = [view(ways, name).resume_context().messages() for name in ("a", "b")]
    ways.resume(lambda task: task.step("ask", lambda context: 1, contexts[0]))
    with pytest.raises(ReplayMismatch):
        ways.resume(lambda task: task.step("ask", lambda context: 1, contexts[1]))


def test_a_resume_context_is_stored_as_text(ways: Ways) -> None:
    context = view_of_finished(ways).resume_context()

    async def work(task: Any) -> Any:
        await task.decide(str(context), why=str(context))
        ways.store.conversation("c").append(*context.messages())
        return await task.step("a", lambda: {"text": context.text})

    assert ways.resume(work) == {"text": str(context)}
    [message] = ways.store.conversation("c").messages()
    assert (message["content"], type(message["content"])) == (context.text, str)
    assert type(view(ways).decisions[0].text) is str


def view_of_finished(ways: Ways) -> Any:
    ways.resume(lambda task: task.step("x", lambda: 1), "finished")
    return view(ways, "finished")


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
        return await task.step(
            "a", lambda *args: 1, ways.store, ways.store.aio, task, ways.store.conversation("c")
        )

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
    assert view(ways).orphaned == ["a", "a#3"]


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
        with pytest.raises(RuntimeError, match="already running"):
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

    assert ways.resume(items_only) == [1, 2, 3], (
        "the plan is the identity, other arguments are reported"
    )
    assert [drift.step for drift in view(ways).drift] == ["a", "b", "a#2"]


# -- nesting ---------------------------------------------------------------------------------------


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
        "work", "work/work", "work/work#2", "work/work#2/work", "work/work#2/work#2",
        "work/work/work", "work/work/work#2",
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
    assert view(ways).orphaned == []


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
