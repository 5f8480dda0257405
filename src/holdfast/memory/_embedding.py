"""Calling the user's embedder: texts go in, vectors of length 1 come out, or it is known why not."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingExtra

try:
    import numpy as np
except ImportError:
    raise MissingExtra("embed=", "memory") from None

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

BATCH: Final = 256
"""So many texts are handed to the embedder at once."""
LOOK_SECONDS: Final = 0.5
"""So often a waiting thread looks whether its event loop still runs."""

Embed = Callable[[list[str]], "Iterable[Any] | Awaitable[Iterable[Any]]"]


class EmbedderFailed(Exception):
    """An embedder gave no vectors. Never shown to users: a recall goes on without it, and the log says so."""


class Embedding:
    """A user's embedder. `loop`, where one is given, is where its coroutines run."""

    def __init__(self, embed: Embed, *, awaited: bool) -> None:
        if not callable(embed):
            raise TypeError("embed is a function: a list of texts in, as many vectors out")
        if not awaited and _is_async(embed):
            raise TypeError(
                "this embedder is async, and this store is not: use store.aio.memory(…), or a plain function"
            )
        self._embed = embed
        self._ask = getattr(embed, "query", None)
        self.name = name_of(embed)

    def model(self, dimension: int) -> str:
        """What vectors of this embedder are kept under. Those of another name or length are never compared with them."""
        return f"{self.name}/{dimension}"

    def made(self, model: str) -> bool:
        return model.rpartition("/")[0] == self.name

    def question(self, query: str, loop: AbstractEventLoop | None) -> Floats:
        """The vector of a question: by the embedder's `query`, if it has one, as some models need."""
        rows = self._called(lambda: self._embed([query]) if self._ask is None else [self._ask(query)], 1, loop)
        row: Floats = rows[0]
        return row

    def texts(self, texts: list[str], loop: AbstractEventLoop | None) -> Floats:
        """The vectors of texts, one row for each."""
        return self._called(lambda: self._embed(texts), len(texts), loop)

    def _called(self, call: Callable[[], Any], count: int, loop: AbstractEventLoop | None) -> Floats:
        try:
            made = call()
            if isinstance(made, list) and len(made) == 1 and inspect.isawaitable(made[0]):
                made = [_awaited(made[0], loop)]
            elif inspect.isawaitable(made):
                made = _awaited(made, loop)
            rows = np.asarray([np.asarray(row, dtype=np.float32) for row in made], dtype=np.float32)
        except Exception as error:
            # Only its kind: what an embedder says may quote the text.
            raise EmbedderFailed(f"it raised {type(error).__name__}") from error
        if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
            raise EmbedderFailed(f"for {count} texts it gave an array of the shape {rows.shape}")
        return unit(rows)


def unit(rows: Floats) -> Floats:
    """Each row with the length 1. One that is no direction (all 0, or not finite) becomes all 0: it is like nothing."""
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, np.float32(0)).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def given(vector: Iterable[float]) -> Floats:
    """The vector of a question that the caller brought along."""
    try:
        row = np.asarray(vector if hasattr(vector, "__len__") else list(vector), dtype=np.float32)
    except (TypeError, ValueError):
        raise TypeError("vector is a sequence of numbers") from None
    if row.ndim != 1 or not row.size or not np.isfinite(row).all():
        raise ValueError("vector is one row of finite numbers: what the embedder makes of the question")
    found: Floats = unit(row[None])[0]
    return found


def name_of(embed: object) -> str:
    """What tells one embedder from another: its `name`, or where it is defined."""
    name = getattr(embed, "name", None)
    if isinstance(name, str) and name:
        return name
    kind = embed if hasattr(embed, "__qualname__") else type(embed)
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_async(embed: object) -> bool:
    """Whether it is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(embed) or inspect.iscoroutinefunction(vars(type(embed)).get("__call__"))


def _awaited(made: Awaitable[Any], loop: AbstractEventLoop | None) -> Any:
    """Wait for a coroutine that runs on the event loop, from another thread."""
    if loop is None:
        if inspect.iscoroutine(made):
            made.close()
        raise TypeError("an embedder that is awaited needs the async store")
    from asyncio import run_coroutine_threadsafe

    future = run_coroutine_threadsafe(_coroutine(made), loop)
    # A loop that has stopped answers no more: then the thread must not wait for ever.
    while not wait([future], LOOK_SECONDS).done:
        if not loop.is_running():
            raise RuntimeError("the event loop has stopped")
    return future.result()


async def _coroutine(made: Awaitable[Any]) -> Any:
    return await made
