"""Recall: from a question to the memories that answer it, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..backends import StreamKey
from ..conversations._tokens import default_counter
from ._hybrid import Sense
from ._index import Around, Index
from ._model import Doc, Hit, Where, hit
from ._ranking import LENDERS, Question, best, rank
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
) -> list[Hit]:
    """The `k` best, best first; fewer if they do not score enough, or do not fit into the budget."""
    terms = query_terms(query)
    found = index.search(space, terms, where, max(weights.candidates, k))
    question, sense = Question(terms, found, weights), Sense(meaning, weights)
    docs = {doc.number: doc for doc in (*found.docs, *sense.nearest(where, k))}
    words = {number: question.fit(doc) for number, doc in docs.items()}
    sense.settle(words)
    fits = _together(words, sense.of(words))
    near = _near(index, space, best(docs.values(), fits, LENDERS), weights, where)
    for _, around in near:
        for doc in (*around.before, *around.after):
            if doc.number not in docs:
                docs[doc.number] = doc
                words[doc.number] = question.fit(doc)
    meanings = sense.of(words)
    ranked = rank(docs, _together(words, meanings), near, weights, where.now, meanings, k)
    hits = [hit(one.doc, one.score, one.why) for one in ranked if one.score > 0 and one.score >= min_score]
    return hits if max_tokens is None else _within(hits, max_tokens)


def _together(words: Mapping[int, float], meanings: Mapping[int, float]) -> dict[int, float]:
    return {number: fit + meanings.get(number, 0.0) for number, fit in words.items()}


def _near(
    index: Index, space: StreamKey, lenders: Sequence[Doc], weights: Weights, where: Where
) -> list[tuple[Doc, Around]]:
    if not weights.neighbour or not weights.reach or not lenders:
        return []
    return list(zip(lenders, index.around(space, lenders, weights.reach, where), strict=True))


def _within(hits: Sequence[Hit], max_tokens: int) -> list[Hit]:
    """The best that fit together. One that is too long does not keep shorter ones out."""
    count = default_counter()
    chosen, left = [], max_tokens
    for one in hits:
        tokens = count({"role": "user", "content": one.text})
        if tokens <= left:
            chosen.append(one)
            left -= tokens
    return chosen
