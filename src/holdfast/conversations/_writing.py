"""Operations that change a conversation. Each decides on what it has read and makes one append that counts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from .._codec import encode
from .._events import NewEvent, Stamp
from .._ids import append_id
from .._operations import Operation
from .._streams import append_events
from ..backends import Appended, Fields, StreamKey
from ..errors import Conflict, NotFound
from . import _fold
from ._entries import Entry
from ._fold import Fold, Marks, Rewound
from ._reading import (
    Known,
    check_expiry,
    learn,
    marks_at,
    newest,
    state_at,
)

MANY: Final = 16


class New(msgspec.Struct, frozen=True):
    """A message to be appended, encoded: `pin` if the caller wants it in every window, `leads` if it is a system prompt."""

    data: bytes
    pin: bool = False
    leads: bool = False


def encode_message(message: dict[str, Any], meta: dict[str, Any] | None, *, pin: bool, leads: bool) -> New:
    data: dict[str, Any] = {"message": message}
    if meta:
        data["meta"] = meta
    if pin:
        data["pin"] = True
    return New(encode(data), pin, leads)


def append_messages(
    key: StreamKey,
    new: Sequence[New],
    stamp: Stamp,
    *,
    known: Known | None,
    id: str | None = None,
    if_version: int | None = None,
    holder: str | None = None,
) -> Operation[tuple[Appended, Known | None]]:
    """Append messages. What is `known` from before spares the look at where the conversation stands."""
    if known is None or (holder is not None and known.fields.owner != holder):
        known = yield from learn(key, holder=holder)
    else:
        check_expiry(key, known.fields, stamp.at)
    fold, marks = known.fold if known else Fold(), Marks()
    pinning = any(message.pin or message.leads for message in new)
    if pinning:
        marks = yield from marks_at(key, fold)
    # What is decided on the state must meet that state. So must many messages at once: each then knows exactly where it
    # stands, while those of a small append may land after another writer's and know only what was there before.
    exact = pinning or holder is not None or len(new) > MANY
    events = _message_events(fold, marks, new, exact)
    expected = known.record if known and exact else 0 if known is None else None
    if if_version is not None:
        expected = _if_version(key, known, if_version)
    return (yield from put(key, known, events, stamp, id=id, expected=expected))


def _if_version(key: StreamKey, known: Known | None, if_version: int) -> int:
    """The caller's version, as the stream counts."""
    base = known.fold.base if known else 0
    if if_version < base:
        raise Conflict(str(key), expected=if_version, actual=known.version if known else 0)
    return if_version - base


def _message_events(fold: Fold, marks: Marks, new: Sequence[New], exact: bool) -> list[NewEvent]:
    """Messages that follow on `fold`: right behind it, if that is `exact`.

    Some stay in every window: those the caller pins, and a system prompt that comes before all else.
    """
    events, now = [], fold
    for message in new:
        own = None
        if message.pin or (message.leads and now.count == len(marks.pins)):
            own = marks = msgspec.structs.replace(marks, pins=[*marks.pins, now.seen + 1])
            if len(marks.pins) > _fold.MAX_PINS:
                raise ValueError(f"at most {_fold.MAX_PINS} messages of a conversation can be pinned")
        known = _fold.encoded(_with(now if exact else fold, own))
        events.append(NewEvent(_fold.APPENDED, message.data, 1, known))
        now = _fold.forward(now, now.seen + 1, _fold.APPENDED, None, own)
    return events


def _with(fold: Fold, own: Marks | None) -> Fold:
    return msgspec.structs.replace(fold, own=own)


def put(
    key: StreamKey,
    known: Known | None,
    events: Sequence[NewEvent],
    stamp: Stamp,
    *,
    id: str | None = None,
    expected: int | None = None,
    fields: Fields | None = None,
) -> Operation[tuple[Appended, Known | None]]:
    """Append events that know where they stand. The answer is in the conversation's versions; beside it what is known
    after it, or None if others have appended as well."""
    incarnation = known.incarnation if known else append_id(stamp.id)
    base = known.fold.base if known else 0
    try:
        answer = yield from append_events(
            key, events, stamp, id=id, expected=expected, fields=fields, incarnation=incarnation
        )
    except Conflict as conflict:
        raise Conflict(str(key), expected=conflict.expected + base, actual=conflict.actual + base) from None
    first, last = answer.first + base, answer.last + base
    after: Known | None = None
    fold = known.fold if known else Fold()
    if not answer.duplicate and first == fold.seen + 1:
        after = Known(incarnation, fields or (known.fields if known else Fields()), _after(fold, events), answer.now)
    return Appended(first, last, answer.duplicate, answer.now), after


def _after(fold: Fold, events: Sequence[NewEvent]) -> Fold:
    for event in events:
        data = msgspec.json.decode(event.data) if event.type == _fold.REWOUND else None
        own = msgspec.json.decode(event.fold, type=Fold).own
        fold = _fold.forward(fold, fold.seen + 1, event.type, data, own)
    return fold


def new_event(type: str, data: msgspec.Struct, fold: Fold, own: Marks | None = None) -> NewEvent:
    return NewEvent(type, encode(msgspec.to_builtins(data)), 1, _fold.encoded(_with(fold, own)))


def must_exist(key: StreamKey, known: Known | None) -> Known:
    if known is None:
        raise NotFound(f"there is no {key}; it begins with its first message")
    return known


