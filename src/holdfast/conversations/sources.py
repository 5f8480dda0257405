"""What was read of a conversation, told by versions, so that it can be read again as it was then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..backends import StreamKey
from ..errors import CorruptRecord, NotFound
from ..log import operations as ops
from ..log.blobs import incarnation_hex
from ..log.log import Log
from ..log.operations import Operation
from ..log.retired_ids import check_open
from ..log.stream_ops import data_of
from .entries import MessageEntry
from .fold import APPENDED, SUMMARIZED, Summarized, payload
from .read import KnownConversation, check_expiry, learn, message_entry, record_at, scan, state_at

Range = tuple[int, int]
"""The live messages from the one at a version to the one at another, in their order. Or a summary: twice its version."""


readers: list[Callable[[Source, Iterable[Any]], None]] = []
"""Called with the source and the messages of every read of a conversation, where it is made."""


class Source:
    """A read of a conversation: `entries`, in their order and without a gap, and `others` (pinned messages, a summary)."""

    __slots__ = ("at", "entries", "key", "incarnation", "log", "others")

    def __init__(
        self,
        key: StreamKey,
        known: KnownConversation,
        entries: Sequence[MessageEntry],
        others: Sequence[MessageEntry] = (),
    ) -> None:
        self.log: Log | None = None  # known to whoever has asked
        self.key, self.incarnation, self.at = key, incarnation_hex(known.incarnation), known.version
        self.entries, self.others = entries, others

    def versions(self, messages: Iterable[Any]) -> list[int]:
        """The versions of those of these messages that came from the conversation as they are."""
        known = {id(entry.message): entry.version for entry in (*self.entries, *self.others)}
        return [known[id(message)] for message in messages if id(message) in known]

    def told(self, messages: Iterable[Any]) -> list[Range | list[Any]]:
        """These messages by their versions; what did not come from the conversation as it is, in lists."""
        # By identity: what was made of a message since is another one.
        places = {id(entry.message): place for place, entry in enumerate(self.entries)}
        beside = {id(entry.message): entry.version for entry in self.others}
        found: list[Range | list[Any]] = []
        following = -1
        for message in messages:
            place, last = places.get(id(message)), found[-1] if found else None
            version = beside.get(id(message)) if place is None else self.entries[place].version
            if version is None:
                if isinstance(last, list):
                    last.append(message)
                else:
                    found.append([message])
            elif isinstance(last, tuple) and place == following:
                found[-1] = (last[0], version)
            else:
                found.append((version, version))
            following = -1 if place is None else place + 1
        return found


def message_at(key: StreamKey, incarnation: str, base: int, version: int) -> Operation[Any]:
    """One message as it was appended, whatever became of it since. `NotFound` if that life of the conversation is over."""
    page = yield from ops.read(key, after=max(version - base, 1) - 1, limit=1, plain=True)
    head = yield from ops.head(key)  # after the message: it cannot be one of a later life
    if head is None:
        yield from check_open(key)
    if head is None or incarnation_hex(head.incarnation) != incarnation:
        raise NotFound(f"the message is not there any more: {key} was deleted since")
    check_expiry(key, head.fields, head.now)
    if not page or page[0].version != version - base or page[0].envelope.type != APPENDED:
        raise CorruptRecord(str(key), what="a step names a message of it that does not exist")
    return message_entry(key, page[0], version, (yield from data_of(key, page[0]))).message


def read_again(
    key: StreamKey, incarnation: str, at: int, ranges: Sequence[Range]
) -> Operation[list[Any]]:
    """The messages of these ranges as they were when the conversation was at version `at`; without ranges, all of them."""
    known = yield from learn(key)
    if known is None or incarnation_hex(known.incarnation) != incarnation:
        raise NotFound(f"{key}, as it was then, is not there any more: it was deleted since")
    if not 0 <= at <= known.version or not all(1 <= each <= at for pair in ranges for each in pair):
        raise CorruptRecord(str(key), what="a step names versions of it that do not exist")
    fold = yield from state_at(key, known, at)
    summaries: dict[int, Any] = {}
    for first, last in ranges:
        if first == last:
            where, stored = yield from record_at(key, fold.base, first)
            if stored.envelope.type == SUMMARIZED:
                data: Summarized = payload(
                    where, stored.version, (yield from data_of(where, stored)), Summarized
                )
                summaries[first] = data.message
    wanted = {first for first, _ in ranges} - summaries.keys()

    def enough(entry: MessageEntry) -> bool:
        wanted.discard(entry.version)
        return not wanted

    if not ranges:
        return [entry.message for entry in (yield from scan(key, fold))[::-1]]
    entries = (yield from scan(key, fold, enough=enough))[::-1] if wanted else []
    places = {entry.version: place for place, entry in enumerate(entries)}
    found: list[Any] = []
    for first, last in ranges:
        if first in summaries:
            found.append(summaries[first])
        elif first in places and last in places:
            found += [entry.message for entry in entries[places[first] : places[last] + 1]]
        else:
            raise CorruptRecord(
                str(key), what="a step names messages of it that were not live then"
            )
    return found
