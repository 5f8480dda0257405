"""What the model saw, as pointers into conversations; sync and async."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from holdfast import Budget, NotFound, StepFailed
from holdfast.tasks.steps import failures
from holdfast.types import ModelInput


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "retry_delay", lambda attempt: 0.0)


def model(fn: Any, **options: Any) -> Any:
    return holdfast.step(fn, kind="model", **options)


def tell(**used: Any) -> None:
    holdfast.current_step().use(**used)


# -- what the model saw ----------------------------------------------------------------------------


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
    with pytest.raises(NotFound, match="not recorded"):
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


# -- lists of messages are lists -------------------------------------------------------------------


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


# -- the price of it -------------------------------------------------------------------------------


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
