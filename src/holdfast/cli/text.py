"""What a store holds, as lines for a terminal. Stored text is data: it never moves the cursor or changes a colour."""

from __future__ import annotations

import json

from .. import Event
from ..types import MessageEntry

LINE_LENGTH = 200


def printable(text: str) -> str:
    r"""The text with control and invisible characters as `\u001b`; within JSON strings that is the same text."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def event_json(event: Event) -> str:
    """The whole event as one line of JSON."""
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
    """The event for a person: one line, cut where it gets long."""
    line = f"{event.version:>6}  {event.at:%Y-%m-%d %H:%M:%S}  {printable(event.type)}  {to_json(event.data)}"
    return line if len(line) <= LINE_LENGTH else line[: LINE_LENGTH - 1] + "…"


def message_line(entry: MessageEntry) -> str:
    """A message for a person: one line, cut where it gets long."""
    who = str(entry.message.get("role") or entry.message.get("type") or "?")
    content = entry.message.get("content")
    said = content if isinstance(content, str) else to_json(entry.message)
    line = f"{entry.version:>6}  {entry.at:%Y-%m-%d %H:%M:%S}  {printable(who)}: {printable(said)}"
    return line if len(line) <= LINE_LENGTH else line[: LINE_LENGTH - 1] + "…"


def to_json(value: object) -> str:
    return printable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def counted(number: int, what: str) -> str:
    """So many of something: `1 stream`, `2 streams`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(count: int) -> str:
    """Bytes, in a unit one can read."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    # Beyond the first plane JSON writes two halves.
    return json.dumps(character)[1:-1]