def rewind(key: StreamKey, to: int, stamp: Stamp, holder: str | None) -> Operation[int]:
    """Undo everything after a version, an earlier rewind too; how many messages that removed."""
    known = yield from learn(key, holder=holder)
    if to == 0 and (known is None or known.fold.count == 0):
        return 0
    known = must_exist(key, known)
    if to > known.version:
        raise NotFound(f"{key} is at version {known.version}; there is no version {to} to go back to")
    if to == known.version:
        return 0
    event, _ = yield from _rewound(key, known, to)
    yield from put(key, known, [event], stamp, expected=known.record)
    return max(known.fold.count - _after(known.fold, [event]).count, 0)


def _rewound(key: StreamKey, known: Known, to: int) -> Operation[tuple[NewEvent, Marks]]:
    """The event that goes back to a version. A summary that still fits stays in force."""
    then = yield from state_at(key, known, to)
    marks, now = (yield from marks_at(key, then)), (yield from marks_at(key, known.fold))
    if marks.covers <= now.covers <= to and now.summary:
        marks = msgspec.structs.replace(marks, summary=now.summary, covers=now.covers)
    return new_event(_fold.REWOUND, Rewound(to, then.count), known.fold, marks), marks


def pop(key: StreamKey, stamp: Stamp, holder: str | None) -> Operation[Entry | None]:
    """Take the newest message out. Whoever comes second takes the one before it."""
    known = yield from learn(key, holder=holder)
    found = yield from newest(key, known, 1)
    if not found or known is None:
        return None
    event = yield from removal(key, known, found[0].version, "popped")
    yield from put(key, known, [event], stamp, expected=known.record)
    return found[0]


def removal(key: StreamKey, known: Known, version: int, why: str) -> Operation[NewEvent]:
    marks = yield from marks_at(key, known.fold)
    own: Marks | None = None
    if version in marks.pins:
        own = marks = msgspec.structs.replace(marks, pins=[pin for pin in marks.pins if pin != version])
    if version <= marks.covers:
        own = msgspec.structs.replace(marks, summary=0, covers=0)
    return new_event(_fold.REMOVED, _fold.Removed(version, why), known.fold, own)


def draft(
    key: StreamKey, of: str, text: str, stamp: Stamp, *, known: Known | None, holder: str | None
) -> Operation[tuple[Appended, Known | None]]:
    """Keep a piece of an answer that is still being streamed."""
    if known is None or (holder is not None and known.fields.owner != holder):
        known = yield from learn(key, holder=holder)
    else:
        check_expiry(key, known.fields, stamp.at)
    event = new_event(_fold.DRAFTED, _fold.Drafted(of, text), known.fold if known else Fold())
    expected = known.record if known and holder else 0 if known is None else None
    return (yield from put(key, known, [event], stamp, expected=expected))


class Mirror(msgspec.Struct, frozen=True):
    """The live messages as they were at a version, by digest: what `sync` compares the caller's list with."""

    incarnation: bytes
    version: int
    digests: list[bytes]
    versions: list[int]


def digest_of(message: dict[str, Any]) -> bytes:
    return sha256(msgspec.json.encode(message, order="deterministic")).digest()[:16]


def sync(
    key: StreamKey,
    new: Sequence[New],
    digests: Sequence[bytes],
    stamp: Stamp,
    *,
    mirror: Mirror | None,
    holder: str | None,
) -> Operation[tuple[int, Mirror | None]]:
    """Make the live messages those of a list: append what is new, after going back to where the two part."""
    known = yield from learn(key, holder=holder)
    if known is None or mirror is None or (mirror.incarnation, mirror.version) != (known.incarnation, known.version):
        entries = yield from newest(key, known, None)
        mirror = Mirror(
            known.incarnation if known else b"",
            known.version if known else 0,
            [digest_of(entry.message) for entry in entries],
            [entry.version for entry in entries],
        )
    same, skip = _common(mirror.digests, digests)
    fold, marks = known.fold if known else Fold(), Marks()
    events: list[NewEvent] = []
    if known is not None and same < len(mirror.digests):
        event, marks = yield from _rewound(key, known, mirror.versions[same - 1] if same else 0)
        events.append(event)
        fold = _after(fold, events)
    elif any(message.leads for message in new[skip:]):
        marks = yield from marks_at(key, fold)
    events += _message_events(fold, marks, new[skip:], True)
    if not events:
        return 0, mirror if known else None
    answer, after = yield from put(key, known, events, stamp, expected=known.record if known else 0)
    if after is None:
        return len(new) - skip, None
    fresh = len(new) - skip
    live = mirror.digests[:same] + list(digests[skip:])
    versions = mirror.versions[:same] + list(range(answer.last - fresh + 1, answer.last + 1))
    return fresh, Mirror(after.incarnation, answer.last, live, versions)


def _common(live: Sequence[bytes], given: Sequence[bytes]) -> tuple[int, int]:
    """How many of the live messages stay, and from where on the given ones are new.

    A list whose beginning or middle was trimmed to save tokens is not a wish to forget: if after what both begin with
    the given one goes on with the end of the live one, all of the live one stays.
    """
    same = 0
    for ours, theirs in zip(live, given, strict=False):
        if ours != theirs:
            break
        same += 1
    if same == len(live) or same == len(given):
        return same, same
    for at in range(same + 1, len(live)):
        rest = len(live) - at
        if live[at] == given[same] and list(live[at:]) == list(given[same : same + rest]):
            return len(live), same + rest
    return same, same
