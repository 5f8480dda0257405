"""The plan of a task, its notes and its messages; plain and async."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.step_functions import fail, nothing
from holdfast import StepFailed, StepInDoubt, Store
from holdfast.errors import InvalidId, NotSerializable

# -- the plan --------------------------------------------------------------------------------------


def test_a_plan_is_made_once_ever(ways: Ways) -> None:
    calls: list[str] = []

    def make(goal: str, *, size: int) -> list[str]:
        calls.append(goal)
        return [f"{goal} {n}" for n in range(size)]

    async def work(task: Any) -> Any:
        assert task.plan == ([] if not task.resumed else ["Reach it 0", "Reach it 1"])
        first = await task.make_plan(make, task.goal, size=2)
        assert task.plan == first
        return await task.make_plan(["another"])

    for _ in range(2):
        assert ways.resume(work, goal="Reach it") == ["Reach it 0", "Reach it 1"]
    assert calls == ["Reach it"]


def test_an_empty_plan_is_a_plan(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        return await task.make_plan([]), list(task.remaining()), await task.make_plan(["late"])

    assert ways.resume(work) == ([], [], [])
    assert ways.resume(work) == ([], [], [])


@ON_MEMORY
@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ("text", TypeError),
        (None, TypeError),
        ([""], TypeError),
        ([1], TypeError),
        ([{}], TypeError),
        ([{"name": 7}], TypeError),
        ([{"name": "a", "with": object()}], NotSerializable),
        (["\ud800"], InvalidId),
        (["x" * 600], InvalidId),
        (["a\0b"], InvalidId),
    ],
)
def test_what_is_no_plan_is_refused_and_can_be_made_again(
    ways: Ways, plan: Any, error: type[Exception]
) -> None:
    async def work(task: Any) -> Any:
        with pytest.raises(error):
            await task.make_plan(plan)
        with pytest.raises(error):
            await task.make_plan(lambda: plan)
        with pytest.raises(error):
            await task.replan(plan)
        return await task.make_plan(("a",))

    assert ways.resume(work) == ["a"]


def test_a_large_plan_is_kept(ways: Ways) -> None:
    plan = [{"name": f"item {n}", "text": "x" * 1000} for n in range(200)]
    assert ways.resume(lambda task: task.make_plan(plan)) == plan
    assert view(ways).plan == plan


def test_finished_items_are_not_given_again_and_the_others_are(ways: Ways) -> None:
    ran: list[Any] = []
    plan: list[Any] = ["a", {"name": "b", "with": [1]}, "a", "c/#[]%é"]

    def execute(item: Any, break_at: int) -> int:
        ran.append(item)
        if len(ran) == break_at:
            raise ValueError("no")
        return len(ran)

    async def work(task: Any, break_at: int) -> Any:
        await task.make_plan(plan)
        given = []
        for item in task.remaining():
            given.append(item)
            await task.step(item, lambda item: execute(item, break_at), item)
        return given

    with pytest.raises(StepFailed):
        ways.resume(lambda task: work(task, 3))
    assert ran == plan[:3]
    assert view(ways).plan_paths == ["a", "b", "a#2", "c%2F%23%5B%5D%25é"]
    assert ways.resume(lambda task: work(task, 0)) == plan[2:]
    assert ran == [*plan[:3], *plan[2:]]
    assert ways.resume(lambda task: work(task, 0)) == []
    assert [step.status for step in view(ways).steps] == ["completed"] * 4
    assert view(ways).orphaned == []


def test_remaining_goes_on_to_the_next_item_after_one_that_failed(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.make_plan(["a", "b"])
        given = []
        for item in task.remaining():
            given.append(item)
            try:
                await task.step(item, fail if item == "a" else nothing)
            except StepFailed:
                pass
        return given

    assert ways.resume(work) == ["a", "b"]
    assert ways.resume(work) == ["a"], "a failed item remains"


def test_an_item_that_failed_is_given_once_in_a_run_though_the_plan_is_replaced(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.make_plan(["a", "b"])
        given = []
        for item in task.remaining():
            given.append(item)
            if item == "a":
                with pytest.raises(StepFailed):
                    await task.step(item, fail)
                await task.replan(["a", "c"])
            else:
                await task.step(item, nothing)
        return given

    assert ways.resume(work) == ["a", "c"]


def test_an_item_in_doubt_remains(ways: Ways) -> None:
    pay = holdfast.step(fail, once=True)

    async def work(task: Any) -> None:
        await task.make_plan(["pay", "b"])
        for item in task.remaining():
            await task.step(item, pay)

    with pytest.raises(StepInDoubt):
        ways.resume(work)

    async def look(task: Any) -> Any:
        return list(task.remaining()), task.in_doubt

    assert ways.resume(look) == (["pay", "b"], ["pay"])


def test_remaining_sees_what_replan_adds(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.make_plan(["a", "b", "c"])
        given = []
        for item in task.remaining():
            given.append(item)
            await task.step(item, lambda name: name, item)
            if item == "b":
                assert await task.replan(["d", {"name": "e"}]) == ["a", "b", "d", {"name": "e"}]
        return given

    assert ways.resume(work) == ["a", "b", "d", {"name": "e"}]
    assert view(ways).plan == ["a", "b", "d", {"name": "e"}]
    assert ways.resume(lambda task: task.make_plan(["x"])) == ["a", "b", "c"], (
        "the first one, as it was stored"
    )


@pytest.mark.parametrize(
    ("new", "merged", "left"),
    [
        (["d"], ["a", "b", "d"], ["d"]),
        (["b", "d", "a"], ["b", "d", "a"], ["d"]),
        (["a", "a", "d"], ["b", "a", "a", "d"], ["a", "d"]),
        ([], ["a", "b"], []),
        ([{"name": "a", "new": 1}, "c"], ["b", {"name": "a", "new": 1}, "c"], ["c"]),
    ],
)
def test_finished_items_stay_when_the_plan_is_replaced(
    ways: Ways, new: list[Any], merged: list[Any], left: list[Any]
) -> None:
    ran: list[Any] = []

    async def work(task: Any) -> Any:
        await task.make_plan(["a", "b", "c"])
        for name in ("a", "b"):
            await task.step(name, ran.append, name)
        return await task.replan(new), list(task.remaining())

    assert ways.resume(work) == (merged, left)
    assert ways.resume(work) == (merged, left)
    assert ran == ["a", "b"]


def test_all_finished_duplicates_stay_when_the_plan_is_replaced(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.make_plan(["a", "a", "c"])
        for _ in range(2):
            await task.step("a", nothing)
        return await task.replan(["a", "d"]), list(task.remaining())

    assert ways.resume(work) == (["a", "a", "d"], ["d"])
    assert ways.resume(work) == (["a", "a", "d"], ["d"])


def test_a_finished_duplicate_stays_the_step_it_was_when_an_earlier_one_is_dropped(
    ways: Ways,
) -> None:
    ran: list[int] = []

    def first_fails() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise ValueError("no")
        return len(ran)

    async def work(task: Any) -> Any:
        await task.make_plan(["a", "a", "z"])
        for _ in range(2):
            try:
                await task.step("a", first_fails)
            except StepFailed:
                pass
        return await task.replan(["b"]), list(task.remaining())

    assert ways.resume(work) == (["a", "b"], ["b"])
    assert view(ways).plan_paths == ["a#2", "b"]
    assert [(step.path, step.status) for step in view(ways).steps] == [
        ("a", "failed"),
        ("a#2", "completed"),
    ]


def test_replan_is_done_once_for_each_call(ways: Ways) -> None:
    calls: list[str] = []

    def make(name: str) -> list[str]:
        calls.append(name)
        return [f"{name} {len(calls)}"]

    async def work(task: Any) -> Any:
        return [
            await task.replan(make, "x"),
            await task.replan(make, "y"),
            await task.replan(make, "x"),
            await task.replan(["z"]),
        ]

    plans = [["x 1"], ["y 2"], ["x 3"], ["z"]]
    assert ways.resume(work) == plans
    assert ways.resume(work) == plans
    assert calls == ["x", "y", "x"]
    assert view(ways).plan == ["z"]


# -- notes and messages ----------------------------------------------------------------------------


def test_notes_made_again_on_resume_are_made_once(ways: Ways) -> None:
    def inside() -> None:
        task = ways.store.task("t")
        assert task.id == "t"

    async def work(task: Any) -> None:
        await task.decide("vendor A", why="cheapest")
        await task.decide("vendor A", why="cheapest")
        await task.decide("vendor A")
        await task.discover("vendor A")
        await task.discover("100 calls a minute")
        await task.step("a", inside)

    for _ in range(3):
        ways.resume(work)
    seen = view(ways)
    assert [(note.text, note.why) for note in seen.decisions] == [("vendor A", "cheapest")] * 2 + [
        ("vendor A", None)
    ]
    assert [note.text for note in seen.discoveries] == ["vendor A", "100 calls a minute"]
    assert {note.step for note in seen.decisions} == {""}
    types = [event.type for event in ways.store.task("t").history()]
    assert (types.count("task.decided"), types.count("task.discovered")) == (3, 2)


def test_notes_are_told_with_the_step_they_were_made_in(store: Store) -> None:
    with store.task("t") as task:

        def look(what: str) -> None:
            task.discover(what)
            task.decide("the same")

        def work() -> None:
            task.step("look", look, "one")
            task.step("look", look, "two")
            task.decide("the same")

        work()
    seen = store.get_task("t")
    assert seen is not None
    assert [(note.text, note.step) for note in seen.discoveries] == [
        ("one", "look"),
        ("two", "look#2"),
    ]
    assert [note.step for note in seen.decisions] == ["look", "look#2", ""]


def test_notes_of_a_step_that_is_run_again_are_made_once(store: Store) -> None:
    for broken in (True, False):

        def look(broken: bool = broken) -> None:
            holdfast.current_task().discover("once")  # type: ignore[unused-coroutine]
            if broken:
                raise ValueError("no")

        try:
            with store.task("t") as task:
                task.step("look", look)
        except StepFailed:
            assert broken
    seen = store.get_task("t")
    assert seen is not None
    assert [note.text for note in seen.discoveries] == ["once"]


@ON_MEMORY
@pytest.mark.parametrize("wrong", [7, None, b"x", "\ud800"])
def test_what_is_no_text_is_no_note(ways: Ways, wrong: Any) -> None:
    async def work(task: Any) -> None:
        for call in (lambda: task.decide(wrong), lambda: task.discover(wrong)):
            with pytest.raises((TypeError, NotSerializable)):
                await call()
        if wrong is not None:
            with pytest.raises((TypeError, NotSerializable)):
                await task.decide("x", why=wrong)

    ways.resume(work)
    assert (view(ways).decisions, view(ways).discoveries) == ([], [])


@pytest.mark.every_engine
def test_messages_appended_again_on_resume_are_appended_once(ways: Ways) -> None:
    async def append(chat: Any, text: str) -> None:
        made = chat.append({"role": "user", "content": text})
        if ways.asynchronous:
            await made

    async def work(task: Any) -> None:
        for chat in (task.conversation(), task.conversation("other")):
            for text in ("a", "b", "a"):
                await append(chat, text)

    for _ in range(3):
        ways.resume(work)
    for name in ("t", "other"):
        messages = ways.store.conversation(name).messages()
        assert [message["content"] for message in messages] == ["a", "b", "a"]


def test_a_message_with_an_id_or_at_a_version_is_appended_as_the_caller_says(store: Store) -> None:
    message = {"role": "user", "content": "a"}
    with store.task("t") as task:
        chat = task.conversation()
        assert chat.append(message, id="mine").duplicate is False
        assert chat.append(message, id="mine").duplicate is True
        assert chat.append(message, if_version=1).first == 2
        with chat.turn() as turn:
            turn.append(message)
        assert chat.count() == 3
