"""Operations that read a conversation, newest first: their cost depends on what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ..backends import Head, HeadFields, StreamKey, clock
from ..backends.clock import to_datetime
from ..errors import Conflict, CorruptRecord, Expired, LeaseLost, NotFound
from ..log import operations as ops
from ..log.codec import MAX_DEPTH, MAX_STORED_BYTES
from ..log.events import StoredEvent, decode_record
from ..log.operations import Operation
from ..log.operations.retired_ids import check_not_retired
from ..log.operations.stream_ops import load_data
from .entries import Draft, DraftPiece, MessageEntry
from .fold import (
    APPENDED,
    BRANCHED,
    DRAFTED,
    INSERTED,
    NO_MARKS,
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
    advance_fold,
    decode_fold,
    decode_payload,
)
from .messages import is_instruction, opens_exchange, result_ids

SNAPSHOT_SECONDS: Final = 5.0
"""How long the next append may use the last one's snapshot instead of reading the head."""
FIRST_PAGE_EVENTS: Final = 32
MAX_PAGE_EVENTS: Final = 2000


class ConversationSnapshot(msgspec.Struct, frozen=True):
    """The state of a conversation when its head was read, at the database time `now`.

    For the state after an append, `at` is our time of the append; otherwise it is 0.
    """

    incarnation: bytes
    fields: HeadFields
    fold: ConversationFold
    now: float = 0.0
    at: float = 0.0

    @property
    def version(self) -> int:
        return self.fold.seen

    @property
    def record(self) -> int:
        """The version of the newest record in the conversation's own stream."""
        return self.fold.seen - self.fold.base

    def now_at(self, at: float) -> float:
        """Return the database time at our time `at`, which must be soon after the snapshot."""
        return self.now + (min(max(at - self.at, 0.0), SNAPSHOT_SECONDS) if self.at else 0.0)


class Segment(msgspec.Struct, frozen=True):
    """A part of a conversation's history: versions up to `upto` (0: all) in the stream `key`."""

    key: StreamKey
    base: int
    upto: int = 0


def load_snapshot(
    key: StreamKey, *, expired: bool = False, owner: str | None = None
) -> Operation[ConversationSnapshot | None]:
    """Return the current state of a conversation; None if it does not exist.

    Raises `Expired` if it has expired, even if it was purged since, unless `expired` is True.
    Raises `LeaseLost` if `owner` no longer has the turn.
    """
    head = yield from load_head(key, expired=expired, owner=owner)
    return None if head is None else (yield from snapshot_at(key, head))


def load_head(
    key: StreamKey, *, expired: bool = False, owner: str | None = None
) -> Operation[Head | None]:
    """Return the head of a conversation, with the errors of `load_snapshot`."""
    head = yield from ops.head(key)
    if owner is not None and (head is None or head.fields.owner != owner):
        raise LeaseLost(str(key), owner=head.fields.owner if head else None)
    if head is None:
        if not expired:
            yield from check_not_retired(key)
        return None
    check_expiry(key, head.fields, head.now, expired)
    return head


def check_expiry(key: StreamKey, fields: HeadFields, now: float, allowed: bool = False) -> None:
    if not allowed and fields.expires_at is not None and fields.expires_at <= now:
        raise Expired(str(key), at=fields.expires_at)


def snapshot_at(key: StreamKey, head: Head) -> Operation[ConversationSnapshot]:
    return ConversationSnapshot(
        head.incarnation, head.fields, (yield from _fold_at_record(key, head.version)), head.now
    )


def load_snapshot_at(key: StreamKey, version: int) -> Operation[ConversationSnapshot | None]:
    """Return a conversation as it was at an earlier version, without reading what came later."""
    head = yield from ops.head(key)
    if head is None:
        return None
    first = yield from ops.read(key, limit=1, decoded=True)
    base = 0
    if first and first[0].envelope.type == BRANCHED:
        branched: ConversationBranched = decode_payload(
            key, 1, first[0].envelope.data, ConversationBranched
        )
        base = branched.at
    fold = yield from _fold_at_record(key, version - base)
    return ConversationSnapshot(head.incarnation, head.fields, fold, head.now)


