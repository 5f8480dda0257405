"""Rank candidates, in the same way for every engine.

How well a memory fits is a number from 0 to 1, and 1 means that it matches the whole query.
Neighbours and source close part of the gap to the best match, never all of it. Then come factors
that do not depend on the query; they change a good match less. So nothing ranks above a memory that
has every word of the query.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, log, tanh
from typing import Final, NamedTuple

from ..fold import DAY_SECONDS, fade_worth
from ..model import MemoryDoc
from ..text.characters import normalize_for_reading
from ..text.tokens import terms as terms_of
from ..weights import Weights
from .candidates import rarity
from .index import Matches, Neighbours

MAX_LENDERS: Final = 24
"""How many of the best matches add to their neighbours' scores."""
SOURCE_TOP: Final = 3
"""How many best matches make up the score of a source."""
LENDING_RATE: Final = 1.5
"""How fast lent score closes the gap: the best match's own score closes 1 - 1/e^1.5 of it."""
SCORE_DIGITS: Final = 6
"""Scores are rounded, so that no engine's last bit decides the order."""
MIN_PHRASE_TERMS: Final = 3
"""From this many words on, a match in the order of the query is a full match."""
LONG_TEXT_FACTOR: Final = 2.0
"""Texts up to this many times the average length are not penalized."""

_ENDS: Final = re.compile(r"^\W+|\W+$")


class Ranked(NamedTuple):
    doc: MemoryDoc
    score: float
    why: dict[str, float]


class RankedQuery:
    """A query with the worth of its terms in this namespace."""

    def __init__(
        self, query: str, terms: Mapping[str, float], found: Matches, weights: Weights
    ) -> None:
        self._weights, self._average = weights, max(found.average, 1.0)
        self._worth = {
            term: weight * rarity(found.total, found.frequency.get(term, 0))
            for term, weight in terms.items()
        }
        self._whole = sum(self._worth.values()) or 1.0
        in_order = terms_of(query)
        self._phrase = f" {' '.join(in_order)} " if len(set(in_order)) >= MIN_PHRASE_TERMS else None
        self._bare = strip_ends(query)

    def fit(self, doc: MemoryDoc) -> float:
        """Return how well a memory's words fit, from 0 to 1: BM25 relative to a perfect match."""
        if self._phrase is not None and self._phrase in f" {doc.terms} ":
            return 1.0
        counts = Counter(doc.terms.split(" "))
        k, b = self._weights.saturation, self._weights.length
        resistance = k * (1 + b * max(counts.total() / self._average - LONG_TEXT_FACTOR, 0.0))
        total = 0.0
        for word, count in counts.items():
            if word in self._worth:
                total += self._worth[word] * min(count * (k + 1) / (count + resistance), 1.0)
        for word in doc.context.split(" "):
            if word in self._worth and word not in counts:
                total += self._worth[word] * self._weights.context
        return min(total / self._whole, 1.0)

    def is_verbatim(self, doc: MemoryDoc) -> bool:
        """Whether the memory is the query itself, ignoring case and the signs around it."""
        longest = 2 * len(self._bare) + 80  # longer ones can't be equal
        return any(
            len(text) <= longest and strip_ends(text) == self._bare
            for text in (doc.text, *doc.variants)
        )


def strip_ends(text: str) -> str:
    return _ENDS.sub("", normalize_for_reading(text)).casefold()


def pick_best(docs: Iterable[MemoryDoc], fits: Mapping[int, float], count: int) -> list[MemoryDoc]:
    """Return the best matches: those that add to their neighbours' scores."""
    fitting = [doc for doc in docs if fits[doc.number] > 0]
    return sorted(fitting, key=lambda doc: (-round(fits[doc.number], SCORE_DIGITS), -doc.number))[
        :count
    ]


