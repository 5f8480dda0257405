"""Sync a conversation with a list of messages that the caller owns, by appending the new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from ..backends import StreamKey
from ..log.events import AppendContext, NewEvent
from ..log.operations import Operation
from .fold import ConversationFold, Marks
from .read import (
    ConversationSnapshot,
    load_snapshot,
    read_fold_at,
    read_marks,
    read_newest,
    read_summary,
)
from .write import (
    NewMessage,
    advance_over,
    has_only_grown,
    new_message_events,
    new_rewind_event,
    remove_message,
    store_events,
)


class Mirror(msgspec.Struct, frozen=True):
    """The digests of the live messages at a version, to compare with the caller's list."""

    incarnation: bytes
    version: int
    digests: list[bytes]
    versions: list[int]


class SyncResult(msgspec.Struct, frozen=True):
    """The result of a sync. `version` is set if the sync would undo another writer's messages."""

    appended: int = 0
    undone: int = 0
    mirror: Mirror | None = None
    version: int | None = None


def digest_message(message: dict[str, Any]) -> bytes:
    return sha256(msgspec.json.encode(message, order="deterministic")).digest()[:16]


def sync(
    key: StreamKey,
    new: Sequence[NewMessage],
    digests: Sequence[bytes],
    stamp: AppendContext,
    *,
    mirror: Mirror | None,
    owner: str | None,
    redact: Callable[[dict[str, Any]], dict[str, Any]],
) -> Operation[SyncResult]:
    """Rewind to the last message that both lists have, and append the rest of the caller's list.

    `redact` returns a message as it would be stored now.
    """
    snapshot = yield from load_snapshot(key, owner=owner)
    live = yield from _read_live(key, snapshot, mirror, redact)
    fold = snapshot.fold if snapshot else ConversationFold()
    marks = yield from read_marks(key, fold)
    summary = yield from read_summary(key, fold, marks)
    summary_digest = digest_message(redact(summary.message)) if summary else None
    preamble = [
        message.leads or digest == summary_digest
        for message, digest in zip(new, digests, strict=True)
    ]
    same, skip = _match_lists(live.digests, digests, preamble)
    undone = len(live.digests) - same
    events: list[NewEvent] = []
    if snapshot is not None and undone:
        ours = (
            mirror is None
            or mirror.incarnation != snapshot.incarnation
            or set(live.versions) <= set(mirror.versions)
        )
        if not ours:
            return SyncResult(version=snapshot.version)
        events, marks = yield from _undo_events(key, snapshot, live.versions, same)
        fold = advance_over(fold, events)
    events += new_message_events(fold, marks, new[skip:], True)
    if not events:
        return SyncResult(mirror=live if snapshot else None)
    answer, after = yield from store_events(
        key, snapshot, events, stamp, expected=snapshot.record if snapshot else 0
    )
    fresh = len(new) - skip
    if after is None:
        return SyncResult(fresh, undone)
    versions = live.versions[:same] + list(range(answer.last - fresh + 1, answer.last + 1))
    return SyncResult(
        fresh,
        undone,
        Mirror(
            after.incarnation, answer.last, live.digests[:same] + list(digests[skip:]), versions
        ),
    )


def _read_live(
    key: StreamKey,
    snapshot: ConversationSnapshot | None,
    mirror: Mirror | None,
    redact: Callable[[dict[str, Any]], dict[str, Any]],
) -> Operation[Mirror]:
    """Return the live messages: the last mirror, if nothing was written since then."""
    if snapshot is None:
        return Mirror(b"", 0, [], [])
    if mirror is not None and (mirror.incarnation, mirror.version) == (
        snapshot.incarnation,
        snapshot.version,
    ):
        return mirror
    entries = yield from read_newest(key, snapshot, None)
    digests = [digest_message(redact(entry.message)) for entry in entries]
    return Mirror(
        snapshot.incarnation, snapshot.version, digests, [entry.version for entry in entries]
    )


def _undo_events(
    key: StreamKey, snapshot: ConversationSnapshot, versions: Sequence[int], keep: int
) -> Operation[tuple[list[NewEvent], Marks]]:
    """Return the events that leave only the first `keep` messages, and the marks after them.

    One rewind, if it restores exactly those messages; otherwise one removal per message.
    """
    kept, to = versions[:keep], versions[keep - 1] if keep else 0
    then = yield from read_fold_at(key, snapshot, to)
    if (
        kept == sorted(kept)
        and then.count == keep
        and (keep == 0 or (yield from has_only_grown(key, snapshot, to, snapshot.version + 1)))
    ):
        event, marks = yield from new_rewind_event(key, snapshot, to)
        return [event], marks
    events, fold = [], snapshot.fold
    marks = yield from read_marks(key, fold)
    for version in versions[: keep - 1 if keep else None : -1]:
        event, marks = remove_message(fold, marks, version, "synced")
        events.append(event)
        fold = advance_over(fold, [event])
    return events, marks


def _match_lists(
    live: Sequence[bytes], given: Sequence[bytes], preamble: Sequence[bool]
) -> tuple[int, int]:
    """Return how many live messages to keep, and the index of the first new message in `given`.

    A list whose start or middle was trimmed to save tokens must not undo messages. So if the given
    list continues, after the common start, with the end of the live list, all live messages stay. A
    system prompt or a summary before that end (`preamble`) counts as part of the trimming.
    """
    same = 0
    for ours, theirs in zip(live, given, strict=False):
        if ours != theirs:
            break
        same += 1
    if same == len(live) or same == len(given):
        return same, same
    after_preamble = same
    while after_preamble < len(given) and preamble[after_preamble]:
        after_preamble += 1
    for start in {same, after_preamble}:
        for at in range(same, len(live)) if start < len(given) else ():
            rest = len(live) - at
            if live[at] == given[start] and list(live[at:]) == list(given[start : start + rest]):
                return len(live), start + rest
    return same, same
