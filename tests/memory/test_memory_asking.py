"""Nobody waits for an embedder that does not answer: the store goes on, and a recall finds by words
when its time is over."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from helpers.memory.concept_embedder import TEXTS, Concepts, fill, texts
from holdfast.memory.embedders import Embedder, OpenAIEmbedder
from holdfast.memory.resources import get_vectors
from holdfast.memory.vectors import backfill, calls

SOON = 0.05
"""Seconds, for a test that waits for a time to be over."""


class Held:
    """An embedder that answers when it is let go."""

    name = "held"

    def __init__(self, timeout: float = 60.0) -> None:
        self.timeout = timeout
        self.go, self.asked = threading.Event(), threading.Semaphore(0)
        self.inner = Concepts()

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.asked.release()
        self.go.wait()
        return self.inner(texts)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go.set()


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


# -- the rest of the store does not wait -----------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False], ids=["coroutine", "plain"])
def test_the_store_goes_on_while_many_recalls_wait_for_the_embedder(
    asynchronous: bool, held: Held
) -> None:
    async def play() -> None:
        release, asked = asyncio.Event(), asyncio.Semaphore(0)

        async def embed(texts: list[str]) -> list[list[float]]:
            asked.release()
            await release.wait()
            return held.inner(texts)

        async with holdfast.aopen("memory://") as store:
            slow = Embedder(embed, name="held", timeout=60) if asynchronous else held
            memory = store.memory("m", embed=slow)
            await memory.remember_many([{"text": text} for text in TEXTS])
            recalls = [asyncio.ensure_future(memory.recall("any puppy?", k=1)) for _ in range(20)]
            if asynchronous:
                for _ in recalls:
                    await asked.acquire()  # all at once, none waits for another
            else:
                await asyncio.to_thread(held.asked.acquire)
            await store.conversation("c").append({"role": "user", "content": "hello"})
            assert len(await store.conversation("c").messages()) == 1
            assert await store.memory("m").recall("terrier")
            assert not any(recall.done() for recall in recalls)
            release.set()
            held.go.set()
            assert {texts(found)[0] for found in await asyncio.gather(*recalls)} == {TEXTS[0]}
            assert sum(map(len, held.inner.batches)) == 20 + len(TEXTS), (
                "each memory once, though many asked"
            )

    asyncio.run(asyncio.wait_for(play(), 60))


def test_two_recalls_do_not_make_the_same_vectors_and_the_second_waits_for_them(
    store: holdfast.Store, held: Held
) -> None:
    memory, found = store.memory("m", embed=held), []
    fill(memory)
    threads = [
        threading.Thread(target=lambda: found.append(memory.recall("any puppy?", k=1)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for _ in range(2):
        held.asked.acquire()
    held.go.set()
    for thread in threads:
        thread.join()
    assert [texts(hits) for hits in found] == [[TEXTS[0]]] * 2
    assert sum(map(len, held.inner.batches)) == 2 + len(TEXTS)


def test_who_has_waited_for_another_sees_to_what_was_remembered_meanwhile(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, waits, go, inner = threading.Event(), threading.Event(), threading.Event(), Concepts()

    def embed(texts: list[str]) -> list[list[float]]:
        if len(texts) > 1:
            begun.set()
            go.wait()
        return inner(texts)

    try_start = backfill.Backfill.try_start

    def seen(filling: backfill.Backfill) -> Any:
        other = try_start(filling)
        if other is not None:
            waits.set()
        return other

    monkeypatch.setattr(backfill.Backfill, "try_start", seen)
    monkeypatch.setattr(backfill, "RECALL_TEXTS", len(TEXTS))
    memory, found = store.memory("m", embed=Embedder(embed, name="concepts", timeout=60)), []
    fill(memory)
    threads = [threading.Thread(target=memory.recall, args=("any puppy?",))]
    threads[0].start()
    begun.wait()
    memory.remember("the clinic opens at nine")
    threads.append(threading.Thread(target=lambda: found.extend(memory.recall("physician", k=1))))
    threads[1].start()
    waits.wait()
    go.set()
    for thread in threads:
        thread.join()
    assert texts(found) == ["the clinic opens at nine"]


def test_an_async_recall_that_is_given_up_leaves_the_others_to_go_on(held: Held) -> None:
    async def play() -> None:
        async with holdfast.aopen("memory://") as store:
            memory, stuck = store.memory("m", embed=Concepts()), asyncio.Event()
            await memory.remember_many([{"text": text} for text in TEXTS])

            async def embed(texts: list[str]) -> list[list[float]]:
                if len(texts) > 1:
                    stuck.set()
                    await asyncio.Event().wait()
                return Concepts()(texts)

            waiting = asyncio.ensure_future(
                store.memory("m", embed=Embedder(embed, name="concepts", timeout=60)).recall(
                    "any puppy?"
                )
            )
            await stuck.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert texts(await memory.recall("any puppy?", k=1)) == [TEXTS[0]]

    asyncio.run(asyncio.wait_for(play(), 60))


# -- a time limit ----------------------------------------------------------------------------------


def both(play: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
    """Play it on a plain store, and on an async one."""
    with holdfast.open("memory://") as store:
        play(store, lambda value: value)
    with (
        holdfast.open("memory://") as store,
        asyncio.Runner() if hasattr(asyncio, "Runner") else _Loop() as loop,
    ):
        play(store.aio, loop.run)


class _Loop:
    def __enter__(self) -> _Loop:
        self._loop = asyncio.new_event_loop()
        return self

    def run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def __exit__(self, *_: object) -> None:
        self._loop.close()


def test_after_its_time_a_recall_finds_by_words_and_the_log_says_so(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    held.timeout = SOON

    def play(store: Any, done: Callable[[Any], Any]) -> None:
        caplog.clear()
        memory = store.memory("m", embed=held)
        done(memory.remember("Her sedan is blue"))
        with caplog.at_level(logging.WARNING, "holdfast"):
            [hit] = done(memory.recall("blue sedan"))
        assert "meaning" not in hit.why
        assert "held failed" in caplog.text and "did not answer in time" in caplog.text

    both(play)


def test_a_batch_that_takes_too_long_is_smaller_the_next_time(store: holdfast.Store) -> None:
    gate, inner = threading.Event(), Concepts()

    def slow(texts: list[str]) -> list[list[float]]:
        if len(texts) > 50:
            gate.wait()
        return inner(texts)

    memory = store.memory("m", embed=Embedder(slow, name="slow", timeout=SOON))
    memory.remember_many([{"text": f"fact number {number} about the car"} for number in range(200)])
    embedding, made = memory._embedding, []
    assert embedding is not None
    for patience in (SOON, SOON, 60.0):
        embedding.timeout = patience
        get_vectors(store._log)._health.clear()  # it would be left alone for a while
        memory.recall("vehicle", vector=[0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        made.append(memory.stats().vectors)
    gate.set()
    assert made == [0, 0, 200]
    assert list(map(len, inner.batches))[:4] == [50] * 4


def test_calls_that_never_come_back_do_not_take_the_place_of_others(
    store: holdfast.Store, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_STUCK_CALLS", 6)
    held.timeout = SOON
    fill(store.memory("m"))
    while len(get_vectors(store._log).threads._stuck) < 6:
        get_vectors(store._log)._health.clear()
        store.memory("m", embed=held).recall("puppy")
    get_vectors(store._log)._health.clear()
    other = Concepts()
    assert store.memory("m", embed=other).recall("terrier")
    assert other.batches == [], "no more calls are made"
    held.go.set()
    while get_vectors(store._log).threads._stuck:
        held.asked.acquire(timeout=0.001)
    get_vectors(store._log)._health.clear()
    assert texts(store.memory("m", embed=Concepts()).recall("puppy", k=1)) == [TEXTS[0]]


def test_closing_a_store_does_not_wait_for_its_embedder(held: Held) -> None:
    with holdfast.open("memory://") as store:
        held.timeout = SOON
        fill(store.memory("m"))
        store.memory("m", embed=held).recall("puppy")
    assert not held.go.is_set()


def test_those_who_fail_together_count_once(store: holdfast.Store) -> None:
    trouble, now = backfill.EmbedderHealth(), [1000.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.memory.vectors.backfill.time.monotonic", lambda: now[0])
        for _ in range(5000):
            trouble.record_failure("x", calls.EmbedderTimeout())
        now[0] += 2.1
        assert not trouble.is_paused()
        for _ in range(2000):  # and for ever: the pause does not grow beyond all bounds
            trouble.record_failure("x", calls.EmbedderTimeout())
            now[0] += 61
            assert not trouble.is_paused()


def test_an_embedder_knows_the_context_of_whoever_asks(store: holdfast.Store) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    seen = set()

    def embed(texts: list[str]) -> list[list[float]]:
        seen.add(who.get())
        return Concepts()(texts)

    who.set("ann")
    fill(store.memory("m"))
    store.memory("m", embed=Embedder(embed, name="concepts")).recall("puppy")
    assert seen == {"ann"}


# -- names -----------------------------------------------------------------------------------------


def module_level(texts: list[str], model: str = "small") -> list[list[float]]:
    return Concepts()(texts)


class Nameless:
    def __call__(self, texts: list[str]) -> list[list[float]]:
        return Concepts()(texts)

    def method(self, texts: list[str]) -> list[list[float]]:
        return Concepts()(texts)


def closure() -> Any:
    inner = Concepts()

    def embed(texts: list[str]) -> list[list[float]]:
        return inner(texts)

    return embed


@pytest.mark.parametrize(
    "made",
    [
        functools.partial(module_level, model="large"),
        lambda texts: [[1.0] for _ in texts],
        closure(),
        Nameless(),
        Nameless().method,
    ],
)
def test_what_is_made_on_the_fly_needs_a_name(made: Any, store: holdfast.Store) -> None:
    for refused in (
        lambda: store.memory("m", embed=made),
        lambda: holdfast.open("memory://", embed=made),
    ):
        with pytest.raises(ValueError, match=r"Embedder\(embed, name='my-model-1'\)"):
            refused()
    memory = store.memory("m", embed=Embedder(made, name="mine"))
    assert memory._embedding is not None and memory._embedding.name == "mine"


def test_a_function_of_a_module_is_named_by_its_place(store: holdfast.Store) -> None:
    memory = store.memory("m", embed=module_level)
    assert memory._embedding is not None
    assert memory._embedding.name.endswith("test_memory_asking.module_level")


def test_vectors_of_two_models_that_one_function_makes_are_not_compared(
    store: holdfast.Store,
) -> None:
    def embed(texts: list[str], model: str) -> list[list[float]]:
        rows = Concepts()(texts)
        return rows if model == "small" else [row[1:] + row[:1] for row in rows]  # other directions

    for model in ("small", "large"):
        memory = store.memory(
            "m", embed=Embedder(functools.partial(embed, model=model), name=model)
        )
        if model == "small":
            fill(memory)
        assert texts(memory.recall("any puppy?", k=1)) == [TEXTS[0]]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": ""}, holdfast.errors.InvalidId),
        ({"name": 7}, holdfast.errors.InvalidId),
        ({"name": "x", "timeout": 0}, ValueError),
        ({"name": "x", "timeout": "1"}, ValueError),
    ],
)
def test_an_embedder_is_described_properly(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Embedder(module_level, **options)
    with pytest.raises(TypeError, match="embed must be a function"):
        Embedder("text-embedding-3-small", name="x")  # type: ignore[arg-type]


def test_the_async_client_of_openai_needs_the_async_store(store: holdfast.Store) -> None:
    import openai

    client = openai.AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:1")
    with pytest.raises(TypeError, match="async"):
        store.memory("m", embed=OpenAIEmbedder(client))
    assert (
        OpenAIEmbedder(openai.OpenAI(api_key="none", base_url="http://127.0.0.1:1")).is_async
        is False
    )


# -- the embedder of a store -----------------------------------------------------------------------


def test_the_embedder_of_a_store_is_that_of_its_memories_unless_they_have_another() -> None:
    own, other = Concepts("own"), Concepts("other")
    with holdfast.open("memory://", embed=own) as store:
        fill(store.memory("m"))
        assert texts(store.memory("m").recall("any puppy?", k=1)) == [TEXTS[0]]
        assert texts(asyncio.run(store.aio.memory("m").recall("hound", k=1))) == [TEXTS[0]]
        assert texts(store.for_tenant("t").memory("m").recall("hound")) == []
        own.batches.clear()
        assert texts(store.memory("m", embed=other).recall("any puppy?", k=1)) == [TEXTS[0]]
        assert not own.batches


def test_a_plain_store_refuses_an_async_embedder_and_an_async_one_takes_it() -> None:
    plain = Concepts()

    async def embed(texts: list[str]) -> list[list[float]]:
        return plain(texts)

    embedder = Embedder(embed, name="concepts")
    with pytest.raises(TypeError, match="async"):
        holdfast.open("memory://", embed=embedder)

    async def play() -> None:
        async with holdfast.aopen("memory://", embed=embedder) as store:
            await store.memory("m").remember_many([{"text": text} for text in TEXTS])
            assert texts(await store.memory("m").recall("any puppy?", k=1)) == [TEXTS[0]]

    asyncio.run(play())
