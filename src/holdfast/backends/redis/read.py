"""Reading from Redis: pages of records, and listings merged from the indexes of all shards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from ...errors import CorruptRecord
from .. import clock
from ..interface import Cursor, Head, Record, StreamKey
from .keys import (
    HEAD,
    SHARDS,
    RedisKeys,
    behind_due,
    head_of,
    number_of,
    of_status,
    record_of,
    sorted_due,
)

PAGE_BYTES: Final = 8 * 1024 * 1024

Look = tuple[bytes, StreamKey, Head | CorruptRecord | None]

logger = logging.getLogger("holdfast")


class RedisReader:
    """What a backend reads. `ask` sends commands in one go, and raises unless all are answered."""

    def __init__(self, ask: Callable[..., list[Any]], keys: RedisKeys, location: str) -> None:
        self._ask, self._keys, self._location = ask, keys, location
        self._told: set[StreamKey] = set()

    def read(
        self, stream: StreamKey, *, after: int, limit: int | None, reverse: bool
    ) -> list[Record]:
        head, records, *_ = self._keys.of(stream)
        look = ("HMGET", head, "v", "m", "i")
        [facts] = self._ask(look)
        while facts[0] is not None:
            version, largest = (_number(stream, fact) for fact in facts[:2])
            # As many as surely fit a page; a few more if one record of the stream is far larger than others.
            count = max(PAGE_BYTES // (largest + 1), min(16, 16 * PAGE_BYTES // (largest + 1)), 1)
            if limit is not None:
                count = min(count, limit)
            if reverse:
                top = after - 1 if 0 < after <= version else version
                bottom = max(top - count, 0) + 1
            else:
                bottom = after + 1
                top = min(bottom + count - 1, version)
            if top < bottom:
                break
            page, now = self._ask(("LRANGE", records, bottom - 1, top - 1), look)
            # It must be the same life of the stream after. (A transaction would do, but a full server refuses those.)
            unchanged, facts = now[2] == facts[2], now
            if unchanged:
                if len(page) != top - bottom + 1:
                    raise CorruptRecord(str(stream), what="its head and its records disagree")
                return _page(
                    stream,
                    page[::-1] if reverse else page,
                    top if reverse else bottom,
                    -1 if reverse else 1,
                )
        return []

    def head(self, stream: StreamKey) -> Head | None:
        values, time = self._ask(("HMGET", self._keys.of(stream)[0], *HEAD), ("TIME",))
        return head_of(stream, values, time_of(*time))

    def heads(
        self, tenant: str, kind: str, status: str | None, after: str, limit: int
    ) -> list[Head]:
        start = b"a" if status is None else of_status(status)
        low, end = b"(" + start + after.encode(), b"(" + start + b"\xff"  # no text holds this byte

        def belongs(head: Head, member: bytes) -> bool:
            return status is None or head.fields.status == status

        return self._listed(tenant, kind, low, end, len(start), limit, belongs)

    def due(
        self, tenant: str, kind: str, before: float | None, after: Cursor | None, limit: int
    ) -> list[Head]:
        low = b"(d" if after is None else b"(d" + sorted_due(after[0]) + after[1].encode()
        end = b"(e" if before is None else b"(d" + behind_due(before)

        def belongs(head: Head, member: bytes) -> bool:
            # One that was moved meanwhile is listed at its new place: here it would lead the cursor astray.
            return head.fields.due is not None and member[1:9] == sorted_due(head.fields.due)

        return self._listed(tenant, kind, low, end, 9, limit, belongs)

    def _listed(
        self,
        tenant: str,
        kind: str,
        low: bytes,
        end: bytes,
        id_at: int,
        limit: int,
        belongs: Callable[[Head, bytes], bool],
    ) -> list[Head]:
        """The heads of the index members between `low` and `end`. Their ids begin at `id_at`."""
        while members := self._members(tenant, kind, low, end, limit):
            heads = []
            for member, stream, head in self._looked_at(tenant, kind, members, id_at):
                if isinstance(head, CorruptRecord):
                    self._say_once(stream, head)
                elif head is not None and belongs(head, member):
                    heads.append(head)
            if heads:
                return heads
            low = b"(" + members[-1]  # all of them were deleted or moved meanwhile, or are damaged
        return []

    def damaged(self, tenant: str, kind: str) -> list[StreamKey]:
        """The streams that lists leave out, because their heads are not heads."""
        low, found = b"(a", list[StreamKey]()
        while members := self._members(tenant, kind, low, b"(a\xff", SHARDS * 8):
            looks = self._looked_at(tenant, kind, members, 1)
            found += [stream for _, stream, head in looks if isinstance(head, CorruptRecord)]
            low = b"(" + members[-1]
        return found

    def _members(self, tenant: str, kind: str, low: bytes, end: bytes, limit: int) -> list[bytes]:
        """Members of the indexes of all shards, in order; none only at the end."""
        each = min(limit, 2 * limit // SHARDS + 4)
        indexes = self._keys.indexes(tenant, kind)
        parts = self._ask(
            *(("ZRANGEBYLEX", index, low, end, "LIMIT", 0, each) for index in indexes)
        )
        # With scores that are not those we give, Redis lists in another order, and we would go on where we have been.
        if any(one <= before for part in parts for before, one in pairwise([low[1:], *part])):
            raise CorruptRecord(self._location, what="its index is not in order")
        # A shard that has more says nothing of what lies behind its last one.
        sure = min((part[-1] for part in parts if len(part) == each), default=None)
        return sorted(one for part in parts for one in part if sure is None or one <= sure)[:limit]

    def _looked_at(self, tenant: str, kind: str, members: list[bytes], id_at: int) -> list[Look]:
        """The members with their streams and heads; an error for a head that is none."""
        try:
            streams = [StreamKey(tenant, kind, member[id_at:].decode()) for member in members]
        except UnicodeDecodeError:
            raise CorruptRecord(self._location, what="an id in its index is not text") from None
        return list(zip(members, streams, self._heads_of(streams), strict=True))

    def _heads_of(self, streams: list[StreamKey]) -> list[Head | CorruptRecord | None]:
        try:
            *found, time = self._ask(
                *(("HMGET", self._keys.of(one)[0], *HEAD) for one in streams), ("TIME",)
            )
        except CorruptRecord as error:  # one of them is not even a hash: ask for each
            return (
                [error]
                if len(streams) == 1
                else [head for one in streams for head in self._heads_of([one])]
            )
        heads: list[Head | CorruptRecord | None] = []
        for stream, values in zip(streams, found, strict=True):
            try:
                heads.append(head_of(stream, values, time_of(*time)))
            except CorruptRecord as error:
                heads.append(error)
        return heads

    def _say_once(self, stream: StreamKey, error: CorruptRecord) -> None:
        if stream not in self._told:
            self._told.add(stream)
            logger.warning("left out of lists: %s (%s)", stream, error)


def time_of(seconds: bytes, micros: bytes) -> float:
    """The server's clock."""
    return clock.of_engine(int(seconds) + int(micros) / 1e6)


def _number(stream: StreamKey, stored: bytes | None) -> int:
    try:
        return number_of(stored)
    except ValueError:
        raise CorruptRecord(str(stream), what="its head is not one that Holdfast wrote") from None


def _page(stream: StreamKey, stored: list[bytes], version: int, step: int) -> list[Record]:
    """The records that fit a page; at least one."""
    records: list[Record] = []
    size = 0
    for one in stored:
        size += len(one)
        if size > PAGE_BYTES and records:
            break
        records.append(record_of(stream, version, one))
        version += step
    return records
