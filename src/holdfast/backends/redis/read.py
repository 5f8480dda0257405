"""Read from Redis: pages of records, and listings merged from the indexes of all shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from ...errors import CorruptRecord
from .. import clock
from ..interface import PAGE_BYTES, Cursor, Head, Record, StreamKey
from .keys import (
    HEAD_FIELDS,
    SHARDS,
    RedisKeys,
    decode_head,
    decode_number,
    decode_record,
    encode_due,
    encode_due_after,
    encode_mark,
    encode_status,
)

Entry = tuple[bytes, StreamKey, Head | CorruptRecord | None]
"""An index member, its stream, and the head of the stream or the error of a damaged head."""

logger = logging.getLogger("holdfast")


class RedisReader:
    """Reads streams. `send` sends commands at once and raises unless all are answered."""

    def __init__(self, send: Callable[..., list[Any]], keys: RedisKeys, location: str) -> None:
        self._send, self._keys, self._location = send, keys, location
        self._logged: set[StreamKey] = set()

    def read(
        self, stream: StreamKey, *, after: int, limit: int | None, reverse: bool
    ) -> list[Record]:
        keys = self._keys.for_stream(stream)
        get_head = ("HMGET", keys.head, "v", "m", "i")
        [facts] = self._send(get_head)
        while facts[0] is not None:
            version, largest = (decode_number(stream, fact) for fact in facts[:2])
            # As many as certainly fit a page, or a few more if one record is far larger than most.
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
            page, now = self._send(("LRANGE", keys.records, bottom - 1, top - 1), get_head)
            # The incarnation must be the same after it. (Not MULTI: a full server refuses it.)
            unchanged, facts = now[2] == facts[2], now
            if unchanged:
                if len(page) != top - bottom + 1:
                    raise CorruptRecord(str(stream), what="its head and its records disagree")
                return _decode_page(
                    stream,
                    page[::-1] if reverse else page,
                    top if reverse else bottom,
                    -1 if reverse else 1,
                )
        return []

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        keys = self._keys.for_stream(stream)
        # The head last: an append stores both at once, and versions only grow.
        versions, version = self._send(
            ("HGET", keys.append_ids, encode_mark(id)), ("HGET", keys.head, "v")
        )
        if versions is None or version is None:
            return None
        first, _, last = versions.partition(b" ")
        found = decode_number(stream, first), decode_number(stream, last)
        if not 1 <= found[0] <= found[1] <= decode_number(stream, version):
            raise CorruptRecord(str(stream), what="an append id refers to no version")
        return found

    def head(self, stream: StreamKey) -> Head | None:
        return self.first_head([stream])

    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        # One connection: the server runs the commands in this order.
        *found, time = self._send(
            *(("HMGET", self._keys.for_stream(one).head, *HEAD_FIELDS) for one in streams),
            ("TIME",),
        )
        heads = (
            decode_head(stream, values, decode_time(*time))
            for stream, values in zip(streams, found, strict=True)
        )
        return next((head for head in heads if head is not None), None)

    def heads(
        self, tenant: str, kind: str, status: str | None, after: str, limit: int
    ) -> list[Head]:
        start = b"a" if status is None else encode_status(status)
        low = b"(" + start + after.encode()
        end = b"(" + start + b"\xff"  # no UTF-8 text has this byte

        def belongs(head: Head, member: bytes) -> bool:
            return status is None or head.fields.status == status

        return self._list(tenant, kind, low, end, len(start), limit, belongs)

    def due(
        self, tenant: str, kind: str, before: float | None, after: Cursor | None, limit: int
    ) -> list[Head]:
        low = b"(d" if after is None else b"(d" + encode_due(after[0]) + after[1].encode()
        end = b"(e" if before is None else b"(d" + encode_due_after(before)

        def belongs(head: Head, member: bytes) -> bool:
            # A head that has moved is listed at its new position; here it would mislead the cursor.
            return head.fields.due is not None and member[1:9] == encode_due(head.fields.due)

        return self._list(tenant, kind, low, end, 9, limit, belongs)

    def _list(
        self,
        tenant: str,
        kind: str,
        low: bytes,
        end: bytes,
        id_at: int,
        limit: int,
        belongs: Callable[[Head, bytes], bool],
    ) -> list[Head]:
        """Return the heads of the index members from `low` to `end`. Ids start at `id_at`."""
        while members := self._members(tenant, kind, low, end, limit):
            heads = []
            for member, stream, head in self._read_entries(tenant, kind, members, id_at):
                if isinstance(head, CorruptRecord):
                    self._log_once(stream, head)
                elif head is not None and belongs(head, member):
                    heads.append(head)
            if heads:
                return heads
            low = b"(" + members[-1]  # all were deleted or moved in the meantime, or are damaged
        return []

    def list_damaged(self, tenant: str, kind: str) -> list[StreamKey]:
        """Return the streams whose heads are damaged, which listings leave out."""
        low, found = b"(a", list[StreamKey]()
        while members := self._members(tenant, kind, low, b"(a\xff", SHARDS * 8):
            entries = self._read_entries(tenant, kind, members, 1)
            found += [stream for _, stream, head in entries if isinstance(head, CorruptRecord)]
            low = b"(" + members[-1]
        return found

    def _members(self, tenant: str, kind: str, low: bytes, end: bytes, limit: int) -> list[bytes]:
        """Return members of the indexes of all shards, in order; an empty list only at the end."""
        each = min(limit, 2 * limit // SHARDS + 4)
        indexes = self._keys.indexes(tenant, kind)
        parts = self._send(
            *(("ZRANGEBYLEX", index, low, end, "LIMIT", 0, each) for index in indexes)
        )
        # If scores were changed, Redis lists in another order, and the cursor would go back.
        if any(one <= before for part in parts for before, one in pairwise([low[1:], *part])):
            raise CorruptRecord(self._location, what="its index is not in order")
        # A shard with a full page may have more members behind its last one.
        sure = min((part[-1] for part in parts if len(part) == each), default=None)
        return sorted(one for part in parts for one in part if sure is None or one <= sure)[:limit]

    def _read_entries(
        self, tenant: str, kind: str, members: list[bytes], id_at: int
    ) -> list[Entry]:
        try:
            streams = [StreamKey(tenant, kind, member[id_at:].decode()) for member in members]
        except UnicodeDecodeError:
            raise CorruptRecord(
                self._location, what="an id in its index is not valid text"
            ) from None
        return list(zip(members, streams, self._read_heads(streams), strict=True))

    def _read_heads(self, streams: list[StreamKey]) -> list[Head | CorruptRecord | None]:
        try:
            *found, time = self._send(
                *(("HMGET", self._keys.for_stream(one).head, *HEAD_FIELDS) for one in streams),
                ("TIME",),
            )
        except CorruptRecord as error:  # one of them is not a hash: read them one by one
            return (
                [error]
                if len(streams) == 1
                else [head for one in streams for head in self._read_heads([one])]
            )
        heads: list[Head | CorruptRecord | None] = []
        for stream, values in zip(streams, found, strict=True):
            try:
                heads.append(decode_head(stream, values, decode_time(*time)))
            except CorruptRecord as error:
                heads.append(error)
        return heads

    def _log_once(self, stream: StreamKey, error: CorruptRecord) -> None:
        if stream not in self._logged:
            self._logged.add(stream)
            logger.warning("listings leave out %s (%s)", stream, error)


def decode_time(seconds: bytes, micros: bytes) -> float:
    """Decode the answer to TIME."""
    return clock.adjust_server_time(int(seconds) + int(micros) / 1e6)


def _decode_page(stream: StreamKey, stored: list[bytes], version: int, step: int) -> list[Record]:
    """Decode the records that fit a page, at least one."""
    records: list[Record] = []
    size = 0
    for one in stored:
        size += len(one)
        if size > PAGE_BYTES and records:
            break
        records.append(decode_record(stream, version, one))
        version += step
    return records
