"""Recall by meaning: with an embedder, memories are found that share no word with the question."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from helpers.memory.concept_embedder import TEXTS, Concepts, fill, texts
from helpers.servers import url_on
from holdfast.backends import StreamKey
from holdfast.log.drivers import drive
from holdfast.memory import Weights
from holdfast.memory.embedders import Embedder
from holdfast.memory.fold import IndexChanges
from holdfast.memory.model import IndexPosition, MemoryDoc, MemoryFilter
from holdfast.memory.resources import get_follower, get_vectors
from holdfast.memory.search import postgres
from holdfast.memory.search.index import MemoryIndex
from holdfast.memory.search.sqlite import SQLiteIndex
from holdfast.memory.vectors import backfill
from holdfast.memory.vectors import nearest as _vectors
from holdfast.memory.vectors.embedding import scale_to_unit


@pytest.fixture(params=["memory", "sqlite", "postgres", "postgres without pgvector"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[holdfast.Store]:
    if request.param == "postgres without pgvector":
        monkeypatch.setattr(postgres, "open_pgvector", lambda backend: None)
    urls = {"memory": lambda: "memory://", "sqlite": lambda: f"sqlite:///{tmp_path}/agents.db"}
    with holdfast.open(urls.get(request.param, lambda: url_on("postgres", tmp_path))()) as store:
        yield store


@pytest.fixture
def embed() -> Concepts:
    return Concepts()


# -- finding ---------------------------------------------------------------------------------------


def test_a_memory_is_found_that_shares_no_word_with_the_question(
    store: holdfast.Store, embed: Concepts
) -> None:
    memory = store.memory("m", embed=embed)
    fill(memory)
    found = memory.recall("any puppy?", k=1)
    assert texts(found) == [TEXTS[0]]
    assert found[0].why["meaning"] > 0
    assert "words" not in found[0].why
    assert TEXTS[0] not in texts(store.memory("m").recall("any puppy?"))


def test_who_has_an_embedder_makes_the_vectors_of_what_others_remembered(
    store: holdfast.Store, embed: Concepts
) -> None:
    fill(store.memory("m"))
    assert store.memory("m").stats().vectors == 0
    assert texts(store.memory("m", embed=embed).recall("automobile", k=1)) == [TEXTS[1]]
    assert store.memory("m").stats().vectors == len(TEXTS)


@pytest.mark.slow
def test_remembering_asks_no_embedder_and_each_memory_is_embedded_once(
    store: holdfast.Store, embed: Concepts
) -> None:
    memory = store.memory("m", embed=embed)
    memory.remember_many([{"text": f"fact number {number} about the car"} for number in range(600)])
    assert not embed.batches
    made = []
    for _ in range(4):
        memory.recall("vehicle")
        made.append(memory.stats().vectors)
    assert made == [256, 512, 600, 600], "whoever asks does not wait for all of them"
    assert sorted(map(len, embed.batches)) == [1, 1, 1, 1, 600 - 512, 256, 256]
    embed.batches.clear()
    memory.remember("a quick brown hound")
    memory.recall("vehicle")
    assert embed.batches == [["vehicle"], ["a quick brown hound"]]


@pytest.mark.slow
def test_all_are_embedded_at_once_for_whoever_asks_for_that(
    store: holdfast.Store, embed: Concepts
) -> None:
    memory = store.memory("m", embed=embed)
    fill(memory)
    memory.remember_many([{"text": f"fact number {number} about the car"} for number in range(600)])
    assert memory.embed_all() == 604
    assert memory.stats().vectors == 604
    assert memory.embed_all() == 0
    assert sum(map(len, embed.batches)) == 604 + 2, (
        "to begin with, it asks how long the vectors are"
    )
    with pytest.raises(ValueError, match="embed="):
        store.memory("m").embed_all()
    assert asyncio.run(store.aio.memory("m", embed=Concepts("another")).embed_all()) == 604


@pytest.mark.slow
def test_who_asks_for_all_hears_that_the_embedder_fails_and_goes_on_later(
    store: holdfast.Store, embed: Concepts
) -> None:
    memory = store.memory("m", embed=embed)
    memory.remember_many([{"text": f"fact number {number} about the car"} for number in range(600)])
    embed.refuses = lambda texts: len(embed.batches) > 3
    with pytest.raises(
        holdfast.errors.Unavailable, match="concepts failed: it raised ConnectionError"
    ):
        memory.embed_all()
    assert memory.stats().vectors == 512
    embed.refuses = lambda texts: False
    assert memory.embed_all() == 600 - 512


def test_a_vector_that_is_given_is_not_made(store: holdfast.Store, embed: Concepts) -> None:
    memory = store.memory("m", embed=embed)
    fill(memory)
    memory.recall("warm up")
    embed.batches.clear()
    found = memory.recall("something else", k=1, vector=np.array([0, 0, 3, 0, 0, 0]))
    assert texts(found) == [TEXTS[2]]
    assert not embed.batches


@pytest.mark.parametrize(
    ("vector", "error"),
    [
        ([1.0, 2.0], ValueError),
        ([], ValueError),
        ([[1.0]], ValueError),
        ([float("nan")] * 6, ValueError),
        ("x", TypeError),
    ],
)
def test_a_vector_that_does_not_fit_is_refused(
    store: holdfast.Store, embed: Concepts, vector: Any, error: type[Exception]
) -> None:
    memory = store.memory("m", embed=embed)
    fill(memory)
    with pytest.raises(error, match="vector"):
        memory.recall("puppy", vector=vector)


def test_a_vector_without_its_embedder_is_refused(store: holdfast.Store) -> None:
    with pytest.raises(ValueError, match="embed="):
        store.memory("m").recall("puppy", vector=[1.0])


def test_an_exact_match_is_not_buried_by_an_embedder_that_thinks_otherwise(
    store: holdfast.Store,
) -> None:
    exact = "The invoice number of Hartmann is 4711"
    others = [
        f"Hartmann has an invoice from week {week}, see folder {week + 70}" for week in range(40)
    ]

    def contrary(texts: list[str]) -> list[list[float]]:
        return [[-1.0, 0.1] if text == exact else [1.0, 0.1] for text in texts]

    memory = store.memory("m", embed=Embedder(contrary, name="contrary"))
    memory.remember_many([{"text": text} for text in [*others, exact]])
    assert texts(memory.recall("invoice number 4711 of Hartmann", k=1)) == [exact]


def test_an_embedder_without_weight_is_not_asked(store: holdfast.Store, embed: Concepts) -> None:
    memory = store.memory("m", embed=embed, weights=Weights(meaning=0))
    fill(memory)
    assert memory.recall("terrier")
    assert not embed.batches


def test_a_question_may_be_embedded_in_another_way_than_a_memory(
    store: holdfast.Store, embed: Concepts
) -> None:
    class Asymmetric(Concepts):
        def query(self, text: str) -> list[float]:
            return [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]

    memory = store.memory("m", embed=Asymmetric())
    fill(memory)
    assert texts(memory.recall("zzz", k=1)) == [TEXTS[3]]


def test_what_an_embedder_makes_nothing_of_is_still_found_by_words(store: holdfast.Store) -> None:
    def broken(texts: list[str]) -> Any:
        return np.array(
            [[np.nan, 1.0] if "sedan" in text else [0.0, 0.0] for text in texts], np.float64
        )

    memory = store.memory("m", embed=broken)
    fill(memory)
    assert texts(memory.recall("blue sedan", k=1)) == [TEXTS[1]]
    assert memory.stats().vectors == len(TEXTS)


# -- what changes ----------------------------------------------------------------------------------


def test_what_is_forgotten_or_superseded_is_not_found_by_its_meaning(
    store: holdfast.Store, embed: Concepts
) -> None:
    memory = store.memory("m", embed=embed)
    first = memory.remember("Rex the terrier sleeps late")
    second = memory.remember("a hound lives next door")
    assert len(memory.recall("puppy")) == 2
    memory.forget(first)
    memory.supersede(second, "a surgeon lives next door")
    found = memory.recall("puppy")
    assert [hit.text for hit in found if hit.why.get("meaning", 0) > 0] == []
    assert memory.stats().vectors == 2  # the superseded one is kept for questions as of a time
    assert texts(memory.recall("physician", k=1)) == ["a surgeon lives next door"]


def test_a_memory_whose_text_changes_gets_another_vector(
    store: holdfast.Store, embed: Concepts
) -> None:
    memory = store.memory("m", embed=embed)
    known = memory.remember("The surgeon archives his letters on Mondays", source="a")
    assert memory.remember("The surgeon archvies his letters on Mondays", source="b") == known
    fill(memory)
    memory.recall("physician")
    memory.forget_where(source="a")
    embed.batches.clear()
    memory.recall("doctor")
    assert embed.batches == [["doctor"], ["The surgeon archvies his letters on Mondays"]]
    assert memory.stats().vectors == 1 + len(TEXTS)


def test_vectors_of_another_model_are_never_compared_and_two_models_are_kept(
    store: holdfast.Store,
) -> None:
    fill(store.memory("m"))
    for name, length in (("a", 6), ("b", 6), ("b", 9), ("a", 6)):
        model = Concepts(name, length)
        memory = store.memory("m", embed=model)
        assert texts(memory.recall("hound", k=1)) == [TEXTS[0]]
        assert sum(map(len, model.batches)) == 1 + len(TEXTS), "each model begins with nothing"
        assert memory.stats().vectors == len(TEXTS)
    index: Any = get_follower(store._log, memory._key).current()
    assert index.models(memory._key) == (4, {"b/9": 4, "a/6": 4})


def test_namespaces_and_tenants_do_not_find_each_others_meaning(
    store: holdfast.Store, embed: Concepts
) -> None:
    fill(store.memory("mine", embed=embed))
    for other in (
        store.memory("other", embed=embed),
        store.for_tenant("else").memory("mine", embed=embed),
    ):
        other.remember("the clinic opens at nine")
        assert texts(other.recall("puppy hound terrier")) in ([], ["the clinic opens at nine"])


def test_a_namespace_that_begins_anew_knows_nothing_of_its_former_incarnation(
    store: holdfast.Store, embed: Concepts
) -> None:
    memory = store.memory("m", embed=embed)
    fill(memory)
    assert memory.recall("puppy")
    memory.delete()
    assert memory.recall("puppy") == []
    memory.remember("the clinic opens at nine")
    assert texts(memory.recall("physician")) == ["the clinic opens at nine"]
    assert memory.stats().vectors == 1


def test_two_programs_see_each_others_vectors(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    one, two = Concepts(), Concepts()
    with holdfast.open(url) as first, holdfast.open(url) as second:
        mine, theirs = first.memory("m", embed=one), second.memory("m", embed=two)
        fill(mine)
        assert texts(mine.recall("puppy", k=1)) == [TEXTS[0]]
        theirs.remember("the clinic opens at nine")
        assert texts(theirs.recall("physician", k=1)) == ["the clinic opens at nine"]
        assert two.batches == [["physician"], ["the clinic opens at nine"]]
        assert texts(mine.recall("surgeon", k=1)) == ["the clinic opens at nine"]
        assert one.batches[-1] == ["surgeon"], "what the other has made is not made again"


# -- when the embedder fails -----------------------------------------------------------------------


def test_words_go_on_when_the_embedder_fails_and_meaning_comes_back(
    store: holdfast.Store, embed: Concepts, caplog: pytest.LogCaptureFixture
) -> None:
    memory = store.memory("m", embed=embed)
    embed.refuses = lambda texts: True
    fill(memory)
    with caplog.at_level(logging.WARNING, "holdfast"):
        [hit] = memory.recall("blue sedan", k=1)
    assert hit.text == TEXTS[1]
    assert "meaning" not in hit.why
    assert "concepts" in caplog.text
    assert "ConnectionError" in caplog.text
    assert "sedan" not in caplog.text, "a log never shows content"
    embed.refuses = lambda texts: False
    assert texts(memory.recall("puppy", k=1)) == [TEXTS[0]]


def test_an_embedder_that_keeps_failing_is_left_alone_for_a_while(
    store: holdfast.Store, embed: Concepts, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = backfill.time.monotonic()  # deadlines are set by the real clock: stay near it
    monkeypatch.setattr(backfill.time, "monotonic", lambda: now)
    fill(store.memory("m"))
    embed.refuses = lambda texts: True
    for _ in range(10):
        store.memory("m", embed=embed).recall("puppy")
    assert len(embed.batches) == 2, "asked again once, then not"
    now += 2.5
    embed.refuses = lambda texts: False
    assert texts(store.memory("m", embed=embed).recall("puppy", k=1)) == [TEXTS[0]]


def test_one_text_that_is_refused_does_not_keep_the_others_from_their_vectors(
    store: holdfast.Store, embed: Concepts, caplog: pytest.LogCaptureFixture
) -> None:
    memory = store.memory("m", embed=embed)
    fill(memory)
    memory.remember_many(
        [{"text": f"fact number {number} about the wage"} for number in range(300)]
    )
    embed.refuses = lambda texts: TEXTS[1] in texts
    assert texts(memory.recall("puppy", k=1)) == [TEXTS[0]]
    assert memory.stats().vectors == 255
    memory.recall("puppy")
    assert memory.stats().vectors == 303
    assert texts(memory.recall("blue sedan", k=1)) == [TEXTS[1]]
    embed.batches.clear()
    memory.recall("puppy")
    assert embed.batches == [["puppy"]], "what was refused is not tried at every recall"
    known = memory.remember("The surgeon archives his letters on Mondays", source="a")
    assert memory.remember("The surgeon archvies his letters on Mondays", source="b") == known
    memory.recall("puppy")
    memory.forget_where(source="a")
    embed.batches.clear()
    memory.recall("puppy")
    assert embed.batches == [["puppy"], ["The surgeon archvies his letters on Mondays"]], (
        "nor when older ones are"
    )
    assert "rejects" in caplog.text


@pytest.mark.parametrize(
    "answer", [[], [[1.0]], [[1.0], [1.0, 2.0]], [[], []], "ab", None, [["x"], ["y"]]]
)
def test_an_embedder_that_answers_nonsense_has_failed(store: holdfast.Store, answer: Any) -> None:
    memory = store.memory(
        "m", embed=Embedder(lambda texts: answer if len(texts) > 1 else [[1.0, 0.0]], name="odd")
    )
    memory.remember_many([{"text": "a blue sedan"}, {"text": "a red hound"}])
    [hit] = memory.recall("red hound", k=1)
    assert hit.text == "a red hound"


def test_what_is_no_function_is_refused(store: holdfast.Store) -> None:
    wrong: Any = "text-embedding-3-small"
    with pytest.raises(TypeError, match="embed must be a function"):
        store.memory("m", embed=wrong)


def test_without_numpy_an_embedder_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['numpy'] = None; import holdfast\n"
        "store = holdfast.open('memory://'); store.memory('m').remember('x'); "
        "print(store.memory('m').recall('x')[0].text)\n"
        "try: store.memory('m', embed=len)\nexcept holdfast.errors.MissingExtra as error: "
        "print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("x\n")
    assert "pip install '.[memory]'" in done.stdout


# -- async -----------------------------------------------------------------------------------------


def test_an_async_embedder_runs_on_the_loop_of_the_async_store() -> None:
    async def play() -> None:
        loops = set()
        plain = Concepts()

        async def embed(texts: list[str]) -> list[list[float]]:
            await asyncio.sleep(0)
            loops.add(asyncio.get_running_loop())
            return plain(texts)

        async with holdfast.aopen("memory://") as store:
            memory = store.memory("m", embed=Embedder(embed, name="concepts"))
            await memory.remember_many([{"text": text} for text in TEXTS])
            answers = await asyncio.gather(*(memory.recall("any puppy?", k=1) for _ in range(20)))
            assert {found[0].text for found in answers} == {TEXTS[0]}
            assert sum(len(batch) for batch in plain.batches) == 20 + len(TEXTS), (
                "made once, though many asked"
            )
            assert texts(await store.memory("m", embed=Concepts()).recall("drizzle", k=1)) == [
                TEXTS[3]
            ]
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(play())


def test_a_plain_store_refuses_an_async_embedder(store: holdfast.Store) -> None:
    async def embed(texts: list[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]

    class Callable:
        async def __call__(self, texts: list[str]) -> list[list[float]]:
            return [[1.0] for _ in texts]

    for wrong in (embed, Callable()):
        with pytest.raises(TypeError, match="async"):
            store.memory("m", embed=wrong)


@pytest.mark.parametrize("tidy", [True, False])
def test_an_event_loop_that_ends_leaves_no_thread_waiting(tidy: bool) -> None:
    """Closing a store waits for its threads: one that waited for ever for a loop that has ended
    would hang it."""

    async def embed(texts: list[str]) -> list[list[float]]:
        started.set()
        await asyncio.Event().wait()
        return []

    async def play(store: holdfast.Store) -> None:
        memory = store.aio.memory("m", embed=Embedder(embed, name="never"))
        await memory.remember("a terrier")
        recalls.append(asyncio.ensure_future(memory.recall("puppy")))
        await started.wait()

    recalls: list[Any] = []
    started = asyncio.Event()
    with holdfast.open("memory://") as store:
        if tidy:
            asyncio.run(play(store))
        else:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(play(store))
    if not tidy:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*recalls, return_exceptions=True))
        loop.close()


# -- many: bits, and filters -----------------------------------------------------------------------


N = 400


def spread(texts: list[str]) -> Any:
    """Vectors that are all over, the same for the same text; with much in common, as real models
    have it."""
    return np.stack(
        [4 + np.random.default_rng(list(text.encode())).standard_normal(20) for text in texts]
    )


@pytest.fixture(scope="module")
def many() -> Iterator[holdfast.Memory]:
    with holdfast.open("memory://") as store:
        memory = store.memory("m", embed=spread)
        memory.remember_many(
            [
                {
                    "text": f"item{number}",
                    "source": f"s{number % 50}",
                    "at": float(number),
                    "tags": [f"t{number % 3}", f"t{number % 100}-"],
                    "author": "ann" if number % 80 == 0 else "bob",
                    "ttl": None if number % 10 else 1e9,
                }
                for number in range(N)
            ]
        )
        memory.embed_all()
        yield memory


def meant(memory: holdfast.Memory, question: str) -> _vectors.VectorQuery:
    """A question as a vector, asked of a memory."""
    vectors, embedding, index = (
        get_vectors(memory._log),
        memory._embedding,
        get_follower(memory._log, memory._key),
    )
    assert embedding is not None
    asked = drive(
        memory._log, vectors.embed_queries_gen(embedding, [question], time.monotonic() + 60)
    )
    assert asked is not None
    return vectors.open_query(
        cast("MemoryIndex", index.current()), memory._key, embedding, asked[0]
    )


def brute(question: str, chosen: Callable[[int], bool]) -> list[str]:
    rows, asked = (
        scale_to_unit(spread([f"item{number}" for number in range(N)])),
        scale_to_unit(spread([question]))[0],
    )
    order = np.argsort(-(rows @ asked)).tolist()
    return [f"item{number}" for number in order if chosen(number)]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    question=st.text("abc", min_size=1, max_size=8),
    prefilter=st.sampled_from([1, 7, 50, N, 1000]),
    wanted=st.sampled_from([1, 5, 30]),
    kind=st.sampled_from(["all", "source", "tags", "rare tag", "author", "since", "none"]),
)
def test_so_many_are_found_as_are_asked_for_however_narrow(
    many: holdfast.Memory, question: str, prefilter: int, wanted: int, kind: str
) -> None:
    asked: dict[str, tuple[dict[str, Any], Callable[[int], bool]]] = {
        "all": ({}, lambda number: True),
        "source": ({"source": "s7"}, lambda number: number % 50 == 7),
        "tags": ({"tags": ("t1",)}, lambda number: number % 3 == 1),
        "rare tag": ({"tags": ("t99-",)}, lambda number: number % 100 == 99),
        "author": ({"author": "ann"}, lambda number: number % 80 == 0),
        "since": ({"since": N - 3.0}, lambda number: number >= N - 3),
        "none": ({"source": "nowhere"}, lambda number: False),
    }
    options, chosen = asked[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_vectors, "EXACT_VECTORS", prefilter)
        found = [
            doc.text
            for doc in meant(many, question).nearest(
                MemoryFilter(now=1.0, **options), wanted, wanted
            )
        ]
    best = brute(question, chosen)
    assert len(found) == min(wanted, len(best)), "never too few"
    assert set(found) <= set(best)
    if prefilter >= N:
        assert found == best[:wanted]
    places = [best.index(text) for text in found]
    assert places == sorted(places), "nearest first"


@pytest.mark.slow
@pytest.mark.parametrize("wider", [10, 3, 1])
def test_the_bits_bring_most_of_the_nearest(
    many: holdfast.Memory, monkeypatch: pytest.MonkeyPatch, wider: int
) -> None:
    """By the estimate alone, by the bits and then the estimate, and by the bits alone."""
    monkeypatch.setattr(_vectors, "EXACT_VECTORS", N // 4)
    monkeypatch.setattr(_vectors, "BITS_FACTOR", wider)
    found = 0
    for number in range(40):
        nearest = [
            doc.text
            for doc in meant(many, f"question {number}").nearest(MemoryFilter(now=1.0), 10, 1)
        ]
        found += len({*nearest} & {*brute(f"question {number}", lambda _: True)[:10]})
    assert found > 300, f"{found} of 400; by chance it would be 100"


def test_the_estimate_is_exact_for_what_is_one_step_away_in_each_number() -> None:
    random = np.random.default_rng(7)
    mean, question = random.standard_normal((2, 100)).astype(np.float32)
    signs, steps = random.choice([-1.0, 1.0], (30, 100)), random.uniform(0.1, 9.0, (30, 1))
    apart = (signs * steps).astype(np.float32)
    estimates = _vectors._estimate_factors(apart, mean)
    found = _vectors._estimate_similarity(_vectors._pack_signs(apart).T, estimates, question - mean)
    assert found == pytest.approx(apart @ question, rel=1e-3, abs=1e-2)


def test_bits_are_counted_alike_where_numpy_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.random.default_rng(5).integers(0, 2**64, (3, 50), np.uint64)
    question = np.array([0, 2**64 - 1, 12345], np.uint64)
    by_hand = [
        sum(bin(int(word ^ asked)).count("1") for word, asked in zip(row, question, strict=True))
        for row in words.T
    ]
    assert _vectors._count_differences(words, question).tolist() == by_hand
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert _vectors._count_differences(words, question).tolist() == by_hand


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_vectors_have_the_length_one_or_none(rows: list[list[float]]) -> None:
    with np.errstate(all="ignore"):
        made = scale_to_unit(np.array(rows, np.float32))
    for row, before in zip(made, rows, strict=True):
        nothing = not np.isfinite(before).all() or not any(before)
        assert abs(float(np.linalg.norm(row)) - (0.0 if nothing else 1.0)) < 1e-3


def test_bits_that_were_dropped_to_make_room_are_read_again(
    store: holdfast.Store, embed: Concepts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "MAX_NAMESPACES", 1)
    for name in ("a", "b"):
        fill(store.memory(name))
    for name in ("a", "b", "a", "b"):
        assert texts(store.memory(name, embed=embed).recall("puppy", k=1)) == [TEXTS[0]]
        assert len(get_vectors(store._log)._backfills) == 1


def test_bits_of_an_index_that_was_made_anew_are_read_anew() -> None:
    space, bits = StreamKey("default", "memory", "m"), _vectors.BitVectors()
    for count in (5, 3):
        index = SQLiteIndex()
        docs = [
            MemoryDoc(number, f"i{number}", f"text {number}", at=0.0, first_at=0.0)
            for number in range(1, count + 1)
        ]
        index.write(space, None, IndexPosition(b"incarnation", count), IndexChanges(docs, [], {}))
        index.put_vectors(
            space, "m/2", [(doc, np.array([doc.number, count], "<f4").tobytes()) for doc in docs]
        )
        bits.catch_up(index, space, "m/2", count)
        assert bits.count == count
        assert bits.mean is not None
        assert bits.mean.tolist() == [(count + 1) / 2, count]
        index.close()


@pytest.mark.slow
def test_bits_of_what_is_gone_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vectors, "EXACT_VECTORS", 10)
    with holdfast.open("memory://") as store:
        memory = store.memory("m", embed=spread)
        memory.remember_many(
            [{"text": f"item{number}", "source": f"s{number % 2}"} for number in range(100)]
        )
        memory.recall("x")
        [filling] = get_vectors(store._log)._backfills.values()
        assert filling.bits.count == 100
        memory.forget_where(source="s1")
        memory.recall("x")
        assert filling.bits.count == 100, "a few too many do no harm"
        memory.remember("one more")
        for number in range(0, 80, 2):
            memory.forget(memory.recall(f"item{number}", k=1)[0].id)
        memory.recall("x")
        assert filling.bits.count <= 2 * 11 + 10
