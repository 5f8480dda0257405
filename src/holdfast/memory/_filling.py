"""Every memory gets its vector: before a recall, by whoever has an embedder, also for what a program without one remembered."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..backends import StreamKey
from ..backends._fork import register
from ._embedding import BATCH, EmbedderFailed, Embedding
from ._index import VectorIndex
from ._model import Doc
from ._vectors import Bits, Meaning

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from ._embedding import Floats

logger = logging.getLogger("holdfast")

MOST_BYTES: Final = 256 * 2**20
"""Of bits in one process; those of the namespaces that were not used for the longest time are dropped, and read again when needed."""
MOST_NAMESPACES: Final = 1_000
REST_SECONDS: Final = 60.0
"""An embedder that keeps failing is left alone for at most so long."""
MOST_REFUSALS: Final = 40
"""Calls that may fail before one gives up for now. To find one bad text among 256 takes about ten."""
PROBE: Final = "Is anybody there?"


@dataclass(frozen=True)
class Asking:
    """Who asks where. `loop`: where an async embedder runs."""

    index: VectorIndex
    space: StreamKey
    embedding: Embedding
    loop: AbstractEventLoop | None


class WrongLength(EmbedderFailed):
    """The vector of the question and those of the memories cannot be compared."""


class Trouble:
    """What went wrong with an embedder in this process, so that one that is down does not slow every recall."""

    def __init__(self) -> None:
        self._failures, self._until = 0, 0.0

    def resting(self) -> bool:
        return time.monotonic() < self._until

    def failed(self, name: str, error: EmbedderFailed) -> None:
        """The first time it is asked again at once, then later and later."""
        self._failures += 1
        rest = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 1), REST_SECONDS)
        self._until = time.monotonic() + rest
        logger.warning("the embedder %s failed, so memories are recalled by their words alone: %s", name, error)

    def worked(self) -> None:
        self._failures = 0


class Filling:
    """The vectors of one namespace and model, as far as this process has to do with them."""

    def __init__(self) -> None:
        self.bits = Bits()
        self._lock = threading.Lock()
        self._refused: set[int] = set()
        self._done = 0

    def fill(self, asking: Asking, model: str, dimension: int) -> None:
        """Have a vector made for each memory that has none. `EmbedderFailed` if that does not go on."""
        index, space = asking.index, asking.space
        with self._lock:
            # New memories are at the end. Only if there are more, older ones have lost theirs because their text has changed.
            for start in dict.fromkeys((self._done, 0)):
                after, failures = start, 0
                while self._missing(index, space, model):
                    docs = index.without_vector(space, model, after, BATCH)
                    if not docs:
                        break
                    after = docs[-1].number
                    wanted = [doc for doc in docs if doc.number not in self._refused]
                    failures = self._put(asking, model, dimension, wanted, failures)
                    self._done = max(self._done, after)

    def _missing(self, index: VectorIndex, space: StreamKey, model: str) -> bool:
        memories, made = index.models(space)
        return memories - made.get(model, 0) > len(self._refused)

    def _put(self, asking: Asking, model: str, dimension: int, docs: Sequence[Doc], failures: int) -> int:
        """Have these embedded; how often that failed until now. A batch is halved until the text that is refused stands alone."""
        if not docs:
            return failures
        try:
            rows = asking.embedding.texts([doc.text for doc in docs], asking.loop)
        except EmbedderFailed:
            failures += 1
            if failures > MOST_REFUSALS:
                raise
            asking.embedding.texts([PROBE], asking.loop)  # if this fails too, it is not about the texts
            if len(docs) == 1:
                self._refused.add(docs[0].number)
                logger.warning("the embedder %s refuses a memory of %s", asking.embedding.name, asking.space)
                return failures
            half = len(docs) // 2
            failures = self._put(asking, model, dimension, docs[:half], failures)
            return self._put(asking, model, dimension, docs[half:], failures)
        if rows.shape[1] != dimension:
            raise WrongLength(f"a question has {dimension} numbers, and a memory {rows.shape[1]}")
        made = [(doc, row.astype("<f4").tobytes()) for doc, row in zip(docs, rows, strict=True)]
        asking.index.put_vectors(asking.space, model, made)
        return failures


class Vectors:
    """What a process holds of vectors, for all namespaces of a store."""

    def __init__(self) -> None:
        self._start()
        register(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._fillings: OrderedDict[tuple[StreamKey, str], Filling] = OrderedDict()
        self._troubles: dict[str, Trouble] = {}

    def ask(self, asking: Asking, query: str, vector: Floats | None) -> Meaning | None:
        """The question as a vector, after every memory has got one; None if the embedder fails."""
        index, space, embedding, loop = asking.index, asking.space, asking.embedding, asking.loop
        trouble = self._troubles.setdefault(embedding.name, Trouble())
        resting = trouble.resting()
        if vector is None and resting:
            return None
        try:
            question = embedding.question(query, loop) if vector is None else vector
        except EmbedderFailed as error:
            trouble.failed(embedding.name, error)
            return None
        model = embedding.model(len(question))
        filling = self._of(space, model)
        if not resting:
            try:
                filling.fill(asking, model, len(question))
                trouble.worked()
            except EmbedderFailed as error:
                if vector is not None and isinstance(error, WrongLength):
                    raise ValueError(f"vector does not fit this embedder: {error}") from None
                trouble.failed(embedding.name, error)  # it goes on with the vectors that there are
        with filling.bits.lock:
            filling.bits.catch_up(index, space, model, index.models(space)[1].get(model, 0))
        self._make_room()
        return Meaning(index, space, model, question, filling.bits)

    def _of(self, space: StreamKey, model: str) -> Filling:
        with self._lock:
            filling = self._fillings.setdefault((space, model), Filling())
            self._fillings.move_to_end((space, model))
            return filling

    def _make_room(self) -> None:
        with self._lock:
            held = sum(filling.bits.nbytes for filling in self._fillings.values())
            while len(self._fillings) > 1 and (held > MOST_BYTES or len(self._fillings) > MOST_NAMESPACES):
                held -= self._fillings.popitem(last=False)[1].bits.nbytes

    # -- a copied process starts with nothing: another thread may have been at it ----------------

    def before_fork(self) -> None:
        """Nothing: what is held here can be read again."""

    def after_fork_in_parent(self) -> None:
        """Nothing."""

    def after_fork_in_child(self) -> None:
        self._start()
