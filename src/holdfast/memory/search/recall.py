"""Recall: find the memories that answer a query, and rank them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from ...backends import StreamKey
from ...conversations.tokens import default_counter
from ..model import MemoryDoc, MemoryFilter, MemoryHit, build_hit, join_variants
from ..text.dates import Period, TimeHint, drop_since, format_day, read_time
from ..text.tokens import query_terms
from ..weights import Weights
from .current import compare_best, list_rivals, prefer_newer, prefer_newest
from .entities import LinkedQuery, explain_link
from .index import MemoryIndex, Neighbours
from .ranking import (
    ENOUGH_MEMORIES,
    MAX_LENDERS,
    AuthorCounter,
    Ranked,
    RankedQuery,
    measure_confidence,
    pick_best,
    rank,
)

if TYPE_CHECKING:
    from ..vectors.nearest import VectorQuery

NEAREST_DOCS: Final = 100
"""How many of the nearest memories are ranked, besides those that share words with the query."""
MAX_DAY_TERMS, MAX_MONTH_DAYS = 31, 740
"""Up to how many days a period is looked up by its days, and by its months."""
MIN_EVENT_FIT: Final = 0.5
"""How well a memory must fit the event that a query names, as in "since the audit"."""
WITHOUT_WORDS, WITH_ALL_WORDS = 1.2, 0.3
"""How much the weight of vectors counts if no memory has a word of the query, or one has all."""
CONTRAST_PLACE, CLEAR_CONTRAST = 10, 0.6
"""The place that the best similarity is compared with, and what part of the gap is clear."""
FEW_WORDS: Final = 3
"""How fast the confidence that is granted to vectors falls as more words of the query match."""
CONFIDENT, SHARPNESS = 2.0, 3
"""How much more vectors count at full confidence, and how fast lower similarities lose worth."""
TRUST_POWER: Final = 8
"""How fast the trust that vectors alone are no chance falls with contrast and similarity."""
MIN_NEAREST: Final = 25
"""If fewer of the nearest memories match the filter, all memories that match it are compared."""


def recall(
    index: MemoryIndex,
    space: StreamKey,
    query: str,
    where: MemoryFilter,
    weights: Weights,
    k: int,
    min_score: float = 0.0,
    max_tokens: int | None = None,
    vectors: VectorQuery | None = None,
    hint: TimeHint | None = None,
) -> list[MemoryHit]:
    """Return the `k` best memories, best first, that reach `min_score` and fit in `max_tokens`."""
    if hint is None:
        hint = read_time(query, where.now if where.as_of is None else where.as_of)
        if hint.since is not None:
            hint = _find_event(index, space, hint, where, weights)
    terms, meaning = query_terms(hint.rest), MeaningScores(vectors, weights)
    meaning.start(where, k)
    found = index.search(
        space, terms | _period_terms(hint.period), where, max(weights.candidates, k)
    )
    question = RankedQuery(hint.rest, terms, found, weights, hint.period)
    docs = {doc.number: doc for doc in found.docs}
    words = {number: question.fit(doc) for number, doc in docs.items()}
    if hint.period is not None and terms and not question.has_time(docs.values()):
        # Nothing that has to do with the question is of that time: "today" may mean "nowadays".
        hint = TimeHint(query, newest=hint.newest)
        return recall(index, space, query, where, weights, k, min_score, max_tokens, vectors, hint)
    meaning.preload(words)

    def add(doc: MemoryDoc) -> None:
        if doc.number not in docs:
            docs[doc.number] = doc
            words[doc.number] = question.fit(doc)

    for doc in meaning.nearest(where, k):
        add(doc)
    meaning.calibrate(words)
    fits = _add_scores(words, meaning.score(words))
    near = _find_neighbours(
        index, space, pick_best(docs.values(), fits, MAX_LENDERS), weights, where
    )
    for _, neighbours in near:
        for doc in (*neighbours.before, *neighbours.after):
            add(doc)
    meanings = meaning.score(words)
    fits = _add_scores(words, meanings)
    linked: dict[int, float] = {}
    # Not beside vectors: with a weak embedder, paraphrases of the labelled set lost a little.
    links = LinkedQuery(terms, found) if weights.names and vectors is None else None
    if links is not None and (named := links.find_links(docs, fits)):
        others, common = links.find_docs(index, space, named, where)
        pool = {**{doc.number: doc for doc in others}, **docs}
        matched = {number: question.fit(doc) for number, doc in pool.items() if number not in fits}
        linked = links.lend(named, common, pool, {**matched, **fits}, weights.names)
        for number in linked:
            add(pool[number])
            fits.setdefault(number, words[number])
        fits = _add_scores(fits, linked)
    if hint.newest:
        fits = prefer_newest(docs, fits)
    pairs = compare_best(docs, fits)
    if hint.period is None:
        fits = prefer_newer(pairs, fits, where.as_of)
    evidence = question.measure_evidence(near)
    evidence = evidence._replace(trust=max(evidence.trust, meaning.trust))
    ranked = rank(docs, fits, near, weights, where.now, meanings, question, evidence)
    enough = takewhile(lambda one: one.score > 0 and one.score >= min_score, ranked)
    chosen = enough if max_tokens is None else _fit_budget(enough, max_tokens)
    rivals, authors = list_rivals(pairs), AuthorCounter(docs.values())
    return [
        build_hit(
            one.doc,
            one.score,
            explain_link(one.why, linked.get(one.doc.number, 0.0)),
            question.find_passage(one.doc),
            against := rivals.get(one.doc.id, ()),
            confidence=measure_confidence(one.doc, authors.count(one.doc), len(against), where.now),
        )
        for one in islice(chosen, k)
    ]


def _period_terms(period: Period | None) -> dict[str, float]:
    """Return the terms by which the index has the days of a period, or its months or years."""
    if period is None:
        return {}
    days = [period[0] + 86_400 * day for day in range(int((period[1] - period[0]) / 86_400) + 1)]
    size = 10 if len(days) <= MAX_DAY_TERMS else 7 if len(days) <= MAX_MONTH_DAYS else 4
    named = [day for at in days if (day := format_day(at)) is not None]
    return dict.fromkeys((day[:size] for day, _ in named), 1.0)


def _find_event(
    index: MemoryIndex, space: StreamKey, hint: TimeHint, where: MemoryFilter, weights: Weights
) -> TimeHint:
    """Return a hint with the period since the event that a query names, if a memory tells it."""
    terms = query_terms(hint.since or "")
    found = index.search(space, terms, where, weights.candidates)
    question = RankedQuery(hint.since or "", terms, found, weights)
    best = max(found.docs, key=lambda doc: (question.fit(doc), doc.number), default=None)
    if best is None or question.fit(best) < MIN_EVENT_FIT:
        return hint
    end = max(where.now, best.first_at + 1)
    return hint._replace(rest=drop_since(hint.rest), period=(best.first_at + 1, end))


def _add_scores(words: Mapping[int, float], meanings: Mapping[int, float]) -> dict[int, float]:
    return {number: fit + meanings.get(number, 0.0) for number, fit in words.items()}


def _find_neighbours(
    index: MemoryIndex,
    space: StreamKey,
    lenders: Sequence[MemoryDoc],
    weights: Weights,
    where: MemoryFilter,
) -> list[tuple[MemoryDoc, Neighbours]]:
    """Return each of the lenders with its neighbours."""
    if not weights.neighbour or not weights.reach or not lenders:
        return [(doc, Neighbours([], [])) for doc in lenders]
    return list(zip(lenders, index.neighbours(space, lenders, weights.reach, where), strict=True))


def _fit_budget(ranked: Iterable[Ranked], max_tokens: int) -> Iterator[Ranked]:
    """Yield the best memories that fit together. A long one that doesn't fit is skipped."""
    count, left = default_counter(), max_tokens
    for one in ranked:
        tokens = count({"role": "user", "content": join_variants(one.doc.text, one.doc.variants)})
        if tokens <= left:
            yield one
            left -= tokens


