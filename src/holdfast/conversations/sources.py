"""Record which messages were read from a conversation, by version, to reread them unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..backends import StreamKey
from ..errors import CorruptRecord, NotFound
from ..log import operations as ops
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.retired_ids import check_not_retired
from ..log.operations.stream_ops import load_data
from .entries import MessageEntry
from .fold import APPENDED, SUMMARIZED, Summarized, decode_payload
from .read import (
    ConversationSnapshot,
    check_expiry,
    decode_entry,
    load_snapshot,
    read_event_at,
    read_fold_at,
    scan_live,
)

VersionRange = tuple[int, int]
"""First and last version of consecutive live messages. For a summary, twice its version."""


read_listeners: list[Callable[[ReadSource, Iterable[Any]], None]] = []
"""Called with the source and the messages of every read of a conversation, in its thread."""


class ReadSource:
    """A read of a conversation: consecutive `entries`, and `others` (pins and the summary)."""

    __slots__ = ("at", "entries", "incarnation", "key", "log", "others")

    def __init__(
        self,
        key: StreamKey,
        snapshot: ConversationSnapshot,
        entries: Sequence[MessageEntry],
        others: Sequence[MessageEntry] = (),
    ) -> None:
        self.log: Log | None = None  # set by the conversation that was read
        self.key, self.incarnation, self.at = key, snapshot.incarnation.hex(), snapshot.version
        self.entries, self.others = entries, others

    def versions(self, messages: Iterable[Any]) -> list[int]:
        """Return the versions of those messages that come unchanged from the conversation."""
        versions = {id(entry.message): entry.version for entry in (*self.entries, *self.others)}
        return [versions[id(message)] for message in messages if id(message) in versions]

    def to_ranges(self, messages: Iterable[Any]) -> list[VersionRange | list[Any]]:
        """Return the messages as version ranges, and as lists where they come from elsewhere."""
        # By identity: an edited message is a different object.
        indexes = {id(entry.message): index for index, entry in enumerate(self.entries)}
        other_versions = {id(entry.message): entry.version for entry in self.others}
        ranges: list[VersionRange | list[Any]] = []
        next_index = -1
        for message in messages:
            index, last = indexes.get(id(message)), ranges[-1] if ranges else None
            version = (
                other_versions.get(id(message)) if index is None else self.entries[index].version
            )
            if version is None:
                if isinstance(last, list):
                    last.append(message)
                else:
                    ranges.append([message])
            elif isinstance(last, tuple) and index == next_index:
                ranges[-1] = (last[0], version)
            else:
                ranges.append((version, version))
            next_index = -1 if index is None else index + 1
        return ranges


def read_message_at(key: StreamKey, incarnation: str, base: int, version: int) -> Operation[Any]:
    """Return a message as it was appended, even if it was removed or repaired since.

    Raises `NotFound` if that incarnation of the conversation was deleted.
    """
    page = yield from ops.read(key, after=max(version - base, 1) - 1, limit=1, decoded=True)
    head = yield from ops.head(key)  # after the message: it is not of a later incarnation
    if head is None:
        yield from check_not_retired(key)
    if head is None or head.incarnation.hex() != incarnation:
        raise NotFound(f"the message no longer exists: {key} was deleted since")
    check_expiry(key, head.fields, head.now)
    if not page or page[0].version != version - base or page[0].envelope.type != APPENDED:
        raise CorruptRecord(str(key), what="a step refers to a message that does not exist")
    return decode_entry(key, page[0], version, (yield from load_data(key, page[0]))).message


def reread_messages(
    key: StreamKey, incarnation: str, at: int, ranges: Sequence[VersionRange]
) -> Operation[list[Any]]:
    """Return the messages of the ranges as of version `at`; without ranges, all live messages."""
    snapshot = yield from load_snapshot(key)
    if snapshot is None or snapshot.incarnation.hex() != incarnation:
        raise NotFound(f"the messages no longer exist: {key} was deleted since")
    if not 0 <= at <= snapshot.version or not all(
        1 <= each <= at for pair in ranges for each in pair
    ):
        raise CorruptRecord(str(key), what="a step refers to versions that do not exist")
    fold = yield from read_fold_at(key, snapshot, at)
    summaries: dict[int, Any] = {}
    for first, last in ranges:
        if first == last:
            where, stored = yield from read_event_at(key, fold.base, first)
            if stored.envelope.type == SUMMARIZED:
                data: Summarized = decode_payload(
                    where, stored.version, (yield from load_data(where, stored)), Summarized
                )
                summaries[first] = data.message
    missing = {first for first, _ in ranges} - summaries.keys()

    def enough(entry: MessageEntry) -> bool:
        missing.discard(entry.version)
        return not missing

    if not ranges:
        return [entry.message for entry in (yield from scan_live(key, fold))[::-1]]
    entries = (yield from scan_live(key, fold, enough=enough))[::-1] if missing else []
    indexes = {entry.version: index for index, entry in enumerate(entries)}
    messages: list[Any] = []
    for first, last in ranges:
        if first in summaries:
            messages.append(summaries[first])
        elif first in indexes and last in indexes:
            messages += [entry.message for entry in entries[indexes[first] : indexes[last] + 1]]
        else:
            raise CorruptRecord(str(key), what="a step refers to messages that were not live")
    return messages
