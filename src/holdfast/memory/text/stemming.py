"""English words to stems, so that a question about "the plans she made" finds "planning" and "make".

`porter` follows M. F. Porter, "An algorithm for suffix stripping" (1980), with the two small changes he published later.
`stem` puts two things around it: irregular forms, which no rule about endings can know, and words that the rules would
throw together although they mean different things. `inflection` undoes plural and tense only: two texts that differ
in more than that may well be two facts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from .irregular import APART, BRITISH, IRREGULAR
from .words import listed

LONGEST: Final = 64
CACHED: Final = 1 << 15

# (ending, what takes its place). Only the longest ending that fits counts, whether its condition holds or not.
_DOUBLE: Final = tuple(
    pair.split(":")
    for pair in listed(
        "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous ization:ize "
        "ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive biliti:ble logi:log"
    )
)
_DERIVED: Final = tuple(
    pair.split(":") for pair in listed("icate:ic ative: alize:al iciti:ic ical:ic ful: ness:")
)
_BARE: Final = listed(
    "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"
)


def _by_last_letters(pairs: tuple[list[str], ...]) -> dict[str, list[tuple[str, str]]]:
    """The rules under the last two letters of their endings, longest first: most words match none at all."""
    table: dict[str, list[tuple[str, str]]] = {}
    for ending, new in sorted(pairs, key=lambda pair: -len(pair[0])):
        table.setdefault(ending[-2:], []).append((ending, new))
    return table


_DOUBLES: Final = _by_last_letters(_DOUBLE)
_DERIVEDS: Final = _by_last_letters(_DERIVED)
_BARES: Final = _by_last_letters(tuple([ending, ""] for ending in _BARE))


@lru_cache(CACHED)
def stem(word: str) -> str:
    """The stem of a lower-case ASCII word. Two forms of one word have one stem; it need not be a word itself."""
    word = _american(IRREGULAR.get(word, word))
    if len(word) < 3 or len(word) > LONGEST:
        return word
    singular = _plural(word)
    base = _past(singular)
    return APART.get(word) or APART.get(singular) or APART.get(base) or _shorten(base)


@lru_cache(CACHED)
def inflection(word: str) -> str:
    """The word without plural, tense and person: "worked" and "works" are one, "worker" is another."""
    word = _american(IRREGULAR.get(word, word))
    if len(word) < 3 or len(word) > LONGEST:
        return word
    return _final_e(_y_to_i(_past(_plural(word))))


def porter(word: str) -> str:
    """The plain algorithm, without exceptions."""
    return word if len(word) < 3 or len(word) > LONGEST else _shorten(_past(_plural(word)))


def _american(word: str) -> str:
    """ "colour" as "color", "organised" as "organized", for the words in the table."""
    for ending in ("our", "is"):
        end = word.find(ending, 1) + len(ending)
        # "organise" and "organisation", but not "organism" and "finalist"
        if (new := BRITISH.get(word[:end])) and (
            ending == "our" or word[end : end + 1] in ("a", "e", "i")
        ):
            return new + word[end:]
    return word


# -- the steps of the algorithm --------------------------------------------------------------------------------------------


def _shape(word: str) -> str:
    """The word as consonants and vowels: "toy" is cvc, "syzygy" is cvcvcv. A y after a consonant is a vowel."""
    shape, before = [], "v"
    for letter in word:
        before = "v" if letter in "aeiou" or (letter == "y" and before == "c") else "c"
        shape.append(before)
    return "".join(shape)


def _measure(word: str) -> int:
    """How often a vowel is followed by a consonant: about the number of syllables that end."""
    return _shape(word).count("vc")


def _short(word: str) -> bool:
    """Ends like "hop" or "fil": such a stem lost its e ("hoping", "filing")."""
    return word[-1:] not in ("w", "x", "y") and _shape(word)[-3:] == "cvc"


def _plural(word: str) -> str:
    if not word.endswith("s"):
        return word
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word if word.endswith("ss") else word[:-1]


def _past(word: str) -> str:
    """Without -ed and -ing, and with the letters that these endings cost: "hopping" is hop, "hoping" is hope."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for ending in ("ed", "ing"):
        if word.endswith(ending) and "v" in _shape(word[: -len(ending)]):
            return _restore(word[: -len(ending)])
    return word


def _restore(word: str) -> str:
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if word[-1:] == word[-2:-1] and word[-1:] not in ("l", "s", "z") and _shape(word)[-1:] == "c":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _short(word) else word


def _y_to_i(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and "v" in _shape(word[:-1]) else word


def _replace(word: str, rules: dict[str, list[tuple[str, str]]], least: int) -> str:
    """The word with its ending replaced, if what is left measures at least so much."""
    for ending, new in rules.get(word[-2:], ()):
        if word.endswith(ending):
            rest = word[: -len(ending)]
            if ending == "ion" and not rest.endswith(("s", "t")):
                return word
            return rest + new if _measure(rest) >= least else word
    return word


def _final_e(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _short(rest)):
            return rest
    return word


def _shorten(word: str) -> str:
    """All that comes after plural and tense."""
    word = _replace(_y_to_i(word), _DOUBLES, 1)
    word = _replace(word, _DERIVEDS, 1)
    word = _final_e(_replace(word, _BARES, 2))
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word
