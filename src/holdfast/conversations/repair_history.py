"""Repairs and summaries: stored beside the messages they are about, which stay as they are."""

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
from .read import KnownConversation, drafts, learn, marks_at, newest, state_at, summary_at
from .repair import Insert, Remove
from .window import places_covered, troubles, unit_starts
from .write import must_exist, new_event, put, removal


def repair(
    key: StreamKey, stamp: AppendContext, owner: str | None
) -> Operation[list[MessageProblem]]:
    """Mend what a provider would refuse, in one append. Nothing to mend, nothing written."""
    known = yield from learn(key, owner=owner)
    if known is None:
        return []
    entries = yield from newest(key, known, None)
    events: list[NewEvent] = []
    found: list[MessageProblem] = []
    for problem, fix in troubles(entries):
        found.append(problem)
        if isinstance(fix, Insert):
            data: Any = fold.Inserted(problem.version, fix.message, fix.kind)
            events.append(new_event(fold.INSERTED, data, known.fold))
        elif isinstance(fix, Remove):
            events.append((yield from removal(key, known, problem.version, fix.kind)))
        else:
            data = fold.Replaced(problem.version, fix.message, fix.kind)
            events.append(new_event(fold.REPLACED, data, known.fold))
    for draft in (yield from drafts(key, known))[
        -1:
    ]:  # earlier ones were attempts at the same answer
        found.append(
            MessageProblem(
                known.version, "interrupted answer", "an answer was cut off while it was streamed"
            )
        )
        answer = {
            "message": {"role": "assistant", "content": draft.text},
            "meta": {"interrupted": True, "of": draft.of},
        }
        events.append(NewEvent(fold.APPENDED, encode(answer), 1, fold.encoded(known.fold)))
    if events:
        yield from put(key, known, events, stamp, expected=known.record)
    return found


class Chapter(msgspec.Struct, frozen=True):
    """What a summary is to be made of: the messages, and the versions they cover."""

    known: KnownConversation
    messages: list[Message]
    first: int
    last: int


def chapter(key: StreamKey, keep_last: int) -> Operation[Chapter | None]:
    """What came before the newest `keep_last` messages and is not summarised yet, after the summary so far."""
    known = yield from learn(key)
    if known is None:
        return None
    marks = yield from marks_at(key, known.fold)
    entries = yield from newest(key, known, None)
    starts = [
        start
        for start in unit_starts([entry.message for entry in entries])
        if start <= len(entries) - keep_last
    ]
    cut = starts[-1] if len(entries) > keep_last and starts else 0
    if keep_last == 0:
        cut = len(entries)
    # By place, not by version: a message that a repair put among old ones has a version of its own time.
    done = places_covered(entries, marks)
    if cut <= done:
        return None
    summary = yield from summary_at(key, known.fold, marks)
    before = [summary.message] if summary else []
    messages = [*before, *(entry.message for entry in entries[done:cut])]
    return Chapter(known, messages, entries[0].version, entries[cut - 1].version)


def summarize(
    key: StreamKey, part: Chapter, message: Message, stamp: AppendContext, owner: str | None
) -> Operation[MessageEntry | int]:
    """Store a summary; or the version at which its messages turned out to be rewound, or summarised by somebody else."""
    known = must_exist(key, (yield from learn(key, owner=owner)))
    if known.incarnation != part.known.incarnation:
        return known.version
    marks = yield from marks_at(key, known.fold)
    then = yield from marks_at(key, part.known.fold)
    if marks.summary != then.summary or not (yield from _still_live(key, known, part)):
        return known.version
    own = msgspec.structs.replace(marks, summary=known.version + 1, covers=part.last)
    data = fold.Summarized(part.first, part.last, message)
    yield from put(
        key,
        known,
        [new_event(fold.SUMMARIZED, data, known.fold, own)],
        stamp,
        expected=known.record,
    )
    entry = yield from summary_at(key, known.fold, own)
    assert entry is not None  # it was stored just now
    return entry


def _still_live(key: StreamKey, known: KnownConversation, part: Chapter) -> Operation[bool]:
    """Whether nothing was taken away since: then there are as many messages as then, and those since."""
    if known.version == part.known.version:
        return True
    entries: Sequence[MessageEntry] = yield from newest(key, known, None)
    live = {entry.version for entry in entries}
    then = yield from state_at(key, known, part.known.version)
    return (
        part.first in live
        and part.last in live
        and len([v for v in live if v <= part.known.version]) == then.count
    )
