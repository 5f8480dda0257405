"""Finding by meaning: the memories whose vectors point where that of the question points.

An index keeps the vectors. In memory there is one bit for each number of them, which side of the average it is on, and two numbers
that make an estimate of it (for 384 numbers 72 bytes, so 7 to 11 MB for 100,000 memories). The bits alone choose two thousand, the
estimate four hundred of these; those are read from the index and compared exactly.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...backends import StreamKey
from ..model import MemoryDoc, MemoryFilter
from ..search.index import MemoryIndex, SupportsVectorSearch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .embedding import Floats

    Words = NDArray[np.uint64]
    Numbers = NDArray[np.int64]

PREFILTER: Final = 400
"""So many are compared exactly."""
WIDER: Final = 5
"""So many times more are chosen by their bits alone."""
PAGE: Final = 5_000
FEW: Final = 20


class BitVectors:
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
        self._places: Numbers = np.empty(0, np.int64)
        self._estimates: Floats = np.empty((2, 0), np.float32)

    @property
    def nbytes(self) -> int:
        return (
            self._words.nbytes + self._numbers.nbytes + self._places.nbytes + self._estimates.nbytes
        )

    def catch_up(self, index: MemoryIndex, space: StreamKey, model: str, total: int) -> None:
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
            rows = np.frombuffer(b"".join(one.values for one in page.vectors), "<f4").reshape(
                len(page.vectors), -1
            )
            self._add(
                rows, [one.number for one in page.vectors], [one.place for one in page.vectors]
            )
            self._place = page.vectors[-1].place

    def _add(self, rows: Floats, numbers: Sequence[int], places: Sequence[int]) -> None:
        if self.mean is None:
            self.mean, self._mean_of = rows.mean(axis=0), len(rows)
            self._words = np.empty((-(-rows.shape[1] // 64), 0), np.uint64)
        if self.count + len(rows) > len(self._numbers):
            room = len(rows) + self.count // 2
            self._words = np.concatenate(
                [self._words, np.zeros((len(self._words), room), np.uint64)], axis=1
            )
            self._estimates = np.concatenate(
                [self._estimates, np.zeros((2, room), np.float32)], axis=1
            )
            self._numbers = np.concatenate([self._numbers, np.zeros(room, np.int64)])
            self._places = np.concatenate([self._places, np.zeros(room, np.int64)])
        end = self.count + len(rows)
        apart = rows - self.mean
        self._words[:, self.count : end] = _bits_of(apart).T
        self._estimates[:, self.count : end] = _estimates_of(apart, self.mean)
        self._numbers[self.count : end] = numbers
        self._places[self.count : end] = places
        self.count = end

    def nearest(self, question: Floats, count: int, among: Numbers | None = None) -> Numbers:
        """The places of so many that may be nearest, or of all. `among`: only of these numbers, ascending."""
        if self.mean is None:
            return np.empty(0, np.int64)
        rows = (
            np.arange(self.count)
            if among is None
            else np.flatnonzero(_among(self._numbers[: self.count], among))
        )
        asked = question - self.mean
        if len(rows) > WIDER * count:
            words = self._words[:, : self.count] if among is None else self._words[:, rows]
            rows = rows[_least(_apart(words, _bits_of(asked[None])[0]), WIDER * count)]
        if len(rows) > count:
            likeness = _estimated(self._words[:, rows], self._estimates[:, rows], asked)
            rows = rows[_least(-likeness, count)]
        places: Numbers = self._places[rows]
        return places


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


def _estimates_of(apart: Floats, mean: Floats) -> Floats:
    """What makes a likeness of bits: a step, by which a vector goes up or down in each number, and what it shares with the average."""
    sizes = np.abs(apart).sum(axis=1)
    steps = (apart * apart).sum(axis=1) / np.where(sizes > 0, sizes, 1)
    return np.stack([steps, apart @ mean])


def _estimated(words: Words, estimates: Floats, asked: Floats) -> Floats:
    """How like the question each is, about: as if it were one step away from the average in each number."""
    in_bytes = np.ascontiguousarray(words.T).view(np.uint8)
    width = in_bytes.shape[1]
    padded = np.zeros(8 * width, np.float32)
    padded[: len(asked)] = asked
    # For each place and each of the 256 bytes that may be there: the sum of the question's numbers whose bits are set.
    sums = (_SET @ padded.reshape(width, 8).T).ravel()
    above = sums.take(in_bytes.astype(np.intp) * width + np.arange(width)).sum(axis=1)
    found: Floats = estimates[1] + estimates[0] * (2 * above - asked.sum())
    return found


def _least(values: NDArray[Any], count: int) -> NDArray[np.intp]:
    found: NDArray[np.intp] = np.argpartition(values, count)[:count]
    return found


_SET: Final[Floats] = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(
    np.float32
)
_ONES: Final[NDArray[np.uint8]] = _SET.sum(axis=1).astype(np.uint8)


def _ones(words: Words) -> NDArray[np.uint8]:
    """How many bits are 1 in each word. numpy counts them itself from 2.0 on."""
    if hasattr(np, "bitwise_count"):
        found: NDArray[np.uint8] = np.bitwise_count(words)
        return found
    in_words: NDArray[np.uint8] = (
        _ONES[words.view(np.uint8)].reshape(*words.shape, 8).sum(axis=-1, dtype=np.uint8)
    )
    return in_words


def _apart(words: Words, question: Words) -> NDArray[np.uint16]:
    """In how many bits each differs from the question."""
    apart = np.zeros(words.shape[1], np.uint16)
    for row, word in zip(words, question, strict=True):
        apart += _ones(row ^ word)
    return apart


class VectorQuery(ABC):
    """A question as a vector, asked of one namespace."""

    def __init__(self, index: MemoryIndex, space: StreamKey, model: str, question: Floats) -> None:
        self._index, self._space, self._model, self._question = index, space, model, question
        self._likeness: dict[int, float] = {}
        self._begun: Future[list[MemoryDoc]] | None = None

    @property
    def common(self) -> float:
        """How like the question any memory is: what has to be taken off before two of them are compared.

        A few memories may all be about what is asked. So they count as if there were `FEW` more, about nothing in particular.
        """
        count = self._count()
        return self._average() * count / (count + FEW)

    @abstractmethod
    def _count(self) -> int:
        """How many memories there are. Asked after `nearest`."""

    @abstractmethod
    def _average(self) -> float:
        """How like the question they are on average. Asked after `nearest`."""

    @abstractmethod
    def _takes_long(self) -> bool:
        """Whether it is worth a thread to have the nearest found."""

    @abstractmethod
    def _nearest(self, where: MemoryFilter, limit: int, enough: int) -> list[MemoryDoc]:
        """What `nearest` gives. It leaves how like the question they are in `_likeness`."""

    def begin(self, where: MemoryFilter, limit: int, enough: int) -> None:
        """Have the nearest looked for by another thread, if that takes a server long: it looks for words at the same time."""
        begun: Future[list[MemoryDoc]] = Future()

        def find() -> None:
            try:
                begun.set_result(self._nearest(where, limit, enough))
            except BaseException as error:  # raised where it is asked for
                begun.set_exception(error)

        if self._takes_long():
            threading.Thread(target=find, name="holdfast-memory", daemon=True).start()
            self._begun = begun

    def nearest(self, where: MemoryFilter, limit: int, enough: int) -> list[MemoryDoc]:
        """The memories that mean most nearly what is asked, nearest first: at least `enough`, if so many are asked for."""
        begun, self._begun = self._begun, None
        return self._nearest(where, limit, enough) if begun is None else begun.result()

    def likeness(self, numbers: Collection[int]) -> dict[int, float]:
        """The cosines of these memories, as far as they have a vector."""
        if wanted := [number for number in numbers if number not in self._likeness]:
            found = self._index.vectors_of(self._space, self._model, wanted)
            self._compare(list(found), list(found.values()))
        return {number: self._likeness[number] for number in numbers if number in self._likeness}

    def _compare(self, numbers: Sequence[int], vectors: Sequence[bytes]) -> None:
        if numbers:
            rows = np.frombuffer(b"".join(vectors), "<f4").reshape(len(numbers), -1)
            # Not `@`: for so few rows its threads cost more than they save.
            likeness = np.einsum("ij,j->i", rows, self._question)
            self._likeness.update(zip(numbers, likeness.tolist(), strict=True))


class ServerVectorQuery(VectorQuery):
    """Asked of an engine that compares vectors by itself."""

    def __init__(
        self,
        index: MemoryIndex,
        space: StreamKey,
        model: str,
        question: Floats,
        server: SupportsVectorSearch,
    ) -> None:
        super().__init__(index, space, model, question)
        self._server, self._vectors, self._common = server, 0, 0.0

    def _count(self) -> int:
        return self._vectors

    def _average(self) -> float:
        return self._common

    def _takes_long(self) -> bool:
        return True

    def _nearest(self, where: MemoryFilter, limit: int, enough: int) -> list[MemoryDoc]:
        prepared = self._server.prepared(self._space, self._model, len(self._question))
        self._vectors = prepared.count
        docs, self._common = prepared.nearest(self._question, where, limit, enough)
        self._likeness.update((doc.number, likeness) for doc, likeness in docs)
        return [doc for doc, _ in docs]


class LocalVectorQuery(VectorQuery):
    """Asked of the bits that this process holds."""

    def __init__(
        self, index: MemoryIndex, space: StreamKey, model: str, question: Floats, bits: BitVectors
    ) -> None:
        super().__init__(index, space, model, question)
        self._bits = bits

    def _count(self) -> int:
        return self._bits.count

    def _average(self) -> float:
        return 0.0 if self._bits.mean is None else float(self._bits.mean @ self._question)

    def _takes_long(self) -> bool:
        return self._index.served and self._bits.count > PREFILTER

    def _nearest(self, where: MemoryFilter, limit: int, enough: int) -> list[MemoryDoc]:
        bits, count = self._bits, max(PREFILTER, limit)
        if where.source is None:
            with bits.lock:
                places, everything = bits.nearest(self._question, count), bits.count <= count
            found = self._asked_for(places, where, limit, 0 if everything else enough)
            if len(found) >= enough or everything:
                return found
        # Few are asked for, so that too few of the nearest are among them: look only at these.
        among = np.asarray(self._index.numbers(self._space, where), np.int64)
        with bits.lock:
            places = bits.nearest(self._question, count, among)
        return self._asked_for(places, where, limit, 0)

    def _asked_for(
        self, places: Numbers, where: MemoryFilter, limit: int, enough: int
    ) -> list[MemoryDoc]:
        """Those that are asked for. Where they will not be `enough`, the rest is not looked at."""
        vectors = self._index.vectors_at(self._space, self._model, places.tolist())
        numbers = [one.number for one in vectors]
        self._compare(numbers, [one.values for one in vectors])
        numbers.sort(key=lambda number: -self._likeness[number])
        found: list[MemoryDoc] = []
        for start in range(0, len(numbers), limit):
            page = numbers[start : start + limit]
            docs = {doc.number: doc for doc in self._index.docs(self._space, page, where)}
            found += [docs[number] for number in page if number in docs]
            expected = len(found) * len(numbers) / (start + limit)
            if len(found) >= limit or expected < enough:
                break
        return found[:limit]
