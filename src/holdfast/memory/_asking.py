"""A namespace and its embedder: the question becomes a vector, and so do memories that have none yet."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import Unavailable
from ._calling import EmbedderFailed, Look, Script
from ._resources import vectors_of

if TYPE_CHECKING:
    from ._embedding import Embedding, Floats
    from ._filling import Asking
    from ._memory import _Shape


def as_vector(memory: _Shape, query: str, vector: Iterable[float] | None) -> Script[Floats | None]:
    """The question as a vector, if there is an embedder, after new memories have got theirs; within the time that it has."""
    embedding = memory._embedding
    if embedding is None or not memory._weights.meaning:
        return None
    from ._embedding import given

    vectors, until = vectors_of(memory._log), monotonic() + embedding.patience
    brought = None if vector is None else given(vector)
    question = brought
    if question is None:
        question = yield from vectors.question(embedding, query, until)
    if question is not None:
        asking = yield Look(partial(_asking, memory, embedding, until))
        yield from vectors.fill(asking, question, brought=brought is not None)
    return question


def all_embedded(memory: _Shape) -> Script[int]:
    """Have everything embedded that has no vector, however long it takes."""
    embedding = memory._embedding
    if embedding is None:
        name = repr(memory.namespace)
        raise ValueError(
            f"the memory {name} has no embedder, which makes the vectors; give it one, store.memory({name}, embed=…), or all"
            " memories of the store, holdfast.open(…, embed=…)"
        )
    asking = yield Look(partial(_asking, memory, embedding, None))
    try:
        return (yield from vectors_of(memory._log).fill_all(asking))
    except EmbedderFailed as error:
        raise Unavailable(
            f"the embedder {embedding.name} failed: {error}. The vectors that it has made are kept: see to it that it answers,"
            " and call embed_all again, which goes on from there"
        ) from error.__cause__


def _asking(memory: _Shape, embedding: Embedding, until: float | None) -> Asking:
    """What is asked of the embedder about memories. Blocks."""
    from ._filling import Asking

    return Asking(memory._current(), memory._key, embedding, vectors_of(memory._log).callers, until)
