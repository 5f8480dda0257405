"""`Weights`: how much each signal counts when memories are recalled."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

from ..log.validation import describe_value

INTEGER_MINIMUMS: Final = {"reach": 0, "candidates": 1}
"""The integer fields and their minimum."""
MIN_UNRELATED_SCORE: Final = 0.1
"""Minimum score of a memory that shares no word with a task's goal, in its resume context.

For an embedder some memory is always the nearest, so without a minimum unrelated memories would
fill the resume context. Matches by words are exempt: a memory has only a small share of the words
of a long goal, however relevant it is. A caller of `recall` sets `min_score`.
"""


@dataclass(frozen=True)
class Weights:
    """Weights of the ranking. The defaults suit conversations and the findings of tasks alike.

    The score of a memory starts as how well its own words match the query, from 0 to 1. Its
    neighbours and its source add to it, closing part of the gap to the best match. Recency,
    importance and use are gentle factors that change a good match less: a memory that
    matches the whole query scores 1, and nothing ranks above it.
    """

    saturation: float = 1.2
    """BM25's k1: how soon repeats of a word stop counting."""
    length: float = 0.1
    """BM25's b: how much a long text is penalized. Memories are short, so it is low."""
    context: float = 0.4
    """Weight of a word that matches only the date, source or tags."""
    neighbour: float = 0.45
    """What a match adds to its neighbours in the source: question and answer share few words."""
    reach: int = 2
    """How many neighbours on each side. The second gets `neighbour` of what the first gets."""
    source: float = 0.6
    """What the best matches of a source add to its other memories."""
    meaning: float = 0.5
    """The weight of vector similarity against words, if there is an embedder."""
    recency: float = 0.05
    """How much a new memory gains over a very old one."""
    recency_days: float = 90.0
    """Days after which half of the recency gain is left."""
    importance: float = 0.1
    """How much a memory of importance 1 gains over one of 0.5."""
    use: float = 0.1
    """How much use and feedback can raise or lower a memory."""
    candidates: int = 120
    """How many matches are ranked."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if field.name in INTEGER_MINIMUMS:
                least = INTEGER_MINIMUMS[field.name]
                if type(value) is not int or value < least:
                    raise ValueError(
                        f"{field.name} must be an integer >= {least}, got {describe_value(value)}"
                    )
            elif type(value) not in (int, float) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{field.name} must be a number >= 0, got {describe_value(value)}")
        if not self.recency_days:
            raise ValueError("recency_days must be > 0, got 0; to ignore age, use recency=0")
