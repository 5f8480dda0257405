"""Which memories are asked for, as SQL over the table of an index in PostgreSQL."""

from __future__ import annotations

from typing import Any

import msgspec

from ._model import Where


def condition_of(where: Where) -> tuple[str, dict[str, Any]]:
    """What `where` asks for, as SQL over memory_docs, and its values."""
    conditions = ["(expires_at IS NULL OR expires_at > %(now)s)"]
    values: dict[str, Any] = {"now": where.now}
    for condition, name in (
        ("(source = %(source)s OR sources IS NOT NULL AND sources ? %(source)s)", "source"),
        ("subject = %(subject)s", "subject"),
        ("at >= %(since)s", "since"),
        ("at <= %(until)s", "until"),
    ):
        if (value := getattr(where, name)) is not None:
            conditions.append(condition)
            values[name] = value
    for condition, name, authors in (
        ("author = ANY(%(authors)s::text[])", "authors", where.authors),
        ("author <> ALL(%(without)s::text[])", "without", where.without or None),
    ):
        if authors is not None:
            conditions.append(condition)
            values[name] = list(authors)
    if where.tags:
        conditions.append("tags @> %(tags)s::jsonb")
        values["tags"] = msgspec.json.encode(where.tags).decode()
    return " AND ".join(conditions), values
