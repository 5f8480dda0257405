"""Record which messages were read from a conversation, by version, to read the same ones again."""

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
from .messages import Message
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
"""The first and last version of consecutive live messages. For a summary, both are its version."""


read_listeners: list[Callable[[ReadSource, Iterable[Any]], None]] = []
"""Called for every read of a conversation, in the reader's thread, with the source and messages."""


class ReadSource:
    """A read of a conversation: consecutive messages, and `others` (pins and the summary).

    `messages` are the objects that the reader got, `versions` their versions.
    """

    __slots__ = ("at", "incarnation", "key", "log", "messages", "others", "versions")

    def __init__(
        self,
        key: StreamKey,
        snapshot: ConversationSnapshot,
        messages: Sequence[Message],
        versions: Sequence[int],
        others: Sequence[MessageEntry] = (),
    ) -> None:
        self.log: Log | None = None  # set by the conversation that is read
        self.key, self.incarnation, self.at = key, snapshot.incarnation.hex(), snapshot.version
        self.messages, self.versions, self.others = messages, versions, others

    def find_versions(self, messages: Iterable[Any]) -> list[int]:
        """Return the versions of the messages that come unchanged from the conversation."""
        versions = dict(zip(map(id, self.messages), self.versions, strict=True))
        versions.update((id(entry.message), entry.version) for entry in self.others)
        return [versions[id(message)] for message in messages if id(message) in versions]

    def to_ranges(self, messages: Iterable[Any]) -> list[VersionRange | list[Any]]:
        """Return version ranges, and lists of messages that come from elsewhere."""
        # By identity: an edited message is a different object.
        indexes = {id(message): index for index, message in enumerate(self.messages)}
        other_versions = {id(entry.message): entry.version for entry in self.others}
        ranges: list[VersionRange | list[Any]] = []
        next_index = -1
        for message in messages:
            index, last = indexes.get(id(message)), ranges[-1] if ranges else None
            version = other_versions.get(id(message)) if index is None else self.versions[index]
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
    head = yield from ops.head(key)  # read last: the message is not from a later incarnation
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
    """Return the messages in the ranges as of version `at`; all live messages without ranges."""
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
