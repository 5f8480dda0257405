"""Replay: a program against what its task has recorded. Nothing is called or written, and where it departs is told; plain and async."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from both_ways import AwaitedTask, Ways, view
from holdfast import Divergence, NotFound, Replay, StepFailed, Store, Suspended
from holdfast.backends import Head, StreamKey
from holdfast.testing import fake_clock

ON_MEMORY = pytest.mark.parametrize("url", ["memory://"], ids=["memory"])
"""For what is far above the backends, and asked in many ways."""

Body = Callable[[Any], Awaitable[Any]]

calls: list[str] = []
"""The functions that were called, of those that are marked as `live`."""


def live(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a replay must not call."""

    @functools.wraps(fn)
    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(fn.__name__)
        return fn(*args, **kwargs)

    return noted


one = live(lambda: 1)


@live
def fail() -> None:
    raise ConnectionError("gone")


class Stop(BaseException):
    """The process is gone: what was written is there, the program did not go on."""


@pytest.fixture(params=["plain", "async"])
def ways(request: pytest.FixtureRequest, url: str) -> Iterator[Ways]:
    with holdfast.open(url) as store:
        yield Ways(store, asynchronous=request.param == "async")


def agent_of(ways: Ways, body: Body) -> Callable[[Any], Any]:
    """An agent of the kind that is tested, from a body that awaits everything."""

    async def awaited(task: holdfast.AsyncTask) -> Any:
        return await body(task)

    def plain(task: holdfast.Task) -> Any:
        return ways.run(body(AwaitedTask(task)))  # type: ignore[arg-type]  # an async function gives a coroutine

    return awaited if ways.asynchronous else plain


def record(ways: Ways, body: Body, id: str = "t", **options: Any) -> Any:
    """Run a task for real."""
    agent = agent_of(ways, body)
    if ways.asynchronous:
        return asyncio.run(ways.store.aio.run(agent, id, **options))
    return ways.store.run(agent, id, **options)


def suspend(ways: Ways, body: Body, id: str = "t", **options: Any) -> None:
    with pytest.raises(Suspended):
        record(ways, body, id, **options)


def cut_off(ways: Ways, body: Body, id: str = "t") -> None:
    """Run a task until it is interrupted."""
    with contextlib.suppress(Stop):
        record(ways, body, id)


def replay(ways: Ways, body: Body, id: str = "t", *, at: int | None = None) -> Replay:
    """Replay a task, and see that nothing was called, and nothing in the store has changed."""
    agent, before = agent_of(ways, body), everything(ways.store)
    calls.clear()
    if ways.asynchronous:
        found = asyncio.run(ways.store.aio.replay(agent, id, at=at))
    else:
        found = ways.store.replay(agent, id, at=at)
    assert calls == []
    assert everything(ways.store) == before
    return found


def everything(store: Store) -> dict[StreamKey, tuple[Any, ...]]:
    """Every stream of the store, and where it stands."""
    found: dict[StreamKey, tuple[Any, ...]] = {}
    for tenant, kind in [
        *((store.tenant, kind) for kind in ("task", "conversation", "blob", "state", "stream", "audit", "closed")),
        ("$system", "tenant"),
    ]:
        after = ""
        backend = store._log.backend
        while page := backend.heads(tenant=tenant, kind=kind, after=after):
            found.update((each.stream, _standing(backend.head(each.stream))) for each in page)
            after = page[-1].stream.id
    return found


def _standing(head: Head | None) -> tuple[Any, ...]:
    assert head is not None
    return head.version, head.hash, head.incarnation, head.fields


async def settled(value: Any) -> Any:
    """What a method gives, awaited or not."""
    return await value if inspect.isawaitable(value) else value


def departure(found: Replay) -> tuple[str, str]:
    """In what, and where, a program departs."""
    assert not found.ok
    assert found.ended == "diverged"
    assert found.divergence is not None
    return found.divergence.what, found.divergence.step