def rank(
    docs: Mapping[int, MemoryDoc],
    fits: Mapping[int, float],
    around: Sequence[tuple[MemoryDoc, Neighbours]],
    weights: Weights,
    now: float,
    meanings: Mapping[int, float],
    question: RankedQuery,
) -> Iterator[Ranked]:
    """Yield memories, best first. `fits`: how well each fits by itself; `around`: the best's
    neighbours.

    `meanings`: the part of a fit that comes from vectors.
    """
    lent = _lend_to_neighbours(fits, around, weights)
    sources = _score_sources(docs.values(), fits)
    top = max(fits.values(), default=0.0)
    scored = []
    for number, doc in docs.items():
        fit, source = fits.get(number, 0.0), weights.source * sources.get(doc.source or "", 0.0)
        whole = min(_close_gap(fit, lent.get(number, 0.0) + source, top), 1.0)
        factor = _factor(*_factors(doc, weights, now))
        # 1 stays 1, and the factors decide the order of equals.
        score = round(whole * factor / (1 + (factor - 1) * whole), SCORE_DIGITS)
        full = score == 1.0 and question.is_verbatim(doc)
        scored.append((score, full, round(factor, SCORE_DIGITS), round(doc.at, 3), number))
    scored.sort(reverse=True)
    for score, *_, number in scored:
        doc, fit, meaning = docs[number], fits.get(number, 0.0), meanings.get(number, 0.0)
        neighbours, source = (
            lent.get(number, 0.0),
            weights.source * sources.get(doc.source or "", 0.0),
        )
        share = (_close_gap(fit, neighbours + source, top) - fit) / ((neighbours + source) or 1.0)
        signals = {
            "words": fit - meaning,
            "meaning": meaning,
            "neighbours": neighbours * share,
            "source": source * share,
            **dict(zip(("recency", "importance", "use"), _factors(doc, weights, now), strict=True)),
        }
        shown = {name: round(value, 4) for name, value in signals.items()}
        yield Ranked(doc, score, {name: value for name, value in shown.items() if value})


def _close_gap(fit: float, lent: float, top: float) -> float:
    """Return a fit with lent score, which closes part of its gap to the best one."""
    return fit + (top - fit) * (1 - exp(-LENDING_RATE * lent / top)) if top > fit else fit


def _lend_to_neighbours(
    fits: Mapping[int, float], around: Sequence[tuple[MemoryDoc, Neighbours]], weights: Weights
) -> dict[int, float]:
    """Return what each memory gets from its neighbours: the most that one lends, per side."""
    sides: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for doc, near in around:
        for got, side in zip(sides, near, strict=True):
            share = fits[doc.number]
            for other in side:
                share *= weights.neighbour
                got[other.number] = max(got.get(other.number, 0.0), share)
    before, after = sides
    return {
        number: before.get(number, 0.0) + after.get(number, 0.0) for number in {**before, **after}
    }


def _score_sources(docs: Iterable[MemoryDoc], fits: Mapping[int, float]) -> dict[str, float]:
    by_source: dict[str, list[float]] = {}
    for doc in docs:
        if doc.source is not None and fits.get(doc.number):
            by_source.setdefault(doc.source, []).append(fits[doc.number])
    return {
        source: sum(sorted(found, reverse=True)[:SOURCE_TOP]) / SOURCE_TOP
        for source, found in by_source.items()
    }


def _factors(doc: MemoryDoc, weights: Weights, now: float) -> tuple[float, float, float]:
    """Return the factors for recency, importance and use."""
    recency = weights.recency * 0.5 ** (
        max(now - doc.at, 0.0) / DAY_SECONDS / max(weights.recency_days, 1e-9)
    )
    importance = weights.importance * (doc.importance - 0.5) * 2
    if not doc.useful and doc.mentions == 1:
        return recency, importance, 0.0
    return (
        recency,
        importance,
        weights.use * tanh((fade_worth(doc.useful, now - doc.useful_at) + log(doc.mentions)) / 2),
    )


def _factor(recency: float, importance: float, use: float) -> float:
    return max((1 + recency) * (1 + importance) * (1 + use), 1e-3)
