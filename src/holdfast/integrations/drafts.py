"""Collect the pieces of a streamed answer, so that not every word is a write of its own."""

from __future__ import annotations

import time
import uuid


class DraftBuffer:
    """The saved and unsaved parts of a streamed answer. Each attempt has its own draft id.

    A piece is due to be saved after `seconds`, or when it has `characters`.
    """

    def __init__(self, seconds: float, characters: int) -> None:
        self.of = uuid.uuid4().hex
        self.whole, self.new = "", ""
        self._seconds, self._characters = seconds, characters
        self._kept_at = time.monotonic()

    def add(self, text: str) -> None:
        self.whole += text
        self.new += text

    def is_due(self) -> bool:
        return (
            len(self.new) >= self._characters or time.monotonic() - self._kept_at >= self._seconds
        )

    def take(self) -> str:
        text, self.new, self._kept_at = self.new, "", time.monotonic()
        return text
