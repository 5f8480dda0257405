"""Find candidates in the SQLite index: posting lists from FTS5, added up here.

A rowid consists of the numbers of the namespace and the memory, so no row needs to be read for it,
and the newest come first if there are too many. FTS5's own ranking is not used: it takes ten times
as long, and counts words over all namespaces together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from ..model import MemoryDoc, MemoryFilter, decode_doc
from .candidates import LEADING_DOCS, SearchPlan, excluded_markers, plan_search, required_markers
from .filters import sqlite_condition
from .index import Matches

WORK_DOCS: Final = LEADING_DOCS
FEW_DOCS: Final = 2_000
"""If a period has no more memories, all of them are scored."""
CHUNK_DOCS: Final = 400
"""Memories to read at a time, until enough match the filter."""
NUMBER_BITS: Final = 40
UNLIMITED: Final = 1 << 62
EARLIEST_TIME, LATEST_TIME = -1e300, 1e300

_encode = msgspec.json.Encoder().encode


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
    docs: Sequence[MemoryDoc] = []
    if plan.leading and matching:
        few = _read_period(execute, space.number, where)
        if few is not None:
            docs = _pick_best(few, plan, limit)
        else:
            scores = _score_candidates(execute, space.number, plan, only, max(WORK_DOCS, limit))
            docs = _read_best(execute, scores, where, limit)
            if len(docs) < limit and _has_period(where):
                # The candidates are from another period: score everything.
                plan = plan_search(terms, frequency, space.memories, matching, UNLIMITED, limit)
                scores = _score_candidates(execute, space.number, plan, only, UNLIMITED)
                docs = _read_best(execute, scores, where, limit)
    return Matches(docs, space.memories, space.terms / max(space.memories, 1), frequency)


def _score_candidates(
    execute: Any, space: int, plan: SearchPlan, only: str, work: int
) -> dict[int, int]:
    """Return the score of each candidate by rowid, from the `work` newest rows of each term.

    `only`: the restriction by `_filter_query`.
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


def _read_best(
    execute: Any, scores: Mapping[int, int], where: MemoryFilter, limit: int
) -> list[MemoryDoc]:
    """Return the best that match the filter, best first; of equals the newest."""
    condition, values = sqlite_condition(where)
    ordered = [
        rowid for _, rowid in sorted(zip(scores.values(), scores, strict=True), reverse=True)
    ]
    found: list[MemoryDoc] = []
    start, size = 0, limit
    while start < len(ordered) and len(found) < limit:
        chunk = ordered[start : start + size]
        bodies = dict(
            execute(_DOCS.format(condition), (_encode(chunk).decode(), *values)).fetchall()
        )
        if not bodies and execute(_THERE, (_encode(chunk).decode(),)).fetchone()[0] < len(chunk):
            raise apsw.CorruptError("terms refer to missing memories")
        found += [decode_doc(bodies[rowid] or b"") for rowid in chunk if rowid in bodies]
        start, size = start + size, CHUNK_DOCS
    return found[:limit]


def _read_period(execute: Any, space: int, where: MemoryFilter) -> list[MemoryDoc] | None:
    """Return all matching memories of a short period; None if it has many, or there is none."""
    if not _has_period(where):
        return None
    since = EARLIEST_TIME if where.since is None else where.since
    until = LATEST_TIME if where.until is None else where.until
    rowids = [rowid for (rowid,) in execute(_BETWEEN, (space, since, until, FEW_DOCS + 1))]
    if len(rowids) > FEW_DOCS:
        return None
    condition, values = sqlite_condition(where)
    bodies = execute(_DOCS.format(condition), (_encode(rowids).decode(), *values)).fetchall()
    return [decode_doc(body or b"") for _, body in bodies]


def read_page(
    execute: Any, space: int, after: int, limit: int, where: MemoryFilter
) -> list[MemoryDoc]:
    """Implement `MemoryIndex.page`. With markers, their posting lists give the next rows."""
    condition, values = sqlite_condition(where)
    markers = _marker_query(space, where)
    if markers is None:
        return [
            decode_doc(body or b"")
            for (body,) in execute(_PAGE.format(condition), (space, after, *values, limit))
        ]
    last, end = rowid_of(space, after), rowid_of(space + 1, 0)
    while rowids := [rowid for (rowid,) in execute(_NEXT, (markers, last, end, limit))]:
        bodies = dict(
            execute(_DOCS.format(condition), (_encode(rowids).decode(), *values)).fetchall()
        )
        if bodies:
            return [decode_doc(bodies[rowid] or b"") for rowid in rowids if rowid in bodies]
        last = rowids[-1]
    return []


def list_numbers(execute: Any, space: int, where: MemoryFilter) -> list[int]:
    """Implement `MemoryIndex.numbers`."""
    markers = _marker_query(space, where)
    if markers is None:
        condition, values = sqlite_condition(where)
        found = execute(_NUMBERS.format(condition), (space, *values)).fetchall()
    else:
        rest = MemoryFilter(
            now=where.now, since=where.since, until=where.until, without=where.without
        )
        condition, values = sqlite_condition(rest)
        found = execute(_MARKED_NUMBERS.format(condition), (markers, space, *values)).fetchall()
    return sorted(number for (number,) in found)


def _marker_query(space: int, where: MemoryFilter) -> str | None:
    """Return the FTS5 query for memories with the required markers; None if there are none."""
    return " AND ".join(_any_of(space, group) for group in required_markers(where)) or None


def _filter_query(space: int, where: MemoryFilter) -> str:
    """Return a template of an FTS5 query that applies the filter; the words go into its braces."""
    marked, excluded = _marker_query(space, where), excluded_markers(where)
    only = "{}" if marked is None else f"{marked} AND ({{}})"
    return f"({only}) NOT {_any_of(space, excluded)}" if excluded else only


def _any_of(space: int, markers: Sequence[str]) -> str:
    return "(" + " OR ".join(f'"{space}_{marker}"' for marker in markers) + ")"


def _has_period(where: MemoryFilter) -> bool:
    return where.since is not None or where.until is not None


def _pick_best(docs: Sequence[MemoryDoc], plan: SearchPlan, limit: int) -> list[MemoryDoc]:
    scores = {}
    for doc in docs:
        words = set(doc.terms.split(" ")).union(doc.context.split(" "))
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
    "SELECT doc, body FROM memory_docs WHERE doc IN (SELECT value FROM json_each(?)) AND {}"
)
_THERE: Final = "SELECT count(*) FROM memory_docs WHERE doc IN (SELECT value FROM json_each(?))"
_NEXT: Final = (
    "SELECT rowid FROM memory_terms WHERE memory_terms MATCH ? AND rowid > ? AND rowid < ?"
    " ORDER BY rowid LIMIT ?"
)
_PAGE: Final = (
    "SELECT body FROM memory_docs WHERE space = ? AND number > ? AND {} ORDER BY number LIMIT ?"
)
_NUMBERS: Final = "SELECT number FROM memory_docs WHERE space = ? AND {}"
_MARKED_NUMBERS: Final = """
SELECT number FROM memory_docs
WHERE doc IN (SELECT rowid FROM memory_terms WHERE memory_terms MATCH ?) AND +space = ? AND {}"""
_BETWEEN: Final = "SELECT doc FROM memory_docs WHERE space = ? AND at BETWEEN ? AND ? LIMIT ?"
