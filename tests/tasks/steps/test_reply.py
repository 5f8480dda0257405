"""Replies: a model is asked for the next message of a conversation, which is stored once; plain and
async."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletionMessage

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.replies import Model, chatting, messages, plainly, said, user
from holdfast import Budget, NotFound, StepFailed, Store, Usage
from holdfast.errors import BudgetExceeded, Expired
from holdfast.tasks.steps import failures
from holdfast.testing import crash
from holdfast.types import ModelInput


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "retry_delay", lambda attempt: 0.0)


@pytest.fixture
def model() -> Model:
    return Model()


# -- one message, in one place ---------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_reply_is_appended_once_and_given_back_by_every_later_run(
    ways: Ways, model: Model
) -> None:
    expected = [said("answer 1"), said("answer 2")]
    for _ in range(3):
        assert ways.resume(chatting(ways, plainly(model.ask))) == expected
    assert model.asked == 2
    assert messages(ways) == [user("q0"), said("answer 1"), user("q1"), said("answer 2")]
    assert [step.result for step in view(ways).steps] == expected
    assert [(step.kind, step.how, step.reply) for step in view(ways).steps] == [
        ("model", "ran", ("c", 2)),
        ("model", "ran", ("c", 4)),
    ]


@pytest.mark.unencrypted("looks for text in the records")
def test_the_message_is_in_no_record_of_the_task_and_says_where_it_came_from(ways: Ways) -> None:
    ways.resume(chatting(ways, lambda chat: said("a rare word: xylophone"), turns=1))
    [entry] = ways.store.conversation("c").entries(last=1)
    assert entry.meta == {"task": "t", "step": view(ways).steps[0].path}
    stored = {kind: _bodies(ways.store, kind) for kind in ("task", "conversation")}
    assert (stored["task"].count(b"xylophone"), stored["conversation"].count(b"xylophone")) == (
        0,
        1,
    )


def _bodies(store: Store, kind: str) -> bytes:
    backend = store._log.backend
    heads = backend.heads(tenant=store.tenant, kind=kind)
    return b"".join(record.body for head in heads for record in backend.read(head.stream))


def test_a_large_message_is_a_reply_too(ways: Ways) -> None:
    text = "x" * 300_000
    for _ in range(2):
        assert ways.resume(chatting(ways, lambda chat: said(text), turns=1)) == [said(text)]
    assert messages(ways) == [user("q0"), said(text)]


@ON_MEMORY
@pytest.mark.parametrize("kind", ["id", "conversation", "task's"])
def test_the_conversation_is_given_by_itself_or_by_its_id(ways: Ways, kind: str) -> None:
    seen: list[Any] = []

    def plain(chat: Any) -> dict[str, Any]:
        seen.append(chat.messages())
        return said("a")

    async def awaited(chat: Any) -> dict[str, Any]:
        seen.append(await chat.messages())
        return said("a")

    async def work(task: Any) -> Any:
        own = ways.store.aio if ways.asynchronous else ways.store
        chat = {"id": "c", "conversation": own.conversation("c"), "task's": task.conversation("c")}[
            kind
        ]
        return await task.reply(chat, awaited if ways.asynchronous else plain)

    ways.store.conversation("c").append(user("q"))
    assert ways.resume(work) == said("a")
    assert seen == [[user("q")]]
    assert messages(ways) == [user("q"), said("a")]


@ON_MEMORY
def test_an_id_and_the_conversation_mean_the_same(ways: Ways, model: Model) -> None:
    ask = plainly(model.ask)
    first = ways.resume(chatting(ways, ask))
    assert ways.resume(chatting(ways, ask, chat=ways.store.conversation("c"))) == first
    assert ways.resume(chatting(ways, ask, chat=ways.store.aio.conversation("c"))) == first
    assert model.asked == 2


@ON_MEMORY
def test_a_plain_function_in_an_async_task_gets_a_plain_conversation_for_an_id(ways: Ways) -> None:
    ways.store.conversation("c").append(user("q"))
    assert ways.resume(lambda task: task.reply("c", lambda chat: said(str(chat.count())))) == said(
        "1"
    )


@ON_MEMORY
def test_message_objects_are_taken_as_append_takes_them(ways: Ways) -> None:
    message = ChatCompletionMessage(role="assistant", content="hello")
    ways.resume(chatting(ways, lambda chat: message, turns=1))
    assert ways.resume(chatting(ways, lambda chat: message, turns=1)) == [said("hello")]
    assert messages(ways) == [user("q0"), said("hello")]


@ON_MEMORY
def test_what_a_function_is_annotated_to_return_does_not_matter(ways: Ways) -> None:
    def ask(chat: Any) -> threading.Thread:  # nothing that could be stored
        return said("a")  # type: ignore[return-value]

    assert ways.resume(chatting(ways, ask, turns=1)) == [said("a")]


@ON_MEMORY
@pytest.mark.parametrize(
    "answer", ["text", None, [said("a")], {}, {"role": "assistant", "content": object()}]
)
def test_what_is_no_message_is_a_failure_and_is_not_appended(ways: Ways, answer: Any) -> None:
    with pytest.raises(StepFailed):
        ways.resume(chatting(ways, lambda chat: answer, turns=1))
    assert messages(ways) == [user("q0")]
    assert ways.resume(chatting(ways, lambda chat: said("a"), turns=1)) == [said("a")]


# -- a model step as any other ---------------------------------------------------------------------


@ON_MEMORY
@pytest.mark.usefixtures("no_pause")
def test_the_options_of_a_decorated_function_count_and_its_kind_is_model(ways: Ways) -> None:
    attempts: list[int] = []

    @holdfast.step(max_attempts=3, retry_on=TimeoutError, price=(1, 2), key=lambda chat, model: "k")
    def ask(chat: Any, model: str) -> dict[str, Any]:
        attempts.append(1)
        holdfast.current_step().use(input_tokens=1_000_000, output_tokens=1_000_000)
        if len(attempts) < 3:
            raise TimeoutError
        return said("at last")

    async def work(task: Any) -> Any:
        return await task.reply("c", ask, model="m-1")

    assert ways.resume(work) == said("at last")
    [step] = view(ways).steps
    assert (step.path, step.kind, step.model, step.attempts) == ("ask[k]", "model", "m-1", 3)
    assert step.usage == view(ways).usage == Usage(3, 3_000_000, 3_000_000, 9.0)
    assert messages(ways) == [said("at last")]
    assert ask.options.kind == "tool", "the function itself is what it was"


@ON_MEMORY
def test_a_key_for_one_call_and_methods_are_as_in_steps(ways: Ways) -> None:
    class Agent:
        @holdfast.step
        def ask(self, chat: Any, word: str) -> dict[str, Any]:
            return said(word)

    async def work(task: Any) -> Any:
        return [
            await task.reply("c", Agent().ask.using(key=7), "a"),
            await task.reply("c", functools.partial(Agent().ask.fn, Agent()), "b"),
        ]

    assert ways.resume(work) == [said("a"), said("b")]
    assert view(ways).steps[0].path == "ask[7]"


def test_the_model_saw_the_conversation_as_it_was(ways: Ways) -> None:
    ways.resume(chatting(ways, lambda chat: said("a"), turns=2))
    paths = [step.path for step in view(ways).steps]
    assert [step.model_input for step in view(ways).steps] == [
        [ModelInput("c", [(1, 1)])],
        [ModelInput("c", [(1, 3)])],
    ]
    assert ways.store.model_input("t", paths[0]) == [user("q0")]
    assert ways.store.model_input("t", paths[1]) == [user("q0"), said("a"), user("q1")]


@ON_MEMORY
def test_a_budget_stops_replies_before_the_model_is_asked(ways: Ways, model: Model) -> None:
    with pytest.raises(BudgetExceeded):
        ways.resume(chatting(ways, plainly(model.ask), turns=3), budget=Budget(calls=2))
    assert model.asked == 2
    assert [step.status for step in view(ways).steps] == ["completed"] * 2
    ways.resume(chatting(ways, plainly(model.ask), turns=3), budget=Budget(calls=3))
    assert model.asked == 3


@ON_MEMORY
def test_a_failed_reply_is_tried_again_by_the_next_run(ways: Ways) -> None:
    with pytest.raises(StepFailed, match="ZeroDivisionError"):
        ways.resume(chatting(ways, lambda chat: 1 / 0, turns=1))
    assert messages(ways) == [user("q0")]
    assert ways.resume(chatting(ways, lambda chat: said("a"), turns=1)) == [said("a")]


@ON_MEMORY
def test_replies_inside_steps_are_steps_inside_steps(ways: Ways, model: Model) -> None:
    ask = plainly(model.ask)

    def plain(task: Any, chat: str) -> str:
        return str(task.plain.reply(chat, ask)["content"])

    async def awaited(task: Any, chat: str) -> str:
        return str((await task.reply(chat, ask))["content"])

    async def work(task: Any) -> Any:
        return [
            await task.step("turn", awaited if ways.asynchronous else plain, task, "c")
            for _ in range(2)
        ]

    for _ in range(2):
        assert ways.resume(work) == ["answer 1", "answer 2"]
    assert [step.path for step in view(ways).steps] == ["turn", "turn/ask", "turn#2", "turn#2/ask"]
    assert messages(ways) == [said("answer 1"), said("answer 2")]


@ON_MEMORY
@pytest.mark.parametrize(("drift", "asked"), [("keep", 1), ("rerun", 2)])
def test_other_arguments_keep_the_message_or_ask_for_another(
    ways: Ways, model: Model, drift: Any, asked: int
) -> None:
    ask = holdfast.step(plainly(model.ask), drift=drift)
    assert ways.resume(lambda task: task.reply("c", ask, " to A")) == said("answer 1 to A")
    last = said("answer 1 to A") if drift == "keep" else said("answer 2 to B")
    for _ in range(2):
        assert ways.resume(lambda task: task.reply("c", ask, " to B")) == last
    assert model.asked == len(messages(ways)) == asked


@ON_MEMORY
def test_a_rerun_that_was_cut_off_goes_on_with_its_own_message(ways: Ways, model: Model) -> None:
    ask = holdfast.step(plainly(model.ask), drift="rerun")
    ways.resume(lambda task: task.reply("c", ask, " to A"))
    with crash(during="ask"):
        ways.resume(lambda task: task.reply("c", ask, " to B"))
    assert ways.resume(lambda task: task.reply("c", ask, " to B")) == said("answer 2 to B")
    assert model.asked == len(messages(ways)) == 2


@ON_MEMORY
def test_what_cannot_be_a_reply_is_refused_before_anything_is_done(ways: Ways) -> None:
    def chunks(chat: Any) -> Iterator[str]:
        yield "a"

    async def work(task: Any) -> None:
        for wrong, why in (
            (chunks, "generator"),
            (holdfast.step(kind="model")(chunks), "generator"),
            (holdfast.step(once=True)(lambda chat: said("")), "once or check"),
            (holdfast.step(check=lambda chat: None)(lambda chat: said("")), "once or check"),
            ("text", "function"),
        ):
            with pytest.raises(TypeError, match=why):
                await task.reply("c", wrong)
        for chat in (["a"], None, task):
            with pytest.raises(TypeError, match="conversation"):
                await task.reply(chat, lambda chat: said(""))
        with pytest.raises(TypeError, match="argument"):
            await task.reply("c", lambda: said(""))
        with pytest.raises(ValueError, match="another store or tenant"):
            await task.reply(
                ways.store.for_tenant("globex").conversation("c"), lambda chat: said("")
            )
        with (
            holdfast.open("memory://") as other,
            pytest.raises(ValueError, match="another store or tenant"),
        ):
            await task.reply(other.conversation("c"), lambda chat: said(""))

    ways.resume(work)
    assert view(ways).steps == []
    assert messages(ways) == []


@ON_MEMORY
def test_an_async_function_needs_an_async_task(url: str) -> None:
    async def ask(chat: Any) -> Any:
        return said("a")

    with (
        holdfast.open(url) as store,
        store.task("t") as task,
        pytest.raises(TypeError, match="async"),
    ):
        task.reply("c", ask)


@ON_MEMORY
def test_in_a_turn_a_reply_is_part_of_it(ways: Ways) -> None:
    chat = ways.store.conversation("c")

    async def work(task: Any) -> Any:
        with chat.turn() as mine:
            return await task.reply(mine, lambda given: said("a"))

    assert ways.resume(work) == said("a")
    assert messages(ways) == [said("a")]


@ON_MEMORY
def test_a_turn_that_is_over_takes_no_reply_and_the_step_has_not_failed(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        with ways.store.conversation("c").turn() as mine:
            pass
        return await task.reply(mine, lambda given: said("a"))

    with pytest.raises(holdfast.errors.LeaseLost, match="conversation"):
        ways.resume(work)
    assert messages(ways) == []
    assert [step.status for step in view(ways).steps] == ["interrupted"]


# -- reading it again ------------------------------------------------------------------------------


def test_rewinds_summaries_and_repairs_do_not_change_a_result(ways: Ways, model: Model) -> None:
    ask = plainly(model.ask)
    first = ways.resume(chatting(ways, ask, turns=3))
    chat = ways.store.conversation("c")
    chat.summarize(lambda messages: "they talked", keep_last=2)
    chat.append(
        {
            "role": "assistant",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f"}}],
        }
    )
    chat.append(user("never mind"))
    chat.repair()
    chat.rewind(version=1)
    chat.pop()
    assert chat.messages() == []
    assert ways.resume(chatting(ways, ask, turns=3)) == first
    assert [step.result for step in view(ways).steps] == first
    assert model.asked == 3


def test_a_reply_to_a_fork_of_a_conversation_is_found_there(ways: Ways, model: Model) -> None:
    parent = ways.store.conversation("parent")
    parent.append(user("a"), said("b"), user("c"))
    parent.fork("c", version=2)
    ask = plainly(model.ask)
    with crash(during="ask"):
        ways.resume(lambda task: task.reply("c", ask))
    for _ in range(2):
        assert ways.resume(lambda task: task.reply("c", ask)) == said("answer 1")
    [entry] = ways.store.conversation("c").entries(last=1)
    assert view(ways).steps[0].reply == ("c", entry.version) == ("c", 4)
    assert ways.resume(lambda task: task.reply("c", ask), id="other") == said("answer 2")
    assert view(ways, "other").steps[0].result == said("answer 2")
    assert messages(ways) == [user("a"), said("b"), said("answer 1"), said("answer 2")]


@ON_MEMORY
def test_a_fork_of_a_task_has_its_replies(ways: Ways, model: Model) -> None:
    ask = plainly(model.ask)
    first = ways.resume(chatting(ways, ask))
    ways.store.task("t").fork("fork")
    assert ways.resume(chatting(ways, ask), id="fork") == first
    assert [step.result for step in view(ways, "fork").steps] == first
    assert model.asked == 2


def test_results_history_and_briefings_tell_the_message(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.reply("c", ask)
        told = (
            (await task.view()).steps[0].result,
            (await task.view(version=await task.version())).steps[0].result,
        )
        return await task.results(), await task.history(), str(await task.resume_context()), told

    def ask(chat: Any) -> dict[str, Any]:
        return said("the harbour is closed")

    results, history, briefing, told = ways.resume(work)
    [completed] = [event.data for event in history if event.type == "step.completed"]
    assert results == {"ask": said("the harbour is closed")}
    assert completed["result"] == said("the harbour is closed")
    assert (completed["reply"]["conversation"], completed["reply"]["version"]) == ("c", 1)
    assert "the harbour is closed" in briefing
    assert told == (said("the harbour is closed"), said("the harbour is closed"))


@ON_MEMORY
def test_a_replay_gives_the_messages_and_asks_nobody(ways: Ways, model: Model) -> None:
    ask = plainly(model.ask)

    def plain(task: Any) -> list[Any]:
        chat = ways.store.conversation("c")
        own = task.conversation("c")
        own.append(user("q"))
        return [task.reply(chat, ask), task.reply(own, ask), task.reply("c", ask)]

    async def awaited(task: Any) -> list[Any]:
        own = task.conversation("c")
        await own.append(user("q"))
        return [
            await task.reply(ways.store.conversation("c"), ask),
            await task.reply(own, ask),
            await task.reply("c", ask),
        ]

    async def departed(task: Any) -> Any:
        await task.reply("d", ask)

    agent = holdfast.agent("chatter")(awaited if ways.asynchronous else plain)
    expected = [said("answer 1"), said("answer 2"), said("answer 3")]
    store: Any = ways.store.aio

    async def both() -> Any:
        await store.run(agent, "t")
        found = await store.replay(agent, "t")
        return found, await store.replay(holdfast.agent("other")(departed), "t")

    found, other = asyncio.run(both())
    assert (found.ended, found.divergence, found.result) == ("finished", None, expected)
    assert other.divergence.what == "arguments"
    assert model.asked == 3
    assert messages(ways) == [user("q"), *expected]


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "begun anew"])
def test_a_deleted_conversation_is_said_to_be_deleted_where_the_message_is_needed(
    ways: Ways, model: Model, anew: bool
) -> None:
    ask = plainly(model.ask)

    async def work(task: Any) -> Any:
        return await task.reply("c", ask), await task.step("count", len, "abc")

    ways.resume(work)
    ways.store.conversation("c").delete()
    if anew:
        ways.store.conversation("c").append(said("something else"))
    with pytest.raises(NotFound, match="deleted since"):
        ways.resume(work)
    with pytest.raises(NotFound, match="deleted since"):
        ways.resume(lambda task: task.results())
    found = view(ways)
    assert [(step.path, step.status, step.result) for step in found.steps] == [
        ("ask", "completed", None),
        ("count", "completed", 3),
    ]
    assert found.steps[0].reply == ("c", 1)
    assert "count" in str(found.resume_context())
    completed = [
        event.data for event in ways.store.task("t").history() if event.type == "step.completed"
    ]
    assert ["result" in data for data in completed] == [False, True]
    assert ways.resume(lambda task: task.step("count", len, "abc")) == 3, (
        "what does not need it, goes on"
    )
    assert model.asked == 1


@ON_MEMORY
def test_an_expired_conversation_is_said_to_be_expired(ways: Ways, model: Model) -> None:
    ask = plainly(model.ask)
    ways.resume(lambda task: task.reply("c", ask))
    ways.store.conversation("c").expire(0)
    for _ in range(2):
        with pytest.raises(Expired):
            ways.resume(lambda task: task.reply("c", ask))
        with pytest.raises(Expired):  # one that is new, too, and before the model is asked
            ways.resume(lambda task: task.reply("c", ask), id="other")
        assert view(ways).steps[0].result is None
        ways.store.sweep()
    assert model.asked == 1


def test_deleted_by_another_program_it_is_deleted(durable_url: str, model: Model) -> None:
    ask = plainly(model.ask)
    with holdfast.open(durable_url) as store, holdfast.open(durable_url) as other:
        with store.task("t") as task:
            task.reply("c", ask)
        other.conversation("c").delete()
        with pytest.raises(NotFound, match="deleted since"), store.task("t") as task:
            task.reply("c", ask)


@ON_MEMORY
@pytest.mark.parametrize(
    "wrong", [{"version": 9}, {"version": 0}, {"version": -3}, {"base": 5}, {"version": 2}]
)
def test_a_pointer_that_points_nowhere_is_a_corrupt_record(url: str, wrong: dict[str, int]) -> None:
    with holdfast.open(url) as store:
        with store.task("t") as task:
            task.reply("c", lambda chat: said("a"))
            store.conversation("c").draft("a piece", of="x")
            step = task._require_session().state.steps["<lambda>"]
            assert step.reply is not None
            step.reply = msgspec.structs.replace(step.reply, **wrong)
            with pytest.raises(holdfast.errors.CorruptRecord, match="does not exist"):
                task.results()
