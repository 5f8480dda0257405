"""A namespace and its embedder: the question becomes a vector, and so do memories that have none yet."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import Unavailable
from ..resources import vectors_of
from .calls import CallBlocking, EmbedderFailed, Script

if TYPE_CHECKING:
    from ..memory import MemoryBase
    from .backfill import BackfillRequest
    from .embedding import Embedding, Floats


def as_vector(
    memory: MemoryBase, query: str, vector: Iterable[float] | None
) -> Script[Floats | None]:
    """The question as a vector, if there is an embedder, after new memories have got theirs; within the time that it has."""
    embedding = memory._embedding
    if embedding is None or not memory._weights.meaning:
        return None
    from .embedding import given

    vectors, until = vectors_of(memory._log), monotonic() + embedding.patience
    brought = None if vector is None else given(vector)
    question = brought
    if question is None:
        question = yield from vectors.question(embedding, query, until)
    if question is not None:
        asking = yield CallBlocking(partial(_asking, memory, embedding, until))
        yield from vectors.fill(asking, question, brought=brought is not None)
    return question


def all_embedded(memory: MemoryBase) -> Script[int]:
    """Have everything embedded that has no vector, however long it takes."""
    embedding = memory._embedding
    if embedding is None:
        name = repr(memory.namespace)
        raise ValueError(
            f"the memory {name} has no embedder, which makes the vectors; give it one, store.memory({name}, embed=…), or all"
            " memories of the store, holdfast.open(…, embed=…)"
        )
    asking = yield CallBlocking(partial(_asking, memory, embedding, None))
    try:
        return (yield from vectors_of(memory._log).fill_all(asking))
    except EmbedderFailed as error:
        raise Unavailable(
            f"the embedder {embedding.name} failed: {error}. The vectors that it has made are kept: see to it that it answers,"
            " and call embed_all again, which goes on from there"
        ) from error.__cause__


def _asking(memory: MemoryBase, embedding: Embedding, until: float | None) -> BackfillRequest:
    """What is asked of the embedder about memories. Blocks."""
    from .backfill import BackfillRequest

    return BackfillRequest(
        memory._current(), memory._key, embedding, vectors_of(memory._log).callers, until
    )
