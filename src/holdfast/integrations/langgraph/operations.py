"""Operations on threads: load the index, save checkpoints and writes, copy, prune and delete.

Pruning writes a thread again without some checkpoints. A stream can't be replaced atomically, so
the new content goes to a second stream first. If a process dies after it deleted the thread and
before it wrote the thread again, the next one that looks for the thread finds the second stream,
and finishes the work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import Lock
from typing import Final

import msgspec

from ...backends import AppendResult, CacheSize, Head, HeadFields, StreamKey
from ...errors import Conflict, CorruptRecord
from ...log import operations as ops
from ...log.codec import Undecodable, decode
from ...log.events import AppendContext, NewEvent, StoredEvent
from ...log.head_fields import is_expired, slide_expiry
from ...log.ids import append_id, stream_key
from ...log.log import Log
from ...log.operations import Operation
from ...log.operations.blobs import delete_blobs, get_blob
from ...log.operations.stream_ops import (
    Deletion,
    append_audit_event,
    append_events,
    delete_stream,
    list_recent_deletions,
)
from .checkpoints import NewCheckpoint
from .thread import (
    PRUNED,
    SAVED,
    VALUE,
    CheckpointPlace,
    EventBatch,
    Place,
    ThreadIndex,
    WriteEntry,
    decode_checkpoint,
    encode_checkpoint,
    encode_writes,
    make_keyframe,
    rewrite_thread,
)
from .values import ChannelValue, list_unread

PREFIX: Final = "langgraph/thread/"
PRUNED_PREFIX: Final = "langgraph/pruned/"
PRUNE_REASON: Final = "pruned: written again without old checkpoints"
DELETE_REASON: Final = "deleted by LangGraph"
EXPIRED_REASON: Final = "expired, and started again"
MAX_CACHE_BYTES: Final = 64 * 1024 * 1024
LOOKBACK_EVENTS: Final = 16
"""How many of the last events of a thread are searched for where to start reading."""
MAX_COPY_BYTES: Final = 8 * 1024 * 1024
"""How much of a thread is copied in one append."""


class ThreadCache:
    """The indexes of the threads that were used last. The newest one always stays."""

    def __init__(self, log: Log) -> None:
        self._indexes: OrderedDict[StreamKey, ThreadIndex] = OrderedDict()
        self._lock = Lock()

    def get(self, key: StreamKey) -> ThreadIndex | None:
        with self._lock:
            index = self._indexes.get(key)
            if index is not None:
                self._indexes.move_to_end(key)
            return index

    def keep(self, key: StreamKey, index: ThreadIndex) -> None:
        with self._lock:
            self._indexes[key] = index
            self._indexes.move_to_end(key)
            size = self._count_bytes()
            while size > MAX_CACHE_BYTES and len(self._indexes) > 1:
                size -= self._indexes.popitem(last=False)[1].size

    def drop(self, key: StreamKey) -> None:
        with self._lock:
            self._indexes.pop(key, None)

    def _count_bytes(self) -> int:
        return sum(index.size for index in self._indexes.values())

    def describe_caches(self) -> Mapping[str, CacheSize]:
        with self._lock:
            used = self._count_bytes()
        return {"LangGraph threads": CacheSize(used, MAX_CACHE_BYTES, "bytes")}

    def close(self) -> None:
        """Do nothing: it has no resources."""


def thread_key(tenant: str, thread_id: str) -> StreamKey:
    return stream_key(tenant, "stream", PREFIX + thread_id)


def _pruned_key(key: StreamKey) -> StreamKey:
    return StreamKey(key.tenant, key.kind, PRUNED_PREFIX + key.id.removeprefix(PREFIX))


# -- loading ---------------------------------------------------------------------------------------


def load_index(
    cache: ThreadCache, key: StreamKey, stamp: AppendContext, newest: str | None = None
) -> Operation[ThreadIndex]:
    """Return the index of a thread, with everything that is stored now.

    With `newest`, the name of a namespace, it has at least the newest checkpoint of that: a thread
    is then not read from its start, if it is long.
    """
    head = yield from ops.head(key)
    if head is None:
        head = yield from _finish_pruning(key, stamp)
    if head is None or is_expired(head):
        cache.drop(key)
        index = ThreadIndex(str(key), None)
        index.head = head
        return index
    known = cache.get(key)
    if known is not None and known.incarnation == head.incarnation:
        index = known
    else:
        start = 0 if newest is None else (yield from _find_start(key, newest))
        index = ThreadIndex(str(key), head.incarnation, start)
    yield from _read_events(key, index, head)
    if index.start and (newest is None or not index.has_newest(newest)):
        index = ThreadIndex(str(key), head.incarnation)
        yield from _read_events(key, index, head)
    index.head = head
    cache.keep(key, index)
    return index


def _find_start(key: StreamKey, ns: str) -> Operation[int]:
    """Return after which version to read a thread, to get the newest checkpoint of a namespace."""
    page = yield from ops.read(key, limit=LOOKBACK_EVENTS, reverse=True)
    for stored in page:
        if stored.envelope.type == SAVED:
            raw = yield from _load_raw(key, stored)
            try:
                place = msgspec.json.decode(raw, type=CheckpointPlace)
            except msgspec.DecodeError:
                return 0  # who reads from the start learns which event is damaged
            if place.ns == ns:
                return max(place.since - 1, 0)
    return 0


def _load_raw(key: StreamKey, stored: StoredEvent) -> Operation[bytes]:
    """Return the data of an event as JSON, from its blob if it has one."""
    blob = stored.envelope.blob
    return bytes(stored.envelope.data) if blob is None else (yield from get_blob(key, blob))


def _read_events(key: StreamKey, index: ThreadIndex, head: Head) -> Operation[None]:
    while index.version < head.version:
        page = yield from ops.read(key, after=index.version)
        if not page:
            raise Conflict(str(key), expected=head.version, actual=index.version)
        loaded = []
        for stored in page:
            kind, blob, size = stored.envelope.type, stored.envelope.blob, stored.size
            if blob is None or kind == VALUE:
                data = stored.envelope.data
            else:
                data = yield from get_blob(key, blob)
                size += blob.size
            loaded.append((stored.version, kind, data, blob, size))
        with index.lock:
            for event in loaded:
                index.apply(*event)


def read_large(
    key: StreamKey, index: ThreadIndex, values: Iterable[ChannelValue]
) -> Operation[None]:
    """Read the large values that are needed to load these values."""
    if not index.has_large():
        return
    for large in list_unread(values):
        if large.typed is None and large.blob is not None:
            try:
                large.typed = decode((yield from get_blob(key, large.blob)))
            except Undecodable as error:
                raise CorruptRecord(str(key), what=str(error)) from None
            index.size += large.blob.size


def list_threads(tenant: str, prefix: str, after: str) -> Operation[tuple[list[str], str]]:
    """Return a page of thread ids, and where the next page starts; "" at the end."""
    page = yield from ops.heads(tenant, "stream", after=after or prefix)
    found = [
        head.stream.id.removeprefix(prefix)
        for head in page
        if head.stream.id.startswith(prefix) and not is_expired(head)
    ]
    last = page[-1].stream.id if page else ""
    return found, last if last.startswith(prefix) else ""


# -- saving ----------------------------------------------------------------------------------------


class ThreadWriter:
    """Saves a checkpoint or writes. After a conflict, run the operation again: it then reads."""

    def __init__(
        self, cache: ThreadCache, key: StreamKey, stamp: AppendContext, ttl: float | None
    ) -> None:
        self._cache, self._key, self._stamp, self._ttl = cache, key, stamp, ttl
        self._conflicted = False

    def save_checkpoint(self, new: NewCheckpoint) -> Operation[None]:
        index = yield from self._load(new.ns)
        if new.parent is not None and index.get(new.ns, new.parent) is None:
            # Another process saved the parent, or this one did just now, or it is an old one.
            index = yield from load_index(self._cache, self._key, self._stamp)
        base = index.get(new.ns, new.parent) if new.parent is not None else None
        if base is not None:
            yield from read_large(self._key, index, new.list_compared(base))
        entry, batch = new.build(base), EventBatch()
        if since := index.wants_keyframe(entry):
            yield from read_large(self._key, index, entry.values.values())
            entry, base = make_keyframe(entry, since), None
        encode_checkpoint(entry, base, batch)
        result = yield from self._append(index, batch)
        index.apply_batch(result.first, batch, entry=entry)

    def save_writes(self, ns: str, id: str, writes: Sequence[WriteEntry]) -> Operation[None]:
        index, batch = (yield from self._load(ns)), EventBatch()
        encode_writes(ns, id, writes, batch)
        result = yield from self._append(index, batch)
        index.apply_batch(result.first, batch, writes=[((ns, id), write) for write in writes])

    def _load(self, ns: str) -> Operation[ThreadIndex]:
        index = self._cache.get(self._key)
        # With a time to live, the head says when the thread expires.
        if index is None or self._conflicted or self._ttl is not None:
            index = yield from load_index(self._cache, self._key, self._stamp, ns)
        self._conflicted = True  # if it is run again
        return index

    def _append(self, index: ThreadIndex, batch: EventBatch) -> Operation[AppendResult]:
        """Append to the incarnation of the thread that the index has read.

        Others may append meanwhile: a checkpoint builds on events that never change. If the thread
        was deleted or pruned, it is a conflict.
        """
        yield from delete_expired(self._key, index, self._stamp)
        fields = _slide_fields(index, self._stamp, self._ttl)
        is_new = index.incarnation is None
        incarnation = index.incarnation or append_id(self._stamp.id)
        result = yield from append_events(
            self._key,
            batch.events,
            self._stamp,
            expected=0 if is_new else None,
            fields=fields,
            incarnation=incarnation,
        )
        if is_new:
            index.incarnation, index.head = incarnation, None
            self._cache.keep(self._key, index)
        return result


def delete_expired(key: StreamKey, index: ThreadIndex, stamp: AppendContext) -> Operation[None]:
    """Delete what is left of an expired thread, before it starts again."""
    if index.incarnation is None and index.head is not None:
        yield from delete_stream(key, stamp, EXPIRED_REASON, index.head)


def _slide_fields(index: ThreadIndex, stamp: AppendContext, ttl: float | None) -> HeadFields | None:
    """Return the new expiry of a thread after an append; None if it stays as it is."""
    if ttl is None:
        return None
    head = index.head if index.incarnation is not None else None
    known, now = (head.fields.expires_at, head.now) if head else (None, stamp.at)
    at = slide_expiry(known, now, ttl)
    return HeadFields(expires_at=at) if at != known else None


# -- copying, pruning, deleting --------------------------------------------------------------------


def copy_thread(
    cache: ThreadCache,
    source: StreamKey,
    target: StreamKey,
    stamp: AppendContext,
    ttl: float | None,
) -> Operation[None]:
    """Append the events of a thread to another one. The target may have events already."""
    index = yield from load_index(cache, source, stamp)
    if index.incarnation is None:
        return
    goal = yield from load_index(cache, target, stamp)
    yield from delete_expired(target, goal, stamp)
    fields = _slide_fields(goal, stamp, ttl)
    offset, after, last = goal.version, 0, index.version
    incarnation = goal.incarnation or append_id(stamp.id)
    while after < last:
        events: list[NewEvent] = []
        size = 0
        while after < last and size < MAX_COPY_BYTES:
            page = yield from ops.read(source, after=after, limit=min(last - after, 500))
            if not page:
                raise Conflict(str(source), expected=last, actual=after)
            for stored in page:
                event = yield from _copy_event(source, stored, offset)
                events.append(event)
                size += len(event.data)
            after = page[-1].version
        yield from append_events(
            target,
            events,
            stamp,
            expected=offset + after - len(events),
            fields=fields,
            incarnation=incarnation,
        )
        stamp = _next_stamp(stamp, len(events))


def _copy_event(source: StreamKey, stored: StoredEvent, offset: int) -> Operation[NewEvent]:
    """Return an event for another stream, where the events before it are `offset` further on."""
    data = yield from _load_raw(source, stored)
    if offset and stored.envelope.type == SAVED:
        saved = decode_checkpoint(data)
        on = saved.on + offset if saved.on else 0
        data = msgspec.json.encode(msgspec.structs.replace(saved, on=on, since=0))
    return NewEvent(stored.envelope.type, data)


def delete_thread(cache: ThreadCache, key: StreamKey, stamp: AppendContext) -> Operation[None]:
    """Delete a thread, and the second stream of a process that prunes it now or died at it."""
    spare = _pruned_key(key)
    while True:
        yield from delete_stream(key, stamp, DELETE_REASON)
        if (yield from ops.head(spare)) is not None:
            yield from delete_stream(spare, stamp, DELETE_REASON)
        elif (yield from ops.head(key)) is None:
            break
    cache.drop(key)


def prune_thread(
    cache: ThreadCache,
    key: StreamKey,
    stamp: AppendContext,
    choose: Callable[[ThreadIndex], Collection[Place]],
) -> Operation[None]:
    """Write a thread again with only the chosen checkpoints and their writes."""
    index = yield from load_index(cache, key, stamp)
    head, entries = index.head, index.checkpoints()
    chosen = choose(index)
    kept = [entry for entry in entries if (entry.ns, entry.id) in chosen]
    if index.incarnation is None or head is None or len(kept) == len(entries):
        return
    if not kept:
        yield from delete_thread(cache, key, stamp)
        return
    kept.sort(key=lambda entry: entry.version)
    writes = [((one.ns, one.id), index.writes(one.ns, one.id)) for one in kept]
    writes += index.writes_without_checkpoint()
    values = [value for entry in kept for value in entry.values.values()]
    values += [write.value for _, some in writes for write in some]
    yield from read_large(key, index, values)
    batch = rewrite_thread(kept, writes)
    batch.events[0] = NewEvent(PRUNED, msgspec.json.encode(head.incarnation.hex()))
    spare = _pruned_key(key)
    yield from delete_stream(spare, stamp, PRUNE_REASON)
    yield from append_events(spare, batch.events, stamp, expected=0, fields=_keep_expiry(head))
    yield from append_audit_event(head, stamp, PRUNE_REASON)
    if not (yield from ops.delete(key, expected=head)):
        yield from delete_stream(spare, stamp, PRUNE_REASON)
        raise Conflict(str(key), expected=head.version, actual=head.version + 1)
    cache.drop(key)
    yield from _finish_pruning(key, stamp)


def _finish_pruning(key: StreamKey, stamp: AppendContext) -> Operation[Head | None]:
    """Return the head of a missing thread, after writing it again if it was being pruned."""
    spare = _pruned_key(key)
    found = yield from ops.head(spare)
    if found is None:
        return None
    page = yield from ops.read(spare, limit=1, decoded=True)
    if not page:  # another process has finished it meanwhile
        return (yield from ops.head(key))
    pruned = str(page[0].envelope.data)
    if (yield from _was_pruned(key, pruned)):
        events: list[NewEvent] = []
        while page := (yield from ops.read(spare, after=len(events))):
            for stored in page:
                events.append((yield from _copy_event(spare, stored, 0)))
        if len(events) < found.version:  # another process has finished it, or deleted the thread
            return (yield from ops.head(key))
        try:
            yield from append_events(key, events, stamp, expected=0, fields=_keep_expiry(found))
        except Conflict:
            pass  # another process has finished it
        yield from delete_blobs(key, pruned)
    gone = yield from list_recent_deletions(spare)
    if any(one.incarnation == found.incarnation.hex() and _is_final(one) for one in gone):
        # The thread was deleted after the second stream was read: delete what was written then.
        head = yield from ops.head(key)
        if head is not None and (yield from _starts_with_pruned(key, pruned)):
            yield from delete_stream(key, stamp, DELETE_REASON, head)
    yield from delete_stream(spare, stamp, PRUNE_REASON)
    return (yield from ops.head(key))


def _was_pruned(key: StreamKey, incarnation: str) -> Operation[bool]:
    """Return whether an incarnation of a thread was deleted to be written again.

    Not if it was deleted permanently at the same time: who prunes writes down first that the thread
    goes, and then may find that it is gone.
    """
    gone = yield from list_recent_deletions(key)
    mine = [one for one in gone if one.incarnation == incarnation]
    pruned = max((one.version for one in mine if not _is_final(one)), default=None)
    return pruned is not None and not any(one.version >= pruned for one in mine if _is_final(one))


def _is_final(deletion: Deletion) -> bool:
    return deletion.reason != PRUNE_REASON


def _starts_with_pruned(key: StreamKey, incarnation: str) -> Operation[bool]:
    page = yield from ops.read(key, limit=1, decoded=True)
    return bool(page) and (page[0].envelope.type, page[0].envelope.data) == (PRUNED, incarnation)


def _keep_expiry(head: Head) -> HeadFields | None:
    at = head.fields.expires_at
    return None if at is None else HeadFields(expires_at=at)


def _next_stamp(stamp: AppendContext, count: int) -> AppendContext:
    return msgspec.structs.replace(stamp, id=stamp.id + count)
