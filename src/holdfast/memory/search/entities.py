"""Names in memories: list them, find the memories that mention one, and follow them.

Nothing about names is stored, in the index or elsewhere: all is derived when it is asked for.

A name also answers two-hop questions. "What did the person who signs the orders say about Q3?"
matches "Ann signs the orders" in part. That memory names Ann, and the question doesn't. So a memory
that names Ann and has the words that the match lacks ("Q3") is probably the answer: the match lends
it score. Both together must have more of the query than any memory has alone, so that a question
with one answer is left as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import fsum
from typing import Final, NamedTuple

from ...backends import StreamKey
from ...backends.clock import to_datetime
from ..model import EntityInfo, MemoryDoc, MemoryFilter
from ..text.characters import KOREAN, UNSPACED, normalize_for_search, spell_out_umlauts
from ..text.names import Mention, NameKind, fold_name, needs_repeat, read_names, settle_names
from ..text.tokens import terms as terms_of
from .candidates import rarity
from .index import Matches, MemoryIndex

MAX_ABOUT: Final = 5_000
"""How many memories are read to find those that mention a name, the newest first."""
OPENING_WORTH: Final = 0.3
"""What a capital at the start of a sentence counts against a use of the word in lower case."""
ONLY_OPENINGS: Final = 3
"""A word that starts this many sentences and is never inside one is a label, like "Decision:"."""

_KINDS: Final[tuple[NameKind, ...]] = ("email", "code", "name", "quoted")
_UNCASED: Final = re.compile(f"[{UNSPACED}{KOREAN}]")


class _Entity:
    """A name: how it is spelled, how often, and what it looks like."""

    def __init__(self) -> None:
        self.spelled: Counter[str] = Counter()
        self.kinds: set[NameKind] = set()
        self.last, self.is_sure, self.is_inside = float("-inf"), False, False

    def add(self, mention: Mention, at: float) -> None:
        self.spelled[mention.name] += 1
        self.kinds.add(mention.kind)
        self.last = max(self.last, at)
        self.is_sure |= not needs_repeat(mention)
        self.is_inside |= not mention.opens or " " in mention.name or mention.is_sure


def list_entities(docs: Iterable[MemoryDoc], k: int) -> list[EntityInfo]:
    """Return the `k` names that most memories mention."""
    read: list[tuple[tuple[Mention, ...], float]] = []
    lower: Counter[str] = Counter()
    capital: dict[str, float] = {}
    for doc in docs:
        names = read_names("\n".join((doc.text, *doc.variants)))
        lower.update(names.ordinary)
        for one in names.mentions:
            first = one.name.split(" ")[0].casefold()
            capital[first] = capital.get(first, 0.0) + (OPENING_WORTH if one.opens else 1.0)
        read.append((names.mentions, doc.at))
    ordinary = {word for word, count in lower.items() if count > capital.get(word, 0.0)}
    found: dict[str, _Entity] = {}
    for mentions, at in read:
        for mention in settle_names(mentions, ordinary):
            found.setdefault(fold_name(mention.name), _Entity()).add(mention, at)
    infos = [
        EntityInfo(
            name=max(one.spelled, key=lambda name: (one.spelled[name], name)),
            kind=next(kind for kind in _KINDS if kind in one.kinds),
            memories=count,
            last_at=to_datetime(one.last),
        )
        for one in found.values()
        if ((count := one.spelled.total()) > 1 or one.is_sure)
        and (count < ONLY_OPENINGS or one.is_inside)
    ]
    infos.sort(key=lambda one: (-one.memories, -one.last_at.timestamp(), one.name))
    return infos[:k]


def find_about(
    index: MemoryIndex, space: StreamKey, name: str, where: MemoryFilter, k: int
) -> list[MemoryDoc]:
    """Return the `k` newest memories that mention a name."""
    asked = dict.fromkeys(terms_of(name), 1.0)
    candidates = index.search(space, asked, where, max(MAX_ABOUT, k)).docs
    found = sorted(filter_about(candidates, name), key=lambda doc: (-doc.at, -doc.number))
    return found[:k]


def filter_about(docs: Iterable[MemoryDoc], name: str) -> list[MemoryDoc]:
    """Return the memories that mention a name.

    "Apple" isn't mentioned by a memory about an apple, but by those in lower case if most memories
    write it with a capital, or none does.
    """
    pattern, has_case = _compile_name(name), any(map(str.isupper, name))
    as_written: list[MemoryDoc] = []
    otherwise: list[MemoryDoc] = []
    for doc in docs:
        found = [match for text in (doc.text, *doc.variants) for match in _find_all(pattern, text)]
        if found:
            is_lower = has_case and all(match.islower() for match in found)
            (otherwise if is_lower else as_written).append(doc)
    if as_written and len(otherwise) > len(as_written) and " " not in name.strip():
        return as_written
    return as_written + otherwise


def mentions_name(doc: MemoryDoc, name: str) -> bool:
    """Whether a memory has a name in its text, in the spelling of a name."""
    pattern = _compile_name(name)
    cased = any(map(str.isupper, name))
    return any(
        not cased or not match.islower()
        for text in (doc.text, *doc.variants)
        for match in _find_all(pattern, text)
    )


def _find_all(pattern: re.Pattern[str], text: str) -> Sequence[str]:
    found = [match[0] for match in pattern.finditer(normalize_for_search(text))]
    if not found and (written := spell_out_umlauts(text)):
        found = [match[0] for match in pattern.finditer(normalize_for_search(written))]
    return found


@lru_cache(512)
def _compile_name(name: str) -> re.Pattern[str]:
    """Return the pattern of a name as whole words, with or without "s" at the end.

    Scripts without spaces have no whole words, and others attach particles: there, a name may be a
    part of a word.
    """
    plain = normalize_for_search(name).strip()
    words = r"[\s_-]+".join(re.escape(word) for word in re.split(r"[\s_-]+", plain) if word)
    if _UNCASED.search(plain) or not any(map(str.isalpha, plain)):
        is_number = plain.isdigit()
        return re.compile(rf"(?<!\d){words}(?!\d)" if is_number else words, re.IGNORECASE)
    if plain.lower() == plain.upper():  # Arabic, Hebrew, Hindi: particles before the word
        return re.compile(rf"(?<!\w)\w{{0,2}}{words}(?!\w)")
    ending = r"(?:'?s|en|n|[аяуюеоыиёмй]{1,2})?" if plain[-1].isalpha() and plain[-2:-1] else ""
    return re.compile(rf"(?<![\w@]){words}{ending if len(plain) > 2 else ''}(?!\w)", re.IGNORECASE)


MAX_MATCHES: Final = 8
"""How many of the best matches can lend score by a name."""
MAX_NAMES: Final = 6
"""How many names are looked up."""
MIN_TERMS: Final = 3
"""A shorter question doesn't describe one thing and ask about another."""
MIN_MATCH, MIN_REST = 0.2, 0.08
"""The minimum share of the query that a match has, and that the other memory adds to it."""
CLOSE_MATCH: Final = 0.7
"""How well a match must fit, relative to the best one."""
MAX_COMMON, MANY_MEMORIES = 0.02, 12
"""A name links nothing if a larger share of the memories has its words, and more than that many."""
MAX_LINKED_CHARS: Final = 400
"""Longer texts name many things, of which few have to do with each other."""
FOUND_BY_NAME: Final = 40
"""How many memories with the names are read, beside those that were found by the query."""


