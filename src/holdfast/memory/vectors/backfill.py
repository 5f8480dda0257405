"""Every memory gets its vector: when something is recalled, by whoever has an embedder, also for what a program without one remembered."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ...backends import StreamKey, clock
from ...backends.fork import Forkable, register
from ..model import MemoryDoc
from ..search.index import MemoryIndex
from .calls import CallBlocking, Callers, EmbedderFailed, Script, TooSlow, WaitForFuture
from .embedding import BATCH, Embedding
from .nearest import BitVectors, LocalVectorQuery, ServerVectorQuery, VectorQuery

if TYPE_CHECKING:
    from .embedding import Floats

logger = logging.getLogger("holdfast")

MOST_BYTES: Final = 256 * 2**20
"""Of bits in one process; those of the namespaces that were not used for the longest time are dropped, and read again when needed."""
MOST_NAMESPACES: Final = 1_000
SLICE: Final = BATCH
"""So many memories get their vectors in one recall, at most: whoever asks does not wait for a hundred thousand of them."""
REST_SECONDS: Final = 60.0
"""An embedder that keeps failing is left alone for at most so long."""
MOST_REFUSALS: Final = 40
"""Calls that may fail before one gives up for now. To find one bad text among 256 takes about ten."""
PROBE: Final = "Is anybody there?"


@dataclass(frozen=True)
class BackfillRequest:
    """Who asks where, and until when he waits (of `time.monotonic`; None: as long as it takes)."""

    index: MemoryIndex
    space: StreamKey
    embedding: Embedding
    callers: Callers
    until: float | None


class WrongLength(EmbedderFailed):
    """The vector of the question and those of the memories cannot be compared."""


class EmbedderTrouble:
    """What went wrong with an embedder in this process, so that one that is down does not slow every recall."""

    def __init__(self) -> None:
        self._failures, self._until = 0, 0.0

    def resting(self) -> bool:
        return time.monotonic() < self._until

    def failed(self, name: str, error: EmbedderFailed) -> None:
        """The first time it is asked again at once, then later and later. Those who ask together fail together: that is once."""
        if self.resting():
            return
        self._failures = min(self._failures + 1, 10)
        rest = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 1), REST_SECONDS)
        self._until = time.monotonic() + rest
        logger.warning(
            "the embedder %s failed, so memories are recalled by their words alone: %s", name, error
        )

    def worked(self) -> None:
        self._failures = 0


class Backfill:
    """The vectors of one namespace and model, as far as this process has to do with them. One at a time makes more of them."""

    def __init__(self) -> None:
        self.bits = BitVectors()
        self._lock = threading.Lock()
        self._running: Future[None] | None = None
        self._refused: set[int] = set()
        self._done, self._batch = 0, BATCH

    def begin(self) -> Future[None] | None:
        """Have the word. None, or what tells when whoever has it is done."""
        with self._lock:
            if self._running is None:
                self._running = Future()
                self._running.set_running_or_notify_cancel()  # nobody who waits for it can take it away
                return None
            return self._running

    def end(self) -> None:
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.set_result(None)

    def fill(self, asking: BackfillRequest, model: str, dimension: int, most: int) -> Script[int]:
        """Have vectors made for memories that have none, `most` of them; how many were looked at. `EmbedderFailed` if that does not go on."""
        looked = failures = 0
        # New memories are at the end. Only if there are more, older ones have lost theirs because their text has changed.
        for start in dict.fromkeys((self._done, 0)):
            after = start
            while looked < most:
                docs = yield CallBlocking(
                    partial(self._without, asking, model, after, min(self._batch, most - looked))
                )
                if docs is None:
                    return looked
                if not docs:
                    break
                wanted = [doc for doc in docs if doc.number not in self._refused]
                failures = yield from self._put(asking, model, dimension, wanted, failures)
                after = docs[-1].number
                self._done = max(self._done, after)
                looked += len(wanted)
        return looked

    def _without(
        self, asking: BackfillRequest, model: str, after: int, limit: int
    ) -> Sequence[MemoryDoc] | None:
        """The next that have no vector; None if all have one."""
        memories, made = asking.index.models(asking.space)
        if memories - made.get(model, 0) <= len(self._refused):
            return None
        return asking.index.without_vector(asking.space, model, after, limit, clock.time())

    def _put(
        self,
        asking: BackfillRequest,
        model: str,
        dimension: int,
        docs: Sequence[MemoryDoc],
        failures: int,
    ) -> Script[int]:
        """Have these embedded; how often that failed until now. A batch is halved until the text that is refused stands alone."""
        if not docs:
            return failures
        embedding, callers, until = asking.embedding, asking.callers, asking.until
        try:
            rows = yield from embedding.texts(callers, [doc.text for doc in docs], until)
        except TooSlow:
            self._batch = max(
                len(docs) // 2, 1
            )  # perhaps there were too many for the time there is
            raise
        except EmbedderFailed:
            failures += 1
            if failures > MOST_REFUSALS:
                raise
            yield from embedding.texts(
                callers, [PROBE], until
            )  # if this fails too, it is not about the texts
            if len(docs) == 1:
                self._refused.add(docs[0].number)
                logger.warning(
                    "the embedder %s refuses a memory of %s", embedding.name, asking.space
                )
                return failures
            half = len(docs) // 2
            failures = yield from self._put(asking, model, dimension, docs[:half], failures)
            return (yield from self._put(asking, model, dimension, docs[half:], failures))
        if rows.shape[1] != dimension:
            raise WrongLength(f"a question has {dimension} numbers, and a memory {rows.shape[1]}")
        made = [(doc, row.astype("<f4").tobytes()) for doc, row in zip(docs, rows, strict=True)]
        yield CallBlocking(partial(asking.index.put_vectors, asking.space, model, made))
        return failures


class StoreVectors(Forkable):
    """What a process holds of vectors, for all namespaces of a store, and the threads in which embedders are called."""

    def __init__(self) -> None:
        self._start()
        register(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._fillings: OrderedDict[tuple[StreamKey, str], Backfill] = OrderedDict()
        self._troubles: dict[str, EmbedderTrouble] = {}
        self.callers = Callers()

    def trouble(self, embedding: Embedding) -> EmbedderTrouble:
        return self._troubles.setdefault(embedding.name, EmbedderTrouble())

    def question(self, embedding: Embedding, query: str, until: float) -> Script[Floats | None]:
        """The question as a vector; None if the embedder fails, or has failed just now."""
        trouble = self.trouble(embedding)
        if trouble.resting():
            return None
        try:
            return (yield from embedding.question(self.callers, query, until))
        except EmbedderFailed as error:
            trouble.failed(embedding.name, error)
            return None

    def fill(self, asking: BackfillRequest, question: Floats, *, brought: bool) -> Script[None]:
        """Have vectors made for what has none yet, as far as one recall waits for that. `brought`: the question's is the caller's own."""
        trouble = self.trouble(asking.embedding)
        if trouble.resting():
            return
        try:
            yield from self._fill(asking, len(question), SLICE)
            trouble.worked()
        except EmbedderFailed as error:
            if brought and isinstance(error, WrongLength):
                raise ValueError(f"vector does not fit this embedder: {error}") from None
            trouble.failed(
                asking.embedding.name, error
            )  # it goes on with the vectors that there are

    def fill_all(self, asking: BackfillRequest) -> Script[int]:
        """Have vectors made for all that have none; how many. `EmbedderFailed` if that does not go on."""
        question = yield from asking.embedding.question(self.callers, PROBE, asking.until)
        made = 0
        while (some := (yield from self._fill(asking, len(question), SLICE))) != 0:
            made += some or 0
        self.trouble(asking.embedding).worked()
        return made

    def _fill(self, asking: BackfillRequest, dimension: int, most: int) -> Script[int | None]:
        """Have some vectors made. If somebody is at it, wait for that, once; None if another one is then.

        They wait because what they ask for may just be in the making, and not for long: he does no more than this either.
        """
        model = asking.embedding.model(dimension)
        filling = self._of(asking.space, model)
        if (other := filling.begin()) is not None:
            yield WaitForFuture(other, asking.until)
            if filling.begin() is not None:
                return None
        try:
            return (yield from filling.fill(asking, model, dimension, most))
        finally:
            filling.end()

    def meaning(
        self, index: MemoryIndex, space: StreamKey, embedding: Embedding, question: Floats
    ) -> VectorQuery:
        """What finds the memories that mean what is asked. Blocks."""
        model = embedding.model(len(question))
        meaning = _served(index, space, model, question)
        if meaning is None:
            filling = self._of(space, model)
            with filling.bits.lock:
                filling.bits.catch_up(index, space, model, index.models(space)[1].get(model, 0))
            meaning = LocalVectorQuery(index, space, model, question, filling.bits)
        self._make_room()
        return meaning

    def close(self) -> None:
        self.callers.close()

    def _of(self, space: StreamKey, model: str) -> Backfill:
        with self._lock:
            filling = self._fillings.setdefault((space, model), Backfill())
            self._fillings.move_to_end((space, model))
            return filling

    def _make_room(self) -> None:
        with self._lock:
            held = sum(filling.bits.nbytes for filling in self._fillings.values())
            while len(self._fillings) > 1 and (
                held > MOST_BYTES or len(self._fillings) > MOST_NAMESPACES
            ):
                held -= self._fillings.popitem(last=False)[1].bits.nbytes

    # -- a copied process starts with nothing: another thread may have been at it ----------------

    def after_fork_in_child(self) -> None:
        self._start()


def _served(
    index: MemoryIndex, space: StreamKey, model: str, question: Floats
) -> VectorQuery | None:
    """The question for an engine that compares vectors by itself; None if this one does not."""
    server = index.comparing()
    if server is None or not server.takes(len(question)):
        return None
    return ServerVectorQuery(index, space, model, question, server)
