"""Which memories are asked for, as SQL over the table of an index in SQLite."""

from __future__ import annotations

from typing import Any

import msgspec

from ._model import Where


def condition_of(where: Where) -> tuple[str, list[Any]]:
    """What `where` asks for, as SQL over memory_docs."""
    conditions = ["(expires_at IS NULL OR expires_at > ?)"]
    values: list[Any] = [where.now]
    if where.source is not None:
        conditions.append("(source = ? OR sources IS NOT NULL AND ? IN (SELECT value FROM json_each(sources)))")
        values += [where.source, where.source]
    for column, value in (("at >= ?", where.since), ("at <= ?", where.until)):
        if value is not None:
            conditions.append(column)
            values.append(value)
    for name, text in (("author", where.author), ("subject", where.subject)):
        if text is not None:
            default = "model" if name == "author" else None
            conditions.append(f"coalesce(body ->> '$.{name}', ?) = ?")
            values += [default, text]
    for tag in where.tags:
        # First whether it is anywhere in the text: that is ten times faster than to read all of it.
        conditions.append("instr(body, ?) > 0")
        values.append(msgspec.json.encode(tag))
        conditions.append("EXISTS (SELECT 1 FROM json_each(body, '$.tags') WHERE json_each.value = ?)")
        values.append(tag)
    return " AND ".join(conditions), values
