"""Format stored data as terminal lines, so that no stored text can control the terminal."""

from __future__ import annotations

import json
from datetime import datetime

import msgspec

from .. import Event
from ..types import MessageEntry

LINE_LENGTH = 200


def printable(text: str) -> str:
    r"""Return the text with control and invisible characters written as `\u001b`.

    JSON text keeps its meaning: JSON escapes such characters in strings the same way.
    """
    return text if text.isprintable() else "".join(map(_escape, text))


def printable_lines(text: str) -> str:
    """Return the text with its line breaks kept and every line made printable."""
    return "\n".join(map(printable, text.split("\n")))


def cut(text: str, length: int = LINE_LENGTH) -> str:
    """Return the text, shortened to the length with an ellipsis if it is longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


def event_json(event: Event) -> str:
    """Return the whole event as one line of JSON."""
    fields: dict[str, object] = {
        "version": event.version,
        "id": event.id,
        "type": event.type,
        "at": event.at.isoformat(),
    }
    if event.by is not None:
        fields["by"] = event.by
    if event.correlation is not None:
        fields["correlation"] = event.correlation
    return to_json({**fields, "data": event.data})


def event_line(event: Event) -> str:
    """Return the event as one human-readable line, shortened if it is long."""
    time, name = f"{event.at:%Y-%m-%d %H:%M:%S}", printable(event.type)
    return cut(f"{event.version:>6}  {time}  {name}  {to_json(event.data)}")


def message_line(entry: MessageEntry) -> str:
    """Return the message as one human-readable line, shortened if it is long."""
    role = str(entry.message.get("role") or entry.message.get("type") or "?")
    content = entry.message.get("content")
    text = content if isinstance(content, str) else to_json(entry.message)
    time = f"{entry.at:%Y-%m-%d %H:%M:%S}"
    return cut(f"{entry.version:>6}  {time}  {printable(role)}: {printable(text)}")


def to_json(value: object) -> str:
    """Return the value as one line of printable JSON. A result is an object with its fields."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_to_builtins)
    return printable(text)


def _to_builtins(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return msgspec.to_builtins(value, builtin_types=(datetime,))


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 stream`, `2 streams`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_size(count: int) -> str:
    """Return a number of bytes in a readable unit."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _escape(character: str) -> str:
    # json.dumps writes characters beyond the first plane as two surrogates.
    return character if character.isprintable() else json.dumps(character)[1:-1]
