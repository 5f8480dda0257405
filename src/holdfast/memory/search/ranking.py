"""Rank candidates, in the same way for every engine, and say how sure each memory is.

How well a memory fits is a number from 0 to 1, and 1 means that it matches the whole query.
Neighbours and the source can raise a memory's fit towards that of the best match, but never all the
way. Then factors that do not depend on the query (recency, importance, use) adjust it: the better
the match, the less, and a fit of 1 stays 1. So nothing ranks above a memory that has every word of
the query.

The confidence of a memory doesn't change the order. It is computed from the evidence for it and
against it, which is all in the events of the namespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from math import exp, fsum, log, tanh
from typing import Final, NamedTuple

from ..fold import DAY_SECONDS, fade_worth
from ..model import MemoryDoc, sources_of
from ..text.characters import normalize_for_reading
from ..text.dates import Period, closeness
from ..text.tokens import group_query_terms, split_passages
from ..text.tokens import terms as terms_of
from ..weights import Weights
from .candidates import SHORT_TERMS, length_resistance, rarity
from .index import Matches, Neighbours

MAX_LENDERS: Final = 24
"""How many of the best matches add to their neighbours' scores."""
SOURCE_TOP: Final = 3
"""How many best matches make up the score of a source."""
CONVERSATION_SHARE: Final = 0.34
"""If at least this share of a source's memories are that short, it is a conversation."""
LENDING_RATE: Final = 1.5
"""How fast lent score closes the gap: the best match's own score closes 1 - 1/e^1.5 of it."""
TIME_WORTH: Final = 0.8
"""How much the time that a query names counts, relative to all of its words."""
LONG_PERIOD_SECONDS: Final = 200 * DAY_SECONDS
"""A longer period, such as a year, tells little, and counts a third as much."""
SCORE_DIGITS: Final = 6
LOWEST_SCORE, HIGHEST_PARTIAL_SCORE = 1e-6, 0.99
"""The bounds of the score of a memory that has a part of the query. All of it is 1."""
"""Scores are rounded, so that no engine's last bit decides the order."""
FULL_EVIDENCE, EVIDENCE_POWER = 0.27, 6
"""What share of a query is enough for full scores, and how fast they fall below it."""
MANY_TERMS: Final = 8
"""Of a longer query, no more than this many of the rarest terms are expected in one place."""
ASSUMED_MEMORIES: Final = 100
"""How many memories without the query's terms are assumed, as a few tell little of their rarity."""
ENOUGH_MEMORIES: Final = 30
"""Among fewer memories, less of a query is enough: less is there by chance."""
NAME_ONLY: Final = 0.5
"""How much a place counts that has a single term of a longer query, such as a name."""
MIN_PHRASE_TERMS: Final = 3
"""If a query has at least this many words, a match in the same order is a full match."""

_ENDS: Final = re.compile(r"^\W+|\W+$")


class Ranked(NamedTuple):
    doc: MemoryDoc
    score: float
    why: dict[str, float]


class QueryEvidence(NamedTuple):
    """What share of a query is known in one place, and how surely that isn't by chance: 0 to 1."""

    share: float
    trust: float


