"""Who asked, and why: the correlation id and the actor of everything done inside a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .ids import checked_id

Origin = tuple[str | None, str | None]
"""A correlation id and an actor."""

_origin: ContextVar[Origin] = ContextVar("holdfast_origin", default=(None, None))


@contextmanager
def correlate(id: str, *, actor: str | None = None) -> Iterator[None]:
    """Store and log `id` (and `actor`, if given) with every event appended inside the block.

    Works in plain and in async code; blocks nest, the innermost counts. Threads started inside
    do not inherit it, unless they run in a copied context (as `asyncio.to_thread` does).
    """
    checked_id(id, "correlation id")
    if actor is not None:
        checked_id(actor, "actor")
    before = _origin.set((id, actor if actor is not None else _origin.get()[1]))
    try:
        yield
    finally:
        _origin.reset(before)


refusing: ContextVar[Callable[[Any], Any] | None] = ContextVar("holdfast_refusing", default=None)
"""Called with every append and deletion that is asked for here, in place of doing it: a task is being replayed."""
replays = 0
"""How many replays run in this process: while there are none, nobody need look at `refusing`."""

origin: Callable[[], Origin] = _origin.get
"""The correlation id and the actor in force."""
