"""Who asked, and why: the correlation id and the actor of everything done inside a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ._ids import checked_id

_correlation: ContextVar[str | None] = ContextVar("holdfast_correlation", default=None)
_actor: ContextVar[str | None] = ContextVar("holdfast_actor", default=None)


@contextmanager
def correlate(id: str, *, actor: str | None = None) -> Iterator[None]:
    """Store and log `id` (and `actor`, if given) with every event appended inside the block.

    Works in plain and in async code; blocks nest, the innermost counts. Threads started inside
    do not inherit it, unless they run in a copied context (as `asyncio.to_thread` does).
    """
    checked_id(id, "correlation id")
    if actor is not None:
        checked_id(actor, "actor")
    before = _correlation.set(id)
    before_actor = _actor.set(actor if actor is not None else _actor.get())
    try:
        yield
    finally:
        _actor.reset(before_actor)
        _correlation.reset(before)


def origin() -> tuple[str | None, str | None]:
    """The correlation id and the actor in force."""
    return _correlation.get(), _actor.get()
