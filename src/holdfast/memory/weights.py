"""How much each signal counts when memories are recalled."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from ..log.validation import shown

WHOLE: Final = {"reach": 0, "candidates": 1}
"""What is counted, and from where."""
UNASKED: Final = 0.1
"""What shares no word with the goal of a task needs this score to get into its briefing.

To an embedder something is always the nearest, so a briefing would be filled up, whatever is known. A score below this is that of things
that have nothing to do with each other. Words are left alone: of a long goal a memory has only a small share, however well it fits. Who asks
himself, with `recall`, has `min_score` for it.
"""


@dataclass(frozen=True)
class Weights:
    """What decides the order of what is recalled. The defaults suit conversations and the findings of tasks alike.

    A memory is worth how well its own words fit the question, from 0 to 1. What its neighbours and its source lend it closes part of
    the gap to the best match. Then come gentle factors, which change the less, the better a memory fits: one that has all that is asked
    for is worth 1, and nothing comes before it.
    """

    saturation: float = 1.2
    """BM25's k1: how soon more of the same word says no more."""
    length: float = 0.1
    """BM25's b: how much a long text has to share its words. Memories are short, so it is low."""
    context: float = 0.4
    """What a word is worth that is not in the text, but in its date, source or tags."""
    neighbour: float = 0.45
    """What a memory lends to the next one of its source, before and after it: a question and its answer share few words."""
    reach: int = 2
    """How far it lends. To the second neighbour it lends `neighbour` of what it lends to the first."""
    source: float = 0.6
    """What the best matches of a source lend to all others of it."""
    meaning: float = 0.5
    """The share of the embedder's opinion, where there is one."""
    recency: float = 0.05
    """By how much a new memory is worth more than a very old one."""
    recency_days: float = 90.0
    """After so many days half of that is left."""
    importance: float = 0.1
    """By how much a memory of importance 1 is worth more than one of 0.5."""
    use: float = 0.1
    """By how much use and feedback can raise a memory, or lower it."""
    candidates: int = 120
    """So many matches are looked at closely."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value: object = getattr(self, field.name)
            if field.name in WHOLE:
                if type(value) is not int or value < WHOLE[field.name]:
                    raise ValueError(
                        f"{field.name} must be an integer >= {WHOLE[field.name]}, got {shown(value)}"
                    )
            elif type(value) not in (int, float) or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
                raise ValueError(f"{field.name} must be a number >= 0, got {shown(value)}")
        if not self.recency_days:
            raise ValueError(
                "recency_days is more than 0; to leave the age out of account, recency=0"
            )
