"""An embedder that knows a few concepts, and memories to find with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import holdfast

CONCEPTS = {
    "dog puppy hound terrier": 0,
    "car automobile vehicle sedan": 1,
    "money salary wage pay": 2,
    "doctor physician surgeon clinic": 3,
    "rain storm weather drizzle": 4,
}

MEANS = {word: place for words, place in CONCEPTS.items() for word in words.split()}


class Concepts:
    """An embedder that knows a few words, and which of them mean the same."""

    def __init__(self, name: str = "concepts", length: int = 6) -> None:
        self.name, self.length = name, length
        self.batches: list[list[str]] = []
        self.refuses: Callable[[list[str]], bool] = lambda texts: False

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.batches.append(list(texts))
        if self.refuses(texts):
            raise ConnectionError("no, not: " + texts[0])
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        found = [0.0] * self.length
        for word in re.findall(r"\w+", text.lower()):
            found[MEANS.get(word, self.length - 1)] += 1.0 if word in MEANS else 0.1
        return found


TEXTS = [
    "Rex the terrier sleeps late",
    "Her sedan is blue",
    "The wage rose in May",
    "It will drizzle on Sunday",
]


def fill(memory: holdfast.Memory) -> None:
    memory.remember_many([{"text": text} for text in TEXTS])


def texts(hits: Sequence[holdfast.MemoryHit]) -> list[str]:
    return [hit.text for hit in hits]