def _fold_at_record(key: StreamKey, record: int) -> Operation[ConversationFold]:
    """Return the state at a record: the fold of its event, advanced over the events since."""
    read_newest = yield from ops.read(key, after=record + 1, limit=1, reverse=True, decoded=True)
    if not read_newest or read_newest[0].version != record:
        raise Conflict(str(key), expected=record, actual=0)  # deleted since: retry
    fold = decode_fold(key, record, read_newest[0].envelope)
    behind = fold.seen - fold.base
    while behind + 1 < record:
        page = yield from ops.read(key, after=behind, limit=record - 1 - behind, decoded=True)
        if not page:
            raise CorruptRecord(str(key), version=behind + 1, what="the record is missing")
        for stored in page:
            fold = advance_over_event(key, fold, stored)
        behind = page[-1].version
    return advance_over_event(key, fold, read_newest[0])


def advance_over_event(
    key: StreamKey, fold: ConversationFold, stored: StoredEvent
) -> ConversationFold:
    """Return the state after one more stored event."""
    event = stored.envelope
    own = decode_fold(key, stored.version, event).own
    if event.type == REWOUND:
        decode_payload(key, stored.version, event.data, Rewound)
    return advance_fold(fold, fold.base + stored.version, event.type, event.data, own)


def read_segments(key: StreamKey, base: int) -> Operation[list[Segment]]:
    """Return the streams with a conversation's history: its own, then its ancestors'."""
    found = [Segment(key, base)]
    if base == 0:
        return found
    first = yield from ops.read(key, limit=1, decoded=True)
    if not first or first[0].envelope.type != BRANCHED:
        raise CorruptRecord(str(key), version=1, what="it does not name its parent")
    upto = base
    branched: ConversationBranched = decode_payload(
        key, 1, first[0].envelope.data, ConversationBranched
    )
    for ancestor in branched.ancestors:
        if ancestor.upto != upto or not 0 <= ancestor.base < upto:
            break
        upto = ancestor.base
        parent = key._replace(id=ancestor.id)
        head = yield from ops.head(parent)
        if head is None or head.incarnation.hex() != ancestor.incarnation:
            raise CorruptRecord(
                str(key), version=1, what=f"{parent}, which it was forked from, is gone"
            )
        found.append(Segment(parent, ancestor.base, ancestor.upto))
    if upto:
        raise CorruptRecord(str(key), version=1, what="its list of ancestors has a gap")
    return found


def find_segment(parts: Sequence[Segment], version: int) -> Segment:
    """Return the segment that contains a version."""
    return next(part for part in reversed(parts) if part.upto == 0 or version <= part.upto)


def read_fold_at(
    key: StreamKey, snapshot: ConversationSnapshot, version: int
) -> Operation[ConversationFold]:
    """Return the state at an earlier version."""
    if version == snapshot.version:
        return snapshot.fold
    if version == 0:
        return ConversationFold(base=snapshot.fold.base)
    part = find_segment((yield from read_segments(key, snapshot.fold.base)), version)
    fold = yield from _fold_at_record(part.key, version - part.base)
    return msgspec.structs.replace(fold, base=snapshot.fold.base)


def read_event_at(
    key: StreamKey, base: int, version: int
) -> Operation[tuple[StreamKey, StoredEvent]]:
    """Return the event at a version, and its stream."""
    part = find_segment((yield from read_segments(key, base)), version)
    number = version - part.base
    found = yield from ops.read(part.key, after=number - 1, limit=1, decoded=True)
    if not found:
        raise CorruptRecord(str(part.key), version=number, what="the record is missing")
    return part.key, found[0]


def read_marks(key: StreamKey, fold: ConversationFold) -> Operation[Marks]:
    """Return the pins and the summary that apply at this state of the conversation."""
    if fold.marks == 0:
        return Marks()
    where, stored = yield from read_event_at(key, fold.base, fold.marks)
    return decode_fold(where, stored.version, stored.envelope).own or Marks()


def read_summary(
    key: StreamKey, fold: ConversationFold, marks: Marks
) -> Operation[MessageEntry | None]:
    """Return the current summary. Its `meta` names the versions that it covers."""
    if marks.summary == 0:
        return None
    where, stored = yield from read_event_at(key, fold.base, marks.summary)
    data: Summarized = decode_payload(
        where, stored.version, (yield from load_data(where, stored)), Summarized
    )
    return _new_entry(stored, marks.summary, data.message, {"covers": [data.first, data.last]})


def read_pinned(
    key: StreamKey, fold: ConversationFold, versions: Sequence[int]
) -> Operation[list[MessageEntry]]:
    found = []
    for version in versions:
        where, stored = yield from read_event_at(key, fold.base, version)
        data = yield from load_data(where, stored)
        found.append(decode_entry(where, stored, version, data))
    return found


