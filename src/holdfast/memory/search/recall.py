"""Recall: from a question to the memories that answer it, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from ...backends import StreamKey
from ...conversations.tokens import default_counter
from ..model import MemoryDoc, MemoryFilter, MemoryHit, full_text, hit
from ..text.tokens import query_terms
from ..weights import Weights
from .index import MemoryIndex, Neighbours
from .ranking import LENDERS, Ranked, RankedQuery, best, rank

if TYPE_CHECKING:
    from ..vectors.nearest import VectorQuery


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
    meaning: VectorQuery | None = None,
) -> list[MemoryHit]:
    """The `k` best, best first; fewer if they do not score enough, or do not fit into the budget."""
    terms, sense = query_terms(query), MeaningScores(meaning, weights)
    sense.begin(where, k)
    found = index.search(space, terms, where, max(weights.candidates, k))
    question = RankedQuery(query, terms, found, weights)
    docs = {doc.number: doc for doc in found.docs}
    words = {number: question.fit(doc) for number, doc in docs.items()}
    sense.look_at(words)
    for doc in sense.nearest(where, k):
        if doc.number not in docs:
            docs[doc.number] = doc
            words[doc.number] = question.fit(doc)
    sense.settle(words)
    fits = _together(words, sense.of(words))
    near = _near(index, space, best(docs.values(), fits, LENDERS), weights, where)
    for _, around in near:
        for doc in (*around.before, *around.after):
            if doc.number not in docs:
                docs[doc.number] = doc
                words[doc.number] = question.fit(doc)
    meanings = sense.of(words)
    ranked = rank(docs, _together(words, meanings), near, weights, where.now, meanings, question)
    enough = takewhile(lambda one: one.score > 0 and one.score >= min_score, ranked)
    chosen = enough if max_tokens is None else _within(enough, max_tokens)
    return [hit(one.doc, one.score, one.why) for one in islice(chosen, k)]


def _together(words: Mapping[int, float], meanings: Mapping[int, float]) -> dict[int, float]:
    return {number: fit + meanings.get(number, 0.0) for number, fit in words.items()}


def _near(
    index: MemoryIndex,
    space: StreamKey,
    lenders: Sequence[MemoryDoc],
    weights: Weights,
    where: MemoryFilter,
) -> list[tuple[MemoryDoc, Neighbours]]:
    if not weights.neighbour or not weights.reach or not lenders:
        return []
    return list(zip(lenders, index.around(space, lenders, weights.reach, where), strict=True))


def _within(ranked: Iterable[Ranked], max_tokens: int) -> Iterator[Ranked]:
    """The best that fit together. One that is too long does not keep shorter ones out."""
    count, left = default_counter(), max_tokens
    for one in ranked:
        tokens = count({"role": "user", "content": full_text(one.doc.text, one.doc.variants)})
        if tokens <= left:
            yield one
            left -= tokens


# Words and meaning together: how well a memory fits, when an embedder has a say.


NEAREST: Final = 100
"""So many memories of the nearest meaning are looked at, besides those that share words with the question."""
ENOUGH: Final = 25
"""If fewer of them are asked for, those that are asked for are looked through."""


class MeaningScores:
    """What the meaning of memories adds to their words.

    Models differ in how alike any two texts are to them. So a likeness counts from what is common to all memories (0) up to the
    best one (1), and is worth as much as the best match by words.
    """

    def __init__(self, meaning: VectorQuery | None, weights: Weights) -> None:
        self._meaning, self._share = meaning, weights.meaning
        self._common, self._top, self._worth = 0.0, 0.0, 0.0

    def begin(self, where: MemoryFilter, limit: int) -> None:
        """Have the nearest looked for, if that can be done while words are."""
        if self._meaning is not None:
            self._meaning.begin(where, max(NEAREST, limit), max(ENOUGH, limit))

    def look_at(self, numbers: Collection[int]) -> None:
        """These will be compared: learn what they mean, while the nearest are still looked for."""
        if self._meaning is not None:
            self._meaning.likeness(numbers)

    def nearest(self, where: MemoryFilter, limit: int) -> list[MemoryDoc]:
        if self._meaning is None:
            return []
        return self._meaning.nearest(where, max(NEAREST, limit), max(ENOUGH, limit))

    def settle(self, words: Mapping[int, float]) -> None:
        """Learn from all that may fit, and how well their words do, what the best likeness is and what it is worth."""
        likeness = {} if self._meaning is None else self._meaning.likeness(words)
        if self._meaning is None or not likeness:
            return
        self._common, self._top = self._meaning.common, max(likeness.values())
        if self._top > self._common:
            self._worth = max(
                max(words.values()), (self._top - self._common) / (1 - min(self._common, 0.99))
            )

    def of(self, words: Mapping[int, float]) -> dict[int, float]:
        """What is added to how well the words of each fit; or taken off, where a memory means something else."""
        if self._meaning is None or not self._worth:
            return {}
        likeness = self._meaning.likeness(words)
        return {
            number: self._added(likeness[number], fit)
            for number, fit in words.items()
            if number in likeness
        }

    def _added(self, likeness: float, fit: float) -> float:
        """The more of the question's words a memory has, the less can be taken off: nothing, if it has them all."""
        meant = self._worth * max(likeness - self._common, 0.0) / (self._top - self._common)
        added = self._share * (meant - fit)
        return added if added > 0 else added * max(1 - fit * fit, 0.0)
