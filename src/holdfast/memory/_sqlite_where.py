"""Which memories are asked for, as SQL over the table of an index in SQLite."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ._model import Where

BY: Final = "coalesce(body ->> '$.author', 'model') IN (SELECT value FROM json_each(?))"
NOT_BY: Final = "coalesce(body ->> '$.author', 'model') NOT IN (SELECT value FROM json_each(?))"


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
    if where.subject is not None:
        conditions.append("body ->> '$.subject' = ?")
        values.append(where.subject)
    for condition, names in ((BY, where.authors), (NOT_BY, where.without or None)):
        if names is not None:
            conditions.append(condition)
            values.append(msgspec.json.encode(names).decode())
    for tag in where.tags:
        # First whether it is anywhere in the text: that is ten times faster than to read all of it.
        conditions.append("instr(body, ?) > 0")
        values.append(msgspec.json.encode(tag))
        conditions.append("EXISTS (SELECT 1 FROM json_each(body, '$.tags') WHERE json_each.value = ?)")
        values.append(tag)
    return " AND ".join(conditions), values
