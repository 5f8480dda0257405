"""Finding by meaning: the memories whose vectors point where that of the question points.

An index keeps the vectors. In memory there is one bit for each number of them (48 bytes for 384 numbers, so 5.6 MB for 100,000
memories with their numbers): which side of the average it is on. By these a thousand are chosen that may be near; those are read
from the index and compared exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import numpy as np

from ..backends import StreamKey
from ._index import VectorIndex
from ._model import Doc, Where

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._embedding import Floats

    Words = NDArray[np.uint64]
    Numbers = NDArray[np.int64]

PREFILTER: Final = 1_000
"""So many are compared exactly."""
PAGE: Final = 5_000


class Bits:
    """The vectors of a namespace, one bit for each number. It may know too many; never too few once it has caught up."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._reset(b"")

    def _reset(self, filling: bytes) -> None:
        self._filling, self._place, self.count = filling, 0, 0
        self.mean: Floats | None = None
        self._mean_of = 0
        self._words: Words = np.empty((0, 0), np.uint64)
        self._numbers: Numbers = np.empty(0, np.int64)

    @property
    def nbytes(self) -> int:
        return self._words.nbytes + self._numbers.nbytes

    def catch_up(self, index: VectorIndex, space: StreamKey, model: str, total: int) -> None:
        """Read what was added. All anew, if most of it has gone or the average was taken of too few."""
        if self.count > 2 * total + PREFILTER or self._mean_of < PREFILTER < total:
            self._reset(b"")
        while True:
            page = index.vectors(space, model, self._place, PAGE)
            if page.filling != self._filling and self._place:
                self._reset(page.filling)
                continue
            self._filling = page.filling
            if not page.vectors:
                return
            rows = np.frombuffer(b"".join(one.values for one in page.vectors), "<f4").reshape(len(page.vectors), -1)
            self._add(rows, np.fromiter((one.number for one in page.vectors), np.int64, len(page.vectors)))
            self._place = page.vectors[-1].place

    def _add(self, rows: Floats, numbers: Numbers) -> None:
        if self.mean is None:
            self.mean, self._mean_of = rows.mean(axis=0), len(rows)
            self._words = np.empty((-(-rows.shape[1] // 64), 0), np.uint64)
        if self.count + len(rows) > len(self._numbers):
            room = max(2 * self.count, len(rows))
            words = np.empty((len(self._words), self.count + room), np.uint64)
            words[:, : self.count] = self._words[:, : self.count]
            self._words = words
            self._numbers = np.concatenate([self._numbers[: self.count], np.zeros(room, np.int64)])
        end = self.count + len(rows)
        self._words[:, self.count : end] = _bits_of(rows - self.mean).T
        self._numbers[self.count : end] = numbers
        self.count = end

    def nearest(self, question: Floats, count: int, among: Numbers | None = None) -> Numbers:
        """The numbers of about so many that may be nearest, or of all. `among`: only of these, ascending."""
        if self.mean is None or not self.count:
            return np.empty(0, np.int64)
        words, numbers = self._words[:, : self.count], self._numbers[: self.count]
        if among is not None:
            chosen = np.flatnonzero(_among(numbers, among))
            words, numbers = words[:, chosen], numbers[chosen]
        if len(numbers) > count:
            apart = _apart(words, _bits_of((question - self.mean)[None])[0])
            numbers = numbers[np.argpartition(apart, count)[:count]]
        return np.unique(numbers)


def _bits_of(rows: Floats) -> Words:
    """For each row its signs, 64 to a word."""
    packed = np.packbits(rows > 0, axis=1)
    padded = np.zeros((len(rows), -(-packed.shape[1] // 8) * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


def _among(numbers: Numbers, chosen: Numbers) -> NDArray[np.bool_]:
    if not len(chosen):
        return np.zeros(len(numbers), np.bool_)
    places = np.minimum(np.searchsorted(chosen, numbers), len(chosen) - 1)
    found: NDArray[np.bool_] = chosen[places] == numbers
    return found


_ONES: Final[NDArray[np.uint8]] = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def _ones(words: Words) -> NDArray[np.uint8]:
    """How many bits are 1 in each word. numpy counts them itself from 2.0 on."""
    if hasattr(np, "bitwise_count"):
        found: NDArray[np.uint8] = np.bitwise_count(words)
        return found
    in_words: NDArray[np.uint8] = _ONES[words.view(np.uint8)].reshape(*words.shape, 8).sum(axis=-1, dtype=np.uint8)
    return in_words


def _apart(words: Words, question: Words) -> NDArray[np.uint16]:
    """In how many bits each differs from the question."""
    apart = np.zeros(words.shape[1], np.uint16)
    for row, word in zip(words, question, strict=True):
        apart += _ones(row ^ word)
    return apart


class Meaning:
    """A question as a vector, asked of one namespace."""

    def __init__(self, index: VectorIndex, space: StreamKey, model: str, question: Floats, bits: Bits) -> None:
        self._index, self._space, self._model = index, space, model
        self._question, self._bits = question, bits
        self._likeness: dict[int, float] = {}

    @property
    def common(self) -> float:
        """How like the question any memory is: what has to be taken off before two of them are compared."""
        return 0.0 if self._bits.mean is None else float(self._bits.mean @ self._question)

    def likeness(self, numbers: Collection[int]) -> dict[int, float]:
        """The cosines of these memories, as far as they have a vector."""
        wanted = [number for number in dict.fromkeys(numbers) if number not in self._likeness]
        if wanted:
            found = self._index.vectors_of(self._space, self._model, wanted)
            if found:
                rows = np.frombuffer(b"".join(found.values()), "<f4").reshape(len(found), -1)
                self._likeness.update(zip(found, (rows @ self._question).tolist(), strict=True))
        return {number: self._likeness[number] for number in numbers if number in self._likeness}

    def nearest(self, where: Where, limit: int) -> list[Doc]:
        """The memories that mean most nearly what is asked, nearest first."""
        count = max(PREFILTER, limit)
        with self._bits.lock:
            numbers = self._bits.nearest(self._question, count)
            everything = len(numbers) >= self._bits.count
        found = self._asked_for(numbers, where, limit)
        if len(found) >= limit or everything:
            return found
        # Too few of the nearest are among those asked for: look only at these.
        among = np.asarray(self._index.numbers(self._space, where), np.int64)
        with self._bits.lock:
            numbers = self._bits.nearest(self._question, count, among)
        return self._asked_for(numbers, where, limit)

    def _asked_for(self, numbers: Numbers, where: Where, limit: int) -> list[Doc]:
        likeness = self.likeness(numbers.tolist())
        order = sorted(likeness, key=lambda number: -likeness[number])
        found: list[Doc] = []
        for start in range(0, len(order), limit):
            docs = {doc.number: doc for doc in self._index.docs(self._space, order[start : start + limit], where)}
            found += [docs[number] for number in order[start : start + limit] if number in docs]
            if len(found) >= limit:
                break
        return found[:limit]
