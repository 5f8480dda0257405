"""Recall: find the memories that answer a query, and rank them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from ...backends import StreamKey
from ...conversations.tokens import default_counter
from ..model import MemoryDoc, MemoryFilter, MemoryHit, build_hit, join_variants
from ..text.tokens import query_terms
from ..weights import Weights
from .index import MemoryIndex, Neighbours
from .ranking import MAX_LENDERS, Ranked, RankedQuery, pick_best, rank

if TYPE_CHECKING:
    from ..vectors.nearest import VectorQuery

NEAREST_DOCS: Final = 100
"""How many of the nearest memories are ranked, besides those that share words with the query."""
MIN_NEAREST: Final = 25
"""If fewer of the nearest match the filter, all that match it are compared."""


def recall(
    index: MemoryIndex,
    space: StreamKey,
    query: str,
    where: MemoryFilter,
    weights: Weights,
    *,
    k: int,
    min_score: float = 0.0,
    max_tokens: int | None = None,
    vectors: VectorQuery | None = None,
) -> list[MemoryHit]:
    """Return the `k` best memories, best first, that reach `min_score` and fit in `max_tokens`."""
    terms, meaning = query_terms(query), MeaningScores(vectors, weights)
    meaning.start(where, k)
    found = index.search(space, terms, where, max(weights.candidates, k))
    question = RankedQuery(query, terms, found, weights)
    docs = {doc.number: doc for doc in found.docs}
    words = {number: question.fit(doc) for number, doc in docs.items()}
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
    ranked = rank(docs, _add_scores(words, meanings), near, weights, where.now, meanings, question)
    enough = takewhile(lambda one: one.score > 0 and one.score >= min_score, ranked)
    chosen = enough if max_tokens is None else _fit_budget(enough, max_tokens)
    return [build_hit(one.doc, one.score, one.why) for one in islice(chosen, k)]


def _add_scores(words: Mapping[int, float], meanings: Mapping[int, float]) -> dict[int, float]:
    return {number: fit + meanings.get(number, 0.0) for number, fit in words.items()}


def _find_neighbours(
    index: MemoryIndex,
    space: StreamKey,
    lenders: Sequence[MemoryDoc],
    weights: Weights,
    where: MemoryFilter,
) -> list[tuple[MemoryDoc, Neighbours]]:
    if not weights.neighbour or not weights.reach or not lenders:
        return []
    return list(zip(lenders, index.neighbours(space, lenders, weights.reach, where), strict=True))


def _fit_budget(ranked: Iterable[Ranked], max_tokens: int) -> Iterator[Ranked]:
    """Yield the best that fit together. One that is too long does not exclude shorter ones."""
    count, left = default_counter(), max_tokens
    for one in ranked:
        tokens = count({"role": "user", "content": join_variants(one.doc.text, one.doc.variants)})
        if tokens <= left:
            yield one
            left -= tokens


class MeaningScores:
    """What the vectors of memories add to the scores of their words.

    Call `start`, `preload`, `nearest`, `calibrate` and `score` in this order. Models differ in how
    similar any two texts are to them. So a similarity counts from the average of all memories (0)
    to the best one (1), and is worth as much as the best match by words.
    """

    def __init__(self, vectors: VectorQuery | None, weights: Weights) -> None:
        self._vectors, self._share = vectors, weights.meaning
        self._common, self._top, self._worth = 0.0, 0.0, 0.0

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
        return self._vectors.nearest(where, max(NEAREST_DOCS, limit), max(MIN_NEAREST, limit))

    def calibrate(self, words: Mapping[int, float]) -> None:
        """Determine the best similarity and its worth from all candidates' word scores."""
        similarity = {} if self._vectors is None else self._vectors.similarity(words)
        if self._vectors is None or not similarity:
            return
        self._common, self._top = self._vectors.common, max(similarity.values())
        if self._top > self._common:
            self._worth = max(
                max(words.values()), (self._top - self._common) / (1 - min(self._common, 0.99))
            )

    def score(self, words: Mapping[int, float]) -> dict[int, float]:
        """Return what each memory's vector adds to its word score, or takes off."""
        if self._vectors is None or not self._worth:
            return {}
        similarity = self._vectors.similarity(words)
        return {
            number: self._weigh(similarity[number], fit)
            for number, fit in words.items()
            if number in similarity
        }

    def _weigh(self, similarity: float, fit: float) -> float:
        """Return what a similarity adds. It takes off less, the more words of the query match."""
        meant = self._worth * max(similarity - self._common, 0.0) / (self._top - self._common)
        added = self._share * (meant - fit)
        return added if added > 0 else added * max(1 - fit * fit, 0.0)
