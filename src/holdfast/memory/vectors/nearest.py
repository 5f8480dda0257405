"""Find the memories whose vectors are nearest to the query's.

The index keeps the vectors. A process keeps one bit per dimension (which side of the average the
vector is on) and two numbers for an estimate: 72 bytes for 384 dimensions, 7 to 11 MB for 100,000
memories. The bits choose two thousand candidates, and the estimate four hundred of those, which are
then read from the index and compared exactly.
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
from ..search.index import MemoryIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .embedding import Floats
    from .pgvector import PgvectorSearch

    Words = NDArray[np.uint64]
    Numbers = NDArray[np.int64]

EXACT_VECTORS: Final = 400
"""How many vectors are compared exactly."""
BITS_FACTOR: Final = 5
"""How many times as many are first chosen by their bits."""
PAGE_VECTORS: Final = 5_000
PRIOR_MEMORIES: Final = 20
"""How many neutral memories the average similarity includes, for namespaces with few memories."""


class BitVectors:
    """The vectors of a namespace, one bit per dimension.

    It may still have vectors that were removed, but once caught up, none is missing.
    """

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
        """Read new vectors.

        Start over if most were removed, or the average was taken over too few.
        """
        if self.count > 2 * total + EXACT_VECTORS or self._mean_of < EXACT_VECTORS < total:
            self._reset(b"")
        while True:
            page = index.vectors(space, model, self._place, PAGE_VECTORS)
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
            self._words, self._estimates, self._numbers, self._places = (
                np.concatenate([old, np.zeros((*old.shape[:-1], room), old.dtype)], axis=-1)
                for old in (self._words, self._estimates, self._numbers, self._places)
            )
        end = self.count + len(rows)
        offsets = rows - self.mean
        self._words[:, self.count : end] = _pack_signs(offsets).T
        self._estimates[:, self.count : end] = _estimate_factors(offsets, self.mean)
        self._numbers[self.count : end] = numbers
        self._places[self.count : end] = places
        self.count = end

    def nearest(self, question: Floats, count: int, among: Numbers | None = None) -> Numbers:
        """Return the places of the nearest candidates. `among`: only these (ascending) numbers."""
        if self.mean is None:
            return np.empty(0, np.int64)
        rows = (
            np.arange(self.count)
            if among is None
            else np.flatnonzero(_is_among(self._numbers[: self.count], among))
        )
        offset = question - self.mean
        if len(rows) > BITS_FACTOR * count:
            words = self._words[:, : self.count] if among is None else self._words[:, rows]
            rows = rows[
                _smallest(
                    _count_differences(words, _pack_signs(offset[None])[0]), BITS_FACTOR * count
                )
            ]
        if len(rows) > count:
            similarity = _estimate_similarity(
                self._words[:, rows], self._estimates[:, rows], offset
            )
            rows = rows[_smallest(-similarity, count)]
        places: Numbers = self._places[rows]
        return places


def _pack_signs(rows: Floats) -> Words:
    """Return the signs of each row as bits, 64 to a word."""
    packed = np.packbits(rows > 0, axis=1)
    padded = np.zeros((len(rows), -(-packed.shape[1] // 8) * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


def _is_among(numbers: Numbers, chosen: Numbers) -> NDArray[np.bool_]:
    if not len(chosen):
        return np.zeros(len(numbers), np.bool_)
    places = np.minimum(np.searchsorted(chosen, numbers), len(chosen) - 1)
    found: NDArray[np.bool_] = chosen[places] == numbers
    return found


def _estimate_factors(offsets: Floats, mean: Floats) -> Floats:
    """Return two factors per vector for estimates: the step size, and offset times mean."""
    sizes = np.abs(offsets).sum(axis=1)
    steps = (offsets * offsets).sum(axis=1) / np.where(sizes > 0, sizes, 1)
    return np.stack([steps, offsets @ mean])


def _estimate_similarity(words: Words, estimates: Floats, offset: Floats) -> Floats:
    """Estimate similarities as if each vector were one step from the average in each dimension."""
    in_bytes = np.ascontiguousarray(words.T).view(np.uint8)
    width = in_bytes.shape[1]
    padded = np.zeros(8 * width, np.float32)
    padded[: len(offset)] = offset
    # For each position and each of its 256 possible bytes: the sum of the query's numbers whose
    # bits are set.
    sums = (_SET @ padded.reshape(width, 8).T).ravel()
    above = sums.take(in_bytes.astype(np.intp) * width + np.arange(width)).sum(axis=1)
    found: Floats = estimates[1] + estimates[0] * (2 * above - offset.sum())
    return found


def _smallest(values: NDArray[Any], count: int) -> NDArray[np.intp]:
    found: NDArray[np.intp] = np.argpartition(values, count)[:count]
    return found


_SET: Final[Floats] = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(
    np.float32
)
_ONES: Final[NDArray[np.uint8]] = _SET.sum(axis=1).astype(np.uint8)


def _count_ones(words: Words) -> NDArray[np.uint8]:
    """Count the 1 bits of each word. numpy has a function for this since 2.0."""
    if hasattr(np, "bitwise_count"):
        found: NDArray[np.uint8] = np.bitwise_count(words)
        return found
    in_words: NDArray[np.uint8] = (
        _ONES[words.view(np.uint8)].reshape(*words.shape, 8).sum(axis=-1, dtype=np.uint8)
    )
    return in_words


def _count_differences(words: Words, question: Words) -> NDArray[np.uint16]:
    """Count the bits in which each vector differs from the query."""
    differences = np.zeros(words.shape[1], np.uint16)
    for row, word in zip(words, question, strict=True):
        differences += _count_ones(row ^ word)
    return differences


class VectorQuery(ABC):
    """A query vector for one namespace."""

    def __init__(self, index: MemoryIndex, space: StreamKey, model: str, question: Floats) -> None:
        self._index, self._space, self._model, self._question = index, space, model, question
        self._similarity: dict[int, float] = {}
        self._started: Future[list[MemoryDoc]] | None = None
        self.common = 0.0
        """The average similarity of all memories, to subtract before memories are compared."""
        self.count = 0
        """How many memories have a vector."""

    def _set_common(self, average: float, count: int) -> None:
        # A few memories may all be about the query, so `PRIOR_MEMORIES` neutral ones are added.
        self.common = average * count / (count + PRIOR_MEMORIES)
        self.count = count

    @abstractmethod
    def _is_slow(self) -> bool:
        """Whether the search takes long enough to be worth a thread."""

    @abstractmethod
    def _nearest(self, where: MemoryFilter, limit: int, enough: int) -> list[MemoryDoc]:
        """Implement `nearest`; set `common`, and put the similarities into `_similarity`."""

    def start(self, where: MemoryFilter, limit: int, enough: int) -> None:
        """Start a slow search in another thread, so that words can be searched meanwhile."""
        started: Future[list[MemoryDoc]] = Future()

        def find() -> None:
            try:
                started.set_result(self._nearest(where, limit, enough))
            except BaseException as error:  # raised by `nearest`
                started.set_exception(error)

        if self._is_slow():
            threading.Thread(target=find, name="holdfast-memory", daemon=True).start()
            self._started = started

    def nearest(self, where: MemoryFilter, limit: int, enough: int) -> list[MemoryDoc]:
        """Return the nearest matching memories, nearest first; at least `enough` if possible."""
        started, self._started = self._started, None
        return self._nearest(where, limit, enough) if started is None else started.result()

    def similarity(self, numbers: Collection[int]) -> dict[int, float]:
        """Return the cosine similarity of each of these memories that has a vector."""
        if missing := [number for number in numbers if number not in self._similarity]:
            found = self._index.vectors_of(self._space, self._model, missing)
            self._compare(list(found), list(found.values()))
        return {
            number: self._similarity[number] for number in numbers if number in self._similarity
        }

    def _compare(self, numbers: Sequence[int], vectors: Sequence[bytes]) -> None:
        if numbers:
            rows = np.frombuffer(b"".join(vectors), "<f4").reshape(len(numbers), -1)
            # Not `@`: for few rows its threads cost more than they save.
            similarity = np.einsum("ij,j->i", rows, self._question)
            self._similarity.update(zip(numbers, similarity.tolist(), strict=True))


class ServerVectorQuery(VectorQuery):
    """A query for an engine that compares vectors itself."""

    def __init__(
        self,
        index: MemoryIndex,
        space: StreamKey,
        model: str,
        question: Floats,
        server: PgvectorSearch,
    ) -> None:
        super().__init__(index, space, model, question)
        self._server = server

    def _is_slow(self) -> bool:
        return True

    def _nearest(self, where: MemoryFilter, limit: int, enough: int) -> list[MemoryDoc]:
        prepared = self._server.prepare(self._space, self._model, len(self._question))
        docs, average = prepared.nearest(self._question, where, limit, enough)
        self._set_common(average, prepared.count)
        self._similarity.update((doc.number, similarity) for doc, similarity in docs)
        return [doc for doc, _ in docs]


class LocalVectorQuery(VectorQuery):
    """A query that this process answers with its bits."""

    def __init__(
        self, index: MemoryIndex, space: StreamKey, model: str, question: Floats, bits: BitVectors
    ) -> None:
        super().__init__(index, space, model, question)
        self._bits = bits
        if bits.mean is not None:
            self._set_common(float(bits.mean @ question), bits.count)

    def _is_slow(self) -> bool:
        return self._index.is_remote and self._bits.count > EXACT_VECTORS

    def _nearest(self, where: MemoryFilter, limit: int, enough: int) -> list[MemoryDoc]:
        bits, count = self._bits, max(EXACT_VECTORS, limit)
        if where.source is None:
            with bits.lock:
                places, everything = bits.nearest(self._question, count), bits.count <= count
            found = self._filter_exact(places, where, limit, 0 if everything else enough)
            if len(found) >= enough or everything:
                return found
        # Too few of the nearest memories match the filter, so compare only memories that match it.
        among = np.asarray(self._index.numbers(self._space, where), np.int64)
        with bits.lock:
            places = bits.nearest(self._question, count, among)
        return self._filter_exact(places, where, limit, 0)

    def _filter_exact(
        self, places: Numbers, where: MemoryFilter, limit: int, enough: int
    ) -> list[MemoryDoc]:
        """Return the memories at these places that match, nearest first.

        Stops early if it expects fewer than `enough`.
        """
        vectors = self._index.vectors_at(self._space, self._model, places.tolist())
        numbers = [one.number for one in vectors]
        self._compare(numbers, [one.values for one in vectors])
        numbers.sort(key=lambda number: -self._similarity[number])
        found: list[MemoryDoc] = []
        for start in range(0, len(numbers), limit):
            page = numbers[start : start + limit]
            docs = {doc.number: doc for doc in self._index.docs(self._space, page, where)}
            found += [docs[number] for number in page if number in docs]
            expected = len(found) * len(numbers) / (start + limit)
            if len(found) >= limit or expected < enough:
                break
        return found[:limit]
