"""Text as a keyboard has it: what a page, a form or a chat makes of digits, spaces and dashes must not hide a card number.

Patterns look at the plain form. What they find is taken out of the text as it is, and all else in it stays to the letter.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple


class Replacement(NamedTuple):
    """A part of a text, and what is to stand there."""

    start: int
    end: int
    mark: str


Find = Callable[[str], Iterable[Replacement]]
"""What finds secrets in plain text: parts that do not overlap, in order."""

_WIDE: Final = {
    code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)
}  # the letters that are as wide as Chinese ones
_SPACES: Final = dict.fromkeys([0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
_DASHES: Final = dict.fromkeys([*range(0x2010, 0x2016), 0x2043, 0x2212, 0xFE58, 0xFE63], "-")
_SIGNS: Final[dict[int, int | str]] = {**_WIDE, **_SPACES, **_DASHES, 0xFE6B: "@", 0xFE52: "."}
_DIGIT: Final = re.compile(r"(?![0-9])\d")  # of any script
_UNSEEN: Final = re.compile(
    "[\u00ad\u034f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]"
)

_ODD: Final = re.compile(
    rf"{_UNSEEN.pattern}|{_DIGIT.pattern}|[{''.join(map(re.escape, map(chr, _SIGNS)))}]"
)


def replaced(text: str, finds: Iterable[Find]) -> str:
    """A text without what is found in it, by one after the other; itself, if there is nothing."""
    plain, places = _plain(text)
    for find in finds:
        found = list(find(plain))
        if found:
            text = _spliced(text, found, places)
            plain, places = _plain(text)
    return text


def _plain(text: str) -> tuple[str, Sequence[int] | None]:
    """The plain form, and where each of its signs is in the text; None if at the same place."""
    if text.isascii() or not _ODD.search(text):
        return text, None
    plain = _DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), text.translate(_SIGNS))
    if not _UNSEEN.search(plain):
        return plain, None
    places = [place for place, sign in enumerate(plain) if not _UNSEEN.match(sign)]
    return _UNSEEN.sub("", plain), places


def _spliced(text: str, found: Iterable[Replacement], places: Sequence[int] | None) -> str:
    kept, at = [], 0
    for start, end, mark in found:
        if places is not None:
            start, end = places[start], places[end - 1] + 1
        kept += [text[at:start], mark]
        at = end
    return "".join([*kept, text[at:]])
