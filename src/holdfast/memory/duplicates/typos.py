"""Is one word the other with a slip of the finger?

Most words have a neighbour one letter away that is a word too ("contracts" and "contacts"), and no rule can tell such a pair from
a slip. So nothing may be thrown away because of this one. A slip is: two letters swapped; one letter left out, added, or replaced
by its neighbour on the keyboard, in a longer word, but neither its first nor its ending; a space and the letter beside it swapped.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from ..text.stemming import inflection
from ..text.words import STOP, listed

_SWAPPED_LENGTH: Final = 4
"""Shorter words have too many neighbours, unless one of the two is a common one: "fro" is "for"."""
_EDITED_LENGTH: Final = 7
_ENDING: Final = 2
"""Another ending is another form of the word, or one who does it: "worked", "worker"."""

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
able/bale acts/cats angle/angel barely/barley being/begin best/bets board/broad brian/brain calm/clam carve/crave cart/crate cast/cats casual/causal
clod/cold coral/carol complaint/compliant complies/compiles crop/corp dairy/diary dairies/diaries does/dose exist/exits field/filed form/from
gird/grid goal/gaol lair/liar lion/loin lost/lots marital/martial minute/minuet no/on nuclear/unclear own/won part/prat past/pats perfect/prefect
perform/preform piers/pries post/pots quiet/quite sacred/scared salt/slat salted/slated sign/sing signed/singed silt/slit silver/sliver
singe/sign slept/spelt split/spilt stake/skate tarp/trap there/three tired/tried trail/trial trails/trials unite/untie united/untied
two/tow used/sued warp/wrap weird/wired who/how
automation/automaton caching/catching collision/collusion confirmation/conformation confirming/conforming deciding/decoding
decided/decoded difficult/difficulty drivers/drives editing/exiting existing/exiting identify/identity lightning/lightening picking/pickling
recorder/reorder refusing/reusing remainder/reminder sending/spending starting/stating thorough/through thought/though tracing/tracking
throughout/throughput underserved/undeserved
""")
)


def typo(one: str, other: str) -> bool:
    """Whether two lower-case words are one word and a slip. The same both ways round."""
    return letters_swapped(one, other) or _edited(*sorted((one, other), key=len))


def letters_swapped(one: str, other: str) -> bool:
    """Whether two letters beside each other changed places."""
    if len(one) < _SWAPPED_LENGTH and (one in STOP) == (other in STOP):
        return False
    return _comparable(one, other) and _swapped(one, other) is not None


def space_swapped(one: str, other: str) -> bool:
    """Whether two words are apart by a space and the letter beside it: "sen tby" is "sent by"."""
    at = _swapped(one, other)
    return (
        at is not None
        and " " in one[at : at + 2]
        and one.replace(" ", "").isalpha()
        and one.isascii()
    )


def _swapped(one: str, other: str) -> int | None:
    """Where two characters changed places; None if that is not how the two differ."""
    at = _first_difference(one, other)
    swapped = one[:at] + one[at + 1 : at + 2] + one[at : at + 1] + one[at + 2 :]
    return at if at < len(one) - 1 and swapped == other else None


def _comparable(one: str, other: str) -> bool:
    if not (one + other).isascii() or not (one + other).isalpha():
        return False
    return frozenset((inflection(one), inflection(other))) not in _BOTH_WORDS


def _edited(short: str, long: str) -> bool:
    """Whether one letter is left out, or replaced by one beside it on the keyboard; not at the ends of the word."""
    at = _first_difference(short, long)
    if (
        not at
        or len(short) < _EDITED_LENGTH
        or short[-_ENDING:] != long[-_ENDING:]
        or not _comparable(short, long)
    ):
        return False
    if len(short) == len(long):
        return (
            short[at + 1 :] == long[at + 1 :]
            and short[at : at + 1] + long[at : at + 1] in _TOUCHING
        )
    return short[at:] == long[at + 1 :]


def _first_difference(one: str, other: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