def scan_live(
    key: StreamKey,
    fold: ConversationFold,
    *,
    enough: Callable[[MessageEntry], bool] | None = None,
    hint: int = 0,
) -> Operation[list[MessageEntry]]:
    """Return live messages, newest first, until `enough` returns True or all were read.

    A rewind is skipped in one jump: the events that it undid are not read.
    """
    walk = yield from _walk_back(key, fold, enough, hint)
    return walk.entries


def scan_history(key: StreamKey, fold: ConversationFold) -> Operation[HistoryWalk]:
    """Return all live messages, newest first, without their metadata.

    An ordinary message is decoded in one pass; for anything else the records are decoded as in
    `scan_live`.
    """
    parts = yield from read_segments(key, fold.base)
    walk, cursor = HistoryWalk(), fold.seen
    while cursor > 0:
        part = find_segment(parts, cursor)
        page = yield from ops.read_records(
            part.key, after=cursor - part.base + 1, limit=MAX_PAGE_EVENTS, reverse=True
        )
        if not page:
            raise Conflict(str(key), expected=fold.seen, actual=0)  # deleted since: retry
        for record in page:
            version = part.base + record.version
            if version > cursor:
                continue
            walk.size += len(record.body)
            if not walk.has_repair_of(version) and walk.add_plain(version, record.body):
                cursor = version - 1
            else:
                stored = decode_record(part.key, record)
                cursor = yield from _walk_over(walk, part.key, stored, version)
    walk.place(0)
    return walk


def _walk_back(
    key: StreamKey, fold: ConversationFold, enough: Callable[[MessageEntry], bool] | None, hint: int
) -> Operation[_BackwardWalk]:
    parts = yield from read_segments(key, fold.base)
    walk = _BackwardWalk(enough)
    cursor, limit = (
        fold.seen,
        min(hint or FIRST_PAGE_EVENTS, MAX_PAGE_EVENTS) if enough else MAX_PAGE_EVENTS,
    )
    while cursor > 0 and not walk.done:
        part = find_segment(parts, cursor)
        page = yield from ops.read(
            part.key, after=cursor - part.base + 1, limit=limit, reverse=True, decoded=True
        )
        if not page:
            raise Conflict(str(key), expected=fold.seen, actual=0)  # deleted since: retry
        for stored in page:
            version = part.base + stored.version
            if version <= cursor and not walk.done:
                cursor = yield from _walk_over(walk, part.key, stored, version)
        limit = min(limit * 2, MAX_PAGE_EVENTS)
    if cursor == 0:
        walk.place(0)
    return walk


def _walk_over(
    walk: _BackwardWalk, key: StreamKey, stored: StoredEvent, version: int
) -> Operation[int]:
    """Add one event to a walk. Return the version of the next older one that counts."""
    event = stored.envelope
    if event.type in (APPENDED, INSERTED, REPLACED):
        data = event.data
        if event.blob is not None:
            data = yield from load_data(key, stored)
            walk.size += event.blob.size
        if event.type == APPENDED:
            walk.emit(decode_entry(key, stored, version, data))
        else:
            walk.repair(key, stored, version, data)
    elif event.type == REMOVED:
        removed: Removed = decode_payload(key, stored.version, event.data, Removed)
        walk.removed.add(check_earlier(key, stored, removed.version, version))
    elif event.type == REWOUND:
        rewound: Rewound = decode_payload(key, stored.version, event.data, Rewound)
        return check_earlier(key, stored, rewound.to, version)
    return version - 1


def check_earlier(key: StreamKey, stored: StoredEvent, named: int, own: int) -> int:
    """Return the version that an event refers to, which must be an earlier one."""
    if not 0 <= named < own:
        raise CorruptRecord(
            str(key), version=stored.version, what="it refers to a version that is not before it"
        )
    return named


