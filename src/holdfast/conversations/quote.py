"""Stored text inside text that the library writes: cut to size, made harmless, and quoted so that it stays a quotation.

A quotation is either in "double quotes" on one line, or it is lines that all begin with ">". There is no closing mark that
stored text could contain: what begins a line decides, and stored text never begins one. What nobody would see is spelled out.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

import msgspec

INLINE: Final = 80
"""Up to this length a text that is one line is quoted within the line."""

# As `str.splitlines` sees them. A reader may break a line at any of these, so each is made an ordinary end of a line.
_BREAKS: Final = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
# Letters and marks that leave no trace: fillers, blanks, and the selectors of variants, by which any text can be hidden behind one sign.
_BLANK: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U00016fe4\U000e0100-\U000e01ef"
_BARS: Final = "|\uff5c"
_CLOSER_LOOK: Final = re.compile(f"[{_BLANK}]|<[{_BARS}]")
_UNSEEN: Final = re.compile(f"[{_BLANK}]")
# Joiners are part of how words are written in some languages, and of emoji, as the selectors of their two looks are.
_JOINERS: Final = frozenset("\u200c\u200d")
_LOOKS: Final = frozenset("\ufe0e\ufe0f")
_KEYCAP: Final = "\u20e3"
_QUOTES: Final = re.compile(
    '["\u201c-\u201f\u2033\u2036\u275d\u275e\u301d-\u301f\uff02\u02ba\u02dd\u02ee\u00ab\u00bb]'
)
"""What ends a quotation, and what looks so."""


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
    if part.replace("\n", "").replace("\t", "").isprintable() and not _CLOSER_LOOK.search(part):
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
    return '"' + _QUOTES.sub("'", text) + '"'


def entry(head: str, quoted: Extract, source: str) -> list[str]:
    """A line that ends with a short quotation, or that is followed by a long one."""
    text = quoted.text
    if not quoted.more and len(text) <= INLINE and "\n" not in text and not _QUOTES.search(text):
        return [f"{head} {inline(text)}"]
    return [head, *lines(quoted, source)]


def lines(quoted: Extract, source: str) -> list[str]:
    """The quotation as lines, and a pointer to the rest of it."""
    quotation = [f"> {line}".rstrip() for line in quoted.text.split("\n")]
    return (
        [*quotation, f"… ({quoted.more:,} more characters; {source})"] if quoted.more else quotation
    )


def _harmless(text: str, size: int) -> tuple[str, int]:
    r"""The text with line breaks as `\n` and invisible characters spelled out, within the size; how much of it that is."""
    parts: list[str] = []
    taken = used = 0
    shown = " "  # what stands before it in what is written
    for before, character, after in zip(" " + text, text, text[1:] + " ", strict=False):
        written = _spelled(character, before, shown, after)
        used += len(written.encode())
        if used > size:
            break
        parts.append(written)
        shown = written[-1:] or shown
        taken += 1
    return "".join(parts), taken


def _spelled(character: str, before: str, shown: str, after: str) -> str:
    if character in _BREAKS:
        return "" if before + character == "\r\n" else "\n"
    if character in _BARS and before == "<":
        return f" {character}"  # <|im_start|> and its like begin a turn, to a server that reads them in a message
    if character in _LOOKS:
        is_kept = _is_look(shown, after)
    elif character in _JOINERS:
        is_kept = _joins(shown, after)
    else:
        is_space = character == "\t" or unicodedata.category(character) == "Zs"
        is_kept = is_space or (character.isprintable() and not _UNSEEN.match(character))
    return (
        character if is_kept else json.dumps(character)[1:-1]
    )  # beyond the first plane JSON writes two halves


def _is_look(shown: str, after: str) -> bool:
    """Whether it says how the sign before it looks: an emoji, or a key of a keyboard."""
    if shown.isascii():
        return shown in "0123456789#*" and after == _KEYCAP
    return unicodedata.category(shown)[0] in "SP"


def _joins(shown: str, after: str) -> bool:
    """Whether a joiner means something here: between letters beyond the first alphabets, marks, or emoji."""
    return (shown in _LOOKS or _is_joined(shown)) and _is_joined(after)


def _is_joined(beside: str) -> bool:
    return (
        beside > "\u02af" and unicodedata.category(beside)[0] in "LMS" and not _UNSEEN.match(beside)
    )


def _unknown(value: object) -> str:
    return f"<{type(value).__name__}>"  # not its repr, which may hold an address
