"""The hash chain: a record's hash covers its bytes, append id, position and all records before it.

    hash(n) = H(seed, hash(n-1), n, append id, H(stored bytes))
    seed = H(domain, tenant, kind, id, incarnation)

It needs no key and covers the bytes as stored, so it can be checked without keys and after erasure.
A record that was edited, moved, swapped or taken from another stream or incarnation does not match.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from ..backends import Record, StreamKey

_DOMAIN: Final = b"holdfast chain 1"
_pack = struct.Struct(">Q").pack
MAX_VERSION: Final = 1 << 62
GENESIS: Final = bytes(32)
"""The hash before version 1."""


def seed(stream: StreamKey, incarnation: bytes) -> bytes:
    """Return the seed that binds a chain to one incarnation of its stream.

    The parts are length-prefixed, so no two streams share a seed.
    """
    tenant, kind, name = stream[0].encode(), stream[1].encode(), stream[2].encode()
    return sha256(
        _DOMAIN
        + _pack(len(tenant))
        + tenant
        + _pack(len(kind))
        + kind
        + _pack(len(name))
        + name
        + _pack(len(incarnation))
        + incarnation
    ).digest()


def link(seed: bytes, previous: bytes, version: int, append_id: bytes, body: bytes) -> bytes:
    """Return the hash of a record. One part has no fixed length, so the input is unambiguous."""
    return sha256(
        seed + previous + version.to_bytes(8, "big") + append_id + sha256(body).digest()
    ).digest()


def extend(
    seed: bytes, previous: bytes, version: int, append_id: bytes, bodies: Iterable[bytes]
) -> list[tuple[bytes, bytes]]:
    """Return (hash, body) of an append that follows `version`, whose hash is `previous`."""
    links = []
    for body in bodies:  # `link`, written out: every append runs this
        version += 1
        previous = sha256(
            seed + previous + version.to_bytes(8, "big") + append_id + sha256(body).digest()
        ).digest()
        links.append((previous, body))
    return links


def find_first_bad(seed: bytes, anchor: Record | None, records: Sequence[Record]) -> int | None:
    """Return the first version that is missing, altered or out of place; None if all match.

    `anchor` is the record before them, None at the start of the stream.
    """
    version, previous = (anchor.version, anchor.hash) if anchor else (0, GENESIS)
    if not 0 <= version < MAX_VERSION:
        return 1  # a damaged database may return any number
    for record in records:
        version += 1
        if record.version != version:
            return version
        # `link`, written out: every read runs this.
        expected = sha256(
            seed
            + previous
            + version.to_bytes(8, "big")
            + record.append_id
            + sha256(record.body).digest()
        ).digest()
        if expected != record.hash:
            return version
        previous = expected
    return None