class NameLink(NamedTuple):
    """A name that a match has and the query does not, with what the match lacks of the query."""

    name: str
    match: MemoryDoc
    rest: frozenset[str]


class LinkedQuery:
    """A query with the worth of its terms, for links by names."""

    def __init__(self, terms: Mapping[str, float], found: Matches) -> None:
        self._terms, self._total = terms, found.total
        worth = {
            term: weight * rarity(found.total, found.frequency.get(term, 0))
            for term, weight in terms.items()
            if found.frequency.get(term)
        }
        whole = sum(worth.values()) or 1.0
        self._share = {term: value / whole for term, value in worth.items()}

    def find_links(
        self, docs: Mapping[int, MemoryDoc], fits: Mapping[int, float]
    ) -> list[NameLink]:
        """Return the names that lead from the best matches to other memories."""
        if len(self._share) < MIN_TERMS:
            return []
        top = max(fits.values(), default=0.0)
        best = sorted(fits, key=lambda number: (-fits[number], -number))[:MAX_MATCHES]
        best = [number for number in best if fits[number] > 0 and fits[number] >= CLOSE_MATCH * top]
        if not best:
            return []
        links: list[NameLink] = []
        for number in best:
            doc = docs[number]
            if len(doc.text) > MAX_LINKED_CHARS:
                continue
            rest = frozenset(self._share.keys() - set(doc.terms.split()))
            if self._sum(rest) < MIN_REST or 1 - self._sum(rest) < MIN_MATCH:
                continue
            for mention in settle_names(*read_names(doc.text)):
                if self._terms.keys().isdisjoint(terms_of(mention.name)):
                    links.append(NameLink(mention.name, doc, rest))
        names = dict.fromkeys(fold_name(link.name) for link in links)
        kept = set(list(names)[:MAX_NAMES])
        return [link for link in links if fold_name(link.name) in kept]

    def find_docs(
        self, index: MemoryIndex, space: StreamKey, links: list[NameLink], where: MemoryFilter
    ) -> tuple[list[MemoryDoc], set[str]]:
        """Return memories with the names, and the names that too many memories have."""
        by_name = {link.name: terms_of(link.name) for link in links}
        asked = {term: 1.0 for found in by_name.values() for term in found}
        found = index.search(space, asked, where, FOUND_BY_NAME)
        limit = max(MAX_COMMON * found.total, MANY_MEMORIES)
        short = [doc for doc in found.docs if len(doc.text) <= MAX_LINKED_CHARS]
        common = {
            name
            for name, terms in by_name.items()
            if min((found.frequency.get(term, 0) for term in terms), default=0) > limit
            or _is_ordinary(name, short)
        }
        return short, common

    def lend(
        self,
        links: list[NameLink],
        common: set[str],
        docs: Mapping[int, MemoryDoc],
        fits: Mapping[int, float],
        weight: float,
    ) -> dict[int, float]:
        """Return what each memory gains from the matches that share a name with it."""
        gains: dict[int, float] = {}
        known = {
            number: self._share.keys() & set(doc.terms.split())
            for number, doc in docs.items()
            if len(doc.text) <= MAX_LINKED_CHARS
        }
        alone = max(map(self._sum, known.values()), default=0.0)
        for link in links:
            if link.name in common:
                continue
            whole = 1 - self._sum(link.rest)
            for number, terms in known.items():
                if number == link.match.number:
                    continue
                added = self._sum(link.rest & terms)
                gap = fits[link.match.number] - fits[number]
                if added < MIN_REST or whole + added <= alone or gap <= 0:
                    continue
                if mentions_name(docs[number], link.name):
                    gains[number] = max(gains.get(number, 0.0), weight * gap)
        return gains

    def _sum(self, terms: frozenset[str] | set[str]) -> float:
        return fsum(self._share[term] for term in terms)


def _is_ordinary(name: str, docs: list[MemoryDoc]) -> bool:
    """Whether a word with a capital is mostly written without one."""
    if " " in name or name.lower() == name:
        return False
    lower = sum(name.lower() in doc.text for doc in docs)
    return lower > sum(name in doc.text for doc in docs)


def explain_link(why: Mapping[str, float], gain: float) -> dict[str, float]:
    """Return the parts of a score with what a shared name has added as one of them."""
    if not gain:
        return dict(why)
    shown = {**why, "words": round(why.get("words", 0.0) - gain, 4), "names": round(gain, 4)}
    return {name: value for name, value in shown.items() if value}
