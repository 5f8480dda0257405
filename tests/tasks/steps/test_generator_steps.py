"""Generator functions as steps: chunks as they come, recorded together, given again; on every
backend, plain and async."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from holdfast import StepFailed, StepInDoubt
from holdfast.errors import NoTask, NotSerializable, ReplayMismatch


class Stop(BaseException):
    """The process is gone: what was written is there, the program did not go on."""


class Source:
    """A generator function of either kind, that notes what it was asked for and whether it was
    closed."""

    def __init__(self, *chunks: Any) -> None:
        self.chunks, self.asked, self.closed, self.calls = chunks, 0, 0, 0

    def function(self, ways: Ways) -> Callable[..., Any]:
        def plain(*args: Any) -> Iterator[Any]:
            self.calls += 1
            try:
                for chunk in self.chunks:
                    self.asked += 1
                    if isinstance(chunk, BaseException):
                        raise chunk
                    yield chunk
            finally:
                self.closed += 1

        async def awaited(*args: Any) -> AsyncIterator[Any]:
            source = plain(*args)
            try:
                for chunk in source:
                    await asyncio.sleep(0)
                    yield chunk
            finally:
                source.close()  # type: ignore[attr-defined]  # it is a generator

        return awaited if ways.asynchronous else plain


async def listed(chunks: Any) -> list[Any]:
    return [chunk async for chunk in chunks]


# -- live, and again -------------------------------------------------------------------------------


def test_chunks_come_one_by_one_and_are_given_again_without_running(ways: Ways) -> None:
    source = Source("a", "b", "c")
    asked: list[int] = []

    async def work(task: Any) -> list[Any]:
        found = []
        async for chunk in task.step("answer", source.function(ways), "q"):
            found.append(chunk)
            asked.append(source.asked)
        return found

    assert ways.resume(work) == ["a", "b", "c"]
    assert asked == [1, 2, 3]  # each before the next was made
    [step] = view(ways).steps
    assert (step.status, step.result) == ("completed", ["a", "b", "c"])
    assert ways.resume(work) == ["a", "b", "c"]
    assert (source.calls, source.closed) == (1, 1)


def test_no_chunks_are_a_result_too(ways: Ways) -> None:
    source = Source()

    async def work(task: Any) -> list[Any]:
        return await listed(task.step("answer", source.function(ways)))

    assert ways.resume(work) == ways.resume(work) == []
    assert source.calls == 1


def test_a_decorated_generator_is_a_step_when_it_is_called_in_a_task(url: str) -> None:
    calls = []

    @holdfast.step(key=lambda question: question)
    def answer(question: str) -> Iterator[str]:
        calls.append(question)
        yield from question.split()

    assert list(answer("out side")) == ["out", "side"]
    with holdfast.open(url) as store:
        for _ in range(2):
            with store.task("t") as task:
                assert list(answer("one two")) == ["one", "two"]
                assert list(task.step("other", answer.using(key="x"), "three")) == ["three"]
        found = store.get_task("t")
    assert found is not None
    assert [step.path for step in found.steps] == ["answer[one two]", "other[x]"]
    assert calls == ["out side", "one two", "three"]


def test_a_decorated_async_generator_is_iterated_where_it_is_called(url: str) -> None:
    calls = []

    @holdfast.step
    async def answer(question: str) -> AsyncIterator[str]:
        calls.append(question)
        for word in question.split():
            await asyncio.sleep(0)
            yield word

    async def program() -> None:
        async with holdfast.aopen(url) as store:
            for _ in range(2):
                async with store.task("t"):
                    assert [word async for word in answer("one two")] == ["one", "two"]

    asyncio.run(program())
    assert calls == ["one two"]


def test_a_plain_generator_in_an_async_task_runs_in_threads(url: str) -> None:
    threads = []

    def count() -> Iterator[int]:
        for number in range(3):
            threads.append(threading.current_thread() is threading.main_thread())
            yield number

    decorated = holdfast.step(count)

    async def program() -> None:
        async with holdfast.aopen(url) as store, store.task("t") as task:
            assert [number async for number in task.step("count", count)] == [0, 1, 2]
            with pytest.raises(TypeError, match="async for chunk in"):
                decorated()

    asyncio.run(program())
    assert threads == [False, False, False]


def test_an_async_generator_in_a_plain_task_is_refused(store: holdfast.Store) -> None:
    async def answer() -> AsyncIterator[int]:
        yield 1

    with store.task("t") as task, pytest.raises(TypeError, match=r"store\.aio"):
        task.step("answer", answer)


# -- types -----------------------------------------------------------------------------------------


@dataclass
class Piece:
    text: str
    day: date


PIECES = [Piece("a", date(2026, 5, 1)), Piece("b", date(2026, 5, 2))]


def plain_pieces() -> Generator[Piece, None, str]:
    yield from PIECES
    return "ignored"


async def async_pieces() -> AsyncIterator[Piece]:
    for piece in PIECES:
        yield piece


def test_chunks_have_the_annotated_type_live_and_again(ways: Ways) -> None:
    async def work(task: Any) -> list[Any]:
        return await listed(
            task.step("answer", async_pieces if ways.asynchronous else plain_pieces)
        )

    assert ways.resume(work) == ways.resume(work) == PIECES


@ON_MEMORY
def test_returns_is_the_type_of_one_chunk(ways: Ways) -> None:
    async def work(task: Any) -> list[Any]:
        return await listed(
            task.step("answer", holdfast.step(Source(*PIECES).function(ways), returns=Piece))
        )

    assert ways.resume(work) == ways.resume(work) == PIECES


@ON_MEMORY
def test_a_chunk_is_live_what_it_will_be_when_it_is_given_again(ways: Ways) -> None:
    given = {"n": [1, 2]}

    async def work(task: Any) -> list[Any]:
        found = await listed(task.step("answer", Source(given).function(ways)))
        assert found[0] is not given
        return found

    assert ways.resume(work) == [given]


@ON_MEMORY
def test_a_chunk_that_cannot_be_stored_fails_the_step_and_closes_the_generator(ways: Ways) -> None:
    source = Source("a", object(), "c")

    async def work(task: Any) -> None:
        found = []
        with pytest.raises(StepFailed) as caught:
            async for chunk in task.step("answer", source.function(ways)):
                found.append(chunk)
        assert isinstance(caught.value.__cause__, NotSerializable)
        assert found == ["a"]
        assert (source.asked, source.closed) == (2, 1)

    ways.resume(work)


@pytest.mark.parametrize("options", [{"max_attempts": 2}, {"timeout": 3}])
def test_neither_attempts_nor_a_timeout_go_with_chunks(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="generator"):
        holdfast.step(plain_pieces, **options)
    with pytest.raises(TypeError, match="generator"):
        holdfast.step(async_pieces, **options)


@pytest.mark.every_engine
def test_chunks_over_64_kib_are_kept_apart_and_come_back(ways: Ways) -> None:
    chunks = [str(number) * 10_000 for number in range(9)]

    async def work(task: Any) -> list[Any]:
        return await listed(task.step("answer", Source(*chunks).function(ways)))

    assert ways.resume(work) == ways.resume(work) == chunks


# -- failing and stopping --------------------------------------------------------------------------


def test_an_exception_in_the_middle_is_a_failure_after_the_chunks(ways: Ways) -> None:
    source = Source("a", ValueError("no"))
    found: list[Any] = []

    async def work(task: Any) -> None:
        async for chunk in task.step("answer", source.function(ways)):
            found.append(chunk)

    with pytest.raises(StepFailed, match="ValueError: no"):
        ways.resume(work)
    assert found == ["a"]
    assert view(ways).status == "failed"
    source.chunks = ("a", "b")
    ways.resume(work)  # failed and not caught: the next run tries it again
    assert found == ["a", "a", "b"]


def test_a_consumer_that_stops_early_leaves_the_step_to_be_run_again(ways: Ways) -> None:
    source = Source("a", "b", "c")

    async def stop(task: Any) -> None:
        chunks = task.step("answer", source.function(ways))
        async for _ in chunks:
            break
        await chunks.aclose()
        assert source.closed == 1

    ways.resume(stop)
    assert [step.status for step in view(ways).steps] == ["interrupted"]
    assert ways.resume(lambda task: listed(task.step("answer", source.function(ways)))) == [
        "a",
        "b",
        "c",
    ]
    assert [step.path for step in view(ways).steps] == ["answer"]


def test_stopped_early_and_asked_for_again_in_the_same_run_it_is_the_same_step(ways: Ways) -> None:
    source = Source("a", "b")

    async def work(task: Any) -> list[Any]:
        chunks = task.step("answer", source.function(ways))
        async for _ in chunks:
            break
        await chunks.aclose()
        return await listed(task.step("answer", source.function(ways)))

    assert ways.resume(work) == ["a", "b"]
    assert [(step.path, step.status) for step in view(ways).steps] == [("answer", "completed")]


@pytest.mark.parametrize("check", [False, True], ids=["once", "check"])
def test_a_once_or_check_step_that_was_left_early_is_in_doubt(ways: Ways, check: bool) -> None:
    source = Source("a", "b")
    options: dict[str, Any] = {"check": lambda: ["found"]} if check else {"once": True}
    answer = holdfast.step(source.function(ways), **options)

    async def stop(task: Any) -> None:
        chunks = task.step("answer", answer)
        async for _ in chunks:
            break
        await chunks.aclose()

    ways.resume(stop)
    assert view(ways).in_doubt == ["answer"]

    async def again(task: Any) -> list[Any]:
        return await listed(task.step("answer", answer))

    if check:
        assert ways.resume(again) == ["found"]
    else:
        with pytest.raises(StepInDoubt):
            ways.resume(again)
    assert source.calls == 1


def test_leaving_the_block_does_not_wait_for_chunks_that_nobody_asks_for(ways: Ways) -> None:
    source = Source("a", "b", "c")
    held: list[Any] = []

    async def work(task: Any) -> None:
        held.append(task.step("answer", source.function(ways)))
        async for _ in held[0]:
            break

    async def program() -> None:
        async with ways.task() as task:
            await work(task)
        assert source.closed == 1  # with the block
        with pytest.raises((NoTask, StopAsyncIteration)):
            await held[0].__anext__()
        await held[0].aclose()

    ways.run(program())
    assert [step.status for step in view(ways).steps] == ["interrupted"]


def test_an_exception_of_the_consumer_is_no_failure_of_the_step(ways: Ways) -> None:
    source = Source("a", "b")

    async def work(task: Any) -> None:
        async for _ in task.step("answer", source.function(ways)):
            raise KeyError("mine")

    with pytest.raises(KeyError):
        ways.resume(work)
    assert source.closed == 1
    [step] = view(ways).steps
    assert (step.status, step.error) == ("interrupted", None)


def test_a_step_that_fails_while_it_reads_another_one_does_not_wait_for_it(ways: Ways) -> None:
    inner = Source("a", "b")
    held: list[Any] = []

    def plain(task: Any) -> None:
        held.append(task.plain.step("inner", inner.function(ways)))
        next(held[0])
        raise ValueError("no")

    async def awaited(task: Any) -> None:
        held.append(task.step("inner", inner.function(ways)))
        async for _ in held[0]:
            raise ValueError("no")

    async def work(task: Any) -> None:
        with pytest.raises(StepFailed, match="ValueError"):
            await task.step("outer", awaited if ways.asynchronous else plain, task)
        assert inner.closed == 1

    ways.resume(work)
    found = {step.path: step.status for step in view(ways).steps}
    assert found == {"outer": "failed", "outer/inner": "interrupted"}
    if ways.asynchronous:
        asyncio.run(held[0].aclose())


def test_a_killed_run_leaves_no_half_answer(ways: Ways) -> None:
    source = Source("a", Stop())

    async def work(task: Any) -> list[Any]:
        return await listed(task.step("answer", source.function(ways)))

    with pytest.raises(Stop):
        ways.resume(work)
    source.chunks = ("a", "b")
    assert ways.resume(work) == ["a", "b"]


@ON_MEMORY
def test_a_generator_that_is_cancelled_ends_where_it_is(url: str) -> None:
    source_closed = []
    begun = asyncio.Event()

    async def answer() -> AsyncIterator[str]:
        try:
            yield "a"
            begun.set()
            await asyncio.sleep(3600)
            yield "b"
        finally:
            source_closed.append(True)

    async def program() -> None:
        async with holdfast.aopen(url) as store:

            async def work() -> None:
                async with store.task("t") as task:
                    await listed(task.step("answer", answer))

            working = asyncio.ensure_future(work())
            await begun.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            found = await store.get_task("t")
            assert found is not None
            assert [step.status for step in found.steps] == ["interrupted"]

    asyncio.run(program())
    assert source_closed == [True]


@pytest.mark.slow
@ON_MEMORY
def test_what_is_collected_as_garbage_is_ended(url: str) -> None:
    source = Source("a", "b")
    with holdfast.open(url) as store:
        ways = Ways(store, asynchronous=False)
        with store.task("t") as task:
            cycle: list[Any] = [task.step("answer", source.function(ways))]
            next(cycle[0])
            cycle.append(cycle)
            del cycle
            gc.collect()
            assert source.closed == 1
            assert list(task.step("answer", source.function(ways))) == ["a", "b"]


# -- inside ----------------------------------------------------------------------------------------


def test_steps_inside_a_generator_are_scoped_to_it_and_the_consumers_are_not(ways: Ways) -> None:
    @holdfast.step
    def look(what: str) -> str:
        return f"{what} at {holdfast.current_step().path}"

    @holdfast.step
    async def look_async(what: str) -> str:
        return f"{what} at {holdfast.current_step().path}"

    def plain() -> Iterator[str]:
        for what in ("a", "b"):
            yield look(what)

    async def awaited() -> AsyncIterator[str]:
        for what in ("a", "b"):
            yield await look_async(what)

    async def work(task: Any) -> list[str]:
        found = []
        async for chunk in task.step("answer", awaited if ways.asynchronous else plain):
            found.append(chunk)
            found.append(await look_async("c") if ways.asynchronous else look("c"))
        return found

    name = "look_async" if ways.asynchronous else "look"
    first = ways.resume(work)
    assert first == [
        f"a at answer/{name}",
        f"c at {name}",
        f"b at answer/{name}#2",
        f"c at {name}#2",
    ]
    assert ways.resume(work) == first


def test_two_answers_can_be_read_side_by_side(ways: Ways) -> None:
    async def work(task: Any) -> list[Any]:
        one = task.step("one", Source("a", "b").function(ways))
        two = task.step("two", Source("c", "d").function(ways))
        return [
            await one.__anext__(),
            await two.__anext__(),
            *(await listed(one)),
            *(await listed(two)),
        ]

    assert ways.resume(work) == ways.resume(work) == ["a", "c", "b", "d"]


@ON_MEMORY
def test_other_arguments_are_refused_when_the_first_chunk_is_asked_for(ways: Ways) -> None:
    source = Source("a")
    answer = holdfast.step(source.function(ways))
    ways.resume(lambda task: listed(task.step("answer", answer, 1)))

    async def other(task: Any) -> None:
        with pytest.raises(ReplayMismatch):
            await listed(task.step("answer", answer, 2))

    ways.resume(other)


@ON_MEMORY
def test_generators_that_are_methods_partials_or_objects_are_steps_too(url: str) -> None:
    class Agent:
        @holdfast.step
        def answer(self, n: int) -> Iterator[int]:
            yield from range(n)

        def __call__(self) -> Iterator[int]:
            yield 7

    def upto(n: int) -> Iterator[int]:
        yield from range(n)

    with holdfast.open(url) as store:
        for _ in range(2):
            with store.task("t") as task:
                assert list(Agent().answer(2)) == [0, 1]
                assert list(task.step("upto", functools.partial(upto, 3))) == [0, 1, 2]
                assert list(task.step("object", Agent())) == [7]
