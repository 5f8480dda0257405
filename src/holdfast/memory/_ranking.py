"""The order of what is recalled: the same on every engine. An index brings what may fit; here it is weighed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log, tanh
from typing import Final, NamedTuple

from ._fold import DAY, faded
from ._index import Around, Found
from ._model import Doc
from ._weights import Weights

LENDERS: Final = 24
"""So many of the best matches lend to their neighbours."""
OF_SOURCE: Final = 3
"""A source is worth what its best few are."""


class Ranked(NamedTuple):
    doc: Doc
    score: float
    why: dict[str, float]


class Question:
    """A question: what its terms are worth here, and so what a perfect match would be."""

    def __init__(self, terms: Mapping[str, float], found: Found, weights: Weights) -> None:
        self._weights, self._average = weights, max(found.average, 1.0)
        self._worth = {
            term: weight * log(1 + (found.total - count + 0.5) / (count + 0.5))
            for term, weight in terms.items()
            for count in [min(found.frequency.get(term, 0), found.total)]
        }
        self._whole = sum(self._worth.values()) or 1.0

    def fit(self, doc: Doc) -> float:
        """How well a memory's own words fit: BM25, as a share of what the question asks for."""
        words = doc.terms.split(" ")
        context: frozenset[str] | None = None
        k, b = self._weights.saturation, self._weights.length
        resistance = k * (1 - b + b * len(words) / self._average)
        total = 0.0
        for term, worth in self._worth.items():
            count: float = words.count(term)
            if not count and doc.context:
                context = context or frozenset(doc.context.split(" "))
                if term in context:
                    total += worth * self._weights.context
                continue
            if count:
                total += worth * count * (k + 1) / (count + resistance)
        return total / self._whole


def best(docs: Iterable[Doc], fits: Mapping[int, float], count: int) -> list[Doc]:
    """The ones that fit best: those that lend to their neighbours."""
    return sorted((doc for doc in docs if fits[doc.number] > 0), key=lambda doc: -fits[doc.number])[:count]


def rank(
    docs: Mapping[int, Doc],
    fits: Mapping[int, float],
    around: Sequence[tuple[Doc, Around]],
    weights: Weights,
    now: float,
    meanings: Mapping[int, float],
    count: int,
) -> list[Ranked]:
    """The `count` best of these, best first. `fits` is how well each fits by itself, `around` the neighbours of the best.

    `meanings` is what of a fit is due to its meaning, where an embedder has a say.
    """
    lent = _from_neighbours(fits, around, weights)
    sources = _sources(docs.values(), fits)
    scored = []
    for number, doc in docs.items():
        source = weights.source * sources.get(doc.source or "", 0.0)
        own = fits.get(number, 0.0) + lent.get(number, 0.0) + source
        recency, importance, use = _factors(doc, weights, now)
        scored.append((own * (1 + recency) * (1 + importance) * (1 + use), doc.heard_at, number))
    scored.sort(reverse=True)
    ranked = []
    for score, _, number in scored[:count]:
        doc, meaning = docs[number], meanings.get(number, 0.0)
        recency, importance, use = _factors(doc, weights, now)
        signals = {
            "words": fits.get(number, 0.0) - meaning,
            "meaning": meaning,
            "neighbours": lent.get(number, 0.0),
            "source": weights.source * sources.get(doc.source or "", 0.0),
            "recency": recency,
            "importance": importance,
            "use": use,
        }
        ranked.append(Ranked(doc, score, {name: round(value, 4) for name, value in signals.items() if value}))
    return ranked


def _from_neighbours(
    fits: Mapping[int, float], around: Sequence[tuple[Doc, Around]], weights: Weights
) -> dict[int, float]:
    """What each gets from its neighbours: the most that one of them lends, on either side."""
    sides: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for doc, near in around:
        for got, side in zip(sides, near, strict=True):
            share = fits[doc.number]
            for other in side:
                share *= weights.neighbour
                got[other.number] = max(got.get(other.number, 0.0), share)
    before, after = sides
    return {number: before.get(number, 0.0) + after.get(number, 0.0) for number in {**before, **after}}


def _sources(docs: Iterable[Doc], fits: Mapping[int, float]) -> dict[str, float]:
    by_source: dict[str, list[float]] = {}
    for doc in docs:
        if doc.source is not None and fits.get(doc.number):
            by_source.setdefault(doc.source, []).append(fits[doc.number])
    return {source: sum(sorted(found, reverse=True)[:OF_SOURCE]) / OF_SOURCE for source, found in by_source.items()}


def _factors(doc: Doc, weights: Weights, now: float) -> tuple[float, float, float]:
    """What is not about the question: how new a memory is, how important, how useful it was."""
    recency = weights.recency * 0.5 ** (max(now - doc.heard_at, 0.0) / DAY / max(weights.recency_days, 1e-9))
    importance = weights.importance * (doc.importance - 0.5) * 2
    if not doc.useful and doc.heard == 1:
        return recency, importance, 0.0
    return recency, importance, weights.use * tanh((faded(doc.useful, now - doc.useful_at) + log(doc.heard)) / 2)
