"""Merge the statements of several sources into one memory, and take them apart again.

Each statement keeps its source, tags and `meta`. So forgetting a source removes everything from it,
and nothing from other sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ..backends import clock
from .arguments import build_memory
from .duplicates import compute_signature
from .model import MemoryDoc, Remembered, Statement, Superseded
from .text.tokens import date_terms, split_passages, terms

MAX_WORDINGS: Final = 64
"""The maximum per memory. A further wording becomes a memory of its own, so no text is lost."""
MAX_STATEMENTS: Final = 200
"""The maximum number of combinations of source, tags and wording in one memory."""
CONTEXT_SOURCES: Final = 8
"""How many of a memory's sources become search terms."""

_SHARED_FIELDS: Final = tuple(
    name for name in Statement.__struct_fields__ if name in MemoryDoc.__struct_fields__
)


def statements_of(doc: MemoryDoc) -> tuple[Statement, ...]:
    """Return the statements of a memory. A single statement is not stored separately."""
    if doc.statements:
        return doc.statements
    return (Statement(**{name: getattr(doc, name) for name in _SHARED_FIELDS}),)


def build_statement(
    memory: Remembered, at: float, version: int = 0, mentions: int = 1
) -> Statement:
    """Return a memory as a statement. `at`, the time of its event, is the default for its time."""
    at, dated_at = (
        (at, None) if memory.at is None else (memory.at, memory.at if memory.dated else None)
    )
    return Statement(
        text=memory.text,
        at=at,
        first_at=at,
        source=memory.source,
        tags=memory.tags,
        importance=memory.importance,
        meta=memory.meta,
        expires_at=memory.expires_at,
        mentions=mentions,
        version=version,
        dated_at=dated_at,
    )


def has_room(doc: MemoryDoc, new: Statement, wording: str | None) -> bool:
    """Whether a memory can take one more statement. `wording` is the text it repeats, if any."""
    if wording is None:
        return 1 + len(doc.variants) < MAX_WORDINGS and len(doc.statements) < MAX_STATEMENTS
    return len(doc.statements) < MAX_STATEMENTS or any(
        _is_same_statement(one, new, wording) for one in doc.statements
    )


def add_statement(doc: MemoryDoc, new: Statement, wording: str | None) -> MemoryDoc:
    """Return the memory with one more statement. It never expires if either of them doesn't."""
    new = new if wording is None else msgspec.structs.replace(new, text=wording)
    statements = list(statements_of(doc))
    for index, one in enumerate(statements):
        if _is_same_statement(one, new, new.text):
            statements[index] = _merge_repeat(one, new)
            break
    else:
        statements.append(new)
    return merge_statements(doc, statements)


def merge_statements(doc: MemoryDoc, statements: Sequence[Statement]) -> MemoryDoc:
    """Rebuild a memory from these statements, which are in the order of their events.

    Its text is the wording with the most mentions, because a typo is rarely repeated. The newest
    values of `meta` win.
    """
    mentions_by_text: dict[str, int] = {}
    for one in statements:
        mentions_by_text[one.text] = mentions_by_text.get(one.text, 0) + one.mentions
    text = max(mentions_by_text, key=mentions_by_text.__getitem__)
    tags = tuple(dict.fromkeys(tag for one in statements for tag in one.tags))
    sources = tuple(dict.fromkeys(one.source for one in statements if one.source is not None))
    meta: dict[str, object] = {}
    for one in sorted(statements, key=lambda one: one.version):
        meta.update(one.meta or {})
    ends = [one.expires_at for one in statements]
    at, first_at = max(one.at for one in statements), min(one.first_at for one in statements)
    return msgspec.structs.replace(
        doc,
        text=text,
        variants=tuple(one for one in mentions_by_text if one != text),
        terms=_index_terms(text, mentions_by_text),
        keys=()
        if doc.superseded_by is not None
        else tuple(dict.fromkeys(compute_signature(one).key for one in mentions_by_text)),
        context=_context_terms((at, first_at), sources, tags),
        at=at,
        first_at=first_at,
        dated_at=next((one.dated_at for one in statements if one.dated_at is not None), None),
        tags=tags,
        source=sources[0] if sources else None,
        sources=sources if len(sources) > 1 else (),
        importance=max(one.importance for one in statements),
        meta=meta or None,
        expires_at=None if None in ends else max(end for end in ends if end is not None),
        mentions=sum(mentions_by_text.values()),
        statements=tuple(statements) if len(statements) > 1 else (),
    )


def build_superseded(old: MemoryDoc, text: str, given: Mapping[str, Any]) -> Superseded:
    """Return the event that replaces a memory. UNSET options keep the old values.

    The memory also keeps its further sources, unless a source is given. Without `at`, the new text
    dates from now: the time of the old text doesn't apply to it.
    """
    changed = {name: value for name, value in given.items() if value is not UNSET}
    names = ("tags", "importance", "source", "author", "subject", "meta")
    kept = {name: getattr(old, name) for name in names}
    memory = build_memory(text, clock.time(), **{**kept, **changed})
    if "ttl" not in changed:
        memory = msgspec.structs.replace(memory, expires_at=old.expires_at)
    return Superseded(old.id, memory, () if "source" in changed else old.sources[1:])


def is_from_source(one: Statement, source: str | None, tags: Iterable[str]) -> bool:
    """Whether a statement is from this source (None: any) and has these tags."""
    return (source is None or one.source == source) and set(tags).issubset(one.tags)


def _is_same_statement(known: Statement, new: Statement, wording: str) -> bool:
    return known.text == wording and known.source == new.source and known.tags == new.tags


def _merge_repeat(known: Statement, new: Statement) -> Statement:
    ends = (known.expires_at, new.expires_at)
    return msgspec.structs.replace(
        known,
        at=max(known.at, new.at),
        first_at=min(known.first_at, new.first_at),
        importance=max(known.importance, new.importance),
        meta={**(known.meta or {}), **(new.meta or {})} or None,
        expires_at=None if None in ends else max(end for end in ends if end is not None),
        mentions=known.mentions + new.mentions,
        version=new.version,
        dated_at=known.dated_at if new.dated_at is None else new.dated_at,
    )


def _index_terms(text: str, wordings: Iterable[str]) -> str:
    """Return the terms of a text, then the terms that only its other wordings have.

    Each passage of a long text is a line.
    """
    own = [terms(passage) for passage in split_passages(text)]
    known = {term for passage in own for term in passage}
    others = dict.fromkeys(
        term for wording in wordings if wording != text for term in terms(wording)
    )
    own[-1] += [term for term in others if term not in known]
    return "\n".join(map(" ".join, own))


def _context_terms(times: Iterable[float], sources: Sequence[str], tags: Iterable[str]) -> str:
    """Return the terms of a memory's times, sources and tags, which a search matches too."""
    found = [term for at in times for term in date_terms(at)]
    found += [term for name in (*sources[:CONTEXT_SOURCES], *tags) for term in terms(name)]
    return " ".join(dict.fromkeys(found))
