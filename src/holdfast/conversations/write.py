"""Operations that change a conversation. Each decides on what it has read and makes one append that counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..backends import AppendResult, HeadFields, StreamKey
from ..errors import Conflict, NotFound
from ..log import operations as ops
from ..log.codec import encode
from ..log.events import AppendContext, NewEvent
from ..log.ids import append_id
from ..log.operations import Operation
from ..log.stream_ops import append_events
from . import fold as _fold
from .entries import MessageEntry
from .fold import ConversationFold, Marks, Rewound
from .read import KnownConversation, learn, marks_at, newest, segment_at, segments, state_at

MANY: Final = 16
QUIET: Final = 100
NEAR: Final = 5000


class New(msgspec.Struct, frozen=True):
    """A message to be appended, encoded: `pin` if the caller wants it in every window, `leads` if it is a system prompt."""

    data: bytes
    pin: bool = False
    leads: bool = False


def encode_message(
    message: dict[str, Any], meta: dict[str, Any] | None, *, pin: bool, leads: bool
) -> New:
    data: dict[str, Any] = {"message": message}
    if meta:
        data["meta"] = meta
    if pin:
        data["pin"] = True
    return New(encode(data), pin, leads)


def append_messages(
    key: StreamKey,
    new: Sequence[New],
    stamp: AppendContext,
    *,
    known: KnownConversation | None,
    id: str | None = None,
    if_version: int | None = None,
    owner: str | None = None,
) -> Operation[tuple[AppendResult, KnownConversation | None]]:
    """Append messages. What is `known` from before spares the look at where the conversation stands."""
    known = yield from up_to_date(key, known, stamp, owner)
    fold, marks = known.fold if known else ConversationFold(), Marks()
    pinning = any(message.pin or message.leads for message in new)
    if pinning:
        marks = yield from marks_at(key, fold)
    # What is decided on the state must meet that state. So must many messages at once: each then knows exactly where it
    # stands, while those of a small append may land after another writer's and know only what was there before.
    exact = pinning or owner is not None or len(new) > MANY or if_version is not None
    events = message_events(fold, marks, new, exact)
    expected = known.record if known and exact else 0 if known is None else None
    if if_version not in (None, fold.seen):
        expected = yield from _if_version(key, known, if_version or 0, id)
    return (yield from put(key, known, events, stamp, id=id, expected=expected))


def up_to_date(
    key: StreamKey, known: KnownConversation | None, stamp: AppendContext, owner: str | None
) -> Operation[KnownConversation | None]:
    """What was known, if nothing speaks against it: then there is no need to look."""
    expires = known.fields.expires_at if known else None
    if (
        known is None
        or (expires is not None and expires <= stamp.at)
        or owner not in (None, known.fields.owner)
    ):
        return (yield from learn(key, owner=owner))
    return known


def _if_version(
    key: StreamKey, known: KnownConversation | None, if_version: int, id: str | None
) -> Operation[int]:
    """Where to append, as the stream counts, for a caller who saw another version than the newest.

    After it, if since then nothing was said: a turn that was renewed is nothing to the caller. An append whose id
    is known is a repeat whatever the version, so one with an id is sent: to where it cannot be stored.
    """
    version = known.version if known else 0
    if known is None or if_version > version:
        raise Conflict(str(key), expected=if_version, actual=version)
    if (yield from _is_quiet(key, known, if_version)):
        return known.record
    if id is None or if_version < known.fold.base:
        raise Conflict(str(key), expected=if_version, actual=version)
    return if_version - known.fold.base


def _is_quiet(key: StreamKey, known: KnownConversation, after: int) -> Operation[bool]:
    """Whether the messages are as they were at a version not long ago."""
    if after < known.fold.base or known.version - after > QUIET:
        return False
    since = yield from ops.read(key, after=after - known.fold.base, limit=QUIET, plain=True)
    return all(stored.envelope.type in _fold.SILENT for stored in since)


def message_events(
    fold: ConversationFold, marks: Marks, new: Sequence[New], exact: bool
) -> list[NewEvent]:
    """Messages that follow on `fold`: right behind it, if that is `exact`.

    Some stay in every window: those the caller pins, and a system prompt that comes before all else.
    """
    events, now = [], fold
    for message in new:
        own = None
        if message.pin or (message.leads and now.count == len(marks.pins)):
            own = marks = msgspec.structs.replace(marks, pins=[*marks.pins, now.seen + 1])
            if len(marks.pins) > _fold.MAX_PINS:
                raise ValueError(
                    f"at most {_fold.MAX_PINS} messages of a conversation can be pinned"
                )
        known = _fold.encoded(_with(now if exact else fold, own))
        events.append(NewEvent(_fold.APPENDED, message.data, 1, known))
        now = _fold.forward(now, now.seen + 1, _fold.APPENDED, None, own)
    return events


def _with(fold: ConversationFold, own: Marks | None) -> ConversationFold:
    return msgspec.structs.replace(fold, own=own)


def put(
    key: StreamKey,
    known: KnownConversation | None,
    events: Sequence[NewEvent],
    stamp: AppendContext,
    *,
    id: str | None = None,
    expected: int | None = None,
    fields: HeadFields | None = None,
) -> Operation[tuple[AppendResult, KnownConversation | None]]:
    """Append events that know where they stand. The answer is in the conversation's versions; beside it what is known
    after it, or None if others have appended as well."""
    incarnation = known.incarnation if known else append_id(stamp.id)
    base = known.fold.base if known else 0
    try:
        answer = yield from append_events(
            key, events, stamp, id=id, expected=expected, fields=fields, incarnation=incarnation
        )
    except Conflict as conflict:
        raise Conflict(
            str(key), expected=conflict.expected + base, actual=conflict.actual + base
        ) from None
    first, last = answer.first + base, answer.last + base
    after: KnownConversation | None = None
    fold = known.fold if known else ConversationFold()
    if not answer.duplicate and first == fold.seen + 1:
        after = KnownConversation(
            incarnation,
            fields or (known.fields if known else HeadFields()),
            state_after(fold, events),
            answer.now,
        )
    return AppendResult(first, last, answer.duplicate, answer.now), after


def state_after(fold: ConversationFold, events: Sequence[NewEvent]) -> ConversationFold:
    for event in events:
        data = msgspec.json.decode(event.data) if event.type == _fold.REWOUND else None
        own = msgspec.json.decode(event.fold, type=ConversationFold).own
        fold = _fold.forward(fold, fold.seen + 1, event.type, data, own)
    return fold


def new_event(
    type: str, data: msgspec.Struct, fold: ConversationFold, own: Marks | None = None
) -> NewEvent:
    return NewEvent(type, encode(msgspec.to_builtins(data)), 1, _fold.encoded(_with(fold, own)))


def must_exist(key: StreamKey, known: KnownConversation | None) -> KnownConversation:
    if known is None:
        raise NotFound(f"there is no {key}; it begins with its first message")
    return known


def rewind(key: StreamKey, to: int, stamp: AppendContext, owner: str | None) -> Operation[int]:
    """Undo everything after a version, an earlier rewind too; how many messages that removed."""
    known = yield from learn(key, owner=owner)
    if to == 0 and (known is None or known.fold.count == 0):
        return 0
    known = must_exist(key, known)
    if to > known.version:
        raise NotFound(
            f"{key} is at version {known.version}; there is no version {to} to go back to"
        )
    if to == known.version:
        return 0
    event, _ = yield from rewound(key, known, to)
    yield from put(key, known, [event], stamp, expected=known.record)
    return max(known.fold.count - state_after(known.fold, [event]).count, 0)


def rewound(key: StreamKey, known: KnownConversation, to: int) -> Operation[tuple[NewEvent, Marks]]:
    """The event that goes back to a version. A summary that still fits stays in force."""
    then = yield from state_at(key, known, to)
    marks, now = (yield from marks_at(key, then)), (yield from marks_at(key, known.fold))
    if now.covers <= to < now.summary and (yield from only_grew(key, known, to, now.summary)):
        marks = msgspec.structs.replace(marks, summary=now.summary, covers=now.covers)
    return new_event(_fold.REWOUND, Rewound(to, then.count), known.fold, marks), marks


def only_grew(key: StreamKey, known: KnownConversation, after: int, before: int) -> Operation[bool]:
    """Whether between two versions messages were added and nothing was taken away or mended."""
    if before - after > NEAR:
        return False
    parts = yield from segments(key, known.fold.base)
    while after < before - 1:
        part = segment_at(parts, after + 1)
        limit = (min(part.upto, before - 1) if part.upto else before - 1) - after
        page = yield from ops.read(part.key, after=after - part.base, limit=limit, plain=True)
        if not page or any(
            stored.envelope.type not in (_fold.APPENDED, *_fold.SILENT) for stored in page
        ):
            return False
        after = part.base + page[-1].version
    return True


def pop(key: StreamKey, stamp: AppendContext, owner: str | None) -> Operation[MessageEntry | None]:
    """Take the newest message out. Whoever comes second takes the one before it."""
    known = yield from learn(key, owner=owner)
    found = yield from newest(key, known, 1)
    if not found or known is None:
        return None
    event = yield from removal(key, known, found[0].version, "popped")
    yield from put(key, known, [event], stamp, expected=known.record)
    return found[0]


def removal(
    key: StreamKey, known: KnownConversation, version: int, why: str
) -> Operation[NewEvent]:
    """The event that takes a message out."""
    event, _ = removing(known.fold, (yield from marks_at(key, known.fold)), version, why)
    return event


def removing(
    fold: ConversationFold, marks: Marks, version: int, why: str
) -> tuple[NewEvent, Marks]:
    """The same, and what is pinned and summarised after it."""
    pins = [pin for pin in marks.pins if pin != version]
    summary, covers = (0, 0) if version <= marks.covers else (marks.summary, marks.covers)
    now = Marks(pins, summary, covers)
    changed = len(pins) < len(marks.pins) or summary != marks.summary
    return new_event(
        _fold.REMOVED, _fold.Removed(version, why), fold, now if changed else None
    ), now


def draft(
    key: StreamKey,
    of: str,
    text: str,
    stamp: AppendContext,
    *,
    known: KnownConversation | None,
    owner: str | None,
) -> Operation[tuple[AppendResult, KnownConversation | None]]:
    """Keep a piece of an answer that is still being streamed."""
    known = yield from up_to_date(key, known, stamp, owner)
    event = new_event(
        _fold.DRAFTED, _fold.Drafted(of, text), known.fold if known else ConversationFold()
    )
    expected = known.record if known and owner else 0 if known is None else None
    return (yield from put(key, known, [event], stamp, expected=expected))
