"""Find proposals without a model: duplicates, unused and expired memories, conflicts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ...backends import clock
from ..duplicates import compare_texts, compute_signature
from ..model import MemoryDoc, MemoryFilter
from ..search.current import find_conflicts
from ..statements import MAX_STATEMENTS, statements_of
from ..trust import OUTSIDE_AUTHORS
from .proposals import Proposal, build_proposal, is_protected

if TYPE_CHECKING:
    from ..memory import MemoryBase

DUPLICATE_SECONDS: Final = 86_400.0
"""The same words on another day may be another event, so they stay two memories."""
MIN_DUPLICATE_WORDS: Final = 4
"""Shorter texts, such as "Yes, please", mean something only where they were said."""
MAX_UNUSED_IMPORTANCE: Final = 0.5
"""A memory above the default importance is never archived for lack of use."""
ARCHIVE_BATCH: Final = 100
"""How many memories one proposal archives or removes."""


class FindOptions(msgspec.Struct, frozen=True):
    """What to look for. Memories that were not used for `unused_seconds` are archived."""

    subject: str | None
    unused_seconds: float | None
    trusted: tuple[str, ...]


def find_proposals(memory: MemoryBase, options: FindOptions) -> list[Proposal]:
    """Return the proposals that need no model. Reads the memories about one subject, or none."""
    now = clock.time()
    docs = load_docs(memory, options.subject, now)
    live = [doc for doc in docs if is_open(doc, now)]
    first = [
        *_find_duplicates(live, options.trusted),
        *_find_outdated_summaries(docs, live, options.trusted),
    ]
    taken = {name for one in drop_overlaps(first, live) for name in one.evidence}
    found = [
        *first,
        *_find_unused(live, taken, options, now),
        *_find_contradicted(live, options.trusted),
        *_find_expired(memory, options, now),
    ]
    return drop_overlaps(found, live)


def load_docs(memory: MemoryBase, subject: str | None, now: float) -> list[MemoryDoc]:
    """Return all memories about a subject, or about none, including those that are closed."""
    where = MemoryFilter(now=now, any_time=True)
    only = {"visible_to": None} if subject is None else {"subject": subject}
    return list(memory._read_docs(msgspec.structs.replace(where, **only)))


def is_open(doc: MemoryDoc, now: float) -> bool:
    """Whether a memory is recalled now, or will be when it becomes valid."""
    return doc.superseded_by is None and (doc.valid_until is None or doc.valid_until > now)


def drop_overlaps(proposals: Iterable[Proposal], docs: Iterable[MemoryDoc]) -> list[Proposal]:
    """Return the proposals without those that build on a memory which an earlier one closes.

    Those that were made about these memories before and then undone are left out too.
    """
    declined = {name for doc in docs for name in doc.declined}
    closed: set[str] = set()
    kept: list[Proposal] = []
    for one in proposals:
        if one.id not in declined and closed.isdisjoint(one.evidence):
            kept.append(one)
            closed.update(one.closes)
    return kept


def _find_duplicates(docs: Sequence[MemoryDoc], trusted: Sequence[str]) -> Iterator[Proposal]:
    """Yield groups of memories with the same words, by the same author, of the same day.

    The fold merges most duplicates at once; these were given different times.
    """
    groups: dict[tuple[object, ...], list[MemoryDoc]] = {}
    for doc in docs:
        words = compute_signature(doc.text).words
        if len(words) >= MIN_DUPLICATE_WORDS and doc.expires_at is None and not doc.variants:
            key = (words, doc.author, doc.valid_from, doc.valid_until)
            groups.setdefault(key, []).append(doc)
    for group in groups.values():
        yield from _part_by_day(group, trusted)


def _part_by_day(group: Sequence[MemoryDoc], trusted: Sequence[str]) -> Iterator[Proposal]:
    """Yield the duplicates among memories with the same words. The best of a day stands for it."""
    by_time = sorted(group, key=lambda doc: doc.at)
    times, done = [doc.at for doc in by_time], set[int]()
    best = sorted(group, key=lambda doc: (doc.importance, doc.mentions, doc.at, doc.number))
    for keep in reversed(best):
        if keep.number in done:
            continue
        done.add(keep.number)
        mine, room = compute_signature(keep.text), MAX_STATEMENTS - len(statements_of(keep))
        first = bisect_left(times, keep.at - DUPLICATE_SECONDS)
        last = bisect_right(times, keep.at + DUPLICATE_SECONDS)
        same: list[MemoryDoc] = []
        near = [doc for doc in by_time[first:last] if doc.number not in done]
        for doc in sorted(near, key=lambda doc: doc.number):
            if compare_texts(compute_signature(doc.text), mine) == "same":
                room -= len(statements_of(doc))
                if room < 0:
                    break
                same.append(doc)
        if same:
            done.update(doc.number for doc in same)
            reason = "the same words by the same author within a day"
            yield build_proposal(
                "duplicate", [keep, *same], trusted, reason, closes=same, keep=keep, safe=True
            )


def _find_outdated_summaries(
    docs: Sequence[MemoryDoc], live: Sequence[MemoryDoc], trusted: Sequence[str]
) -> Iterator[Proposal]:
    """Yield the summaries whose evidence was superseded or forgotten since."""
    known = {doc.id: doc for doc in docs}
    keepers: dict[str, MemoryDoc] = {}
    for doc in docs:
        for name in doc.replaced:
            keepers.setdefault(name, doc)
    for doc in live:
        if doc.evidence and not doc.replaced and not is_protected(doc, trusted):
            parts = [known.get(name) for name in doc.evidence]
            if any(part is None or _is_outdated(part, keepers.get(part.id)) for part in parts):
                reason = "a summary of memories that have changed since"
                yield build_proposal("archive", [doc], trusted, reason, closes=[doc], safe=True)


def _is_outdated(part: MemoryDoc, keeper: MemoryDoc | None) -> bool:
    """Whether a memory was closed, but not because its `keeper` says the same."""
    if part.superseded_by is None:
        return False
    same = keeper is not None and compute_signature(keeper.text) == compute_signature(part.text)
    return not same


def _find_unused(
    docs: Sequence[MemoryDoc], taken: Collection[str], options: FindOptions, now: float
) -> Iterator[Proposal]:
    """Yield old memories that were never used or repeated. `taken` are in another proposal.

    Only if the use of others is recorded: otherwise it is not known whether these were used.
    """
    if options.unused_seconds is None or not any(doc.useful_at for doc in docs):
        return
    unused = [
        doc
        for doc in docs
        if doc.id not in taken
        and not doc.useful_at
        and doc.mentions == 1
        and doc.importance <= MAX_UNUSED_IMPORTANCE
        and doc.expires_at is None
        and (doc.valid_from is None or doc.valid_from <= now)
        and not doc.replaced
        and not doc.evidence
        and not doc.summaries
        and not is_protected(doc, options.trusted)
        and max(doc.told_at, doc.at) < now - options.unused_seconds
    ]
    for start in range(0, len(unused), ARCHIVE_BATCH):
        batch = unused[start : start + ARCHIVE_BATCH]
        reason = "old, said once and never used"
        yield build_proposal("archive", batch, options.trusted, reason, closes=batch, safe=True)


def _find_contradicted(docs: Sequence[MemoryDoc], trusted: Sequence[str]) -> Iterator[Proposal]:
    """Yield memories that a newer one contradicts. Only a person may say which one is right."""
    for newer, older in find_conflicts(docs):
        if may_supersede(newer, older):
            pair, reason = [newer, older], "they give one thing two values"
            yield build_proposal(
                "supersede", pair, trusted, reason, closes=[older], keep=newer, protected=True
            )


def may_supersede(newer: MemoryDoc, older: MemoryDoc) -> bool:
    """Whether a memory may replace an older one. A stranger's text replaces only their own."""
    return (newer.at, newer.number) > (older.at, older.number) and (
        newer.author not in OUTSIDE_AUTHORS or newer.author == older.author
    )


def _find_expired(memory: MemoryBase, options: FindOptions, now: float) -> Iterator[Proposal]:
    limit, full = ARCHIVE_BATCH, True
    expired: list[MemoryDoc] = []
    while full and len(expired) < ARCHIVE_BATCH:  # the first ones may all be about others
        found = memory._current_index().list_expired(memory._key, now, limit)
        expired = [doc for doc in found if doc.subject == options.subject][:ARCHIVE_BATCH]
        full, limit = len(found) == limit, limit * 4
    if expired:
        reason = "their time to live is over"
        yield build_proposal("expire", expired, options.trusted, reason, safe=True)
