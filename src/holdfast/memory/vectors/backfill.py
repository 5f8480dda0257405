"""Backfill missing vectors during a recall, even of memories written without an embedder."""

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
from ...backends.fork import Forkable, register_forkable
from ...log.drivers import EffectGen
from ..model import MemoryDoc
from ..search.index import MemoryIndex
from .calls import CallBlocking, EmbedderFailed, EmbedderThreads, EmbedderTimeout, WaitForFuture
from .embedding import BATCH_TEXTS, Embedding
from .nearest import BitVectors, LocalVectorQuery, ServerVectorQuery, VectorQuery

if TYPE_CHECKING:
    from .embedding import Floats

logger = logging.getLogger("holdfast")

MAX_BITS_BYTES: Final = 256 * 2**20
"""The maximum in one process. The least recently used namespaces are dropped, and reread on use."""
MAX_NAMESPACES: Final = 1_000
RECALL_TEXTS: Final = BATCH_TEXTS
"""How many memories one recall embeds. Its caller must not wait for a hundred thousand of them."""
MAX_PAUSE_SECONDS: Final = 60.0
"""Longest pause between calls of an embedder that keeps failing."""
MAX_FAILED_CALLS: Final = 40
"""How many calls may fail before a backfill stops. Finding one bad text in 256 takes about ten."""
PROBE_TEXT: Final = "Is anybody there?"


@dataclass(frozen=True)
class BackfillRequest:
    """A request to embed the memories of a namespace.

    `until` is a `time.monotonic` value; None means no limit.
    """

    index: MemoryIndex
    space: StreamKey
    embedding: Embedding
    threads: EmbedderThreads
    until: float | None


class WrongDimension(EmbedderFailed):
    """Vectors of the query and of the memories differ in dimension."""


class EmbedderHealth:
    """Recent failures of an embedder, so that one that is down does not slow every recall."""

    def __init__(self) -> None:
        self._failures, self._until = 0, 0.0

    def is_paused(self) -> bool:
        return time.monotonic() < self._until

    def record_failure(self, name: str, error: EmbedderFailed) -> None:
        """Pause the embedder after a second failure, and longer after each further one.

        Callers that fail together count as one failure.
        """
        if self.is_paused():
            return
        self._failures = min(self._failures + 1, 10)
        pause = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 1), MAX_PAUSE_SECONDS)
        self._until = time.monotonic() + pause
        logger.warning(
            "the embedder %s failed, so memories are recalled by words only: %s", name, error
        )

    def record_success(self) -> None:
        self._failures = 0