# -- what agrees -------------------------------------------------------------------------------------------------------


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
    assert (found.unasked, found.divergence, found.error, found.drift) == ([], None, None, [])
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
        known = (task.status, task.result, task.resumed, task.cancelled, task.goal, task.input, await task.results())
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
            replay(ways, body, at=version)


@ON_MEMORY
def test_a_task_is_only_read_while_somebody_works_on_it(ways: Ways) -> None:
    async def body(task: Any) -> None:
        await task.step("a", one)
        await task.step("b", one)

    with ways.store.task("t") as task:
        task.step("a", one)
        found = replay(ways, body)
        assert (found.ok, found.ended, found.steps) == (True, "recording ended", ["a"])
        task.step("b", one)  # the holder has lost nothing
        task.finish(None)
    assert replay(ways, body).ended == "finished"


@ON_MEMORY
def test_code_after_the_replay_is_in_no_task(ways: Ways) -> None:
    async def body(task: Any) -> None:
        await task.step("a", one)

    record(ways, body)
    replay(ways, body)
    with pytest.raises(holdfast.NoTask):
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
    assert (found.ok, found.result, found.steps) == (True, "because of ConnectionError", ["first", "second"])


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
    assert (found.ok, found.result, found.steps, found.unasked) == (True, 2, ["outer"], [])


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


# -- waiting, children, many at once -----------------------------------------------------------------------------------


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
def test_a_time_of_which_nobody_wrote_that_it_has_passed_is_passed_if_the_task_went_on(ways: Ways) -> None:
    async def body(task: Any) -> None:
        await task.sleep(5)
        await task.step("a", one)

    with fake_clock() as clock:
        suspend(ways, body)
        clock.advance(6)
        record(ways, body)
        began = [event.version for event in ways.store.task("t").history() if event.type == "task.claimed"]
        assert replay(ways, body, at=began[1] - 1).ended == "suspended"
        assert replay(ways, body, at=began[1]).ended == "recording ended"


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
        found = [await task.child(kid, "kid-4", input=4)]
        try:
            await task.child(kid, "kid-fails", input=-1)
        except holdfast.ChildFailed as error:
            found.append(error.type)
        return [*found, await task.child(kid, "kid-waits", input=0)]

    suspend(ways, body)
    found = replay(ways, body)
    assert (found.ok, found.ended) == (True, "suspended")
    assert found.steps == ["replayed-kid[kid-4]", "replayed-kid[kid-fails]"]
    ways.store.answer("kid-waits", "kid", 7)
    assert record(ways, body) == [8, "ValueError", 7]
    found = replay(ways, body)
    assert (found.ok, found.result) == (True, [8, "ValueError", 7])
    assert found.steps == ["replayed-kid[kid-4]", "replayed-kid[kid-fails]", "replayed-kid[kid-waits]"]


@ON_MEMORY
def test_items_of_a_map_are_given_back_whatever_their_order_was(ways: Ways) -> None:
    double = live(lambda n: n * 2)

    async def body(task: Any) -> Any:
        return [await task.map("double", double, range(20)), await task.map("by key", double, "ab", key=str)]

    expected = [[n * 2 for n in range(20)], ["aa", "bb"]]
    assert record(ways, body) == expected
    found = replay(ways, body)
    assert (found.ok, found.result, len(found.steps)) == (True, expected, 22)


