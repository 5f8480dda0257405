"""Operations that read a conversation, newest first: a read costs what it returns, not what the history holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from ..backends import Head, HeadFields, StreamKey, clock
from ..backends.clock import moment
from ..errors import Conflict, CorruptRecord, Expired, LeaseLost, NotFound
from ..log import operations as ops
from ..log.blobs import incarnation_hex
from ..log.events import StoredEvent
from ..log.operations import Operation
from ..log.retired_ids import check_open
from ..log.stream_ops import data_of
from .entries import Draft, MessageEntry
from .fold import (
    APPENDED,
    BRANCHED,
    DRAFTED,
    INSERTED,
    REMOVED,
    REPLACED,
    REWOUND,
    ConversationBranched,
    ConversationFold,
    Drafted,
    Inserted,
    Marks,
    Removed,
    Replaced,
    Rewound,
    Summarized,
    fold_of,
    forward,
    payload,
)
from .messages import is_instruction, opens_exchange, results

FIRST_PAGE: Final = 32
LARGEST_PAGE: Final = 2000


class KnownConversation(msgspec.Struct, frozen=True):
    """What is known of a conversation: its life, its fields and the engine's clock when last looked at, and what holds at its version."""

    incarnation: bytes
    fields: HeadFields
    fold: ConversationFold
    now: float = 0.0

    @property
    def version(self) -> int:
        return self.fold.seen

    @property
    def record(self) -> int:
        """The version as the stream counts it."""
        return self.fold.seen - self.fold.base


class Segment(msgspec.Struct, frozen=True):
    """A stretch of a conversation's history: versions up to `upto` (0: to the end), in the stream `key`."""

    key: StreamKey
    base: int
    upto: int = 0


def learn(
    key: StreamKey, *, expired: bool = False, owner: str | None = None
) -> Operation[KnownConversation | None]:
    """Where a conversation stands; None if there is none.

    `Expired` if its time is over, also if it was swept since, unless that is wanted. `LeaseLost` if `holder` no longer
    has the turn.
    """
    head = yield from ops.head(key)
    if owner is not None and (head is None or head.fields.owner != owner):
        raise LeaseLost(str(key), owner=head.fields.owner if head else None)
    if head is None:
        if not expired:
            yield from check_open(key)
        return None
    check_expiry(key, head.fields, head.now, expired)
    return (yield from known_at(key, head))


def check_expiry(key: StreamKey, fields: HeadFields, now: float, allowed: bool = False) -> None:
    if not allowed and fields.expires_at is not None and fields.expires_at <= now:
        raise Expired(str(key), at=fields.expires_at)


def known_at(key: StreamKey, head: Head) -> Operation[KnownConversation]:
    return KnownConversation(
        head.incarnation, head.fields, (yield from _fold_at_record(key, head.version)), head.now
    )


def _fold_at_record(key: StreamKey, record: int) -> Operation[ConversationFold]:
    """What holds at a record: what its event knew, brought forward over the events since."""
    newest = yield from ops.read(key, after=record + 1, limit=1, reverse=True, plain=True)
    if not newest or newest[0].version != record:
        raise Conflict(str(key), expected=record, actual=0)  # deleted since we looked: look again
    fold = fold_of(key, record, newest[0].envelope)
    behind = fold.seen - fold.base
    while behind + 1 < record:
        page = yield from ops.read(key, after=behind, limit=record - 1 - behind, plain=True)
        if not page:
            raise CorruptRecord(str(key), version=behind + 1, what="the record is missing")
        for stored in page:
            fold = _forward(key, fold, stored)
        behind = page[-1].version
    return _forward(key, fold, newest[0])


def _forward(key: StreamKey, fold: ConversationFold, stored: StoredEvent) -> ConversationFold:
    event = stored.envelope
    own = fold_of(key, stored.version, event).own
    if event.type == REWOUND:
        payload(key, stored.version, event.data, Rewound)
    return forward(fold, fold.base + stored.version, event.type, event.data, own)