class RankedQuery:
    """A query, with the weight of each of its terms in this namespace."""

    def __init__(
        self,
        query: str,
        terms: Mapping[str, float],
        found: Matches,
        weights: Weights,
        period: Period | None = None,
    ) -> None:
        self._period = period
        self._weights, self._average = weights, max(found.average, 1.0)
        self._worth = {
            term: weight * rarity(found.total, found.frequency.get(term, 0))
            for term, weight in terms.items()
        }
        self._whole = sum(self._worth.values()) or 1.0
        # For `measure_evidence`: what each term tells. Among a few memories, no word is common yet.
        self._groups = [
            {
                term: terms[term]
                * rarity(found.total + ASSUMED_MEMORIES, found.frequency.get(term, 0))
                for term in group
                if term in terms
            }
            for group in group_query_terms(query)
            if not terms.keys().isdisjoint(group)
        ]
        most = [max(group.values()) for group in self._groups]
        self._expected = sum(nlargest(MANY_TERMS, most)) or 1.0
        self._full_evidence = FULL_EVIDENCE * min(max(found.total, 1) / ENOUGH_MEMORIES, 1.0)
        in_order = terms_of(query)
        self._phrase = f" {' '.join(in_order)} " if len(set(in_order)) >= MIN_PHRASE_TERMS else None
        self._bare = strip_ends(query)

    def fit(self, doc: MemoryDoc) -> float:
        """Return how well a memory's words fit: BM25, relative to having each word once.

        A long text fits as well as its best passage, mostly: what it has elsewhere counts, too.
        Words come from sets, in any order: `fsum` adds them up to the same number in each process.
        """
        weighed = [self._weigh_terms(passage) for passage in doc.terms.split("\n")]
        best = max(fsum(weights.values()) for weights in weighed)
        if len(weighed) > 1:
            # As if each word counted where it counts most.
            most: dict[str, float] = {}
            for word, weight in chain.from_iterable(weights.items() for weights in weighed):
                most[word] = max(most.get(word, 0.0), weight)
            best += self._weights.elsewhere * (fsum(most.values()) - best)
        best /= self._whole
        if self._phrase is not None and self._phrase in f" {doc.terms} ":
            best = max(best, 1.0)
        context = self._worth.keys() & set(doc.context.split())
        if context:
            lent = fsum(self._worth[word] for word in context.difference(doc.terms.split()))
            best += lent * self._weights.context / self._whole
        return self._add_time(best, doc)

    def _add_time(self, share: float, doc: MemoryDoc) -> float:
        """Return a share of the query's words with the time that the query names."""
        if self._period is None:
            return share
        near = max(closeness(at, self._period) for at in (doc.at, doc.first_at))
        long = self._period[1] - self._period[0] > LONG_PERIOD_SECONDS
        worth = TIME_WORTH / 3 if long else TIME_WORTH
        return (share + worth * near) / (1 + worth) if self._worth else near

    def measure_evidence(self, around: Sequence[tuple[MemoryDoc, Neighbours]]) -> QueryEvidence:
        """Return how much of the query is known in one place.

        A place is a memory, a passage of a long one, or a turn with those around it. A single word
        of several counts half: what shares only a name with a query is hardly about it.
        """
        shapes = _measure_shapes(doc for doc, _ in around)
        best = 0.0
        for doc, (before, after) in around:
            places = doc.terms.split("\n")
            if len(places) == 1 and shapes.get(doc.source or "", 0.0) == 1.0:
                places = [" ".join(one.terms for one in (doc, *before, *after))]
            context = self._weights.context
            told = {term: context for term in doc.context.split() if term in self._worth}
            for place in places:
                words = {**told, **dict.fromkeys(self._worth.keys() & set(place.split()), 1.0)}
                best = max(best, self._add_time(self._share_of(words), doc))
        return QueryEvidence(best, min(best / self._full_evidence, 1.0) ** EVIDENCE_POWER)

    def _share_of(self, words: Mapping[str, float]) -> float:
        """Return the share of the query that these words are, each with its weight."""
        known = [
            found
            for group in self._groups
            if (found := max(words.get(term, 0.0) * told for term, told in group.items()))
        ]
        share = min(fsum(known) / self._expected, 1.0)
        return share * NAME_ONLY if len(known) == 1 < len(self._groups) else share

    def has_time(self, docs: Iterable[MemoryDoc]) -> bool:
        """Whether one of these memories has words of the query and is of the time that it names."""
        assert self._period is not None
        return any(
            closeness(at, self._period) == 1.0
            and not self._worth.keys().isdisjoint(doc.terms.split())
            for doc in docs
            for at in (doc.at, doc.first_at)
        )

    def find_passage(self, doc: MemoryDoc) -> str:
        """Return the passage of a memory that fits best; all of the text if it is short."""
        fits = [fsum(self._weigh_terms(one).values()) for one in doc.terms.split("\n")]
        return split_passages(doc.text)[fits.index(max(fits))].strip()

    def _weigh_terms(self, passage: str) -> dict[str, float]:
        words = passage.split(" ")
        k = self._weights.saturation
        resistance = length_resistance(k, self._weights.length, len(words), self._average)
        found = {}
        for word in self._worth.keys() & set(words):
            # In a turn or a note, a repeated word doesn't say more.
            count = 1 if len(words) <= SHORT_TERMS else words.count(word)
            found[word] = self._worth[word] * count * (k + 1) / (count + resistance)
        return found

    def is_verbatim(self, doc: MemoryDoc) -> bool:
        """Whether a memory is the query itself, ignoring case and the punctuation around it."""
        longest = 2 * len(self._bare) + 80  # longer texts can't be equal
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
    evidence: QueryEvidence,
) -> Iterator[Ranked]:
    """Yield memories, best first.

    `fits` says how well each memory fits on its own, and `meanings` how much of that comes from
    vectors. `around` has the neighbours of the best matches. `evidence` says how much of the query
    is known at all.
    """
    shapes = _measure_shapes(docs.values())
    lent = _lend_to_neighbours(fits, around, weights, shapes)
    sources = _score_sources(docs.values(), fits, shapes)
    top = max(fits.values(), default=0.0)
    scored, parts = [], {}
    for number, doc in docs.items():
        fit, near = fits.get(number, 0.0), lent.get(number, 0.0)
        source = weights.source * sources.get(doc.source or "", 0.0)
        whole = _close_gap(fit, near + source, top)
        factors = _factors(doc, weights, now)
        parts[number] = fit, near, source, (whole - fit) / ((near + source) or 1.0), factors
        score, factor = min(whole, 1.0), _factor(*factors)
        # A fit of 1 stays 1; among equal scores, the rest of the fit and the factors decide.
        score = round(score * factor / (1 + (factor - 1) * score), SCORE_DIGITS)
        full = score == 1.0 and question.is_verbatim(doc)
        more = round(max(whole, 1.0) * factor, SCORE_DIGITS)
        scored.append((score, full, more, round(doc.at, 3), number))
    scored.sort(reverse=True)
    # The best has at least the share that is known: in a small memory, words count for little.
    rise = max(evidence.share / scored[0][0], 1.0) if scored and scored[0][0] else 1.0
    for score, *_, number in scored:
        fit, near, source, share, factors = parts[number]
        meaning = meanings.get(number, 0.0)
        signals = {
            "words": fit - meaning,
            "meaning": meaning,
            "neighbours": near * share,
            "source": source * share,
            **dict(zip(("recency", "importance", "use"), factors, strict=True)),
        }
        shown = {name: round(value, 4) for name, value in signals.items()}
        if score:
            most = 1.0 if score == 1.0 else HIGHEST_PARTIAL_SCORE
            score = round(min(score * rise, most) * evidence.trust, SCORE_DIGITS) or LOWEST_SCORE
        yield Ranked(docs[number], score, {name: value for name, value in shown.items() if value})


