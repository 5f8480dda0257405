"""Recall: from a question to the memories that answer it, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from ..backends import StreamKey
from ..conversations._tokens import default_counter
from ._hybrid import Sense
from ._index import Around, Index
from ._model import Doc, MemoryHit, Where, full_text, hit
from ._ranking import LENDERS, Question, Ranked, best, rank
from ._text import query_terms
from ._weights import Weights

if TYPE_CHECKING:
    from ._vectors import Meaning


def recall(
    index: Index,
    space: StreamKey,
    query: str,
    where: Where,
    weights: Weights,
    *,
    k: int,
    min_score: float = 0.0,
    max_tokens: int | None = None,
    meaning: Meaning | None = None,
) -> list[MemoryHit]:
    """The `k` best, best first; fewer if they do not score enough, or do not fit into the budget."""
    terms, sense = query_terms(query), Sense(meaning, weights)
    sense.begin(where, k)
    found = index.search(space, terms, where, max(weights.candidates, k))
    question = Question(query, terms, found, weights)
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
    index: Index, space: StreamKey, lenders: Sequence[Doc], weights: Weights, where: Where
) -> list[tuple[Doc, Around]]:
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
