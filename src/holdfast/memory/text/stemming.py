"""Reduce English words to stems, so that "the plans she made" finds "planning" and "make".

`porter_stem` follows M. F. Porter, "An algorithm for suffix stripping" (1980), with the two small
changes he published later. `stem` adds irregular forms, and keeps words apart that the rules would
merge although they mean different things. `strip_inflection` undoes plural and tense only: two
texts that differ in more may well be two facts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from .irregular import APART, BRITISH, IRREGULAR

MAX_WORD_CHARS: Final = 64
CACHE_WORDS: Final = 1 << 15


def _parse_rules(table: str) -> dict[str, list[tuple[str, str]]]:
    """Parse "ending:replacement ..." into rules by the last two letters, longest ending first.

    Only the longest ending that matches counts, whether its condition holds or not.
    """
    rules: dict[str, list[tuple[str, str]]] = {}
    for pair in sorted(table.split(), key=lambda pair: -pair.index(":")):
        ending, _, replacement = pair.partition(":")
        rules.setdefault(ending[-2:], []).append((ending, replacement))
    return rules


_DOUBLE_SUFFIXES: Final = _parse_rules(
    "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e "
    "ousli:ous ization:ize ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous "
    "aliti:al iviti:ive biliti:ble logi:log"
)
_DERIVED_SUFFIXES: Final = _parse_rules("icate:ic ative: alize:al iciti:ic ical:ic ful: ness:")
_BARE_SUFFIXES: Final = _parse_rules(
    "al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ion: ou: ism: ate: iti: ous: ive: "
    "ize:"
)


@lru_cache(CACHE_WORDS)
def stem(word: str) -> str:
    """Return the stem of a lower-case ASCII word. It need not be a word itself."""
    word = _to_american(IRREGULAR.get(word, word))
    if len(word) < 3 or len(word) > MAX_WORD_CHARS:
        return word
    singular = _strip_plural(word)
    base = _strip_tense(singular)
    return APART.get(word) or APART.get(singular) or APART.get(base) or _strip_suffixes(base)


@lru_cache(CACHE_WORDS)
def strip_inflection(word: str) -> str:
    """Strip plural, tense and person: "worked" and "works" are one, "worker" is another."""
    word = _to_american(IRREGULAR.get(word, word))
    if len(word) < 3 or len(word) > MAX_WORD_CHARS:
        return word
    return _strip_final_e(_y_to_i(_strip_tense(_strip_plural(word))))


def porter_stem(word: str) -> str:
    """Return the stem by the original algorithm, without exceptions."""
    return (
        word
        if len(word) < 3 or len(word) > MAX_WORD_CHARS
        else _strip_suffixes(_strip_tense(_strip_plural(word)))
    )


def _to_american(word: str) -> str:
    """Rewrite "colour" as "color", "organised" as "organized", for the words in the table."""
    for ending in ("our", "is"):
        end = word.find(ending, 1) + len(ending)
        # "organise" and "organisation", but not "organism" and "finalist"
        if (new := BRITISH.get(word[:end])) and (
            ending == "our" or word[end : end + 1] in ("a", "e", "i")
        ):
            return new + word[end:]
    return word


# -- the steps of the algorithm -------------------------------------------------------------------


def _letter_pattern(word: str) -> str:
    """Return the word as consonants and vowels: "toy" is cvc. A y after a consonant is a vowel."""
    shape, before = [], "v"
    for letter in word:
        before = "v" if letter in "aeiou" or (letter == "y" and before == "c") else "c"
        shape.append(before)
    return "".join(shape)


def _measure(word: str) -> int:
    """Count how often a consonant follows a vowel: about the number of closed syllables."""
    return _letter_pattern(word).count("vc")


def _ends_short(word: str) -> bool:
    """Whether it ends like "hop" or "fil": such a stem lost its e ("hoping", "filing")."""
    return word[-1:] not in ("w", "x", "y") and _letter_pattern(word)[-3:] == "cvc"


def _strip_plural(word: str) -> str:
    if not word.endswith("s"):
        return word
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word if word.endswith("ss") else word[:-1]


def _strip_tense(word: str) -> str:
    """Strip -ed and -ing, and restore the stem: "hopping" is hop, "hoping" is hope."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for ending in ("ed", "ing"):
        if word.endswith(ending) and "v" in _letter_pattern(word[: -len(ending)]):
            return _restore_ending(word[: -len(ending)])
    return word


def _restore_ending(word: str) -> str:
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if (
        word[-1:] == word[-2:-1]
        and word[-1:] not in ("l", "s", "z")
        and _letter_pattern(word)[-1:] == "c"
    ):
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_short(word) else word


def _y_to_i(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and "v" in _letter_pattern(word[:-1]) else word


def _replace_ending(word: str, rules: dict[str, list[tuple[str, str]]], least: int) -> str:
    """Replace the ending, if the measure of the rest is at least `least`."""
    for ending, new in rules.get(word[-2:], ()):
        if word.endswith(ending):
            rest = word[: -len(ending)]
            if ending == "ion" and not rest.endswith(("s", "t")):
                return word
            return rest + new if _measure(rest) >= least else word
    return word


def _strip_final_e(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _ends_short(rest)):
            return rest
    return word


def _strip_suffixes(word: str) -> str:
    """Apply the steps after plural and tense."""
    word = _replace_ending(_y_to_i(word), _DOUBLE_SUFFIXES, 1)
    word = _replace_ending(word, _DERIVED_SUFFIXES, 1)
    word = _strip_final_e(_replace_ending(word, _BARE_SUFFIXES, 2))
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
