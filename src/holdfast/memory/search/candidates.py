"""Which memories are worth a closer look: what all engines share of finding candidates.

A question names common and rare words. The rare ones bring the candidates; how many of the common ones each candidate has is
found out for these alone. So a question costs about the same however many memories there are, and no word of it is
left out. What restricts a question (tags, source, author, subject) is in the lists of words too, as a *marker*: engines are good
at finding what is in two such lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from heapq import nlargest
from math import log
from typing import Final, NamedTuple

from ..model import MemoryDoc, MemoryFilter, sources_of

LEADING: Final = 5_000
"""About so many candidates are brought by the words that lead."""
MOST_TERMS: Final = 48
"""So many words of a question bring candidates, those that are worth most. The others count when candidates are weighed."""


class Plan(NamedTuple):
    """How to look for candidates. `leading` terms bring them; the `following` are looked for in what those have brought."""

    worth: Mapping[str, int]
    """In whole millionths: the sum of them is the same in every order, and so on every engine."""
    leading: list[str]
    following: list[str]


def rarity(total: int, count: int) -> float:
    """What a word is worth: the fewer memories have it, the more."""
    count = min(count, total)
    return log(1 + (total - count + 0.5) / (count + 0.5))


def planned(
    terms: Mapping[str, float],
    frequency: Mapping[str, int],
    total: int,
    most: int,
    work: int,
    enough: int,
) -> Plan:
    """The rarer terms lead, as long as they do not bring more than `work`; and more of them if that is not `enough`.

    None brings more than `most`, because no more have what all are to have.
    """
    known = {term: weight for term, weight in terms.items() if frequency.get(term)}
    worth = {
        term: max(round(1e6 * weight * rarity(total, frequency[term])), 1)
        for term, weight in known.items()
    }
    if len(worth) > MOST_TERMS:
        worth = dict(nlargest(MOST_TERMS, worth.items(), key=lambda one: (one[1], one[0])))
    leading: list[str] = []
    following: list[str] = []
    brought = 0
    for term in sorted(worth, key=lambda term: (frequency[term], term)):
        before, brought = brought, brought + min(frequency[term], most)
        (leading if brought <= work or before < enough else following).append(term)
    return Plan(worth, leading, following)


def markers_of(doc: MemoryDoc) -> list[str]:
    """What a memory can be restricted by. No word begins with a colon."""
    marked = [("author", doc.author), *(("tag", tag) for tag in doc.tags)]
    marked += [("source", source) for source in sources_of(doc)]
    marked += [] if doc.subject is None else [("subject", doc.subject)]
    return [_marker(name, value) for name, value in marked]


def markers_in(where: MemoryFilter) -> list[list[str]]:
    """What all memories have that are asked for: of each list one."""
    marked: list[tuple[str, tuple[str, ...]]] = [("tag", (tag,)) for tag in where.tags]
    if where.authors is not None:
        marked.append(("author", where.authors))
    for name, value in (("source", where.source), ("subject", where.subject)):
        if value is not None:
            marked.append((name, (value,)))
    return [[_marker(name, value) for value in values] for name, values in marked]


def markers_not_in(where: MemoryFilter) -> list[str]:
    """What none of them has."""
    return [_marker("author", author) for author in where.without]


@lru_cache(4096)
def _marker(name: str, value: str) -> str:
    return (
        ":" + blake2b(f"{name}:{value}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    )
