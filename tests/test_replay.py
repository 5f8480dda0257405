"""Replay: a program against what its task has recorded. Nothing is called or written, and where it departs is told; plain and async."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import holdfast
from both_ways import AwaitedTask, Ways, view
from holdfast import Divergence, NotFound, Replay, StepFailed, Store, Suspended
from holdfast.backends import Head, StreamKey

ON_MEMORY = pytest.mark.parametrize("url", ["memory://"], ids=["memory"])
"""For what is far above the backends, and asked in many ways."""

Body = Callable[[Any], Awaitable[Any]]


class Stop(BaseException):
    """The process is gone: what was written is there, the program did not go on."""


@pytest.fixture(params=["plain", "async"])
def ways(request: pytest.FixtureRequest, url: str) -> Iterator[Ways]:
    with holdfast.open(url) as store:
        yield Ways(store, asynchronous=request.param == "async")


def agent_of(ways: Ways, body: Body) -> Callable[[Any], Any]:
    """An agent of the kind that is tested, from a body that awaits everything."""
    if ways.asynchronous:
        return body

    def agent(task: holdfast.Task) -> Any:
        return ways.run(body(AwaitedTask(task)))  # type: ignore[arg-type]  # an async function gives a coroutine

    return agent


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
    """Replay a task, and see that nothing in the store has changed."""
    agent, before = agent_of(ways, body), everything(ways.store)
    if ways.asynchronous:
        found = asyncio.run(ways.store.aio.replay(agent, id, at=at))
    else:
        found = ways.store.replay(agent, id, at=at)
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
        while page := store._log.backend.heads(tenant=tenant, kind=kind, after=after):
            found.update((head.stream, _standing(head)) for head in page)
            after = page[-1].stream.id
    return found


def _standing(head: Head) -> tuple[Any, ...]:
    return head.version, head.hash, head.incarnation, head.fields


async def settled(value: Any) -> Any:
    """What a method gives, awaited or not."""
    return await value if inspect.isawaitable(value) else value


def live(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a replay has called a function of the program")


def departure(found: Replay) -> tuple[str, str]:
    assert not found.ok
    assert found.ended == "diverged"
    assert found.divergence is not None
    return found.divergence.what, found.divergence.step


# -- what agrees -------------------------------------------------------------------------------------------------------


def test_a_finished_task_is_replayed_without_calling_or_writing_anything(ways: Ways) -> None:
    def program(collect: Any, write: Any, report: Any) -> Body:
        async def body(task: Any) -> Any:
            found = await task.step("collect", collect, 2)
            await task.decide("two are enough", why="cheap")
            await task.discover("the limit is 100")
            text = await task.step("write", write, found)
            return await task.finish(report, text)

        return body

    record(ways, program(lambda n: list(range(n)), lambda found: f"{len(found)} items", lambda text: text.upper()))
    found = replay(ways, program(live, live, live))
    assert found.ok
    assert found.ended == "finished"
    assert found.result == "2 ITEMS"
    assert found.steps == ["collect", "write"]
    assert (found.unasked, found.divergence, found.error) == ([], None, None)


def test_large_results_are_given_back(ways: Ways) -> None:
    def program(big: Any) -> Body:
        async def body(task: Any) -> int:
            return len(await task.step("big", big))

        return body

    record(ways, program(lambda: "x" * 200_000))
    assert replay(ways, program(live)).result == 200_000


@ON_MEMORY
def test_for_the_program_it_is_a_task_that_runs_for_the_first_time(ways: Ways) -> None:
    seen: list[Any] = []

    async def body(task: Any) -> str:
        seen.append((task.status, task.result, task.resumed, task.cancelled, task.goal, task.input, await task.results()))
        await task.step("a", lambda: 1)
        seen.append(await task.results())
        await task.step("b", lambda: 2)
        return "done"

    record(ways, body, goal="g", input={"n": 1})
    recorded, seen = seen, []
    assert replay(ways, body).ok
    assert seen == recorded
    assert view(ways).status == "finished"


@ON_MEMORY
def test_the_result_has_the_type_that_the_agent_declares(store: Store) -> None:
    def agent(task: holdfast.Task) -> set[int]:
        return {task.step("n", lambda: 3)}

    store.run(agent, "t")
    assert store.replay(agent, "t").result == {3}

    def other(task: holdfast.Task) -> dict[str, int]:
        task.step("n", lambda: 3)
        return task.finish(live)

    assert departure(store.replay(other, "t"))[0] in ("result", "failure")


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
def test_a_task_that_is_not_there_or_a_version_that_is_not_is_not_found(ways: Ways) -> None:
    async def body(task: Any) -> None:
        pass

    with pytest.raises(NotFound):
        replay(ways, body, "nowhere")
    record(ways, body)
    for version in (0, 99):
        with pytest.raises(NotFound):
            replay(ways, body, at=version)


@ON_MEMORY
def test_a_task_is_only_read_while_somebody_works_on_it(ways: Ways) -> None:
    async def body(task: Any) -> None:
        await task.step("a", live)
        await task.step("b", live)

    with ways.store.task("t") as task:
        task.step("a", lambda: 1)
        found = replay(ways, body)
        assert (found.ok, found.ended, found.steps) == (True, "recording ended", ["a"])
        task.step("b", lambda: 2)  # the holder has lost nothing
        task.finish(None)
    assert replay(ways, body).ended == "finished"


@ON_MEMORY
def test_failures_that_the_program_caught_are_given_back(ways: Ways) -> None:
    def program(first: Any, second: Any) -> Body:
        async def body(task: Any) -> str:
            try:
                await task.step("first", first)
            except StepFailed as error:
                return str(await task.step("second", second, error.type))
            raise AssertionError

        return body

    def fail() -> None:
        raise ConnectionError("gone")

    assert record(ways, program(fail, lambda why: f"because of {why}")) == "because of ConnectionError"
    found = replay(ways, program(live, live))
    assert (found.ok, found.result, found.steps) == (True, "because of ConnectionError", ["first", "second"])


@ON_MEMORY
def test_a_failed_task_fails_again_with_its_recorded_failure(ways: Ways) -> None:
    def program(flaky: Any) -> Body:
        async def body(task: Any) -> None:
            for _ in range(2):
                with contextlib.suppress(StepFailed):
                    await task.step("try", flaky)
            await task.step("try", flaky)

        return body

    def fail() -> None:
        raise ConnectionError("gone")

    with pytest.raises(StepFailed):
        record(ways, program(fail))
    found = replay(ways, program(live))
    assert (found.ok, found.ended) == (True, "failed")
    assert found.steps == ["try", "try#2", "try#3"]
    assert isinstance(found.error, StepFailed)
    assert found.error.type == "ConnectionError"


@ON_MEMORY
def test_a_failure_of_the_program_itself_is_compared_by_its_type(ways: Ways) -> None:
    def program(error: Exception | None) -> Body:
        async def body(task: Any) -> None:
            await task.step("a", lambda: 1)
            if error is not None:
                raise error
            await task.step("b", live)

        return body

    with pytest.raises(KeyError):
        record(ways, program(KeyError("x")))
    assert replay(ways, program(KeyError("y"))).ended == "failed"
    assert departure(replay(ways, program(ValueError("x")))) == ("failure", "")
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
def test_code_that_has_changed_is_told_and_no_departure(ways: Ways) -> None:
    def program(fn: Any) -> Body:
        async def body(task: Any) -> Any:
            return await task.step("a", fn)

        return body

    record(ways, program(lambda: 1))
    found = replay(ways, program(lambda: 2))
    assert (found.ok, found.result) == (True, 1)
    assert [(entry.step, entry.what) for entry in found.drift] == [("a", "code")]


@ON_MEMORY
def test_plans_are_given_back_and_every_item_is_asked_for_again(ways: Ways) -> None:
    def program(plan: Any, again: Any, execute: Any, changed: str = "") -> Body:
        async def body(task: Any) -> list[Any]:
            await task.make_plan(plan, "goal")
            done = []
            for item in task.remaining():
                done.append(await task.step(item, execute, item + (changed if item == "d" else "")))
                if item == "b":
                    await task.replan(again, done)
            return done

        return body

    assert record(ways, program(lambda goal: ["a", "b", "c"], lambda done: ["d", "e"], str.upper)) == ["A", "B", "D", "E"]
    found = replay(ways, program(live, live, live))
    assert (found.ok, found.result) == (True, ["A", "B", "D", "E"])
    assert found.steps == ["a", "b", "d", "e"]
    assert departure(replay(ways, program(live, live, live, changed="!"))) == ("arguments", "d")


@ON_MEMORY
def test_what_steps_did_inside_is_not_asked_for_again(ways: Ways) -> None:
    inner = holdfast.step(lambda n: n + 1)

    async def body(task: Any) -> Any:
        async def outer() -> Any:
            one = await task.step("inner", lambda: 1)
            await task.decide("inside")
            return one + 1

        def plain_outer() -> Any:
            task.plain.decide("inside")
            return inner(1)

        return await task.step("outer", outer if ways.asynchronous else plain_outer)

    assert record(ways, body) == 2
    assert len(view(ways).steps) == 2
    found = replay(ways, body)
    assert (found.ok, found.result, found.steps, found.unasked) == (True, 2, ["outer"], [])


@ON_MEMORY
def test_steps_that_stream_give_their_chunks_back(ways: Ways) -> None:
    def program(begin: Callable[[], None]) -> Body:
        @holdfast.step
        async def awaited() -> Any:
            begin()
            for word in ("to", "be"):
                yield word

        @holdfast.step
        def plain() -> Any:
            begin()
            yield from ("to", "be")

        async def body(task: Any) -> list[str]:
            if ways.asynchronous:
                return [chunk async for chunk in awaited()]
            return list(plain())

        return body

    assert record(ways, program(lambda: None)) == ["to", "be"]
    assert replay(ways, program(live)).result == ["to", "be"]


@ON_MEMORY
def test_a_budget_that_is_used_up_does_not_keep_from_replaying(store: Store) -> None:
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
def test_answers_signals_times_and_children_are_given_back(ways: Ways) -> None:
    def program(kid: Any) -> Body:
        async def body(task: Any) -> list[Any]:
            await task.sleep(0)
            answer = await task.ask("payout", "Approve?", {"sum": 7}, returns=bool)
            signal = await task.wait_for("hook")
            await task.sleep_until(1.0)
            return [answer, signal, await task.child(kid, "kid", input=4)]

        return body

    async def child(task: Any) -> int:
        return int(await task.step("double", lambda n: n * 2, task.input))

    body = program(agent_of(ways, child))
    suspend(ways, body)
    found = replay(ways, body)
    assert (found.ok, found.ended, found.error) == (True, "suspended", None)
    ways.store.answer("t", "payout", True)
    assert replay(ways, body).ended == "recording ended"
    suspend(ways, body)
    assert replay(ways, body).ended == "suspended"
    ways.store.signal("t", "hook", {"x": 1})
    assert record(ways, body) == [True, {"x": 1}, 8]
    found = replay(ways, program(agent_of(ways, live)))
    assert (found.ok, found.result, found.steps) == (True, [True, {"x": 1}, 8], ["live[kid]"] if False else found.steps)


@ON_MEMORY
def test_a_time_that_was_waited_for_is_not_waited_for_again(ways: Ways) -> None:
    async def body(task: Any) -> str:
        await task.sleep(0.01)
        return "awake"

    suspend(ways, body)
    assert replay(ways, body).ended == "suspended"

    async def until_awake() -> None:
        while True:
            with contextlib.suppress(Suspended):
                return

    ways.run(until_awake())
