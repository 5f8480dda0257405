"""Replay of a program that departs from its record: where, in what, and how it is told; plain and
async."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.replays import Body, Stop, cut_off, departure, live, one, record, replay, suspend
from holdfast import Store
from holdfast.testing import fake_clock
from holdfast.types import Divergence, ReplayResult


async def settled(value: Any) -> Any:
    """What a method gives, awaited or not."""
    return await value if inspect.isawaitable(value) else value


# -- what departs ----------------------------------------------------------------------------------


def steps_of(*asked: tuple[str, int], result: Any = None, options: Any = None) -> Body:
    """A program that asks for these steps."""

    async def body(task: Any) -> Any:
        for name, argument in asked:
            await task.step(name, holdfast.step(live(lambda n: n), **(options or {})), argument)
        return result

    return body


@ON_MEMORY
@pytest.mark.parametrize(
    "options",
    [None, {"drift": "keep"}, {"drift": "rerun"}, {"key": lambda n: "k"}],
    ids=["", "keep", "rerun", "key"],
)
def test_other_arguments_depart_whatever_the_step_says_about_them(ways: Ways, options: Any) -> None:
    record(ways, steps_of(("a", 1), ("b", 2), options=options))
    found = replay(ways, steps_of(("a", 1), ("b", 3), options=options))
    what, step = departure(found)
    assert (what, step.partition("[")[0]) == ("arguments", "b")
    assert found.divergence is not None
    assert found.divergence.recorded != found.divergence.asked
    assert found.divergence.recorded is not None
    assert found.divergence.recorded.startswith(f"step {step!r} with arguments ")


@ON_MEMORY
def test_a_step_that_is_not_recorded_departs(ways: Ways) -> None:
    record(ways, steps_of(("a", 1), ("b", 2)))
    found = replay(ways, steps_of(("a", 1), ("new", 1), ("b", 2)))
    assert departure(found) == ("new step", "new")
    assert found.divergence is not None
    assert found.divergence.recorded is not None
    assert found.divergence.recorded.startswith("step 'b' with")
    assert (found.steps, found.orphaned) == (["a"], ["b"])
    assert departure(replay(ways, steps_of(("a", 1), ("b", 2), ("new", 1)))) == ("new step", "new")


@ON_MEMORY
def test_a_recorded_step_that_is_not_asked_for_departs(ways: Ways) -> None:
    record(ways, steps_of(("a", 1), ("b", 2), ("c", 3)))
    found = replay(ways, steps_of(("a", 1), ("c", 3)))
    assert departure(found) == ("orphaned", "b")
    assert found.orphaned == ["b"]


@ON_MEMORY
def test_another_step_than_recorded_departs_in_a_task_that_has_not_ended_too(ways: Ways) -> None:
    with ways.store.task("t") as task:
        task.step("a", lambda n: n, 1)
        task.step("b", lambda n: n, 2)
    assert replay(ways, steps_of(("a", 1), ("b", 2), ("c", 3))).ended == "recording ended"
    found = replay(ways, steps_of(("a", 1), ("c", 3), ("b", 2)))
    assert departure(found) == ("new step", "c")
    assert found.divergence is not None
    assert found.divergence.recorded is not None
    assert found.divergence.recorded.startswith("step 'b' with")


@ON_MEMORY
def test_what_the_recorded_run_had_not_asked_for_either_is_no_departure(ways: Ways) -> None:
    async def before(task: Any) -> None:
        await task.step("old", one)
        raise Stop

    cut_off(ways, before)
    record(ways, steps_of(("a", 1)))
    assert view(ways).orphaned == ["old"]
    assert replay(ways, steps_of(("a", 1))).ok


@ON_MEMORY
def test_another_result_departs(ways: Ways) -> None:
    record(ways, steps_of(("a", 1), result={"x": [1]}))
    found = replay(ways, steps_of(("a", 1), result={"x": [2]}))
    assert departure(found) == ("result", "")
    assert found.result == {"x": [2]}


@ON_MEMORY
@pytest.mark.parametrize("note", ["decide", "discover"])
def test_notes_that_are_not_recorded_depart(ways: Ways, note: str) -> None:
    def program(*texts: str) -> Body:
        async def body(task: Any) -> None:
            for text in texts:
                await getattr(task, note)(text)

        return body

    what = {"decide": "decision", "discover": "discovery"}[note]
    record(ways, program("A", "A"))
    assert replay(ways, program("A", "A")).ok
    found = replay(ways, program("A", "B"))
    assert departure(found) == (what, "")
    assert "B" not in str(found)
    assert departure(replay(ways, program("A", "A", "A"))) == (what, "")
    assert departure(replay(ways, program("A"))) == ("orphaned", "")


@ON_MEMORY
def test_a_plan_that_is_not_recorded_departs(ways: Ways) -> None:
    def program(plan: Any, *again: Any) -> Body:
        async def body(task: Any) -> None:
            if plan is not None:
                await task.make_plan(plan)
            for each in again:
                await task.replan(each)

        return body

    record(ways, program(["a"], ["b"]))
    assert replay(ways, program(["a"], ["b"])).ok
    assert departure(replay(ways, program(["x"], ["b"]))) == ("plan", "")
    assert departure(replay(ways, program(["a"], ["c"]))) == ("new plan", "")
    record(ways, program(None), "without")
    assert departure(replay(ways, program(["a"]), "without")) == ("new plan", "")


@ON_MEMORY
def test_another_question_departs(ways: Ways) -> None:
    def program(question: str, name: str = "payout") -> Body:
        async def body(task: Any) -> Any:
            return await task.ask(name, question)

        return body

    suspend(ways, program("Approve?"))
    for _ in range(2):
        assert departure(replay(ways, program("Really?"))) == ("question", "payout")
        assert departure(replay(ways, program("Approve?", "other"))) == ("new wait", "other")
        if view(ways).status == "suspended":
            ways.store.answer("t", "payout", True)
            record(ways, program("Approve?"))
    assert replay(ways, program("Approve?")).ok


@ON_MEMORY
def test_waits_that_are_not_recorded_depart(ways: Ways) -> None:
    def program(signals: int, sleeps: int) -> Body:
        async def body(task: Any) -> None:
            for _ in range(signals):
                await task.wait_for("hook")
            for _ in range(sleeps):
                await task.sleep(50)

        return body

    with fake_clock() as clock:
        suspend(ways, program(1, 1))
        ways.store.signal("t", "hook")
        suspend(ways, program(1, 1))
        clock.advance(60)
        record(ways, program(1, 1))
        assert replay(ways, program(1, 1)).ok
        assert departure(replay(ways, program(2, 1))) == ("new wait", "hook")
        assert departure(replay(ways, program(1, 2)))[0] == "new wait"
        assert "    requested: a sleep\n" in str(replay(ways, program(1, 2)))
        assert "    recorded:  a sleep\n" in str(replay(ways, program(1, 0)))
        assert departure(replay(ways, program(0, 1)))[0] == "orphaned"
        assert departure(replay(ways, program(1, 0)))[0] == "orphaned"


@ON_MEMORY
def test_a_program_that_goes_on_where_the_recorded_one_waits_departs(ways: Ways) -> None:
    async def waits(task: Any) -> Any:
        await task.step("a", one)
        return await task.ask("payout", "Approve?")

    async def goes_on(task: Any) -> Any:
        await task.step("a", one)
        return await task.step("b", one)

    suspend(ways, waits)
    assert departure(replay(ways, goes_on)) == ("new step", "b")
    assert departure(replay(ways, steps_of())) == ("result", "")


@ON_MEMORY
def test_a_departure_cannot_be_swallowed(ways: Ways) -> None:
    after: list[str] = []

    async def body(task: Any) -> Any:
        for name in ("new", "newer", "a"):
            try:
                await task.step(name, live(lambda n: n), 1)
            except Exception:
                after.append("an exception")
            except BaseException:
                after.append(name)
        return "went on"

    record(ways, steps_of(("a", 1)))
    found = replay(ways, body)
    assert departure(found) == ("new step", "new")
    assert after == ["new", "newer", "a"]
    assert found.steps == []


@ON_MEMORY
def test_an_interrupt_goes_through(ways: Ways) -> None:
    async def body(task: Any) -> None:
        raise KeyboardInterrupt

    record(ways, steps_of())
    if not ways.asynchronous:
        with pytest.raises(KeyboardInterrupt):
            replay(ways, body)
    with pytest.raises(holdfast.errors.NoTask):
        holdfast.current_task()


@ON_MEMORY
def test_a_departure_in_a_group_of_tasks_is_found(store: Store) -> None:
    if not hasattr(asyncio, "TaskGroup"):
        pytest.skip("Python 3.10 has no groups of tasks")

    def program(*numbers: int) -> Any:
        async def agent(task: holdfast.AsyncTask) -> None:
            async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]  # not in 3.10
                for n in numbers:
                    group.create_task(task.step("work", live(lambda n: n), n))

        return agent

    asyncio.run(store.aio.run(program(1, 2), "t"))
    assert asyncio.run(store.aio.replay(program(2, 1), "t")).ok
    assert departure(asyncio.run(store.aio.replay(program(1, 3), "t")))[0] in (
        "new step",
        "arguments",
    )


# -- conversations, files, other writes ------------------------------------------------------------


def test_messages_that_are_recorded_are_repeats_and_others_depart(ways: Ways) -> None:
    def program(text: str, id: str | None = None) -> Body:
        async def body(task: Any) -> int:
            chat = task.conversation("chat")
            await settled(chat.append({"role": "user", "content": text}, id=id))
            await settled(chat.append({"role": "user", "content": "same"}))
            await settled(chat.append({"role": "user", "content": "same"}))
            return len(await settled(chat.messages()))

        return body

    record(ways, program("hello"))
    found = replay(ways, program("hello"))
    assert (found.ok, found.result) == (True, 3)
    assert departure(replay(ways, program("hi"))) == ("message", "chat")
    record(ways, program("hello", id="mine"), "with-id")
    assert replay(ways, program("hello", id="mine"), "with-id").result == 6
    assert departure(replay(ways, program("hi", id="mine"), "with-id")) == ("message", "chat")


def test_large_messages_are_repeats_too(ways: Ways) -> None:
    async def body(task: Any) -> None:
        await settled(task.conversation().append({"role": "user", "content": "x" * 100_000}))

    record(ways, body)
    assert replay(ways, body).ok


@ON_MEMORY
def test_a_replay_takes_no_turn(ways: Ways) -> None:
    async def body(task: Any) -> None:
        if ways.asynchronous:
            async with task.conversation().turn() as chat:
                await chat.append({"role": "user", "content": "hello"})
        else:
            with task.conversation().turn() as chat:
                chat.append({"role": "user", "content": "hello"})

    record(ways, body)
    assert replay(ways, body).ok


def test_files_with_the_same_content_are_given_back_and_others_depart(ways: Ways) -> None:
    def program(*contents: bytes) -> Body:
        async def body(task: Any) -> list[int]:
            return [(await task.attach("report", content)).size for content in contents]

        return body

    record(ways, program(b"draft", b"the report"))
    found = replay(ways, program(b"draft", b"the report"))
    assert (found.ok, found.result) == (True, [5, 10])
    assert departure(replay(ways, program(b"draft", b"another"))) == ("artifact", "report")


@ON_MEMORY
@pytest.mark.parametrize("deed", ["delete", "fork", "state", "stream", "chat", "task", "submit"])
def test_no_write_to_any_store_is_made(ways: Ways, deed: str) -> None:
    """Also not by code that uses a store by itself."""
    store: Any = ways.store.aio if ways.asynchronous else ways.store

    async def body(task: Any) -> None:
        await task.step("a", one)
        if deed == "delete":
            await task.delete()
        elif deed == "fork":
            await task.fork("forked")
        elif deed == "state":
            await settled(store.state("s").save({"x": 1}))
        elif deed == "stream":
            await settled(store.stream("s").append(("happened", 1)))
        elif deed == "chat":
            await settled(store.conversation("c").append({"role": "user", "content": "hi"}))
        elif deed == "submit":
            await settled(store.submit(live(lambda task: None), "other"))
        elif ways.asynchronous:
            async with store.task("other") as other:
                await other.step("x", one)
        else:
            with store.task("other") as other:
                other.step("x", one)

    async def quiet(task: Any) -> None:
        await task.step("a", one)

    record(ways, quiet)
    assert departure(replay(ways, body))[0] in ("write", "message")


@ON_MEMORY
def test_a_replay_cancels_nothing(ways: Ways) -> None:
    async def body(task: Any) -> None:
        await task.step("a", one)
        await task.cancel()

    with ways.store.task("t") as task:
        task.step("a", one)
    assert replay(ways, body).ended == "recording ended"


@ON_MEMORY
def test_others_write_while_a_task_is_replayed(store: Store) -> None:
    def agent(task: holdfast.Task) -> None:
        thread = threading.Thread(target=lambda: store.stream("elsewhere").append(("happened", 1)))
        thread.start()
        thread.join()

    store.run(agent, "t")
    assert store.replay(agent, "t").ok
    assert store.stream("elsewhere").version() == 2


@ON_MEMORY
def test_whoever_has_replayed_can_write_while_others_replay(store: Store) -> None:
    begun, over = threading.Event(), threading.Event()

    def agent(task: holdfast.Task) -> None:
        begun.set()
        over.wait(timeout=30)

    over.set()
    store.run(agent, "t")
    assert store.replay(agent, "t").ok
    begun.clear()
    over.clear()
    found: list[ReplayResult] = []
    thread = threading.Thread(target=lambda: found.append(store.replay(agent, "t")))
    thread.start()
    begun.wait(timeout=30)
    store.stream("here").append(("happened", 1))
    over.set()
    thread.join()
    assert [each.ok for each in found] == [True]
    assert store.stream("here").version() == 1


# -- how it looks ----------------------------------------------------------------------------------


@ON_MEMORY
def test_a_replay_can_be_read(ways: Ways) -> None:
    record(ways, steps_of(("a", 1), ("b", 2)))
    assert str(replay(ways, steps_of(("a", 1), ("b", 2)))).splitlines() == [
        "replay of task 't' (version 5): finished",
        "  replayed: a, b",
    ]
    found = replay(ways, steps_of(("a", 1), ("c", 2)))
    assert isinstance(found.divergence, Divergence)
    lines = str(found).splitlines()
    assert lines[0] == "replay of task 't' (version 5): diverged"
    assert lines[1] == "  diverges in: new step (c)"
    assert lines[2].startswith("    recorded:  step 'b' with arguments ")
    assert lines[3].startswith("    requested: step 'c' with arguments ")
    assert lines[4:] == ["  replayed: a", "  not requested: b"]
    assert str(found.divergence).startswith("new step at 'c': recorded step 'b'")
