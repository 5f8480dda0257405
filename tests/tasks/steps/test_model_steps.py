"""Steps that call a model: what they use, how much they may use, and what the model saw; plain and async."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from holdfast import Budget, NotFound, StepFailed, Usage
from holdfast.errors import BudgetExceeded
from holdfast.tasks.steps import run
from holdfast.types import ModelInput


class Stop(BaseException):
    """The process is gone: what was written is there, the program did not go on."""


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "pause", lambda attempt: 0.0)


def model(fn: Any, **options: Any) -> Any:
    return holdfast.step(fn, kind="model", **options)


def tell(**used: Any) -> None:
    holdfast.current_step().use(**used)


# -- usage ------------------------------------------------------------------------------------------

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
    assert "saw" not in completed.data


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
    with pytest.raises(ValueError, match="million tokens"):
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


# -- budgets ----------------------------------------------------------------------------------------


def spend(n: int) -> dict[str, Any]:
    return {"n": n, "usage": {"input_tokens": 60, "output_tokens": 40}}


async def ask_five_times(task: Any) -> int:
    ask = model(spend, price=(1000, 1000))
    for n in range(5):
        await task.step("ask", ask, n)
    return 5


@pytest.mark.every_engine
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


# -- what the model saw -----------------------------------------------------------------------------


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def conversing(store: holdfast.Store, count: int = 4) -> holdfast.Conversation:
    chat = store.conversation("c")
    for n in range(count):
        chat.append(user(f"q{n}") if n % 2 == 0 else said(f"a{n}"))
    return chat


async def given(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


def chat_of(ways: Ways) -> Any:
    return (ways.store.aio if ways.asynchronous else ways.store).conversation("c")


def saw(ways: Ways, path: str = "ask") -> list[ModelInput]:
    [step] = [step for step in view(ways).steps if step.path == path]
    return step.model_input


def prompt(ways: Ways, path: str = "ask") -> list[Any]:
    found = ways.store.model_input("t", path)
    assert asyncio.run(ways.store.aio.model_input("t", path)) == found
    return found


def test_a_conversation_among_the_arguments_was_seen_as_it_stood(ways: Ways) -> None:
    chat = conversing(ways.store)
    before = chat.messages()
    ways.resume(lambda task: task.step("ask", model(lambda chat: "answer"), chat_of(ways)))
    chat.append(user("later"))
    assert saw(ways) == [ModelInput("c", [(1, 4)])]
    assert prompt(ways) == before


def test_a_list_that_came_from_a_conversation_is_known_again(ways: Ways) -> None:
    chat = conversing(ways.store, 6)

    async def work(task: Any) -> None:
        await task.step("all", model(lambda messages: ""), await given(chat_of(ways).messages()))
        await task.step(
            "last",
            model(lambda *, messages: ""),
            messages=await given(chat_of(ways).messages(last=3)),
        )
        window = await given(
            chat_of(ways).window(25, system="Be brief.", counter=lambda message: 5)
        )
        await task.step("window", model(lambda messages: ""), window)

    ways.resume(work)
    assert [saw(ways, path) for path in ("all", "last", "window")] == [
        [ModelInput("c", [(1, 6)])],
        [ModelInput("c", [(4, 6)])],
        [ModelInput("c", [(3, 6)])],
    ]
    assert prompt(ways, "all") == chat.messages()
    assert prompt(ways, "last") == chat.messages(last=3)
    assert prompt(ways, "window") == [
        {"role": "system", "content": "Be brief."},
        *chat.messages(last=4),
    ]


def test_what_the_function_reads_is_what_its_model_saw(ways: Ways) -> None:
    chat = conversing(ways.store, 6)

    def plain(chat: Any) -> str:
        assert len(chat.entries(last=1)) == 1  # a look that shows less than the next
        return str(len(chat.window(20, counter=lambda message: 5)))

    async def awaited(chat: Any) -> str:
        assert len(await chat.entries(last=1)) == 1
        return str(len(await chat.window(20, counter=lambda message: 5)))

    ways.resume(
        lambda task: task.step("ask", model(awaited if ways.asynchronous else plain), chat_of(ways))
    )
    assert saw(ways) == [ModelInput("c", [(3, 6)])]
    assert prompt(ways) == chat.messages(last=4)


@ON_MEMORY
def test_a_tool_sees_nothing_and_neither_does_what_calls_it(ways: Ways) -> None:
    conversing(ways.store)

    def read() -> int:
        return len(ways.store.conversation("c").messages())

    ways.resume(lambda task: task.step("ask", read))
    assert saw(ways) == []
    with pytest.raises(NotFound, match="not known"):
        ways.store.model_input("t", "ask")
    with pytest.raises(NotFound, match="no step"):
        ways.store.model_input("t", "other")
    with pytest.raises(NotFound, match="there is no task"):
        ways.store.model_input("other", "ask")


@pytest.mark.every_engine
def test_later_rewinds_summaries_and_repairs_do_not_change_what_was_seen(ways: Ways) -> None:
    chat = conversing(ways.store, 5)
    chat.append(
        {
            "role": "assistant",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f"}}],
        }
    )
    chat.append(user("never mind"))
    mended = chat.window(10_000)
    assert mended != chat.messages()  # the open call got a result
    before = chat.messages()

    async def work(task: Any) -> None:
        await task.step("all", model(lambda messages: ""), await given(chat_of(ways).messages()))
        await task.step(
            "mended", model(lambda messages: ""), await given(chat_of(ways).window(10_000))
        )

    ways.resume(work)
    chat.repair()
    repaired = chat.messages()
    chat.summarize(lambda messages: "they talked", keep_last=2)
    cut = chat.window(35, counter=lambda message: 10)
    assert cut[0]["content"].startswith("Summary")

    async def more(task: Any) -> None:
        await work(task)
        await task.step(
            "repaired", model(lambda messages: ""), await given(chat_of(ways).messages())
        )
        window = await given(chat_of(ways).window(35, counter=lambda message: 10))
        await task.step("cut", model(lambda messages: ""), window)

    with pytest.raises(holdfast.errors.ReplayMismatch):  # a list counts by what is in it
        ways.resume(more)

    async def again(task: Any) -> None:
        await task.step(
            "repaired", model(lambda messages: ""), await given(chat_of(ways).messages())
        )
        window = await given(chat_of(ways).window(35, counter=lambda message: 10))
        await task.step("cut", model(lambda messages: ""), window)

    ways.resume(again)
    chat.rewind(version=1)
    chat.append(user("something else"))
    assert prompt(ways, "all") == before
    assert prompt(ways, "mended") == mended
    assert prompt(ways, "repaired") == repaired
    assert prompt(ways, "cut") == cut


def test_pinned_messages_and_forks_are_given_back_too(ways: Ways) -> None:
    parent = ways.store.conversation("parent")
    parent.append(user("remember this"), pin=True)
    for n in range(4):
        parent.append(user(f"q{n}"), said(f"a{n}"))
    chat = parent.fork("c", version=7)
    chat.append(user("and now?"))
    window = chat.window(20, counter=lambda message: 5)
    assert [message["content"] for message in window] == ["remember this", "q2", "a2", "and now?"]

    async def work(task: Any) -> None:
        messages = await given(chat_of(ways).window(20, counter=lambda message: 5))
        await task.step("ask", model(lambda messages: ""), messages)

    ways.resume(work)
    chat.clear()
    assert saw(ways) == [ModelInput("c", [(1, 1), (6, 9)])]  # version 8 is the fork itself
    assert prompt(ways) == window


@ON_MEMORY
def test_what_was_added_to_a_list_is_kept_with_the_task_and_once(ways: Ways) -> None:
    chat = conversing(ways.store)
    extra = {"role": "system", "content": "x" * 1000}

    async def work(task: Any) -> None:
        for n in range(3):
            messages = await given(chat_of(ways).messages())
            messages.insert(2, extra)
            await task.step("ask", model(lambda n, messages: ""), n, messages)

    ways.resume(work)
    expected = chat.messages()
    expected.insert(2, extra)
    for path in ("ask", "ask#2", "ask#3"):
        assert prompt(ways, path) == expected
    assert (
        json.dumps([event.data for event in ways.store.task("t").history()]).count("x" * 1000) == 1
    )


@ON_MEMORY
def test_what_cannot_be_given_back_is_not_claimed(ways: Ways) -> None:
    conversing(ways.store)

    async def work(task: Any) -> None:
        messages = await given(chat_of(ways).messages())
        messages.append(object())
        await task.step("ask", model(lambda messages: ""), messages)

    ways.resume(work)
    assert saw(ways) == []


def test_a_deleted_conversation_is_said_to_be_deleted(ways: Ways) -> None:
    chat = conversing(ways.store)
    ways.resume(lambda task: task.step("ask", model(lambda chat: ""), chat_of(ways)))
    chat.delete()
    with pytest.raises(NotFound, match="deleted"):
        ways.store.model_input("t", "ask")
    conversing(ways.store)  # another one under that id
    with pytest.raises(NotFound, match="deleted"):
        ways.store.model_input("t", "ask")


@ON_MEMORY
def test_a_conversation_of_another_tenant_or_store_is_not_pointed_to(ways: Ways) -> None:
    other = conversing(ways.store.for_tenant("globex"))
    with holdfast.open("memory://") as elsewhere:
        foreign = conversing(elsewhere)

        async def work(task: Any) -> None:
            await task.step("a", model(lambda one, two: ""), other, other.messages())
            await task.step("b", model(lambda one, two: ""), foreign, foreign.messages())

        ways.resume(work)
    assert [step.model_input for step in view(ways).steps] == [[], []]


@ON_MEMORY
@pytest.mark.usefixtures("no_pause")
def test_each_attempt_looks_anew(ways: Ways) -> None:
    chat = conversing(ways.store)
    attempts = []

    def ask(chat: Any) -> str:
        attempts.append(1)
        sees = ways.store.conversation("c").messages(last=4 // len(attempts))
        if len(attempts) < 2:
            raise TimeoutError
        return str(len(sees))

    ways.resume(lambda task: task.step("ask", model(ask, max_attempts=2), chat_of(ways)))
    assert saw(ways) == [ModelInput("c", [(3, 4)])]
    assert prompt(ways) == chat.messages(last=2)


@ON_MEMORY
def test_a_failed_call_has_seen_what_it_saw(ways: Ways) -> None:
    chat = conversing(ways.store)

    async def work(task: Any) -> None:
        with pytest.raises(StepFailed):
            await task.step("ask", model(lambda chat: 1 / 0), chat_of(ways))

    ways.resume(work)
    assert prompt(ways) == chat.messages()


@ON_MEMORY
def test_what_a_generator_reads_is_seen_and_what_its_consumer_reads_is_not(url: str) -> None:
    with holdfast.open(url) as store:
        chat = conversing(store, 6)

        @holdfast.step(kind="model")
        def answer(chat: Any) -> Iterator[str]:
            chat.messages(last=2)
            yield "a"
            yield "b"

        with store.task("t"):
            for _ in answer(chat):
                chat.messages()
        assert store.model_input("t", "answer") == chat.messages(last=2)


# -- lists of messages are lists --------------------------------------------------------------------


def test_what_a_conversation_gives_is_a_list_to_everybody(store: holdfast.Store) -> None:
    chat = conversing(store)
    messages, plain = chat.messages(), [user("q0"), said("a1"), user("q2"), said("a3")]
    assert messages == plain == chat.window(1000)
    assert json.dumps(messages) == json.dumps(plain)
    assert repr(messages) == repr(plain)
    for other in (
        copy.copy(messages),
        copy.deepcopy(messages),
        pickle.loads(pickle.dumps(messages)),
        messages[:],
    ):
        assert type(other) is list
        assert other == plain
    with store.task("t", input={"chat": messages}) as task:
        assert task.step("give", lambda: messages) == plain
        assert task.step("typed", _typed, messages) == plain
        assert task.step("inside", lambda: {"all": [messages]}) == {"all": [plain]}
        assert task.step("field", _kept, messages) == Kept(plain, date(2026, 5, 1))
        assert task.finish(messages) == plain
    store.state("doc").save(messages)
    assert store.state("doc").load() == plain
    store.stream("s").append(("said", messages))
    assert store.stream("s").last(1)[0].data == plain


@dataclass
class Kept:
    messages: list[Any]
    day: date


def _kept(messages: list[Any]) -> Kept:
    return Kept(messages, date(2026, 5, 1))


def _typed(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    return messages


def test_a_step_recorded_with_a_plain_list_is_found_with_a_list_from_a_conversation(
    store: holdfast.Store,
) -> None:
    chat = conversing(store)
    with store.task("t") as task:
        task.step("ask", len, [*chat.messages()])
    with store.task("t") as task:
        assert task.step("ask", len, chat.messages()) == 4


# -- the price of it --------------------------------------------------------------------------------


SYSTEM = "You are a patient clerk. " * 40


def texts() -> Iterator[str]:
    """Texts of about 1 KB."""
    words = random.Random(7)
    chance = [f"{words.randrange(1 << 30):x}" for _ in range(2000)]
    while True:
        yield " ".join(words.choices(chance, k=118))


def size(*messages: Any) -> int:
    return sum(len(json.dumps(message)) for message in messages)


def stored(store: holdfast.Store) -> int:
    """How many bytes all records of tasks and conversations take."""
    return sum(
        len(record.body)
        for kind in ("task", "conversation", "blob")
        for head in store._log.backend.heads(tenant=store.tenant, kind=kind)
        for record in store._log.backend.read(head.stream)
    )


def check_prompts(store: holdfast.Store, prompts: list[list[Any]]) -> None:
    found = store.get_task("t")
    assert found is not None
    paths = [step.path for step in found.steps]
    assert len(paths) == len(prompts) == 100
    assert len(prompts[-1]) == 200
    for path, sent in zip(paths, prompts, strict=True):
        assert store.model_input("t", path) == sent


@pytest.mark.slow
def test_a_hundred_calls_store_little_more_than_what_is_new_and_every_prompt_comes_back(
    store: holdfast.Store,
) -> None:
    text, prompts = texts(), list[list[Any]]()

    @holdfast.step(price=(1, 4))
    def ask(chat: holdfast.Conversation, model: str = "gpt-5-mini") -> dict[str, Any]:
        messages = chat.window(10**9, system=SYSTEM)
        prompts.append(list(messages))
        tell(input_tokens=250 * len(messages), output_tokens=250)
        return said(next(text))

    with store.task("t", goal="Serve the customer", budget=Budget(calls=100)) as task:
        chat = task.conversation()
        for _ in range(100):
            chat.append(user(next(text)))
            task.reply(chat, ask)
        task.finish()
    new = size(*chat.messages())  # each message once
    assert chat.count() == 200
    assert stored(store) <= 1.5 * new, stored(store) / new
    check_prompts(store, prompts)


@pytest.mark.slow
def test_an_answer_that_is_a_result_and_is_appended_is_stored_twice_and_no_more(
    store: holdfast.Store,
) -> None:
    text, prompts, new = texts(), list[list[Any]](), 0

    @holdfast.step(kind="model", price=(1, 4))
    def ask(chat: holdfast.Conversation, model: str = "gpt-5-mini") -> dict[str, Any]:
        messages = chat.window(10**9, system=SYSTEM)
        prompts.append(list(messages))
        return {
            **said(next(text)),
            "usage": {"prompt_tokens": 250 * len(messages), "completion_tokens": 250},
        }

    with store.task("t", goal="Serve the customer", budget=Budget(calls=100)) as task:
        chat = task.conversation()
        for _ in range(100):
            question = user(next(text))
            chat.append(question)
            answer = ask(chat)
            reply = {key: answer[key] for key in ("role", "content")}
            chat.append(reply)
            new += size(question, reply, answer)
        task.finish()
    assert stored(store) <= 1.5 * new, stored(store) / new
    check_prompts(store, prompts)
