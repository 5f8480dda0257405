"""Store repairs and summaries in addition to the messages, which stay unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..backends import StreamKey
from ..log.codec import encode
from ..log.events import AppendContext, NewEvent
from ..log.operations import Operation
from . import fold
from .entries import MessageEntry, MessageProblem
from .messages import Message
from .read import (
    ConversationSnapshot,
    load_snapshot,
    read_drafts,
    read_fold_at,
    read_marks,
    read_newest,
    read_summary,
)
from .repair import Insert, Remove
from .window import count_covered, find_problem_fixes, find_unit_starts
from .write import new_event, new_removal_event, require_snapshot, store_events


def append_repairs(
    key: StreamKey, stamp: AppendContext, owner: str | None
) -> Operation[list[MessageProblem]]:
    """Repair everything that a provider would reject, in one append. Returns the problems."""
    snapshot = yield from load_snapshot(key, owner=owner)
    if snapshot is None:
        return []
    entries = yield from read_newest(key, snapshot, None)
    events: list[NewEvent] = []
    found: list[MessageProblem] = []
    for problem, fix in find_problem_fixes(entries):
        found.append(problem)
        if isinstance(fix, Insert):
            data: Any = fold.Inserted(problem.version, fix.message, fix.kind)
            events.append(new_event(fold.INSERTED, data, snapshot.fold))
        elif isinstance(fix, Remove):
            events.append((yield from new_removal_event(key, snapshot, problem.version, fix.kind)))
        else:
            data = fold.Replaced(problem.version, fix.message, fix.kind)
            events.append(new_event(fold.REPLACED, data, snapshot.fold))
    drafts = yield from read_drafts(key, snapshot)
    if drafts:
        draft = drafts[-1]  # earlier ones were attempts at the same answer
        what = "an answer was interrupted while it was being streamed"
        found.append(MessageProblem(snapshot.version, "interrupted answer", what))
        answer = {
            "message": {"role": "assistant", "content": draft.text},
            "meta": {"interrupted": True, "of": draft.of},
        }
        events.append(NewEvent(fold.APPENDED, encode(answer), 1, fold.encode_fold(snapshot.fold)))
    if events:
        yield from store_events(key, snapshot, events, stamp, expected=snapshot.record)
    return found


class SummaryRange(msgspec.Struct, frozen=True):
    """The messages to summarize, and the versions they cover."""

    snapshot: ConversationSnapshot
    messages: list[Message]
    first: int
    last: int


def load_summary_range(key: StreamKey, keep_last: int) -> Operation[SummaryRange | None]:
    """Return what to summarize: the last summary, and the messages since except the newest.

    Those are the newest `keep_last` messages, or a few more, so that no unit is cut. Returns None
    if there is nothing to summarize.
    """
    snapshot = yield from load_snapshot(key)
    if snapshot is None:
        return None
    marks = yield from read_marks(key, snapshot.fold)
    entries = yield from read_newest(key, snapshot, None)
    starts = [
        start
        for start in find_unit_starts([entry.message for entry in entries])
        if start <= len(entries) - keep_last
    ]
    cut = starts[-1] if len(entries) > keep_last and starts else 0
    if keep_last == 0:
        cut = len(entries)
    # By index, not by version: a message that a repair inserted has a newer version.
    done = count_covered(entries, marks)
    if cut <= done:
        return None
    summary = yield from read_summary(key, snapshot.fold, marks)
    before = [summary.message] if summary else []
    messages = [*before, *(entry.message for entry in entries[done:cut])]
    return SummaryRange(snapshot, messages, entries[0].version, entries[cut - 1].version)


def append_summary(
    key: StreamKey, part: SummaryRange, message: Message, stamp: AppendContext, owner: str | None
) -> Operation[MessageEntry | int]:
    """Store a summary and return its entry.

    If another caller has rewound or summarized its messages since, return the current version
    instead.
    """
    snapshot = require_snapshot(key, (yield from load_snapshot(key, owner=owner)))
    if snapshot.incarnation != part.snapshot.incarnation:
        return snapshot.version
    marks = yield from read_marks(key, snapshot.fold)
    then = yield from read_marks(key, part.snapshot.fold)
    if marks.summary != then.summary or not (yield from _still_live(key, snapshot, part)):
        return snapshot.version
    own = msgspec.structs.replace(marks, summary=snapshot.version + 1, covers=part.last)
    data = fold.Summarized(part.first, part.last, message)
    yield from store_events(
        key,
        snapshot,
        [new_event(fold.SUMMARIZED, data, snapshot.fold, own)],
        stamp,
        expected=snapshot.record,
    )
    entry = yield from read_summary(key, snapshot.fold, own)
    assert entry is not None  # it was stored just now
    return entry


def _still_live(
    key: StreamKey, snapshot: ConversationSnapshot, part: SummaryRange
) -> Operation[bool]:
    """Return whether all messages that are being summarized are still live."""
    if snapshot.version == part.snapshot.version:
        return True
    entries: Sequence[MessageEntry] = yield from read_newest(key, snapshot, None)
    live = {entry.version for entry in entries}
    then = yield from read_fold_at(key, snapshot, part.snapshot.version)
    return (
        part.first in live
        and part.last in live
        and len([v for v in live if v <= part.snapshot.version]) == then.count
    )
