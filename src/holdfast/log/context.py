"""The correlation id and the actor of everything done inside a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .ids import check_id

Origin = tuple[str | None, str | None]
"""A correlation id and an actor."""

_origin: ContextVar[Origin] = ContextVar("holdfast_origin", default=(None, None))


@contextmanager
def correlate(id: str, *, actor: str | None = None) -> Iterator[None]:
    """Store and log `id` (and `actor`, if given) with every event appended inside the block.

    It works in sync and async code. Blocks nest; the innermost one counts. Threads started inside
    do not inherit it unless they run in a copied context, as with `asyncio.to_thread`.
    """
    check_id(id, "correlation id")
    if actor is not None:
        check_id(actor, "actor")
    before = _origin.set((id, actor if actor is not None else _origin.get()[1]))
    try:
        yield
    finally:
        _origin.reset(before)


@contextmanager
def act_as(actor: str | None) -> Iterator[None]:
    """Store `actor` with every event appended inside the block; None changes nothing."""
    if actor is None:
        yield
        return
    before = _origin.set((_origin.get()[0], check_id(actor, "by")))
    try:
        yield
    finally:
        _origin.reset(before)


write_refuser: ContextVar[Callable[[Any], Any] | None] = ContextVar(
    "holdfast_write_refuser", default=None
)
"""Set while a task is replayed: gets every append and deletion, and raises instead of writing."""
active_replays = 0
"""The number of replays in this process. While it is 0, `write_refuser` is not looked up."""

origin: Callable[[], Origin] = _origin.get
"""Return the current correlation id and actor."""
