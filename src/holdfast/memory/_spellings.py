"""Things that are written in several ways: telephone numbers, umlauts, names that look like small words.

Each way is made a term too, beside the text as it stands, in memories and questions alike: that is how they meet.
"""

from __future__ import annotations

import re
from typing import Final

from ._characters import normal

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
    digits = _NOT_A_DIGIT.sub("", written.replace(_TRUNK, "") if written.startswith("+") else written)
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
