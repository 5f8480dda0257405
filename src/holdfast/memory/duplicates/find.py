"""Find duplicates: does a new text say what a known memory already says?

Losing a fact is far worse than keeping a duplicate. So two texts are the same only if they have the
same words in the same order, after `normalize.py` has dropped what cannot change a meaning. Texts
that are *alike* (they differ by one typo, a "the", or the capitals of a name) mostly say the same,
but only a dictionary could tell, so the memory keeps both wordings. The fold of the stream depends
on it, so everything here is pure and deterministic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, Literal

import msgspec

from ..text.characters import normalize_for_reading
from .normalize import Mark, Token, tokenize
from .typos import has_swapped_letters, has_swapped_space, is_typo

Verdict = Literal["same", "alike"]

_MIN_ALIKE_WORDS: Final = 4
"""In a shorter text, one different word may be a different fact."""
_MAX_ALIKE_CHARS: Final = 400
"""Longer texts are the same or not: a memory with several wordings should be short."""
_LONG_WORD_CHARS: Final = 7
"""In a shorter word only swapped letters count as a typo."""
_MIN_NAME_LETTERS: Final = 3
_WORD_GROUPS: Final = 2
_DROP_THE: Final = str.maketrans("", "", "the")
_CACHE_TEXTS: Final = 4096
"""More than a page of events."""
_CACHE_MAX_CHARS: Final = 1_000
_MAX_WORDS_CHARS: Final = 20_000
"""A longer text is a document: only an identical one is a duplicate."""


class Signature(msgspec.Struct, frozen=True):
    """A text prepared for `compare_texts`."""

    exact: str
    """Digest of the text with single spaces, compared if there are no words or too many."""
    keys: tuple[str, ...]
    """Any two texts that `compare_texts` matches share at least one key."""
    words: tuple[str, ...]
    """Must be equal for two texts to be the same."""
    marks: tuple[Mark, ...]
    """How each word is written."""
    loose: tuple[Token, ...]
    """Compared to see whether texts are alike. Empty if nothing can be like this text."""


def compute_signature(text: str) -> Signature:
    """Compute the signature of a text, in linear time. Never raises. Short texts are cached."""
    build = _build_signature_cached if len(text) <= _CACHE_MAX_CHARS else _build_signature
    return build(text)


def _build_signature(text: str) -> Signature:
    exact = _digest(normalize_for_reading(text).split())
    tokens = tokenize(text) if len(text) <= _MAX_WORDS_CHARS else []
    if not tokens:
        return Signature(exact, (exact,), (), (), ())
    words, _, marks = zip(*tokens, strict=True)
    loose = tuple(token for token in tokens if token.loose)
    real = (token for token in loose if any(map(str.isalnum, token.loose)))
    if (
        len(list(islice(real, _MIN_ALIKE_WORDS))) < _MIN_ALIKE_WORDS
        or sum(map(len, words)) > _MAX_ALIKE_CHARS
    ):
        return Signature(exact, (_digest(words),), words, marks, ())
    return Signature(exact, tuple(_lookup_keys(words, loose)), words, marks, loose)


_build_signature_cached: Final = lru_cache(_CACHE_TEXTS)(_build_signature)


def compare_texts(new: Signature, old: Signature) -> Verdict | None:
    """Return "same" if both state one fact, "alike" if they look like it, None if they don't."""
    if not new.words or not old.words:
        return "same" if new.exact == old.exact else None
    if new.words == old.words and all(map(_is_same_word, new.marks, old.marks)):
        return "same"
    if not new.loose or not old.loose:
        return None
    alike = _are_alike(new.loose, old.loose) or _is_misplaced_space(new.words, old.words)
    return "alike" if alike else None


def _is_same_word(one: Mark, other: Mark) -> bool:
    """Whether a word is the same in both texts. "china" is not "China" where both use capitals."""
    return one == other or {one, other} != {"name", "lower"}


def _are_alike(new: Sequence[Token], old: Sequence[Token]) -> bool:
    if len(new) != len(old):
        return False
    pairs = [pair for pair in zip(new, old, strict=True) if pair[0].key != pair[1].key]
    cases = {token.mark for tokens in (new, old) for token in tokens}
    typos = [pair for pair in pairs if pair[0].loose != pair[1].loose]
    if any(one.loose == two.loose and not _is_recased(one, two, cases) for one, two in pairs):
        return False
    return not typos or (len(typos) == 1 and _is_typo(*typos[0]))


def _is_misplaced_space(new: Sequence[str], old: Sequence[str]) -> bool:
    """Whether a space is misplaced between two words. No letter is changed, so names count too."""
    at = next(
        (at for at, (one, other) in enumerate(zip(new, old, strict=False)) if one != other), 0
    )
    return new[at + 2 :] == old[at + 2 :] and has_swapped_space(
        " ".join(new[at : at + 2]), " ".join(old[at : at + 2])
    )


def _is_recased(one: Token, other: Token, cases: Collection[Mark]) -> bool:
    """Whether only the case differs, and not on purpose.

    Capitals of what is not an ordinary word count ("-o" and "-O"), unless one of the texts is all
    in capitals, or has none and this is a longer name ("node.js").
    """
    if "fixed" not in (one.mark, other.mark) or "loud" in cases:
        return True
    return "quiet" in cases and sum(map(str.isalpha, one.loose)) >= _MIN_NAME_LETTERS


def _is_typo(one: Token, other: Token) -> bool:
    """Whether one word is the other with a typo.

    A word without a capital, in a text that uses capitals, is not a name, so any typo counts. Where
    capitals tell nothing, only two swapped letters count: hardly any two names differ like that.
    """
    marks = {one.mark, other.mark}
    if not marks.isdisjoint(("name", "fixed")) or marks == {"first"}:
        return False
    check = is_typo if "lower" in marks else has_swapped_letters
    return check(one.loose, other.loose)


def _lookup_keys(words: Sequence[str], tokens: Sequence[Token]) -> list[str]:
    """Return the lookup keys of a text: texts that are alike share at least one.

    One is a digest of all letters, sorted, without those of "the": swaps do not change it. Two more
    each leave out half of the long words, so a typo in a long word leaves one of them unchanged.
    They contain all other words, numbers in particular, so facts of one form with different numbers
    share no key.
    """
    loose = [token.loose for token in tokens]
    long = [
        at
        for at, word in enumerate(loose)
        if len(word) >= _LONG_WORD_CHARS and word.isascii() and word.isalpha()
    ]
    keys = [_digest(sorted("".join(words).lower().translate(_DROP_THE)))]
    for group in range(_WORD_GROUPS):
        kept = loose.copy()
        for at in long[group::_WORD_GROUPS]:
            kept[at] = ""
        keys.append(_digest([str(group), *kept]))
    return keys


def _digest(words: Iterable[str]) -> str:
    text = "\0".join(words).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=6).hexdigest()
