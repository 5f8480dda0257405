"""Does a new text say what a known memory says already?

A fact that is lost is far worse than a copy too many. So texts are the same only if they have the same words in the same order, apart
from what cannot change a meaning (`_reading`). Texts that are *alike*, apart by one slip of the finger, a "the", or the capitals of a
name, mostly say the same too, but nobody can be sure without knowing all words: a memory keeps both of them.
The fold of the stream decides by this, so all of it is pure and gives the same answer everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, Literal

import msgspec

from ..text.characters import visible
from .normalize import Mark, Token, read
from .typos import letters_swapped, space_swapped, typo

Verdict = Literal["same", "alike"]

_ALIKE_WORDS: Final = 4
"""With fewer words than this, one that is different could be a different fact."""
_ALIKE_LENGTH: Final = 400
"""Texts of more characters are the same or not: a memory that keeps several wordings should be short."""
_MISSPELLED: Final = 7
"""In a word of fewer letters two of them may be swapped, and no more."""
_NAME: Final = 3
_GROUPS: Final = 2
_THE: Final = str.maketrans("", "", "the")
_REMEMBERED: Final = 4096
"""More than a page of events has."""
_SHORT: Final = 1_000
_LONGEST: Final = 20_000
"""A text of more characters is a document: it is known only if it is the same to the letter."""


class Signature(msgspec.Struct, frozen=True):
    """What one text says, for `same`."""

    exact: str
    """A digest of the text with single spaces. Counts where there are no words, or too many."""
    keys: tuple[str, ...]
    """Two texts that `same` accepts have one of these in common."""
    words: tuple[str, ...]
    """What must be equal for two texts to be the same."""
    marks: tuple[Mark, ...]
    """How each of them is written."""
    loose: tuple[Token, ...]
    """What is compared to see whether they are alike. Empty if nothing is like this text."""


def signature(text: str) -> Signature:
    """What a text says. Linear in its length; never raises. Short ones are remembered: while events are folded, it is asked for often."""
    return _remembered(text) if len(text) <= _SHORT else _read(text)


def _read(text: str) -> Signature:
    exact = _digest(visible(text).split())
    tokens = read(text) if len(text) <= _LONGEST else []
    if not tokens:
        return Signature(exact, (exact,), (), (), ())
    words, _, marks = zip(*tokens, strict=True)
    loose = tuple(token for token in tokens if token.loose)
    real = (token for token in loose if any(map(str.isalnum, token.loose)))
    if len(list(islice(real, _ALIKE_WORDS))) < _ALIKE_WORDS or sum(map(len, words)) > _ALIKE_LENGTH:
        return Signature(exact, (_digest(words),), words, marks, ())
    return Signature(exact, tuple(_keys(words, loose)), words, marks, loose)


_remembered: Final = lru_cache(_REMEMBERED)(_read)


def same(new: Signature, old: Signature) -> Verdict | None:
    """Whether the new text is the old one ("same"), or looks like it but may be another fact ("alike"). None: they are two facts."""
    if not new.words or not old.words:
        return "same" if new.exact == old.exact else None
    if new.words == old.words and all(map(_one_word, new.marks, old.marks)):
        return "same"
    if not new.loose or not old.loose:
        return None
    return "alike" if _alike(new.loose, old.loose) or _torn(new.words, old.words) else None


def _one_word(one: Mark, other: Mark) -> bool:
    """Whether a word is the same in both texts: if both of them have names with capitals, "china" is not "China"."""
    return one == other or {one, other} != {"name", "lower"}


def _alike(new: Sequence[Token], old: Sequence[Token]) -> bool:
    if len(new) != len(old):
        return False
    pairs = [pair for pair in zip(new, old, strict=True) if pair[0].key != pair[1].key]
    cases = {token.mark for tokens in (new, old) for token in tokens}
    slips = [pair for pair in pairs if pair[0].loose != pair[1].loose]
    if any(one.loose == two.loose and not _recased(one, two, cases) for one, two in pairs):
        return False
    return not slips or (len(slips) == 1 and _slip(*slips[0]))


def _torn(new: Sequence[str], old: Sequence[str]) -> bool:
    """Whether two words beside each other are apart by a space in the wrong place. Every letter is where it was, so names may be too."""
    at = next(
        (at for at, (one, other) in enumerate(zip(new, old, strict=False)) if one != other), 0
    )
    return new[at + 2 :] == old[at + 2 :] and space_swapped(
        " ".join(new[at : at + 2]), " ".join(old[at : at + 2])
    )


def _recased(one: Token, other: Token, cases: Collection[Mark]) -> bool:
    """Whether only the case differs, and not on purpose.

    The capitals of what is no ordinary word count ("-o" and "-O"), unless one of the texts is in capitals altogether, or has none
    at all and this is a longer name ("node.js").
    """
    if "fixed" not in (one.mark, other.mark) or "loud" in cases:
        return True
    return "quiet" in cases and sum(map(str.isalpha, one.loose)) >= _NAME


def _slip(one: Token, other: Token) -> bool:
    """A word that is written without a capital where capitals are used is no name, so any slip may be in it.

    Where capitals tell nothing, only two letters swapped are taken for one: hardly two names differ like that.
    """
    marks = {one.mark, other.mark}
    if not marks.isdisjoint(("name", "fixed")) or marks == {"first"}:
        return False
    return (
        typo(one.loose, other.loose)
        if "lower" in marks
        else letters_swapped(one.loose, other.loose)
    )


def _keys(words: Sequence[str], tokens: Sequence[Token]) -> list[str]:
    """One digest of all letters, sorted, without those of "the": wherever two are swapped, it is the same. And two that each leave out
    half of the long words, so that another slip is not seen by one of them.

    All other words, numbers first of all, are in these: then facts of one form that differ in a number do not meet.
    """
    loose = [token.loose for token in tokens]
    long = [
        at
        for at, word in enumerate(loose)
        if len(word) >= _MISSPELLED and word.isascii() and word.isalpha()
    ]
    keys = [_digest(sorted("".join(words).lower().translate(_THE)))]
    for group in range(_GROUPS):
        kept = loose.copy()
        for at in long[group::_GROUPS]:
            kept[at] = ""
        keys.append(_digest([str(group), *kept]))
    return keys


def _digest(words: Iterable[str]) -> str:
    text = "\0".join(words).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=6).hexdigest()
