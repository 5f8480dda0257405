"""Replay: a program that agrees with what its task has recorded. Nothing is called or written;
plain and async."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.replays import (
    Body,
    Stop,
    agent_of,
    calls,
    cut_off,
    departure,
    live,
    one,
    record,
    replay,
    suspend,
)
from holdfast import NotFound, StepFailed, Store
from holdfast.testing import fake_clock


@live
def fail() -> None:
    raise ConnectionError("gone")


# -- what agrees -----------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_finished_task_is_replayed_without_calling_or_writing_anything(ways: Ways) -> None:
    async def body(task: Any) -> Any:
        found = await task.step("collect", live(lambda n: list(range(n))), 2)
        await task.decide("two are enough", why="cheap")
        await task.discover("the limit is 100")
        text = await task.step("write", live(lambda found: f"{len(found)} items"), found)
        return await task.finish(live(lambda text: text.upper()), text)

    record(ways, body)
    assert len(calls) == 3
    found = replay(ways, body)
    assert found.ok
    assert found.ended == "finished"
    assert found.result == "2 ITEMS"
    assert found.steps == ["collect", "write"]
    assert (found.orphaned, found.divergence, found.error, found.drift) == ([], None, None, [])
    calls.clear()


def test_large_results_are_given_back(ways: Ways) -> None:
    async def body(task: Any) -> int:
        return len(await task.step("big", live(lambda: "x" * 200_000)))

    record(ways, body)
    assert replay(ways, body).result == 200_000


@ON_MEMORY
def test_for_the_program_it_is_a_task_that_runs_for_the_first_time(ways: Ways) -> None:
    seen: list[Any] = []

    async def body(task: Any) -> str:
        known = (
            task.status,
            task.result,
            task.resumed,
            task.cancelled,
            task.goal,
            task.input,
            await task.results(),
        )
        seen.append(known)
        await task.step("a", one)
        seen.append(await task.results())
        await task.step("b", one)
        return "done"

    record(ways, body, goal="g", input={"n": 1})
    recorded = list(seen)
    seen.clear()
    assert replay(ways, body).ok
    assert seen == recorded
    assert view(ways).status == "finished"


@ON_MEMORY
def test_the_result_has_the_type_that_the_agent_declares(store: Store) -> None:
    def agent(task: holdfast.Task) -> set[int]:
        return {task.step("n", lambda: 3)}

    def other(task: holdfast.Task) -> dict[str, int]:
        task.step("n", lambda: 3)
        return task.finish(lambda: {3})  # type: ignore[no-any-return]

    store.run(agent, "t")
    assert store.replay(agent, "t").result == {3}
    found = store.replay(other, "t")
    assert departure(found) == ("result", "")
    assert found.result == [3]


@ON_MEMORY
def test_agents_are_found_by_name_and_the_function_of_the_package_is_the_same(store: Store) -> None:
    @holdfast.agent("replayed-by-name")
    def agent(task: holdfast.Task) -> int:
        return task.step("n", lambda: 3)

    @holdfast.agent("replayed-by-name-async")
    async def awaited(task: holdfast.AsyncTask) -> int:
        return await task.step("n", lambda: 3)

    store.run("replayed-by-name", "t")
    assert holdfast.replay("replayed-by-name", "t", store=store).result == 3
    assert asyncio.run(holdfast.replay(agent, "t", store=store.aio)).result == 3
    assert asyncio.run(holdfast.replay("replayed-by-name-async", "t", store=store.aio)).result == 3
    with pytest.raises(TypeError, match="aio"):
        store.replay("replayed-by-name-async", "t")


@ON_MEMORY
def test_a_task_or_a_version_that_is_not_there_is_not_found(ways: Ways) -> None:
    async def body(task: Any) -> None:
        pass

    with pytest.raises(NotFound):
        replay(ways, body, "nowhere")
    record(ways, body)
    for version in (0, 99):
        with pytest.raises((NotFound, ValueError)):
            replay(ways, body, version=version)


@ON_MEMORY
def test_a_task_is_only_read_while_somebody_works_on_it(ways: Ways) -> None:
    async def body(task: Any) -> None:
        await task.step("a", one)
        await task.step("b", one)

    with ways.store.task("t") as task:
        task.step("a", one)
        found = replay(ways, body)
        assert (found.ok, found.ended, found.steps) == (True, "recording ended", ["a"])
        task.step("b", one)  # the lease owner has lost nothing
        task.finish(None)
    assert replay(ways, body).ended == "finished"


@ON_MEMORY
def test_code_after_the_replay_is_in_no_task(ways: Ways) -> None:
    async def body(task: Any) -> None:
        await task.step("a", one)

    record(ways, body)
    replay(ways, body)
    with pytest.raises(holdfast.errors.NoTask):
        holdfast.current_task()
    record(ways, body, "another")  # and writes again
    assert view(ways, "another").status == "finished"


@ON_MEMORY
def test_failures_that_the_program_caught_are_given_back(ways: Ways) -> None:
    async def body(task: Any) -> Any:
        try:
            await task.step("first", fail)
        except StepFailed as error:
            return await task.step("second", live(lambda why: f"because of {why}"), error.type)

    assert record(ways, body) == "because of ConnectionError"
    found = replay(ways, body)
    assert (found.ok, found.result, found.steps) == (
        True,
        "because of ConnectionError",
        ["first", "second"],
    )


@ON_MEMORY
def test_a_failed_task_fails_again_with_its_recorded_failure(ways: Ways) -> None:
    async def body(task: Any) -> None:
        for _ in range(2):
            with contextlib.suppress(StepFailed):
                await task.step("try", fail)
        await task.step("try", fail)

    with pytest.raises(StepFailed):
        record(ways, body)
    found = replay(ways, body)
    assert (found.ok, found.ended) == (True, "failed")
    assert found.steps == ["try", "try#2", "try#3"]
    assert isinstance(found.error, StepFailed)
    assert found.error.type == "ConnectionError"


@ON_MEMORY
def test_a_failure_of_the_program_itself_is_compared_by_its_type(ways: Ways) -> None:
    def program(error: Exception | None) -> Body:
        async def body(task: Any) -> None:
            await task.step("a", one)
            if error is not None:
                raise error
            await task.step("b", one)

        return body

    with pytest.raises(KeyError):
        record(ways, program(KeyError("x")))
    assert replay(ways, program(KeyError("y"))).ended == "failed"
    found = replay(ways, program(ValueError("x")))
    assert departure(found) == ("failure", "")
    assert isinstance(found.error, ValueError)
    assert departure(replay(ways, program(None))) == ("new step", "b")


@ON_MEMORY
def test_giving_up_is_compared_by_its_reason(ways: Ways) -> None:
    def program(reason: str) -> Body:
        async def body(task: Any) -> None:
            await task.fail(reason)

        return body

    with pytest.raises(Exception, match="no money"):
        record(ways, program("no money"))
    assert replay(ways, program("no money")).ended == "failed"
    assert departure(replay(ways, program("no time"))) == ("failure", "")


@ON_MEMORY
def test_code_that_has_changed_is_told_and_is_no_departure(ways: Ways) -> None:
    def program(fn: Any) -> Body:
        async def body(task: Any) -> Any:
            return await task.step("a", fn)

        return body

    record(ways, program(lambda: 1))
    found = replay(ways, program(lambda: 2))
    assert (found.ok, found.result) == (True, 1)
    assert [(entry.step, entry.what) for entry in found.drift] == [("a", "code")]
    assert "changed since: code of a" in str(found)


@ON_MEMORY
def test_plans_are_given_back_and_every_item_is_asked_for_again(ways: Ways) -> None:
    def program(changed: str = "") -> Body:
        async def body(task: Any) -> list[Any]:
            await task.make_plan(live(lambda goal: ["a", "b", "c"]), "goal")
            done = list(task.plan)
            for item in task.remaining():
                text = item + (changed if item == "d" else "")
                done.append(await task.step(item, live(lambda text: text.upper()), text))
                if item == "b":
                    await task.replan(live(lambda done: ["d", "e"]), done)
            return done

        return body

    expected = ["a", "b", "c", "A", "B", "D", "E"]
    assert record(ways, program()) == expected
    found = replay(ways, program())
    assert (found.ok, found.result, found.steps) == (True, expected, ["a", "b", "d", "e"])
    assert departure(replay(ways, program(changed="!"))) == ("arguments", "d")


@ON_MEMORY
def test_what_steps_did_inside_is_not_asked_for_again(ways: Ways) -> None:
    async def body(task: Any) -> Any:
        async def outer() -> Any:
            found = await task.step("inner", one)
            await task.decide("inside")
            return found + 1

        def plain_outer() -> Any:
            found = task.plain.step("inner", one)
            task.plain.decide("inside")
            return found + 1

        return await task.step("outer", live(outer if ways.asynchronous else plain_outer))

    assert record(ways, body) == 2
    assert len(view(ways).steps) == 2
    found = replay(ways, body)
    assert (found.ok, found.result, found.steps, found.orphaned) == (True, 2, ["outer"], [])


@ON_MEMORY
def test_steps_that_stream_give_their_chunks_back(ways: Ways) -> None:
    @holdfast.step
    async def awaited() -> Any:
        calls.append("awaited")
        for word in ("to", "be"):
            yield word

    @holdfast.step
    def plain() -> Any:
        calls.append("plain")
        yield from ("to", "be")

    async def body(task: Any) -> list[str]:
        if ways.asynchronous:
            return [chunk async for chunk in awaited()]
        return list(plain())

    assert record(ways, body) == ["to", "be"]
    assert replay(ways, body).result == ["to", "be"]


@ON_MEMORY
def test_a_budget_that_is_used_up_is_not_asked_about(store: Store) -> None:
    @holdfast.step(kind="model")
    def model(n: int) -> int:
        holdfast.current_step().use(input_tokens=100)
        return n

    def agent(task: holdfast.Task) -> int:
        return model(1)

    with store.task("t", budget=holdfast.Budget(tokens=50)) as task:
        task.finish(agent(task))
    assert store.replay(agent, "t").result == 1


# -- waiting, children, many at once ---------------------------------------------------------------


@ON_MEMORY
def test_answers_signals_and_times_are_given_back(ways: Ways) -> None:
    async def body(task: Any) -> list[Any]:
        await task.sleep(0)
        answer = await task.ask("payout", "Approve?", {"sum": 7}, returns=bool)
        signal = await task.wait_for("hook")
        await task.sleep_until(1.0)
        await task.sleep(100)
        return [answer, signal]

    with fake_clock() as clock:
        suspend(ways, body)
        found = replay(ways, body)
        assert (found.ok, found.ended, found.error) == (True, "suspended", None)
        ways.store.answer("t", "payout", True)
        assert replay(ways, body).ended == "recording ended"
        suspend(ways, body)
        assert replay(ways, body).ended == "suspended"
        ways.store.signal("t", "hook", {"x": 1})
        suspend(ways, body)
        assert replay(ways, body).ended == "suspended"
        clock.advance(101)
        assert record(ways, body) == [True, {"x": 1}]
        found = replay(ways, body)
    assert (found.ok, found.ended, found.result) == (True, "finished", [True, {"x": 1}])


@ON_MEMORY
def test_a_time_of_which_nobody_wrote_that_it_has_passed_is_passed_if_the_task_went_on(
    ways: Ways,
) -> None:
    async def body(task: Any) -> None:
        await task.sleep(5)
        await task.step("a", one)

    with fake_clock() as clock:
        suspend(ways, body)
        clock.advance(6)
        record(ways, body)
        began = [
            event.version
            for event in ways.store.task("t").history()
            if event.type == "task.claimed"
        ]
        assert replay(ways, body, version=began[1] - 1).ended == "suspended"
        assert replay(ways, body, version=began[1]).ended == "recording ended"


@ON_MEMORY
def test_what_did_not_come_in_time_does_not_come_again(ways: Ways) -> None:
    async def body(task: Any) -> str:
        try:
            return str(await task.wait_for("hook", timeout=5))
        except TimeoutError:
            return "nothing came"

    with fake_clock() as clock:
        suspend(ways, body)
        clock.advance(6)
        assert record(ways, body) == "nothing came"
        assert replay(ways, body).result == "nothing came"


@ON_MEMORY
def test_children_are_not_run(ways: Ways) -> None:
    async def child(task: Any) -> Any:
        calls.append("child")
        if task.input < 0:
            raise ValueError("negative")
        if task.input == 0:
            return await task.ask("kid", "How much?", returns=int)
        return task.input * 2

    kid = holdfast.agent("replayed-kid")(agent_of(ways, child))

    async def body(task: Any) -> list[Any]:
        found = [await task.run_child(kid, "kid-4", input=4)]
        try:
            await task.run_child(kid, "kid-fails", input=-1)
        except holdfast.errors.ChildFailed as error:
            found.append(error.type)
        return [*found, await task.run_child(kid, "kid-waits", input=0)]

    suspend(ways, body)
    found = replay(ways, body)
    assert (found.ok, found.ended) == (True, "suspended")
    assert found.steps == ["replayed-kid[kid-4]", "replayed-kid[kid-fails]"]
    ways.store.answer("kid-waits", "kid", 7)
    assert record(ways, body) == [8, "ValueError", 7]
    found = replay(ways, body)
    assert (found.ok, found.result) == (True, [8, "ValueError", 7])
    assert found.steps == [
        "replayed-kid[kid-4]",
        "replayed-kid[kid-fails]",
        "replayed-kid[kid-waits]",
    ]


@ON_MEMORY
def test_items_of_a_map_are_given_back_whatever_their_order_was(ways: Ways) -> None:
    double = live(lambda n: n * 2)

    async def body(task: Any) -> Any:
        return [
            await task.map("double", double, range(20)),
            await task.map("by key", double, "ab", key=str),
        ]

    expected = [[n * 2 for n in range(20)], ["aa", "bb"]]
    assert record(ways, body) == expected
    found = replay(ways, body)
    assert (found.ok, found.result, len(found.steps)) == (True, expected, 22)


@ON_MEMORY
def test_beside_a_failed_item_it_does_not_matter_how_many_others_were_begun(ways: Ways) -> None:
    """The second item fails when three are under way, so that others behind it are recorded, and
    most are not."""
    begun = threading.Barrier(3)

    def work(n: int) -> int:
        if n < 3:
            begun.wait(timeout=30)
        if n == 1:
            raise ValueError
        return n

    async def body(task: Any) -> Any:
        try:
            return await task.map("work", live(work), range(30), concurrency=3)
        except StepFailed as error:
            return await task.step("after", live(lambda why: why), error.type)

    assert record(ways, body) == "ValueError"
    found = replay(ways, body)
    assert (found.ok, found.result, found.steps) == (
        True,
        "ValueError",
        ["work", "work#2", "after"],
    )


@ON_MEMORY
def test_items_behind_one_that_failed_are_not_asked_for(ways: Ways) -> None:
    class Item:
        """While this is compared with what is recorded, other threads get their turn."""

        def __init__(self, number: int) -> None:
            self.number = number

        def __holdfast_fingerprint__(self) -> int:
            for _ in range(100):
                time.sleep(0)
            return self.number

    def program(concurrency: int) -> Body:
        async def body(task: Any) -> str:
            try:
                await task.map(
                    "work",
                    live(lambda item: 1 // item.number),
                    map(Item, range(30)),
                    concurrency=concurrency,
                )
            except StepFailed as error:
                return error.type
            raise AssertionError

        return body

    assert record(ways, program(1)) == "ZeroDivisionError"
    assert len(view(ways).steps) == 1
    found = replay(ways, program(8))
    assert (found.ok, found.result) == (True, "ZeroDivisionError")


@ON_MEMORY
def test_an_item_that_was_cut_off_does_not_keep_the_others_from_being_replayed(ways: Ways) -> None:
    with ways.store.task("t") as task:  # the last item is recorded, the second is not
        assert task.map("work", lambda n: n, [0]) == [0]
        task.step("work", lambda n: n, 2)

    async def three(task: Any) -> Any:
        return await task.map("work", live(lambda n: n), [0, 1, 2])

    found = replay(ways, three)
    assert (found.ok, found.ended, sorted(found.steps)) == (
        True,
        "recording ended",
        ["work", "work#2"],
    )


def test_gathered_steps_are_replayed_whatever_their_order(store: Store) -> None:
    async def work(n: int) -> int:
        calls.append("work")
        await asyncio.sleep(0)
        return n

    async def agent(task: holdfast.AsyncTask) -> list[int]:
        return await asyncio.gather(*(task.step("work", work, n) for n in range(5)))

    async def other_order(task: holdfast.AsyncTask) -> list[int]:
        return sorted(
            await asyncio.gather(*(task.step("work", work, n) for n in reversed(range(5))))
        )

    asyncio.run(store.aio.run(agent, "t"))
    calls.clear()
    assert asyncio.run(store.aio.replay(agent, "t")).ok
    assert asyncio.run(store.aio.replay(other_order, "t")).ok
    assert calls == []


@ON_MEMORY
def test_threads_of_a_pool_are_replayed(store: Store) -> None:
    work = holdfast.step(live(lambda n: n))

    def agent(task: holdfast.Task) -> list[int]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(holdfast.bind(work), range(8)))

    store.run(agent, "t")
    calls.clear()
    found = store.replay(agent, "t")
    assert (found.ok, found.result, calls) == (True, list(range(8)), [])


# -- where a recording ends ------------------------------------------------------------------------


@ON_MEMORY
def test_a_step_that_never_ended_is_where_the_recording_ends(ways: Ways) -> None:
    @live
    def stop() -> None:
        raise Stop

    async def body(task: Any) -> None:
        await task.step("a", one)
        await task.step("cut off", stop)

    cut_off(ways, body)
    assert [step.status for step in view(ways).steps] == ["completed", "interrupted"]
    found = replay(ways, body)
    assert (found.ok, found.ended, found.steps) == (True, "recording ended", ["a"])


@ON_MEMORY
@pytest.mark.parametrize("how", [Stop, ConnectionError])
def test_a_step_in_doubt_is_where_the_recording_ends(ways: Ways, how: type[BaseException]) -> None:
    def pay() -> None:
        calls.append("pay")
        raise how

    async def body(task: Any) -> None:
        await task.step("a", one)
        await task.step("pay", holdfast.step(pay, once=True))

    with contextlib.suppress(holdfast.StepInDoubt):
        cut_off(ways, body)
    assert view(ways).in_doubt == ["pay"]
    found = replay(ways, body)
    assert (found.ok, found.ended, found.error) == (True, "recording ended", None)


@ON_MEMORY
def test_a_check_is_not_asked(ways: Ways) -> None:
    def pay() -> int:
        calls.append("pay")
        raise Stop

    @live
    def find() -> int:
        return 1

    async def body(task: Any) -> int:
        return int(await task.step("pay", holdfast.step(pay, check=find)))

    cut_off(ways, body)
    assert replay(ways, body).ended == "recording ended"
    assert record(ways, body) == 1
    assert replay(ways, body).result == 1


@ON_MEMORY
def test_up_to_a_version_is_as_if_the_rest_were_not_there(ways: Ways) -> None:
    async def body(task: Any) -> str:
        await task.step("a", one)
        await task.step("b", one)
        return "done"

    record(ways, body)
    ends = []
    for version in range(1, view(ways).version + 1):
        found = replay(ways, body, version=version)
        assert found.ok
        assert found.version == version
        ends.append((found.ended, found.steps))
    assert ends[0] == ("recording ended", [])
    assert ("recording ended", ["a"]) in ends
    assert ends[-2:] == [("recording ended", ["a", "b"]), ("finished", ["a", "b"])]


@ON_MEMORY
def test_a_fork_is_replayed_with_what_it_has_from_its_parent(ways: Ways) -> None:
    async def body(task: Any) -> int:
        return int(await task.step("a", one)) + int(await task.step("b", one))

    record(ways, body)
    first = next(
        event.version for event in ways.store.task("t").history() if event.type == "step.completed"
    )
    ways.store.task("t").fork("f", version=first)
    found = replay(ways, body, "f")
    assert (found.ok, found.ended, found.steps) == (True, "recording ended", ["a"])
