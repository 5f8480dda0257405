"""Long-term memory: what it finds of a labelled set, and what asking, remembering and catching up
cost.

Quality is recall@10: the share of the memories that answer a question among the ten that are given.
Beside ours, what comes first to mind: the texts in an FTS5 table (porter, terms OR-ed), BM25, and a
dense-only store, whose vectors are hashed words and letter triples: no model is brought along. The
bar is against FTS5. Latencies are of one namespace, asked in turn, on SQLite and on a PostgreSQL of
our own.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from math import log
from time import perf_counter
from typing import TYPE_CHECKING

import apsw
import numpy as np

import holdfast
from holdfast.memory.embedders import Embedder
from holdfast.memory.search import postgres as _postgres_index
from holdfast.testing import fake_clock

from . import memory_set
from ._measure import Bar, Lab, settle
from ._servers import postgres
from .memory_set import documents, facts, links

if TYPE_CHECKING:
    from helpers.engines.postgres_server import PostgresServer

K = 10
DIMENSIONS = 384
Answer = Callable[[str, int], Sequence[str]]


def run(lab: Lab) -> None:
    quality(lab)
    labels(lab)
    cross_validate(lab)
    duplicates(lab)
    with postgres(lab) as server:
        for count in (1_000, 10_000) if lab.quick else (1_000, 10_000, 100_000):
            latency(lab, count, server)


# -- quality ---------------------------------------------------------------------------------------


def quality(lab: Lab) -> None:
    """What is found of each kind of material, by itself and of all of it in one memory."""
    turns = (memory_set.memories(), memory_set.questions())
    long = (documents.paragraphs(), documents.documents())
    everything = tuple([one for part in (turns, *long) for one in part[side]] for side in (0, 1))
    sets = {
        "turns and notes": turns,
        "paragraphs": long[0],
        "documents": long[1],
        "all sizes": everything,
        "two hops": links.chains(),
    }
    for material, (told, asked) in sets.items():
        found = _recall_of(lab, told, asked)
        for name, by_kind in found.items():
            note = ", ".join(f"{kind} {value:.2f}" for kind, value in by_kind.items())
            lab.report(f"recall@{K} of {material}, {name}", by_kind["all"], note=note)
        lab.report(
            f"recall@{K} of {material}, ours / FTS5",
            found["ours"]["all"] / found["FTS5"]["all"],
            bar=Bar(1.15, ">="),
            note=f"{len(told)} memories, {len(asked)} questions; no embedder",
        )


def labels(lab: Lab) -> None:
    """Questions about nothing, in six languages, about a day, and about what has changed."""
    with lab.place() as place, holdfast.open(place / "agents.db", durability="process") as store:
        words, hybrid = store.memory("words"), store.memory("hybrid", embed=hashed)
        told = [{"text": one.text, "source": one.source} for one in memory_set.memories()]
        for name, memory in (("words", words), ("with vectors", hybrid)):
            memory.remember_many(told)
            answered = sum(bool(memory.recall(question)) for question in facts.NOTHING)
            lab.report(f"of 100 questions about nothing, {name}", answered, bar=Bar(10))
        words.remember_many([{"text": t} for pairs in facts.LANGUAGES.values() for t, _ in pairs])
        for language, pairs in facts.LANGUAGES.items():
            right = sum(text in [hit.text for hit in words.recall(q, 3)] for text, q in pairs)
            lab.report(f"of 20 questions in {language}, in the top 3", right, bar=Bar(16, ">="))
        first = 0
        for at, (old, new, question) in enumerate(facts.UPDATED):
            memory = store.memory(f"update {at}")
            memory.remember(old, at=facts.NOW - 90 * facts.DAY)
            memory.remember(new, at=facts.NOW - 20 * facts.DAY)
            first += [hit.text for hit in memory.recall(question, 1)] == [new]
        lab.report("of 40 changed facts, the current one first", first, bar=Bar(38, ">="))
        right = 0
        with fake_clock(facts.NOW):
            for at, one in enumerate(facts.dated()):
                memory = store.memory(f"day {at}")
                memory.remember_many([{"text": text, "at": when} for text, when in one.notes])
                found = [hit.text for hit in memory.recall(one.question, 3)]
                right += one.notes[one.answer][0] in found
        lab.report("of 40 questions about a day, in the top 3", right, bar=Bar(36, ">="))


TRIED = (
    {}, {"neighbour": 0.3}, {"neighbour": 0.6}, {"source": 0.3}, {"source": 0.9}, {"length": 0.5},
    {"length": 0.9}, {"saturation": 0.9}, {"saturation": 1.6}, {"context": 0.2}, {"context": 0.6},
)  # fmt: skip
PARTS = 5


def cross_validate(lab: Lab) -> None:
    """What weights that are fitted to four fifths of the questions find of the last fifth.

    If that is hardly more than what the default weights find, the defaults are not tuned to the
    set.
    """
    turns = (memory_set.memories(), memory_set.questions())
    sets = {
        "turns and notes": turns,
        "paragraphs": documents.paragraphs(),
        "documents": documents.documents(),
    }
    parts = list(sets.values())
    sets["all sizes"] = (
        [one for part in parts for one in part[0]],
        [one for part in parts for one in part[1]],
    )
    for material, (told, asked) in sets.items():
        step = lab.choose(1, 4)
        shares = _shares_of(lab, told, asked[::step])
        fitted = usual = 0.0
        for part in range(PARTS):
            held_out = range(part, len(shares[0]), PARTS)
            learned = [at for at in range(len(shares[0])) if at % PARTS != part]
            best = max(shares, key=lambda found: sum(found[at] for at in learned))
            fitted += sum(best[at] for at in held_out)
            usual += sum(shares[0][at] for at in held_out)
        count = len(shares[0])
        lab.report(
            f"recall@{K} of {material}, weights fitted to other questions",
            fitted / count,
            note=f"default weights {usual / count:.3f}; {count} questions in {PARTS} parts",
        )


def _shares_of(
    lab: Lab, told: Sequence[memory_set.Memory], asked: Sequence[memory_set.Question]
) -> list[list[float]]:
    """Return what each of the tried weights finds of each question."""
    with lab.place() as place, holdfast.open(place / "agents.db", durability="process") as store:
        ids = store.memory("m").remember_many(
            [{"text": o.text, "source": o.source, "at": o.at, "tags": o.tags} for o in told]
        )
        names = dict(zip(ids, [one.id for one in told], strict=True))
        shares = []
        for tried in TRIED:
            memory = store.memory("m", weights=holdfast.memory.Weights(**tried))
            shares.append(
                [
                    len({names[hit.id] for hit in memory.recall(q.text, K)} & set(q.answers))
                    / len(q.answers)
                    for q in asked
                ]
            )
        return shares


def _recall_of(
    lab: Lab, told: Sequence[memory_set.Memory], asked: Sequence[memory_set.Question]
) -> dict[str, dict[str, float]]:
    with lab.place() as place, holdfast.open(place / "agents.db", durability="process") as store:
        words, hybrid = store.memory("words"), store.memory("hybrid", embed=hashed)
        names = {}
        for memory in (words, hybrid):
            ids = memory.remember_many(
                [
                    {
                        "text": one.text,
                        "source": one.source,
                        "at": one.at,
                        "author": one.author,
                        "tags": one.tags,
                    }
                    for one in told
                ]
            )
            names.update(zip(ids, [one.id for one in told], strict=True))
        hybrid.embed_all()
        arms: dict[str, Answer] = {
            "FTS5": fts5(told),
            "BM25": bm25(told),
            "dense only": dense_only(told),
            "ours": lambda text, k: [names[hit.id] for hit in words.recall(text, k)],
            "ours, with vectors": lambda text, k: [names[hit.id] for hit in hybrid.recall(text, k)],
        }
        return {name: recall_at(K, arm, asked) for name, arm in arms.items()}


def recall_at(k: int, answer: Answer, asked: Sequence[memory_set.Question]) -> dict[str, float]:
    shares: dict[str, list[float]] = defaultdict(list)
    for question in asked:
        share = len(set(answer(question.text, k)).intersection(question.answers)) / len(
            question.answers
        )
        shares["all"].append(share)
        shares[question.kind].append(share)
    return {kind: sum(values) / len(values) for kind, values in shares.items()}


def fts5(told: Sequence[memory_set.Memory]) -> Answer:
    table = apsw.Connection(":memory:")
    table.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = 'porter unicode61')")
    table.executemany(
        "INSERT INTO texts (rowid, text) VALUES (?, ?)",
        [(at, one.text) for at, one in enumerate(told)],
    )

    def answer(text: str, k: int) -> list[str]:
        question = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", text))
        rows = table.execute(
            "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT ?", (question, k)
        )
        return [told[at].id for (at,) in rows]

    return answer


def bm25(told: Sequence[memory_set.Memory]) -> Answer:
    """BM25 over lower-case words, without stemming: k1 = 1.2, b = 0.75."""
    texts = [re.findall(r"\w+", one.text.lower()) for one in told]
    average = sum(map(len, texts)) / len(texts)
    rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for at, words in enumerate(texts):
        for word, count in Counter(words).items():
            rows[word].append((at, count))

    def answer(text: str, k: int) -> list[str]:
        scores: dict[int, float] = defaultdict(float)
        for word in re.findall(r"\w+", text.lower()):
            found = rows.get(word, [])
            rarity = log(1 + (len(told) - len(found) + 0.5) / (len(found) + 0.5))
            for at, count in found:
                norm = 1.2 * (0.25 + 0.75 * len(texts[at]) / average)
                scores[at] += rarity * count * 2.2 / (count + norm)
        return [told[at].id for at in sorted(scores, key=lambda at: -scores[at])[:k]]

    return answer


def dense_only(told: Sequence[memory_set.Memory]) -> Answer:
    vectors = np.array(hashed([one.text for one in told]))

    def answer(text: str, k: int) -> list[str]:
        likeness = vectors @ np.array(hashed([text])[0])
        return [told[at].id for at in np.argsort(-likeness)[:k]]

    return answer


def hashed(texts: Sequence[str]) -> list[list[float]]:
    """Vectors of words and of their letters by threes, hashed. Stands for a model, and is a weak
    one."""
    vectors = []
    for text in texts:
        vector = np.zeros(DIMENSIONS, np.float32)
        for word in re.findall(r"\w+", text.lower()):
            padded = f" {word} "
            for piece in (word, *(padded[at : at + 3] for at in range(len(padded) - 2))):
                digest = int.from_bytes(blake2b(piece.encode(), digest_size=8).digest(), "big")
                vector[digest % DIMENSIONS] += 1.0 if digest >> 63 else -1.0
        vectors.append((vector / max(float(np.linalg.norm(vector)), 1e-9)).tolist())
    return vectors


# -- duplicates ------------------------------------------------------------------------------------


def duplicates(lab: Lab) -> None:
    """Many ways of saying a hundred facts, some with two letters swapped, wherever in a word."""
    count = lab.choose(10_000, 2_000)
    facts = [f"{name} pays {sum_} euros for {what}" for name, sum_, what in _facts()]
    shapes = ("{}", "{}.", "FYI: {}", "Note: {}", "{}!", "  {} ", "Please remember: {}", "{} (FYI)")
    with lab.place() as place, holdfast.open(place / "agents.db", durability="process") as store:
        memory = store.memory("facts")
        said = []
        for _ in range(count):
            fact = lab.rng.choice(facts)
            fact = _slipped(fact, lab.rng) if lab.rng.random() < 0.05 else fact
            text = lab.rng.choice(shapes).format(fact)
            said.append({"text": text.upper() if lab.rng.random() < 0.1 else text})
        memory.remember_many(said)
        kept = [one.full_text.lower() for one in memory.all()]
        count_kept = memory.stats().memories
    lost = [fact for fact in facts if not any(fact.lower() in text for text in kept)]
    lab.report(
        f"memories after {count:,} ways of saying 100 facts",
        count_kept,
        bar=Bar(150),
        note=f"{len(lost)} lost",
    )


def _slipped(fact: str, rng: random.Random) -> str:
    at = rng.choice([found.start() for found in re.finditer("(?=[a-z]{2})", fact)])
    return fact[:at] + fact[at + 1] + fact[at] + fact[at + 2 :]


def _facts() -> list[tuple[str, int, str]]:
    names = ("Ada", "Bo", "Cem", "Dana", "Eli", "Finn", "Gita", "Hugo", "Ines", "Jon")
    things = (
        "rent",
        "water",
        "power",
        "heating",
        "parking",
        "internet",
        "insurance",
        "cleaning",
        "repairs",
        "storage",
    )
    return [
        (name, 100 + 7 * place, what)
        for place, (name, what) in enumerate((n, t) for n in names for t in things)
    ]


# -- latency ---------------------------------------------------------------------------------------


def latency(lab: Lab, count: int, server: PostgresServer) -> None:
    """On SQLite, then with the same memories on PostgreSQL: with pgvector, and as without it.

    PostgreSQL vacuums by itself after that many writes, in the minutes that follow: the benchmark
    waits for it.
    """
    texts = made_up(count, lab.rng)
    big, what = count == 100_000, f"with {count:,} memories"
    with lab.place() as place:
        path = str(place / "agents.db")
        fill(path, texts)
        by_words(lab, path, what, big)
        by_vectors(lab, path, what, big)

        def tidy() -> None:
            server.sql("VACUUM ANALYZE")

        url = f"{server.url()}&schema=memory_{count}"
        holdfast.copy(path, url, verify=False)  # without the index
        what = f"on PostgreSQL {what}"
        by_words(lab, url, what, big, tidy)
        by_vectors(lab, url, f"{what}, pgvector", big, tidy)
        with without_pgvector():
            by_vectors(lab, url, f"{what}, no pgvector", big, tidy)


def by_words(lab: Lab, url: str, what: str, big: bool, tidy: Callable[[], None] = settle) -> None:
    questions = [question.text for question in memory_set.questions()]
    settle()
    with holdfast.open(url) as store:
        memory = store.memory("big")
        start = perf_counter()
        memory.stats()
        if "PostgreSQL" not in what:  # where it was remembered, the index is there already
            start = perf_counter()
            memory.rebuild()
        caught_up = perf_counter() - start
        tidy()
        words = asked_in_turn(lambda text: memory.recall(text, K), questions)
        tagged = asked_in_turn(lambda text: memory.recall(text, K, tags=["rare"]), questions)
        start = perf_counter()
        for number in range(200):
            memory.remember(f"A fact that is new, number {number}")
        remembering = (perf_counter() - start) / 200 * 1e3
    lab.report(
        f"catching up from scratch {what}", caught_up, unit="s", bar=Bar(30.0) if big else None
    )
    lab.report(f"remember {what}", remembering, unit="ms")
    report(lab, f"recall by words {what}", words, (20.0, 60.0) if big else None)
    report(lab, f"recall by words and a rare tag {what}", tagged, (20.0, 60.0) if big else None)


def by_vectors(lab: Lab, url: str, what: str, big: bool, tidy: Callable[[], None] = settle) -> None:
    questions = [question.text for question in memory_set.questions()]
    generator = np.random.default_rng(1)
    vectors = [generator.standard_normal(DIMENSIONS).tolist() for _ in questions]
    pairs = dict(zip(questions, vectors, strict=True))

    def embed(texts: Sequence[str]) -> np.ndarray:
        return generator.standard_normal((len(texts), DIMENSIONS))

    with holdfast.open(url) as store:
        memory = store.memory("big", embed=Embedder(embed, name="random"))
        memory.embed_all()
        memory.recall(
            "warm up", vector=vectors[0]
        )  # the server, or this process, prepares to compare them
        tidy()
        meant = asked_in_turn(lambda text: memory.recall(text, K, vector=pairs[text]), questions)
    report(lab, f"recall by words and vectors {what}", meant, (30.0, None) if big else None)


@contextmanager
def without_pgvector() -> Iterator[None]:
    """As on a server that does not have it."""
    had = _postgres_index.open_pgvector
    _postgres_index.open_pgvector = lambda backend: None
    try:
        yield
    finally:
        _postgres_index.open_pgvector = had


def report(
    lab: Lab, what: str, milliseconds: list[float], bars: tuple[float, float | None] | None
) -> None:
    ordered = sorted(milliseconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    lab.report(f"{what}, p50", p50, unit="ms", bar=Bar(bars[0]) if bars else None)
    lab.report(f"{what}, p99", p99, unit="ms", bar=Bar(bars[1]) if bars and bars[1] else None)


def asked_in_turn(ask: Callable[[str], object], questions: Sequence[str]) -> list[float]:
    found = []
    for question in questions:
        start = perf_counter()
        ask(question)
        found.append((perf_counter() - start) * 1e3)
    return found


def fill(path: str, texts: Sequence[str]) -> None:
    with holdfast.open(path, durability="process") as store:
        memory = store.memory("big")
        for start in range(0, len(texts), 5_000):
            said = [
                {
                    "text": text,
                    "source": f"s{(start + at) // 30}",
                    "at": 1.7e9 + 60 * (start + at),
                    "tags": ["rare"] if (start + at) % 1_000 == 1 else [],
                }
                for at, text in enumerate(texts[start : start + 5_000])
            ]
            memory.remember_many(said)


def made_up(count: int, rng: random.Random) -> list[str]:
    """Texts of the length and with the words of the set, and some words that few have."""
    words = [word for one in memory_set.memories() for word in one.text.split()]
    letters, vowels = "bcdfgklmnprst", "aeiou"
    texts = []
    for _ in range(count):
        text: list[str] = []
        while len(text) < rng.randint(6, 22):
            at = rng.randrange(len(words) - 3)
            text += words[at : at + 3]
            if rng.random() < 0.3:
                name = "".join(rng.choice(group) for group in (letters, vowels, letters, vowels))
                text.append(f"{name}{rng.randint(0, 300)}")
        texts.append(" ".join(text))
    return texts
