"""The cache of decoded histories: reading a conversation again reads only its new messages.

The cache has one history per conversation, shared by all handles of a store, up to a total size. A
history is valid for one incarnation and up to one version; newer messages are read and added. If a
message was removed, repaired or rewound since, the conversation is read again. Callers get copies,
so they may change them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..backends import CacheSize, StreamKey
from ..errors import Conflict, HoldfastError
from ..log.log import Log
from ..log.operations import Operation
from .entries import MessageEntry
from .fold import APPENDED, SILENT_EVENTS, ConversationFold
from .messages import Message
from .read import (
    ConversationSnapshot,
    advance_over_event,
    decode_entry,
    is_flat,
    load_head,
    read_after,
    scan_history,
    snapshot_at,
)

MAX_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of all cached histories of a store. A single larger one is not cached."""
ENTRY_BYTES: Final = 1024
"""The estimated memory that the objects of a message need in addition to its content."""


class History:
    """The live messages of a conversation at a state, and their versions. Never changed."""

    __slots__ = ("flat", "fold", "incarnation", "messages", "size", "versions")

    def __init__(
        self,
        incarnation: bytes,
        fold: ConversationFold,
        messages: list[Message],
        versions: list[int],
        size: int,
        flat: bool,
    ) -> None:
        self.incarnation, self.fold = incarnation, fold
        self.messages, self.versions, self.size, self.flat = messages, versions, size, flat

    def extend(self, fold: ConversationFold, entries: Sequence[MessageEntry], size: int) -> History:
        """Return the history at a later state, with the messages that were appended since."""
        added = [entry.message for entry in entries]
        return History(
            self.incarnation,
            fold,
            self.messages + added,
            self.versions + [entry.version for entry in entries],
            self.size + size + ENTRY_BYTES * len(entries),
            self.flat and all(map(is_flat, added)),
        )

    def copy_messages(self, last: int | None = None) -> list[Message]:
        """Return copies of the messages, or of the newest `last` ones."""
        first = 0 if last is None else max(len(self.messages) - last, 0)
        messages = self.messages[first:] if first else self.messages
        if self.flat:
            return [message.copy() for message in messages]
        return [_copy(message) for message in messages]


class HistoryCache:
    """The most recently cached histories of a store, within `MAX_BYTES`."""

    def __init__(self, log: Log) -> None:
        self._lock = threading.Lock()
        self._histories: dict[StreamKey, History] = {}
        self.size = 0

    def get(self, key: StreamKey, incarnation: bytes) -> History | None:
        """Return the newest cached history of this incarnation."""
        with self._lock:
            found = self._histories.get(key)
        return found if found is not None and found.incarnation == incarnation else None

    def put(self, key: StreamKey, history: History) -> None:
        with self._lock:
            self._drop(key)
            if history.size > MAX_BYTES:
                return
            self._histories[key] = history
            self.size += history.size
            while self.size > MAX_BYTES:
                self._drop(next(iter(self._histories)))

    def drop(self, key: StreamKey) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: StreamKey) -> None:
        history = self._histories.pop(key, None)
        if history is not None:
            self.size -= history.size

    def describe_caches(self) -> Mapping[str, CacheSize]:
        return {"histories": CacheSize(self.size, MAX_BYTES, "bytes")}

    def close(self) -> None:
        with self._lock:
            self._histories.clear()
            self.size = 0


def load_history(
    cache: HistoryCache, key: StreamKey, last: int | None
) -> Operation[tuple[ConversationSnapshot, History | None] | None]:
    """Return the current state and history of a conversation; None if it does not exist.

    What is cached is brought up to date. If nothing is cached, the history is read only if `last`
    is None; otherwise it is None, and the caller reads as many messages as it needs.
    """
    try:
        return (yield from _load_history(cache, key, last))
    except Conflict:
        raise  # it is run again
    except HoldfastError:
        cache.drop(key)  # the conversation may have expired or been erased
        raise


def _load_history(
    cache: HistoryCache, key: StreamKey, last: int | None
) -> Operation[tuple[ConversationSnapshot, History | None] | None]:
    head = yield from load_head(key)
    if head is None:
        cache.drop(key)
        return None
    cached = cache.get(key, head.incarnation)
    history = cached and (yield from _catch_up(key, head.version, cached))
    if history is not None:
        snapshot = ConversationSnapshot(head.incarnation, head.fields, history.fold, head.now)
    else:
        snapshot = yield from snapshot_at(key, head)
        if last is None:
            walk = yield from scan_history(key, snapshot.fold)
            history = History(
                head.incarnation,
                snapshot.fold,
                walk.messages[::-1],
                walk.versions[::-1],
                walk.size + ENTRY_BYTES * len(walk.messages),
                walk.flat,
            )
    if history is not None and history is not cached:
        cache.put(key, history)
    return snapshot, history


def _catch_up(key: StreamKey, record: int, cached: History) -> Operation[History | None]:
    """Return the cached history with the messages up to a record of the conversation's own stream.

    Return None if older messages have changed since, or if the record is older than the history.
    """
    fold, entries, size = cached.fold, list[MessageEntry](), 0
    if fold.seen - fold.base == record:
        return cached
    while fold.seen - fold.base < record:
        after = fold.seen - fold.base
        page = yield from read_after(key, after, record - after)
        if not page:
            return None
        for stored, data in page:
            version = fold.seen + 1
            if stored.envelope.type == APPENDED:
                entries.append(decode_entry(key, stored, version, data))
                size += stored.size
            elif stored.envelope.type not in SILENT_EVENTS:
                return None
            fold = advance_over_event(key, fold, stored)
    return cached.extend(fold, entries, size) if fold.seen - fold.base == record else None


def _copy(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    if type(value) is list:
        return [_copy(item) for item in value]
    return value
