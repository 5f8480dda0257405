"""Words and meaning together: how well a memory fits, when an embedder has a say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from ._model import Doc, Where
from ._weights import Weights

if TYPE_CHECKING:
    from ._vectors import Meaning

NEAREST: Final = 100
"""So many memories of the nearest meaning are looked at, besides those that share words with the question."""
ENOUGH: Final = 25
"""If fewer of them are asked for, those that are asked for are looked through."""


class Sense:
    """What the meaning of memories adds to their words.

    Models differ in how alike any two texts are to them. So a likeness counts from what is common to all memories (0) up to the
    best one (1), and is worth as much as the best match by words.
    """

    def __init__(self, meaning: Meaning | None, weights: Weights) -> None:
        self._meaning, self._share = meaning, weights.meaning
        self._common, self._top, self._worth = 0.0, 0.0, 0.0

    def begin(self, where: Where, limit: int) -> None:
        """Have the nearest looked for, if that can be done while words are."""
        if self._meaning is not None:
            self._meaning.begin(where, max(NEAREST, limit), max(ENOUGH, limit))

    def look_at(self, numbers: Collection[int]) -> None:
        """These will be compared: learn what they mean, while the nearest are still looked for."""
        if self._meaning is not None:
            self._meaning.likeness(numbers)

    def nearest(self, where: Where, limit: int) -> list[Doc]:
        if self._meaning is None:
            return []
        return self._meaning.nearest(where, max(NEAREST, limit), max(ENOUGH, limit))

    def settle(self, words: Mapping[int, float]) -> None:
        """Learn from all that may fit, and how well their words do, what the best likeness is and what it is worth."""
        likeness = {} if self._meaning is None else self._meaning.likeness(words)
        if self._meaning is None or not likeness:
            return
        self._common, self._top = self._meaning.common, max(likeness.values())
        if self._top > self._common:
            self._worth = max(max(words.values()), (self._top - self._common) / (1 - min(self._common, 0.99)))

    def of(self, words: Mapping[int, float]) -> dict[int, float]:
        """What is added to how well the words of each fit; or taken off, where a memory means something else."""
        if self._meaning is None or not self._worth:
            return {}
        likeness = self._meaning.likeness(words)
        return {number: self._added(likeness[number], fit) for number, fit in words.items() if number in likeness}

    def _added(self, likeness: float, fit: float) -> float:
        """The more of the question's words a memory has, the less can be taken off: nothing, if it has them all."""
        meant = self._worth * max(likeness - self._common, 0.0) / (self._top - self._common)
        added = self._share * (meant - fit)
        return added if added > 0 else added * max(1 - fit * fit, 0.0)