class MeaningScores:
    """What the vectors of memories add to the scores of their words.

    Call `start`, `preload`, `nearest`, `calibrate` and `score` in this order. Models differ in how
    similar they find any two texts, so similarities are scaled from the average of all memories (0)
    to the best one (1), which is worth at least as much as the best match by words.

    A model is trusted query by query. With a weak one, similarities trail off as if they were drawn
    at random; with a good one, the best stand out from the tenth. How far they do, beyond chance,
    is the confidence: 0 to 1. It scales what vectors add to a memory and, squared, what they take
    from it, so only a clear answer overrules words. The fewer words of the query the memories have,
    the less confidence is needed, as there is less to lose.
    """

    def __init__(self, vectors: VectorQuery | None, weights: Weights) -> None:
        self._vectors, self._meaning = vectors, weights.meaning
        self._common, self._top, self._worth = 0.0, 0.0, 0.0
        self._share, self._confidence, self.trust = 0.0, 1.0, 0.0
        self._is_filtered = False

    def start(self, where: MemoryFilter, limit: int) -> None:
        """Start the search for the nearest vectors, if it can run while words are searched."""
        if self._vectors is not None:
            self._vectors.start(where, max(NEAREST_DOCS, limit), max(MIN_NEAREST, limit))

    def preload(self, numbers: Collection[int]) -> None:
        """Read the vectors of these memories while the nearest are still being searched."""
        if self._vectors is not None:
            self._vectors.similarity(numbers)

    def nearest(self, where: MemoryFilter, limit: int) -> list[MemoryDoc]:
        if self._vectors is None:
            return []
        found = self._vectors.nearest(where, max(NEAREST_DOCS, limit), max(MIN_NEAREST, limit))
        self._is_filtered = len(found) < NEAREST_DOCS
        return found

    def calibrate(self, words: Mapping[int, float]) -> None:
        """Determine the best similarity, its worth and the confidence from all candidates."""
        similarity = {} if self._vectors is None else self._vectors.similarity(words)
        if self._vectors is None or not similarity:
            return
        self._common, self._top = self._vectors.common, max(similarity.values())
        if self._top <= self._common:
            return
        best = max(words.values())
        self._worth = max(best, (self._top - self._common) / (1 - min(self._common, 0.99)))
        found = min(best, 1.0)
        total = len(similarity) if self._is_filtered else self._vectors.count
        contrast = _measure_contrast(similarity.values(), self._common, total)
        near = (self._top - self._common) / (1 - min(self._common, 0.99))
        self.trust = max(contrast**TRUST_POWER, near**TRUST_POWER, 1 - total / ENOUGH_MEMORIES)
        self._confidence = max(contrast, (1 - found) ** FEW_WORDS)
        share = self._meaning * (WITHOUT_WORDS - (WITHOUT_WORDS - WITH_ALL_WORDS) * found)
        self._share = min(CONFIDENT * self._confidence * share, 1.0)

    def score(self, words: Mapping[int, float]) -> dict[int, float]:
        """Return what each memory's vector adds to its word score or subtracts from it."""
        if self._vectors is None or not self._worth:
            return {}
        similarity = self._vectors.similarity(words)
        return {
            number: self._weigh(similarity[number], fit)
            for number, fit in words.items()
            if number in similarity
        }

    def _weigh(self, similarity: float, fit: float) -> float:
        """Return what a similarity adds. The more words match, the less it can subtract."""
        scaled = max(similarity - self._common, 0.0) / (self._top - self._common)
        added = self._share * (self._worth * scaled**SHARPNESS - fit)
        return added if added > 0 else added * self._confidence**2 * max(1 - fit * fit, 0.0)


def _measure_contrast(similarities: Collection[float], common: float, total: int) -> float:
    """Return how far the best similarity stands out from the tenth: 0 as by chance, 1 clearly.

    Chance is what a normal distribution gives for `total` memories.
    """
    ordered = sorted(similarities, reverse=True)
    place = min(CONTRAST_PLACE, total // 3, len(ordered) - 1)
    if place < 1:
        return 1.0
    quantile = NormalDist().inv_cdf
    chance = quantile(1 - (place + 0.4) / total) / quantile(1 - 0.6 / total)
    seen = (ordered[place] - common) / (ordered[0] - common)
    return min(max((chance - seen) / (CLEAR_CONTRAST * chance), 0.0), 1.0)
