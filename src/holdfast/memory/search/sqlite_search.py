"""Looking for candidates in the index in SQLite: lists of rowids from FTS5, added up here.

A rowid is made of the number of the namespace and that of the memory, so that it is known without reading the memory, and the newest
come first if there are too many of one kind. FTS5's own ranking is not used: it takes ten times as long, and knows
how common a word is in all namespaces together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from ..model import MemoryDoc, MemoryFilter, doc_of
from .candidates import LEADING, Plan, markers_in, markers_not_in, planned
from .filters import sqlite_condition
from .index import Matches

WORK: Final = LEADING
FEW: Final = 2_000
"""If no more were said between `since` and `until`, all of those are looked at."""
CHUNK: Final = 400
"""So many memories are read at a time, until enough of them are asked for."""
NUMBER_BITS: Final = 40
ALL: Final = 1 << 62
MIN, MAX = -1e300, 1e300

_encode = msgspec.json.Encoder().encode


class NamespaceSize(NamedTuple):
    """A namespace: its number, how many memories it has, and how many terms these have."""

    number: int
    memories: int
    terms: int


def rowid_of(space: int, number: int) -> int:
    return space << NUMBER_BITS | number


def search(
    execute: Any, place: NamespaceSize, terms: Mapping[str, float], where: MemoryFilter, limit: int
) -> Matches:
    """What every index's `search` does."""
    names = {f"{place.number}_{term}": term for term in terms}
    markers = [[f"{place.number}_{marker}" for marker in group] for group in markers_in(where)]
    others = [f"{place.number}_{marker}" for marker in markers_not_in(where)]
    counts = dict(
        execute(_FREQUENCY, (_encode([*names, *chain(*markers), *others]).decode(),)).fetchall()
    )
    frequency = {term: counts[name] for name, term in names.items() if name in counts}
    most = place.memories - sum(counts.get(marker, 0) for marker in others)
    most = min([most, *(sum(counts.get(marker, 0) for marker in group) for group in markers)])
    only = _restriction(place.number, where)
    plan = planned(terms, frequency, place.memories, most, WORK, limit)
    docs: Sequence[MemoryDoc] = []
    if plan.leading and most:
        few = _between(execute, place.number, where)
        if few is not None:
            docs = _best_of(few, plan, limit)
        else:
            docs = _read(
                execute, _scores(execute, place.number, plan, only, max(WORK, limit)), where, limit
            )
            if len(docs) < limit and _timed(
                where
            ):  # what was brought is of another time: look at everything
                plan = planned(terms, frequency, place.memories, most, ALL, limit)
                docs = _read(execute, _scores(execute, place.number, plan, only, ALL), where, limit)
    return Matches(docs, place.memories, place.terms / max(place.memories, 1), frequency)


def _scores(execute: Any, space: int, plan: Plan, only: str, work: int) -> dict[int, int]:
    """What each candidate is worth, by rowid: of no word more than the `work` newest. `only`: as `_restriction` has it."""
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
    # Those that have every word come along, however old they are.
    everything, whole = " AND ".join(quoted.values()), sum(plan.worth.values())
    scores.update((rowid, whole) for (rowid,) in execute(_ROWS, (only.format(everything), work)))
    return scores


def _read(
    execute: Any, scores: Mapping[int, int], where: MemoryFilter, limit: int
) -> list[MemoryDoc]:
    """The best that are asked for, best first; of equals the newest."""
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
            raise apsw.CorruptError("words lead to memories that are not there")
        found += [doc_of(bodies[rowid] or b"") for rowid in chunk if rowid in bodies]
        start, size = start + size, CHUNK
    return found[:limit]


def _between(execute: Any, space: int, where: MemoryFilter) -> list[MemoryDoc] | None:
    """All that are asked for, if few were said in the time that is asked for; None if not."""
    if not _timed(where):
        return None
    since = MIN if where.since is None else where.since
    until = MAX if where.until is None else where.until
    rowids = [rowid for (rowid,) in execute(_BETWEEN, (space, since, until, FEW + 1))]
    if len(rowids) > FEW:
        return None
    condition, values = sqlite_condition(where)
    bodies = execute(_DOCS.format(condition), (_encode(rowids).decode(), *values)).fetchall()
    return [doc_of(body or b"") for _, body in bodies]


def page(execute: Any, space: int, after: int, limit: int, where: MemoryFilter) -> list[MemoryDoc]:
    """What every index's `page` does. Where something restricts it, the lists of the words say what comes next."""
    condition, values = sqlite_condition(where)
    markers = _marked(space, where)
    if markers is None:
        return [
            doc_of(body or b"")
            for (body,) in execute(_PAGE.format(condition), (space, after, *values, limit))
        ]
    last, end = rowid_of(space, after), rowid_of(space + 1, 0)
    while rowids := [rowid for (rowid,) in execute(_NEXT, (markers, last, end, limit))]:
        bodies = dict(
            execute(_DOCS.format(condition), (_encode(rowids).decode(), *values)).fetchall()
        )
        if bodies:
            return [doc_of(bodies[rowid] or b"") for rowid in rowids if rowid in bodies]
        last = rowids[-1]
    return []


def numbers(execute: Any, space: int, where: MemoryFilter) -> list[int]:
    """What every index's `numbers` does."""
    markers = _marked(space, where)
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


def _marked(space: int, where: MemoryFilter) -> str | None:
    """What FTS5 is asked for, to have all that carry the markers; None if nothing is marked."""
    return " AND ".join(_one_of(space, group) for group in markers_in(where)) or None


def _restriction(space: int, where: MemoryFilter) -> str:
    """What FTS5 is asked for, to have only what is asked for: the words go into the braces."""
    marked, others = _marked(space, where), markers_not_in(where)
    only = "{}" if marked is None else f"{marked} AND ({{}})"
    return f"({only}) NOT {_one_of(space, others)}" if others else only


def _one_of(space: int, markers: Sequence[str]) -> str:
    return "(" + " OR ".join(f'"{space}_{marker}"' for marker in markers) + ")"


def _timed(where: MemoryFilter) -> bool:
    return where.since is not None or where.until is not None


def _best_of(docs: Sequence[MemoryDoc], plan: Plan, limit: int) -> list[MemoryDoc]:
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
_NEXT: Final = "SELECT rowid FROM memory_terms WHERE memory_terms MATCH ? AND rowid > ? AND rowid < ? ORDER BY rowid LIMIT ?"
_PAGE: Final = (
    "SELECT body FROM memory_docs WHERE space = ? AND number > ? AND {} ORDER BY number LIMIT ?"
)
_NUMBERS: Final = "SELECT number FROM memory_docs WHERE space = ? AND {}"
_MARKED_NUMBERS: Final = """
SELECT number FROM memory_docs WHERE doc IN (SELECT rowid FROM memory_terms WHERE memory_terms MATCH ?) AND +space = ? AND {}"""
_BETWEEN: Final = "SELECT doc FROM memory_docs WHERE space = ? AND at BETWEEN ? AND ? LIMIT ?"
