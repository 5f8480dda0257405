"""Unicode text to something that can be taken apart: normal forms, and which characters belong to a word."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final, Literal

UNSPACED: Final = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U000323af"  # Chinese and Japanese
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u109f\uaa60-\uaa7f\u1780-\u17d3\u17d7\u17dc\u17dd"  # Burmese, Khmer
)
"""Scripts that put no spaces between words, as the inside of a character class."""
KOREAN: Final = "\u1100-\u11ff\uac00-\ud7a3"

# More marks on one letter than any language uses. Sorting a long run of them takes quadratic time.
_MARKS_ON_A_LETTER: Final = 12
# Accents go, with two exceptions that are letters of their own: the Cyrillic short i (и + breve) and ў.
_ACCENTS: Final = re.compile("(?<![иИуУ])[\u0300-\u036f]|(?<=[иИуУ])[\u0300-\u0305\u0307-\u036f]")
# Vowel signs of Arabic and Hebrew, which few people write.
_POINTS: Final = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0652\u0670]"
)
# Zero-width characters, soft hyphens, direction marks, variation selectors, keycaps: nothing that is read.
_UNSEEN: Final = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\u20d0-\u20ff\U000e0000-\U000e0fff]"
)
# Signs that look alike or mean the same: apostrophes, hyphens and minus, dashes, the wide punctuation of Chinese.
_SIGNS: Final = str.maketrans(
    "\u2018\u2019\u02bc\u2010\u2011\u2212\u2013\uff0c\u3002\uff1a\uff1b\uff01\uff1f\uff08\uff09\u3001",
    "'''---\u2014,.:;!?(),",
)
_LETTERS: Final = str.maketrans(
    "\u2018\u2019\u02bc`\u00b4\u2010\u2011\u2212øØłŁđĐ\u0131ð", "'''''---oOlLdDid"
)
_PAIRS: Final = re.compile("[æœþÆŒ]")
_PAIR: Final = {"æ": "ae", "œ": "oe", "þ": "th", "Æ": "AE", "Œ": "OE"}
_OTHER_DIGIT: Final = re.compile(r"[^\D0-9]")


@lru_cache(1)
def marks() -> str:
    """All combining marks, as the inside of a character class: \\w leaves them out, and Thai or Hindi words have many."""
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
    return re.compile(f"([{marks()}]{{{_MARKS_ON_A_LETTER}}})[{marks()}]+")


def normal(text: str, form: Literal["NFC", "NFKC", "NFKD"]) -> str:
    """The normal form, in linear time whatever the text is."""
    return (
        text if text.isascii() else unicodedata.normalize(form, _too_many_marks().sub(r"\1", text))
    )


def visible(text: str) -> str:
    """The text as it is read: composed, without characters that nobody sees, with one form of each sign."""
    return text if text.isascii() else _UNSEEN.sub("", normal(text, "NFC")).translate(_SIGNS)


def plain(text: str) -> str:
    """The text as it is searched: compatible forms and digits made one, accents and unseen characters gone."""
    if text.isascii():
        return text
    bare = _ACCENTS.sub("", normal(_UNSEEN.sub("", text), "NFKD"))
    text = _POINTS.sub("", normal(bare, "NFKC")).translate(_LETTERS)
    text = _PAIRS.sub(lambda pair: _PAIR[pair[0]], text)
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)


@lru_cache(1)
def word_class() -> str:
    """What continues a word beyond ASCII, as the inside of a character class."""
    return rf"\w{marks()}"


# Things that are written in several ways: telephone numbers, umlauts, names that look like small words.


SUBSCRIBER: Final = 7
"""The last digits of a telephone number, which are the same with and without the code of the country."""
MOST_DIGITS: Final = 15

NAMES: Final = frozenset({"Will", "Can", "Per", "Else"})
"""With a capital they may be people."""

_OPENING: Final = re.compile(rf"(?:^|(?<=[.!?:;]\s))\W*(?:{'|'.join(sorted(NAMES))})\s+(?=\w)")
_TELEPHONE: Final = re.compile(r"(?<![\w.,:/-])(?:\+|\(?0)[0-9](?:[ ()/.-]{0,3}[0-9])+(?![\w:-])")
_TRUNK: Final = "(0)"
_NOT_A_DIGIT: Final = re.compile("[^0-9]+")
_UMLAUTS: Final = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ø": "oe", "Ø": "Oe"}
)


def with_telephones(text: str) -> str:
    """The text with each telephone number once more, as all its digits and as its last ones."""
    return _TELEPHONE.sub(_telephone, text) if "0" in text or "+" in text else text


def _telephone(match: re.Match[str]) -> str:
    written = match[0]
    digits = _NOT_A_DIGIT.sub(
        "", written.replace(_TRUNK, "") if written.startswith("+") else written
    )
    if not SUBSCRIBER <= len(digits) <= MOST_DIGITS:
        return written
    return " ".join(dict.fromkeys((written, digits, digits[-SUBSCRIBER:]))) + " "


def without_umlauts(text: str) -> str | None:
    """The text with "ue" for "ü" and so on; None if it has none."""
    if text.isascii():
        return None
    composed = normal(text, "NFC")
    written = composed.translate(_UMLAUTS)
    return None if written == composed else written


def without_opening(question: str) -> str:
    """A question without the helper verb that it begins with: in "Will you come?" nobody is called Will."""
    return _OPENING.sub("", question)
