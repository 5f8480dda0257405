"""How streams lie in Redis: the names of keys, the members of indexes, and the bytes of records.

A stream belongs to one of 64 shards of its tenant, and all of its keys begin with the hash tag of that shard:

    {prefix:tenant:shard}:h:kind:id   hash    the head: v version, h hash, i incarnation, b deleted records, m largest record,
                                              s status, l label, o owner, d due_at, e expires_at, k sort key of the due time
    {prefix:tenant:shard}:r:kind:id   list    the records, in order
    {prefix:tenant:shard}:a:kind:id   hash    indexed append ids of this life -> "first last"
    {prefix:tenant:shard}:f:kind:id   set     incarnations of former lives
    {prefix:tenant:shard}:x:kind      zset    the index, by bytes: "a" id, "s" length status id, "d" due id
    {prefix:tenant:shard}:n           string  how many writes the shard has seen
    {prefix}:store                    hash    the schema, and the epoch: a random name of this store
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any, Final
from urllib.parse import quote

from ...errors import CorruptRecord
from ..interface import Append, Head, HeadFields, Record, StreamKey

SHARDS: Final = 64
DIGITS: Final = 15
HEAD: Final = ("v", "h", "i", "s", "l", "o", "d", "e")

_LENGTH = struct.Struct(">I")
_DUE = struct.Struct(">d")
_SORTED = struct.Struct(">Q")


class RedisKeys:
    """The names that one store uses."""

    def __init__(self, prefix: str, database: int) -> None:
        self._prefix = prefix
        self.store = f"{{{prefix}}}:store".encode()
        self.probe = f"{{{prefix}}}:probe".encode()
        # Channels are the same for all databases of a server. This and the key of its head are the channel of a stream.
        self.channel = b"%d:" % database

    def tag(self, stream: StreamKey) -> str:
        return self._tag(stream.tenant, zlib.crc32(stream.id.encode()) % SHARDS)

    def of(self, stream: StreamKey) -> tuple[bytes, ...]:
        """Head, records, append ids, former lives, index and counter."""
        tag, kind = self.tag(stream).encode(), quote(stream.kind, safe="").encode()
        # The id is last, so it needs no encoding: keys are any bytes, and only the first braces are a hash tag.
        name = kind + b":" + stream.id.encode()
        own = [tag + letter + name for letter in (b":h:", b":r:", b":a:", b":f:")]
        return (*own, tag + b":x:" + kind, tag + b":n")

    def indexes(self, tenant: str, kind: str) -> list[bytes]:
        """The index of each shard."""
        return [
            f"{self._tag(tenant, shard)}:x:{quote(kind, safe='')}".encode()
            for shard in range(SHARDS)
        ]

    def _tag(self, tenant: str, shard: int) -> str:
        return f"{{{self._prefix}:{quote(tenant, safe='')}:{shard:02}}}"


def sorted_due(due: float) -> bytes:
    """Eight bytes that sort like the time."""
    [bits] = _SORTED.unpack(_DUE.pack(due + 0.0))  # -0.0 is 0.0
    return _SORTED.pack(bits ^ (1 << 64) - 1 if bits >> 63 else bits ^ 1 << 63)


def behind_due(due: float) -> bytes:
    """The first eight bytes that sort behind this time."""
    return _SORTED.pack(_SORTED.unpack(sorted_due(due))[0] + 1)


def of_status(status: str) -> bytes:
    """What index members of this status begin with."""
    text = status.encode()
    return b"s%08d%b" % (len(text), text)


def arguments(append: Append, seen: int) -> list[Any]:
    """An append as the script takes it."""
    mark = _LENGTH.pack(len(append.id)) + append.id
    records = [mark + _LENGTH.pack(len(digest)) + digest + body for digest, body in append.records]
    return [
        seen,
        append.expected,
        append.expected_hash,
        append.incarnation,
        mark,
        int(append.indexed),
        *_fields(append.fields),
        append.stream.id.encode(),
        max(map(len, records)),
        append.records[-1][0],
        len(records),
        *records,
    ]


def _fields(fields: HeadFields | None) -> list[bytes]:
    """Whether there are fields, then each of them, and the sort key of the due time. What is there begins with `=`."""
    if fields is None:
        return [b"0", b"", b"", b"", b"", b"", b""]
    texts = [None if text is None else text.encode() for text in (fields.status, fields.owner)]
    times = [
        None if time is None else repr(float(time)).encode()
        for time in (fields.due_at, fields.expires_at)
    ]
    due = None if fields.due is None else sorted_due(fields.due)
    values = (texts[0], fields.label, texts[1], *times, due)
    return [b"1", *(b"" if value is None else b"=" + value for value in values)]


def number_of(stored: bytes | None) -> int:
    """A version, or a count, as the scripts write it. Whatever else is there is a `ValueError`: Lua counts no further than this."""
    if stored is None or not stored.isdigit() or len(stored) > DIGITS:
        raise ValueError
    return int(stored)


def head_of(stream: StreamKey, values: list[Any], now: float) -> Head | None:
    """A head from the values of `HEAD`; None if there is none."""
    version, digest, incarnation, status, label, owner, due_at, expires_at = values
    if version is None:
        return None
    try:
        fields = HeadFields(
            None if status is None else status.decode(),
            label,
            None if owner is None else owner.decode(),
            None if due_at is None else float(due_at),
            None if expires_at is None else float(expires_at),
        )
        if (
            digest is None
            or incarnation is None
            or (fields.due is not None and math.isnan(fields.due))
        ):
            raise ValueError
        return Head(stream, incarnation, fields, now, number_of(version), digest)
    except ValueError:
        raise CorruptRecord(str(stream), what="its head is not one that Holdfast wrote") from None


def record_of(stream: StreamKey, version: int, stored: bytes) -> Record:
    """A record from the bytes in the list."""
    try:
        [size] = _LENGTH.unpack_from(stored)
        middle = _LENGTH.size + size
        [size] = _LENGTH.unpack_from(stored, middle)
        end = middle + _LENGTH.size + size
        if end > len(stored):
            raise ValueError
    except (struct.error, ValueError):
        raise CorruptRecord(str(stream), version=version, what="its bytes are cut off") from None
    return Record(
        version, stored[_LENGTH.size : middle], stored[middle + _LENGTH.size : end], stored[end:]
    )
