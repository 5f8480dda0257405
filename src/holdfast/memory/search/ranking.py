"""The order of what is recalled: the same on every engine. An index brings what may fit; here it is weighed.

How well a memory fits is a number from 0 to 1, and 1 means that it has all that was asked for. What its neighbours and its
source lend it closes part of the gap to the best match, never all of it. Then come factors that are not about the question:
the better a memory fits, the less they change. So nothing comes before what was asked for word by word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, log, tanh
from typing import Final, NamedTuple

from ..fold import DAY, faded
from ..model import MemoryDoc
from ..text.characters import visible
from ..text.tokens import terms as terms_of
from ..weights import Weights
from .candidates import rarity
from .index import Matches, Neighbours

LENDERS: Final = 24
"""So many of the best matches lend to their neighbours."""
OF_SOURCE: Final = 3
"""A source is worth what its best few are."""
LENT: Final = 1.5
"""How fast what is lent closes the gap to the best match: as much as the best match is worth closes 1 - 1/e^1.5 of it."""
DIGITS: Final = 6
"""Scores are rounded, so that no engine's last bit decides between two memories."""
A_PHRASE: Final = 3
"""So many words in the order in which they were asked for are no accident, however long the text around them."""
LONG: Final = 2.0
"""A text of up to so many times the average length has nothing to share."""

_ENDS: Final = re.compile(r"^\W+|\W+$")


class Ranked(NamedTuple):
    doc: MemoryDoc
    score: float
    why: dict[str, float]


class RankedQuery:
    """A question: what its terms are worth here, and so what a perfect match would be."""

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
        self._phrase = f" {' '.join(in_order)} " if len(set(in_order)) >= A_PHRASE else None
        self._bare = bare(query)

    def fit(self, doc: MemoryDoc) -> float:
        """How well a memory's own words fit, from 0 to 1: BM25, as a share of what the question asks for."""
        if self._phrase is not None and self._phrase in f" {doc.terms} ":
            return 1.0
        counts = Counter(doc.terms.split(" "))
        k, b = self._weights.saturation, self._weights.length
        resistance = k * (1 + b * max(counts.total() / self._average - LONG, 0.0))
        total = 0.0
        for word, count in counts.items():
            if word in self._worth:
                total += self._worth[word] * min(count * (k + 1) / (count + resistance), 1.0)
        for word in doc.context.split(" "):
            if word in self._worth and word not in counts:
                total += self._worth[word] * self._weights.context
        return min(total / self._whole, 1.0)

    def verbatim(self, doc: MemoryDoc) -> bool:
        """Whether the memory is the question, letter by letter but for case and the signs around it."""
        longest = 2 * len(self._bare) + 80  # longer ones need not be read closely
        return any(
            len(text) <= longest and bare(text) == self._bare for text in (doc.text, *doc.variants)
        )


def bare(text: str) -> str:
    return _ENDS.sub("", visible(text)).casefold()


def best(docs: Iterable[MemoryDoc], fits: Mapping[int, float], count: int) -> list[MemoryDoc]:
    """The ones that fit best: those that lend to their neighbours."""
    fitting = [doc for doc in docs if fits[doc.number] > 0]
    return sorted(fitting, key=lambda doc: (-round(fits[doc.number], DIGITS), -doc.number))[:count]


def rank(
    docs: Mapping[int, MemoryDoc],
    fits: Mapping[int, float],
    around: Sequence[tuple[MemoryDoc, Neighbours]],
    weights: Weights,
    now: float,
    meanings: Mapping[int, float],
    question: RankedQuery,
) -> Iterator[Ranked]:
    """These memories, best first. `fits` is how well each fits by itself, `around` the neighbours of the best.

    `meanings` is what of a fit is due to its meaning, where an embedder has a say.
    """
    lent = _from_neighbours(fits, around, weights)
    sources = _sources(docs.values(), fits)
    top = max(fits.values(), default=0.0)
    scored = []
    for number, doc in docs.items():
        fit, source = fits.get(number, 0.0), weights.source * sources.get(doc.source or "", 0.0)
        whole = min(_filled(fit, lent.get(number, 0.0) + source, top), 1.0)
        factor = _factor(*_factors(doc, weights, now))
        score = round(
            whole * factor / (1 + (factor - 1) * whole), DIGITS
        )  # 1 stays 1, and the order of equals is theirs
        full = score == 1.0 and question.verbatim(doc)
        scored.append((score, full, round(factor, DIGITS), round(doc.at, 3), number))
    scored.sort(reverse=True)
    for score, *_, number in scored:
        doc, fit, meaning = docs[number], fits.get(number, 0.0), meanings.get(number, 0.0)
        neighbours, source = (
            lent.get(number, 0.0),
            weights.source * sources.get(doc.source or "", 0.0),
        )
        share = (_filled(fit, neighbours + source, top) - fit) / ((neighbours + source) or 1.0)
        signals = {
            "words": fit - meaning,
            "meaning": meaning,
            "neighbours": neighbours * share,
            "source": source * share,
            **dict(zip(("recency", "importance", "use"), _factors(doc, weights, now), strict=True)),
        }
        shown = {name: round(value, 4) for name, value in signals.items()}
        yield Ranked(doc, score, {name: value for name, value in shown.items() if value})


def _filled(fit: float, lent: float, top: float) -> float:
    """A fit, and what is lent to it: some of what it lacks of the best one."""
    return fit + (top - fit) * (1 - exp(-LENT * lent / top)) if top > fit else fit


def _from_neighbours(
    fits: Mapping[int, float], around: Sequence[tuple[MemoryDoc, Neighbours]], weights: Weights
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
    return {
        number: before.get(number, 0.0) + after.get(number, 0.0) for number in {**before, **after}
    }


def _sources(docs: Iterable[MemoryDoc], fits: Mapping[int, float]) -> dict[str, float]:
    by_source: dict[str, list[float]] = {}
    for doc in docs:
        if doc.source is not None and fits.get(doc.number):
            by_source.setdefault(doc.source, []).append(fits[doc.number])
    return {
        source: sum(sorted(found, reverse=True)[:OF_SOURCE]) / OF_SOURCE
        for source, found in by_source.items()
    }


def _factors(doc: MemoryDoc, weights: Weights, now: float) -> tuple[float, float, float]:
    """What is not about the question: how new a memory is, how important, how useful it was."""
    recency = weights.recency * 0.5 ** (
        max(now - doc.at, 0.0) / DAY / max(weights.recency_days, 1e-9)
    )
    importance = weights.importance * (doc.importance - 0.5) * 2
    if not doc.useful and doc.mentions == 1:
        return recency, importance, 0.0
    return (
        recency,
        importance,
        weights.use * tanh((faded(doc.useful, now - doc.useful_at) + log(doc.mentions)) / 2),
    )


def _factor(recency: float, importance: float, use: float) -> float:
    return max((1 + recency) * (1 + importance) * (1 + use), 1e-3)
