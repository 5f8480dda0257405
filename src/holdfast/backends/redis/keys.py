"""The layout of streams in Redis: names of keys, members of indexes, and the bytes of records.

A stream belongs to one of 64 shards of its tenant. All its keys start with the hash tag of that
shard, written {tag} here for {prefix:tenant:shard}:

    {tag}:h:kind:id  hash    the head: v version, h hash, i incarnation, m size of the largest
                             record, s status, l label, o owner, d due_at, e expires_at, k sort key
                             of the due time
    {tag}:r:kind:id  list    the records, in order
    {tag}:a:kind:id  hash    indexed append ids of this incarnation -> "first last"
    {tag}:f:kind:id  set     deleted incarnations (tombstones)
    {tag}:x:kind     zset    the index, by bytes: "a" id, "s" length status id, "d" due id
    {tag}:n          string  the number of writes to the shard
    {prefix}:store   hash    the schema, and the epoch: a random name of this store
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from ...errors import CorruptRecord
from ..interface import Append, Head, HeadFields, Record, StreamKey

SHARDS: Final = 64
MAX_DIGITS: Final = 15
"""The digits of the largest number that Lua represents exactly."""
STATUS_DIGITS, DUE_BYTES = 8, 8
"""The length of a status in an index member, and the size of a due time."""
HEAD_FIELDS: Final = ("v", "h", "i", "s", "l", "o", "d", "e")

_LENGTH = struct.Struct(">I")
_DUE = struct.Struct(">d")
_SORTED = struct.Struct(">Q")


class RedisStreamKeys(NamedTuple):
    """The keys of one stream, and of the index and the counter of its shard."""

    head: bytes
    records: bytes
    append_ids: bytes
    tombstones: bytes
    shard_index: bytes
    counter: bytes


class ParsedKey(NamedTuple):
    """The parts of a key. `stream` is None for the index and the counter of a shard."""

    letter: str
    tenant: str
    kind: str = ""
    stream: StreamKey | None = None


class RedisKeys:
    """Builds the keys of one store."""

    def __init__(self, prefix: str, database: int) -> None:
        self._prefix = prefix
        self.store = f"{{{prefix}}}:store".encode()
        self.probe = f"{{{prefix}}}:probe".encode()
        # The channel of a stream is this prefix and the key of its head. All databases of a server
        # share their channels.
        self.channel = b"%d:" % database

    def tag(self, stream: StreamKey) -> str:
        return self._tag(stream.tenant, zlib.crc32(stream.id.encode()) % SHARDS)

    def for_stream(self, stream: StreamKey) -> RedisStreamKeys:
        tag, kind = self.tag(stream).encode(), quote(stream.kind, safe="").encode()
        # The id comes last and needs no escaping: only the first braces are a hash tag.
        name = kind + b":" + stream.id.encode()
        return RedisStreamKeys(
            tag + b":h:" + name,
            tag + b":r:" + name,
            tag + b":a:" + name,
            tag + b":f:" + name,
            tag + b":x:" + kind,
            tag + b":n",
        )

    def indexes(self, tenant: str, kind: str) -> list[bytes]:
        """Return the key of the index of each shard."""
        return [
            f"{self._tag(tenant, shard)}:x:{quote(kind, safe='')}".encode()
            for shard in range(SHARDS)
        ]

    def pattern(self, letter: str = "*") -> str:
        """Return the pattern of all keys of streams, or of those with a letter."""
        return f"{{{self._prefix}:*}}:{letter}:*" if letter != "*" else f"{{{self._prefix}:*"

    def parse(self, key: bytes) -> ParsedKey | None:
        """Return the parts of a key; None if it is not a key of Holdfast."""
        try:
            tag, _, rest = key.decode().removeprefix(f"{{{self._prefix}:").partition("}:")
            quoted = tag.rpartition(":")[0]
            letter, _, name = rest.partition(":")
            quoted_kind, _, text = name.partition(":")
            tenant, kind = unquote(quoted, errors="strict"), unquote(quoted_kind, errors="strict")
        except UnicodeDecodeError:
            return None
        if letter == "n":
            counters = (f"{self._tag(tenant, number)}:n".encode() for number in range(SHARDS))
            return ParsedKey(letter, tenant) if key in counters else None
        if letter == "x":
            return ParsedKey(letter, tenant, kind) if key in self.indexes(tenant, kind) else None
        stream = StreamKey(tenant, kind, text)
        keys = self.for_stream(stream)
        right = {"h": keys.head, "r": keys.records, "a": keys.append_ids, "f": keys.tombstones}
        return ParsedKey(letter, tenant, kind, stream) if key == right.get(letter) else None

    def _tag(self, tenant: str, shard: int) -> str:
        return f"{{{self._prefix}:{quote(tenant, safe='')}:{shard:02}}}"


def encode_due(due: float) -> bytes:
    """Return eight bytes that sort like the time."""
    [bits] = _SORTED.unpack(_DUE.pack(due + 0.0))  # -0.0 is 0.0
    return _SORTED.pack(bits ^ (1 << 64) - 1 if bits >> 63 else bits ^ 1 << 63)


def encode_due_after(due: float) -> bytes:
    """Return the first eight bytes that sort after this time."""
    return _SORTED.pack(_SORTED.unpack(encode_due(due))[0] + 1)


def encode_status(status: str) -> bytes:
    """Return the prefix of index members with this status."""
    text = status.encode()
    return b"s%08d%b" % (len(text), text)


def encode_mark(append_id: bytes) -> bytes:
    """Return an append id in the form that starts a record and is a key of `{tag}:a`."""
    return _LENGTH.pack(len(append_id)) + append_id


def encode_append(append: Append, seen: int) -> list[Any]:
    """Return an append as arguments of the script; see `lua.APPEND`."""
    mark = encode_mark(append.id)
    records = [mark + _LENGTH.pack(len(digest)) + digest + body for digest, body in append.records]
    return [
        seen,
        append.expected,
        append.expected_hash,
        append.incarnation,
        mark,
        int(append.indexed),
        int(append.fields is not None),
        *encode_fields(append.fields or HeadFields()),
        append.stream.id.encode(),
        max(map(len, records)),
        append.records[-1][0],
        len(records),
        *records,
    ]


def encode_fields(fields: HeadFields) -> list[bytes]:
    """Return each field, and the sort key of the due time. A present value starts with `=`."""
    texts = [None if text is None else text.encode() for text in (fields.status, fields.owner)]
    times = [
        None if time is None else repr(float(time)).encode()
        for time in (fields.due_at, fields.expires_at)
    ]
    due = None if fields.due is None else encode_due(fields.due)
    values = (texts[0], fields.label, texts[1], *times, due)
    return [b"" if value is None else b"=" + value for value in values]


def decode_number(stream: StreamKey, stored: bytes | None) -> int:
    """Decode a number of a head; raise `CorruptRecord` if the scripts cannot have written it."""
    if stored is None or not stored.isdigit() or len(stored) > MAX_DIGITS:
        raise _foreign_head_error(stream)
    return int(stored)


def _foreign_head_error(stream: StreamKey) -> CorruptRecord:
    return CorruptRecord(str(stream), what="its head was not written by Holdfast")


def decode_head(stream: StreamKey, values: list[Any], now: float) -> Head | None:
    """Decode the values of `HEAD_FIELDS`; None if the stream does not exist."""
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
        return Head(stream, incarnation, fields, now, decode_number(stream, version), digest)
    except ValueError:
        raise _foreign_head_error(stream) from None


def decode_record(stream: StreamKey, version: int, stored: bytes) -> Record:
    """Decode an element of the list of records."""
    try:
        [size] = _LENGTH.unpack_from(stored)
        middle = _LENGTH.size + size
        [size] = _LENGTH.unpack_from(stored, middle)
        end = middle + _LENGTH.size + size
        if end > len(stored):
            raise ValueError
    except (struct.error, ValueError):
        raise CorruptRecord(str(stream), version=version, what="its bytes are truncated") from None
    return Record(
        version, stored[_LENGTH.size : middle], stored[middle + _LENGTH.size : end], stored[end:]
    )
