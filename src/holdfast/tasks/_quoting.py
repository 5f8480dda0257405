"""Stored text inside text that the library writes: cut to size, made harmless, and quoted so that it stays a quotation.

A quotation is either in "double quotes" on one line, or it is lines that all begin with ">". There is no closing mark that
stored text could contain: what begins a line decides, and stored text never begins one.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any, Final

import msgspec

INLINE: Final = 80
"""Up to this length a text that is one line is quoted within the line."""

# As `str.splitlines` sees them. A reader may break a line at any of these, so each is made an ordinary end of a line.
_BREAKS: Final = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
# Joiners are part of how words are written in some languages. All other invisible characters can hide text from people.
_KEPT: Final = frozenset("\t\u200c\u200d")


class Extract(msgspec.Struct, frozen=True):
    """The beginning of a stored text, made harmless, and how many characters of it are left out."""

    text: str
    more: int = 0


def text_of(value: Any) -> str:
    """A stored value as text: a text as it is, everything else as JSON with sorted keys."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_unknown)


def extract(text: str, size: int) -> Extract:
    """As much of the text as fits into this many bytes of UTF-8."""
    part = text[:size]
    if part.replace("\n", "").replace("\t", "").isprintable():
        shown = part if part.isascii() else part.encode()[:size].decode(errors="ignore")
        return Extract(shown, len(text) - len(shown))
    shown, taken = _harmless(part, size)
    return Extract(shown, len(text) - taken)


def one_line(text: str, size: int) -> str:
    """A name, as one line of at most this many bytes (and a mark if it was longer)."""
    found = extract(text, size)
    return " ".join(found.text.split()) + ("…" if found.more else "")


def inline(text: str) -> str:
    """A text of one line in double quotes, of which it has none itself."""
    return '"' + text.replace('"', "'") + '"'


def entry(head: str, quoted: Extract, source: str) -> list[str]:
    """A line that ends with a short quotation, or that is followed by a long one."""
    text = quoted.text
    if not quoted.more and len(text) <= INLINE and "\n" not in text and '"' not in text:
        return [f"{head} {inline(text)}"]
    return [head, *lines(quoted, source)]


def lines(quoted: Extract, source: str) -> list[str]:
    """The quotation as lines, and a pointer to the rest of it."""
    quotation = [f"> {line}".rstrip() for line in quoted.text.split("\n")]
    return [*quotation, f"… ({quoted.more:,} more characters; {source})"] if quoted.more else quotation


def _harmless(text: str, size: int) -> tuple[str, int]:
    r"""The text with line breaks as `\n` and invisible characters spelled out, within the size; how much of it that is."""
    parts: list[str] = []
    taken = used = 0
    for before, character in zip(" " + text, text, strict=False):
        written = _spelled(character, before)
        used += len(written.encode())
        if used > size:
            break
        parts.append(written)
        taken += 1
    return "".join(parts), taken


def _spelled(character: str, before: str) -> str:
    if character in _BREAKS:
        return "" if before + character == "\r\n" else "\n"
    if character.isprintable() or character in _KEPT or unicodedata.category(character) == "Zs":
        return character
    return json.dumps(character)[1:-1]  # beyond the first plane JSON writes two halves


def _unknown(value: object) -> str:
    return f"<{type(value).__name__}>"  # not its repr, which may hold an address
