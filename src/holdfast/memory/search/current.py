"""Prefer what is current: the newest of several memories that state the same thing.

Two memories conflict if they give one attribute of one subject two values: "Ann works in Ghent" and
"Ann works in Rome", "the limit is 500" and "the limit is 800". Only forms that can have one value
are compared: people like many things, but work in one place. So a conflict is worth a look, and it
is the user who resolves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nlargest
from itertools import combinations
from typing import Final

from ..model import MemoryDoc
from ..text.characters import normalize_for_reading
from ..text.words import split_words
from .candidates import SHORT_TERMS

CLOSE_FIT: Final = 0.7
"""How well a newer memory must fit, relative to one that it contradicts, to come before it."""
JUST_BELOW: Final = 0.98
RECENT_DAYS: Final = 60.0
NEWEST_SHARE: Final = 0.15
"""How much of its fit a very old memory loses if the newest one is asked for."""
MIN_SHARED: Final = 3
"""Two texts are compared if they share one in this many terms of the shorter one."""
MAX_COMPARED: Final = 12
"""How many of the best memories are compared with each other."""

_WORD: Final = re.compile(r"[^\W_]+(?:['.:,/@-][^\W_]+)*")
_DROPPED: Final = frozenset(
    split_words(
        "a an the now currently again still already today recently new just has have been as of"
    )
)
_BE: Final = frozenset(split_words("is are am"))
_NOT: Final = frozenset(split_words("not never no don't doesn't isn't aren't won't can't cannot"))
# Verbs of one value, each with the others that say the same.
_SINGLE: Final = {
    form: verb
    for verb, forms in {
        "live": "living moved resides relocated",
        "call": "called named renamed",
        "work": "works working joined",
        "cost": "costs charges",
        "base": "based located headquartered",
        "close": "closes",
        "marry": "married",
        "report": "reports",
        "drive": "drives",
        "weigh": "weighs",
        "expire": "expires due",
        "run on": "runs hosted deployed",
    }.items()
    for form in (*forms.split(), f"{verb}s")
}
_LINKING: Final = frozenset(split_words("in at to for on with by from"))
_ROLES: Final = frozenset(
    split_words("signs approves leads heads manages owns chairs runs coordinates supervises")
)
_TITLE: Final = re.compile(r"\b(?:is|are) (?:now )?(?:the|our|my|their|his|her) ", re.IGNORECASE)
_MAX_NAME_WORDS: Final = 3


def conflict_keys(text: str) -> dict[str, str]:
    """Return what a text states, each as an attribute and its value. Empty for a long text."""
    return dict(_conflict_keys(text)) if len(text) <= 300 else {}


@lru_cache(4096)
def _conflict_keys(text: str) -> tuple[tuple[str, str], ...]:
    words = _WORD.findall(normalize_for_reading(text).replace("'s ", " 's "))
    lower = [word.casefold() for word in words]
    has_title = _TITLE.search(text) is not None
    kept = [
        (word, plain)
        for word, plain in zip(words, lower, strict=True)
        if plain not in _DROPPED and plain not in _NOT
    ]
    plain = ["be" if one in _BE else one for _, one in kept]
    found: dict[str, str] = {}
    if len(plain) < 3:
        return ()
    if len(plain) != len([one for one in lower if one not in _DROPPED]):
        found["not " + " ".join(_stems(plain))] = "not"
    else:
        found["not " + " ".join(_stems(plain))] = ""
    digits = [one for one in plain if any(map(str.isdigit, one))]
    if digits:
        rest = ["#" if any(map(str.isdigit, one)) else one for one in plain]
        if len(rest) - rest.count("#") >= 2:
            found["number " + " ".join(rest)] = " ".join(digits)
    for at, one in enumerate(plain[:-1]):
        if at and one in _SINGLE:
            value = plain[at + 1 :]
            link = value[0] if value[0] in _LINKING else ""
            value = value[1:] if link else value
            if value:
                subject = [each for each in plain[:at] if each != "be"]
                found[f"{_SINGLE[one]} {' '.join(subject)}"] = " ".join(value)
        elif at and one == "be" and plain[at + 1] not in _SINGLE:
            found.update(_copula_keys(kept, plain, at, has_title))
        elif at == 1 and one in _ROLES and kept[0][0][:1].isupper():
            found[f"role {' '.join(plain[at:])}"] = plain[0]
    return tuple(found.items())


def _copula_keys(
    kept: Sequence[tuple[str, str]], plain: Sequence[str], at: int, has_title: bool
) -> Iterator[tuple[str, str]]:
    """Yield what "is" states, if it can have one value: a thing's name, or a name's title."""
    value = kept[at + 1 :]
    link = value[0][1] if value[0][1] in _LINKING else ""
    names = value[1:] if link else value
    if 0 < len(names) <= _MAX_NAME_WORDS and all(word[:1].isupper() for word, _ in names):
        yield f"be {' '.join(plain[:at])} {link}", " ".join(one for _, one in names)
    if has_title and all(word[:1].isupper() for word, _ in kept[:at]):
        yield f"title {' '.join(plain[at + 1 :])}", " ".join(plain[:at])


def _stems(words: Iterable[str]) -> Iterator[str]:
    return (word.rstrip("s") for word in words if word not in ("do", "does", "did", "will", "be"))


def in_conflict(one: MemoryDoc, other: MemoryDoc) -> bool:
    """Whether two memories give one attribute two values. Only for the same subject."""
    if one.subject != other.subject or one.number == other.number:
        return False
    mine, theirs = conflict_keys(one.text), conflict_keys(other.text)
    for key in mine.keys() & theirs.keys():
        ours, others = mine[key], theirs[key]
        if ours != others and (key.startswith("not ") or not _is_part(ours, others)):
            return True
    return False


def _is_part(one: str, other: str) -> bool:
    """Whether a value is the other with more detail: Rome, and Rome in Italy."""
    short, long = sorted((set(one.split()), set(other.split())), key=len)
    return short <= long


def find_conflicts(docs: Iterable[MemoryDoc]) -> list[tuple[MemoryDoc, MemoryDoc]]:
    """Return the pairs of memories in conflict, the newer one first in each."""
    by_key: dict[tuple[str | None, str], list[MemoryDoc]] = {}
    pairs: dict[tuple[int, int], tuple[MemoryDoc, MemoryDoc]] = {}
    for doc in docs:
        for key in conflict_keys(doc.text):
            known = by_key.setdefault((doc.subject, key), [])
            for other in known:
                if in_conflict(doc, other):
                    old, new = sorted((doc, other), key=_age)
                    pairs[new.number, old.number] = (new, old)
            known.append(doc)
    return list(pairs.values())


def prefer_newest(docs: Mapping[int, MemoryDoc], fits: Mapping[int, float]) -> dict[int, float]:
    """Return the fits for a question about the newest: an old memory loses a part of it."""
    fitting = [docs[number].at for number, fit in fits.items() if fit]
    newest = max(fitting, default=0.0)
    return {
        number: fit
        * (1 - NEWEST_SHARE * (1 - 0.5 ** ((newest - docs[number].at) / 86_400 / RECENT_DAYS)))
        for number, fit in fits.items()
    }


def compare_best(
    docs: Mapping[int, MemoryDoc], fits: Mapping[int, float]
) -> list[tuple[MemoryDoc, MemoryDoc]]:
    """Return the pairs in conflict among the memories that fit best, the newer one first."""
    best = nlargest(MAX_COMPARED, fits, key=lambda number: (fits[number], number))
    words = {
        number: set(docs[number].terms.split())
        for number in best
        if fits[number] and docs[number].terms.count(" ") < SHORT_TERMS
    }
    # Most have too little in common to be compared.
    rivals: dict[int, None] = {}
    for one, other in combinations(words, 2):
        shared = len(words[one] & words[other])
        if MIN_SHARED * shared >= min(len(words[one]), len(words[other])):
            rivals.update({one: None, other: None})
    return find_conflicts(docs[number] for number in rivals)


def prefer_newer(
    pairs: Iterable[tuple[MemoryDoc, MemoryDoc]],
    fits: Mapping[int, float],
    as_of: float | None = None,
) -> dict[int, float]:
    """Return the fits with each memory just below the newer one that contradicts it.

    With `as_of`, a memory that was said again after that time is as new as it was before.
    """

    def age(doc: MemoryDoc) -> tuple[float, int]:
        said_later = as_of is not None and doc.at > as_of
        return doc.first_at if said_later else doc.at, doc.number

    changed = dict(fits)
    ordered = [sorted(pair, key=age, reverse=True) for pair in pairs]
    for new, old in sorted(ordered, key=lambda pair: age(pair[0]), reverse=True):
        above, below = changed[new.number], changed[old.number]
        if CLOSE_FIT * below <= above and above * JUST_BELOW <= below:
            changed[new.number] = max(above, below)
            changed[old.number] = below * JUST_BELOW
    return changed


def list_rivals(pairs: Iterable[tuple[MemoryDoc, MemoryDoc]]) -> dict[str, tuple[str, ...]]:
    """Return the ids of the memories in conflict with each memory, by its id."""
    found: dict[str, tuple[str, ...]] = {}
    for new, old in pairs:
        found[new.id] = (*found.get(new.id, ()), old.id)
        found[old.id] = (*found.get(old.id, ()), new.id)
    return found


def _age(doc: MemoryDoc) -> tuple[float, int]:
    return doc.at, doc.number