class _BackwardWalk:
    """The state of a backward scan: entries found so far, and repairs of older messages."""

    def __init__(self, enough: Callable[[MessageEntry], bool] | None) -> None:
        self.enough = enough
        self.done = False
        self.size = 0
        self.entries: list[MessageEntry] = []
        self.removed: set[int] = set()
        self.replaced: dict[int, Replaced] = {}
        self.inserted: dict[int, list[MessageEntry]] = {}

    def repair(self, key: StreamKey, stored: StoredEvent, version: int, data: Any) -> None:
        """Keep a repair until the message that it concerns is reached."""
        if stored.envelope.type == INSERTED:
            insert: Inserted = decode_payload(key, stored.version, data, Inserted)
            check_earlier(key, stored, insert.after, version)
            entry = _new_entry(stored, version, insert.message, {"repaired": insert.why})
            self.inserted.setdefault(insert.after, []).append(entry)
        else:
            change: Replaced = decode_payload(key, stored.version, data, Replaced)
            check_earlier(key, stored, change.version, version)
            self.replaced.setdefault(change.version, change)

    def emit(self, entry: MessageEntry) -> None:
        """Add a message, after the messages inserted behind it, because the scan is backward."""
        if self.inserted:
            self.place(entry.version)
        if self.done or (self.removed and entry.version in self.removed):
            return
        if self.replaced and (change := self.replaced.get(entry.version)) is not None:
            meta = {**entry.meta, "repaired": change.why}
            entry = msgspec.structs.replace(entry, message=change.message, meta=meta)
        self.add(entry)
        if self.enough is not None:
            self.done = self.enough(entry)

    def add(self, entry: MessageEntry) -> None:
        self.entries.append(entry)

    def place(self, version: int) -> None:
        for entry in self.inserted.pop(version, ()):
            if not self.done:
                self.emit(entry)


class _MessageData(msgspec.Struct, gc=False):
    """The data of an event that appends a message."""

    message: dict[str, Any]
    meta: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class _PlainMessage(msgspec.Struct, tag_field="type", tag=APPENDED, gc=False):
    """The part of an appended message's envelope that a history needs. The rest is skipped."""

    data: _MessageData


_decode_plain = msgspec.json.Decoder(_PlainMessage).decode


class HistoryWalk(_BackwardWalk):
    """A backward scan of a whole history: messages and versions, newest first.

    `flat` tells whether no message has a dict or a list in it.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.messages: list[dict[str, Any]] = []
        self.versions: list[int] = []
        self.flat = True

    def has_repair_of(self, version: int) -> bool:
        """Return whether a later event concerns the message at this version."""
        return version in self.removed or version in self.replaced or version in self.inserted

    def add(self, entry: MessageEntry) -> None:
        self.flat = self.flat and is_flat(entry.message)
        self.messages.append(entry.message)
        self.versions.append(entry.version)

    def add_plain(self, version: int, body: bytes) -> bool:
        """Add the message in a record's body. Return False if it needs the general decoder."""
        if len(body) > MAX_STORED_BYTES:
            return False
        try:
            message = _decode_plain(body).data.message
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False  # another event, a blob, or damage
        if not is_flat(message):
            if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
                return False  # it may be nested too deep
            self.flat = False
        self.messages.append(message)
        self.versions.append(version)
        return True


def is_flat(message: dict[str, Any]) -> bool:
    """Return whether no value of a message is itself a dict or a list."""
    for value in message.values():
        if type(value) is not str and isinstance(value, dict | list):
            return False
    return True


