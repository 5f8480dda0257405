"""Plan the search for candidates, for all engines alike.

A query has common and rare words. The rare ones lead to candidates; the common ones are then looked
up in these candidates only. So a query costs about the same however many memories there are, and no
word of it is ignored. Filters (tags, source, author, subject) are indexed like words, as *markers*:
engines are good at intersecting posting lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from heapq import nlargest
from math import log
from typing import Final, NamedTuple

from msgspec import UNSET

from ..model import MemoryDoc, MemoryFilter, sources_of

LEADING_DOCS: Final = 5_000
"""About how many candidates the leading words produce."""
MAX_TERMS: Final = 48
"""How many words of a query produce candidates. The others only count in the ranking."""


SHORT_TERMS: Final = 25
"""Texts up to this many terms say one thing: their length tells nothing."""
LONG_TEXT_CANDIDATES: Final = 3
"""How many times as many candidates are ranked where texts are longer than that on average."""
PREFILTER_DOCS: Final = 1_500
"""How many candidates are weighed by their length before the best of them are read."""


LENGTH_OFFSET: Final = 4.0
"""How little the length of a candidate counts: at this many times the average, it halves it."""


class SearchPlan(NamedTuple):
    """A plan: `leading` terms produce candidates, in which the `following` terms are looked up."""

    worth: Mapping[str, int]
    """Of each term, in integer millionths: sums are the same in any order and on any engine."""
    leading: list[str]
    following: list[str]


def rarity(total: int, count: int) -> float:
    """Return the inverse document frequency: the fewer memories have a term, the higher."""
    count = min(count, total)
    return log(1 + (total - count + 0.5) / (count + 0.5))


def plan_search(
    terms: Mapping[str, float],
    frequency: Mapping[str, int],
    total: int,
    most: int,
    work: int,
    enough: int,
) -> SearchPlan:
    """Plan a search that finds candidates by the rarest terms first.

    Terms lead until they produce more than `work` candidates, or at least until `enough` are found.
    No term produces more than `most`, because only that many memories match the filter.
    """
    known = {term: weight for term, weight in terms.items() if frequency.get(term)}
    worth = {
        term: max(round(1e6 * weight * rarity(total, frequency[term])), 1)
        for term, weight in known.items()
    }
    if len(worth) > MAX_TERMS:
        worth = dict(nlargest(MAX_TERMS, worth.items(), key=lambda one: (one[1], one[0])))
    leading: list[str] = []
    following: list[str] = []
    produced = 0
    for term in sorted(worth, key=lambda term: (frequency[term], term)):
        before, produced = produced, produced + min(frequency[term], most)
        (leading if produced <= work or before < enough else following).append(term)
    return SearchPlan(worth, leading, following)


def passage_terms(doc: MemoryDoc) -> int:
    """Return how many terms the passages of a memory have on average, rounded up."""
    passages = doc.terms.count("\n") + 1
    return -(-(doc.terms.count(" ") + passages) // passages)


def has_long_texts(average: float) -> bool:
    """Whether words alone do not choose candidates: long texts have many words by chance."""
    return average > SHORT_TERMS


def length_resistance(saturation: float, length: float, terms: int, average: float) -> float:
    """Return BM25's `k1 * (1 - b + b * terms / average)`, for texts of any length.

    Short texts count as equally long: twenty words aren't twice as vague as ten.
    """
    relative = max(terms, SHORT_TERMS) / max(average, SHORT_TERMS)
    return saturation * (1 - length + length * relative)


def weigh_length(worth: float, terms: int, average: float) -> float:
    """Return the worth of a candidate's words, less if it is long and may have them by chance.

    A guess, as if a word's count grew with the length half as fast. Counts are known later.
    """
    return worth / (LENGTH_OFFSET + terms / average)


def doc_markers(doc: MemoryDoc) -> list[str]:
    """Return the markers of a memory. No word starts with a colon."""
    pairs = [("author", doc.author), *(("tag", tag) for tag in doc.tags)]
    pairs += [("source", source) for source in sources_of(doc)]
    pairs.append(_subject_pair(doc.subject))
    return [_marker(name, value) for name, value in pairs]


def required_markers(where: MemoryFilter) -> list[list[str]]:
    """Return the markers that a filter requires: one from each group."""
    pairs: list[tuple[str, tuple[str, ...]]] = [("tag", (tag,)) for tag in where.tags]
    if where.authors is not None:
        pairs.append(("author", where.authors))
    for name, value in (("source", where.source), ("subject", where.subject)):
        if value is not None:
            pairs.append((name, (value,)))
    groups = [[_marker(name, value) for value in values] for name, values in pairs]
    if where.visible_to is not UNSET:
        visible = dict.fromkeys((None, where.visible_to))
        groups.append([_marker(*_subject_pair(subject)) for subject in visible])
    return groups


def excluded_markers(where: MemoryFilter) -> list[str]:
    """Return the markers that a filter excludes."""
    return [_marker("author", author) for author in where.without]


def _subject_pair(subject: str | None) -> tuple[str, str]:
    return ("no subject", "") if subject is None else ("subject", subject)


@lru_cache(4096)
def _marker(name: str, value: str) -> str:
    return (
        ":" + blake2b(f"{name}:{value}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    )
