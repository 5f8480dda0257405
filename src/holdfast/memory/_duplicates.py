"""Does a new text say what a known memory says already?

A fact that is lost is far worse than a copy too many, so texts are the same only if they have the same words in the
same order, apart from plural, tense, articles, case, punctuation and fillers at the edges; apart from a phrase moved to
the front ("In May, X" is "X in May"; "blue is her favourite colour" the other way round); or apart from one slip of the
finger. The fold of the stream decides by this, so all of it is pure and gives the same answer everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, Literal

import msgspec

from ._characters import visible
from ._fillers import LIMITING
from ._reading import Segment, Token, read, significant
from ._stemming import CACHED
from ._typos import letters_swapped, typo
from ._words import listed

Verdict = Literal["same", "within", "beyond"]

_SHARE: Final = 0.6
"""So much of the longer text must be the shorter one."""
_EXTRA: Final = 4
"""And at most so many words may come on top."""
_CORE: Final = 3
"""A text of fewer words with a meaning is not looked for in others."""
_TYPO: Final = 4
"""To each slip belong so many words at least: with fewer it could be a different fact."""
_OF_ENDINGS: Final = frozenset("sedingy")
_SHORT: Final = 4
_GROUPS: Final = 3
_LONGEST: Final = 20_000
"""A text of more characters is a document: it is known only if it is the same to the letter."""

# A phrase that begins with one of these may stand before or after its sentence.
_MOVABLE: Final = frozenset(
    listed(
        "in on at since for by after before when if because during from until till with without as to although though while "
        "unless once under over despite within"
    )
)
_DEFINITE: Final = frozenset(listed("the my your his her our their 's"))
_CLAUSES: Final = frozenset(
    listed(
        "and or but if when because while although though unless since until till after before once so where who which ?"
    )
)
_SMALL: Final = frozenset(
    listed(
        "be was have had do did and or but i me my you your he him his she her we us our they them their it its this these those "
        "there ?"
    )
).union(LIMITING)


class Signature(msgspec.Struct, frozen=True):
    """What one text says, for `same`."""

    exact: str
    """A digest of the text in lower case with single spaces. Counts where there are no words, or too many."""
    keys: tuple[str, ...]
    """Two texts that `same` accepts have one of these in common."""
    tokens: tuple[Token, ...]
    """The words in the order that counts."""
    cores: tuple[tuple[Token, ...], ...]
    """The shorter texts that this one contains and says a little more than."""


def signature(text: str) -> Signature:
    """What a text says. Linear in its length; never raises."""
    exact = _digest(visible(text).casefold().split())
    segments = read(text) if len(text) <= _LONGEST else []
    tokens = _ordered(segments)
    if not tokens:
        return Signature(exact, (exact,), (), ())
    cores = [_ordered(core) for core in _cores(segments)]
    keys = dict.fromkeys(chain(_keys(tokens), (_keys(core)[0] for core in cores)))
    return Signature(exact, tuple(keys), tuple(tokens), tuple(map(tuple, cores)))


def same(new: Signature, old: Signature) -> Verdict | None:
    """Whether the new text is the old one ("same"), is part of it ("within"), or says all of it and a little more ("beyond").

    None: they are two facts. After "within" nothing new was said; after "beyond" the longer text should take the old
    one's place.
    """
    if not new.tokens or not old.tokens:
        return "same" if new.exact == old.exact else None
    if _equal(new.tokens, old.tokens, slips=1):
        return "same"
    if any(_equal(new.tokens, core, slips=0) for core in old.cores):
        return "within"
    return "beyond" if any(_equal(core, old.tokens, slips=0) for core in new.cores) else None


# -- comparing -------------------------------------------------------------------------------------------------------------


def _equal(new: Sequence[Token], old: Sequence[Token], *, slips: int) -> bool:
    """Word for word the same, apart from letters swapped and at most so many other slips."""
    if len(new) != len(old):
        return False
    swapped = other = 0
    for one, two in zip(new, old, strict=True):
        if one.word == two.word:
            continue
        if one.key == two.key:
            if _other_name(one, two):
                return False
        elif not _slip(one, two):
            return False
        elif _bones(one.key) == _bones(two.key):
            swapped += 1
        else:
            other += 1
    return swapped + other == 0 or (len(new) >= _TYPO + 2 * (swapped + other - 1) and other <= slips)


def _other_name(one: Token, other: Token) -> bool:
    """A name has no plural: Williams is not William. At the start of a sentence any word may be one."""
    return "name" in (one.mark, other.mark) or one.mark == other.mark == "first"


def _slip(one: Token, other: Token) -> bool:
    """A word that is written without a capital where capitals are used is no name, so any slip may be in it.

    Where capitals tell nothing, only two letters swapped are taken for one: hardly two names differ like that.
    """
    marks = {one.mark, other.mark}
    if "name" in marks or marks == {"first"} or _fixed(one.key) or _fixed(other.key):
        return False
    return typo(one.word, other.word) if "lower" in marks else letters_swapped(one.word, other.word)


@lru_cache(CACHED)
def _bones(key: str) -> str:
    """The first letter and the rest in the order of the alphabet, without letters that make endings, so that the bones of a
    word and of the same word with two letters swapped are equal. Not a word that cannot be misspelled: that stays."""
    return key if _fixed(key) else key[0] + "".join(sorted(set(key[1:]) - _OF_ENDINGS))


@lru_cache(CACHED)
def _fixed(key: str) -> bool:
    """Whether another spelling is another word."""
    return len(key) < _SHORT or key in _SMALL or any(map(str.isnumeric, key))


# -- the order that counts -------------------------------------------------------------------------------------------------


def _ordered(segments: Sequence[Segment]) -> list[Token]:
    """All words that count, with a phrase in front moved behind its sentence and "X is Y" in one of its two orders."""
    ordered: list[Token] = []
    moved: list[Token] = []
    for place, segment in enumerate(segments):
        starts = place == 0 or segment.before in (".", ":")
        ends = place == len(segments) - 1 or segment.after == "."
        tokens = significant(segment)
        if starts and segment.after == "," and not ends and tokens and tokens[0].word in _MOVABLE:
            moved = tokens
            continue
        ordered += _turned(tokens, segment) if starts and ends else tokens
        if ends:
            ordered += moved
            moved = []
    return ordered


def _turned(tokens: list[Token], segment: Segment) -> list[Token]:
    """A sentence of "X is Y" with the smaller side in front, if it says which one: "the capital is Rome".

    Not "dogs are animals": that is no different from "animals are dogs" in its words, but in what it says.
    """
    at = [place for place, token in enumerate(tokens) if token.key == "be"]
    if len(at) != 1 or tokens[at[0]].word != "is":
        return tokens
    words = {token.word for token in segment.tokens}
    definite = not _DEFINITE.isdisjoint(words) or any(token.mark == "digit" for token in tokens)
    left, right = tokens[: at[0]], tokens[at[0] + 1 :]
    if not definite or not _CLAUSES.isdisjoint(words) or not left or not right:
        return tokens
    left, right = sorted((left, right), key=lambda side: [token.key for token in side])
    return [*left, tokens[at[0]], *right]


# -- a fact with a little more around it ------------------------------------------------------------------------------------


def _cores(segments: Sequence[Segment]) -> list[Sequence[Segment]]:
    """The text without its first piece, without its last, and without both, where what goes limits nothing.

    Only what punctuation sets apart may go: someone allergic to pine nuts is not someone allergic to nuts.
    """
    ways = [(1, 0), (0, 1), (1, 1)]
    return [segments[a : len(segments) - b] for a, b in ways if len(segments) > a + b and _harmless(segments, a, b)]


def _harmless(segments: Sequence[Segment], front: int, back: int) -> bool:
    if (back and segments[-1].before == ":") or (front and _label(segments[0])):
        return False
    core = segments[front : len(segments) - back]
    extra = list(
        chain.from_iterable(segment.tokens for segment in (*segments[:front], *segments[len(segments) - back :]))
    )
    if not all(token.mark in ("lower", "quiet", "loud", "first") and _harmless_word(token.word) for token in extra):
        return False
    inside, outside = _meanings(chain.from_iterable(map(significant, core))), _meanings(extra)
    return inside >= _CORE and outside <= _EXTRA and inside >= _SHARE * (inside + outside)


def _label(segment: Segment) -> bool:
    """ "Bob: I love pottery" has a speaker, "Staging: deploys are free" a place."""
    return len(segment.tokens) == 1 and (segment.after == ":" or segment.tokens[0].mark == "first")


def _harmless_word(word: str) -> bool:
    return word not in LIMITING and word.isascii() and word.isalpha()


def _meanings(tokens: Iterable[Token]) -> int:
    return sum(1 for token in tokens if token.key not in _SMALL)


# -- keys ------------------------------------------------------------------------------------------------------------------


def _keys(tokens: Sequence[Token]) -> list[str]:
    """One digest of all words, or where a slip is allowed three, each of which leaves a third of the words out.

    Swapped letters are not seen by any of them, and another slip, of which there is one at most, not by the one that
    leaves its word out. Words that cannot be misspelled, numbers first of all, are in each: then facts of one form that
    differ in a number do not meet.
    """
    if len(tokens) < _TYPO:
        return [_digest(token.key for token in tokens)]
    parts: list[list[str]] = [[str(group)] for group in range(_GROUPS)]
    count = 0
    for token in tokens:
        left_out = -1 if _fixed(token.key) else count % _GROUPS
        count += left_out >= 0
        bones = _bones(token.key)
        for group, part in enumerate(parts):
            if group != left_out:
                part.append(bones)
    return [_digest(part) for part in parts]


def _digest(words: Iterable[str]) -> str:
    text = "\0".join(words).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=6).hexdigest()