class Backfill:
    """The vectors of one namespace and model in this process. One caller at a time adds more."""

    def __init__(self) -> None:
        self.bits = BitVectors()
        self._lock = threading.Lock()
        self._running: Future[None] | None = None
        self._rejected: set[int] = set()
        self._done, self._batch = 0, BATCH_TEXTS

    def try_start(self) -> Future[None] | None:
        """Start adding vectors. If another caller is adding some, return its future, else None."""
        with self._lock:
            if self._running is None:
                self._running = Future()
                self._running.set_running_or_notify_cancel()  # a waiter cannot cancel it
                return None
            return self._running

    def finish(self) -> None:
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.set_result(None)

    def fill_gen(
        self, request: BackfillRequest, model: str, dimension: int, most: int
    ) -> EffectGen[int]:
        """Embed up to `most` memories without a vector; return how many were tried.

        Raises `EmbedderFailed` if the embedder keeps failing.
        """
        tried = failures = 0
        # New memories are at the end. If more vectors are missing, older memories have lost theirs,
        # because their text changed.
        for start in dict.fromkeys((self._done, 0)):
            after = start
            while tried < most:
                docs = yield CallBlocking(
                    partial(
                        self._read_missing, request, model, after, min(self._batch, most - tried)
                    )
                )
                if docs is None:
                    return tried
                if not docs:
                    break
                wanted = [doc for doc in docs if doc.number not in self._rejected]
                failures = yield from self._embed_gen(request, model, dimension, wanted, failures)
                after = docs[-1].number
                self._done = max(self._done, after)
                tried += len(wanted)
        return tried

    def _read_missing(
        self, request: BackfillRequest, model: str, after: int, limit: int
    ) -> Sequence[MemoryDoc] | None:
        """Return the next memories without a vector; None if all have one."""
        memories, models = request.index.models(request.space)
        if memories - models.get(model, 0) <= len(self._rejected):
            return None
        return request.index.without_vector(request.space, model, after, limit, clock.time())

    def _embed_gen(
        self,
        request: BackfillRequest,
        model: str,
        dimension: int,
        docs: Sequence[MemoryDoc],
        failures: int,
    ) -> EffectGen[int]:
        """Embed memories; return the number of failed calls so far.

        A batch that fails is halved until the rejected text is on its own.
        """
        if not docs:
            return failures
        embedding, threads, until = request.embedding, request.threads, request.until
        try:
            rows = yield from embedding.embed_texts_gen(threads, [doc.text for doc in docs], until)
        except EmbedderTimeout:
            self._batch = max(len(docs) // 2, 1)  # perhaps too many for the time limit
            raise
        except EmbedderFailed:
            failures += 1
            if failures > MAX_FAILED_CALLS:
                raise
            # If this fails too, the texts are not the cause.
            yield from embedding.embed_texts_gen(threads, [PROBE_TEXT], until)
            if len(docs) == 1:
                self._rejected.add(docs[0].number)
                logger.warning(
                    "the embedder %s rejects a memory of %s", embedding.name, request.space
                )
                return failures
            half = len(docs) // 2
            failures = yield from self._embed_gen(request, model, dimension, docs[:half], failures)
            return (yield from self._embed_gen(request, model, dimension, docs[half:], failures))
        if rows.shape[1] != dimension:
            raise WrongDimension(f"queries have {dimension} dimensions, memories {rows.shape[1]}")
        vectors = [(doc, row.astype("<f4").tobytes()) for doc, row in zip(docs, rows, strict=True)]
        yield CallBlocking(partial(request.index.put_vectors, request.space, model, vectors))
        return failures


class StoreVectors(Forkable):
    """The vectors of all namespaces of a store in this process, and the threads of embedders."""

    def __init__(self) -> None:
        self._reset()
        register_forkable(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._backfills: OrderedDict[tuple[StreamKey, str], Backfill] = OrderedDict()
        self._health: dict[str, EmbedderHealth] = {}
        self.threads = EmbedderThreads()

    def health(self, embedding: Embedding) -> EmbedderHealth:
        return self._health.setdefault(embedding.name, EmbedderHealth())

    def embed_queries_gen(
        self, embedding: Embedding, queries: Sequence[str], until: float
    ) -> EffectGen[Sequence[Floats] | None]:
        """Return the vectors of queries; None if the embedder fails or has just failed."""
        health = self.health(embedding)
        if health.is_paused():
            return None
        try:
            return (yield from embedding.embed_queries_gen(self.threads, queries, until))
        except EmbedderFailed as error:
            health.record_failure(embedding.name, error)
            return None

    def fill_gen(
        self, request: BackfillRequest, question: Floats, *, from_caller: bool
    ) -> EffectGen[None]:
        """Embed memories without a vector, as many as one recall waits for.

        `from_caller` means that the caller passed the vector of the query.
        """
        health = self.health(request.embedding)
        if health.is_paused():
            return
        try:
            yield from self._fill_gen(request, len(question), RECALL_TEXTS)
            health.record_success()
        except EmbedderFailed as error:
            if from_caller and isinstance(error, WrongDimension):
                raise ValueError(
                    f"vector must be from this embedder's model, but {error}"
                ) from None
            health.record_failure(request.embedding.name, error)

    def fill_all_gen(self, request: BackfillRequest) -> EffectGen[int]:
        """Embed all memories without a vector; return how many. Raises `EmbedderFailed`."""
        [probe] = yield from request.embedding.embed_queries_gen(
            self.threads, [PROBE_TEXT], request.until
        )
        embedded = 0
        while (some := (yield from self._fill_gen(request, len(probe), RECALL_TEXTS))) != 0:
            embedded += some or 0
        self.health(request.embedding).record_success()
        return embedded

    def _fill_gen(
        self, request: BackfillRequest, dimension: int, most: int
    ) -> EffectGen[int | None]:
        """Embed some memories. If another caller is embedding, wait for it first, once.

        Returns None if yet another caller has started by then. Waiting is worth it, because the
        other caller may be embedding what this one needs, and short, because it embeds no more than
        this one would.
        """
        model = request.embedding.model_name(dimension)
        backfill = self._get_backfill(request.space, model)
        if (other := backfill.try_start()) is not None:
            yield WaitForFuture(other, request.until)
            if backfill.try_start() is not None:
                return None
        try:
            return (yield from backfill.fill_gen(request, model, dimension, most))
        finally:
            backfill.finish()

    def open_query(
        self, index: MemoryIndex, space: StreamKey, embedding: Embedding, question: Floats
    ) -> VectorQuery:
        """Return the query that finds the memories nearest to a vector. Blocks."""
        model = embedding.model_name(len(question))
        query = _build_server_query(index, space, model, question)
        if query is None:
            backfill = self._get_backfill(space, model)
            with backfill.bits.lock:
                backfill.bits.catch_up(index, space, model, index.models(space)[1].get(model, 0))
            query = LocalVectorQuery(index, space, model, question, backfill.bits)
        self._evict()
        return query

    def close(self) -> None:
        self.threads.close()

    def _get_backfill(self, space: StreamKey, model: str) -> Backfill:
        with self._lock:
            backfill = self._backfills.setdefault((space, model), Backfill())
            self._backfills.move_to_end((space, model))
            return backfill

    def _evict(self) -> None:
        with self._lock:
            total = sum(backfill.bits.nbytes for backfill in self._backfills.values())
            while len(self._backfills) > 1 and (
                total > MAX_BITS_BYTES or len(self._backfills) > MAX_NAMESPACES
            ):
                total -= self._backfills.popitem(last=False)[1].bits.nbytes

    def after_fork_in_child(self) -> None:
        # Another thread of the parent may have held the lock.
        self._reset()


def _build_server_query(
    index: MemoryIndex, space: StreamKey, model: str, question: Floats
) -> VectorQuery | None:
    """Return the query for an engine that compares vectors itself; None if the engine doesn't."""
    server = index.vector_search()
    if server is None or not server.supports(len(question)):
        return None
    return ServerVectorQuery(index, space, model, question, server)