def segments(key: StreamKey, base: int) -> Operation[list[Segment]]:
    """Where a conversation's history is: its own stream, then those it was forked from."""
    own = [Segment(key, base)]
    if base == 0:
        return own
    first = yield from ops.read(key, limit=1, plain=True)
    if not first or first[0].envelope.type != BRANCHED:
        raise CorruptRecord(str(key), version=1, what="it does not say what it was forked from")
    upto = base
    for ancestor in cast(
        "ConversationBranched", payload(key, 1, first[0].envelope.data, ConversationBranched)
    ).ancestors:
        if ancestor.upto != upto or not 0 <= ancestor.base < upto:
            break
        upto = ancestor.base
        parent = key._replace(id=ancestor.id)
        head = yield from ops.head(parent)
        if head is None or incarnation_hex(head.incarnation) != ancestor.incarnation:
            raise CorruptRecord(
                str(key), version=1, what=f"{parent}, which it was forked from, is gone"
            )
        own.append(Segment(parent, ancestor.base, ancestor.upto))
    if upto:
        raise CorruptRecord(
            str(key), version=1, what="it does not say where all of its messages are"
        )
    return own


def segment_at(parts: Sequence[Segment], version: int) -> Segment:
    """The stretch that holds a version."""
    return next(part for part in reversed(parts) if part.upto == 0 or version <= part.upto)


def state_at(key: StreamKey, known: KnownConversation, version: int) -> Operation[ConversationFold]:
    """What held at an earlier version."""
    if version == known.version:
        return known.fold
    if version == 0:
        return ConversationFold(base=known.fold.base)
    part = segment_at((yield from segments(key, known.fold.base)), version)
    fold = yield from _fold_at_record(part.key, version - part.base)
    return msgspec.structs.replace(fold, base=known.fold.base)


def record_at(key: StreamKey, base: int, version: int) -> Operation[tuple[StreamKey, StoredEvent]]:
    """One event by its version, and the stream it is in."""
    part = segment_at((yield from segments(key, base)), version)
    number = version - part.base
    found = yield from ops.read(part.key, after=number - 1, limit=1, plain=True)
    if not found:
        raise CorruptRecord(str(part.key), version=number, what="the record is missing")
    return part.key, found[0]


def marks_at(key: StreamKey, fold: ConversationFold) -> Operation[Marks]:
    """What is pinned and summarised."""
    if fold.marks == 0:
        return Marks()
    where, stored = yield from record_at(key, fold.base, fold.marks)
    return fold_of(where, stored.version, stored.envelope).own or Marks()


def summary_at(
    key: StreamKey, fold: ConversationFold, marks: Marks
) -> Operation[MessageEntry | None]:
    """The summary in force. Its `meta` says which versions it covers."""
    if marks.summary == 0:
        return None
    where, stored = yield from record_at(key, fold.base, marks.summary)
    data: Summarized = payload(
        where, stored.version, (yield from data_of(where, stored)), Summarized
    )
    return _entry(stored, marks.summary, data.message, {"covers": [data.first, data.last]})


def pinned_entries(
    key: StreamKey, fold: ConversationFold, versions: Sequence[int]
) -> Operation[list[MessageEntry]]:
    found = []
    for version in versions:
        where, stored = yield from record_at(key, fold.base, version)
        data = yield from data_of(where, stored)
        found.append(message_entry(where, stored, version, data))
    return found


