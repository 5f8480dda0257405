"""Lists of messages that remember where they were read, so that a step can say what its model saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Messages(list[Any]):
    """Messages of a conversation. It is a list, is stored as one, and copies of it are plain lists."""

    __slots__ = ("source",)

    def __init__(self, messages: Iterable[Any], source: Any) -> None:
        super().__init__(messages)
        self.source = source

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return list, (list(self),)


readers: list[Callable[[Any, Iterable[Any]], None]] = []
"""Called with the source and the messages of every read of a conversation, where it is made."""
