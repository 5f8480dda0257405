"""The stored format on object stores: the contents of an object, its partition and its name.

Every object starts with a magic number and a digest of its partition, name and content. The content
is msgpack of one fixed type. Bytes that were damaged, or moved to another name, raise
`CorruptRecord`.

A *lineage* is a 16-byte hash of a stream key and one incarnation. It names the partitions with the
commits and the ids of that incarnation.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from ...errors import CorruptRecord, UnsupportedVersion
from ..interface import HeadFields, StreamKey

ROOT: Final = b"root"
MAGIC: Final = b"HFO"
FORMAT_VERSION: Final = b"\x01"
VERSION_LIMIT: Final = 2**63
DIGEST_BYTES: Final = 16

Version = Annotated[int, msgspec.Meta(ge=1, le=VERSION_LIMIT // 2)]
"""The range of valid versions. There is always one more name after that of a valid version."""
Count = Annotated[int, msgspec.Meta(ge=0, le=VERSION_LIMIT // 2)]

T = TypeVar("T", bound=msgspec.Struct)


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """A stored append, with the head fields after it; without records, the end of the stream.

    `nonce` identifies one call: it distinguishes an append that a call sent twice from a repeat by
    another call. `status_version` and `due_version` are the versions under which the current status
    and due time are listed.
    """

    first: Version
    append_id: bytes
    nonce: bytes
    indexed: bool
    records: Sequence[tuple[bytes, bytes]]
    fields: HeadFields
    status_version: Version
    due_version: Version

    @property
    def last(self) -> int:
        return self.first + len(self.records) - 1

    @property
    def ends(self) -> bool:
        return not self.records


class StreamRoot(msgspec.Struct, frozen=True, array_like=True):
    """The root of a stream: its current incarnation, if any, which decides what commits are live.

    `start`, `base` and `floor` are part of the format and constant. `former` has the lineages of
    deleted incarnations; those in `dirty` may still have objects to remove. `first` is the append
    that created the stream, until it is moved out of the root.
    """

    tenant: str
    kind: str
    id: str
    revision: Count = 0
    incarnation: bytes | None = None
    start: Version = 1
    base: Count = 0
    floor: Version = 1
    former: tuple[bytes, ...] = ()
    dirty: tuple[bytes, ...] = ()
    first: Commit | None = None

    @property
    def is_sound(self) -> bool:
        """Return whether `first` is a possible first commit."""
        first = self.first
        return first is None or (
            first.first == 1 and not first.ends and self.incarnation is not None
        )

    def revise(self, **changes: object) -> StreamRoot:
        """Return the next revision of the root, with these changes."""
        return msgspec.structs.replace(self, revision=self.revision + 1, **changes)


class AppendIdPointer(msgspec.Struct, frozen=True, array_like=True):
    """The versions at which an append with this id may be stored; the commit there decides."""

    id: bytes
    candidates: tuple[Version, ...]


def encode_object(partition: str, name: bytes, content: msgspec.Struct) -> bytes:
    """Return the bytes of an object to be stored under this name."""
    encoded = msgspec.msgpack.encode(content)
    return MAGIC + FORMAT_VERSION + _digest(partition, name, encoded) + encoded


def decode_object(partition: str, name: bytes, data: bytes, kind: type[T], stream: StreamKey) -> T:
    """Decode an object; raise `CorruptRecord` if it is damaged or was stored under another name."""
    if data[:3] == MAGIC and data[3:4] > FORMAT_VERSION:
        raise UnsupportedVersion(f"{stream} was written by a newer Holdfast; upgrade this one")
    digest, content = data[4 : 4 + DIGEST_BYTES], memoryview(data)[4 + DIGEST_BYTES :]
    if data[:4] != MAGIC + FORMAT_VERSION or digest != _digest(partition, name, content):
        raise CorruptRecord(str(stream), what="an object does not match its digest")
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CorruptRecord(str(stream), what="an object has the wrong type") from None


def _digest(partition: str, name: bytes, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(b"%d:%s%d:%s" % (len(partition), partition.encode(), len(name), name))
    digest.update(content)
    return digest.digest()[:DIGEST_BYTES]


def hash_parts(*parts: str | bytes) -> bytes:
    """Return 16 bytes that identify this sequence of parts."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(raw) + raw)
    return digest.digest()[:16]


def lineage_of(stream: StreamKey, incarnation: bytes) -> bytes:
    """Return the lineage that identifies one incarnation of a stream."""
    return hash_parts(*stream, incarnation)


def root_partition(stream: StreamKey) -> str:
    return "r/" + hash_parts(*stream).hex()


def commits_partition(lineage: bytes) -> str:
    return "c/" + lineage.hex()


def ids_partition(lineage: bytes) -> str:
    return "i/" + lineage.hex()


def version_name(first: int) -> bytes:
    """Return the name of the commit that starts with this version.

    Names descend, so that a listing starts with the newest commit.
    """
    return (VERSION_LIMIT - min(first, VERSION_LIMIT)).to_bytes(8, "big")


def id_name(append_id: bytes) -> bytes:
    return hashlib.sha256(append_id).digest()


def encode_time(time: float) -> bytes:
    """Return eight bytes that sort like the times."""
    [bits] = struct.unpack(">Q", struct.pack(">d", time + 0.0))  # -0.0 becomes 0.0
    return int.to_bytes(bits ^ (2**64 - 1 if bits >> 63 else 2**63), 8, "big")
