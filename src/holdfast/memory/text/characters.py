"""Normalize Unicode text, and tell which characters belong to a word."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final, Literal

UNSPACED: Final = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U000323af"  # Chinese and Japanese
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u109f\uaa60-\uaa7f\u1780-\u17d3\u17d7\u17dc\u17dd"  # Burmese, Khmer
)
"""Scripts without spaces between words, as the inside of a character class."""
KOREAN: Final = "\u1100-\u11ff\uac00-\ud7a3"

# More marks on one letter than any language uses. Sorting a longer run takes quadratic time.
_MARKS_ON_A_LETTER: Final = 12
# Accents are dropped, except where they form another letter: Cyrillic й (и + breve) and ў.
_ACCENTS: Final = re.compile("(?<![иИуУ])[\u0300-\u036f]|(?<=[иИуУ])[\u0300-\u0305\u0307-\u036f]")
# Vowel signs of Arabic and Hebrew, which are rarely written.
_POINTS: Final = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0652\u0670]"
)
# Invisible: zero-width characters, soft hyphens, direction marks, variation selectors, keycaps.
_UNSEEN: Final = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\u20d0-\u20ff\U000e0000-\U000e0fff]"
)
# Signs that look alike or mean the same: apostrophes, hyphens and minus, dashes, wide punctuation.
_SIGNS: Final = str.maketrans(
    "\u2018\u2019\u02bc\u2010\u2011\u2212\u2013\uff0c\u3002"
    "\uff1a\uff1b\uff01\uff1f\uff08\uff09\u3001",
    "'''---\u2014,.:;!?(),",
)
_LETTERS: Final = str.maketrans(
    "\u2018\u2019\u02bc`\u00b4\u2010\u2011\u2212øØłŁđĐ\u0131ð", "'''''---oOlLdDid"
)
_PAIRS: Final = re.compile("[æœþÆŒ]")
_PAIR: Final = {"æ": "ae", "œ": "oe", "þ": "th", "Æ": "AE", "Œ": "OE"}
_OTHER_DIGIT: Final = re.compile(r"[^\D0-9]")

SUBSCRIBER_DIGITS: Final = 7
"""How many digits at the end of a telephone number don't depend on the country code."""
MAX_TELEPHONE_DIGITS: Final = 15

NAMES: Final = frozenset({"Will", "Can", "Per", "Else"})
"""Stop words that may be people's names if they have a capital."""

_OPENING: Final = re.compile(rf"(?:^|(?<=[.!?:;]\s))\W*(?:{'|'.join(sorted(NAMES))})\s+(?=\w)")
_TELEPHONE: Final = re.compile(r"(?<![\w.,:/-])(?:\+|\(?0)[0-9](?:[ ()/.-]{0,3}[0-9])+(?![\w:-])")
_TRUNK: Final = "(0)"
_NOT_A_DIGIT: Final = re.compile("[^0-9]+")
_UMLAUTS: Final = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ø": "oe", "Ø": "Oe"}
)


@lru_cache(1)
def combining_marks() -> str:
    """Return all combining marks, as the inside of a character class.

    \\w excludes them, but Thai and Hindi words have many.
    """
    ranges: list[list[int]] = []
    for code in (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)):
        if unicodedata.category(chr(code)).startswith("M"):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


@lru_cache(1)
def _too_many_marks() -> re.Pattern[str]:
    return re.compile(f"([{combining_marks()}]{{{_MARKS_ON_A_LETTER}}})[{combining_marks()}]+")


def normalize(text: str, form: Literal["NFC", "NFKC", "NFKD"]) -> str:
    """Return a Unicode normal form of a text, in linear time for any text."""
    return (
        text if text.isascii() else unicodedata.normalize(form, _too_many_marks().sub(r"\1", text))
    )


def normalize_for_reading(text: str) -> str:
    """Return the text as a reader sees it: composed, no invisible characters, signs unified."""
    return text if text.isascii() else _UNSEEN.sub("", normalize(text, "NFC")).translate(_SIGNS)


def normalize_for_search(text: str) -> str:
    """Return the text for search: compatibility forms and digits unified, accents dropped."""
    if text.isascii():
        return text
    bare = _ACCENTS.sub("", normalize(_UNSEEN.sub("", text), "NFKD"))
    text = _POINTS.sub("", normalize(bare, "NFKC")).translate(_LETTERS)
    text = _PAIRS.sub(lambda pair: _PAIR[pair[0]], text)
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)


@lru_cache(1)
def word_class() -> str:
    """Return the characters that continue a word, as the inside of a character class."""
    return rf"\w{combining_marks()}"


# -- spellings -----------------------------------------------------------------------------------


def add_telephone_terms(text: str) -> str:
    """Add the digits of each telephone number to the text: all of them, and the last ones."""
    return _TELEPHONE.sub(_expand_telephone, text) if "0" in text or "+" in text else text


def _expand_telephone(match: re.Match[str]) -> str:
    written = match[0]
    digits = _NOT_A_DIGIT.sub(
        "", written.replace(_TRUNK, "") if written.startswith("+") else written
    )
    if not SUBSCRIBER_DIGITS <= len(digits) <= MAX_TELEPHONE_DIGITS:
        return written
    return " ".join(dict.fromkeys((written, digits, digits[-SUBSCRIBER_DIGITS:]))) + " "


def spell_out_umlauts(text: str) -> str | None:
    """Return the text with "ue" for "ü" and so on; None if it has no umlauts."""
    if text.isascii():
        return None
    composed = normalize(text, "NFC")
    written = composed.translate(_UMLAUTS)
    return None if written == composed else written


def strip_opening_verb(question: str) -> str:
    """Drop the auxiliary verb that a question starts with: "Will you come?" names no Will."""
    return _OPENING.sub("", question)
