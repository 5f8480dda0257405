"""Plan the search for candidates, for all engines alike.

A query has common and rare words. The rare ones lead to candidates; the common ones are then looked
up for these candidates only. So a query costs about the same however many memories there are, and
no word of it is ignored. Filters (tags, source, author, subject) are indexed like words, as
*markers*: engines are good at intersecting posting lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from heapq import nlargest
from math import log
from typing import Final, NamedTuple

from ..model import MemoryDoc, MemoryFilter, sources_of

LEADING_DOCS: Final = 5_000
"""About how many candidates the leading words produce."""
MAX_TERMS: Final = 48
"""How many words of a query produce candidates. The others only count in the ranking."""


class SearchPlan(NamedTuple):
    """A plan: `leading` terms produce candidates, in which the `following` are looked up."""

    worth: Mapping[str, int]
    """In integer millionths: their sum is the same in any order and on any engine."""
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
    """Pick candidates by the rarest terms first, up to `work` of them or until `enough` are found.

    No term yields more than `most`: only that many memories match the filter.
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


def doc_markers(doc: MemoryDoc) -> list[str]:
    """Return the markers of a memory. No word starts with a colon."""
    pairs = [("author", doc.author), *(("tag", tag) for tag in doc.tags)]
    pairs += [("source", source) for source in sources_of(doc)]
    pairs += [] if doc.subject is None else [("subject", doc.subject)]
    return [_marker(name, value) for name, value in pairs]


def required_markers(where: MemoryFilter) -> list[list[str]]:
    """Return the markers that a filter requires: one of each group."""
    pairs: list[tuple[str, tuple[str, ...]]] = [("tag", (tag,)) for tag in where.tags]
    if where.authors is not None:
        pairs.append(("author", where.authors))
    for name, value in (("source", where.source), ("subject", where.subject)):
        if value is not None:
            pairs.append((name, (value,)))
    return [[_marker(name, value) for value in values] for name, values in pairs]


def excluded_markers(where: MemoryFilter) -> list[str]:
    """Return the markers that a filter excludes."""
    return [_marker("author", author) for author in where.without]


@lru_cache(4096)
def _marker(name: str, value: str) -> str:
    return (
        ":" + blake2b(f"{name}:{value}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    )
