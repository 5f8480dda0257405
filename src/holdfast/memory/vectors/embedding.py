"""Calling the user's embedder: texts go in, vectors of length 1 come out, or it is known why not."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ...errors import MissingExtra
from .calls import CallBlocking, CallEmbedder, Callers, EmbedderFailed, Script, is_async

try:
    import numpy as np
except ImportError:
    raise MissingExtra("embed=", "memory") from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

BATCH: Final = 256
"""So many texts are handed to the embedder at once."""
PATIENCE: Final = 10.0
"""So many seconds a recall waits for an embedder that does not say otherwise."""
LONGEST: Final = 86_400.0

Embed = Callable[[list[str]], "Iterable[Any] | Awaitable[Iterable[Any]]"]


class Embedding:
    """A user's embedder."""

    def __init__(self, embed: Embed, *, awaited: bool) -> None:
        if not callable(embed):
            raise TypeError("embed must be a function: a list of texts in, as many vectors out")
        self.is_async = is_async(embed)
        if not awaited and self.is_async:
            raise TypeError(
                "this embedder is async, and this store is not: use holdfast.aopen or store.aio, or a plain function"
            )
        self._embed, self._ask = embed, getattr(embed, "query", None)
        self._asks_async = self._ask is not None and (self.is_async or is_async(self._ask))
        self.name, self.patience = name_of(embed), _patience(embed)

    def model(self, dimension: int) -> str:
        """What vectors of this embedder are kept under. Those of another name or length are never compared with them."""
        return f"{self.name}/{dimension}"

    def made(self, model: str) -> bool:
        return model.rpartition("/")[0] == self.name

    def question(self, callers: Callers, query: str, until: float | None) -> Script[Floats]:
        """The vector of a question: by the embedder's `query`, if it has one, as some models need."""
        if self._ask is None:
            rows = yield from self.texts(callers, [query], until)
        else:
            try:
                made = yield CallEmbedder(
                    callers, partial(self._ask, query), self._asks_async, until
                )
            except EmbedderFailed:
                raise
            except Exception as error:
                raise _failed(error) from error
            rows = _rows([made], 1)
        row: Floats = rows[0]
        return row

    def texts(self, callers: Callers, texts: list[str], until: float | None) -> Script[Floats]:
        """The vectors of texts, one row for each."""
        try:
            made = yield CallEmbedder(callers, partial(self._embed, texts), self.is_async, until)
        except EmbedderFailed:
            raise
        except Exception as error:
            raise _failed(error) from error
        if len(texts) == 1:
            return _rows(made, 1)
        rows: Floats = yield CallBlocking(partial(_rows, made, len(texts)))
        return rows


def _failed(error: Exception) -> EmbedderFailed:
    # Only its kind: what an embedder says may quote the text.
    return EmbedderFailed(f"it raised {type(error).__name__}")


def _rows(made: Iterable[Any], count: int) -> Floats:
    try:
        rows = np.asarray([np.asarray(row, dtype=np.float32) for row in made], dtype=np.float32)
    except Exception as error:
        raise _failed(error) from error
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise EmbedderFailed(f"for {count} texts it gave an array of the shape {rows.shape}")
    return unit(rows)


def unit(rows: Floats) -> Floats:
    """Each row with the length 1. One that is no direction (all 0, or not finite) becomes all 0: it is like nothing."""
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, np.float32(0)).astype(
        np.float64
    )
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def given(vector: Iterable[float]) -> Floats:
    """The vector of a question that the caller brought along."""
    try:
        row = np.asarray(vector if hasattr(vector, "__len__") else list(vector), dtype=np.float32)
    except (TypeError, ValueError):
        raise TypeError("vector is a sequence of numbers") from None
    if row.ndim != 1 or not row.size or not np.isfinite(row).all():
        raise ValueError(
            "vector is one row of finite numbers: what the embedder makes of the question"
        )
    found: Floats = unit(row[None])[0]
    return found


# -- what an embedder says of itself -----------------------------------------------------------------


def name_of(embed: object) -> str:
    """What tells one embedder from another: its `name`; of a plain function without one, where it is defined.

    Anything else may be made twice from the same place, with another model each time: then the vectors of the one would be
    compared with the questions of the other.
    """
    name = getattr(embed, "name", None)
    if isinstance(name, str) and name:
        return name
    qualname, owner = getattr(embed, "__qualname__", "<made>"), getattr(embed, "__self__", None)
    inside = getattr(embed, "__closure__", None) or getattr(embed, "__defaults__", None)
    module = getattr(embed, "__module__", "")
    if (
        module == "__main__"
    ):  # two programs may have one of that name: it goes by the name of its file
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or module).stem
    made = any(part in f"{module}.{qualname}" for part in ("<made>", "<lambda>")) or (
        "<locals>" in qualname and inside
    )
    if made or not (owner is None or isinstance(owner, ModuleType)):
        raise ValueError(
            "this embedder needs a name that changes with its model, or vectors of two models could be mixed up: "
            "holdfast.memory.embedders.Embedder(embed, name='my-model-1'), or an attribute `name`"
        )
    return f"{module}.{qualname}"


def _patience(embed: object) -> float:
    """For how long a recall waits for it. What is no number may be another thing of this name: the timeout of a client."""
    seconds: Any = getattr(embed, "timeout", None)
    return (
        min(float(seconds), LONGEST) if type(seconds) in (int, float) and seconds > 0 else PATIENCE
    )
