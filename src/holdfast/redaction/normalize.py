"""Normalize text for the patterns: unusual digits, spaces and dashes must not hide a card number.

Patterns search the normalized text. Their matches are replaced in the original text, and the rest
of it stays unchanged.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple


class Replacement(NamedTuple):
    """A part of a text, and the mark that replaces it."""

    start: int
    end: int
    mark: str


Finder = Callable[[str], Iterable[Replacement]]
"""Finds secrets in normalized text: parts that do not overlap, in order."""

_WIDE: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}  # full-width forms
_SPACES: Final = dict.fromkeys([0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
_DASHES: Final = dict.fromkeys([*range(0x2010, 0x2016), 0x2043, 0x2212, 0xFE58, 0xFE63], "-")
_CHARACTERS: Final[dict[int, int | str]] = {**_WIDE, **_SPACES, **_DASHES, 0xFE6B: "@", 0xFE52: "."}
_DIGIT: Final = re.compile(r"(?![0-9])\d")  # of any script
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]"
)

_ODD: Final = re.compile(
    rf"{_INVISIBLE.pattern}|{_DIGIT.pattern}|[{''.join(map(re.escape, map(chr, _CHARACTERS)))}]"
)


def replace_found(text: str, finds: Iterable[Finder]) -> str:
    """Replace the matches of the finders, one finder after the other.

    Return `text` itself if they find nothing.
    """
    plain, positions = _normalize(text)
    for find in finds:
        found = list(find(plain))
        if found:
            text = _splice(text, found, positions)
            plain, positions = _normalize(text)
    return text


def _normalize(text: str) -> tuple[str, Sequence[int] | None]:
    """Return the normalized text, and its characters' positions in `text`; None if unchanged."""
    if text.isascii() or not _ODD.search(text):
        return text, None
    plain = _DIGIT.sub(
        lambda found: str(unicodedata.decimal(found[0])), text.translate(_CHARACTERS)
    )
    if not _INVISIBLE.search(plain):
        return plain, None
    positions = [at for at, character in enumerate(plain) if not _INVISIBLE.match(character)]
    return _INVISIBLE.sub("", plain), positions


def _splice(text: str, found: Iterable[Replacement], positions: Sequence[int] | None) -> str:
    kept, at = [], 0
    for start, end, mark in found:
        if positions is not None:
            start, end = positions[start], positions[end - 1] + 1
        kept += [text[at:start], mark]
        at = end
    return "".join([*kept, text[at:]])