def scan(
    key: StreamKey,
    fold: ConversationFold,
    *,
    enough: Callable[[MessageEntry], bool] | None = None,
    hint: int = 0,
) -> Operation[list[MessageEntry]]:
    """Live messages from the newest back, until `enough` says so or the first is reached. Newest first.

    A rewind is a jump: what it undid is not read.
    """
    parts = yield from segments(key, fold.base)
    walk = _Walk(enough)
    cursor, limit = fold.seen, min(hint or FIRST_PAGE, LARGEST_PAGE) if enough else LARGEST_PAGE
    while cursor > 0 and not walk.done:
        part = segment_at(parts, cursor)
        page = yield from ops.read(
            part.key, after=cursor - part.base + 1, limit=limit, reverse=True, plain=True
        )
        if not page:
            raise Conflict(
                str(key), expected=fold.seen, actual=0
            )  # deleted since we looked: look again
        for stored in page:
            version = part.base + stored.version
            if version > cursor or walk.done:
                continue
            cursor = version - 1
            event = stored.envelope
            if event.type in (APPENDED, INSERTED, REPLACED):
                walk.take(part.key, stored, version, (yield from data_of(part.key, stored)))
            elif event.type == REMOVED:
                removed: Removed = payload(part.key, stored.version, event.data, Removed)
                walk.removed.add(earlier(part.key, stored, removed.version, version))
            elif event.type == REWOUND:
                rewound: Rewound = payload(part.key, stored.version, event.data, Rewound)
                cursor = earlier(part.key, stored, rewound.to, version)
        limit = min(limit * 2, LARGEST_PAGE)
    if cursor == 0:
        walk.place(0)
    return walk.entries


def earlier(key: StreamKey, stored: StoredEvent, named: int, own: int) -> int:
    """A version that an event names, which can only be an earlier one."""
    if not 0 <= named < own:
        raise CorruptRecord(
            str(key), version=stored.version, what="it is about something that is not before it"
        )
    return named


class _Walk:
    """The way back through the events: what is waiting to be put in its place, and what has been found."""

    def __init__(self, enough: Callable[[MessageEntry], bool] | None) -> None:
        self.enough = enough
        self.done = False
        self.entries: list[MessageEntry] = []
        self.removed: set[int] = set()
        self.replaced: dict[int, Replaced] = {}
        self.inserted: dict[int, list[MessageEntry]] = {}

    def take(self, key: StreamKey, stored: StoredEvent, version: int, data: Any) -> None:
        kind = stored.envelope.type
        if kind == APPENDED:
            self.emit(message_entry(key, stored, version, data))
        elif kind == INSERTED:
            insert: Inserted = payload(key, stored.version, data, Inserted)
            earlier(key, stored, insert.after, version)
            entry = _entry(stored, version, insert.message, {"repaired": insert.why})
            self.inserted.setdefault(insert.after, []).append(entry)
        else:
            change: Replaced = payload(key, stored.version, data, Replaced)
            earlier(key, stored, change.version, version)
            self.replaced.setdefault(change.version, change)

    def emit(self, entry: MessageEntry) -> None:
        """What was inserted after a message comes before it on the way back."""
        self.place(entry.version)
        if self.done or entry.version in self.removed:
            return
        change = self.replaced.get(entry.version)
        if change is not None:
            meta = {**entry.meta, "repaired": change.why}
            entry = msgspec.structs.replace(entry, message=change.message, meta=meta)
        self.entries.append(entry)
        self.done = self.enough is not None and self.enough(entry)

    def place(self, version: int) -> None:
        for entry in self.inserted.pop(version, ()):
            if not self.done:
                self.emit(entry)


def _entry(
    stored: StoredEvent,
    version: int,
    message: dict[str, Any],
    meta: dict[str, Any],
    pinned: bool = False,
) -> MessageEntry:
    event = stored.envelope
    return MessageEntry(
        version, event.id, message, meta, event.at, event.by, event.correlation, pinned
    )


def message_entry(key: StreamKey, stored: StoredEvent, version: int, data: Any) -> MessageEntry:
    if (
        type(data) is not dict
        or type(data.get("message")) is not dict
        or type(data.get("meta", {})) is not dict
    ):
        raise CorruptRecord(str(key), version=stored.version, what="it is not a message")
    own = fold_of(key, stored.version, stored.envelope).own
    return _entry(
        stored,
        version,
        data["message"],
        data.get("meta", {}),
        own is not None and version in own.pins,
    )