def _close_gap(fit: float, lent: float, top: float) -> float:
    """Return a fit with the score lent to it, which closes part of the gap to the best fit."""
    return fit + (top - fit) * (1 - exp(-LENDING_RATE * lent / top)) if top > fit else fit


def _measure_shapes(docs: Iterable[MemoryDoc]) -> dict[str, float]:
    """Return how much each source is a conversation of short turns, from 0 to 1.

    An answer follows its question, and "it" is what was said before; so turns lend each other
    score. The paragraphs of a document, or the documents of a folder, each speak for themselves.
    """
    counts: dict[str, tuple[int, int]] = {}
    for doc in docs:
        if doc.source is not None:
            short, known = counts.get(doc.source, (0, 0))
            is_short = doc.terms.count(" ") < SHORT_TERMS
            counts[doc.source] = (short + is_short, known + 1)
    return {
        source: min(short / known / CONVERSATION_SHARE, 1.0)
        for source, (short, known) in counts.items()
    }


def _lend_to_neighbours(
    fits: Mapping[int, float],
    around: Sequence[tuple[MemoryDoc, Neighbours]],
    weights: Weights,
    shapes: Mapping[str, float],
) -> dict[int, float]:
    """Return the score each memory gets from its neighbours: the highest share on each side."""
    sides: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for doc, near in around:
        for got, side in zip(sides, near, strict=True):
            share = fits[doc.number] * shapes.get(doc.source or "", 0.0)
            for other in side:
                share *= weights.neighbour
                got[other.number] = max(got.get(other.number, 0.0), share)
    before, after = sides
    return {
        number: before.get(number, 0.0) + after.get(number, 0.0) for number in {**before, **after}
    }


def _score_sources(
    docs: Iterable[MemoryDoc], fits: Mapping[int, float], shapes: Mapping[str, float]
) -> dict[str, float]:
    by_source: dict[str, list[float]] = {}
    for doc in docs:
        if doc.source is not None and fits.get(doc.number):
            by_source.setdefault(doc.source, []).append(fits[doc.number])
    return {
        source: shapes[source] * sum(sorted(found, reverse=True)[:SOURCE_TOP]) / SOURCE_TOP
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


# -- confidence ------------------------------------------------------------------------------------

REPEAT_WORTH: Final = 0.5
"""What saying it again counts, relative to another source or author."""
CONFLICT_WORTH: Final = 1.5
"""What a memory that says otherwise counts against it."""


def measure_confidence(doc: MemoryDoc, authors: int, conflicts: int, now: float) -> float:
    """Return how sure a memory is, from 0 to 1: 0.5 if it was said once and nothing else is known.

    Sources, authors, repeats and use speak for it; conflicts and bad feedback against it. Use and
    feedback fade over weeks.
    """
    sources = max(len(sources_of(doc)), 1)
    repeats = max(doc.mentions - sources, 0)
    useful = fade_worth(doc.useful, now - doc.useful_at)
    supported = sources + (authors - 1) + REPEAT_WORTH * repeats + max(useful, 0.0)
    doubted = CONFLICT_WORTH * conflicts + max(-useful, 0.0)
    return round(supported / (supported + doubted + 1), 4)


class AuthorCounter:
    """Counts how many authors say the same, among these memories."""

    def __init__(self, docs: Iterable[MemoryDoc]) -> None:
        self._authors: dict[tuple[str | None, str], set[str]] = {}
        for doc in docs:
            for key in doc.keys:
                self._authors.setdefault((doc.subject, key), set()).add(doc.author)

    def count(self, doc: MemoryDoc) -> int:
        """Return the number for a memory. What is said about another subject doesn't count."""
        found = [self._authors.get((doc.subject, key), ()) for key in doc.keys]
        return len({doc.author}.union(*found))
