"""Call the user's embedder: texts in, vectors of length 1 out, or the reason why it failed."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ...errors import MissingExtra
from ...log.drivers import EffectGen
from .calls import CallBlocking, CallEmbedder, EmbedderFailed, EmbedderThreads, is_async

try:
    import numpy as np
except ImportError:
    raise MissingExtra("embed=", "memory") from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

BATCH_TEXTS: Final = 256
"""How many texts a call of the embedder gets."""
DEFAULT_TIMEOUT_SECONDS: Final = 10.0
"""How long a recall waits for an embedder without a `timeout`."""
MAX_TIMEOUT_SECONDS: Final = 86_400.0

Embed = Callable[[list[str]], "Iterable[Any] | Awaitable[Iterable[Any]]"]


class Embedding:
    """A user's embedder."""

    def __init__(self, embed: Embed, *, allow_async: bool) -> None:
        if not callable(embed):
            raise TypeError(
                "embed must be a function from a list of texts to as many vectors,"
                f" got {type(embed).__name__}"
            )
        self.is_async = is_async(embed)
        if not allow_async and self.is_async:
            raise TypeError(
                "embed must be a synchronous function, got an async one; for an async one, use"
                " holdfast.aopen or store.aio"
            )
        self._embed, self._query = embed, getattr(embed, "query", None)
        self._query_is_async = self._query is not None and (self.is_async or is_async(self._query))
        self.name, self.timeout = identify_embedder(embed), _read_timeout(embed)

    def model_name(self, dimension: int) -> str:
        """Return the name of the model in the index. Vectors of other models are never compared."""
        return f"{self.name}/{dimension}"

    def is_model(self, model: str) -> bool:
        return model.rpartition("/")[0] == self.name

    def embed_queries_gen(
        self, threads: EmbedderThreads, queries: Sequence[str], until: float | None
    ) -> EffectGen[Sequence[Floats]]:
        """Return the vectors of queries, from the embedder's `query` if it has one."""
        if self._query is None:
            return list((yield from self.embed_texts_gen(threads, list(queries), until)))
        rows = []
        for query in queries:
            call = CallEmbedder(threads, partial(self._query, query), self._query_is_async, until)
            rows.append((yield from _call_gen(call)))
        return list(_to_rows(rows, len(queries)))

    def embed_texts_gen(
        self, threads: EmbedderThreads, texts: list[str], until: float | None
    ) -> EffectGen[Floats]:
        """Return the vectors of texts, one row for each."""
        call = CallEmbedder(threads, partial(self._embed, texts), self.is_async, until)
        vectors = yield from _call_gen(call)
        if len(texts) == 1:
            return _to_rows(vectors, 1)
        rows: Floats = yield CallBlocking(partial(_to_rows, vectors, len(texts)))
        return rows


def _call_gen(call: CallEmbedder) -> EffectGen[Any]:
    try:
        return (yield call)
    except EmbedderFailed:
        raise
    except Exception as error:
        raise _to_failure(error) from error


def _to_failure(error: Exception) -> EmbedderFailed:
    # Only the type: an embedder's error message may quote the text.
    return EmbedderFailed(f"it raised {type(error).__name__}")


def _to_rows(vectors: Iterable[Any], count: int) -> Floats:
    try:
        rows = np.asarray([np.asarray(row, dtype=np.float32) for row in vectors], dtype=np.float32)
    except Exception as error:
        raise _to_failure(error) from error
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise EmbedderFailed(f"it returned an array of shape {rows.shape} for {count} texts")
    return scale_to_unit(rows)


def scale_to_unit(rows: Floats) -> Floats:
    """Scale each row to length 1. A row that isn't finite becomes 0: it is similar to nothing."""
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, np.float32(0)).astype(
        np.float64
    )
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def check_vector(vector: Iterable[float]) -> Floats:
    """Check the vector of a query that the caller passed."""
    try:
        row = np.asarray(vector if hasattr(vector, "__len__") else list(vector), dtype=np.float32)
    except (TypeError, ValueError):
        raise TypeError(
            f"vector must be a sequence of numbers, got {type(vector).__name__}"
        ) from None
    if row.ndim != 1 or not row.size or not np.isfinite(row).all():
        raise ValueError(
            f"vector must be one row of finite numbers, got an array of shape {row.shape}"
        )
    found: Floats = scale_to_unit(row[None])[0]
    return found


# -- attributes of embedders ----------------------------------------------------------------------


def identify_embedder(embed: object) -> str:
    """Return the name of an embedder: its `name`, or where a plain function is defined.

    Any other callable needs a name: the same code may create two of them with different models, and
    vectors of one model must not be compared with queries of the other.
    """
    name = getattr(embed, "name", None)
    if isinstance(name, str) and name:
        return name
    qualname, owner = getattr(embed, "__qualname__", "<object>"), getattr(embed, "__self__", None)
    inside = getattr(embed, "__closure__", None) or getattr(embed, "__defaults__", None)
    module = getattr(embed, "__module__", "")
    if module == "__main__":  # use the name of its file: two scripts may define the same function
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or module).stem
    unnamed = any(part in f"{module}.{qualname}" for part in ("<object>", "<lambda>")) or (
        "<locals>" in qualname and inside
    )
    if unnamed or not (owner is None or isinstance(owner, ModuleType)):
        raise ValueError(
            "embed needs a name that changes with its model, so that vectors of two models are"
            " never mixed; use holdfast.memory.embedders.Embedder(embed, name='my-model-1'), or"
            " add an attribute `name`"
        )
    return f"{module}.{qualname}"


def _read_timeout(embed: object) -> float:
    """Return the embedder's `timeout`, or the default if that is not a number of seconds."""
    seconds: Any = getattr(embed, "timeout", None)
    if type(seconds) not in (int, float) or not seconds > 0:
        return DEFAULT_TIMEOUT_SECONDS
    return min(float(seconds), MAX_TIMEOUT_SECONDS)
