"""Pieces of answers that are still being streamed, without what is to be redacted.

A card number may come in two pieces, and neither of them shows it. So what is stored is cut where a sentence or a line ends, and
the pieces are looked at together with all that came before. The end of an answer is not in its draft, then, until it is complete.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..redact import Redactor

MOST: Final = 16
"""So many answers are known at once; older ones begin anew."""
_ENDS: Final = re.compile(r"[.!?]\s|\n")


class DraftPieces:
    """The answers that this object has been given pieces of."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._stored: dict[str, str] = {}

    def added(self, redactor: Redactor, of: str, piece: str) -> str:
        """What can be stored now that there is one piece more; perhaps nothing yet."""
        text = self._texts.pop(of, "") + piece
        if len(self._texts) >= MOST:
            oldest = next(iter(self._texts))
            del self._texts[oldest], self._stored[oldest]
        self._texts[of] = text
        stored = self._stored.setdefault(of, "")
        ends = [found.end() for found in _ENDS.finditer(text)]
        new = redactor.text(text[: ends[-1]]) if ends else ""
        if len(new) <= len(stored) or not new.startswith(stored):
            return ""
        self._stored[of] = new
        return new[len(stored) :]
