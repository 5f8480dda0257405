"""Syncing: making a conversation equal to a list that the caller owns, by appending what is new in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from ..backends import StreamKey
from ..log.events import AppendContext, NewEvent
from ..log.operations import Operation
from .fold import ConversationFold, Marks
from .read import KnownConversation, learn, marks_at, newest, state_at, summary_at
from .write import New, message_events, only_grew, put, removing, rewound, state_after


class Mirror(msgspec.Struct, frozen=True):
    """The live messages as they were at a version, by digest: what `sync` compares the caller's list with."""

    incarnation: bytes
    version: int
    digests: list[bytes]
    versions: list[int]


class Synced(msgspec.Struct, frozen=True):
    """What a sync did. `version`: the one that somebody else brought it to, if that stood in the way."""

    appended: int = 0
    undone: int = 0
    mirror: Mirror | None = None
    version: int | None = None


def digest_of(message: dict[str, Any]) -> bytes:
    return sha256(msgspec.json.encode(message, order="deterministic")).digest()[:16]


def sync(
    key: StreamKey,
    new: Sequence[New],
    digests: Sequence[bytes],
    stamp: AppendContext,
    *,
    mirror: Mirror | None,
    owner: str | None,
    stored: Callable[[dict[str, Any]], dict[str, Any]],
) -> Operation[Synced]:
    """Make the live messages those of a list: append what is new, after going back to where the two part.

    `stored` gives a message as it would be stored now.
    """
    known = yield from learn(key, owner=owner)
    live = yield from _live(key, known, mirror, stored)
    fold = known.fold if known else ConversationFold()
    marks = yield from marks_at(key, fold)
    summary = yield from summary_at(key, fold, marks)
    told = digest_of(stored(summary.message)) if summary else None
    aside = [message.leads or digest == told for message, digest in zip(new, digests, strict=True)]
    same, skip = _common(live.digests, digests, aside)
    undone = len(live.digests) - same
    events: list[NewEvent] = []
    if known is not None and undone:
        ours = (
            mirror is None
            or mirror.incarnation != known.incarnation
            or set(live.versions) <= set(mirror.versions)
        )
        if not ours:
            return Synced(version=known.version)
        events, marks = yield from _cut(key, known, live.versions, same)
        fold = state_after(fold, events)
    events += message_events(fold, marks, new[skip:], True)
    if not events:
        return Synced(mirror=live if known else None)
    answer, after = yield from put(key, known, events, stamp, expected=known.record if known else 0)
    fresh = len(new) - skip
    if after is None:
        return Synced(fresh, undone)
    versions = live.versions[:same] + list(range(answer.last - fresh + 1, answer.last + 1))
    return Synced(
        fresh,
        undone,
        Mirror(
            after.incarnation, answer.last, live.digests[:same] + list(digests[skip:]), versions
        ),
    )


def _live(
    key: StreamKey,
    known: KnownConversation | None,
    mirror: Mirror | None,
    stored: Callable[[dict[str, Any]], dict[str, Any]],
) -> Operation[Mirror]:
    """What is live now: what was found the last time, if nothing has happened since."""
    if known is None:
        return Mirror(b"", 0, [], [])
    if mirror is not None and (mirror.incarnation, mirror.version) == (
        known.incarnation,
        known.version,
    ):
        return mirror
    entries = yield from newest(key, known, None)
    digests = [digest_of(stored(entry.message)) for entry in entries]
    return Mirror(known.incarnation, known.version, digests, [entry.version for entry in entries])


def _cut(
    key: StreamKey, known: KnownConversation, versions: Sequence[int], keep: int
) -> Operation[tuple[list[NewEvent], Marks]]:
    """The events that leave only the first messages: a rewind, where what it goes back to is just those."""
    kept, to = versions[:keep], versions[keep - 1] if keep else 0
    then = yield from state_at(key, known, to)
    if (
        kept == sorted(kept)
        and then.count == keep
        and (keep == 0 or (yield from only_grew(key, known, to, known.version + 1)))
    ):
        event, marks = yield from rewound(key, known, to)
        return [event], marks
    events, fold = [], known.fold
    marks = yield from marks_at(key, fold)
    for version in versions[: keep - 1 if keep else None : -1]:
        event, marks = removing(fold, marks, version, "synced")
        events.append(event)
        fold = state_after(fold, [event])
    return events, marks


def _common(
    live: Sequence[bytes], given: Sequence[bytes], aside: Sequence[bool]
) -> tuple[int, int]:
    """How many of the live messages stay, and from where on the given ones are new.

    A list whose beginning or middle was trimmed to save tokens is not a wish to forget: if after what both begin with
    the given one goes on with the end of the live one, all of the live one stays. A system prompt or a summary in
    front of that (`aside`) is part of the trimming.
    """
    same = 0
    for ours, theirs in zip(live, given, strict=False):
        if ours != theirs:
            break
        same += 1
    if same == len(live) or same == len(given):
        return same, same
    begin = same
    while begin < len(given) and aside[begin]:
        begin += 1
    for start in {same, begin}:
        for at in range(same, len(live)) if start < len(given) else ():
            rest = len(live) - at
            if live[at] == given[start] and list(live[at:]) == list(given[start : start + rest]):
                return len(live), start + rest
    return same, same
