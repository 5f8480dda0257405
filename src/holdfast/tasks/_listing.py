"""What the store itself does with tasks: list them, show one, settle a step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from .._codec import encode_as
from .._operations import Operation
from .._streams import new_stamp
from ..backends import StreamKey
from ._claiming import declared_type
from ._lifecycle import resolve
from ._loading import get_view as get_task
from ._loading import listed as list_tasks
from ._view import STATUSES

TASK_TTL: Final = timedelta(days=7)

__all__ = ["TASK_TTL", "checked_status", "get_task", "list_tasks", "resolving"]


def checked_status(status: str | None) -> None:
    if status is not None and status not in STATUSES:
        raise ValueError(f"status is one of {', '.join(STATUSES)}")


def resolving(key: StreamKey, step: str, result: Any, retry: bool) -> Callable[[], Operation[None]]:
    """What makes the operation that settles a step."""
    if (result is ...) != retry:
        raise ValueError("say either result=… (it was done) or retry=True (it was not)")
    if type(step) is not str:  # a path may be longer than any id
        raise TypeError(f"step is a path or a name, not {type(step).__name__}")
    raw = None if retry else encode_as(result, declared_type(result))
    stamp = new_stamp()
    return lambda: resolve(key, step, raw, stamp, retry=retry)