def _new_entry(
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


def decode_entry(key: StreamKey, stored: StoredEvent, version: int, data: Any) -> MessageEntry:
    meta = data.get("meta", {}) if type(data) is dict else None
    if type(meta) is not dict or type(message := data.get("message")) is not dict:
        raise CorruptRecord(str(key), version=stored.version, what="it is not a message")
    event = stored.envelope
    # Only the event that pins a message, or changes the pins, has marks of its own.
    pinned = False
    if bytes(event.fold)[-6:] != NO_MARKS:
        own = decode_fold(key, stored.version, event).own
        pinned = own is not None and version in own.pins
    return MessageEntry(
        version, event.id, message, meta, event.at, event.by, event.correlation, pinned
    )


def read_after(key: StreamKey, record: int, limit: int) -> Operation[list[tuple[StoredEvent, Any]]]:
    """Return a page of events after a record of the conversation's own stream, with their data."""
    page = yield from ops.read(key, after=record, limit=limit, decoded=True)
    found = []
    for stored in page:
        found.append((stored, (yield from load_data(key, stored))))
    return found


def read_newest(
    key: StreamKey, snapshot: ConversationSnapshot | None, count: int | None
) -> Operation[list[MessageEntry]]:
    """Return the newest `count` live messages, oldest first; all of them if `count` is None."""
    if snapshot is None or count == 0:
        return []
    if count is None:
        return (yield from scan_live(key, snapshot.fold))[::-1]
    remaining = count

    def enough(entry: MessageEntry) -> bool:
        nonlocal remaining
        remaining -= 1
        return remaining <= 0

    return (yield from scan_live(key, snapshot.fold, enough=enough, hint=count))[::-1]


def read_drafts(key: StreamKey, snapshot: ConversationSnapshot) -> Operation[list[Draft]]:
    """Return the answers that were never finished: the drafts stored after the newest answer."""
    pieces: list[tuple[Drafted, float]] = []
    before = snapshot.record + 1
    while before > 1:
        page = yield from ops.read(
            key, after=before, limit=FIRST_PAGE_EVENTS, reverse=True, decoded=True
        )
        if not page:
            break
        for stored in page:
            kind = stored.envelope.type
            if kind in (REMOVED, REWOUND, BRANCHED) or (
                kind == APPENDED and ends_drafts((yield from load_data(key, stored)))
            ):
                before = 1
                break
            if kind == DRAFTED:
                data = decode_payload(
                    key, stored.version, (yield from load_data(key, stored)), Drafted
                )
                pieces.append((data, stored.envelope.at))
        else:
            before = page[-1].version
    texts: dict[str, list[str]] = {}
    times: dict[str, float] = {}
    for piece, at in reversed(pieces):
        texts.setdefault(piece.of, []).append(piece.text)
        times[piece.of] = at
    return [Draft(of, "".join(parts), to_datetime(times[of])) for of, parts in texts.items()]


def ends_drafts(data: Any) -> bool:
    """Return whether a message comes from the model, which ends the drafts before it."""
    message = data.get("message") if isinstance(data, dict) else None
    return isinstance(message, dict) and not (
        opens_exchange(message)
        or result_ids(message)
        or is_instruction(message)
        or message.get("role") == "user"
    )


def read_appended_after(
    key: StreamKey, base: int, after: int, drafts: bool = False
) -> Operation[tuple[list[MessageEntry | DraftPiece], int]]:
    """Return a page of messages in the order they were appended, and the last version it covers.

    With `drafts`, the pieces of streamed answers are among them.
    """
    parts = yield from read_segments(key, base)
    part = find_segment(parts, after + 1)
    limit = None if part.upto == 0 else part.upto - after
    page = yield from ops.read(part.key, after=after - part.base, limit=limit, decoded=True)
    found: list[MessageEntry | DraftPiece] = []
    for stored in page:
        version = part.base + stored.version
        if drafts and stored.envelope.type == DRAFTED:
            data = yield from load_data(part.key, stored)
            piece = decode_payload(part.key, stored.version, data, Drafted)
            at = to_datetime(stored.envelope.at)
            found.append(DraftPiece(version, piece.of, piece.text, at))
        elif stored.envelope.type == APPENDED:
            data = yield from load_data(part.key, stored)
            found.append(decode_entry(part.key, stored, version, data))
        elif stored.envelope.type == INSERTED:
            insert = decode_payload(
                part.key, stored.version, (yield from load_data(part.key, stored)), Inserted
            )
            found.append(_new_entry(stored, version, insert.message, {"repaired": insert.why}))
        after = version
    return found, after


class FollowCursor:
    """The position of a follower, and the time since its last message."""

    def __init__(
        self, key: StreamKey, after: int, timeout: float | None, drafts: bool = False
    ) -> None:
        self._drafts = drafts
        self._quiet_since = clock.monotonic()
        self._key, self._after, self._timeout = key, after, timeout
        self._incarnation: tuple[bytes, int] | None = None

    @property
    def timed_out(self) -> bool:
        return self._timeout is not None and clock.monotonic() - self._quiet_since >= self._timeout

    def read_page(self) -> Operation[list[MessageEntry | DraftPiece]]:
        """Return the messages appended since the last page; an empty list if there are none."""
        found: list[MessageEntry | DraftPiece] = []
        head = yield from ops.head(self._key)
        if head is None or (self._incarnation and head.incarnation != self._incarnation[0]):
            if self._incarnation:
                raise NotFound(f"{self._key} was deleted while it was being followed")
            if head is None:
                yield from check_not_retired(self._key)
        else:
            check_expiry(self._key, head.fields, head.now)
            if self._incarnation is None:
                snapshot = yield from snapshot_at(self._key, head)
                self._incarnation = (head.incarnation, snapshot.fold.base)
            base = self._incarnation[1]
            while self._after < base + head.version and not found:
                before = self._after
                found, self._after = yield from read_appended_after(
                    self._key, base, before, self._drafts
                )
                if self._after == before:
                    break
        if found:
            self._quiet_since = clock.monotonic()
        return found
