"""Operations that change a conversation. Each one reads, decides, and makes one append."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..backends import AppendResult, HeadFields, StreamKey
from ..errors import Conflict, NotFound
from ..log import operations as ops
from ..log.codec import encode, encode_short_texts
from ..log.events import INLINE_BYTES, AppendContext, NewEvent, encode_envelopes, new_append_context
from ..log.ids import append_id
from ..log.operations import AppendRecords, Operation
from ..log.operations.stream_ops import append_events
from . import fold as _fold
from .entries import MessageEntry
from .fold import ConversationFold, Marks, Rewound
from .messages import INSTRUCTION_ROLES
from .read import (
    ConversationSnapshot,
    find_segment,
    load_snapshot,
    read_fold_at,
    read_marks,
    read_newest,
    read_segments,
)
from .sliding_expiry import slide_fields

EXACT_MESSAGES: Final = 16
"""An append of more messages than this succeeds only at the exact state it was prepared for."""
MAX_SILENT_EVENTS: Final = 100
MAX_SCANNED_EVENTS: Final = 5000


class NewMessage(msgspec.Struct, frozen=True):
    """An encoded message to append.

    `pin` keeps it in every window; `leads` marks a system prompt.
    """

    data: bytes
    pin: bool = False
    leads: bool = False


def encode_message(
    message: dict[str, Any], meta: dict[str, Any] | None, *, pin: bool, leads: bool
) -> NewMessage:
    if not meta and not pin and (short := encode_short_texts(message)) is not None:
        return NewMessage(b'{"message":%b}' % short, False, leads)
    data: dict[str, Any] = {"message": message}
    if meta:
        data["meta"] = meta
    if pin:
        data["pin"] = True
    return NewMessage(encode(data), pin, leads)


def append_messages(
    key: StreamKey,
    new: Sequence[NewMessage],
    stamp: AppendContext,
    *,
    snapshot: ConversationSnapshot | None,
    id: str | None = None,
    if_version: int | None = None,
    owner: str | None = None,
) -> Operation[tuple[AppendResult, ConversationSnapshot | None]]:
    """Append messages. With a `snapshot` the head is not read."""
    snapshot = yield from refresh_snapshot(key, snapshot, stamp, owner)
    fold, marks = snapshot.fold if snapshot else ConversationFold(), Marks()
    pinning = any(message.pin or message.leads for message in new)
    if pinning:
        marks = yield from read_marks(key, fold)
    # An append that depends on the state succeeds only at exactly that state. So does a large one,
    # so that each of its messages has an exact fold. The messages of a small append may land after
    # those of another writer, and then have an older fold.
    exact = pinning or owner is not None or len(new) > EXACT_MESSAGES or if_version is not None
    events = new_message_events(fold, marks, new, exact)
    expected = snapshot.record if snapshot and exact else 0 if snapshot is None else None
    if if_version not in (None, fold.seen):
        expected = yield from _resolve_if_version(key, snapshot, if_version or 0, id)
    return (yield from store_events(key, snapshot, events, stamp, id=id, expected=expected))


class PlainAppend:
    """An append of a few short texts to a known state, without an operation that has to be run.

    Most appends are of this kind. `append_messages` is the specification: for these messages it
    makes the same request and the same next snapshot. All other appends use `append_messages`, and
    so does an append that meets a conflict. `now` is when the snapshot was used.
    """

    __slots__ = ("now", "request", "snapshot", "stamp")

    def __init__(
        self,
        key: StreamKey,
        bodies: Sequence[bytes],
        stamp: AppendContext,
        snapshot: ConversationSnapshot,
        now: float,
    ) -> None:
        self.request = AppendRecords(key, bodies, stamp, incarnation=snapshot.incarnation)
        self.stamp, self.snapshot, self.now = stamp, snapshot, now

    def finish(self, answer: AppendResult) -> tuple[AppendResult, ConversationSnapshot | None]:
        """Return the result in versions of the conversation, and the snapshot after the append.

        The snapshot is None if another writer appended as well.
        """
        before, base = self.snapshot, self.snapshot.fold.base
        if base:
            answer = AppendResult(
                answer.first + base, answer.last + base, answer.duplicate, answer.now
            )
        fold = before.fold
        if answer.duplicate or answer.first != fold.seen + 1:
            return answer, None
        count = fold.count + answer.last - fold.seen
        fold = ConversationFold(answer.last, count, base, fold.marks)
        at = self.stamp.at
        return answer, ConversationSnapshot(
            before.incarnation, before.fields, fold, answer.now or at, at
        )


def new_plain_append(
    key: StreamKey, messages: Sequence[object], snapshot: ConversationSnapshot, now: float
) -> PlainAppend | None:
    """Return the append of these messages to this state; None if it is not plain."""
    fields = snapshot.fields
    if fields.expires_at is not None or fields.label is not None:
        return None
    if not 0 < len(messages) <= EXACT_MESSAGES:
        return None
    events, carried = [], _fold.encode_fold(snapshot.fold)
    for message in messages:
        if type(message) is not dict or not message or message.get("role") in INSTRUCTION_ROLES:
            return None
        text = encode_short_texts(message)
        if text is None or len(text) > INLINE_BYTES // 2:  # escaped, it may have become a blob
            return None
        events.append(NewEvent(_fold.APPENDED, b'{"message":%b}' % text, 1, carried))
    stamp = new_append_context()
    return PlainAppend(key, encode_envelopes(events, stamp, {}), stamp, snapshot, now)


def refresh_snapshot(
    key: StreamKey, snapshot: ConversationSnapshot | None, stamp: AppendContext, owner: str | None
) -> Operation[ConversationSnapshot | None]:
    """Return `snapshot`, without a read, if it may still be valid; otherwise the current state."""
    expires = snapshot.fields.expires_at if snapshot else None
    if (
        snapshot is None
        or (expires is not None and expires <= stamp.at)
        or owner not in (None, snapshot.fields.owner)
    ):
        return (yield from load_snapshot(key, owner=owner))
    return snapshot


def _resolve_if_version(
    key: StreamKey, snapshot: ConversationSnapshot | None, if_version: int, id: str | None
) -> Operation[int]:
    """Return the stream version to expect, for a caller whose version is not the newest.

    If only silent events came since, it is the newest version: a renewed turn does not matter to
    the caller. Otherwise it is a conflict, unless the append has an id: a repeat succeeds at any
    version, so it is sent with an expected version at which nothing new can be stored.
    """
    version = snapshot.version if snapshot else 0
    if snapshot is None or if_version > version:
        raise Conflict(str(key), expected=if_version, actual=version)
    if (yield from _is_unchanged_since(key, snapshot, if_version)):
        return snapshot.record
    if id is None or if_version < snapshot.fold.base:
        raise Conflict(str(key), expected=if_version, actual=version)
    return if_version - snapshot.fold.base


def _is_unchanged_since(
    key: StreamKey, snapshot: ConversationSnapshot, after: int
) -> Operation[bool]:
    """Return whether only silent events came after a recent version."""
    if after < snapshot.fold.base or snapshot.version - after > MAX_SILENT_EVENTS:
        return False
    since = yield from ops.read(
        key, after=after - snapshot.fold.base, limit=MAX_SILENT_EVENTS, decoded=True
    )
    return all(stored.envelope.type in _fold.SILENT_EVENTS for stored in since)


def new_message_events(
    fold: ConversationFold, marks: Marks, new: Sequence[NewMessage], exact: bool
) -> list[NewEvent]:
    """Return the events of messages that come after `fold`; immediately after it, if `exact`.

    Messages that the caller pins, and a system prompt before all others, stay in every window.
    """
    events, now, carried = [], fold, b""
    for message in new:
        own = None
        if message.pin or (message.leads and now.count == len(marks.pins)):
            own = marks = msgspec.structs.replace(marks, pins=[*marks.pins, now.seen + 1])
            if len(marks.pins) > _fold.MAX_PINS:
                raise ValueError(
                    f"a conversation must have at most {_fold.MAX_PINS} pinned messages"
                )
        if exact or not carried:
            carried = _fold.encode_fold(_with_marks(now if exact else fold, own))
        events.append(NewEvent(_fold.APPENDED, message.data, 1, carried))
        now = _fold.advance_fold(now, now.seen + 1, _fold.APPENDED, None, own)
    return events


def _with_marks(fold: ConversationFold, own: Marks | None) -> ConversationFold:
    return fold if fold.own is own else msgspec.structs.replace(fold, own=own)


def store_events(
    key: StreamKey,
    snapshot: ConversationSnapshot | None,
    events: Sequence[NewEvent],
    stamp: AppendContext,
    *,
    id: str | None = None,
    expected: int | None = None,
    fields: HeadFields | None = None,
) -> Operation[tuple[AppendResult, ConversationSnapshot | None]]:
    """Append events, and return the result in versions of the conversation.

    The second value is the snapshot after the append, or None if another writer appended as well.
    """
    incarnation = snapshot.incarnation if snapshot else append_id(stamp.id)
    base = snapshot.fold.base if snapshot else 0
    if fields is None and snapshot is not None and snapshot.fields.label is not None:
        fields = slide_fields(key, snapshot, stamp.at)
        if fields is not None and expected is None:
            # These fields must not replace those of another process, such as the lease of a turn.
            expected = snapshot.record
    try:
        answer = yield from append_events(
            key, events, stamp, id=id, expected=expected, fields=fields, incarnation=incarnation
        )
    except Conflict as conflict:
        raise Conflict(
            str(key), expected=conflict.expected + base, actual=conflict.actual + base
        ) from None
    first, last = answer.first + base, answer.last + base
    after: ConversationSnapshot | None = None
    fold = snapshot.fold if snapshot else ConversationFold()
    if not answer.duplicate and first == fold.seen + 1:
        after = ConversationSnapshot(
            incarnation,
            fields or (snapshot.fields if snapshot else HeadFields()),
            advance_over(fold, events),
            answer.now or stamp.at,
            stamp.at,
        )
    return AppendResult(first, last, answer.duplicate, answer.now), after


def advance_over(fold: ConversationFold, events: Sequence[NewEvent]) -> ConversationFold:
    for event in events:
        data = msgspec.json.decode(event.data) if event.type == _fold.REWOUND else None
        own = None
        if not event.fold.endswith(_fold.NO_MARKS):
            own = msgspec.json.decode(event.fold, type=ConversationFold).own
        fold = _fold.advance_fold(fold, fold.seen + 1, event.type, data, own)
    return fold


def new_event(
    type: str, data: msgspec.Struct, fold: ConversationFold, own: Marks | None = None
) -> NewEvent:
    return NewEvent(
        type, encode(msgspec.to_builtins(data)), 1, _fold.encode_fold(_with_marks(fold, own))
    )


def require_snapshot(key: StreamKey, snapshot: ConversationSnapshot | None) -> ConversationSnapshot:
    if snapshot is None:
        raise NotFound(f"there is no {key}; append a message to create it")
    return snapshot


def rewind(key: StreamKey, to: int, stamp: AppendContext, owner: str | None) -> Operation[int]:
    """Undo everything after a version, even rewinds. Return the number of removed messages."""
    snapshot = yield from load_snapshot(key, owner=owner)
    if to == 0 and (snapshot is None or snapshot.fold.count == 0):
        return 0
    snapshot = require_snapshot(key, snapshot)
    if to > snapshot.version:
        raise NotFound(
            f"{key} is at version {snapshot.version}; there is no version {to} to rewind to"
        )
    if to == snapshot.version:
        return 0
    event, _ = yield from new_rewind_event(key, snapshot, to)
    yield from store_events(key, snapshot, [event], stamp, expected=snapshot.record)
    return max(snapshot.fold.count - advance_over(snapshot.fold, [event]).count, 0)


def new_rewind_event(
    key: StreamKey, snapshot: ConversationSnapshot, to: int
) -> Operation[tuple[NewEvent, Marks]]:
    """Return the event that rewinds to a version. A summary that still applies is kept."""
    then = yield from read_fold_at(key, snapshot, to)
    marks, now = (yield from read_marks(key, then)), (yield from read_marks(key, snapshot.fold))
    if now.covers <= to < now.summary and (
        yield from has_only_grown(key, snapshot, to, now.summary)
    ):
        marks = msgspec.structs.replace(marks, summary=now.summary, covers=now.covers)
    return new_event(_fold.REWOUND, Rewound(to, then.count), snapshot.fold, marks), marks


def has_only_grown(
    key: StreamKey, snapshot: ConversationSnapshot, after: int, before: int
) -> Operation[bool]:
    """Return whether messages were only added between two versions, never removed or repaired."""
    if before - after > MAX_SCANNED_EVENTS:
        return False
    parts = yield from read_segments(key, snapshot.fold.base)
    while after < before - 1:
        part = find_segment(parts, after + 1)
        limit = (min(part.upto, before - 1) if part.upto else before - 1) - after
        page = yield from ops.read(part.key, after=after - part.base, limit=limit, decoded=True)
        if not page or any(
            stored.envelope.type not in (_fold.APPENDED, *_fold.SILENT_EVENTS) for stored in page
        ):
            return False
        after = part.base + page[-1].version
    return True


def pop(key: StreamKey, stamp: AppendContext, owner: str | None) -> Operation[MessageEntry | None]:
    """Remove the newest message and return it. A second caller gets the one before it."""
    snapshot = yield from load_snapshot(key, owner=owner)
    found = yield from read_newest(key, snapshot, 1)
    if not found or snapshot is None:
        return None
    event = yield from new_removal_event(key, snapshot, found[0].version, "popped")
    yield from store_events(key, snapshot, [event], stamp, expected=snapshot.record)
    return found[0]


def new_removal_event(
    key: StreamKey, snapshot: ConversationSnapshot, version: int, why: str
) -> Operation[NewEvent]:
    """Return the event that removes a message."""
    event, _ = remove_message(
        snapshot.fold, (yield from read_marks(key, snapshot.fold)), version, why
    )
    return event


def remove_message(
    fold: ConversationFold, marks: Marks, version: int, why: str
) -> tuple[NewEvent, Marks]:
    """Return the event that removes a message, and the marks after it."""
    pins = [pin for pin in marks.pins if pin != version]
    summary, covers = (0, 0) if version <= marks.covers else (marks.summary, marks.covers)
    now = Marks(pins, summary, covers)
    changed = len(pins) < len(marks.pins) or summary != marks.summary
    return new_event(
        _fold.REMOVED, _fold.Removed(version, why), fold, now if changed else None
    ), now


def append_draft(
    key: StreamKey,
    of: str,
    text: str,
    stamp: AppendContext,
    *,
    snapshot: ConversationSnapshot | None,
    owner: str | None,
) -> Operation[tuple[AppendResult, ConversationSnapshot | None]]:
    """Append a piece of an answer that is being streamed."""
    snapshot = yield from refresh_snapshot(key, snapshot, stamp, owner)
    event = new_event(
        _fold.DRAFTED, _fold.Drafted(of, text), snapshot.fold if snapshot else ConversationFold()
    )
    expected = snapshot.record if snapshot and owner else 0 if snapshot is None else None
    return (yield from store_events(key, snapshot, [event], stamp, expected=expected))
