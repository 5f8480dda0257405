"""Redact the drafts of answers that are still being streamed.

A card number may arrive in two pieces, neither of which looks like one. So a draft is stored only
up to the end of its last complete sentence or line, and redacted together with all earlier pieces.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..redact import Redactor

MAX_DRAFTS: Final = 16
"""How many answers to track at once; the oldest is dropped."""
_SENTENCE_END: Final = re.compile(r"[.!?]\s|\n")


class DraftRedactor:
    """The pieces of the most recent streamed answers."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._stored: dict[str, str] = {}

    def add(self, redactor: Redactor, of: str, piece: str) -> str:
        """Add a piece of an answer, and return the redacted text that can be stored now, or ""."""
        text = self._texts.pop(of, "") + piece
        if len(self._texts) >= MAX_DRAFTS:
            oldest = next(iter(self._texts))
            del self._texts[oldest], self._stored[oldest]
        self._texts[of] = text
        stored = self._stored.setdefault(of, "")
        ends = [found.end() for found in _SENTENCE_END.finditer(text)]
        new = redactor.text(text[: ends[-1]]) if ends else ""
        if len(new) <= len(stored) or not new.startswith(stored):
            return ""
        self._stored[of] = new
        return new[len(stored) :]