def newest(
    key: StreamKey, known: KnownConversation | None, count: int | None
) -> Operation[list[MessageEntry]]:
    """The newest live messages, oldest first; all of them with None."""
    if known is None or count == 0:
        return []
    if count is None:
        return (yield from scan(key, known.fold))[::-1]
    left = count

    def enough(entry: MessageEntry) -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    return (yield from scan(key, known.fold, enough=enough, hint=count))[::-1]


def drafts(key: StreamKey, known: KnownConversation) -> Operation[list[Draft]]:
    """Answers begun and never finished: the pieces stored after the newest answer."""
    pieces: list[tuple[Drafted, float]] = []
    before = known.record + 1
    while before > 1:
        page = yield from ops.read(key, after=before, limit=FIRST_PAGE, reverse=True, plain=True)
        if not page:
            break
        for stored in page:
            kind = stored.envelope.type
            if kind in (REMOVED, REWOUND, BRANCHED) or (
                kind == APPENDED and is_from_model((yield from data_of(key, stored)))
            ):
                before = 1
                break
            if kind == DRAFTED:
                data = payload(key, stored.version, (yield from data_of(key, stored)), Drafted)
                pieces.append((data, stored.envelope.at))
        else:
            before = page[-1].version
    texts: dict[str, list[str]] = {}
    times: dict[str, float] = {}
    for piece, at in reversed(pieces):
        texts.setdefault(piece.of, []).append(piece.text)
        times[piece.of] = at
    return [Draft(of, "".join(parts), moment(times[of])) for of, parts in texts.items()]


def is_from_model(data: Any) -> bool:
    """Whether a message settles what was drafted before it: it is neither the user's nor a tool's nor an instruction."""
    message = data.get("message") if isinstance(data, dict) else None
    return isinstance(message, dict) and not (
        opens_exchange(message)
        or results(message)
        or is_instruction(message)
        or message.get("role") == "user"
    )


def appended_after(
    key: StreamKey, base: int, after: int
) -> Operation[tuple[list[MessageEntry], int]]:
    """One page of messages in the order in which they were appended, and the version up to which it goes."""
    parts = yield from segments(key, base)
    part = segment_at(parts, after + 1)
    limit = None if part.upto == 0 else part.upto - after
    page = yield from ops.read(part.key, after=after - part.base, limit=limit, plain=True)
    found: list[MessageEntry] = []
    for stored in page:
        version = part.base + stored.version
        if stored.envelope.type == APPENDED:
            data = yield from data_of(part.key, stored)
            found.append(message_entry(part.key, stored, version, data))
        elif stored.envelope.type == INSERTED:
            insert = payload(
                part.key, stored.version, (yield from data_of(part.key, stored)), Inserted
            )
            found.append(_entry(stored, version, insert.message, {"repaired": insert.why}))
        after = version
    return found, after


# Following a conversation: where a follower is, and what came since.


class FollowCursor:
    """Where a follower is, and since when nothing came."""

    def __init__(self, key: StreamKey, after: int, timeout: float | None) -> None:
        self._quiet_since = clock.monotonic()
        self._key, self._after, self._timeout = key, after, timeout
        self._incarnation: tuple[bytes, int] | None = None

    @property
    def over(self) -> bool:
        return self._timeout is not None and clock.monotonic() - self._quiet_since >= self._timeout

    def page(self) -> Operation[list[MessageEntry]]:
        """What was appended since, all of it."""
        found: list[MessageEntry] = []
        head = yield from ops.head(self._key)
        if head is None or (self._incarnation and head.incarnation != self._incarnation[0]):
            if self._incarnation:
                raise NotFound(f"{self._key} was deleted while it was followed")
            if head is None:
                yield from check_open(self._key)
        else:
            check_expiry(self._key, head.fields, head.now)
            if self._incarnation is None:
                known = yield from known_at(self._key, head)
                self._incarnation = (head.incarnation, known.fold.base)
            base = self._incarnation[1]
            while self._after < base + head.version and not found:
                before = self._after
                found, self._after = yield from appended_after(self._key, base, before)
                if self._after == before:
                    break
        if found:
            self._quiet_since = clock.monotonic()
        return found
