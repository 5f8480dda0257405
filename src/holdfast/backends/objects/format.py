"""How streams are written down as named bytes: what is in an object, and which name it has.

Every object begins with a mark, a digest over its place and its content, and then msgpack of one closed type: bytes that were
damaged, or moved to another place, are `CorruptRecord`, and never data.
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
MARK: Final = b"HFO"
FORMAT: Final = b"\x01"
BIG: Final = 2**63
DIGEST: Final = 16

Version = Annotated[int, msgspec.Meta(ge=1, le=BIG // 2)]
"""What is read as one must be one: there is a name for each of them, and always one more behind it."""
Count = Annotated[int, msgspec.Meta(ge=0, le=BIG // 2)]

T = TypeVar("T", bound=msgspec.Struct)


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """One append as it is stored, with the head's fields in force after it. Without records, it is the end of its life.

    `nonce` is of one call: it tells an append that we sent twice from one that somebody else repeats. `status_version` and
    `due_version` are the versions under which the status and the due time in force are listed.
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
    """What a stream's commits are read by: which life it has, if any.

    `start`, `base` and `floor` are part of the format, and always the same. `former` are lives that are over; of those
    in `dirty` something may be left to remove. `first` is the append that began the life, until it is moved out of here.
    """

    tenant: str
    kind: str
    id: str
    revision: Count = 0
    life: bytes | None = None
    start: Version = 1
    base: Count = 0
    floor: Version = 1
    former: tuple[bytes, ...] = ()
    dirty: tuple[bytes, ...] = ()
    first: Commit | None = None

    @property
    def is_sound(self) -> bool:
        """Whether `first` can be what it is said to be."""
        first = self.first
        return first is None or (first.first == 1 and not first.ends and self.life is not None)

    def changed(self, **what: object) -> StreamRoot:
        return msgspec.structs.replace(self, revision=self.revision + 1, **what)


class AppendIdPointer(msgspec.Struct, frozen=True, array_like=True):
    """Where an append with this id may be: at the `candidates`, if the commit there says so."""

    id: bytes
    candidates: tuple[Version, ...]


def seal(partition: str, name: bytes, what: msgspec.Struct) -> bytes:
    """The bytes of an object for this place."""
    content = msgspec.msgpack.encode(what)
    return MARK + FORMAT + _digest(partition, name, content) + content


def unseal(partition: str, name: bytes, data: bytes, kind: type[T], stream: StreamKey) -> T:
    """What is in an object, if it is whole and belongs here."""
    if data[:3] == MARK and data[3:4] > FORMAT:
        raise UnsupportedVersion(f"{stream} was written by a newer Holdfast; update this one")
    digest, content = data[4 : 4 + DIGEST], memoryview(data)[4 + DIGEST :]
    if data[:4] != MARK + FORMAT or digest != _digest(partition, name, content):
        raise CorruptRecord(str(stream), what="an object does not match its digest")
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CorruptRecord(str(stream), what="an object is not what its name says") from None


def _digest(partition: str, name: bytes, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(b"%d:%s%d:%s" % (len(partition), partition.encode(), len(name), name))
    digest.update(content)
    return digest.digest()[:DIGEST]


def hashed(*parts: str | bytes) -> bytes:
    """Sixteen bytes for these parts, of whatever length and content they are."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(raw) + raw)
    return digest.digest()[:16]


def life_id(stream: StreamKey, incarnation: bytes) -> bytes:
    """The name of one life of a stream."""
    return hashed(*stream, incarnation)


def root_place(stream: StreamKey) -> str:
    return "r/" + hashed(*stream).hex()


def commits_place(life: bytes) -> str:
    return "c/" + life.hex()


def ids_place(life: bytes) -> str:
    return "i/" + life.hex()


def version_name(first: int) -> bytes:
    """The name of the commit that begins with this version. Names descend, so that a list begins with the newest."""
    return (BIG - min(first, BIG)).to_bytes(8, "big")


def id_name(append_id: bytes) -> bytes:
    return hashlib.sha256(append_id).digest()


def time_name(time: float) -> bytes:
    """Eight bytes that are ordered like the times."""
    [bits] = struct.unpack(">Q", struct.pack(">d", time + 0.0))  # there is only one zero
    return int.to_bytes(bits ^ (2**64 - 1 if bits >> 63 else 2**63), 8, "big")
