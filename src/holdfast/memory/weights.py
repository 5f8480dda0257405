"""`Weights`: how much each signal counts when memories are recalled."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

from ..log.validation import describe_value

INTEGER_MINIMUMS: Final = {"reach": 0, "candidates": 1}
"""The integer fields and their minimums."""
MIN_SCORE: Final = 0.14
"""The minimum score of a recall by default. Hits below it are mostly there by chance."""
MIN_UNRELATED_SCORE: Final = 0.12
"""The minimum score, in a resume context, of a memory that shares no word with the task's goal.

An embedder always finds some nearest memory, so without a minimum, unrelated memories would fill
the resume context. Matches by words are exempt: even a relevant memory has only a few of the words
of a long goal. Callers of `recall` set `min_score` themselves.
"""


@dataclass(frozen=True)
class Weights:
    """Weights of the ranking. The defaults suit conversations and the findings of tasks alike.

    The score of a memory starts with how well its own words match the query, from 0 to 1. Its
    neighbours and its source add to the score, closing part of the gap to the best match. Recency,
    importance and use are gentle factors that change a good match less than a poor one: a memory
    that matches the whole query scores 1, and nothing ranks above it.
    """

    saturation: float = 1.2
    """BM25's k1: how soon repeats of a word stop counting."""
    length: float = 0.75
    """BM25's b: how much a text or passage longer than the average is penalized."""
    elsewhere: float = 0.3
    """How much the other passages of a long text count beside the best one."""
    context: float = 0.4
    """Weight of a word that matches only the date, source or tags."""
    neighbour: float = 0.45
    """How much a match adds to its neighbours in the source, like an answer after a question."""
    reach: int = 2
    """How many neighbours gain on each side.

    The second gains `neighbour` times as much as the first.
    """
    source: float = 0.6
    """How much the best matches of a source add to its other memories."""
    names: float = 0.5
    """How much a match adds to memories that share a name with it and have the rest of the query.

    The share of the gap between both that is closed, from 0 to 1. Not used with an embedder.
    """
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
