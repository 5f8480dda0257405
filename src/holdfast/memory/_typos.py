"""Is one word the other with a slip of the finger?

Most words have a neighbour one letter away that is a word too ("sending" and "spending", "living" and "loving"), and no
rule can tell such a pair from a slip. So the rule is narrow: two letters swapped in a word of six; one letter left out,
added, or replaced by its neighbour on the keyboard in a word of eight; never the first letter, never an ending. It still
takes "contracts" and "contacts" for one word, and so nothing may be thrown away because of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from ._stemming import inflection
from ._words import listed

_SWAPPED_LENGTH: Final = 6
_EDITED_LENGTH: Final = 8
_ENDING: Final = 2

_ROWS: Final = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _next_to_each_other() -> frozenset[str]:
    """Pairs of letters whose keys touch: beside each other, or in the rows above and below."""
    pairs = {row[at : at + 2] for row in _ROWS for at in range(len(row) - 1)}
    for upper, lower in pairwise(_ROWS):
        for at, letter in enumerate(lower):
            pairs |= {letter + above for above in upper[at : at + 2]}
    return frozenset(pairs | {pair[::-1] for pair in pairs})


_TOUCHING: Final = _next_to_each_other()

# Words that the rule would take for each other. Compared without plural and tense.
_BOTH_WORDS: Final = frozenset(
    frozenset(map(inflection, pair.split("/")))
    for pair in listed("""
barely/barley carve/crave cart/crate casual/causal complaint/compliant confirmation/conformation collision/collusion
dairies/diaries lightning/lightening marital/martial minute/minuet perfect/prefect perform/preform sacred/scared
salted/slated sign/singe silver/sliver trails/trials underserved/undeserved unite/untie united/untied
""")
)


def typo(one: str, other: str) -> bool:
    """Whether two lower-case words are one word and a slip. The same both ways round."""
    return letters_swapped(one, other) or _edited(*sorted((one, other), key=len))


def letters_swapped(one: str, other: str) -> bool:
    """Whether two letters beside each other changed places."""
    if len(one) < _SWAPPED_LENGTH or len(one) != len(other) or not _comparable(one, other):
        return False
    at = _first_difference(one, other)
    return 0 < at < len(one) - 1 and one[:at] + one[at + 1] + one[at] + one[at + 2 :] == other


def _comparable(one: str, other: str) -> bool:
    if one[:1] != other[:1] or not (one + other).isascii() or not (one + other).isalpha():
        return False
    return frozenset((inflection(one), inflection(other))) not in _BOTH_WORDS


def _edited(short: str, long: str) -> bool:
    """Whether one letter is left out, or replaced by one beside it on the keyboard; not at the ends of the word."""
    if len(short) < _EDITED_LENGTH or short[-_ENDING:] != long[-_ENDING:] or not _comparable(short, long):
        return False
    at = _first_difference(short, long)
    if len(short) == len(long):
        return short[at + 1 :] == long[at + 1 :] and short[at : at + 1] + long[at : at + 1] in _TOUCHING
    return short[at:] == long[at + 1 :]


def _first_difference(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
