"""Find candidates in the SQLite index: posting lists from FTS5, added up here.

A rowid consists of the numbers of the namespace and the memory, so a match is identified without
reading its row, and the newest matches are kept if there are too many. FTS5's own ranking is not
used: it takes ten times as long, and counts words across all namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from heapq import nlargest
from itertools import chain
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from ..model import MemoryDoc, MemoryFilter, decode_doc
from .candidates import (
    LEADING_DOCS,
    LONG_TEXT_CANDIDATES,
    PREFILTER_DOCS,
    SearchPlan,
    excluded_markers,
    has_long_texts,
    plan_search,
    required_markers,
    weigh_length,
)
from .index import Matches
from .sql import SQLDialect

WORK_DOCS: Final = LEADING_DOCS
FEW_DOCS: Final = 2_000
"""If a period has at most this many memories, all of them are scored."""
CHUNK_DOCS: Final = 400
"""How many memories to read at a time, until enough match the filter."""
NUMBER_BITS: Final = 40
UNLIMITED: Final = 1 << 62
EARLIEST_TIME, LATEST_TIME = -1e300, 1e300

_encode = msgspec.json.Encoder().encode


_AMONG: Final = "IN (SELECT value FROM json_each(%({})s))"
_HAS_TAG: Final = (
    "instr(body, :json{0}) > 0"
    " AND EXISTS (SELECT 1 FROM json_each(body, '$.tags') WHERE json_each.value = :tag{0})"
)


def _match_tags(tags: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions that a memory has these tags.

    A substring search of the JSON first: it is ten times faster than parsing all of it.
    """
    values: dict[str, Any] = {f"tag{at}": tag for at, tag in enumerate(tags)}
    values |= {f"json{at}": _encode(tag) for at, tag in enumerate(tags)}
    return [_HAS_TAG.format(at) for at in range(len(tags))], values


SQLITE: Final = SQLDialect(
    schema="main",
    docs="main.memory_docs d",
    bodies="main.memory_docs",
    author="coalesce(body ->> '$.author', 'model')",
    subject="body ->> '$.subject'",
    has_source="%(source)s IN (SELECT value FROM json_each(sources))",
    further_sources="value FROM living, json_each(sources) WHERE sources IS NOT NULL",
    vector_page="""
SELECT filling, place, number, floats FROM memory_models m
LEFT JOIN memory_vectors v ON v.model = m.model AND place > %(after)s
WHERE m.model = {model} ORDER BY place LIMIT %(limit)s""",
    is_among=lambda name, _: _AMONG.replace("{}", name),
    tag_conditions=_match_tags,
    pack_texts=list,
    pack_keys=list,
    finish=partial(re.compile(r"%\((\w+)\)s").sub, r":\1"),
)


