"""Decide whether one word is the other with a typo.

Most words have a neighbour one letter away that is a word too ("contracts", "contacts"), and no
rule can tell such a pair from a typo. So nothing may be discarded because of it. A typo is: two
letters swapped; in a longer word, one letter left out, added, or replaced by its neighbour on the
keyboard, but neither the first letter nor the ending; a space and the letter beside it swapped.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from ..text.stemming import strip_inflection
from ..text.words import STOP, split_words

_MIN_SWAP_CHARS: Final = 4
"""Shorter words have too many neighbours, unless one of the two is a stop word: "fro" is "for"."""
_MIN_EDIT_CHARS: Final = 7
_ENDING_CHARS: Final = 2
"""Another ending is another form of the word: "worked", "worker"."""

_ROWS: Final = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _adjacent_keys() -> frozenset[str]:
    """Return the pairs of letters whose keys touch, in a row or in rows above each other."""
    pairs = {row[at : at + 2] for row in _ROWS for at in range(len(row) - 1)}
    for upper, lower in pairwise(_ROWS):
        for at, letter in enumerate(lower):
            pairs |= {letter + above for above in upper[at : at + 2]}
    return frozenset(pairs | {pair[::-1] for pair in pairs})


_ADJACENT_KEYS: Final = _adjacent_keys()

# Pairs of words that the rule would take for typos. Compared without plural and tense.
_BOTH_WORDS: Final = frozenset(
    frozenset(map(strip_inflection, pair.split("/")))
    for pair in split_words("""
able/bale acts/cats angle/angel barely/barley being/begin best/bets board/broad brian/brain
calm/clam carve/crave cart/crate cast/cats casual/causal
clod/cold coral/carol complaint/compliant complies/compiles crop/corp dairy/diary dairies/diaries
does/dose exist/exits field/filed form/from
gird/grid goal/gaol lair/liar lion/loin lost/lots marital/martial minute/minuet no/on
nuclear/unclear own/won part/prat past/pats perfect/prefect
perform/preform piers/pries post/pots quiet/quite sacred/scared salt/slat salted/slated sign/sing
signed/singed silt/slit silver/sliver
singe/sign slept/spelt split/spilt stake/skate tarp/trap there/three tired/tried trail/trial
trails/trials unite/untie united/untied
two/tow used/sued warp/wrap weird/wired who/how
automation/automaton caching/catching collision/collusion confirmation/conformation
confirming/conforming deciding/decoding
decided/decoded difficult/difficulty drivers/drives editing/exiting existing/exiting
identify/identity lightning/lightening picking/pickling
recorder/reorder refusing/reusing remainder/reminder sending/spending starting/stating
thorough/through thought/though tracing/tracking
throughout/throughput underserved/undeserved
""")
)


def is_typo(one: str, other: str) -> bool:
    """Whether two lower-case words are one word with a typo. Symmetric."""
    return has_swapped_letters(one, other) or _is_one_edit(*sorted((one, other), key=len))


def has_swapped_letters(one: str, other: str) -> bool:
    """Whether two adjacent letters are swapped."""
    if len(one) < _MIN_SWAP_CHARS and (one in STOP) == (other in STOP):
        return False
    return _may_be_typo(one, other) and _find_swap(one, other) is not None


def has_swapped_space(one: str, other: str) -> bool:
    """Whether two pairs of words differ by a misplaced space: "sen tby" is "sent by"."""
    at = _find_swap(one, other)
    return (
        at is not None
        and " " in one[at : at + 2]
        and one.replace(" ", "").isalpha()
        and one.isascii()
    )


def _find_swap(one: str, other: str) -> int | None:
    """Return where two characters are swapped; None if that is not the difference."""
    at = _first_difference(one, other)
    swapped = one[:at] + one[at + 1 : at + 2] + one[at : at + 1] + one[at + 2 :]
    return at if at < len(one) - 1 and swapped == other else None


def _may_be_typo(one: str, other: str) -> bool:
    if not (one + other).isascii() or not (one + other).isalpha():
        return False
    return frozenset((strip_inflection(one), strip_inflection(other))) not in _BOTH_WORDS


def _is_one_edit(short: str, long: str) -> bool:
    """Whether one letter is missing, or replaced by its neighbour on the keyboard.

    Not at either end of the word.
    """
    at = _first_difference(short, long)
    if (
        not at
        or len(short) < _MIN_EDIT_CHARS
        or short[-_ENDING_CHARS:] != long[-_ENDING_CHARS:]
        or not _may_be_typo(short, long)
    ):
        return False
    if len(short) == len(long):
        return (
            short[at + 1 :] == long[at + 1 :]
            and short[at : at + 1] + long[at : at + 1] in _ADJACENT_KEYS
        )
    return short[at:] == long[at + 1 :]


def _first_difference(one: str, other: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
