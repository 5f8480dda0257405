"""Quote stored text in text that the library writes: shortened, escaped, unable to end the quote.

A quotation is either in "double quotes" on one line, or lines that all start with ">". There is no
closing mark that stored text could contain: the start of a line decides, and stored text never
starts one. Invisible characters are written as escapes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

import msgspec

MAX_INLINE_CHARACTERS: Final = 80
"""A text of one line up to this length is quoted within the line."""

# The line ends of `str.splitlines`. A reader may break a line at any of them, so each becomes "\n".
_BREAKS: Final = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
# Invisible letters and marks: fillers, blanks, and variation selectors, which can hide any text.
_BLANK: Final = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00016fe4\U000e0100-\U000e01ef"
)
_BARS: Final = "|\uff5c"
_NEEDS_ESCAPE: Final = re.compile(f"[{_BLANK}]|<[{_BARS}]")
_INVISIBLE: Final = re.compile(f"[{_BLANK}]")
# Joiners are part of words in some languages, and of emoji, as are the two emoji style selectors.
_JOINERS: Final = frozenset("\u200c\u200d")
_EMOJI_STYLES: Final = frozenset("\ufe0e\ufe0f")
_KEYCAP: Final = "\u20e3"
_QUOTES: Final = re.compile(
    '["\u201c-\u201f\u2033\u2036\u275d\u275e\u301d-\u301f\uff02\u02ba\u02dd\u02ee\u00ab\u00bb]'
)
"""Characters that end a quotation, or look as if they do."""


class Extract(msgspec.Struct, frozen=True):
    """The escaped start of a stored text, and the number of characters left out."""

    text: str
    more: int = 0


def value_to_text(value: Any) -> str:
    """Return a stored value as text: text unchanged, everything else as JSON with sorted keys."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_describe_type)


def extract(text: str, size: int) -> Extract:
    """Return as much of the text as fits `size` bytes of UTF-8."""
    part = text[:size]
    if part.replace("\n", "").replace("\t", "").isprintable() and not _NEEDS_ESCAPE.search(part):
        shown = part if part.isascii() else part.encode()[:size].decode(errors="ignore")
        return Extract(shown, len(text) - len(shown))
    shown, taken = _escape(part, size)
    return Extract(shown, len(text) - taken)


def extract_line(text: str, size: int) -> str:
    """Return a name as one line of at most `size` bytes, plus "…" if it was longer."""
    found = extract(text, size)
    return " ".join(found.text.split()) + ("…" if found.more else "")


def quote_inline(text: str) -> str:
    """Return a single line of text in double quotes, with its own quotes replaced."""
    return '"' + _QUOTES.sub("'", text) + '"'


def quote_entry(head: str, quoted: Extract, source: str) -> list[str]:
    """Return `head` with a short quotation at its end, or followed by the lines of a long one."""
    text = quoted.text
    if (
        not quoted.more
        and len(text) <= MAX_INLINE_CHARACTERS
        and "\n" not in text
        and not _QUOTES.search(text)
    ):
        return [f"{head} {quote_inline(text)}"]
    return [head, *quote_lines(quoted, source)]


def quote_lines(quoted: Extract, source: str) -> list[str]:
    """Return the quotation as lines, and a pointer to the rest of the text."""
    quotation = [f"> {line}".rstrip() for line in quoted.text.split("\n")]
    return (
        [*quotation, f"… ({quoted.more:,} more characters; {source})"] if quoted.more else quotation
    )


def _escape(text: str, size: int) -> tuple[str, int]:
    r"""Return the text with line ends as `\n` and invisible characters escaped, up to `size` bytes.

    The second value is the number of characters used.
    """
    parts: list[str] = []
    taken = used = 0
    previous = " "  # the last character written
    for before, character, after in zip(" " + text, text, text[1:] + " ", strict=False):
        escaped = _escape_character(character, before, previous, after)
        used += len(escaped.encode())
        if used > size:
            break
        parts.append(escaped)
        previous = escaped[-1:] or previous
        taken += 1
    if taken < len(text) and previous in _JOINERS:  # what it joins is left out
        parts.pop()
        taken -= 1
    return "".join(parts), taken


def _escape_character(character: str, before: str, previous: str, after: str) -> str:
    if character in _BREAKS:
        return "" if before + character == "\r\n" else "\n"
    if character in _BARS and before == "<":
        return f" {character}"  # some servers read <|im_start|> in a message as a new turn
    if character in _EMOJI_STYLES:
        is_kept = _is_variant_selector(previous, after)
    elif character in _JOINERS:
        is_kept = _is_meaningful_joiner(previous, after)
    else:
        is_space = character == "\t" or unicodedata.category(character) == "Zs"
        is_kept = is_space or (character.isprintable() and not _INVISIBLE.match(character))
    return character if is_kept else json.dumps(character)[1:-1]


def _is_variant_selector(previous: str, after: str) -> bool:
    """Return whether a selector sets the style of an emoji or a keycap before it."""
    if previous.isascii():
        return previous in "0123456789#*" and after == _KEYCAP
    return unicodedata.category(previous)[0] in "SP"


def _is_meaningful_joiner(previous: str, after: str) -> bool:
    """Return whether a joiner is between emoji, marks, or letters of a script that uses it."""
    return (previous in _EMOJI_STYLES or _can_join(previous)) and _can_join(after)


def _can_join(beside: str) -> bool:
    return (
        beside > "\u02af"
        and unicodedata.category(beside)[0] in "LMS"
        and not _INVISIBLE.match(beside)
        and not _QUOTES.match(beside)  # quotations on one line replace it
    )


def _describe_type(value: object) -> str:
    return f"<{type(value).__name__}>"  # not its repr, which may contain a memory address