def pack_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a statement with each list as JSON."""
    return {
        name: _encode(value).decode() if isinstance(value, list) else value
        for name, value in values.items()
    }


class NamespaceSize(NamedTuple):
    """A namespace: its number, its memories, and the total of their terms."""

    number: int
    memories: int
    terms: int


def rowid_of(space: int, number: int) -> int:
    return space << NUMBER_BITS | number


def search_namespace(
    execute: Any, space: NamespaceSize, terms: Mapping[str, float], where: MemoryFilter, limit: int
) -> Matches:
    """Implement `MemoryIndex.search`."""
    names = {f"{space.number}_{term}": term for term in terms}
    markers = [
        [f"{space.number}_{marker}" for marker in group] for group in required_markers(where)
    ]
    excluded = [f"{space.number}_{marker}" for marker in excluded_markers(where)]
    counts = dict(
        execute(_FREQUENCY, (_encode([*names, *chain(*markers), *excluded]).decode(),)).fetchall()
    )
    frequency = {term: counts[name] for name, term in names.items() if name in counts}
    matching = space.memories - sum(counts.get(marker, 0) for marker in excluded)
    matching = min(
        [matching, *(sum(counts.get(marker, 0) for marker in group) for group in markers)]
    )
    only = _filter_query(space.number, where)
    plan = plan_search(terms, frequency, space.memories, matching, WORK_DOCS, limit)
    average = space.terms / max(space.memories, 1)
    docs: Sequence[MemoryDoc] = []
    if plan.leading and matching:
        few = _read_period(execute, space.number, where)
        if few is not None:
            docs = _pick_best(few, plan, limit)
        else:
            scores: Mapping[int, float] = _score_candidates(
                execute, space.number, plan, only, max(WORK_DOCS, limit)
            )
            if has_long_texts(average):
                scores = _weigh_lengths(execute, scores, average)
                limit *= LONG_TEXT_CANDIDATES
            docs = _read_best(execute, scores, where, limit)
            if len(docs) < limit and _has_period(where):
                # The candidates are from another period: score everything.
                plan = plan_search(terms, frequency, space.memories, matching, UNLIMITED, limit)
                scores = _score_candidates(execute, space.number, plan, only, UNLIMITED)
                docs = _read_best(execute, scores, where, limit)
    return Matches(docs, space.memories, average, frequency)


def _score_candidates(
    execute: Any, space: int, plan: SearchPlan, only: str, work: int
) -> dict[int, int]:
    """Return the score of each candidate by rowid, from the `work` newest rows of each term.

    `only` is the template from `_filter_query`.
    """
    quoted = {term: f'"{space}_{term}"' for term in plan.worth}
    scores: dict[int, int] = {}
    for term in plan.leading:
        worth = plan.worth[term]
        for (rowid,) in execute(_ROWS, (only.format(quoted[term]), work)):
            scores[rowid] = scores.get(rowid, 0) + worth
    if not plan.following:
        return scores
    oldest = min(scores, default=0)
    found = " OR ".join(quoted[term] for term in plan.leading)
    for term in plan.following:
        worth = plan.worth[term]
        for (rowid,) in execute(
            _ROWS_SINCE, (only.format(f"({found}) AND {quoted[term]}"), oldest)
        ):
            if rowid in scores:
                scores[rowid] += worth
    # Memories with every word are included, however old they are.
    everything, whole = " AND ".join(quoted.values()), sum(plan.worth.values())
    scores.update((rowid, whole) for (rowid,) in execute(_ROWS, (only.format(everything), work)))
    return scores


def _weigh_lengths(execute: Any, scores: Mapping[int, float], average: float) -> dict[int, float]:
    """Return the scores of the best candidates, relative to their lengths."""
    best = nlargest(PREFILTER_DOCS, scores, key=lambda rowid: (scores[rowid], rowid))
    lengths = execute(_LENGTHS, (_encode(best).decode(),))
    return {rowid: weigh_length(scores[rowid], length, average) for rowid, length in lengths}


def _read_best(
    execute: Any, scores: Mapping[int, float], where: MemoryFilter, limit: int
) -> list[MemoryDoc]:
    """Return up to `limit` memories that match the filter: best score first, then newest first."""
    ordered = [
        rowid for _, rowid in sorted(zip(scores.values(), scores, strict=True), reverse=True)
    ]
    found: list[MemoryDoc] = []
    start, size = 0, limit
    while start < len(ordered) and len(found) < limit:
        chunk = ordered[start : start + size]
        docs = _read_rows(execute, chunk, where)
        if not docs and execute(_THERE, (_encode(chunk).decode(),)).fetchone()[0] < len(chunk):
            raise apsw.CorruptError("terms refer to missing memories")
        found += docs
        start, size = start + size, CHUNK_DOCS
    return found[:limit]


def _read_rows(execute: Any, rowids: Sequence[int], where: MemoryFilter) -> list[MemoryDoc]:
    """Return the memories in these rows that match a filter, in the same order."""
    condition, values = SQLITE.build_condition(where)
    bodies = dict(execute(_DOCS.format(condition), pack_values(values | {"rowids": list(rowids)})))
    return [decode_doc(bodies[rowid] or b"") for rowid in rowids if rowid in bodies]


def _read_period(execute: Any, space: int, where: MemoryFilter) -> list[MemoryDoc] | None:
    """Return all matching memories of a short period; None for a long one, or without a period."""
    if not _has_period(where):
        return None
    since = EARLIEST_TIME if where.since is None else where.since
    until = LATEST_TIME if where.until is None else where.until
    rowids = [rowid for (rowid,) in execute(_BETWEEN, (space, since, until, FEW_DOCS + 1))]
    return None if len(rowids) > FEW_DOCS else _read_rows(execute, rowids, where)


def read_marked(
    execute: Any, space: int, after: int, limit: int, where: MemoryFilter
) -> list[MemoryDoc]:
    """Implement `MemoryIndex.page` for a filter with markers: posting lists give the next rows."""
    last, end = rowid_of(space, after), rowid_of(space + 1, 0)
    markers = marker_query(space, where)
    while rowids := [rowid for (rowid,) in execute(_NEXT, (markers, last, end, limit))]:
        if docs := _read_rows(execute, rowids, where):
            return docs
        if rowids[-1] <= last:
            raise apsw.CorruptError("terms are out of order")
        last = rowids[-1]
    return []


def list_marked(execute: Any, space: int, where: MemoryFilter) -> list[int]:
    """Implement `MemoryIndex.numbers` for a filter with markers."""
    rest = msgspec.structs.replace(
        where, tags=(), source=None, author=None, subject=None, visible_to=msgspec.UNSET
    )
    condition, values = SQLITE.build_condition(rest)
    values |= {"markers": marker_query(space, where), "space": space}
    found = execute(_MARKED_NUMBERS.format(condition), pack_values(values))
    return sorted(number for (number,) in found)


def marker_query(space: int, where: MemoryFilter) -> str | None:
    """Return the FTS5 query for memories with the required markers; None if there are none."""
    return " AND ".join(_any_of(space, group) for group in required_markers(where)) or None


def _filter_query(space: int, where: MemoryFilter) -> str:
    """Return a template of an FTS5 query that applies the filter; the words go into its braces."""
    marked, excluded = marker_query(space, where), excluded_markers(where)
    only = "{}" if marked is None else f"{marked} AND ({{}})"
    return f"({only}) NOT {_any_of(space, excluded)}" if excluded else only


def _any_of(space: int, markers: Sequence[str]) -> str:
    return "(" + " OR ".join(f'"{space}_{marker}"' for marker in markers) + ")"


def _has_period(where: MemoryFilter) -> bool:
    return where.since is not None or where.until is not None


def _pick_best(docs: Sequence[MemoryDoc], plan: SearchPlan, limit: int) -> list[MemoryDoc]:
    scores = {}
    for doc in docs:
        words = {*doc.terms.split(), *doc.context.split()}
        scores[doc.number] = sum(worth for term, worth in plan.worth.items() if term in words)
    chosen = sorted(
        (doc for doc in docs if scores[doc.number]),
        key=lambda doc: (-scores[doc.number], -doc.number),
    )
    return chosen[:limit]


_FREQUENCY: Final = (
    "SELECT term, doc FROM memory_frequency WHERE term IN (SELECT value FROM json_each(?))"
)
_ROWS: Final = (
    "SELECT rowid FROM memory_terms WHERE memory_terms MATCH ? ORDER BY rowid DESC LIMIT ?"
)
_ROWS_SINCE: Final = "SELECT rowid FROM memory_terms WHERE memory_terms MATCH ? AND rowid >= ?"
_DOCS: Final = (
    "SELECT doc, body FROM memory_docs WHERE doc IN (SELECT value FROM json_each(:rowids)) AND {}"
)
_LENGTHS: Final = (
    "SELECT doc, length FROM memory_docs WHERE doc IN (SELECT value FROM json_each(?))"
)
_THERE: Final = "SELECT count(*) FROM memory_docs WHERE doc IN (SELECT value FROM json_each(?))"
_NEXT: Final = (
    "SELECT rowid FROM memory_terms WHERE memory_terms MATCH ? AND rowid > ? AND rowid < ?"
    " ORDER BY rowid LIMIT ?"
)
_MARKED_NUMBERS: Final = """
SELECT number FROM memory_docs
WHERE doc IN (SELECT rowid FROM memory_terms WHERE memory_terms MATCH :markers)
    AND +space = :space AND {}"""
_BETWEEN: Final = "SELECT doc FROM memory_docs WHERE space = ? AND at BETWEEN ? AND ? LIMIT ?"