@ON_MEMORY
def test_beside_a_failed_item_it_does_not_matter_how_many_others_were_begun(ways: Ways) -> None:
    """The second item fails when three are under way, so that others behind it are recorded, and most are not."""
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
    assert (found.ok, found.result, found.steps) == (True, "ValueError", ["work", "work#2", "after"])


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
                    "work", live(lambda item: 1 // item.number), map(Item, range(30)), concurrency=concurrency
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
    assert (found.ok, found.ended, sorted(found.steps)) == (True, "recording ended", ["work", "work#2"])


def test_gathered_steps_are_replayed_whatever_their_order(store: Store) -> None:
    async def work(n: int) -> int:
        calls.append("work")
        await asyncio.sleep(0)
        return n

    async def agent(task: holdfast.AsyncTask) -> list[int]:
        return await asyncio.gather(*(task.step("work", work, n) for n in range(5)))

    async def other_order(task: holdfast.AsyncTask) -> list[int]:
        return sorted(await asyncio.gather(*(task.step("work", work, n) for n in reversed(range(5)))))

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


# -- where a recording ends --------------------------------------------------------------------------------------------


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
        found = replay(ways, body, at=version)
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
    first = next(event.version for event in ways.store.task("t").history() if event.type == "step.completed")
    ways.store.task("t").fork("f", at=first)
    found = replay(ways, body, "f")
    assert (found.ok, found.ended, found.steps) == (True, "recording ended", ["a"])


# -- what departs ------------------------------------------------------------------------------------------------------


def steps_of(*asked: tuple[str, int], result: Any = None, options: Any = None) -> Body:
    """A program that asks for these steps."""

    async def body(task: Any) -> Any:
        for name, argument in asked:
            await task.step(name, holdfast.step(live(lambda n: n), **(options or {})), argument)
        return result

    return body


@ON_MEMORY
@pytest.mark.parametrize(
    "options", [None, {"drift": "keep"}, {"drift": "rerun"}, {"key": lambda n: "k"}], ids=["", "keep", "rerun", "key"]
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
    assert (found.steps, found.unasked) == (["a"], ["b"])
    assert departure(replay(ways, steps_of(("a", 1), ("b", 2), ("new", 1)))) == ("new step", "new")


@ON_MEMORY
def test_a_recorded_step_that_is_not_asked_for_departs(ways: Ways) -> None:
    record(ways, steps_of(("a", 1), ("b", 2), ("c", 3)))
    found = replay(ways, steps_of(("a", 1), ("c", 3)))
    assert departure(found) == ("unasked", "b")
    assert found.unasked == ["b"]


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
    assert view(ways).unasked == ["old"]
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
    assert departure(replay(ways, program("A"))) == ("unasked", "")


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
        assert "    asked:    a sleep\n" in str(replay(ways, program(1, 2)))
        assert "    recorded: a sleep\n" in str(replay(ways, program(1, 0)))
        assert departure(replay(ways, program(0, 1)))[0] == "unasked"
        assert departure(replay(ways, program(1, 0)))[0] == "unasked"


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
    with pytest.raises(holdfast.NoTask):
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
    assert departure(asyncio.run(store.aio.replay(program(1, 3), "t")))[0] in ("new step", "arguments")


# -- conversations, files, other writes --------------------------------------------------------------------------------


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
    found: list[Replay] = []
    thread = threading.Thread(target=lambda: found.append(store.replay(agent, "t")))
    thread.start()
    begun.wait(timeout=30)
    store.stream("here").append(("happened", 1))
    over.set()
    thread.join()
    assert [each.ok for each in found] == [True]
    assert store.stream("here").version() == 1


# -- how it looks ------------------------------------------------------------------------------------------------------


@ON_MEMORY
def test_a_replay_can_be_read(ways: Ways) -> None:
    record(ways, steps_of(("a", 1), ("b", 2)))
    assert str(replay(ways, steps_of(("a", 1), ("b", 2)))).splitlines() == [
        "replay of task 't' (version 5): finished",
        "  given back: a, b",
    ]
    found = replay(ways, steps_of(("a", 1), ("c", 2)))
    assert isinstance(found.divergence, Divergence)
    lines = str(found).splitlines()
    assert lines[0] == "replay of task 't' (version 5): diverged"
    assert lines[1] == "  departs in: new step (c)"
    assert lines[2].startswith("    recorded: step 'b' with arguments ")
    assert lines[3].startswith("    asked:    step 'c' with arguments ")
    assert lines[4:] == ["  given back: a", "  not asked for: b"]
    assert str(found.divergence).startswith("new step at 'c': recorded step 'b'")
