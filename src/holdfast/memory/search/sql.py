"""The SQL that SQLite and PostgreSQL share: statements that read, and filters as conditions.

The statements are written as for PostgreSQL. A `SQLDialect` fills in what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from ..model import MemoryFilter

_SPACE: Final = (
    "(SELECT space FROM {schema}.memory_spaces WHERE tenant = %(tenant)s AND id = %(id)s)"
)
_MODEL: Final = (
    "(SELECT model FROM {schema}.memory_models m JOIN {schema}.memory_spaces s USING (space)"
    " WHERE s.tenant = %(tenant)s AND s.id = %(id)s AND m.name = %(model)s)"
)
POSITION: Final = (
    "SELECT incarnation, version, hash FROM {schema}.memory_spaces"
    " WHERE tenant = %(tenant)s AND id = %(id)s"
)
# CROSS JOIN, so that SQLite looks up the few numbers, and doesn't scan the memories for them.
KNOWN: Final = """\
SELECT alias, b.number, body FROM (
    SELECT id AS alias, number FROM {schema}.memory_ids WHERE space = {space} AND id {in_ids}
    UNION ALL
    SELECT NULL, number FROM {schema}.memory_keys WHERE space = {space} AND key {in_keys}
) AS known CROSS JOIN {bodies} b WHERE b.space = {space} AND b.number = known.number"""
EXPIRED: Final = """\
SELECT body FROM {docs}
WHERE space = {space} AND expires_at <= %(before)s ORDER BY expires_at LIMIT %(limit)s"""
PAGE: Final = """\
SELECT body FROM {docs}
WHERE space = {space} AND number > %(after)s AND {{condition}} ORDER BY number LIMIT %(limit)s"""
COUNTS: Final = """\
WITH living AS (
    SELECT source, sources, first_at, at FROM {schema}.memory_docs
    WHERE space = {space} AND {{condition}}
)
SELECT count(*), (
    SELECT count(*) FROM (
        SELECT source FROM living WHERE source IS NOT NULL UNION SELECT {further_sources}
    ) AS all_sources
), min(first_at), max(at) FROM living"""
MODELS: Final = """\
SELECT memories, name, vectors FROM {schema}.memory_spaces s
LEFT JOIN {schema}.memory_models m USING (space)
WHERE tenant = %(tenant)s AND s.id = %(id)s ORDER BY model"""
WITHOUT_VECTOR: Final = """\
SELECT body FROM {docs}
WHERE space = {space} AND number > %(after)s AND (expires_at IS NULL OR expires_at > %(now)s)
    AND NOT EXISTS (
        SELECT 1 FROM {schema}.memory_vectors v WHERE v.model = {model} AND v.number = d.number
    )
ORDER BY number LIMIT %(limit)s"""
# The "+" keeps SQLite from searching by model instead of by place.
VECTORS_AT: Final = """\
SELECT place, number, floats FROM {schema}.memory_vectors
WHERE place {in_places} AND +model = {model}"""
VECTORS_OF: Final = """\
SELECT number, floats FROM {schema}.memory_vectors WHERE model = {model} AND number {in_numbers}"""
# The caller sorts: with ORDER BY, SQLite would scan by number instead of by source.
NUMBERS: Final = "SELECT number FROM {schema}.memory_docs WHERE space = {space} AND {{condition}}"
DOCS: Final = (
    "SELECT body FROM {docs} WHERE space = {space} AND number {in_numbers} AND {{condition}}"
)

_ENDS: Final = "(valid_until IS NULL OR valid_until > %(valid_at)s)"
_STARTS: Final = "(valid_from IS NULL OR valid_from <= %(valid_at)s)"
_KNOWN_SINCE: Final = "coalesce(valid_from, first_at) <= %(valid_at)s"


class SQLDialect(NamedTuple):
    """What differs between the engines. `schema` is the quoted schema of the tables."""

    schema: str
    docs: str
    """The memories, as `d`, with their bodies."""
    bodies: str
    """The smallest table with the bodies."""
    author: str
    subject: str
    has_source: str
    """Whether a source is one of the further sources of a memory."""
    further_sources: str
    vector_page: str
    """The statement that reads vectors by place, with the filling of their model."""
    is_among: Callable[[str, str], str]
    """Returns the condition that a value is in a list, from the name and type of the list."""
    tag_conditions: Callable[[Sequence[str]], tuple[list[str], dict[str, Any]]]
    pack_texts: Callable[[Iterable[str]], Any]
    pack_keys: Callable[[Iterable[str]], Any]
    finish: Callable[[str], str]
    """Makes the final changes of a statement."""

    def build_condition(self, where: MemoryFilter) -> tuple[str, dict[str, Any]]:
        """Return a filter as a condition over the memories, and its values."""
        conditions = ["(expires_at IS NULL OR expires_at > %(now)s)"]
        values: dict[str, Any] = {"now": where.now}
        if not where.any_time:
            conditions += [_STARTS if where.as_of is None else _KNOWN_SINCE, _ENDS]
            values["valid_at"] = where.now if where.as_of is None else where.as_of
        named = (
            ("source", f"(source = %(source)s OR sources IS NOT NULL AND {self.has_source})"),
            ("since", "at >= %(since)s"),
            ("until", "at <= %(until)s"),
            ("subject", f"{self.subject} = %(subject)s"),
        )
        for name, condition in named:
            if (value := getattr(where, name)) is not None:
                conditions.append(condition)
                values[name] = value
        if where.visible_to is not UNSET:
            is_visible = f"{self.subject} = CAST(%(visible_to)s AS text)"
            conditions.append(f"({self.subject} IS NULL OR {is_visible})")
            values["visible_to"] = where.visible_to
        if where.authors is not None:
            conditions.append(f"{self.author} {self.is_among('authors', 'text')}")
            values["authors"] = list(where.authors)
        if where.without:
            conditions.append(f"NOT {self.author} {self.is_among('without', 'text')}")
            values["without"] = list(where.without)
        if where.tags:
            more, tags = self.tag_conditions(where.tags)
            conditions += more
            values |= tags
        return self.finish(" AND ".join(conditions)), values

    def complete(self, statement: str, **parts: str) -> str:
        """Return a statement with everything filled in, but for a `{{{condition}}}`."""
        names = {name: text.format(schema=self.schema) for name, text in _SUBQUERIES.items()}
        names |= {f"in_{name}": self.is_among(name, kind) for name, kind in _LISTS.items()}
        names |= {name: getattr(self, name) for name in _PARTS} | parts
        return self.finish(statement.format(**names))


_SUBQUERIES: Final = {"space": _SPACE, "model": _MODEL}
_LISTS: Final = {"ids": "text", "keys": "bigint", "numbers": "bigint", "places": "bigint"}
_PARTS: Final = ("schema", "docs", "bodies", "further_sources")
complete_statement: Final = lru_cache(256)(SQLDialect.complete)
