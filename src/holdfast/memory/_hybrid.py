"""Words and meaning together: how well a memory fits, when an embedder has a say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ._model import Doc, Where
from ._weights import Weights

if TYPE_CHECKING:
    from ._vectors import Meaning

NEAREST: Final = 100
"""So many memories of the nearest meaning are looked at, besides those that share words with the question."""


class Sense:
    """What the meaning of memories adds to their words.

    Models differ in how alike any two texts are to them. So a likeness counts from what is common to all memories (0) up to the
    best one (1), and is worth as much as the best match by words.
    """

    def __init__(self, meaning: Meaning | None, weights: Weights) -> None:
        self._meaning, self._share = meaning, weights.meaning
        self._common, self._top, self._worth = 0.0, 0.0, 0.0

    def nearest(self, where: Where, limit: int) -> list[Doc]:
        return [] if self._meaning is None else self._meaning.nearest(where, max(NEAREST, limit))

    def settle(self, words: Mapping[int, float]) -> None:
        """Learn from all that may fit, and how well their words do, what the best likeness is and what it is worth."""
        likeness = {} if self._meaning is None else self._meaning.likeness(words)
        if self._meaning is None or not likeness:
            return
        self._common, self._top = self._meaning.common, max(likeness.values())
        if self._top > self._common:
            self._worth = max(max(words.values()), (self._top - self._common) / (1 - min(self._common, 0.99)))

    def of(self, words: Mapping[int, float]) -> dict[int, float]:
        """What is added to how well the words of each fit: that is less than nothing, where a memory means something else."""
        if self._meaning is None or not self._worth:
            return {}
        return {
            number: self._share * (self._scaled(likeness) * self._worth - words[number])
            for number, likeness in self._meaning.likeness(words).items()
        }

    def _scaled(self, likeness: float) -> float:
        return max(likeness - self._common, 0.0) / (self._top - self._common)
