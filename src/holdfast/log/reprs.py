"""Short reprs of results, for notebooks and debuggers; as text, and as HTML for notebooks.

They contain content, so log lines and error messages never use them. The HTML has no scripts, links
or styles. Everything in it is escaped, and control characters are written out.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Final

MAX_HTML_CHARACTERS: Final = 20_000
"""How much of one text is shown in a notebook."""
MAX_CELL_CHARACTERS: Final = 300


class ShortRepr:
    """Gives a struct a repr of its non-empty fields, shortened. `_shown` limits and orders them."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]
    _shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={shorten(value)}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        rows = [(name, shorten_cell(value)) for name, value in self.__rich_repr__()]
        return html_table(type(self).__name__, rows)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        found = [(name, getattr(self, name)) for name in self._shown or self.__struct_fields__]
        return [
            (name, value)
            for name, value in found
            if value is not None and value not in ((), [], {})
        ]


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlevel = 3

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """Keep the order of the dict, so that a message starts with its role."""
        if level <= 0:
            return "{...}"
        pairs = [
            f"{self.repr1(key, level - 1)}: {self.repr1(x[key], level - 1)}"
            for key in islice(x, self.maxdict)
        ]
        return "{" + ", ".join(pairs + ["..."] * (len(x) > self.maxdict)) + "}"

    def repr_datetime(self, x: datetime, level: int) -> str:
        return x.isoformat(sep=" ", timespec="seconds")


shorten = _Short().repr


def html_text(text: object, limit: int = MAX_CELL_CHARACTERS) -> str:
    """Return text for HTML: escaped, with control characters written out, and shortened."""
    shown = str(text)
    if len(shown) > limit:
        shown = f"{shown[: limit - 1]}…"
    from html import escape

    return escape("".join(map(_write_out, shown)))


def _write_out(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return f"\\u{ord(character):04x}"


def shorten_cell(value: object) -> str:
    """Return a value as a cell shows it: text as it is, anything else as its short repr."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return shorten(value)


def html_pre(text: object) -> str:
    """Return text of several lines for HTML."""
    return f"<pre>{html_text(text, MAX_HTML_CHARACTERS)}</pre>"


def html_table(
    title: object, rows: Iterable[Sequence[object]], head: Sequence[str] = (), note: object = ""
) -> str:
    """Return a table for HTML with a title, and a note below the title."""
    parts = [f"<p><strong>{html_text(title)}</strong>"]
    if note:
        parts.append(f"<br>{html_text(note)}")
    parts.append("</p>")
    body = [_html_row("td", row) for row in rows]
    if body:
        parts += ["<table>", _html_row("th", head) if head else "", *body, "</table>"]
    return f"<div>{''.join(parts)}</div>"


def _html_row(cell: str, values: Sequence[object]) -> str:
    cells = "".join(f"<{cell}>{html_text(value)}</{cell}>" for value in values)
    return f"<tr>{cells}</tr>"
